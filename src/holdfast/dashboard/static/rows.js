// @ts-check
// The rows of the list, of which only those in view are in the document: at most ROWS_MAX, however many jobs there are.
//
//   <tbody>
//     <tr class="spacer">     as high as all rows above those in view
//     <tr> …                  those in view, and a few more
//     <tr class="spacer">     as high as all rows below
//
// Everything that a user wrote is set as text. A bar moves by a CSS animation that begins in the past (a negative delay):
// no script runs for it. Once a second the words beside it are written again, in the rows that are there.

import { jobPath } from "./api.js";
import { agoText, exactText, leftText, serverNow, signOf, spanText } from "./clock.js";

const ROWS_MAX = 60;
const SPARE_ROWS = 6;
const PRINTED_MAX = 1_000;
const COLUMNS = 8;
const TAIL_CHARS = 16;
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]/;

/**
 * How a lease ended, in words.
 * @type {Record<string, string>}
 */
const ENDS = {
  released: "released",
  done: "done",
  expired: "expired",
  revoked: "revoked",
  session_ended: "session ended",
  transferred: "handed over",
  "": "free",
};

/** One row of the document. It is filled with one job after another. */
class RowView {
  element = el("tr");
  link = el("a", "job");
  /** @type {Job | null} */
  #job = null;
  #version = -1;
  /**
   * What was last written where: to write the same again costs a browser more than to compare it.
   * @type {Record<string, unknown>}
   */
  #written = {};
  #name = el("bdi", "name");
  #nameHead = el("span", "name-head");
  #nameTail = el("span", "name-tail");
  #sign = el("span", "sign");
  #owner = el("bdi");
  #held = el("time");
  #beat = el("time");
  #bar = el("span", "bar");
  #fill = el("i");
  #left = el("time", "left-text");
  #waiters = el("a");
  #ownerCell;
  #note;

