// The list of jobs, live: loads all rows, puts on top what the stream tells, and shows those that fit the search.
//
//   /ui/rows ──► jobs, by name ──► view: those that fit, in order ──► rows.js draws what is in view
//   /ui/live ──►
//
// While the pointer moves over the list, nothing else does: rows change where they are, new ones and ended ones wait.
// The address keeps search and order.

import { ask, jobPath } from "./api.js";
import { serverNow } from "./clock.js";
import { addKey } from "./keys.js";
import { again, heardAt, subscribe } from "./live.js";
import { showTotals } from "./page.js";
import { keepJob, Rows } from "./rows.js";
import { fits, isEmpty, nameIn, orderOf, readSearch, readSort, writeSort } from "./search.js";

const JOBS_MAX = 20_000; // Beyond it the server searches, and the list shows the first of what it found.
const PAGE = 1_000;
const PAGES_MAX = 60; // Of a search among very many jobs: it may find little on each.
const ENDED_MS = 3_000;
const FRESH_MS = 600;
const EARLY_MAX = 20;
const HELD_MS = 10_000; // A pointer that rests aims at nothing: on a wall it may lie there for days.
const LOAD_AGAIN_MS = [500, 3_000]; // After a resync, at some moment in between: others are told to at the same time.

const box = document.querySelector("#jobs-box");
const field = document.querySelector("#search");
const said = document.querySelector("#jobs-said");
const rows = new Rows(box);
const jobs = new Map();
let view = [];
let search = readSearch(field.value);
let sort = readSort(new URL(location.href).searchParams.get("sort") || "name");
let totals = null;
let total = 0;
let isCut = false; // There are more jobs than are kept here: the server searches.
let isWhole = true; // All that fits is here.
let loading = null;
let isBegun = false; // The first rows have come. Until then the page shows those that it came with.
let isLoaded = false;
let isLive = false;
let isHeld = false; // The order is.
let pointedAt = 0; // When the pointer last moved over the list.
let isStale = false; // The view is older than the jobs.
let isSettled = false; // All rows were shown once.

// Jobs.

function put(row, isNew) {
  const before = jobs.get(row.name);
  if (before === undefined && isNew && !hasRoomFor(row)) return;
  const job = before ?? { version: 0, isFresh: isNew, shownAt: performance.now() };
  Object.assign(job, { unnamed: false, note: "", labels: {}, fields: [], session: "", bound: false, line: 0 }, row);
  job.own = row.own || row.until;
  job.ended = null;
  job.text = undefined;
  job.version += 1;
  if (before === undefined) jobs.set(row.name, job);
}

// A job that was not there before: where not all are here, only one that would have been found.
function hasRoomFor(row) {
  if (jobs.size >= JOBS_MAX) isCut = true;
  if (!isCut) return true;
  return jobs.size < JOBS_MAX && isWhole && fits(search, { labels: {}, fields: [], note: "", ...row });
}

function beat([name, token, heard, until, ttl, own]) {
  const job = jobs.get(name);
  if (job === undefined || job.token !== token) return;
  job.beat = heard;
  job.until = until;
  job.ttl = ttl;
  job.own = own || until;
  job.version += 1;
}

function end(gone) {
  const job = jobs.get(gone.name);
  if (job === undefined || job.ended) return;
  job.ended = { how: gone.how || "", by: gone.by || "", at: gone.at || serverNow() };
  job.goneAt = performance.now();
  job.version += 1;
}

function keep(sessions) {
  if (!sessions.length) return;
  const until = new Map(sessions);
  for (const job of jobs.values()) {
    if (!job.bound || !until.has(job.session)) continue;
    const end = until.get(job.session);
    // One that is over ended its jobs: they are told by name.
    if (end === 0) continue;
    keepJob(job, end);
    job.version += 1;
  }
}

