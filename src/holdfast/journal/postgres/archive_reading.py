"""Reading what the archive holds, in slices: of the state, of the history, of the tail. For a start and for a backup.

Each of these is several statements. Whoever calls them sees to it that nothing changes in between: it has just taken
the seat, or reads one instant.
"""

from __future__ import annotations

import asyncio
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

from holdfast.journal.base import HEAD, JournalDamagedError, Values
from holdfast.journal.codec import decode_batch
from holdfast.journal.postgres.archive_pieces import checksum_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from holdfast.core.events import Record
    from holdfast.journal.postgres.driver import Row


class Ask(Protocol):
    """Runs a named statement."""

    async def __call__(self, name: str, *values: object) -> Sequence[Row]:
        """Return its rows."""
        ...


READ_ROWS = 1_024
READ_BYTES = 256 * 1024
RECORDS_AT_ONCE = 256
"""How many records are made before others have their turn."""


async def read_values(ask: Ask, wanted: int) -> AsyncIterator[Values]:
    """Yield the state, some values at a time, the head first. Raises unless all are as written, and so many."""
    count = 0
    for key, value, checksum in await ask("read_head"):
        _check(HEAD, key, value, checksum)
        count += 1
        yield Values(HEAD, [(key, value)])
    table, place = "", 0
    while rows := await ask("read_values", table, place, READ_ROWS, READ_BYTES):
        for table, some in groupby(rows, itemgetter(0)):
            found = list(some)
            for _, _, key, value, checksum in found:
                _check(table, key, value, checksum)
            count += len(found)
            yield Values(table, [(key, value) for _, _, key, value, _ in found])
        place = rows[-1][1]
        await asyncio.sleep(0)
    if count != wanted:
        raise JournalDamagedError(f"the store has {count} values of the state, and {wanted} were written")


def _check(table: str, key: bytes, value: bytes, checksum: int) -> None:
    if checksum_of(table, key, value) != checksum:
        raise JournalDamagedError(f"a value of the table {table} is not the one that was written, in the store")


async def read_batches(ask: Ask, after: int, upto: int) -> AsyncIterator[bytes]:
    """Yield the batches of the tail after a number and up to another. Raises if one is missing."""
    while after < upto:
        rows = await ask("read_batches", after, upto, READ_ROWS, READ_BYTES)
        if not rows or rows[0][0] != after + 1:
            raise JournalDamagedError(f"record {after + 1} is not in the tail, in the store")
        for _, last, body in rows:
            yield body
            after = last


async def read_history(ask: Ask, upto: int) -> AsyncIterator[Sequence[Record]]:
    """Yield the history up to a number, oldest first, some records at a time."""
    after = -(2**62)
    while rows := await ask("read_history_after", after, upto, READ_ROWS, READ_BYTES):
        for _, some in groupby(enumerate(rows), lambda each: each[0] // RECORDS_AT_ONCE):
            yield [record for _, (_, body) in some for record in decode_batch(body)]
            await asyncio.sleep(0)
        after = rows[-1][0]


async def records_of(body: bytes, holding: Sequence[bytes] = ()) -> AsyncIterator[list[Record]]:
    """Yield the records of a batch, some at a time: a batch may have all that fell due at once."""
    records = decode_batch(body, holding)
    while some := list(islice(records, RECORDS_AT_ONCE)):
        yield some
        if len(some) == RECORDS_AT_ONCE:
            await asyncio.sleep(0)
