// The rooms that show much at once: who waits for whom, sessions. Made anew when something changed, but seldom.

import { isOlderThan, refreshSoon, refreshWhenSeen } from "./fresh.js";
import { subscribe } from "./live.js";

const EVERY_MS = 5_000;
const HELLO = { seen: false };

subscribe({
  load(seq) {
    if (HELLO.seen || isOlderThan(seq)) refreshSoon(EVERY_MS);
    HELLO.seen = true;
  },
  rows(frame) {
    if (frame.rows.length || frame.gone.length) refreshSoon(EVERY_MS);
  },
});
refreshWhenSeen(EVERY_MS);
