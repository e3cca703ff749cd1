"""What a step brings, in pieces: rows of the state, and records with their names, many to one row of the store.

A piece takes a few milliseconds of the loop to make and to send. How a grant and its end belong together is found out
by the store, for all of a step at once (`apply_records`): a piece only marks which names a record ended or granted.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from holdfast.core.events import ends_of, grants_of, names_of, principal_of
from holdfast.journal.codec import history_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.core.events import Event, Record
    from holdfast.journal.base import Changes

RECORDS_AT_ONCE = 128
"""How many records of a batch are looked at before others have their turn: about two milliseconds."""
PIECE_ROWS = 512
"""How many rows or names make a piece."""
PIECE_BYTES = 128 * 1024
ENDS, GRANTS = 1, 2
"""What a record did to a name."""

Frames = list[tuple[bytes, "Record"]]


def checksum_of(table: str, key: bytes, value: bytes) -> int:
    """Return the checksum of a row of the state."""
    return crc32(value, crc32(key, crc32(table.encode())))


class ValuesPiece(msgspec.Struct):
    """Some rows of one table, all of one kind: `gone`, `changed` or `new`."""

    table: str
    kind: str
    keys: list[bytes] = []
    values: list[bytes] = []
    checksums: list[int] = []
    size_bytes: int = 0

    def add(self, key: bytes, value: bytes) -> None:
        """Add a row."""
        self.keys.append(key)
        self.values.append(value)
        self.checksums.append(checksum_of(self.table, key, value))
        self.size_bytes += len(key) + len(value)

    def staged(self) -> tuple[object, ...]:
        """Return it as the store takes it."""
        return self.table, self.kind, self.keys, self.values, self.checksums


def values_in_pieces(changes: Iterable[Changes]) -> Iterator[ValuesPiece | None]:
    """Yield what changed in pieces, and None between two parts of the changes: then others may have their turn."""
    piece = ValuesPiece("", "")
    for each in changes:
        for kind, rows in (("gone", [(key, b"") for key in each.gone]), ("changed", each.changed), ("new", each.new)):
            for row in rows:
                if (piece.table, piece.kind) != (each.table, kind) or _is_full(len(piece.keys), piece.size_bytes):
                    if piece.keys:
                        yield piece
                    piece = ValuesPiece(each.table, kind)
                piece.add(*row)
        yield None
    if piece.keys:
        yield piece


def _is_full(rows: int, size_bytes: int) -> bool:
    return rows >= PIECE_ROWS or size_bytes >= PIECE_BYTES


class RecordsPiece(msgspec.Struct):
    """Some records with history value, and a row for each name of each."""

    seqs: list[int] = []
    walls_ms: list[int] = []
    principals: list[bytes] = []
    weights: list[int] = []
    bodies: list[bytes] = []
    names: list[bytes] = []
    name_seqs: list[int] = []
    marks: list[int] = []
    size_bytes: int = 0

    @property
    def is_full(self) -> bool:
        """Whether it should be sent."""
        return _is_full(max(len(self.seqs), len(self.names)), self.size_bytes)

    def add(self, frames: Frames) -> None:
        """Add records, each with its own bytes."""
        for body, record in frames:
            seq, event = record.seq, record.event
            names = [name.encode() for name in names_of(event)]
            weight = len(body) + sum(map(len, names))
            self.seqs.append(seq)
            self.walls_ms.append(record.wall_ms)
            self.principals.append(principal_of(event).encode())
            self.weights.append(weight)
            self.bodies.append(body)
            self.size_bytes += weight
            if names:
                self._add_names(seq, event, names)

    def _add_names(self, seq: int, event: Event, names: list[bytes]) -> None:
        marks = dict.fromkeys(names, 0)
        for name in ends_of(event):
            marks[name.encode()] |= ENDS
        for name, _ in grants_of(event):
            marks[name.encode()] |= GRANTS
        self.names.extend(marks)
        self.marks.extend(marks.values())
        self.name_seqs.extend([seq] * len(marks))

    def staged(self) -> tuple[object, ...]:
        """Return it as the store takes it."""
        rows = (self.seqs, self.walls_ms, self.principals, self.weights, self.bodies)
        return (*rows, self.names, self.name_seqs, self.marks)


def history_in_slices(body: bytes) -> Iterator[Frames]:
    """Read what has history value of a batch, some records at a time: a batch may have all that fell due at once."""
    frames = history_in(body)
    while some := list(islice(frames, RECORDS_AT_ONCE)):
        yield some
