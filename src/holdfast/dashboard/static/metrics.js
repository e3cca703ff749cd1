// @ts-check
// The metrics page. The server draws; after each sample this puts what it drew into the drawing that is there.

import { ask, Refusal } from "./api.js";
import { learnServerTime, serverNow } from "./clock.js";
import { showLive } from "./page.js";

const AWAY_TRIES = 3;
const AGAIN_MS = 2_000;

/**
 * What the server drew: observability/charts.py.
 * @typedef {{
 *   key: string, lines: { path: string, last: string, highest: string }[], scale: { text: string }[],
 *   marks: { wall_ms: number }[]
 * }} Chart
 * @typedef {{ now: number, drawn: { stats: { key: string, value: string }[], charts: Chart[] } }} Drawn
 */

const charts = document.getElementById("charts");
const stepMs = Number(charts?.dataset.stepMs ?? 10_000);
const hours = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

let failures = 0;
/** @type {number | undefined} */
let brokeMs;
/** @type {number | undefined} */
let timer;

/** @param {SVGTextElement} mark */
function showHours(mark) {
  mark.textContent = hours.format(Number(mark.dataset.ms));
}

/**
 * @param {Element | null | undefined} element
 * @param {string} text
 */
function setText(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

/** @param {Chart} chart */
function showChart(chart) {
  const figure = document.getElementById(`chart-${chart.key}`);
  if (figure === null) return;
  const paths = figure.querySelectorAll("path.series");
  const words = figure.querySelectorAll(".key");
  chart.lines.forEach((line, at) => {
    paths[at]?.setAttribute("d", line.path);
    const [last, highest] = words[at]?.querySelectorAll("b") ?? [];
    setText(last, line.last);
    setText(highest, line.highest);
  });
  figure.querySelectorAll("text.tick").forEach((tick, at) => setText(tick, chart.scale[at]?.text ?? ""));
  marksIn(figure).forEach((mark, at) => {
    const drawn = chart.marks[at];
    if (drawn === undefined) return;
    mark.dataset.ms = String(drawn.wall_ms);
    showHours(mark);
  });
}

/**
 * @param {Element} element
 * @returns {NodeListOf<SVGTextElement>}
 */
function marksIn(element) {
  return element.querySelectorAll("text.mark");
}

/** @param {Drawn} said */
function show({ now, drawn }) {
  learnServerTime(now);
  for (const stat of drawn.stats) setText(document.getElementById(`stat-${stat.key}`), stat.value);
  drawn.charts.forEach(showChart);
}

async function refresh() {
  timer = undefined;
  let nextMs = stepMs;
  try {
    show(await ask(`/ui/metrics/drawn?span=${encodeURIComponent(charts?.dataset.span ?? "")}`));
    failures = 0;
    brokeMs = undefined;
    showLive("live");
  } catch (refusal) {
    if (refusal instanceof Refusal && refusal.status === 401) return;
    failures += 1;
    brokeMs ??= serverNow();
    nextMs = AGAIN_MS;
    showLive(failures > AWAY_TRIES ? "away" : "reconnecting", brokeMs);
  }
  if (!document.hidden) timer = setTimeout(refresh, nextMs);
}

// Once the server answers: a browser would show a page of its own where it does not.
async function loadAgain() {
  try {
    await ask("/ui/here");
    location.reload();
  } catch {
    showLive("away", (brokeMs ??= serverNow()));
    setTimeout(loadAgain, AGAIN_MS);
  }
}

// A page that nobody looks at asks for nothing.
function lookedAt() {
  if (!document.hidden && timer === undefined) refresh();
}

if (charts !== null) {
  setText(document.getElementById("zone"), Intl.DateTimeFormat().resolvedOptions().timeZone);
  marksIn(charts).forEach(showHours);
  document.addEventListener("visibilitychange", lookedAt);
  showLive("live");
  timer = setTimeout(refresh, stepMs);
} else {
  // The first sample is not there yet.
  setTimeout(loadAgain, stepMs);
}
