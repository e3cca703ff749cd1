// The rows of the list, of which only those in view are in the document: at most ROWS_MAX, however many jobs there are.
//
//   <tbody>
//     <tr class="spacer">     as high as all rows above those in view
//     <tr> …                  those in view, and a few more
//     <tr class="spacer">     as high as all rows below
//
// Everything that a user wrote is set as text. A bar moves by a CSS animation that begins in the past (a negative delay):
// no script runs for it. Once a second the words beside it are written anew, of the rows that are there.

import { jobPath } from "./api.js";
import { exactText, serverNow, spanText } from "./clock.js";

export const ROWS_MAX = 60;
const SPARE_ROWS = 6;
const PRINTED_MAX = 1_000;
const COLUMNS = 8;
const TAIL_CHARS = 16;
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]/;

const SIGNS = {
  alive: "alive",
  late: "late",
  ending: "ending",
  released: "released",
  done: "done",
  expired: "expired",
  revoked: "revoked",
  session_ended: "session ended",
  transferred: "handed over",
  "": "free",
};

// In words: the same as in server/pages/rows.py.

export function signOf(row, now) {
  if (row.ended) return row.ended.how in SIGNS ? row.ended.how : "";
  if ((row.until - now) * 10 < row.ttl) return "ending";
  return (now - row.beat) * 3 > row.ttl * 2 ? "late" : "alive";
}

/** The session that a job is bound to was kept, and ends at `end` now. */
export function keepJob(job, end) {
  // Where the session ends first, `ttl` is the session's: its keepalive came so long before its new end.
  if (job.until < job.own) job.beat = Math.max(job.beat, end - job.ttl);
  job.until = Math.min(job.own, end);
}

export function leftText(ms) {
  if (ms >= 86_400_000) return `${Math.floor(ms / 86_400_000)} d`;
  const seconds = Math.floor(Math.max(0, ms) / 1_000);
  const two = (number) => String(number).padStart(2, "0");
  const [hours, minutes] = [Math.floor(seconds / 3_600), Math.floor(seconds / 60) % 60];
  return hours ? `${hours}:${two(minutes)}:${two(seconds % 60)}` : `${minutes}:${two(seconds % 60)}`;
}

// One row of the document. It is filled with one job after another.
class Line {
  constructor() {
    this.element = el("tr");
    this.row = null;
    this.version = -1;
    this.written = {};
    this.link = el("a", "job");
    this.name = el("bdi", "name");
    this.head = el("span", "name-head");
    this.tail = el("span", "name-tail");
    this.name.append(this.head, this.tail);
    this.link.append(this.name);
    this.sign = el("span", "sign");
    this.owner = el("bdi");
    this.held = el("time");
    this.beat = el("time");
    this.bar = el("span", "bar");
    this.bar.setAttribute("aria-hidden", "true");
    this.fill = el("i");
    this.bar.append(this.fill);
    this.left = el("time", "left-text");
    const left = el("span", "left");
    left.append(this.bar, this.left);
    this.line = el("a");
    this.ownerCell = cell("owner", this.owner);
    this.note = cell("note");
    this.element.append(
      cell("job", this.link),
      cell("sign", this.sign),
      this.ownerCell,
      cell("held", this.held),
      cell("beat", this.beat),
      cell("left", left),
      cell("line", this.line),
      this.note,
    );
  }

