"""Whether an archive holds together: its history, what is known of each name, and who is said to hold what.

Everything is walked once, in the order of the file. Each row is looked for where it must be, and all rows are counted.
If each is where it must be, and there are no more than that, nothing is missing and nothing is left over. Nothing is
changed. Whose archive it is and how far it reaches is not looked at here, nor the values of the state.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.events import ends_of, grants_of, names_of, principal_of
from holdfast.core.values import Slot
from holdfast.journal.archive.file import OPEN, segment_of, stretch_of
from holdfast.journal.archive.shares import weight_of
from holdfast.journal.base import JournalDamagedError
from holdfast.journal.codec import decode_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from holdfast.core.events import Record
    from holdfast.core.values import Lease
    from holdfast.journal.base import Values
    from holdfast.journal.store import Store

SLOTS = "slots"
"""The table of the state that has the leases."""

_slot_of = msgspec.msgpack.Decoder(Slot).decode


def held_in(values: Iterable[Values]) -> dict[str, int]:
    """Return the fencing token of each name that is held by these rows of the state."""
    return {
        key.decode(): lease.token
        for each in values
        if each.table == SLOTS
        for key, value in each.rows
        if (lease := _slot_of(value).lease) is not None
    }


class Check:
    """One walk through an archive. `problem` is told what is wrong, `saw` of every record of the history."""

    def __init__(self, store: Store, problem: Callable[[str], None], saw: Callable[[Record], None]) -> None:
        self._store = store
        self._problem = problem
        self._saw = saw
        self._listed = 0
        """How many rows of names there must be for the history."""
        self._living = 0
        """How many grants are said to live."""

    def everything(self, held: Mapping[str, int] | None) -> None:
        """Look at all there is. `held` has the fencing token of each name that the archived state says is held."""
        with self._noting("the history: "):
            self._history()
        with self._noting("the names: "):
            self._names()
        with self._noting("who holds what: "):
            self._holders(held)

    # The history.

    def _history(self) -> None:
        stretches = dict(self._store.run("read_all_stretches"))
        who = {number: name for number, name, _, _ in self._store.run("read_who")}
        sums: dict[int, tuple[int, int]] = {}
        for seq, wall_ms, by, body in self._store.run("read_all_history"):
            with self._noting(f"history record {seq}: "):
                (record,) = decode_batch(body)
                if (record.seq, record.wall_ms) != (seq, wall_ms):
                    self._problem(f"history record {seq} says that it is record {record.seq}")
                if who.get(by) not in {principal_of(record.event), ""}:
                    self._problem(f"history record {seq} is not counted against whoever left it")
                if stretches.get(stretch_of(seq), OPEN) > wall_ms:
                    self._problem(f"history record {seq} is not found by its time")
                records, size_bytes = sums.get(by, (0, 0))
                sums[by] = (records + 1, size_bytes + weight_of(record, body))
                self._listing(record)
                self._saw(record)
        said = {number: (records, size_bytes) for number, _, records, size_bytes in self._store.run("read_who")}
        if said != sums:
            counted, there = (sum(records for records, _ in each.values()) for each in (said, sums))
            self._problem(f"the history has {there} records, and {counted} are counted against those who left them")

    def _listing(self, record: Record) -> None:
        """A record stands under its names, and there it says what it did to each."""
        names = dict.fromkeys(names_of(record.event))
        granted = {name for name, _ in grants_of(record.event)}
        ends = granted.union(ends_of(record.event))
        self._listed += len(names)
        for name in names:
            row = self._row(record.seq, name)
            if row is None:
                self._problem(f"history record {record.seq} is not listed under its names")
                return
            until, began = row
            if (until is not None) is not (name in granted) or (began is not None and name not in ends):
                self._problem(f"history record {record.seq} is listed under {name} as what it is not")

    # The names.

    def _names(self) -> None:
        """Every end knows its grant, and every grant its end if history has that; and no row is left over."""
        segments = dict(self._store.run("read_all_segments"))
        kept = {seq: names for seq, names, _ in self._store.run("read_all_grants_kept")}
        wanted = self._listed + sum(kept.values())
        rows = 0
        for segment, name, seq, until, began in self._store.run("read_all_names"):
            rows += 1
            if seq in kept:
                kept[seq] -= 1
            self._living += until == OPEN
            if segment != segment_of(seq) or segment not in segments:
                self._problem(f"record {seq} of {name} stands where nobody looks for it")
            elif until not in {None, OPEN} and (segments[segment] < until or not self._ended(seq, name, until)):
                self._problem(f"record {until} does not know that it ended the grant {seq} of {name}")
            if began is not None and ((grant := self._row(began, name)) is None or grant[0] != seq):
                self._problem(f"the grant {began} of {name} does not know that record {seq} ended it")
        if rows != wanted or any(kept.values()):
            self._problem(f"records are listed under {rows} names, and it should be {wanted}")

    def _ended(self, seq: int, name: str, end: int) -> bool:
        """Tell whether a record says that it ended a grant. One that history no longer has says nothing."""
        row = self._row(end, name)
        return self._store.one("has_history", (end,)) is None if row is None else row[1] == seq

    def _row(self, seq: int, name: str) -> tuple[int | None, int | None] | None:
        """Return what a record did to a name: until when what it granted was held, and which grant it ended."""
        row: tuple[int | None, int | None] | None = self._store.one("read_name", (segment_of(seq), name, seq))
        return row

    # Who holds what.

    def _holders(self, held: Mapping[str, int] | None) -> None:
        """The names that are held are those of the state, by the same grants."""
        names: set[str] = set()
        for name, seq in self._store.run("read_all_living"):
            names.add(name)
            row = self._row(seq, name)
            token = next((lease.token for each, lease in self._grants(seq) if each == name), None)
            if row is None or row[0] != OPEN or token is None:
                self._problem(f"{name} is said to be held by record {seq}, which does not say so")
            elif held is not None and held.get(name) != token:
                self._problem(f"{name} is said to be held with token {token}, and the state says {held.get(name)}")
        if len(names) != self._living:
            self._problem(f"{len(names)} names are said to be held, and {self._living} grants to live")
        if held is not None and (unknown := held.keys() - names):
            self._problem(f"{min(unknown)} is held, and its grant is not known")

    def _grants(self, seq: int) -> Sequence[tuple[str, Lease]]:
        found = self._store.one("read_body", (seq,))
        return () if found is None else [each for record in decode_batch(found[0]) for each in grants_of(record.event)]

    @contextlib.contextmanager
    def _noting(self, where: str) -> Iterator[None]:
        try:
            yield
        except JournalDamagedError as error:
            self._problem(f"{where}{error.problem}")
        except ValueError as error:
            self._problem(f"{where}{error}")
