// The server's time, and times in the words of this page's reader. One offset corrects a clock that is wrong here.

const SECOND_MS = 1_000;
const UNITS = [[86_400_000, "d"], [3_600_000, "h"], [60_000, "min"]];

const HELD = new Set(["reconnecting", "away", "signed-out", "refused", "past"]);

let offsetMs = 0;

/** Learn the server's time: `serverMs` was true when this page's clock said `hereMs`. */
export function learnServerTime(serverMs, hereMs = Date.now()) {
  if (Number.isFinite(serverMs)) offsetMs = serverMs - hereMs;
}

/** The server's wall time now, in milliseconds. */
export function serverNow() {
  return Date.now() + offsetMs;
}

/** How long something lasts, in the largest unit that fits: `31 s`, `4 min`, `2 h`, `3 d`. */
export function spanText(ms) {
  for (const [unitMs, unit] of UNITS) if (ms >= unitMs) return `${Math.floor(ms / unitMs)} ${unit}`;
  return `${Math.floor(Math.max(0, ms) / SECOND_MS)} s`;
}

const clockFormat = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const dayFormat = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const yearFormat = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", year: "numeric" });
const exactFormat = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

/** A time of day in the reader's zone: `02:14:33`. */
export function clockText(ms) {
  return clockFormat.format(ms);
}

/** A moment in the reader's zone, as short as it is clear: `02:14:33`, `16 Nov 02:14:33`. */
export function momentText(ms, nowMs = serverNow()) {
  const at = new Date(ms);
  const now = new Date(nowMs);
  if (at.toDateString() === now.toDateString()) return clockText(ms);
  const day = (at.getFullYear() === now.getFullYear() ? dayFormat : yearFormat).format(at);
  return `${day} ${clockText(ms)}`;
}

/** The exact moment, for a hover: in the reader's zone, and in UTC. */
export function exactText(ms) {
  const at = new Date(ms);
  const here = exactFormat.format(at);
  return `${here} · ${at.toISOString()}`;
}

/** Put the reader's own times into every `<time>` below `root`. Those of the class `ago` count on by themselves. */
export function showTimes(root = document) {
  for (const time of root.querySelectorAll("time[datetime]:not(.clock)")) {
    const ms = Date.parse(time.dateTime);
    if (Number.isNaN(ms)) continue;
    time.title = exactText(ms);
    time.textContent = time.classList.contains("ago") ? agoText(ms) : momentText(ms);
  }
}

/** How long ago it was: `12 s ago`. */
export function agoText(ms) {
  return `${spanText(serverNow() - ms)} ago`;
}

function tick() {
  const clock = document.getElementById("clock");
  if (clock !== null && !clock.hasAttribute("data-held")) clock.textContent = clockText(serverNow());
  // How long something is ago is not known while the server says nothing: it may have happened again.
  if (HELD.has(document.documentElement.dataset.live)) return;
  for (const time of document.querySelectorAll("time.ago")) time.textContent = agoText(Date.parse(time.dateTime));
}

/** Begin: the page itself says what time the server had when it made it. */
export function startClock() {
  const [loaded] = performance.getEntriesByType("navigation");
  const hereMs = performance.timeOrigin + (loaded?.responseStart ?? performance.now());
  learnServerTime(Number(document.body.dataset.serverMs), hereMs);
  const clock = document.getElementById("clock");
  if (clock !== null) clock.title = Intl.DateTimeFormat().resolvedOptions().timeZone;
  showTimes();
  tick();
  setInterval(tick, SECOND_MS);
}