  show(row, index, now, isCurrent) {
    if (this.row !== row || this.version !== row.version) this.#fill(row);
    this.#set("index", index, () => this.element.setAttribute("aria-rowindex", index + 2));
    this.#set("current", isCurrent, () => {
      if (isCurrent) this.element.setAttribute("aria-selected", "true");
      else this.element.removeAttribute("aria-selected");
    });
    this.tick(now);
  }

  // What changes by itself as time passes.
  tick(now) {
    const row = this.row;
    const sign = signOf(row, now);
    this.#set("sign", sign, () => {
      this.sign.className = `sign ${sign || "free"}`;
      this.sign.textContent = SIGNS[sign];
      this.bar.className = `bar ${sign}`;
    });
    const at = row.ended ? Math.min(now, row.ended.at || now) : now;
    this.#text("held", this.held, spanText(at - row.since));
    this.#text("beat", this.beat, `${spanText(now - row.beat)} ago`);
    this.#text("left", this.left, row.ended ? endText(row.ended) : leftText(row.until - now));
  }

  // Let the bar run from where it is now. Two names of the same animation take turns: only so does it begin anew.
  run() {
    const { ended, ttl, until } = this.row;
    this.bar.hidden = ended !== null;
    if (ended !== null) return;
    const term = Math.max(1, ttl);
    this.fill.style.setProperty("--ttl", `${term}ms`);
    this.fill.style.setProperty("--ago", `${-Math.max(0, term - (until - serverNow()))}ms`);
    this.fill.className = this.fill.className === "again" ? "" : "again";
  }

  #fill(row) {
    if (this.row === null || this.row.name !== row.name) this.#begin(row.name);
    this.row = row;
    this.version = row.version;
    this.#text("owner", this.owner, row.owner);
    this.#set("whole owner", row.owner, () => (this.ownerCell.title = row.owner));
    this.#time("since", this.held, row.since, "held since ");
    this.#time("heard", this.beat, row.beat, "last heartbeat ");
    this.#time("until", this.left, row.until, "until ");
    this.#set("run", `${row.until} ${row.ttl} ${row.ended !== null}`, () => this.run());
    this.#set("line", row.line, () => {
      this.line.textContent = row.line ? `${row.line} ▸` : "";
      this.line.title = row.line ? `${row.line} in line` : "";
      if (row.line) this.line.href = `${jobPath(row.name)}#line`;
      else this.line.removeAttribute("href");
    });
    this.#note(row);
    this.#set("ended", row.ended !== null, () => this.element.classList.toggle("over", row.ended !== null));
    this.#set("fresh", row.isFresh, () => this.element.classList.toggle("new", row.isFresh));
  }

  // Names keep their end: what is too long is cut before it. One that runs from right to left is cut where it ends.
  #begin(name) {
    this.written = {};
    const chars = RIGHT_TO_LEFT.test(name) ? [] : Array.from(name);
    const cut = Math.max(0, chars.length - TAIL_CHARS);
    this.head.textContent = chars.length ? chars.slice(0, cut).join("") : name;
    this.tail.textContent = chars.slice(cut).join("");
    this.name.title = name;
    this.link.href = jobPath(name);
  }

  #note(row) {
    const labels = Object.entries(row.labels);
    const lines = [row.note, ...labels.map(([key, value]) => `${key}:${value}`)];
    lines.push(...row.fields.map(([key, value]) => (key ? `${key}=${value}` : value)));
    const text = lines.filter(Boolean).join("\n");
    this.#set("note", text, () => {
      const parts = row.note ? [el("bdi", "", row.note), " "] : [];
      for (const [key, value] of labels) parts.push(tagged("label", `${key}:`, value), " ");
      for (const [key, value] of row.fields) parts.push(tagged("field", key && `${key} `, value), " ");
      this.note.replaceChildren(...parts);
      this.note.title = text;
    });
  }

  #time(key, element, ms, before) {
    this.#set(key, ms, () => {
      element.dateTime = new Date(ms).toISOString();
      element.title = before + exactText(ms);
    });
  }

  #text(key, element, text) {
    this.#set(key, text, () => (element.textContent = text));
  }

  // To write what is there already costs a browser more than to compare it.
  #set(key, value, write) {
    if (this.written[key] === value) return;
    this.written[key] = value;
    write();
  }
}

function cell(column, ...inside) {
  const made = el("td", `col-${column}`);
  made.append(...inside);
  return made;
}

function tagged(kind, key, value) {
  const made = el("bdi", kind);
  if (key) made.append(el("b", "", key));
  made.append(value);
  return made;
}