  constructor() {
    this.#name.append(this.#nameHead, this.#nameTail);
    this.link.append(this.#name);
    this.#bar.setAttribute("aria-hidden", "true");
    this.#bar.append(this.#fill);
    const left = el("span", "left");
    left.append(this.#bar, this.#left);
    this.#ownerCell = cell("owner", this.#owner);
    this.#note = cell("note");
    this.element.append(
      cell("job", this.link),
      cell("sign", this.#sign),
      this.#ownerCell,
      cell("held", this.#held),
      cell("beat", this.#beat),
      cell("left", left),
      cell("queue", this.#waiters),
      this.#note,
    );
  }

  /**
   * @param {Job} job
   * @param {number} index
   * @param {number} now
   * @param {boolean} isCurrent
   */
  show(job, index, now, isCurrent) {
    if (this.#job !== job || this.#version !== job.version) this.#write(job);
    this.#set("index", index, () => this.element.setAttribute("aria-rowindex", String(index + 2)));
    this.#set("current", isCurrent, () => {
      if (isCurrent) this.element.setAttribute("aria-selected", "true");
      else this.element.removeAttribute("aria-selected");
    });
    this.tick(now);
  }

  /**
   * Write what changes as time passes.
   * @param {number} now
   */
  tick(now) {
    const job = this.#job;
    if (job === null) return;
    const { ended } = job;
    const sign = ended === null ? signOf(job, now) : ended.how in ENDS ? ended.how : "";
    this.#set("sign", sign, () => {
      this.#sign.className = `sign ${sign || "free"}`;
      this.#sign.textContent = ENDS[sign] ?? sign;
      this.#bar.className = `bar ${sign}`;
    });
    const at = ended === null ? now : Math.min(now, ended.at || now);
    this.#text("held", this.#held, spanText(at - job.since));
    this.#text("beat", this.#beat, agoText(job.beat, now));
    this.#text("left", this.#left, ended === null ? leftText(job.until - now) : endText(ended));
  }

  /** Let the bar run from where it is now. Two names of one animation take turns: that is what begins it again. */
  run() {
    if (this.#job === null) return;
    const { ended, ttl, until } = this.#job;
    this.#bar.hidden = ended !== null;
    if (ended !== null) return;
    const term = Math.max(1, ttl);
    this.#fill.style.setProperty("--ttl", `${term}ms`);
    this.#fill.style.setProperty("--ago", `${-Math.max(0, term - (until - serverNow()))}ms`);
    this.#fill.className = this.#fill.className === "again" ? "" : "again";
  }

  /** @param {Job} job */
  #write(job) {
    if (this.#job?.name !== job.name) this.#writeName(job.name);
    this.#job = job;
    this.#version = job.version;
    this.#text("owner", this.#owner, job.owner);
    this.#set("whole owner", job.owner, () => (this.#ownerCell.title = job.owner));
    this.#time("since", this.#held, job.since, "held since ");
    this.#time("heard", this.#beat, job.beat, "last heartbeat ");
    this.#time("until", this.#left, job.until, "until ");
    this.#set("run", `${job.until} ${job.ttl} ${job.ended !== null}`, () => this.run());
    this.#set("waiters", job.line, () => {
      this.#waiters.textContent = job.line ? `${job.line} ▸` : "";
      this.#waiters.title = job.line ? `${job.line} in the queue` : "";
      if (job.line) this.#waiters.href = `${jobPath(job.name)}#queue`;
      else this.#waiters.removeAttribute("href");
    });
    this.#writeNote(job);
    this.#set("ended", job.ended !== null, () => this.element.classList.toggle("over", job.ended !== null));
    this.#set("fresh", job.isFresh, () => this.element.classList.toggle("new", job.isFresh));
  }

  /**
   * Names keep their end: a long one is cut before it. One that runs from right to left is cut at its end.
   * @param {string} name
   */
  #writeName(name) {
    this.#written = {};
    const chars = RIGHT_TO_LEFT.test(name) ? [] : Array.from(name);
    const cut = Math.max(0, chars.length - TAIL_CHARS);
    this.#nameHead.textContent = chars.length ? chars.slice(0, cut).join("") : name;
    this.#nameTail.textContent = chars.slice(cut).join("");
    this.#name.title = name;
    this.link.href = jobPath(name);
  }

  /** @param {Job} job */
  #writeNote(job) {
    const labels = Object.entries(job.labels);
    const lines = [job.note, ...labels.map(([key, value]) => `${key}:${value}`)];
    lines.push(...job.fields.map(([key, value]) => (key ? `${key}=${value}` : value)));
    const text = lines.filter(Boolean).join("\n");
    this.#set("note", text, () => {
      /** @type {(Node | string)[]} */
      const parts = job.note ? [el("bdi", "", job.note), " "] : [];
      for (const [key, value] of labels) parts.push(tagged("label", `${key}:`, value), " ");
      for (const [key, value] of job.fields) parts.push(tagged("field", key && `${key} `, value), " ");
      this.#note.replaceChildren(...parts);
      this.#note.title = text;
    });
  }

  /**
   * @param {string} key
   * @param {HTMLTimeElement} element
   * @param {number} ms
   * @param {string} before
   */
  #time(key, element, ms, before) {
    this.#set(key, ms, () => {
      element.dateTime = new Date(ms).toISOString();
      element.title = before + exactText(ms);
    });
  }

  /**
   * @param {string} key
   * @param {Element} element
   * @param {string} text
   */
  #text(key, element, text) {
    this.#set(key, text, () => (element.textContent = text));
  }

  /**
   * @param {string} key
   * @param {unknown} value
   * @param {() => unknown} write
   */
  #set(key, value, write) {
    if (this.#written[key] === value) return;
    this.#written[key] = value;
    write();
  }
}

/**
 * @param {string} column
 * @param {Node[]} inside
 */
function cell(column, ...inside) {
  const made = el("td", `col-${column}`);
  made.append(...inside);
  return made;
}

/**
 * @param {string} kind
 * @param {string} key
 * @param {string} value
 */
