// @ts-check
// Keeps a view current that the server drew: its parts are loaded again, and its signs of life go on in between.
//
//   <section data-part=…>     the page is loaded again, and each of its parts takes the place of ours
//   <tr data-job="NAME" data-token= data-since= data-beat= data-until= data-own= data-ttl= data-session=>   a held job
//   <tr data-run="ID" data-until=>                                                                          a session
//     … data-live="sign | held | beat | left | bar"      what is written below it (templates/view_parts.html, `job_data`)
//
// The browser itself parses the document that is loaded, so no script turns text into a page, and the policy lets it pass.
// While the page is not live nothing moves: how it goes on is not known then.

import { showSignedOut } from "./api.js";
import { agoText, exactText, keepJob, leftText, serverNow, showTimes, signOf, spanText } from "./clock.js";
import { liveStatus, subscribe } from "./live.js";

// Loading parts again.

const loading = { isRunning: false, isWanted: false, lastMs: 0, timer: 0, dueMs: 0 };

/**
 * @param {string} address
 * @returns {Promise<Document>}
 */
function load(address) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("GET", address);
    request.responseType = "document";
    request.onload = () => (request.status === 200 && request.response ? resolve(request.response) : reject(request.status));
    request.onerror = () => reject(0);
    request.send();
  });
}

/**
 * Whether the reader writes in a part, or has opened a form in it: that is not taken away.
 * @param {Element} part
 */
function isInUse(part) {
  const focused = document.activeElement;
  return (part.contains(focused) && focused?.matches("input, textarea, select"))
    || part.querySelector("details.offer[open]") !== null;
}

/** Until nothing is pressed: an element that is removed while it is pressed is not clicked. */
async function released() {
  while (document.querySelector("[data-part]:active") !== null) await new Promise(requestAnimationFrame);
}

/**
 * Put the newest of every part in its place.
 * @returns {Promise<void>}
 */
async function refresh() {
  let made;
  try {
    made = await load(location.href);
  } catch (status) {
    if (status === 401) showSignedOut();
    return;
  }
  await released();
  /** @type {string[]} */
  const left = [];
  for (const part of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-part]"))) {
    const anew = made.getElementById(part.id);
    if (anew === null) continue;
    if (isInUse(part)) left.push(part.dataset.part ?? "");
    else replace(part, document.adoptNode(anew));
  }
  document.dispatchEvent(new CustomEvent("holdfast:fresh", { detail: { page: made, left } }));
}

/**
 * Put a part in the place of another, scrolled and focused as that was.
 * @param {Element} part
 * @param {Element} anew
 */
function replace(part, anew) {
  const scrolled = [...part.querySelectorAll(".scroll, .graph")].map(({ scrollLeft, scrollTop }) => ({ scrollLeft, scrollTop }));
  const focused = part.contains(document.activeElement) ? (document.activeElement?.getAttribute("href") ?? null) : null;
  showTimes(anew);
  part.replaceWith(anew);
  anew.querySelectorAll(".scroll, .graph").forEach((each, number) => Object.assign(each, scrolled[number] ?? {}));
  if (focused !== null) [...anew.querySelectorAll("a")].find((each) => each.getAttribute("href") === focused)?.focus();
}

/**
 * Whether something happened between the making of this page and record `seq`, after which everything is told.
 * @param {number | undefined} seq
 */
export function isOlderThan(seq) {
  return seq === undefined || !(seq <= Number(document.body.dataset.seq));
}

/**
 * Load the parts again soon: once, however often this is called, and not more often than every `everyMs`.
 * @param {number} everyMs
 */
export function refreshSoon(everyMs) {
  if (loading.isRunning || document.visibilityState === "hidden") {
    loading.isWanted = true;
    return;
  }
  const dueMs = Math.max(Date.now() + 100, loading.lastMs + everyMs);
  if (loading.timer !== 0 && loading.dueMs <= dueMs) return;
  clearTimeout(loading.timer);
  loading.dueMs = dueMs;
  loading.timer = setTimeout(async () => {
    loading.timer = 0;
    loading.isRunning = true;
    loading.isWanted = false;
    try {
      await refresh();
    } finally {
      loading.isRunning = false;
      loading.lastMs = Date.now();
    }
    if (loading.isWanted) refreshSoon(everyMs);
  }, dueMs - Date.now());
}

