// One job's page, live: signs of life and the note are written at once; all else is made anew by the server.

import { openOffer } from "./actions.js";
import { isOlderThan, refreshSoon, refreshWhenSeen } from "./fresh.js";
import { addKey } from "./keys.js";
import { namesShown, startLife } from "./life.js";
import { subscribe } from "./live.js";
import { showAxis } from "./timeline.js";

const EVERY_MS = 1_000;
const CHAIN_EVERY_MS = 5_000;
const room = document.getElementById("job");
const isPast = room.hasAttribute("data-past");
let hello = false;

function showRow(row) {
  const isSame = String(row.token) === room.dataset.token && String(row.line ?? 0) === room.dataset.line;
  if (!isSame) {
    refreshSoon(EVERY_MS);
    return;
  }
  const note = room.querySelector('[data-live="note"] bdi');
  if (note) note.textContent = row.note || "none";
}

function heard(frame) {
  const { name, status, token } = room.dataset;
  for (const row of frame.rows) {
    if (row.name === name) showRow(row);
    // Its owner may have joined the line of another job, or somebody in the chain: then the chain has another link.
    else if (status === "held" && row.line) refreshSoon(namesShown().has(row.name) ? EVERY_MS : CHAIN_EVERY_MS);
  }
  if (frame.beats.some((beat) => beat[0] === name && String(beat[1]) !== token)) refreshSoon(EVERY_MS);
  if (frame.gone.some((each) => each.name === name)) refreshSoon(EVERY_MS);
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
if (!isPast) {
  subscribe({
    load(seq) {
      if (hello || isOlderThan(seq)) refreshSoon(EVERY_MS);
      hello = true;
    },
    rows: heard,
  });
  startLife(EVERY_MS);
  refreshWhenSeen(EVERY_MS);
}
addKey("w", "why it cannot be had", () => { location.hash = "why"; });
addKey("h", "its timeline", () => { location.hash = "history"; });
if (document.body.dataset.may.includes("admin")) addKey("r", "end the lease", () => openOffer("revoke"));
