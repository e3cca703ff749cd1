// @ts-check
// Looking back: a slider over the kept history, with marks where things ended badly, and a field for an exact moment.
//
//   now ────────●     the right end is now; the nearer to it, the finer: the last hours matter most
//
// A moment is an address of its own (`/?at=…`), made by the server: a reload, a bookmark, a pasted link show the same.
// Arrow keys go by a minute, page keys by an hour.

import { ask } from "./api.js";
import { agoText, clockText, exactText, momentText, serverNow } from "./clock.js";
import { addKey, showLive } from "./page.js";

const STEPS = 1_000;
const CURVE = 3;
const MINUTE_MS = 60_000;
const HOUR_MS = 3_600_000;
const DAY_MS = 86_400_000;
/** @type {Record<string, number>} */
const UNITS_MS = { ms: 1, s: 1_000, m: MINUTE_MS, min: MINUTE_MS, h: HOUR_MS, d: DAY_MS, w: 7 * DAY_MS };
const REST_MS = 500; // After the last key: somebody goes on pressing.
const MARKS_PAGES_MAX = 20; // Each is a search of some megabytes.
const MARKS_PAUSE_MS = 200;
const MARKS_MAX = 2_000;

const form = /** @type {HTMLFormElement} */ (document.querySelector("#moment-form"));
const range = /** @type {HTMLInputElement} */ (document.querySelector("#moment"));
const words = /** @type {HTMLOutputElement} */ (document.querySelector("#moment-words"));
const field = /** @type {HTMLInputElement} */ (document.querySelector("#moment-at"));
const drawing = /** @type {SVGElement} */ (document.querySelector("#moment-marks"));
/** @type {{ event: string, ms: number }[]} */
const marks = [];
/** @type {number | null} */
let beginsMs = null;
let atMs = form.dataset.at ? Date.parse(form.dataset.at) : null; // null: now.
/** @type {number | undefined} */
let going;
/** @type {number | null} */
let nextBefore = null;
let isSearching = false;

// Where a moment stands on the slider, and back.

function spanMs() {
  return Math.max(1, serverNow() - (beginsMs ?? 0));
}

/** @param {number} ms */
function stepOf(ms) {
  const part = Math.min(1, Math.max(0, (serverNow() - ms) / spanMs()));
  return STEPS * (1 - part ** (1 / CURVE));
}

/** @param {number} step */
function momentAt(step) {
  if (step >= STEPS) return null;
  return Math.round(serverNow() - spanMs() * (1 - step / STEPS) ** CURVE);
}

// Going there.

/** @param {number | null} ms */
function address(ms) {
  const here = new URL(location.href).searchParams;
  const fields = new URLSearchParams();
  for (const what of ["q", "sort"]) {
    const value = here.get(what);
    if (value) fields.set(what, value);
  }
  if (ms !== null) fields.set("at", new Date(ms).toISOString());
  const text = fields.toString();
  return `/${text ? `?${text}` : ""}#moment`;
}

/** @param {number | null} ms */
function go(ms) {
  clearTimeout(going);
  const to = address(ms);
  // The same address with another end is no new page.
  if (to === location.pathname + location.search + location.hash) location.reload();
  else location.assign(to);
}

/** @param {number | null} ms */
function point(ms) {
  atMs = ms;
  show();
}

function show() {
  if (beginsMs !== null) range.value = String(atMs === null ? STEPS : stepOf(atMs));
  showWords();
}

function showWords() {
  const text = atMs === null ? "now" : `${momentText(atMs)}, ${agoText(atMs)}`;
  words.textContent = text;
  words.title = atMs === null ? "" : exactText(atMs);
  range.setAttribute("aria-valuetext", text);
}

range.addEventListener("input", () => {
  atMs = momentAt(Number(range.value));
  showWords();
});
range.addEventListener("change", () => go(atMs));
range.addEventListener("keydown", (event) => {
  /** @type {Record<string, number>} */
  const by = { ArrowLeft: -MINUTE_MS, ArrowDown: -MINUTE_MS, ArrowRight: MINUTE_MS, ArrowUp: MINUTE_MS, PageDown: -HOUR_MS, PageUp: HOUR_MS };
  const step = by[event.key];
  if (event.ctrlKey || event.metaKey || event.altKey || beginsMs === null) return;
  const nowMs = serverNow();
  let wanted = (atMs ?? nowMs) + (step ?? 0);
  if (event.key === "Home") wanted = beginsMs;
  else if (event.key === "End") wanted = nowMs;
  else if (step === undefined) return;
  event.preventDefault();
  point(wanted >= nowMs ? null : Math.max(beginsMs, wanted));
  clearTimeout(going);
  going = setTimeout(() => go(atMs), REST_MS);
});
// Whoever looks at the slider wants to see all marks.
for (const kind of ["pointerenter", "focus"]) range.addEventListener(kind, () => loadMarks(MARKS_PAGES_MAX));

