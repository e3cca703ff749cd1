// @ts-check
// The list of jobs, live: loads all rows, puts on top what the stream tells, and shows those that fit the search.
//
//   /ui/rows ──► jobs, by name ──► view: those that fit, in order ──► rows.js draws what is in view
//   /ui/live ──►
//
// While the pointer moves over the list, nothing else does: rows change where they are, new ones and ended ones wait.
// The address keeps search and order.

import { ask, jobPath } from "./api.js";
import { keepJob, serverNow } from "./clock.js";
import { again, heardAt, subscribe } from "./live.js";
import { addKey, showTotals } from "./page.js";
import { Rows } from "./rows.js";
import { fits, isEmpty, nameIn, orderOf, readSearch, readSort, writeSort } from "./search.js";

const JOBS_MAX = 20_000; // Beyond it the server searches, and the list shows the first of what it found.
const PAGE = 1_000;
const PAGES_MAX = 60; // Of a search among very many jobs: it may find little on each.
const ENDED_MS = 3_000;
const FRESH_MS = 600;
const EARLY_MAX = 20;
const HELD_MS = 10_000; // A pointer that rests aims at nothing: on a wall it may lie there for days.
const LOAD_AGAIN_MS = { least: 500, most: 3_000 }; // At some moment in between: others are told to at the same time.

/**
 * @template {HTMLElement} Kind
 * @param {string} selector
 * @param {new () => Kind} kind
 */
function one(selector, kind) {
  const found = document.querySelector(selector);
  if (!(found instanceof kind)) throw new TypeError(`${selector} is missing`);
  return found;
}

const box = one("#jobs-box", HTMLElement);
const field = one("#search", HTMLInputElement);
const said = one("#jobs-said", HTMLElement);
const emptyText = one("#jobs-empty", HTMLElement);
const noMatchText = one("#jobs-no-match", HTMLElement);
const namedText = one("#jobs-named", HTMLElement);
const namedLink = one("#jobs-named a", HTMLAnchorElement);
const rows = new Rows(box);
/** @type {Map<string, Job>} */
const jobs = new Map();
/** @type {Job[]} */
let view = [];
let search = readSearch(field.value);
let sort = readSort("name");
/** @type {Totals | null} */
let totals = null;
let total = 0;
let isCut = false; // There are more jobs than are kept here: the server searches.
let isComplete = true; // All that fits is here.
/** @type {Loading | null} */
let loading = null;
let isBegun = false; // The first rows have come.
let isLoaded = false;
let isLive = false;
let isHeld = false; // The order is.
let pointedAt = 0; // When the pointer last moved over the list.
let isStale = false; // The view is older than the jobs.
let isSettled = false; // All rows were shown once.

// Jobs.

/**
 * @param {JobRow} row
 * @param {boolean} isNew
 */
function put(row, isNew) {
  const before = jobs.get(row.name);
  if (before === undefined && isNew && !hasRoomFor(row)) return;
  const { version, isFresh, shownAt, goneAt, round } = before
    ?? { version: 0, isFresh: isNew, shownAt: performance.now(), goneAt: 0, round: 0 };
  const whole = { unnamed: false, note: "", labels: {}, fields: [], session: "", bound: false, line: 0, ...row };
  const job = { ...whole, own: row.own || row.until, ended: null, text: undefined };
  const seen = { version: version + 1, isFresh, shownAt, goneAt, round };
  // The same object stays: the view and the rows know it.
  jobs.set(row.name, Object.assign(before ?? {}, job, seen));
}

/**
 * Whether a job that was not there before is shown: where not all are here, only one that would have been found.
 * @param {JobRow} row
 */
function hasRoomFor(row) {
  if (jobs.size >= JOBS_MAX) isCut = true;
  if (!isCut) return true;
  return jobs.size < JOBS_MAX && isComplete && fits(search, { labels: {}, fields: [], note: "", ...row });
}

/** @param {HeartbeatUpdate} beat */
function beat([name, token, heard, until, ttl, own]) {
  const job = jobs.get(name);
  if (job === undefined || job.token !== token) return;
  Object.assign(job, { beat: heard, until, ttl, own: own || until });
  job.version += 1;
}

