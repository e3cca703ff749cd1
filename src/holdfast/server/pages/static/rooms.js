// The rooms that show much at once: who waits for whom, sessions. Made anew when something changed, but seldom.

import { isOlderThan, refreshSoon, refreshWhenSeen } from "./fresh.js";
import { startLife } from "./life.js";
import { subscribe } from "./live.js";

const EVERY_MS = 5_000;
const IS_OF_SESSIONS = document.body.dataset.room === "sessions";
const HELLO = { seen: false };

const counted = document.getElementById("count-sessions");
let sessions = counted === null ? null : Number(counted.textContent.replaceAll(",", ""));

// Whether one began or is over. Those who may not see all are told of neither: they see their own alone.
function areOtherSessions({ kept, totals }) {
  const before = sessions;
  sessions = totals?.sessions ?? null;
  return kept.some(([, until]) => until === 0) || (before !== null && sessions !== before);
}

subscribe({
  load(seq) {
    if (HELLO.seen || isOlderThan(seq)) refreshSoon(EVERY_MS);
    HELLO.seen = true;
  },
  rows(frame) {
    if (frame.rows.length || frame.gone.length || (IS_OF_SESSIONS && areOtherSessions(frame))) refreshSoon(EVERY_MS);
  },
});
startLife(EVERY_MS);
refreshWhenSeen(EVERY_MS);
