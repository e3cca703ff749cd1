"""Matches history queries, and finds who held what as of a record, for journals with a tail and an archive.

    archive   names held as of its last record, in order, each with the number of the record that granted it
    tail      changes by the later records, up to the one in the query: the last change of a name counts

Both are merged by name. Then the archived leases are read in parts, each record once: one that granted a thousand names
has megabytes. A page ends when its budget of leases and bytes is spent.
"""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import itemgetter
from typing import TypeAlias

from holdfast.core.events import BAD_WORDS, Record, ended_badly, ends_of, grants_of, is_history, names_of, owners_of
from holdfast.core.values import Lease, has_labels
from holdfast.journal.codec import decode_batch
from holdfast.journal.interface import Held, HeldPage, HeldQuery, HistoryQuery

Latest: TypeAlias = dict[str, tuple[int, Lease] | None]  # Latest grants in the tail; None: ended; missing: no change.
Hold: TypeAlias = tuple[str, int, Lease | None]  # Name, number of the grant, and the lease if that is in the tail.

AT_ONCE = 256  # Records decoded before the loop serves others: about half a millisecond.
NAMES_AT_ONCE = 2_000  # Names sorted before the loop serves others.
LEASES_AT_ONCE = 256
LEASES_READ_MAX = 10_000  # Leases read per page, matching or not.
READ_BYTES_MAX = 16 * 1024 * 1024  # Archived grants read per page.

_BAD_WORDS = tuple(word.encode() for word in BAD_WORDS)


def matches(query: HistoryQuery, record: Record) -> bool:
    if query.before_seq is not None and record.seq >= query.before_seq:
        return False
    if query.since_wall_ms is not None and record.wall_ms < query.since_wall_ms:
        return False
    if query.until_wall_ms is not None and record.wall_ms > query.until_wall_ms:
        return False
    if query.owner is not None and query.owner not in owners_of(record.event):
        return False
    if query.badly and not ended_badly(record.event):
        return False
    return query.name is None or query.name in names_of(record.event)


def suits(query: HeldQuery, lease: Lease) -> bool:
    """Return whether a lease matches a query, except for its name."""
    return (
        query.owner in {None, lease.owner}
        and query.session in {None, lease.session}
        and has_labels(lease.labels, query.labels)
    )


class Texts:
    """Bytes that a matching record must contain: searching for them is cheaper than decoding."""

    def __init__(self, query: HistoryQuery) -> None:
        self.all = [text.encode() for text in (query.name, query.owner) if text is not None]
        self._any = _BAD_WORDS if query.badly else ()

    def __bool__(self) -> bool:
        return bool(self.all or self._any)

    def are_in(self, body: bytes) -> bool:
        return all(text in body for text in self.all) and (not self._any or any(word in body for word in self._any))


async def last_by_in(data: bytes, wall_ms: int) -> int:
    """Return the number of the last record of a batch with history value up to a wall time, or 0."""
    found = 0
    for number, record in enumerate(decode_batch(data), 1):
        if record.wall_ms <= wall_ms and is_history(record.event):
            found = record.seq
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
    return found


# Who held what.


async def follow(data: bytes, upto: int, latest: Latest) -> None:
    """Apply the grants and ends of a batch, up to a record, to `latest`."""
    for number, record in enumerate(decode_batch(data), 1):
        if record.seq > upto:
            return
        for name in ends_of(record.event):
            latest[name] = None
        for name, lease in grants_of(record.event):
            latest[name] = (record.seq, lease)
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)


def held_names(latest: Latest, query: HeldQuery) -> Iterator[list[str]]:
    """Yield the matching names that the tail holds, as sorted lists of bounded length."""
    held = iter([name for name, said in latest.items() if said is not None])
    while some := list(islice(held, NAMES_AT_ONCE)):
        yield sorted(n for n in some if n.startswith(query.prefix) and (query.after is None or n > query.after))


def all_held(
    runs: Iterable[list[str]], holds: Iterable[Hold], latest: Latest, after: str = "", last: str | None = None
) -> Iterator[Hold]:
    """Merge, by name, the holds of the archive and of the tail (`held_names`), from `after` to `last`."""
    older = (hold for hold in holds if hold[0] not in latest)
    names = heapq.merge(
        *(run[bisect_right(run, after) : None if last is None else bisect_right(run, last)] for run in runs)
    )
    newer = ((name, *said) for name in names if (said := latest[name]) is not None)
    return heapq.merge(older, newer, key=itemgetter(0))


class HeldPageBuilder:
    def __init__(self, query: HeldQuery) -> None:
        self._query = query
        self._held: list[Held] = []
        self._leases_read = self._bytes = 0
        self._reached = query.after

    @property
    def remaining(self) -> int:
        """How many leases to read next; 0 if the page is full."""
        if self._leases_read >= LEASES_READ_MAX or self._bytes >= READ_BYTES_MAX:
            return 0
        return min(LEASES_AT_ONCE, self._query.limit - len(self._held))

    def add(self, holds: list[Hold], grants: Grants) -> None:
        self._bytes += grants.bytes
        self._leases_read += len(holds)
        for name, seq, _ in holds:
            lease = grants.leases[seq, name]
            if suits(self._query, lease):
                # A restored lease has a made-up grant with a negative number.
                self._held.append(Held(name, lease, max(seq, 0)))
            self._reached = name

    def ended(self, *, is_all: bool) -> HeldPage:
        return HeldPage(self._held, None if is_all else self._reached)


class Grants:
    """The leases of some holds. Those of the archive are read from the records that granted them."""

    def __init__(self, holds: list[Hold]) -> None:
        self.leases = {(seq, name): lease for name, seq, lease in holds if lease is not None}
        self.bytes = 0
        self._names: dict[int, set[str]] = {}
        for name, seq, lease in holds:
            if lease is None:
                self._names.setdefault(seq, set()).add(name)
        self.missing = sorted(self._names)  # Grants to read from the archive.

    def take(self, seq: int, data: bytes) -> str | None:
        """Read an archived record, a batch of its own. Return a problem, or None."""
        (record,) = decode_batch(data)
        names = self._names[seq]
        self.leases.update(((seq, name), lease) for name, lease in grants_of(record.event) if name in names)
        self.bytes += len(data)
        lacking = next((name for name in names if (seq, name) not in self.leases), None)
        return None if lacking is None else f"record {seq} did not grant {lacking}"
