"""What a request costs while 1,000, 10,000, 100,000 and 1,000,000 leases are held: servers of each size, in turns.

Every turn claims some names, renews them and gives them back, so the size of each server stays as it was.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.parts.common import row_of
from benchmarks.progress import say
from benchmarks.systems.holdfast import Holdfast

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.parts.common import Row, Work

SIZES = (1_000, 10_000, 100_000, 1_000_000)
CONNECTIONS = 64
REQUESTS = 10_000
_WARM_ROUNDS = 1
_SECONDS_MAX = 60.0


def measure(work: Work) -> Row:
    """Fill the servers, then go round them."""
    rows: list[Row] = []
    if not work.has(Holdfast()):
        return {"rows": rows}
    sizes = [size for size in SIZES if size <= work.options.leases]
    with ExitStack() as stack:
        servers: dict[int, Holdfast] = {}
        for size in sizes:
            servers[size] = Holdfast()
            stack.enter_context(servers[size].running(work.folder / f"of-{size}"))
            servers[size].hold("kept", size)
            say(f"a server with {size:,} leases is ready")
        for number in range(_WARM_ROUNDS + work.options.rounds):
            shift = number % len(sizes)
            for size in [*sizes[shift:], *sizes[:shift]]:
                found = _turn(servers[size], work.folder / f"of-{size}", size, number)
                rows += found if number >= _WARM_ROUNDS else []
    return {"rows": rows, "connections": CONNECTIONS}


def _turn(server: Holdfast, folder: Path, size: int, number: int) -> list[Row]:
    """Claim, renew and release the same names."""
    rows = []
    held = str(folder / "held")
    for operation in ("acquire", "renew", "release"):
        given = {"prefix": f"turn-{number}", "keep": held} if operation == "acquire" else {"held": held}
        plan = server.plan(operation, connections=CONNECTIONS, seconds=_SECONDS_MAX, count=REQUESTS, **given)
        rows.append(row_of(*server.press_plan(plan), operation=operation, leases=size))
    return rows