// Take the rows away that have been shown as ended for long enough. While the order is held they stay.
function sweep() {
  if (isHeld) return;
  const now = performance.now();
  let swept = false;
  for (const [name, job] of jobs) {
    if (job.ended && now - job.goneAt > ENDED_MS) {
      jobs.delete(name);
      swept = true;
    }
    if (job.isFresh && now - job.shownAt > FRESH_MS) {
      job.isFresh = false;
      job.version += 1;
    }
  }
  if (swept) refresh();
}

// Loading.

class Loading {
  constructor() {
    this.abort = new AbortController();
    this.told = new Map(); // What the stream told meanwhile, by name: it is newer than a page that began before.
    this.beats = new Map();
    this.kept = new Map(); // Sessions that were kept meanwhile.
  }

  async run() {
    const found = new Set();
    let after = null;
    for (let pages = 0; pages === 0 || (after !== null && pages < PAGES_MAX && found.size < JOBS_MAX); pages++) {
      const page = await this.#page(after);
      this.#take(page, found);
      after = page.next_after ?? null;
      if (!isCut && page.total > JOBS_MAX) {
        isCut = true;
        if (!isEmpty(search)) {
          // The server has to search, from the beginning.
          after = null;
          pages = -1;
          found.clear();
        }
      }
      refresh();
      if (!isLoaded && after !== null) say(`Loading ${number(found.size)} of ${number(page.total)} jobs…`);
    }
    isWhole = after === null;
    if (isWhole && total <= JOBS_MAX) isCut = false;
    for (const name of jobs.keys()) {
      // It ended while nobody told us: how is not known here.
      if (!found.has(name) && !this.told.has(name)) end({ name });
    }
    keep([...this.kept]);
    isLoaded = true;
  }

  #take(page, found) {
    heardAt(page.now);
    ({ total } = page);
    totals = page.totals ?? null;
    for (const row of page.rows) {
      found.add(row.name);
      const seq = this.told.get(row.name);
      if (seq === undefined || seq < page.seq) put(row, false);
    }
    for (const each of this.beats.values()) {
      if (each[2] > (jobs.get(each[0])?.beat ?? Infinity)) beat(each);
    }
    isBegun = true;
  }

  #page(after) {
    const query = new URLSearchParams({ limit: PAGE });
    // Where all jobs fit in here, the search is done in here, and changes without a load.
    if (isCut) query.set("q", field.value);
    if (after !== null) query.set("after", after);
    return ask(`/ui/rows?${query}`, { signal: this.abort.signal });
  }
}

async function load() {
  loading?.abort.abort();
  const mine = (loading = new Loading());
  for (let tries = 0; loading === mine; tries++) {
    try {
      await mine.run();
      if (loading === mine) loading = null;
      refresh();
      return;
    } catch {
      if (mine.abort.signal.aborted) return;
      await new Promise((done) => setTimeout(done, Math.min(8_000, 500 * 2 ** tries)));
      if (!isLive) again();
    }
  }
}

let isAsked = false;

function loadSoon() {
  // The first load is at once. One after a gap may wait a little: what is shown is kept meanwhile.
  if (isAsked) return;
  isAsked = true;
  const [least, most] = isLoaded ? LOAD_AGAIN_MS : [0, 0];
  setTimeout(
    () => {
      isAsked = false;
      load();
    },
    wasAway ? 0 : least + Math.random() * (most - least),
  );
  wasAway = false;
}

let wasAway = true;

function take(frame) {
  for (const row of frame.rows) put(row, isLoaded && !jobs.has(row.name));
  for (const each of frame.beats) beat(each);
  for (const each of frame.gone) end(each);
  keep(frame.kept);
  if (frame.totals) totals = frame.totals;
  if (loading !== null) {
    for (const row of frame.rows) loading.told.set(row.name, frame.seq);
    for (const gone of frame.gone) loading.told.set(gone.name, frame.seq);
    for (const each of frame.beats) loading.beats.set(each[0], each);
    for (const [session, until] of frame.kept) loading.kept.set(session, until);
  }
  refresh();
}

// The view.

let isRefreshing = false;