function endText(ended) {
  const by = ended.by && ended.how === "revoked" ? ` by ${ended.by}` : "";
  return (SIGNS[ended.how] ?? ended.how) + by;
}

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
  #above = spacer();
  #below = spacer();
  #lines = new Map(); // By name.
  #spare = [];
  #view = null;
  #height = 0;
  #isAsked = false;
  #isOurs = false;
  #isBusy = true;
  #isPrinted = false;
  current = "";

  constructor(box) {
    this.#box = box;
    this.#table = box.querySelector("table");
    this.#body = this.#table.tBodies[0];
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

  // Show these, in this order.
  show(view) {
    this.#view = view;
    this.#table.setAttribute("aria-rowcount", view.length + 1);
    this.ask();
  }

  // Draw with the next frame, once, however often it is asked for.
  ask() {
    if (this.#isAsked || this.#view === null) return;
    this.#isAsked = true;
    requestAnimationFrame(() => {
      this.#isAsked = false;
      // Who presses a link of the page as it came is let do so: a link that is taken away under the pointer leads nowhere.
      if (!this.#isOurs && this.#body.matches(":active")) this.ask();
      else this.#draw();
    });
  }

  // Whether rows are still to come. That all are there is said when they are drawn.
  setBusy(isBusy) {
    this.#isBusy = isBusy;
    if (isBusy) this.#box.setAttribute("aria-busy", "true");
    else this.ask();
  }

  tick() {
    const now = serverNow();
    for (const line of this.#lines.values()) line.tick(now);
  }

  // Let all bars begin anew: they were stopped for a while.
  run() {
    for (const line of this.#lines.values()) line.run();
  }

  // Make a row the current one, bring it into view, and put the focus on it.
  go(index) {
    const row = this.#view?.[index];
    if (row === undefined) return;
    this.current = row.name;
    const height = this.#rowHeight();
    const { top, bottom } = this.#window();
    const at = this.#body.getBoundingClientRect().top + index * height;
    const by = at < top ? at - top : Math.max(0, at + height - bottom);
    if (by) (this.#box.classList.contains("tall") ? this.#box : window).scrollBy(0, by);
    this.#draw();
    this.#lines.get(row.name)?.link.focus({ preventScroll: true });
  }

  indexOf(name) {
    return (this.#view ?? []).findIndex((row) => row.name === name);
  }

  // The first row that can be seen whole.
  firstSeen() {
    const { top } = this.#window();
    return Math.max(0, Math.ceil((top - this.#body.getBoundingClientRect().top) / this.#rowHeight() - 0.01));
  }

  #print(isPrinted) {
    if (this.#view === null) return;
    this.#isPrinted = isPrinted;
    this.#draw();
  }

  #rowHeight() {
    if (!this.#height) {
      const line = this.#lines.values().next().value;
      this.#height = line?.element.getBoundingClientRect().height ?? 0;
      // A window that is higher than all rows that may be there: the list scrolls by itself, then.
      if (this.#height) this.#box.classList.toggle("tall", innerHeight / this.#height > ROWS_MAX - SPARE_ROWS);
    }
    return this.#height || 32;
  }

  // Where rows can be seen, from top to bottom of the window.
  #window() {
    // Its cells stay where they are while rows pass below them; the head of the table itself does not.
    const top = Math.max(0, this.#table.tHead.rows[0].cells[0].getBoundingClientRect().bottom);
    // Where the table ends does not count: it may be about to grow.
    const end = this.#box.classList.contains("tall") ? this.#box.getBoundingClientRect().bottom : innerHeight;
    return { top, bottom: Math.max(top, Math.min(innerHeight, end)) };
  }

  // Which rows are drawn: the first, and how many.
  #span() {
    const length = this.#view.length;
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
    let focusedName = "";
    if (!this.#isOurs) {
      // Until now the rows of the page as it came were shown. One of them may have the focus.
      focusedName = this.#body.querySelector("tr:focus-within .name")?.title ?? "";
      this.#isOurs = true;
      this.#body.replaceChildren(this.#above, this.#below);
    }
    const view = this.#view;
    const height = this.#rowHeight();
    const [first, count] = this.#span();
    const focused = document.activeElement;
    this.#keepOnly(new Set(view.slice(first, first + count).map((row) => row.name)));
    setHeight(this.#above, first * height);
    const below = view.length - first - count;
    // On paper nothing scrolls: there it is said how many more there are.
    setHeight(this.#below, this.#isPrinted ? 0 : below * height);
    if (this.#isPrinted && below) this.#box.dataset.unprinted = below.toLocaleString();
    else delete this.#box.dataset.unprinted;
    const now = serverNow();
    let behind = this.#above;
    for (let index = first; index < first + count; index++) {
      const row = view[index];
      const line = this.#lineOf(row.name);
      line.show(row, index, now, row.name === this.current);
      if (behind.nextSibling !== line.element) {
        // What is moved begins its animations anew.
        behind.after(line.element);
        line.run();
      }
      behind = line.element;
    }
    // A row that was moved has lost the focus.
    if (focused !== document.activeElement && this.#body.contains(focused)) focused.focus({ preventScroll: true });
    if (focusedName) this.#lines.get(focusedName)?.link.focus({ preventScroll: true });
    // The first rows tell how high a row is. Of a list that is hidden none does.
    if (!this.#height && count && this.#rowHeight() && this.#height) this.ask();
    else if (!this.#isBusy) this.#box.setAttribute("aria-busy", "false");
  }

  #keepOnly(names) {
    for (const [name, line] of this.#lines) {
      if (names.has(name)) continue;
      this.#lines.delete(name);
      line.element.remove();
      if (this.#spare.length < ROWS_MAX) this.#spare.push(line);
    }
  }

  #lineOf(name) {
    let line = this.#lines.get(name);
    if (line === undefined) {
      line = this.#spare.pop() ?? new Line();
      this.#lines.set(name, line);
    }
    return line;
  }
}

function spacer() {
  const row = el("tr", "spacer");
  row.setAttribute("aria-hidden", "true");
  const inside = el("td");
  inside.colSpan = COLUMNS;
  row.append(inside);
  return row;
}

function setHeight(row, height) {
  row.hidden = height <= 0;
  row.firstChild.style.height = `${Math.max(0, height)}px`;
}