/** @param {FreeJob} gone */
function end(gone) {
  const job = jobs.get(gone.name);
  if (job === undefined || job.ended) return;
  job.ended = { how: gone.how || "", by: gone.by || "", at: gone.at || serverNow() };
  job.goneAt = performance.now();
  job.version += 1;
}

/** @param {Kept[]} sessions */
function keep(sessions) {
  if (!sessions.length) return;
  const until = new Map(sessions);
  for (const job of jobs.values()) {
    const end = job.bound ? until.get(job.session) : undefined;
    // A session that is over ended its jobs: they are told by name.
    if (!end) continue;
    keepJob(job, end);
    job.version += 1;
  }
}

/** Take the rows away that have been shown as ended for long enough. While the order is held they stay. */
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
  abort = new AbortController();
  /**
   * What the stream told meanwhile, by name: it is newer than a page that began before.
   * @type {Map<string, number>}
   */
  updatedAt = new Map();
  /** @type {Map<string, HeartbeatUpdate>} */
  beats = new Map();
  /**
   * Sessions that were kept meanwhile.
   * @type {Map<string, number>}
   */
  kept = new Map();

  async run() {
    /** @type {Set<string>} */
    const found = new Set();
    /** @type {string | null} */
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
    isComplete = after === null;
    if (isComplete && total <= JOBS_MAX) isCut = false;
    for (const name of jobs.keys()) {
      // It ended while nobody told us: how is not known here.
      if (!found.has(name) && !this.updatedAt.has(name)) end({ name });
    }
    keep([...this.kept]);
    isLoaded = true;
  }

  /**
   * @param {RowsReply} page
   * @param {Set<string>} found
   */
  #take(page, found) {
    heardAt(page.now);
    ({ total } = page);
    totals = page.totals ?? null;
    for (const row of page.rows) {
      found.add(row.name);
      const seq = this.updatedAt.get(row.name);
      if (seq === undefined || seq < page.seq) put(row, false);
    }
    for (const each of this.beats.values()) {
      if (each[2] > (jobs.get(each[0])?.beat ?? Infinity)) beat(each);
    }
    isBegun = true;
  }

  /**
   * @param {string | null} after
   * @returns {Promise<RowsReply>}
   */
  #page(after) {
    const query = new URLSearchParams({ limit: String(PAGE) });
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
let wasAway = true;

/** Load immediately where the page was away. After a gap it waits a little: what is shown is kept meanwhile. */
function loadSoon() {
  if (isAsked) return;
  isAsked = true;
  const { least, most } = LOAD_AGAIN_MS;
  const restMs = wasAway || !isLoaded ? 0 : least + Math.random() * (most - least);
  wasAway = false;
  setTimeout(() => {
    isAsked = false;
    load();
  }, restMs);
}

/** @param {Frame} frame */
function take(frame) {
  for (const row of frame.rows) put(row, isLoaded && !jobs.has(row.name));
  for (const each of frame.beats) beat(each);
  for (const each of frame.gone) end(each);
  keep(frame.kept);
  if (frame.totals) totals = frame.totals;
  if (loading !== null) {
    for (const each of [...frame.rows, ...frame.gone]) loading.updatedAt.set(each.name, frame.seq);
    for (const each of frame.beats) loading.beats.set(each[0], each);
    for (const [session, until] of frame.kept) loading.kept.set(session, until);
  }
  refresh();
}

// The view.

let isRefreshing = false;

/** At most once for each frame that is drawn. */
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

/**
 * What keys asked for before the rows were there: it is done when they are.
 * @type {(() => void)[]}
 */
const early = [];

/** @param {() => void} action */
function whenThere(action) {
  if (isSettled) action();
  else if (early.length < EARLY_MAX) early.push(action);
}

let round = 0;

/** In the order in which they were before, with the new ones at the end: that is quick to sort. */
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
  box.hidden = view.length === 0;
  rows.show(view);
}

/** @param {boolean} isOver */
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

const number = (/** @type {number} */ value) => value.toLocaleString();
let lastSaid = "";
let saidUntil = 0;

/**
 * Say something, for at least so long.
 * @param {string} text
 */
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
  else if (isCut && !isComplete) say(`The first ${number(fitting)} found among ${number(total)} jobs. Search by prefix to see others.`);
  else if (isCut) say(`${number(fitting)} of ${number(total)} jobs fit.`);
  else say(isAll ? "" : `${number(fitting)} of ${number(live)} jobs fit.`);
  emptyText.hidden = !(isAll && live === 0 && view.length === 0);
  noMatchText.hidden = isAll || view.length > 0;
  showNamed(nameIn(field.value));
}

