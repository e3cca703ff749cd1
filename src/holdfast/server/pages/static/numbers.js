// The page of numbers. The server draws; this puts what it drew anew into the drawing that is there, after each sample.

import { ask } from "./api.js";
import { learnServerTime, serverNow } from "./clock.js";
import { showLive } from "./page.js";

const AWAY_TRIES = 3;
const AGAIN_MS = 2_000;

const charts = document.getElementById("charts");
const stepMs = Number(charts?.dataset.stepMs ?? 10_000);
const hours = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

let failures = 0;
let brokeMs;
let timer;

function showHours(mark) {
  mark.textContent = hours.format(Number(mark.dataset.ms));
}

function setText(element, text) {
  if (element !== null && element !== undefined && element.textContent !== text) element.textContent = text;
}

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
  figure.querySelectorAll("text.mark").forEach((mark, at) => {
    if (chart.marks[at] === undefined) return;
    mark.dataset.ms = chart.marks[at].wall_ms;
    showHours(mark);
  });
}

function show({ now, drawn }) {
  learnServerTime(now);
  for (const stat of drawn.stats) setText(document.getElementById(`stat-${stat.key}`), stat.value);
  drawn.charts.forEach(showChart);
}

async function refresh() {
  timer = undefined;
  let nextMs = stepMs;
  try {
    show(await ask(`/ui/numbers/drawn?span=${encodeURIComponent(charts.dataset.span)}`));
    failures = 0;
    brokeMs = undefined;
    showLive("live");
  } catch (refusal) {
    if (refusal.status === 401) return;
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
  charts.querySelectorAll("text.mark").forEach(showHours);
  document.addEventListener("visibilitychange", lookedAt);
  showLive("live");
  timer = setTimeout(refresh, stepMs);
} else {
  // The first sample is not there yet.
  setTimeout(loadAgain, stepMs);
}
