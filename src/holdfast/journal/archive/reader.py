"""Reads the archive: the state, the history, who held what. On any connection: of a server, or of a look without one.

A connection of its own sees what is committed, as of the beginning of each read. One that is shared with the writer,
as in tests on a disk in memory, sees more: so whoever asks says up to which number the archive counts.
"""

from __future__ import annotations

import contextlib
import heapq
from operator import itemgetter
from typing import TYPE_CHECKING

from holdfast.core.events import Record
from holdfast.journal.archive.file import OPEN, position_of, read_values, segment_of, stretch_of
from holdfast.journal.codec import decode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.journal.archive.file import Position
    from holdfast.journal.base import HeldQuery, Values
    from holdfast.journal.search import Grants, Hold
    from holdfast.journal.store import Row, Store

SOME = 256
_LARGEST_CHARACTER = 0x10FFFF


class Reader:
    """What an archive holds."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def position(self) -> Position:
        """Tell how far the archive has come."""
        return position_of(self.store)

    def values(self) -> Iterator[Values]:
        """Yield the state, some values at a time, the head first. Raises for rows that are not those written."""
        return read_values(self.store)

    # History.

    def newest_first(self, name: str | None, upto: int, before: int, limit: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield number, wall time and bytes of records up to a number and before another: all, or those of a name."""
        rows: Iterator[tuple[int, int, bytes]]
        if name is None:
            rows = self.store.run("read_history", (upto, before, limit))
        else:
            values: Row = (min(upto, before), name, upto, before, limit)
            rows = self.store.run("read_history_of_name", values)
        return rows

    def oldest_first(self, after: int, upto: int, limit: int) -> Iterator[tuple[int, bytes]]:
        """Yield number and bytes of the records after a number and up to another."""
        rows: Iterator[tuple[int, bytes]]
        rows = self.store.run("read_history_after", (after, upto, limit))
        return rows

    def records(self) -> Iterator[list[Record]]:
        """Yield all records of the history, some at a time."""
        after = -OPEN
        while rows := self.store.some("read_history_after", (after, OPEN, SOME)):
            yield [record for _, body in rows for record in decode_batch(body)]
            after = rows[-1][0]

    def last_by(self, wall_ms: int, upto: int) -> int:
        """Return the number of the last record whose wall time is not later; 0 if there is none."""
        stretch = stretch_of(upto)
        while found := self.store.one("read_stretch_by", (wall_ms, stretch)):
            first, behind = found[0] << 10, (found[0] + 1) << 10
            last = self.store.one("read_last_by", (first, behind, upto, wall_ms))
            if last is not None and last[0] is not None:
                seq: int = last[0]
                return seq
            # What the stretch had of that time was dropped since.
            stretch = found[0] - 1
        return 0

    # Who held what.

    def holds(self, query: HeldQuery, upto: int) -> Iterator[Hold]:
        """Yield who held what by the records up to a number, as of the query's or of the last of them, by name."""
        seq = min(query.seq, upto)
        first = query.prefix if query.after is None else max(query.prefix, _next_after(query.after))
        bounds = (first, _behind(query.prefix))
        living = self.store.run("read_held_now", (*bounds, seq))
        over = (
            self.store.run("read_held_then", (segment, *bounds, seq, seq))
            for (segment,) in self.store.some("read_segments_until", (segment_of(seq), seq))
        )
        return heapq.merge(living, *over, key=itemgetter(0, 1))

    def read_grant(self, seq: int, grants: Grants) -> None:
        """Read the leases that a record granted. Raises if it did not."""
        found = self.store.one("read_body", (seq,))
        problem = f"the grant of record {seq} is missing" if found is None else grants.take(seq, found[0])
        if problem is not None:
            raise self.store.damaged(problem)


@contextlib.contextmanager
def one_instant(store: Store) -> Iterator[Reader]:
    """Give a reader that sees one instant, for as long as the block lasts, and close the store then."""
    try:
        store.db.execute("BEGIN").fetchall()
        reader = Reader(store)
        reader.position()
        yield reader
    finally:
        store.close()


def _next_after(name: str) -> str:
    """Return the first text after a name."""
    return name + "\0"


def _behind(prefix: str) -> str | bytes:
    """Return what stands behind everything that begins so. Behind all texts stands whatever is no text."""
    while prefix:
        last = ord(prefix[-1]) + 1
        if last <= _LARGEST_CHARACTER:
            # Half characters are none.
            return prefix[:-1] + chr(0xE000 if 0xD800 <= last < 0xE000 else last)  # noqa: PLR2004 - Unicode's own
        prefix = prefix[:-1]
    return b""
