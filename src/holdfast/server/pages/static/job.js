// One job's page, live: heartbeats, the note and the time left are written at once; all else is made anew by the server.

import { openOffer } from "./actions.js";
import { agoText, exactText, serverNow } from "./clock.js";
import { isOlderThan, refreshSoon, refreshWhenSeen } from "./fresh.js";
import { addKey } from "./keys.js";
import { subscribe } from "./live.js";
import { leftText } from "./rows.js";
import { showAxis } from "./timeline.js";

const EVERY_MS = 1_000;
const room = document.getElementById("job");
const isPast = room.hasAttribute("data-past");
let hello = false;

function live(what) {
  return room.querySelector(`[data-live="${what}"]`);
}

function showBeat(beatMs) {
  const time = live("beat")?.querySelector("time");
  if (!time) return;
  time.dateTime = new Date(beatMs).toISOString();
  time.title = exactText(beatMs);
  time.textContent = agoText(beatMs);
}

function showUntil(untilMs, ttlMs) {
  const left = live("left");
  if (left === null) return;
  left.dataset.until = String(untilMs);
  const bar = live("bar");
  if (bar !== null && ttlMs !== undefined) bar.max = Math.max(1, ttlMs);
  tick();
}

function tick() {
  const left = live("left");
  if (left === null) return;
  const leftMs = Math.max(0, Number(left.dataset.until) - serverNow());
  left.textContent = leftText(leftMs);
  const bar = live("bar");
  if (bar !== null) bar.value = Math.min(bar.max, leftMs);
}

function showRow(row) {
  const isSame = String(row.token) === room.dataset.token && String(row.line ?? 0) === room.dataset.line;
  if (!isSame) {
    refreshSoon(EVERY_MS);
    return;
  }
  showBeat(row.beat);
  showUntil(row.until, row.ttl);
  const note = live("note")?.querySelector("bdi");
  if (note) note.textContent = row.note || "none";
}

function heard(frame) {
  for (const row of frame.rows) showRow(row);
  for (const [, token, beat, until, ttl] of frame.beats) {
    if (String(token) !== room.dataset.token) refreshSoon(EVERY_MS);
    else {
      showBeat(beat);
      showUntil(until, ttl);
    }
  }
  if (frame.gone.length) refreshSoon(EVERY_MS);
}

// What the new page says of the job is what the next rows are compared with.
document.addEventListener("holdfast:fresh", ({ detail }) => {
  const anew = detail.page.getElementById("job");
  if (anew === null) return;
  const before = room.dataset.token;
  for (const what of ["token", "line", "status"]) room.dataset[what] = anew.dataset[what] ?? "";
  if (detail.left.includes("actions") && room.dataset.token !== before) room.dataset.changed = "";
  showAxis(room);
});

showAxis(room);
setInterval(tick, 1_000);
if (!isPast) {
  subscribe({
    name: room.dataset.name,
    load(seq) {
      if (hello || isOlderThan(seq)) refreshSoon(EVERY_MS);
      hello = true;
    },
    rows: heard,
  });
  refreshWhenSeen(EVERY_MS);
}
addKey("w", "why it cannot be had", () => { location.hash = "why"; });
addKey("h", "its timeline", () => { location.hash = "history"; });
addKey("r", "end the lease", () => openOffer("revoke"));
