// @ts-check
// The server's time, and times in the words of this page's reader. One offset corrects a clock that is wrong here.
// The words for signs of life and durations are those of dashboard/rows.py; a test compares the two.

const SECOND_MS = 1_000;
const MINUTE_MS = 60_000;
const DAY_MS = 86_400_000;
/** @type {[number, string][]} */
const UNITS = [[DAY_MS, "d"], [3_600_000, "h"], [MINUTE_MS, "min"]];

const HELD = new Set(["reconnecting", "away", "signed-out", "refused", "past"]);

let offsetMs = 0;

/**
 * Learn the server's time: `serverMs` was true when this page's clock said `hereMs`.
 * @param {number} serverMs
 */
export function learnServerTime(serverMs, hereMs = Date.now()) {
  if (Number.isFinite(serverMs)) offsetMs = serverMs - hereMs;
}

/** The server's wall time now, in milliseconds. */
export function serverNow() {
  return Date.now() + offsetMs;
}

// Durations and signs of life.

/**
 * How long something lasts, in the largest unit that fits: `31 s`, `4 min`, `2 h`, `3 d`.
 * @param {number} ms
 */
export function spanText(ms) {
  for (const [unitMs, unit] of UNITS) if (ms >= unitMs) return `${Math.floor(ms / unitMs)} ${unit}`;
  return `${Math.floor(Math.max(0, ms) / SECOND_MS)} s`;
}

/**
 * The time left: `0:09`, `1:32`, `2:05:00`, `3 d`.
 * @param {number} ms
 */
export function leftText(ms) {
  if (ms >= DAY_MS) return `${Math.floor(ms / DAY_MS)} d`;
  const seconds = Math.floor(Math.max(0, ms) / SECOND_MS);
  const two = (/** @type {number} */ number) => String(number).padStart(2, "0");
  const hours = Math.floor(seconds / 3_600);
  const minutes = Math.floor(seconds / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(seconds % 60)}` : `${minutes}:${two(seconds % 60)}`;
}

/**
 * How long ago it was: `12 s ago`.
 * @param {number} ms
 */
export function agoText(ms, nowMs = serverNow()) {
  return `${spanText(nowMs - ms)} ago`;
}

/**
 * The sign of life of a held job: `ending`, `late` or `alive`.
 * @param {{ beat: number, until: number, ttl: number }} lease
 * @param {number} nowMs
 */
export function signOf({ beat, until, ttl }, nowMs) {
  if ((until - nowMs) * 10 < ttl) return "ending";
  return (nowMs - beat) * 3 > ttl * 2 ? "late" : "alive";
}

/**
 * The session that a job is bound to was kept, and ends at `end` now.
 * @param {Life} job
 * @param {number} end
 */
export function keepJob(job, end) {
  // Where the session ends first, `ttl` is the session's: its keepalive came so long before its new end.
  if (job.until < job.own) job.beat = Math.max(job.beat, end - job.ttl);
  job.until = Math.min(job.own, end);
}

// Moments.

const clockFormat = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const minuteFormat = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const dayFormat = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const yearFormat = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", year: "numeric" });
const exactFormat = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

/**
 * A time of day in the reader's zone: `02:14:33`.
 * @param {number} ms
 */
export function clockText(ms) {
  return clockFormat.format(ms);
}

/**
 * A mark of an axis, as exact as its step: `16 Nov`, `02:14`, `02:14:33`.
 * @param {number} ms
 * @param {number} stepMs
 */
export function axisText(ms, stepMs) {
  return (stepMs >= DAY_MS ? dayFormat : stepMs >= MINUTE_MS ? minuteFormat : clockFormat).format(ms);
}

/**
 * A moment in the reader's zone, as short as it is clear: `02:14:33`, `16 Nov 02:14:33`.
 * @param {number} ms
 */
export function momentText(ms, nowMs = serverNow()) {
  const at = new Date(ms);
  const now = new Date(nowMs);
  if (at.toDateString() === now.toDateString()) return clockText(ms);
  const day = (at.getFullYear() === now.getFullYear() ? dayFormat : yearFormat).format(at);
  return `${day} ${clockText(ms)}`;
}

/**
 * The exact moment, for a hover: in the reader's zone, and in UTC.
 * @param {number} ms
 */
export function exactText(ms) {
  const at = new Date(ms);
  return `${exactFormat.format(at)} · ${at.toISOString()}`;
}

/**
 * Put the reader's own times into every `<time>` below `root`. Those of the class `ago` count on by themselves.
 * @param {ParentNode} root
 */
export function showTimes(root = document) {
  for (const time of /** @type {NodeListOf<HTMLTimeElement>} */ (root.querySelectorAll("time[datetime]:not(.clock)"))) {
    const ms = Date.parse(time.dateTime);
    if (Number.isNaN(ms)) continue;
    time.title = exactText(ms);
    time.textContent = time.classList.contains("ago") ? agoText(ms) : momentText(ms);
  }
}

function tick() {
  const clock = document.getElementById("clock");
  if (clock !== null && !clock.hasAttribute("data-held")) clock.textContent = clockText(serverNow());
  // How long something is ago is not known while the server says nothing: it may have happened again.
  if (HELD.has(document.documentElement.dataset.live ?? "")) return;
  for (const time of /** @type {NodeListOf<HTMLTimeElement>} */ (document.querySelectorAll("time.ago"))) {
    time.textContent = agoText(Date.parse(time.dateTime));
  }
}

/** Begin: the page itself says what time the server had when it made it. */
export function startClock() {
  const [loaded] = /** @type {PerformanceNavigationTiming[]} */ (performance.getEntriesByType("navigation"));
  const hereMs = performance.timeOrigin + (loaded?.responseStart ?? performance.now());
  learnServerTime(Number(document.body.dataset.serverMs), hereMs);
  const clock = document.getElementById("clock");
  if (clock !== null) clock.title = Intl.DateTimeFormat().resolvedOptions().timeZone;
  showTimes();
  tick();
  setInterval(tick, SECOND_MS);
}
