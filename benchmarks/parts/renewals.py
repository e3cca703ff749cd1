"""A fleet at work: 100,000 leases with a TTL of 30 s, each renewed every 10 s. Nobody may lose one.

The generator sends at that rate whatever was answered, so a latency counts from the moment at which a renewal was due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.load.scripts import write_pairs
from benchmarks.parts.common import row_of
from benchmarks.progress import say
from benchmarks.systems.holdfast import Holdfast

if TYPE_CHECKING:
    from benchmarks.parts.common import Row, Work

LEASES = 100_000
TTL_SECONDS = 30
CONNECTIONS = 256
RENEWALS_PER_TTL = 3
ROUNDS_OF_TTL = 3
"""As often as a lease would run out if its renewals did not count."""


def measure(work: Work) -> Row:
    """Hold them, renew them at their rate, and count who is left."""
    if not work.has(Holdfast()):
        return {}
    leases = min(LEASES, work.options.leases)
    rate = leases * RENEWALS_PER_TTL / TTL_SECONDS
    server = Holdfast()
    folder = work.folder / "renewals"
    with server.running(folder):
        path = write_pairs(folder / "held", server.hold("fleet", leases, TTL_SECONDS))
        say(f"{leases:,} leases are held; {rate:,.0f} renewals a second are due")
        plan = server.plan("renew", connections=CONNECTIONS, seconds=ROUNDS_OF_TTL * TTL_SECONDS, rate=rate, held=path)
        run, spent = server.press_plan(plan)
        row = row_of(run, spent, leases=leases)
        left = server.ask("GET", "/status")
    return {
        **row,
        "ttl_seconds": TTL_SECONDS,
        "connections": CONNECTIONS,
        "due_per_second": rate,
        "core_share": round(spent.seconds / run.elapsed_seconds, 3),
        "left": left.get("active_locks"),
    }