/**
 * A job that nobody holds is not in the list, and who types its name wants to know why.
 * @param {string} name
 */
function showNamed(name) {
  namedText.hidden = name === "" || !name.startsWith(document.body.dataset.prefix ?? "");
  if (namedText.hidden || namedLink.textContent === name) return;
  const bdi = document.createElement("bdi");
  bdi.textContent = bdi.title = name;
  bdi.className = "mono";
  namedLink.href = jobPath(name);
  namedLink.replaceChildren(bdi);
}

// Search, order, address.

function readAddress() {
  const query = new URL(location.href).searchParams;
  field.value = query.get("q") || "";
  search = readSearch(field.value);
  sort = readSort(query.get("sort") || "name");
  markSort();
}

/** @param {boolean} isNew */
function writeAddress(isNew) {
  const url = new URL(location.href);
  const sorted = writeSort(sort);
  for (const [key, value] of Object.entries({ q: field.value.trim(), sort: sorted === "name" ? "" : sorted })) {
    if (value) url.searchParams.set(key, value);
    else url.searchParams.delete(key);
  }
  if (url.href === location.href) return;
  history[isNew ? "pushState" : "replaceState"](null, "", url);
}

let readTimer = 0;

/** Announce search results to screen readers; numbers that change by themselves are not announced. */
function readOut() {
  said.setAttribute("aria-live", "polite");
  clearTimeout(readTimer);
  readTimer = setTimeout(() => said.setAttribute("aria-live", "off"), 1_500);
}

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
  for (const head of /** @type {NodeListOf<HTMLElement>} */ (box.querySelectorAll("th[data-sort]"))) {
    if (head.dataset.sort === sort.kind) head.setAttribute("aria-sort", sort.isReversed ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
}

/** @param {string} kind */
function sortBy(kind) {
  sort = { kind, isReversed: sort.kind === kind && !sort.isReversed };
  markSort();
  writeAddress(true);
  scrollTo(0, 0);
  arrange();
}

// Keys.

/** @param {number} by */
function move(by) {
  const at = rows.indexOf(rows.current);
  rows.go(Math.max(0, Math.min(view.length - 1, at < 0 ? rows.firstSeen() : at + by)));
}

/** @param {string} part */
function openCurrent(part) {
  whenThere(() => {
    if (rows.indexOf(rows.current) < 0) return;
    location.assign(jobPath(rows.current) + (part ? `#${part}` : ""));
  });
}

function toSearch() {
  field.focus();
  field.select();
}

addKey("/", "search", toSearch);
addKey("j", "next job", () => whenThere(() => move(1)));
addKey("k", "job before", () => whenThere(() => move(-1)));
addKey("Enter", "open the job", () => openCurrent(""));
addKey("w", "why it is not free", () => openCurrent("why"));
addKey("h", "its history", () => openCurrent("history"));
if (document.body.dataset.may?.includes("admin")) addKey("r", "revoke it", () => openCurrent("revoke"));

// The browser's own find sees only what is in the document.
document.addEventListener("keydown", (event) => {
  if (event.key !== "f" || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey) return;
  if (document.activeElement === field || view.length <= 40) return;
  event.preventDefault();
  toSearch();
  say("Searching here: only the rows in view are in the page. Press the keys again for the browser's own find.", 6_000);
});

box.addEventListener("focusin", ({ target }) => {
  const name = target instanceof Element ? target.closest("tbody tr")?.querySelector(".name") : null;
  if (name instanceof HTMLElement) rows.current = name.title;
});
for (const kind of /** @type {const} */ (["pointerenter", "pointermove"])) {
  box.addEventListener(kind, (event) => {
    if (event.pointerType !== "mouse") return;
    pointedAt = performance.now();
    hold(true);
  });
}
box.addEventListener("pointerleave", () => hold(false));
box.addEventListener("click", (event) => {
  const head = event.target instanceof Element ? event.target.closest("th[data-sort]") : null;
  if (!(head instanceof HTMLElement)) return;
  event.preventDefault();
  sortBy(head.dataset.sort ?? "name");
});
field.addEventListener("input", searched);
field.form?.addEventListener("submit", (event) => {
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
