// Who leads, live. No stream tells of nodes: one that is silent says nothing. So it is asked while somebody looks.

import { refreshSoon, refreshWhenSeen } from "./fresh.js";
import { subscribe } from "./live.js";

const EVERY_MS = 5_000;

// A stream breaks when another node leads: when it is there again, all may be different.
subscribe({ load: () => refreshSoon(EVERY_MS) });
refreshWhenSeen(EVERY_MS);
setInterval(() => refreshSoon(EVERY_MS), EVERY_MS);