// The field.

/**
 * What somebody typed, as a moment: a time of day (the last one past, here), a date with a time, or how long ago.
 * @param {string} text
 * @param {number} nowMs
 */
function readMoment(text, nowMs) {
  const typed = text.trim().toLowerCase();
  const clock = /^([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?$/.exec(typed);
  if (clock) return lastPast(Number(clock[1]), Number(clock[2]), Number(clock[3] ?? 0), nowMs);
  const ago = typed.replace(/\s*ago$/, "").replaceAll(" ", "");
  if (/^(\d+(\.\d+)?(ms|s|min|m|h|d|w))+$/.test(ago)) {
    let ms = 0;
    for (const [, number, unit = ""] of ago.matchAll(/(\d+(?:\.\d+)?)(ms|s|min|m|h|d|w)/g)) {
      ms += Number(number) * (UNITS_MS[unit] ?? 0);
    }
    return nowMs - ms;
  }
  const ms = /^\d{4}-\d\d-\d\d/.test(typed) ? Date.parse(typed.replace(" ", "t").toUpperCase()) : Number.NaN;
  return Number.isNaN(ms) ? null : ms;
}

/**
 * @param {number} hours
 * @param {number} minutes
 * @param {number} seconds
 * @param {number} nowMs
 */
function lastPast(hours, minutes, seconds, nowMs) {
  const now = new Date(nowMs);
  const shows = (/** @type {number} */ ms) => {
    const at = new Date(ms);
    return at.getHours() === hours && at.getMinutes() === minutes;
  };
  for (let days = 0; days < 8; days++) {
    const ms = new Date(now.getFullYear(), now.getMonth(), now.getDate() - days, hours, minutes, seconds).getTime();
    // Where clocks are changed, a day has it twice, or not at all.
    for (const each of [ms + HOUR_MS, ms]) if (shows(each) && each <= nowMs) return each;
  }
  return null;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const ms = field.value.trim() === "" ? null : readMoment(field.value, serverNow());
  const isWrong = ms === null && field.value.trim() !== "";
  field.setCustomValidity(isWrong ? "Write 02:14, 2026-01-31 02:14, or 2h ago." : "");
  if (isWrong) field.reportValidity();
  else go(ms);
});
field.addEventListener("input", () => field.setCustomValidity(""));

// Marks.

/** @param {number} pages */
async function loadMarks(pages) {
  if (isSearching) return;
  isSearching = true;
  try {
    for (let page = 0; page < pages && nextBefore !== 0 && marks.length < MARKS_MAX; page++) {
      const found = await ask(nextBefore === null ? "/ui/marks" : `/ui/marks?before=${nextBefore}`);
      beginsMs = found.begins_at === null ? null : Date.parse(found.begins_at);
      nextBefore = found.next_before ?? 0;
      for (const mark of found.marks) marks.push({ ...mark, ms: Date.parse(mark.at) });
      begin();
      await new Promise((done) => setTimeout(done, MARKS_PAUSE_MS));
    }
  } catch {
    // Markers are optional.
  }
  isSearching = false;
}

function begin() {
  range.disabled = beginsMs === null;
  if (beginsMs === null) return;
  const shown = new Map();
  for (const { ms, event } of marks) {
    const step = Math.round(stepOf(ms) / 2) * 2;
    if (ms >= beginsMs && !shown.has(step)) shown.set(step, event);
  }
  drawing.replaceChildren(...[...shown].map(([step, event]) => bar(step, event)));
  show();
  if (location.hash === "#moment" && document.activeElement === document.body) range.focus();
}

/**
 * @param {number} step
 * @param {string} event
 */
function bar(step, event) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  made.setAttribute("x", String(Math.min(STEPS - 2, step)));
  made.setAttribute("width", "2");
  made.setAttribute("height", "6");
  made.setAttribute("class", event);
  return made;
}

/**
 * Go to the moment just before something ended badly: its owner is still there.
 * @param {boolean} isBefore
 */
function goToMark(isBefore) {
  const from = atMs ?? serverNow();
  const wanted = marks.map((mark) => mark.ms - 1).filter((ms) => (isBefore ? ms < from : ms > from));
  if (wanted.length) go(isBefore ? Math.max(...wanted) : Math.min(...wanted));
}

addKey("t", "look back", () => (range.disabled ? field : range).focus());
addKey("[", "before the last bad end", () => goToMark(true));
addKey("]", "before the next bad end", () => goToMark(false));
if (atMs !== null) {
  addKey("n", "back to now", () => go(null));
  showLive("past");
  const clock = document.getElementById("clock");
  clock?.setAttribute("data-held", "");
  if (clock !== null) clock.textContent = clockText(atMs);
  if (field.value) field.value = "";
}
show();
loadMarks(1);
