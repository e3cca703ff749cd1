"""A small state that is known from the number of its last record, and what changes between two numbers.

So whatever a journal gives back can be judged: the archive reaches up to a number, and its values are those of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

from holdfast.core.events import Record
from holdfast.journal.codec import encode_batch
from holdfast.journal.interface import HEAD, Changes, Journal
from tests.contract.tools import Tables
from tests.journal.records import WALL_MS

EVERY = 7
"""After how many records there is another row."""
ROWS = 9
"""How many there are at once: the eldest goes."""


def head_at(upto: int, records: list[Record] | None = None) -> bytes:
    """The head says how far the archive reaches, and the sum of all records up to there."""
    state = 0
    for record in (records or [])[:upto]:
        state = crc32(encode_batch([record]), state)
    return b"%d %d" % (upto, state)


def rows_at(upto: int) -> dict[bytes, bytes]:
    """The rows as of a number: some of them change with every number, and some are large."""
    last = upto // EVERY
    return {b"row/%d" % row: _value(row, upto) for row in range(max(0, last - ROWS), last)}


def _value(row: int, upto: int) -> bytes:
    return b"%d at %d " % (row, upto if row % 2 else 0) + bytes([row % 251]) * (400 * (row % 7))


def changes(before: int, upto: int) -> Iterator[Changes]:
    """What changes between two numbers, in small pieces."""
    old, new = rows_at(before), rows_at(upto)
    yield Changes("rows", gone=[key for key in old if key not in new])
    for key, value in new.items():
        if key in old and old[key] != value:
            yield Changes("rows", changed=[(key, value)])
    for key, value in new.items():
        if key not in old:
            yield Changes("rows", new=[(key, value)])


def tables_at(upto: int, records: list[Record] | None = None) -> Tables:
    """All of it, as `tables_of` puts it together."""
    if not upto:
        return {}
    tables: Tables = {HEAD: [(b"", head_at(upto, records))]}
    return {**tables, "rows": list(rows_at(upto).items())} if rows_at(upto) else tables


def upto_of(tables: Tables) -> int:
    """How far an archive reaches, by its own word."""
    return int(tables[HEAD][0][1].split()[0]) if tables else 0


async def archive(
    journal: Journal, before: int, upto: int, records: list[Record] | None = None, wall_ms: int = WALL_MS
) -> None:
    """Bring the archive up to a number from the one before."""
    await journal.archive(upto, head_at(upto, records), changes(before, upto), wall_ms)