/**
 * The same when the reader comes back to a tab that something happened to.
 * @param {number} everyMs
 */
export function refreshWhenSeen(everyMs) {
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "visible" && loading.isWanted) refreshSoon(everyMs);
  });
}

// Signs of life.

/** @typedef {Life & { element: HTMLElement, name: string, token: string, session: string, since: number }} Shown */

/** @type {Shown[]} */
let jobs = [];
/** @type {{ element: HTMLElement, id: string, until: number }[]} */
let sessions = [];

function read() {
  jobs = [.../** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-job]"))].map((element) => {
    const { job = "", token = "", session = "", since, beat, until, own, ttl } = element.dataset;
    const times = { since: Number(since), beat: Number(beat), until: Number(until), own: Number(own), ttl: Number(ttl) };
    return { element, name: job, token, session, ended: null, ...times };
  });
  sessions = [.../** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-run]"))].map((element) => {
    return { element, id: element.dataset.run ?? "", until: Number(element.dataset.until) };
  });
}

/**
 * @param {Element} element
 * @param {string} what
 */
function parts(element, what) {
  return element.querySelectorAll(`[data-live="${what}"]`);
}

/**
 * @param {Element} element
 * @param {string} what
 * @param {string} text
 */
function setText(element, what, text) {
  for (const part of parts(element, what)) if (part.textContent !== text) part.textContent = text;
}

/**
 * @param {Shown} job
 * @param {number} now
 */
function showJob(job, now) {
  const sign = signOf(job, now);
  for (const part of parts(job.element, "sign")) part.className = `sign ${sign}`;
  setText(job.element, "sign", sign);
  setText(job.element, "held", spanText(now - job.since));
  setText(job.element, "left", leftText(job.until - now));
  for (const bar of /** @type {NodeListOf<HTMLMeterElement>} */ (parts(job.element, "bar"))) {
    bar.max = Math.max(1, job.ttl);
    bar.value = Math.min(bar.max, Math.max(0, job.until - now));
  }
}

/** @param {Shown} job */
function showBeat(job) {
  for (const part of /** @type {NodeListOf<HTMLTimeElement>} */ (parts(job.element, "beat"))) {
    part.dateTime = new Date(job.beat).toISOString();
    part.title = exactText(job.beat);
    part.textContent = agoText(job.beat);
  }
}

function tick() {
  if (liveStatus().kind !== "live") return;
  const now = serverNow();
  for (const job of jobs) showJob(job, now);
  for (const session of sessions) setText(session.element, "left", leftText(session.until - now));
  // Not every reader is told of every session: its page knows.
  if (sessions.some((session) => session.until < now)) refreshSoon(5_000);
}

/**
 * Put what a frame says in its place. Tells whether somebody else has a job now that is shown.
 * @param {Frame} frame
 */
function take({ rows, beats, gone, kept }) {
  /** @type {Map<string, HeartbeatUpdate>} */
  const updates = new Map(rows.map(({ name, token, beat, until, ttl, own = 0 }) => [name, [name, token, beat, until, ttl, own]]));
  for (const beat of beats) updates.set(beat[0], beat);
  const ends = new Map(kept);
  let isOther = false;
  for (const job of jobs) {
    const said = updates.get(job.name);
    const end = ends.get(job.session);
    if (said !== undefined && String(said[1]) !== job.token) isOther = true;
    else if (said !== undefined) {
      [, , job.beat, job.until, job.ttl] = said;
      job.own = said[5] || job.until;
    }
    if (end) keepJob(job, end);
    if (said !== undefined || end !== undefined) showBeat(job);
  }
  for (const session of sessions) session.until = ends.get(session.id) || session.until;
  tick();
  return isOther || gone.some((each) => jobs.some((job) => job.name === each.name));
}

/** The names of the jobs whose signs of life are shown. */
export function namesShown() {
  return new Set(jobs.map((job) => job.name));
}

/**
 * Begin. Where somebody else has a job now, the page is loaded again, at most so often.
 * @param {number} everyMs
 */
export function startTimers(everyMs) {
  read();
  document.addEventListener("holdfast:fresh", () => {
    read();
    tick();
  });
  setInterval(tick, 1_000);
  subscribe({
    rows(frame) {
      if (take(frame)) refreshSoon(everyMs);
    },
  });
}
