// @ts-check
// What every page does: times, keys, theme, copying, and the word on whether it is live. Views import what they need of it.
//
//   live           what is shown is true now
//   reconnecting   the stream broke off; since when
//   away           the server has not answered for a while
//   signed-out     the server does not know the reader any more
//   refused        the server has a reason to tell nothing more, which is on hover
//   past           a moment that is over: nothing moves
//   still          no stream: what was true when the page was loaded

import { staySignedIn } from "./api.js";
import { clockText, startClock } from "./clock.js";

/** @type {Record<string, string>} */
const WORDS = {
  live: "live",
  reconnecting: "reconnecting",
  away: "server away",
  "signed-out": "signed out",
  refused: "not live",
  past: "looking back",
  still: "",
};
const COPIED_MS = 1_500;

/**
 * Say whether the page is live. `sinceMs` is when it stopped being so.
 * @param {string} state
 * @param {number} [sinceMs]
 */
export function showLive(state, sinceMs) {
  const live = document.getElementById("live");
  const words = live?.lastElementChild;
  if (live === null || !words) return;
  const since = sinceMs === undefined ? "" : ` since ${clockText(sinceMs)}`;
  const text = `${WORDS[state]}${state === "live" ? "" : since}`;
  if (live.dataset.state === state && words.textContent === text) return;
  live.dataset.state = document.documentElement.dataset.live = state;
  words.textContent = text;
}

/**
 * Show the counts in the head of the page.
 * @param {Totals} totals
 */
export function showTotals({ jobs, waiting, sessions }) {
  for (const [view, count] of Object.entries({ jobs, waits: waiting, sessions })) {
    const counter = document.getElementById(`count-${view}`);
    if (counter !== null) counter.textContent = count.toLocaleString();
  }
}

// Theme.

/** @type {Record<string, string>} */
const THEMES = { light: "dark", dark: "system", system: "light" };

function changeTheme() {
  const root = document.documentElement;
  const next = THEMES[root.dataset.theme ?? "system"] ?? "system";
  if (next === "system") delete root.dataset.theme;
  else root.dataset.theme = next;
  try {
    if (next === "system") localStorage.removeItem("holdfast-theme");
    else localStorage.setItem("holdfast-theme", next);
  } catch {
    // It stays for this page.
  }
  document.getElementById("change-theme")?.setAttribute("title", `Theme: ${next}`);
}

// Copying.

const copied = new WeakMap(); // The timer of each button that says so.

/** @param {HTMLElement} button */
async function copy(button) {
  const text = button.dataset.copy ?? "";
  let isCopied = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Over plain http, to another machine, there is no clipboard for scripts but this older way.
    isCopied = copySelected(text);
  }
  button.textContent = isCopied ? "Copied" : "Cannot copy";
  clearTimeout(copied.get(button));
  copied.set(button, setTimeout(() => { button.textContent = "Copy"; }, COPIED_MS));
}

/** @param {string} text */
function copySelected(text) {
  const field = document.createElement("textarea");
  const focused = document.activeElement;
  field.value = text;
  field.className = "unseen";
  document.body.append(field);
  field.select();
  try {
    return document.execCommand("copy");
  } finally {
    field.remove();
    if (focused instanceof HTMLElement) focused.focus({ preventScroll: true });
  }
}

// Keys. A view adds its own with `addKey`; `?` lists all of them.

/** @type {Map<string, { text: string, action: () => void }>} */
const keys = new Map();

/**
 * Let a key do something, and list it as `text`. Never while the reader is writing.
 * @param {string} key
 * @param {string} text
 * @param {() => void} action
 */
export function addKey(key, text, action) {
  keys.set(key, { text, action });
}

// A slider or a box to tick takes no letters.
const WRITTEN_IN = "input:not([type=range], [type=checkbox], [type=radio]), textarea, select";

function showKeys() {
  const dialog = document.getElementById("keys");
  const list = dialog?.querySelector("dl");
  if (!(dialog instanceof HTMLDialogElement) || dialog.open || !list) return;
  list.replaceChildren();
  for (const [key, { text }] of keys) {
    const term = document.createElement("dt");
    const cap = document.createElement("kbd");
    cap.textContent = key;
    term.append(cap);
    const meaning = document.createElement("dd");
    meaning.textContent = text;
    list.append(term, meaning);
  }
  dialog.showModal();
}

/** @param {KeyboardEvent} event */
function pressed(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  const target = event.target instanceof HTMLElement ? event.target : null;
  if (target?.isContentEditable || target?.matches(WRITTEN_IN)) {
    if (event.key === "Escape") {
      // A browser would empty the field, and the search would be lost.
      event.preventDefault();
      target.blur();
    }
    return;
  }
  if (document.querySelector("dialog[open]") !== null) return;
  const known = keys.get(event.key);
  if (known === undefined) return;
  // On a link or a button, Enter is its own.
  if (event.key === "Enter" && target?.matches("a, button, summary")) return;
  event.preventDefault();
  known.action();
}

function startKeys() {
  addKey("?", "all keys", showKeys);
  document.addEventListener("keydown", pressed);
  document.getElementById("show-keys")?.addEventListener("click", showKeys);
  const dialog = document.getElementById("keys");
  dialog?.addEventListener("click", ({ target }) => {
    if (target === dialog && dialog instanceof HTMLDialogElement) dialog.close();
  });
}

// One menu, closed by a click elsewhere.

/** @param {Event} event */
function closeMenu({ target }) {
  const menu = document.getElementById("menu");
  if (menu instanceof HTMLDetailsElement && target instanceof Node && !menu.contains(target)) menu.open = false;
}

document.addEventListener("click", (event) => {
  const target = event.target instanceof Element ? event.target.closest("button.copy") : null;
  if (target instanceof HTMLElement) copy(target);
  closeMenu(event);
});
document.getElementById("change-theme")?.addEventListener("click", changeTheme);
startClock();
startKeys();
addKey("g", "to the jobs", () => location.assign("/"));
staySignedIn();
