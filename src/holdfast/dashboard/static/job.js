// @ts-check
// One job's page, live: signs of life and the note are written at once; all else is loaded again from the server.

import { axisText } from "./clock.js";
import { subscribe } from "./live.js";
import { addKey } from "./page.js";
import { isOlderThan, namesShown, refreshSoon, refreshWhenSeen, startTimers } from "./refresh.js";

const EVERY_MS = 1_000;
const CHAIN_EVERY_MS = 5_000;
const view = /** @type {HTMLElement} */ (document.getElementById("job"));
const isPast = view.hasAttribute("data-past");
let isFirstHello = true;

/** @param {JobRow} row */
function showRow(row) {
  const isSame = String(row.token) === view.dataset.token && String(row.line ?? 0) === view.dataset.queue;
  if (!isSame) {
    refreshSoon(EVERY_MS);
    return;
  }
  const note = view.querySelector('[data-live="note"] bdi');
  if (note) note.textContent = row.note || "none";
}

/** @param {Frame} frame */
function heard(frame) {
  const { name, status, token } = view.dataset;
  for (const row of frame.rows) {
    if (row.name === name) showRow(row);
    // Its owner may now wait for another job, or somebody in the chain does: then the chain has another link.
    else if (status === "held" && row.line) refreshSoon(namesShown().has(row.name) ? EVERY_MS : CHAIN_EVERY_MS);
  }
  if (frame.beats.some((beat) => beat[0] === name && String(beat[1]) !== token)) refreshSoon(EVERY_MS);
  if (frame.gone.some((each) => each.name === name)) refreshSoon(EVERY_MS);
}

// What the new page says of the job is what the next rows are compared with.
document.addEventListener("holdfast:fresh", (event) => {
  const { page, left } = /** @type {CustomEvent<{ page: Document, left: string[] }>} */ (event).detail;
  const anew = page.getElementById("job");
  if (anew === null) return;
  const before = view.dataset.token;
  for (const what of ["token", "queue", "status"]) view.dataset[what] = anew.dataset[what] ?? "";
  if (left.includes("actions") && view.dataset.token !== before) view.dataset.changed = "";
  showAxis();
});

/** Write the axis of the timeline in the reader's own zone. */
function showAxis() {
  for (const mark of /** @type {NodeListOf<SVGTextElement>} */ (view.querySelectorAll("text[data-at]"))) {
    mark.textContent = axisText(Number(mark.dataset.at), Number(mark.dataset.step));
  }
}

// Forms. They work without this; with it, a form that was sent cannot be sent twice, and a link leads to it.

/** Open the form that the address names, and let its reader write the reason. */
function openNamed() {
  const wanted = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!(wanted instanceof HTMLDetailsElement)) return;
  wanted.open = true;
  wanted.scrollIntoView({ block: "nearest" });
  /** @type {HTMLElement | null} */ (wanted.querySelector("input:not([type=hidden]), textarea"))?.focus();
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!(form instanceof HTMLFormElement) || form.closest(".offer") === null) return;
  if (form.dataset.sent !== undefined) {
    event.preventDefault();
    return;
  }
  form.dataset.sent = "";
  for (const button of form.querySelectorAll("button")) button.setAttribute("aria-disabled", "true");
});
addEventListener("hashchange", openNamed);
// A page that the browser kept, and shows again after "back", can be sent once more.
addEventListener("pageshow", (event) => {
  if (!event.persisted) return;
  for (const form of document.querySelectorAll("form[data-sent]")) form.removeAttribute("data-sent");
});
openNamed();
// The browser itself goes to where the address leads when all is loaded, and takes the focus away from the field.
addEventListener("load", () => setTimeout(() => { if (document.activeElement === document.body) openNamed(); }));

// Begin.

showAxis();
if (!isPast) {
  subscribe({
    load(seq) {
      if (!isFirstHello || isOlderThan(seq)) refreshSoon(EVERY_MS);
      isFirstHello = false;
    },
    rows: heard,
  });
  startTimers(EVERY_MS);
  refreshWhenSeen(EVERY_MS);
}
addKey("w", "why it cannot be had", () => { location.hash = "why"; });
addKey("h", "its timeline", () => { location.hash = "history"; });
if (document.body.dataset.may?.includes("admin")) {
  addKey("r", "end the lease", () => {
    if (!(document.getElementById("revoke") instanceof HTMLDetailsElement)) return;
    location.hash = "revoke";
    openNamed();
  });
}
