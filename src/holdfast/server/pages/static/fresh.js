// Parts of a page made anew: the page is loaded again beside, and its parts with `data-part` take the place of ours.
//
// What is drawn is drawn by the server, once, for readers with and without scripts. A document that the browser itself
// has parsed is no text that a script makes a page of, so the policy lets it pass.

import { showSignedOut } from "./api.js";
import { showTimes } from "./clock.js";

const LATEST = { running: false, again: false, lastMs: 0, timer: 0, dueMs: 0 };

function load(address) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("GET", address);
    request.responseType = "document";
    request.onload = () => (request.status === 200 && request.response ? resolve(request.response) : reject(request));
    request.onerror = () => reject(request);
    request.send();
  });
}

// Whether the reader writes in a part, or has opened a form in it: that is not taken away.
function isInUse(part) {
  return part.contains(document.activeElement) && document.activeElement.matches("input, textarea, select")
    || part.querySelector("details.offer[open]") !== null;
}

// Until no button of a mouse is down, nor a finger: what is taken away under it is not clicked.
async function released() {
  while (document.querySelector("[data-part]:active") !== null) await new Promise(requestAnimationFrame);
}

/** Put the newest of every part in its place. Returns the names of those that were left alone because they are used. */
export async function refresh(address = location.href) {
  let made;
  try {
    made = await load(address);
  } catch (request) {
    if (request.status === 401) showSignedOut();
    return [];
  }
  await released();
  const left = [];
  for (const part of document.querySelectorAll("[data-part]")) {
    const anew = made.getElementById(part.id);
    if (anew === null) continue;
    if (isInUse(part)) {
      left.push(part.dataset.part);
      continue;
    }
    const scrolled = [...part.querySelectorAll(".scroll, .graph")].map((each) => [each.scrollLeft, each.scrollTop]);
    const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const taken = document.adoptNode(anew);
    showTimes(taken);
    part.replaceWith(taken);
    [...taken.querySelectorAll(".scroll, .graph")].forEach((each, number) => {
      [each.scrollLeft, each.scrollTop] = scrolled[number] ?? [0, 0];
    });
    if (focused !== null) [...taken.querySelectorAll("a")].find((each) => each.getAttribute("href") === focused)?.focus();
  }
  document.dispatchEvent(new CustomEvent("holdfast:fresh", { detail: { page: made, left } }));
  return left;
}

/** Whether something happened between the making of this page and record `seq`, after which all is told. */
export function isOlderThan(seq) {
  return !(seq <= Number(document.body.dataset.seq));
}

/** Let the page be made anew soon: once, however often this is called, and never more often than every `everyMs`. */
export function refreshSoon(everyMs) {
  if (LATEST.running) {
    LATEST.again = true;
    return;
  }
  const dueMs = Math.max(Date.now() + 100, LATEST.lastMs + everyMs);
  if (document.visibilityState === "hidden") {
    LATEST.again = true;
    return;
  }
  if (LATEST.timer !== 0 && LATEST.dueMs <= dueMs) return;
  clearTimeout(LATEST.timer);
  LATEST.dueMs = dueMs;
  LATEST.timer = setTimeout(async () => {
    LATEST.timer = 0;
    LATEST.running = true;
    LATEST.again = false;
    try {
      await refresh();
    } finally {
      LATEST.running = false;
      LATEST.lastMs = Date.now();
    }
    if (LATEST.again) refreshSoon(everyMs);
  }, dueMs - Date.now());
}

/** The same when the reader comes back to a tab that something happened to. */
export function refreshWhenSeen(everyMs) {
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "visible" && LATEST.again) refreshSoon(everyMs);
  });
}
