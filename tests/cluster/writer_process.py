"""A process that takes the seat when it is told to, and appends until it may not: for the ring of the fence.

Run as `python -m tests.cluster.writer_process URL SCHEMA NAME [unlocked]`. On standard input `take` lets it acquire the
leadership as it is now, whoever has it, and `go` lets it append. On standard output it says, a line each: `took EPOCH
LAST_SEQ BACKEND`, `ack LAST_SEQ` for each batch that was made durable, and `end ERROR` when its tenure is over; then it
waits for the next `take`.

With `unlocked` it is a mutant: the seat is looked at in the statement that appends, and not locked by it.
"""

from __future__ import annotations

import asyncio
import sys

from holdfast.journal.interface import JournalError, JournalLockedError, Recovered
from holdfast.journal.postgres import connection
from holdfast.journal.postgres.connection import statements
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.leadership import RollbackDetector
from tests.cluster.journals import journal_at
from tests.journal.records import grants

UNLOCKED = """
WITH mine AS MATERIALIZED (
    SELECT pg_sleep(0.001) FROM {s}.seat WHERE epoch = $1 AND tenure = $5 AND last_seq = $2::bigint - 1 AND $6 >= 0
), moved AS (
    UPDATE {s}.seat SET last_seq = $3, beat = beat + 1 FROM mine
)
INSERT INTO {s}.batch (first_seq, last_seq, epoch, body) SELECT $2, $3, $1, $4 FROM mine RETURNING last_seq
"""
"""The pause makes the gap wider in which another can take the seat. A stopped process is a pause of any length."""


def say(*words: object) -> None:
    print(*words, flush=True)


async def work(url: str, schema: str, name: str) -> None:
    rollback_detector = RollbackDetector()
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        journal = None
        try:
            journal, opened = await take(url, schema, name, rollback_detector)
            seq = max([0, *(record.seq for record in opened.records)])
            line = journal._writer._connection
            say("took", opened.epoch, seq, line.pid if line is not None else 0)
            await loop.run_in_executor(None, sys.stdin.readline)
            while True:
                size = 1 + seq % 3
                await journal.append(grants(seq + 1, seq + size))
                seq += size
                say("ack", seq)
        except JournalError as error:
            say("end", type(error).__name__)
        if journal is not None:
            await journal.close()


async def take(
    url: str, schema: str, name: str, rollback_detector: RollbackDetector
) -> tuple[PostgresJournal, Recovered]:
    """Take the seat; look again while it moves, for the last write of one that was stopped may still arrive."""
    while True:
        journal = journal_at(url, schema, name, rollback_detector=rollback_detector)
        journal.depose(await journal.read_leadership())
        try:
            return journal, await journal.open()
        except JournalLockedError:
            await journal.close()


def main() -> None:
    url, schema, name, *mutant = sys.argv[1:]
    if mutant:
        connection.statements = lambda schema: {**statements(schema), "append": UNLOCKED.replace("{s}", schema)}
    asyncio.run(work(url, schema, name))


if __name__ == "__main__":
    main()
