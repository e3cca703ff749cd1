"""Who held what as of a record, from the archive and the tail together, for every journal that has both.

    archive   names that were held as of its last record, in order; each leads to the record of its grant
    tail      what the records after that changed, up to the one that is asked for: the last word on a name counts

The two are merged by name. Only then are the leases read, some at a time, each record once: one that gave away a
thousand names has megabytes. A look has a budget in leases and in bytes: over it, the page ends and leads on.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING

from holdfast.core.events import grants_of
from holdfast.journal.base import Held, HeldPage
from holdfast.journal.codec import decode_batch, record_in
from holdfast.journal.search import suits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.core.events import Event
    from holdfast.core.values import Lease
    from holdfast.journal.base import HeldQuery
    from holdfast.journal.search import Latest

    Hold = tuple[str, int, bytes | None]
    """A name, the number of its grant, and that record if the tail has it. In the archive it is found by its number."""

NAMES_AT_ONCE = 2_000
"""How many names are put in order at once: more would keep others from their turn."""
LEASES_AT_ONCE = 256
LOOKED_AT_MAX = 10_000
"""How many leases one look reads, whether they are wanted or not."""
READ_BYTES_MAX = 16 * 1024 * 1024
"""How many bytes of grants one look reads before it answers with what it found and where to go on."""


class TailHolds:
    """What the records of the tail say of names, as of the last that was added."""

    def __init__(self) -> None:
        self.latest: Latest = {}
        """Names that are not in here were not touched: of these the archive knows."""

    def runs(self, query: HeldQuery) -> Iterator[list[str]]:
        """Yield the names that somebody holds by these records and that are asked for, as lists that are in order."""
        held = iter([name for name, said in self.latest.items() if said is not None])
        while some := list(islice(held, NAMES_AT_ONCE)):
            yield sorted(name for name in some if is_wanted(query, name))


class Names:
    """Names in order, as several lists that are."""

    def __init__(self, runs: Iterable[list[str]]) -> None:
        self._runs = [run for run in runs if run]

    def between(self, after: str, last: str | None) -> Iterator[str]:
        """Yield the names after one, up to another or to the end."""
        return heapq.merge(*(_part(run, after, last) for run in self._runs))


class PageOfHeld:
    """A page, while it is made."""

    def __init__(self, query: HeldQuery) -> None:
        self._query = query
        self._held: list[Held] = []
        self._looked_at = self._bytes = 0
        self._reached = query.after
        """The last name that was looked at."""

    @property
    def room(self) -> int:
        """How many leases are to be read next; 0 if it is over."""
        if self._looked_at >= LOOKED_AT_MAX or self._bytes >= READ_BYTES_MAX:
            return 0
        return min(LEASES_AT_ONCE, self._query.limit - len(self._held))

    def add(self, holds: list[Hold], grants: Grants) -> None:
        """Put in those that are wanted."""
        self._bytes += grants.bytes
        self._looked_at += len(holds)
        for name, seq, _ in holds:
            lease = grants.leases[seq, name]
            if suits(self._query, lease):
                # A grant that was made up has no number that a record has.
                self._held.append(Held(name, lease, max(seq, 0)))
            self._reached = name

    def ended(self, *, is_all: bool) -> HeldPage:
        """Return the page."""
        return HeldPage(self._held, None if is_all else self._reached)


class Grants:
    """The leases of some holds, while they are read from the records that granted them."""

    def __init__(self, holds: list[Hold]) -> None:
        self.leases: dict[tuple[int, str], Lease] = {}
        self.bytes = 0
        self._names: dict[int, set[str]] = {}
        bodies: dict[int, bytes] = {}
        for name, seq, body in holds:
            self._names.setdefault(seq, set()).add(name)
            if body is not None:
                bodies[seq] = body
        for seq, body in bodies.items():
            self._take(seq, record_in(body).event, len(body))
        self.missing = sorted(seq for seq in self._names if seq not in bodies)
        """The numbers of those that the archive has."""

    def take(self, seq: int, data: bytes) -> str | None:
        """Read a record of the archive, as a batch of its own. Return what is wrong with it, if anything is."""
        (record,) = decode_batch(data)
        self._take(seq, record.event, len(data))
        lacking = next((name for name in self._names[seq] if (seq, name) not in self.leases), None)
        return None if lacking is None else f"record {seq} did not grant {lacking}"

    def _take(self, seq: int, event: Event, size_bytes: int) -> None:
        names = self._names[seq]
        self.leases.update(((seq, name), lease) for name, lease in grants_of(event) if name in names)
        self.bytes += size_bytes


def all_held(names: Iterable[str], holds: Iterable[Hold], tail: TailHolds) -> Iterator[Hold]:
    """Yield who held what by the archive and by the tail, by name. `names` are those that the tail gave, in order."""
    older = (hold for hold in holds if hold[0] not in tail.latest)
    newer = ((name, *said) for name in names if (said := tail.latest[name]) is not None)
    return heapq.merge(older, newer, key=itemgetter(0))


def is_wanted(query: HeldQuery, name: str) -> bool:
    """Tell whether a name is asked for."""
    return name.startswith(query.prefix) and (query.after is None or name > query.after)


def _part(run: list[str], after: str, last: str | None) -> Iterator[str]:
    return islice(run, bisect_right(run, after), len(run) if last is None else bisect_right(run, last))
