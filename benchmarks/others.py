"""What others keep on a server: so many held names, finished names, waiters or retry keys, written as records.

They belong to a hundred principals, none of whom asks anything while a request of somebody else is measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.core.events import Ended, Event, Granted, Joined, Record, Reopened
from holdfast.core.values import Done, Instant, Lease, Terms, Ticket, lease_from

if TYPE_CHECKING:
    from collections.abc import Iterator

PRINCIPALS = 100
NOW = Instant(1_000, 1_750_000_000_000)
TTL_MS = 86_400_000
BATCH = 10_000

NAMES, DONE, WAITERS, KEYS = "names", "done", "waiters", "keys"
KINDS = {
    NAMES: "names that they hold",
    DONE: "names that they have finished",
    WAITERS: "places in lines, with somebody at each",
    KEYS: "retry keys",
}


def batches(kind: str, count: int) -> Iterator[list[Record]]:
    """Yield the records that leave `count` things of a kind behind, in batches as a journal takes them."""
    batch: list[Record] = []
    for seq, event in enumerate(_events(kind, count), 1):
        batch.append(Record(seq, NOW.ms, NOW.wall_ms, event))
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _events(kind: str, count: int) -> Iterator[Event]:
    match kind:
        case "names":
            for number in range(count):
                yield _granted(f"elsewhere/{number:07d}", number)
        case "done":
            for number in range(count):
                yield from _finished(f"elsewhere/{number:07d}", number)
        case "waiters":
            # A tenth of the names: ten stand in each line.
            for number in range(count):
                if number % 10 == 0:
                    yield _granted(f"elsewhere/{number // 10:07d}", number)
                yield Joined(_ticket(f"elsewhere/{number // 10:07d}", count + number))
        case _:
            yield from _finished("elsewhere/0", 0)
            for number in range(count):
                yield Reopened("elsewhere/0", _principal(number), None, f"key-{number}", "print")


def _principal(number: int) -> str:
    return f"other-{number % PRINCIPALS}"


def _uuid(number: int) -> str:
    return str(UUID(int=number + 1, version=4))


def _terms(number: int) -> Terms:
    return Terms(
        principal=_principal(number),
        ttl_ms=TTL_MS,
        owner=f"worker-{number % 1_000}",
        labels={"team": f"t{number % 10}"},
    )


def _lease(number: int) -> Lease:
    return lease_from(_terms(number), _uuid(number), number + 1, NOW)


def _granted(name: str, number: int) -> Granted:
    return Granted(name, _lease(number))


def _finished(name: str, number: int) -> Iterator[Event]:
    lease = _lease(number)
    yield Granted(name, lease)
    done = Done(lease.owner, lease.token, "ok", NOW.wall_ms, NOW.ms + TTL_MS)
    yield Ended(name, lease.lease_id, lease.token, "released", True, done=done, owner=lease.owner)


def _ticket(name: str, number: int) -> Ticket:
    return Ticket(f"t{number}", (name,), (_uuid(number),), _terms(number), joined_wall_ms=NOW.wall_ms)
