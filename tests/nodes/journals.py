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
from holdfast.journal.base import Peer
from holdfast.journal.codec import FORMAT, decode_batch
from holdfast.journal.inspect import as_json
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.knowledge import Knowledge
from holdfast.journal.postgres.schema import Fresh


def peer(node: str, url: str = "") -> Peer:
    """A node of a test, in a process of its own name."""
    return Peer(node=node, process=secrets.token_hex(16), url=url, version="test", format_max=FORMAT, tokens="")


def journal_at(url: str, schema: str, node: str, *, knowledge: Knowledge | None = None, **more: Any) -> PostgresJournal:  # noqa: ANN401 - passed on as it is
    """A journal for one tenure. The store is made if there is none."""
    fresh = Fresh("authority-of-the-test", bytes(32), 0)
    return PostgresJournal(
        url, peer(node), tenure=secrets.token_hex(16), schema=schema, knowledge=knowledge, fresh=fresh, **more
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


class Kept(NamedTuple):
    """One batch, as the store has it."""

    first_seq: int
    last_seq: int
    epoch: int
    records: list[Record]


async def batches(url: str, schema: str) -> list[Kept]:
    """All that is not archived, in order."""
    async with connected(url) as db:
        rows = await db.fetch(f"SELECT first_seq, last_seq, epoch, body FROM {schema}.batch ORDER BY first_seq")
    return [Kept(row["first_seq"], row["last_seq"], row["epoch"], list(decode_batch(row["body"]))) for row in rows]


def kept(url: str, schema: str) -> list[Kept]:
    """The same, for a test without a loop of its own."""
    return asyncio.run(batches(url, schema))


def check_order(found: list[Kept], first_seq: int = 1) -> list[str]:
    """Complaints about the journal itself: numbers without a gap, none twice, and epochs that never fall (I9)."""
    complaints = []
    if found and found[0].first_seq != first_seq:
        complaints.append(f"it begins with {found[0].first_seq}")
    for batch in found:
        numbers = [record.seq for record in batch.records]
        if numbers != list(range(batch.first_seq, batch.last_seq + 1)):
            complaints.append(f"batch {batch.first_seq} to {batch.last_seq} has {numbers}")
    for before, after in pairwise(found):
        if after.first_seq != before.last_seq + 1:
            complaints.append(f"{after.first_seq} follows {before.last_seq}")
        if after.epoch < before.epoch:
            complaints.append(f"{after.first_seq} has epoch {after.epoch}, after {before.epoch}")
    return complaints


def records_of(found: list[Kept]) -> list[Mapping[str, Any]]:
    """The records as the judges of `tests/crash/history.py` want them."""
    return [as_json(record) for batch in found for record in batch.records]


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the test's own."""
    db = await asyncpg.connect(url)
    try:
        yield db
    finally:
        await db.close()
