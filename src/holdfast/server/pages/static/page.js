// What every page does: times, keys, theme, copying, and the word on whether it is live. Rooms import what they need of it.
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
import { addKey, startKeys } from "./keys.js";

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

/** Say whether the page is live. `sinceMs` is when it stopped being so. */
export function showLive(state, sinceMs) {
  const live = document.getElementById("live");
  if (live === null) return;
  const since = sinceMs === undefined ? "" : ` since ${clockText(sinceMs)}`;
  const text = `${WORDS[state]}${state === "live" ? "" : since}`;
  if (live.dataset.state === state && live.lastElementChild.textContent === text) return;
  live.dataset.state = document.documentElement.dataset.live = state;
  live.lastElementChild.textContent = text;
}

/** Say in the head of the page how much there is of what. */
export function showTotals({ jobs, waiting, sessions }) {
  for (const [room, count] of [["jobs", jobs], ["waits", waiting], ["sessions", sessions]]) {
    const place = document.getElementById(`count-${room}`);
    if (place !== null) place.textContent = count.toLocaleString();
  }
}

// Theme.

const THEMES = { light: "dark", dark: "system", system: "light" };

function changeTheme() {
  const root = document.documentElement;
  const next = THEMES[root.dataset.theme ?? "system"];
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

const copied = new WeakMap(); // Which button says so, and what will end it.

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
    focused?.focus({ preventScroll: true });
  }
}

// One menu, closed by a click elsewhere.

function closeMenu(event) {
  const menu = document.getElementById("menu");
  if (menu?.open && !menu.contains(event.target)) menu.open = false;
}

document.addEventListener("click", (event) => {
  const target = event.target instanceof Element ? event.target.closest("button.copy") : null;
  if (target !== null) copy(target);
  closeMenu(event);
});
document.getElementById("change-theme")?.addEventListener("click", changeTheme);
startClock();
startKeys();
addKey("g", "to the jobs", () => location.assign("/"));
staySignedIn();