// At most once for each frame that is drawn.
function refresh() {
  isStale = true;
  if (isRefreshing) return;
  isRefreshing = true;
  requestAnimationFrame(() => {
    isRefreshing = false;
    if (isStale && (!isHeld || !isSettled)) arrange();
    isSettled = isLoaded;
    rows.ask();
    count();
    rows.setBusy(!isLive || !isSettled);
    if (isSettled) for (const action of early.splice(0)) action();
  });
}

const early = []; // What keys asked for before the rows were there: it is done when they are.

function whenThere(action) {
  if (isSettled) action();
  else if (early.length < EARLY_MAX) early.push(action);
}

let round = 0;

// In the order in which they were before, with the new ones behind: that is quick to sort.
function arrange() {
  if (!isBegun) return;
  isStale = false;
  round += 1;
  const next = [];
  const isAll = isEmpty(search);
  for (const those of [view, jobs.values()]) {
    for (const job of those) {
      if (job.round === round || jobs.get(job.name) !== job || !(isAll || fits(search, job))) continue;
      job.round = round;
      next.push(job);
    }
  }
  view = next.sort(orderOf(sort));
  rows.show(view);
}

function hold(isOver) {
  if (isHeld === isOver) return;
  isHeld = isOver;
  box.classList.toggle("held", isHeld);
  if (!isHeld) {
    sweep();
    refresh();
  }
}

// What is said above the list.

const number = (value) => value.toLocaleString();
let lastSaid = said.textContent;
let saidUntil = 0;

// Say something, for at least so long.
function say(text, forMs = 0) {
  const now = performance.now();
  if (text === lastSaid || (now < saidUntil && !forMs)) return;
  saidUntil = now + forMs;
  lastSaid = text;
  said.textContent = text;
}

function count() {
  if (!isLoaded) return;
  let live = 0;
  let waiting = 0;
  const sessions = new Set();
  for (const job of jobs.values()) {
    if (job.ended) continue;
    live += 1;
    waiting += job.line;
    if (job.session) sessions.add(job.session);
  }
  showTotals(totals ?? { jobs: isCut ? total : live, waiting, sessions: sessions.size });
  const fitting = view.reduce((sum, job) => sum + (job.ended ? 0 : 1), 0);
  const isAll = isEmpty(search);
  if (isCut && loading !== null) say(`Looking among ${number(total)} jobs, ${number(fitting)} found…`);
  else if (isCut && !isWhole) say(`The first ${number(fitting)} found among ${number(total)} jobs. Search by prefix to see others.`);
  else if (isCut) say(`${number(fitting)} of ${number(total)} jobs fit.`);
  else say(isAll ? "" : `${number(fitting)} of ${number(live)} jobs fit.`);
  document.querySelector("#jobs-empty").hidden = !(isAll && live === 0 && view.length === 0);
  document.querySelector("#jobs-no-match").hidden = isAll || view.length > 0;
  showNamed(nameIn(field.value));
  box.hidden = view.length === 0;
}

// A job that nobody holds is not in the list, and who types its name wants to know why.
function showNamed(name) {
  const place = document.querySelector("#jobs-named");
  place.hidden = name === "" || !name.startsWith(document.body.dataset.prefix ?? "");
  const link = place.querySelector("a");
  if (place.hidden || link.textContent === name) return;
  link.href = jobPath(name);
  link.replaceChildren(bdi(name));
}

function bdi(text) {
  const made = document.createElement("bdi");
  made.textContent = made.title = text;
  made.className = "mono";
  return made;
}

// Search, order, address.

function readAddress() {
  const query = new URL(location.href).searchParams;
  field.value = query.get("q") || "";
  search = readSearch(field.value);
  sort = readSort(query.get("sort") || "name");
  markSort();
}

function writeAddress(isNew) {
  const url = new URL(location.href);
  const text = field.value.trim();
  for (const [key, value] of [
    ["q", text],
    ["sort", writeSort(sort) === "name" ? "" : writeSort(sort)],
    ["after", ""],
    ["page", ""],
  ]) {
    if (value) url.searchParams.set(key, value);
    else url.searchParams.delete(key);
  }
  if (url.href === location.href) return;
  history[isNew ? "pushState" : "replaceState"](null, "", url);
}

