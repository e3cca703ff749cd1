"""Journals in a real PostgreSQL for the tests of several nodes, and a look at what the store has of them.

The law of this file: a look at the store goes past all that is tested, by statements of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from holdfast.core.events import Record
from holdfast.journal.codec import FORMAT, decode_batch
from holdfast.journal.interface import Peer
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.leadership import NewAuthority, RollbackDetector
from holdfast.journal.sqlite.inspect import as_json


def peer(node: str, url: str = "") -> Peer:
    """A node of a test, in a process of its own name."""
    return Peer(node=node, process=secrets.token_hex(16), url=url, version="test", format_max=FORMAT, tokens="")


def journal_at(
    url: str,
    schema: str,
    node: str,
    *,
    rollback_detector: RollbackDetector | None = None,
    **more: Any,  # noqa: ANN401 - passed on as it is
) -> PostgresJournal:
    """A journal for one tenure. The store is made if there is none."""
    new_authority = NewAuthority("authority-of-the-test", bytes(32), 0)
    return PostgresJournal(
        url,
        peer(node),
        term_id=secrets.token_hex(16),
        schema=schema,
        rollback_detector=rollback_detector,
        new_authority=new_authority,
        **more,
    )


def through(url: str, port: int) -> str:
    """The same store through something that listens on a port of this machine."""
    parts = urlsplit(url)
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    return urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{port}"))


def address_of(url: str) -> tuple[str, int]:
    """Where the server of a URL listens."""
    parts = urlsplit(url)
    return socket.gethostbyname(parts.hostname or "127.0.0.1"), parts.port or 5432


class ArchivedPart(NamedTuple):
    """One batch, as the store has it."""

    first_seq: int
    last_seq: int
    epoch: int
    records: list[Record]


class Stored(NamedTuple):
    """All that a store has of a journal."""

    upto: int
    """The archive stands for the records up to this one."""
    history: list[Record]
    """Of these, the ones with history value."""
    tail: list[ArchivedPart]
    """What is not archived, or not dropped yet, in order."""

    def complaints(self) -> list[str]:
        """What is wrong with the journal itself: numbers without a gap, none twice, epochs that never fall (I9)."""
        found = []
        if self.tail and self.tail[0].first_seq > self.upto + 1:
            found.append(f"the archive ends with {self.upto}, and the tail begins with {self.tail[0].first_seq}")
        for batch in self.tail:
            numbers = [record.seq for record in batch.records]
            if numbers != list(range(batch.first_seq, batch.last_seq + 1)):
                found.append(f"batch {batch.first_seq} to {batch.last_seq} has {numbers}")
        for before, after in pairwise(self.tail):
            if after.first_seq != before.last_seq + 1:
                found.append(f"{after.first_seq} follows {before.last_seq}")
            if after.epoch < before.epoch:
                found.append(f"{after.first_seq} has epoch {after.epoch}, after {before.epoch}")
        return found

    def records(self) -> list[Mapping[str, Any]]:
        """Every record once, as the judges of `tests/crash/history.py` want them."""
        since = [record for batch in self.tail for record in batch.records if record.seq > self.upto]
        return [as_json(record) for record in [*self.history, *since]]


async def read(url: str, schema: str) -> Stored:
    """Look at a store as of one instant."""
    async with connected(url) as db, db.transaction(isolation="repeatable_read", readonly=True):
        upto = await db.fetchval(f"SELECT upto FROM {schema}.archive")
        history = await db.fetch(f"SELECT body FROM {schema}.history WHERE seq <= $1 ORDER BY seq", upto)
        tail = await db.fetch(f"SELECT first_seq, last_seq, epoch, body FROM {schema}.batch ORDER BY first_seq")
    return Stored(
        upto,
        [record for row in history for record in decode_batch(row["body"])],
        [
            ArchivedPart(row["first_seq"], row["last_seq"], row["epoch"], list(decode_batch(row["body"])))
            for row in tail
        ],
    )


def stored(url: str, schema: str) -> Stored:
    """The same, for a test without a loop of its own."""
    return asyncio.run(read(url, schema))


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the test's own."""
    db = await asyncpg.connect(url)
    try:
        yield db
    finally:
        await db.close()
