"""The history in the archive: the records, which names each concerns, and when a name was held.

A name's row says of a grant until which record it lasted, and of an end which grant it ended. `living` has the grant of
each name that is held: by it an end finds its grant. Most leases begin and end within one step: then nothing of this
is written but the two rows, each once. So rows are gathered in memory and written many at a time, in their order: as
many as a step may hold, in number and in bytes.

The history of a backup, or of a journal of before, begins somewhere, and `put_right` lets the state be right. A lease
that is alive may be older than the history: a grant is made up for it, from the lease as it stands, with a number below
all others. And a grant whose end is missing would live for ever: it has ended by the time that the history begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.core.events import Event, Granted, Record, ends_of, grants_of, names_of, principal_of
from holdfast.core.values import Slot
from holdfast.journal.archive.file import OPEN, places_of, segment_of, stretch_of
from holdfast.journal.codec import decode_batch, encode_batch, history_in

if TYPE_CHECKING:
    from holdfast.core.values import Lease
    from holdfast.journal.archive.shares import Shares
    from holdfast.journal.store import Store

    NameRow = list[int | str | None]
    """As the table has it: segment, name, seq, until, began."""

ROWS_MAX = 32_768
"""How many rows are gathered before they are written."""
BYTES_MAX = 8 * 1024 * 1024
"""How many bytes of records are: small ones are too many rows long before."""
LIVING_MAX = 32 * 1024 * 1024
"""How many bytes of names are remembered as looked at, each with what else is kept for it."""
LOOKED_AT_BYTES = 128
"""What is kept for a name that was looked at, but for the name itself."""

SLOTS = "slots"
"""The table of the state that has the leases."""
SOME = 1_024

_slot_of = msgspec.msgpack.Decoder(Slot).decode
_SEQ, _UNTIL, _BEGAN = 2, 3, 4


class Entries:
    """Enters records, inside a transaction, until `write`."""

    def __init__(self, store: Store, shares: Shares) -> None:
        self._store = store
        self._shares = shares
        self._history: list[tuple[int, int, int, bytes]] = []
        self._bytes = 0
        """How many bytes those have, with their names."""
        self._names: list[NameRow] = []
        self._ends: list[tuple[int, int, str, int]] = []
        """Grants that are written already and have ended: until, and the key of their row."""
        self._living: dict[str, NameRow | int | None] = {}
        """The grant of each name that was looked at: its row, its number once that is written, or None."""
        self._stored: set[str] = set()
        """Of those, the names that `living` has."""
        self._living_bytes = 0
        self._fresh: list[str] = []
        """Names that were granted since the last time that rows were written."""
        self._untils: dict[int, int] = {}
        self._walls_ms: dict[int, int] = {}

    def enter(self, body: bytes) -> None:
        """Enter what has history value of a batch."""
        for frame, record in history_in(body):
            self.keep(record, frame)

    def keep(self, record: Record, body: bytes) -> None:
        """Enter a record."""
        seq, event = record.seq, record.event
        names = names_of(event)
        size_bytes = len(body)
        for name in names:
            size_bytes += len(name.encode())
        number = self._shares.add(principal_of(event), size_bytes)
        self._history.append((seq, record.wall_ms, number, body))
        self._bytes += size_bytes
        stretch = stretch_of(seq)
        if record.wall_ms < self._walls_ms.get(stretch, OPEN):
            self._walls_ms[stretch] = record.wall_ms
        if names:
            self._enter_names(seq, event, names)
        if len(self._history) + len(self._names) >= ROWS_MAX or self._bytes >= BYTES_MAX:
            if self._living_bytes >= LIVING_MAX:
                self.write()
            else:
                self.write_rows()

    def _enter_names(self, seq: int, event: Event, names: tuple[str, ...]) -> None:
        segment = segment_of(seq)
        rows: dict[str, NameRow] = {name: [segment, name, seq, None, None] for name in names}
        for name in ends_of(event):
            self._end(name, seq, rows[name])
        for name, _ in grants_of(event):
            self._begin(name, seq, rows[name])
        self._names.extend(rows.values())
        self._untils.setdefault(segment, 0)

    def hold(self, name: str, seq: int, body: bytes) -> None:
        """Let a name be held by a grant that history does not have."""
        self._store.do("write_grant_kept", [(seq, 1, body)])
        self._names.append([segment_of(seq), name, seq, OPEN, None])
        self._untils.setdefault(segment_of(seq), 0)
        self._living[name] = seq

    def let_go(self, name: str, seq: int, until: int) -> None:
        """Let a name have been held by a grant until a number, though history does not have the end."""
        self._ends.append((until, segment_of(seq), name, seq))
        self._note_until(segment_of(seq), until)
        self._living[name] = None
        self._stored.add(name)

    def _end(self, name: str, seq: int, row: NameRow) -> None:
        held = self._held(name)
        self._living[name] = None
        if held is None:
            return
        if isinstance(held, list):
            began: int = held[_SEQ]  # type: ignore[assignment] # a number, in each row
            held[_UNTIL] = seq
        else:
            began = held
            self._ends.append((seq, segment_of(began), name, began))
        row[_BEGAN] = began
        self._note_until(segment_of(began), seq)

    def _begin(self, name: str, seq: int, row: NameRow) -> None:
        if self._held(name) is not None:
            self._end(name, seq, row)
        row[_UNTIL] = OPEN
        self._living[name] = row
        self._fresh.append(name)

    def _held(self, name: str) -> NameRow | int | None:
        """Return the grant of a name that is held."""
        if name not in self._living:
            found = self._store.one("read_living", (name,))
            if found is not None:
                self._stored.add(name)
            self._living[name] = None if found is None else found[0]
            self._living_bytes += len(name) + LOOKED_AT_BYTES
        return self._living[name]

    def _note_until(self, segment: int, until: int) -> None:
        if until > self._untils.get(segment, 0):
            self._untils[segment] = until

    def write_rows(self) -> None:
        """Write what was gathered, in the order in which it stands in the file."""
        self._store.do("write_history", self._history)
        self._names.sort()
        self._store.do("write_name", self._names)  # type: ignore[arg-type] # a row is a list here, to be changed
        self._store.do("end_name", self._ends)
        living = self._living
        for name in self._fresh:
            held = living[name]
            if isinstance(held, list):
                living[name] = held[_SEQ]  # type: ignore[assignment] # a number, in each row
        self._history, self._names, self._ends, self._fresh = [], [], [], []
        self._bytes = 0

    def write(self) -> None:
        """Write all that is left: rows, who holds what, segments and stretches."""
        self.write_rows()
        held = sorted((name, seq) for name, seq in self._living.items() if seq is not None)
        self._store.do("write_living", held)
        freed = sorted(name for name in self._stored if self._living[name] is None)
        self._store.do("drop_living", [(name,) for name in freed])
        self._store.do("write_segment", sorted(self._untils.items()))
        self._store.do("write_stretch", sorted(self._walls_ms.items()))
        self._living, self._stored, self._living_bytes = {}, set(), 0
        self._untils, self._walls_ms = {}, {}


def put_right(store: Store, entries: Entries, pruned: int) -> None:
    """Compare who holds what by the history with who does by the state, and let the state be right."""
    number = {name: number for number, name in store.some("read_tables")}.get(SLOTS)
    after = ""
    while rows := store.some("read_some_living", (after, SOME)):
        for name, seq in rows:
            lease = None if number is None else _lease_of(store, number, name)
            if lease is None or lease.lease_id != _granted(store, name, seq).lease_id:
                entries.let_go(name, seq, max(pruned, seq + 1))
        after = rows[-1][0]
    entries.write()
    if number is None:
        return
    made_up = -1
    place, behind = places_of(number)
    while rows := store.some("read_state_after", (place, behind, SOME)):
        place = rows[-1][0]
        for _, key, value, _ in rows:
            lease = _slot_of(value).lease
            name = key.decode()
            if lease is not None and store.one("read_living", (name,)) is None:
                record = Record(made_up, 0, lease.granted_wall_ms, Granted(name, lease))
                entries.hold(name, made_up, encode_batch([record]))
                made_up -= 1


def _lease_of(store: Store, number: int, name: str) -> Lease | None:
    found = store.one("read_value", (number, name.encode()))
    return None if found is None else _slot_of(found[0]).lease


def _granted(store: Store, name: str, seq: int) -> Lease:
    found = store.one("read_body", (seq,))
    if found is None:
        raise store.damaged(f"the grant of {name}, record {seq}, is missing")
    (record,) = decode_batch(found[0])
    return dict(grants_of(record.event))[name]
