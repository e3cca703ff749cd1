"""The ids of events: by what a reader says where it was.

An id is the number of a record. A store that nodes share can lose its newest records, and then gives their numbers to
others: a reader who saw a lost record 60 would be told what follows another record 60, and miss what it is. So from the
first such loss on an id also counts them:

    records    1 … 50 │ 51 … 60 lost          after a loss: Restored is 51, then 52 …
    ids        1 … 50 │ 51 … 60                             1.51, 1.52 …

Who comes back with `60` has the count 0, and was at or after the record that said `Restored`: it is told to look anew.
Who comes back with `50` misses nothing. Only the last loss is known by its number, so an id of an older count than the
one before it is told to look anew too. (A directory that is restored lets the numbers of records jump instead.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from holdfast.core.state import State

DIGITS_MAX = 16


class Place(msgspec.Struct, frozen=True):
    """Where a reader says that it was: behind which record, and how many losses were known by then."""

    count: int
    seq: int


class Ids(msgspec.Struct, frozen=True):
    """The ids of one tenure: how many losses there were, and the record that told of the last."""

    count: int = 0
    restored_seq: int = 0

    @classmethod
    def of_state(cls, state: State) -> Ids:
        """Return the ids as of a state."""
        return cls(state.restores, state.restored_seq)

    def of(self, seq: int) -> bytes:
        """Return the id of a record."""
        count = self.count if seq >= self.restored_seq else self.count - 1
        return b"%d.%d" % (count, seq) if count > 0 else b"%d" % seq

    def is_known(self, place: Place) -> bool:
        """Tell whether what follows this place is what follows what the reader saw."""
        if place.count == self.count:
            return True
        return place.count == self.count - 1 and place.seq < self.restored_seq


def parse_id(text: str) -> Place:
    """Read an id. Raises `Problem`."""
    count, dot, seq = text.rpartition(".")
    parts = (count, seq) if dot else ("0", seq)
    if not all(part.isascii() and part.isdigit() and len(part) <= DIGITS_MAX for part in parts):
        raise Problem("invalid_input", "after and Last-Event-ID are the number of a record, or the id of an event.")
    return Place(int(parts[0]), int(parts[1]))
