"""When a command is told to stop, and when it is made to: before its lease can be lost, whatever happens.

Nothing here reads a clock or touches a process. All times count from the moment at which `remaining` was read.
"""

from __future__ import annotations

from typing import NamedTuple

GRACE_SHARE_MAX = 1 / 3
"""Renewal begins when a third of the lease is over. The second third is for trying again, the last one for stopping."""
MARGIN_SECONDS_MAX = 0.5
MARGIN_SHARE_MAX = 1 / 20
"""A signal needs time to arrive on a busy machine; a short lease cannot spare half a second for it."""
SECONDS_MAX = 2**32


class Plan(NamedTuple):
    """How long until SIGTERM, and until SIGKILL. Zero is now."""

    term_ms: int
    kill_ms: int
    grace_ms: int
    """What lies between the two when there is time enough."""


def plan(
    remaining_seconds: float,
    *,
    longest_seconds: float,
    grace_seconds: float,
    must_stop: bool = False,
    stopping_ms: int | None = None,
) -> Plan:
    """Count back from what remains of the lease.

    `longest_seconds` is the most that has ever remained: as good as the length of the lease. `must_stop` says that the
    command has no more time of its own. `stopping_ms` is how long ago it was told to stop, and None if it was not.
    """
    longest = min(longest_seconds, SECONDS_MAX)
    grace_ms = int(1_000 * min(grace_seconds, longest * GRACE_SHARE_MAX))
    margin_ms = int(1_000 * min(MARGIN_SECONDS_MAX, longest * MARGIN_SHARE_MAX))
    kill_ms = max(0, int(1_000 * min(remaining_seconds, SECONDS_MAX)) - margin_ms)
    if stopping_ms is not None:
        return Plan(0, min(kill_ms, max(0, grace_ms - stopping_ms)), grace_ms)
    if must_stop:
        return Plan(0, min(kill_ms, grace_ms), grace_ms)
    return Plan(max(0, kill_ms - grace_ms), kill_ms, grace_ms)