// What was found is read out for who cannot see it; numbers that change by themselves are not.
function readOut() {
  said.setAttribute("aria-live", "polite");
  clearTimeout(readTimer);
  readTimer = setTimeout(() => said.setAttribute("aria-live", "off"), 1_500);
}

let readTimer = 0;

function searched() {
  readOut();
  search = readSearch(field.value);
  writeAddress(false);
  scrollTo(0, 0);
  arrange();
  count();
  if (isCut) loadSearch();
}

let searchTimer = 0;

function loadSearch() {
  clearTimeout(searchTimer);
  searchTimer = setTimeout(() => {
    jobs.clear();
    load();
  }, 300);
}

function markSort() {
  for (const head of document.querySelectorAll("#jobs-box th[data-sort]")) {
    const isThis = head.dataset.sort === sort.kind;
    if (isThis) head.setAttribute("aria-sort", sort.isReversed ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
}

function sortBy(kind) {
  sort = { kind, isReversed: sort.kind === kind && !sort.isReversed };
  markSort();
  writeAddress(true);
  scrollTo(0, 0);
  arrange();
}

// Keys.

function move(by) {
  const at = rows.indexOf(rows.current);
  rows.go(Math.max(0, Math.min(view.length - 1, at < 0 ? rows.firstSeen() : at + by)));
}

function openCurrent(place) {
  whenThere(() => {
    if (rows.indexOf(rows.current) < 0) return;
    location.assign(jobPath(rows.current) + (place ? `#${place}` : ""));
  });
}

addKey("/", "search", () => {
  field.focus();
  field.select();
});
addKey("j", "next job", () => whenThere(() => move(1)));
addKey("k", "job before", () => whenThere(() => move(-1)));
addKey("Enter", "open the job", () => openCurrent(""));
addKey("w", "why it is not free", () => openCurrent("why"));
addKey("h", "its history", () => openCurrent("history"));
if (document.body.dataset.may.includes("admin")) addKey("r", "revoke it", () => openCurrent("revoke"));

// The browser's own find sees only what is in the document.
document.addEventListener("keydown", (event) => {
  if (event.key !== "f" || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey) return;
  if (document.activeElement === field || view.length <= 40) return;
  event.preventDefault();
  field.focus();
  field.select();
  say("Searching here: only the rows in view are in the page. Press the keys again for the browser's own find.", 6_000);
});

box.addEventListener("focusin", (event) => {
  const name = event.target.closest("tbody tr")?.querySelector(".name")?.title;
  if (name) rows.current = name;
});
for (const kind of ["pointerenter", "pointermove"]) {
  box.addEventListener(kind, (event) => {
    if (event.pointerType !== "mouse") return;
    pointedAt = performance.now();
    hold(true);
  });
}
box.addEventListener("pointerleave", () => hold(false));
box.addEventListener("click", (event) => {
  const head = event.target.closest("th[data-sort]");
  if (head === null) return;
  event.preventDefault();
  sortBy(head.dataset.sort);
});
field.addEventListener("input", searched);
field.form.addEventListener("submit", (event) => {
  event.preventDefault();
  searched();
  whenThere(() => rows.go(0));
});
addEventListener("popstate", () => {
  readAddress();
  arrange();
  count();
  if (isCut) loadSearch();
});

// Begin.

document.querySelector("#jobs-pages")?.remove();
readAddress();
subscribe({
  load: loadSoon,
  rows: take,
  status(status) {
    isLive = status.kind === "live";
    if (isLive) rows.run();
    wasAway ||= !isLive;
    rows.setBusy(!isLive || !isSettled);
    if (status.kind === "refused") say(`Not live: ${status.why || "the server refuses the stream."}`, 20_000);
  },
});
setInterval(() => {
  if (performance.now() - pointedAt > HELD_MS) hold(false);
  sweep();
  if (isLive) rows.tick();
}, 1_000);
