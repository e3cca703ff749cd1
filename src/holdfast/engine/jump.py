"""How far a counter jumps when nobody knows what was given out last: after a restore, and when a store lost records.

It jumps by 2^32, and by 1,024 more for each millisecond since the last that is known.

    the backup has token 41     tokens 42 … 900 are lost     restored ten minutes later: 41 + 2^32 + 600,000 × 1,024
    ────●───────────────────────────────────●──────────────────────●────────────────────────────────────────────►

No server gives out a million tokens in a second. So the jump ends beyond all that was given out before it, also if the
same backup is restored twice: what the first one gave out is less than the time in between is worth. Wall clocks may be
wrong by an hour for that: a million a second make 2^32 in 71 minutes.
"""

from __future__ import annotations

from holdfast.core.values import TOKEN_MAX
from holdfast.journal.base import JournalError

JUMP = 2**32
JUMP_PER_MS = 1_024
UNKNOWN_MS = 366 * 86_400_000
"""Assumed where nothing tells: no history is kept, and all records are archived."""


def jump_since(since_wall_ms: int | None, wall_ms: int) -> int:
    """Return how far to jump at this wall time, since another."""
    passed_ms = UNKNOWN_MS if since_wall_ms is None else max(0, wall_ms - since_wall_ms)
    return JUMP + JUMP_PER_MS * passed_ms


def jumped(last_token: int, *, since_wall_ms: int | None, wall_ms: int) -> int:
    token = last_token + jump_since(since_wall_ms, wall_ms)
    if token >= TOKEN_MAX:
        problem = f"the store lost records, and fencing tokens would go on after {token}; {TOKEN_MAX} is the last"
        raise JournalError(problem, "Check that the clock of this machine is right")
    return token