function tagged(kind, key, value) {
  const made = el("bdi", kind);
  if (key) made.append(el("b", "", key));
  made.append(value);
  return made;
}

/** @param {{ how: string, by: string }} ended */
function endText(ended) {
  const by = ended.by && ended.how === "revoked" ? ` by ${ended.by}` : "";
  return (ENDS[ended.how] ?? ended.how) + by;
}

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @returns {HTMLElementTagNameMap[Tag]}
 */
function el(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

export class Rows {
  #box;
  #table;
  #body;
  #above = new Spacer();
  #below = new Spacer();
  /** @type {Map<string, RowView>} */
  #views = new Map(); // By name.
  /** @type {RowView[]} */
  #spare = [];
  /** @type {Job[]} */
  #jobs = [];
  #isShown = false;
  #height = 0;
  #isAsked = false;
  #isBusy = true;
  #isPrinted = false;
  current = "";

  /** @param {HTMLElement} box */
  constructor(box) {
    this.#box = box;
    this.#table = /** @type {HTMLTableElement} */ (box.querySelector("table"));
    this.#body = /** @type {HTMLTableSectionElement} */ (this.#table.tBodies[0]);
    this.#body.append(this.#above.element, this.#below.element);
    const ask = () => this.ask();
    addEventListener("scroll", ask, { passive: true });
    box.addEventListener("scroll", ask, { passive: true });
    addEventListener("resize", () => {
      this.#height = 0;
      this.ask();
    });
    addEventListener("beforeprint", () => this.#print(true));
    addEventListener("afterprint", () => this.#print(false));
  }

  /**
   * Show these, in this order.
   * @param {Job[]} jobs
   */
  show(jobs) {
    this.#jobs = jobs;
    this.#isShown = true;
    this.#table.setAttribute("aria-rowcount", String(jobs.length + 1));
    this.ask();
  }

  /** Draw with the next frame, once, however often it is asked for. */
  ask() {
    if (this.#isAsked || !this.#isShown) return;
    this.#isAsked = true;
    requestAnimationFrame(() => {
      this.#isAsked = false;
      this.#draw();
    });
  }

  /**
   * Say whether rows are still to come. That all are there is said when they are drawn.
   * @param {boolean} isBusy
   */
  setBusy(isBusy) {
    this.#isBusy = isBusy;
    if (isBusy) this.#box.setAttribute("aria-busy", "true");
    else this.ask();
  }

  tick() {
    const now = serverNow();
    for (const view of this.#views.values()) view.tick(now);
  }

  /** Let all bars begin again: they were stopped for a while. */
  run() {
    for (const view of this.#views.values()) view.run();
  }

  /**
   * Make a row the current one, bring it into view, and put the focus on it.
   * @param {number} index
   */
  go(index) {
    const job = this.#jobs[index];
    if (job === undefined) return;
    this.current = job.name;
    const height = this.#rowHeight();
    const { top, bottom } = this.#window();
    const at = this.#body.getBoundingClientRect().top + index * height;
    const by = at < top ? at - top : Math.max(0, at + height - bottom);
    if (by) (this.#box.classList.contains("tall") ? this.#box : window).scrollBy(0, by);
    this.#draw();
    this.#views.get(job.name)?.link.focus({ preventScroll: true });
  }

  /** @param {string} name */
  indexOf(name) {
    return this.#jobs.findIndex((job) => job.name === name);
  }

  /** The first row that can be seen whole. */
  firstSeen() {
    const { top } = this.#window();
    return Math.max(0, Math.ceil((top - this.#body.getBoundingClientRect().top) / this.#rowHeight() - 0.01));
  }

  /** @param {boolean} isPrinted */
  #print(isPrinted) {
    if (!this.#isShown) return;
    this.#isPrinted = isPrinted;
    this.#draw();
  }

  #rowHeight() {
    if (!this.#height) {
      const view = this.#views.values().next().value;
      this.#height = view?.element.getBoundingClientRect().height ?? 0;
      // A window that is higher than all rows that may be there: the list scrolls by itself, then.
      if (this.#height) this.#box.classList.toggle("tall", innerHeight / this.#height > ROWS_MAX - SPARE_ROWS);
    }
    return this.#height || 32;
  }

  /** Where rows can be seen, from top to bottom of the window. */
  #window() {
    // Its cells stay where they are while rows pass below them; the head of the table itself does not.
    const head = this.#table.tHead?.rows[0]?.cells[0];
    const top = Math.max(0, head?.getBoundingClientRect().bottom ?? 0);
    // Where the table ends does not count: it may be about to grow.
    const end = this.#box.classList.contains("tall") ? this.#box.getBoundingClientRect().bottom : innerHeight;
    return { top, bottom: Math.max(top, Math.min(innerHeight, end)) };
  }

  /**
   * Which rows are drawn: the first, and how many.
   * @returns {[first: number, count: number]}
   */
  #span() {
    const { length } = this.#jobs;
    if (this.#isPrinted) return [0, Math.min(length, PRINTED_MAX)];
    const height = this.#rowHeight();
    const { top, bottom } = this.#window();
    const seen = Math.ceil((bottom - top) / height) + 1;
    const count = Math.min(length, ROWS_MAX, seen + 2 * SPARE_ROWS);
    const before = Math.max(0, Math.min(SPARE_ROWS, Math.floor((count - seen) / 2)));
    const wanted = Math.floor((top - this.#body.getBoundingClientRect().top) / height) - before;
    return [Math.max(0, Math.min(wanted, length - count)), count];
  }

  #draw() {
    const height = this.#rowHeight();
    const [first, count] = this.#span();
    const drawn = this.#jobs.slice(first, first + count);
    const focused = document.activeElement;
    this.#keepOnly(new Set(drawn.map((job) => job.name)));
    this.#above.setHeight(first * height);
    const below = this.#jobs.length - first - count;
    // On paper nothing scrolls: there it is said how many more there are.
    this.#below.setHeight(this.#isPrinted ? 0 : below * height);
    if (this.#isPrinted && below) this.#box.dataset.unprinted = below.toLocaleString();
    else delete this.#box.dataset.unprinted;
    const now = serverNow();
    let before = this.#above.element;
    drawn.forEach((job, number) => {
      const view = this.#viewOf(job.name);
      view.show(job, first + number, now, job.name === this.current);
      if (before.nextSibling !== view.element) {
        // An element that is moved begins its animations again.
        before.after(view.element);
        view.run();
      }
      before = view.element;
    });
    // A row that was moved has lost the focus.
    if (focused !== document.activeElement && focused instanceof HTMLElement && this.#body.contains(focused)) {
      focused.focus({ preventScroll: true });
    }
    // The first rows tell how high a row is. Of a list that is hidden none does.
    if (!this.#height && count && this.#rowHeight() && this.#height) this.ask();
    else if (!this.#isBusy) this.#box.setAttribute("aria-busy", "false");
  }

  /** @param {Set<string>} names */
  #keepOnly(names) {
    for (const [name, view] of this.#views) {
      if (names.has(name)) continue;
      this.#views.delete(name);
      view.element.remove();
      if (this.#spare.length < ROWS_MAX) this.#spare.push(view);
    }
  }

  /** @param {string} name */
  #viewOf(name) {
    let view = this.#views.get(name);
    if (view === undefined) {
      view = this.#spare.pop() ?? new RowView();
      this.#views.set(name, view);
    }
    return view;
  }
}

/** A row as high as all rows that are not in the document. */
class Spacer {
  element = el("tr", "spacer");
  #inside = el("td");

  constructor() {
    this.element.setAttribute("aria-hidden", "true");
    this.#inside.colSpan = COLUMNS;
    this.element.append(this.#inside);
  }

  /** @param {number} height */
  setHeight(height) {
    this.element.hidden = height <= 0;
    this.#inside.style.height = `${Math.max(0, height)}px`;
  }
}
