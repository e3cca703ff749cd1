// @ts-check
// The views that the server draws whole: who waits for whom, sessions, nodes. They are loaded again when something changed.

import { isOlderThan, refreshSoon, refreshWhenSeen, startTimers } from "./refresh.js";
import { subscribe } from "./live.js";

const EVERY_MS = 5_000;
const view = document.body.dataset.view;
let isFirstHello = true;

const counted = document.getElementById("count-sessions");
/** @type {number | null} */
let sessions = counted === null ? null : Number(counted.textContent?.replaceAll(",", ""));

/**
 * Whether a session began or ended. Readers who may not see all are told of neither: they see only their own.
 * @param {Frame} frame
 */
function areOtherSessions({ kept, totals }) {
  const before = sessions;
  sessions = totals?.sessions ?? null;
  return kept.some(([, until]) => until === 0) || (before !== null && sessions !== before);
}

subscribe({
  load(seq) {
    // A stream also breaks when another node begins to lead.
    if (!isFirstHello || view === "nodes" || isOlderThan(seq)) refreshSoon(EVERY_MS);
    isFirstHello = false;
  },
  rows(frame) {
    if (view === "nodes") return;
    if (frame.rows.length || frame.gone.length || (view === "sessions" && areOtherSessions(frame))) refreshSoon(EVERY_MS);
  },
});
startTimers(EVERY_MS);
refreshWhenSeen(EVERY_MS);
// No stream tells of nodes, and a silent one says nothing: they are asked for while somebody looks.
if (view === "nodes") setInterval(() => refreshSoon(EVERY_MS), EVERY_MS);
