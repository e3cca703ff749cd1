// Signs of life on a page that the server drew: they go on without a reload, as those of the list do.
//
//   <tr data-life="NAME" data-token= data-since= data-beat= data-until= data-own= data-ttl= data-session=>   a held job
//   <tr data-run="ID" data-until=>                                                                          a session
//     … data-live="sign | held | beat | left | bar"      what is written anew below it (templates/room_parts.html, `life`)
//
// While the page is not live nothing moves: nobody knows then how it goes on.

import { agoText, exactText, serverNow, spanText } from "./clock.js";
import { refreshSoon } from "./fresh.js";
import { liveStatus, subscribe } from "./live.js";
import { keepJob, leftText, signOf } from "./rows.js";

let jobs = [];
let runs = [];

function read() {
  jobs = [...document.querySelectorAll("[data-life]")].map((element) => {
    const said = element.dataset;
    const job = { element, name: said.life, token: said.token, session: said.session ?? "", ended: null };
    for (const what of ["since", "beat", "until", "own", "ttl"]) job[what] = Number(said[what]);
    return job;
  });
  runs = [...document.querySelectorAll("[data-run]")].map((element) => ({ element, id: element.dataset.run, until: Number(element.dataset.until) }));
}

function parts(element, what) {
  return element.querySelectorAll(`[data-live="${what}"]`);
}

function setText(part, text) {
  if (part.textContent !== text) part.textContent = text;
}

function showJob(job, now) {
  const sign = signOf(job, now);
  for (const part of parts(job.element, "sign")) {
    part.className = `sign ${sign}`;
    setText(part, sign);
  }
  for (const part of parts(job.element, "held")) setText(part, spanText(now - job.since));
  for (const part of parts(job.element, "left")) setText(part, leftText(job.until - now));
  for (const bar of parts(job.element, "bar")) {
    bar.max = Math.max(1, job.ttl);
    bar.value = Math.min(bar.max, Math.max(0, job.until - now));
  }
}

function showBeat(job) {
  for (const part of parts(job.element, "beat")) {
    part.dateTime = new Date(job.beat).toISOString();
    part.title = exactText(job.beat);
    part.textContent = agoText(job.beat);
  }
}

function tick() {
  if (liveStatus().kind !== "live") return;
  const now = serverNow();
  for (const job of jobs) showJob(job, now);
  for (const run of runs) for (const part of parts(run.element, "left")) setText(part, leftText(run.until - now));
  // Not every reader is told of every session: its page knows.
  if (runs.some((run) => run.until < now)) refreshSoon(5_000);
}

// Put what a frame says in its place. Tells whether somebody else has a job now that is shown.
function take({ rows, beats, gone, kept }) {
  const told = new Map(rows.map(({ name, token, beat, until, ttl, own }) => [name, [token, beat, until, ttl, own]]));
  for (const [name, ...rest] of beats) told.set(name, rest);
  const ends = new Map(kept);
  let isOther = false;
  for (const job of jobs) {
    const said = told.get(job.name);
    if (said !== undefined && String(said[0]) !== job.token) isOther = true;
    else if (said !== undefined) {
      [, job.beat, job.until, job.ttl] = said;
      job.own = said[4] || job.until;
    }
    if (ends.get(job.session)) keepJob(job, ends.get(job.session));
    if (said !== undefined || ends.has(job.session)) showBeat(job);
  }
  for (const run of runs) if (ends.get(run.id)) run.until = ends.get(run.id);
  tick();
  return isOther || gone.some((each) => jobs.some((job) => job.name === each.name));
}

/** The names of the jobs whose lives are shown. */
export function namesShown() {
  return new Set(jobs.map((job) => job.name));
}

/** Begin. Where somebody else has a job now, the page is made anew, at most so often. */
export function startLife(everyMs) {
  read();
  document.addEventListener("holdfast:fresh", () => {
    read();
    tick();
  });
  setInterval(tick, 1_000);
  subscribe({ rows: (frame) => take(frame) && refreshSoon(everyMs) });
}
