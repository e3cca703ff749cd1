"""What of the history goes: what is too old, then what is too much, the eldest of whoever has left the most first.

The newest record is never too old: it says since when nothing happened.

A grant that goes while its lease lives, or while its end is kept, is kept beside the history: who held what at a moment
is answered from it. It goes for good with its end.

One step drops a bounded number. Where more is to go, because somebody lowered a limit, the next steps go on with it.
Records may have megabytes each: so what is read of them at once is bounded in bytes too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.events import grants_of, names_of
from holdfast.journal.archive.file import OPEN, segment_of
from holdfast.journal.archive.shares import eldest_of_the_largest, weight_of
from holdfast.journal.codec import decode_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.core.events import Event
    from holdfast.journal.archive.shares import Shares
    from holdfast.journal.base import Keeping
    from holdfast.journal.store import Store

STEP_MAX = 200_000
"""How many records one step drops at most."""
SOME = 4_096
"""How many are dropped together: of most leases, grant and end are both among them."""
SOME_BYTES = 8 * 1024 * 1024
"""After how many bytes of records no more are added to those: small ones are too many long before."""
STRETCHES = 256


class Going(NamedTuple):
    """A record that is to go."""

    seq: int
    who: int
    body: bytes


class Pruning:
    """Drops records, inside a transaction."""

    def __init__(self, store: Store, shares: Shares, keeping: Keeping) -> None:
        self._store = store
        self._shares = shares
        self._keeping = keeping
        self._left = STEP_MAX
        self.newest = 0
        """The newest that was dropped."""

    def prune(self, wall_ms: int) -> None:
        """Drop what is too old or too much."""
        shares, keeping = self._shares, self._keeping
        newest = self._store.one("read_newest_wall")
        if newest is not None:
            # Never the newest: it says since when nothing happened, and who held what since then.
            self._drop_overdue(min(wall_ms - keeping.wall_ms, newest[0]))
        self._drop_excess(lambda: shares.records() - keeping.records_max, lambda _: 1, by_bytes=False)
        self._drop_excess(lambda: shares.bytes() - keeping.bytes_max, _weight_of, by_bytes=True)
        if self.newest:
            self._drop_empty()

    def _drop_overdue(self, overdue_ms: int) -> None:
        while self._left > 0 and (stretches := self._store.some("read_overdue_stretches", (overdue_ms, STRETCHES))):
            for (stretch,) in stretches:
                first, behind = stretch << 10, (stretch + 1) << 10
                bounds = (first, behind, overdue_ms, SOME)
                rows = self._store.some_bytes("read_overdue_history", bounds, SOME_BYTES)
                self._forget([Going(*row) for row in rows])
                earliest = self._store.one("read_earliest", (first, behind))
                if earliest is None or earliest[0] is None:
                    self._store.do("drop_stretch", [(stretch,)])
                else:
                    self._store.do("change_stretch", [(earliest[0], stretch)])

    def _drop_excess(self, excess: Callable[[], int], weigh: Callable[[Going], int], *, by_bytes: bool) -> None:
        while self._left > 0 and (too_much := excess()) > 0:
            some = self._eldest_of_the_largest(too_much, weigh, by_bytes=by_bytes)
            if not some:
                return
            self._forget(some)

    def _eldest_of_the_largest(self, excess: int, weigh: Callable[[Going], int], *, by_bytes: bool) -> list[Going]:
        seen: dict[int, Going] = {}
        size_bytes = 0

        def eldest(who: str) -> Iterator[tuple[int, int]]:
            # One by one: of each who is asked, no more is read than what goes.
            nonlocal size_bytes
            number = self._shares.by_name[who].number
            for seq, body in self._store.run("read_eldest_of", (number,)):
                if size_bytes >= SOME_BYTES:
                    return
                going = seen[seq] = Going(seq, number, body)
                size_bytes += len(body)
                yield seq, weigh(going)

        sums = [(share.name, share.bytes if by_bytes else share.records) for share in self._shares.by_name.values()]
        chosen = eldest_of_the_largest(sums, eldest, excess, min(SOME, self._left))
        return [seen[seq] for seq in sorted(chosen)]

    def _forget(self, some: list[Going]) -> None:
        """Drop records, with their names, but keep the grants that are needed."""
        if not some:
            return
        seqs = {going.seq for going in some}
        names: list[tuple[int, str, int]] = []
        kept: list[tuple[int, int, bytes]] = []
        ends: dict[int, list[str]] = {}
        for going in some:
            (record,) = decode_batch(going.body)
            needed = self._forget_names(going.seq, record.event, seqs, names, ends)
            if needed:
                kept.append((going.seq, needed, going.body))
            self._shares.drop(going.who, weight_of(record, going.body))
        for began, ended in ends.items():
            self._ends_go(began, ended, names)
        self._store.do("drop_name", sorted(names))
        self._store.do("write_grant_kept", kept)
        self._store.do("drop_history", [(going.seq,) for going in some])
        self.newest = max(self.newest, *seqs)
        self._left -= len(some)

    def _forget_names(
        self, seq: int, event: Event, going: set[int], names: list[tuple[int, str, int]], ends: dict[int, list[str]]
    ) -> int:
        """Note which rows of names go with a record, and which it ended. Return for how many it is still needed."""
        segment = segment_of(seq)
        granted = {name for name, _ in grants_of(event)}
        needed = 0
        for name in dict.fromkeys(names_of(event)):
            found = self._store.one("read_name", (segment, name, seq))
            until, began = found or (None, None)
            if began is not None and began not in going:
                ends.setdefault(began, []).append(name)
            if name in granted and until is not None and self._is_needed(until, going):
                needed += 1
            else:
                names.append((segment, name, seq))
        return needed

    def _is_needed(self, until: int, going: set[int]) -> bool:
        """Tell whether a grant is needed: it lives, or its end is kept."""
        return until == OPEN or (until not in going and self._store.one("has_history", (until,)) is not None)

    def _ends_go(self, began: int, ended: list[str], names: list[tuple[int, str, int]]) -> None:
        """Let go of a grant for some of its names, if it was kept for the sake of their ends.

        For all of them at once: to change the number of its names is to write it anew, and it may have megabytes.
        """
        found = self._store.one("read_grant_kept", (began,))
        if found is None:
            return
        names.extend((segment_of(began), name, began) for name in ended)
        if found[0] > len(ended):
            self._store.do("change_grant_kept", [(found[0] - len(ended), began)])
        else:
            self._store.do("drop_grant_kept", [(began,)])

    def _drop_empty(self) -> None:
        """Drop the eldest stretches and segments that have nothing any more."""
        first = self._store.one("read_first_history")
        if first is not None and first[0] is not None:
            self._store.do("drop_stretches_before", [(first[0] >> 10,)])
        for (segment,) in self._store.some("read_segments"):
            if self._store.one("has_names", (segment,)) is not None:
                return
            self._store.do("drop_segment", [(segment,)])


def _weight_of(going: Going) -> int:
    (record,) = decode_batch(going.body)
    return weight_of(record, going.body)
