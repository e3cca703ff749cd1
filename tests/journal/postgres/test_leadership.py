"""The leadership in PostgreSQL: who may take it, what a takeover waits for, and what an append costs."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import asyncpg
import pytest

from holdfast.journal.interface import DeposedError, JournalLockedError, JournalUnavailableError
from tests.cluster.proxy import Fate
from tests.journal.records import grants
from tests.journal.shared_stores import PostgresStore, make_peer, postgres_store
from tests.support.checks import wait_until


@asynccontextmanager
async def session(store: PostgresStore) -> AsyncIterator[asyncpg.Connection]:
    """A session of somebody else, straight to the server."""
    db = await asyncpg.connect(store.server.url)
    try:
        yield db
    finally:
        db.terminate()


def test_epoch_alone_is_not_leadership() -> None:
    """A store that repeats an epoch under another term is not ours any more (N-1)."""

    async def scene(store: PostgresStore) -> None:
        leader = store()
        await leader.open()
        await leader.append(grants(1, 1))
        store.sql("UPDATE {s}.seat SET tenure = 'another'")
        for asked in (partial(leader.append, grants(2, 2)), partial(leader.confirm, 1)):
            with pytest.raises(DeposedError):
                await asked()
        assert store.sql("SELECT s.last_seq, count(*) FROM {s}.seat AS s, {s}.batch GROUP BY 1") == "1|1"
        await leader.close()
        assert store.sql("SELECT held FROM {s}.seat") == "t", "a tenure gave back another's seat"

    with postgres_store() as store:
        asyncio.run(scene(store))


@pytest.mark.parametrize("fate", [Fate.BEFORE, Fate.AFTER, Fate.LATE])
def test_late_takeover_deposes_no_leader(fate: Fate) -> None:
    """A takeover whose answer is lost is not guessed at, and its late copy deposes nobody who came since (N-2)."""

    async def scene(store: PostgresStore) -> None:
        leader = store()
        await leader.open()
        await leader.append(grants(1, 1))
        peer = make_peer("unlucky")
        unlucky = store.node(peer)
        unlucky.depose(await unlucky.read_leadership())
        store.proxy.draw = lambda piece: fate if peer.process.encode() in piece else Fate.PASS
        with pytest.raises(JournalUnavailableError):
            await unlucky.open()
        store.proxy.draw = lambda _: Fate.PASS
        lucky = store()
        lucky.depose(await lucky.read_leadership())
        epoch = (await lucky.open()).epoch
        await lucky.append(grants(2, 2))
        await unlucky.close()
        await leader.close()
        # The late copy is there by then: only the connections of the lucky one are left.
        wait_until(lambda: store.proxy.connections <= 3)
        await lucky.append(grants(3, 3))
        leadership = await lucky.read_leadership()
        assert (leadership.epoch, leadership.is_held, leadership.last_seq) == (epoch, True, 3)
        await lucky.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


def test_possible_leadership_is_released() -> None:
    """Who lost the answer of its takeover gives the leadership back when it is closed: it may have it (N-2)."""

    async def scene(store: PostgresStore) -> None:
        peer = make_peer("unlucky")
        unlucky = store.node(peer)
        await unlucky.read_leadership()
        store.proxy.draw = lambda piece: Fate.AFTER if peer.process.encode() in piece else Fate.PASS
        with pytest.raises(JournalUnavailableError):
            await unlucky.open()
        assert store.sql("SELECT held, node FROM {s}.seat") == "t|unlucky"
        await unlucky.close()
        assert store.sql("SELECT held, node FROM {s}.seat") == "f|unlucky"

    with postgres_store() as store:
        asyncio.run(scene(store))


def test_takeover_ends_blocking_sessions() -> None:
    """A takeover that waits for more than a second ends whoever holds the row, and what that did is undone (N-3)."""

    async def scene(store: PostgresStore) -> None:
        leader = store()
        await leader.open()
        await leader.append(grants(1, 1))
        async with session(store) as stopped:
            await stopped.execute("BEGIN")
            await stopped.execute(f"UPDATE {store.schema}.seat SET last_seq = 99")
            successor = store()
            successor.depose(await successor.read_leadership())
            recovered = await successor.open()
            assert [record.seq for record in recovered.records] == [1]
            assert (await successor.read_leadership()).last_seq == 1
            assert stopped.is_closed()
        await successor.append(grants(2, 2))
        await successor.close()
        await leader.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


def test_takeover_ends_a_half_sent_statement() -> None:
    """A leader that was stopped before its last bytes left keeps the row, and a takeover ends it (N-3)."""

    async def scene(store: PostgresStore) -> None:
        leader = store()
        await leader.open()
        with half_sent(store, f"UPDATE {store.schema}.seat SET last_seq = 99"):
            wait_until(lambda: store.sql(WHO_WAITS) == "1")
            successor = store()
            successor.depose(await successor.read_leadership())
            assert (await successor.open()).epoch == 2
            assert (await successor.read_leadership()).last_seq == 0
            await successor.close()
        await leader.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


WHO_WAITS = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%{s}.seat SET last_seq = 99' AND state = 'active'"


def half_sent(store: PostgresStore, statement: str) -> socket.socket:
    """A session that was told to run a statement, and not yet that it may end: no transaction of it is closed."""

    def message(kind: bytes, body: bytes) -> bytes:
        return kind + struct.pack("!I", len(body) + 4) + body

    raw = socket.create_connection((store.server.host, store.server.port))
    hello = struct.pack("!I", 196608) + b"user\0postgres\0database\0postgres\0\0"
    raw.sendall(struct.pack("!I", len(hello) + 4) + hello)
    greeting = b""
    while b"Z\0\0\0\x05I" not in greeting:
        greeting += raw.recv(65536)
    parse = message(b"P", b"\0" + statement.encode() + b"\0" + struct.pack("!h", 0))
    bind = message(b"B", b"\0\0" + struct.pack("!hhh", 0, 0, 0))
    raw.sendall(parse + bind + message(b"E", b"\0" + struct.pack("!I", 0)) + message(b"H", b""))
    return raw


def test_slice_delays_a_takeover_and_no_append() -> None:
    """A lock on the key of the leadership, as archive slices take it, delays a takeover and no append (N-4)."""

    async def scene(store: PostgresStore) -> None:
        leader = store(append_ms=500)
        await leader.open()
        async with session(store) as slicing:
            await slicing.execute("BEGIN")
            await slicing.execute(f"SELECT 1 FROM {store.schema}.seat WHERE epoch = 1 FOR KEY SHARE")
            await leader.append(grants(1, 1))
            await leader.confirm(5)
            async with session(store) as acquiring:
                await acquiring.execute("SET lock_timeout = 100")
                with pytest.raises(asyncpg.LockNotAvailableError):
                    await acquiring.execute(f"UPDATE {store.schema}.seat SET epoch = epoch + 1")
        await leader.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


def test_append_is_a_hot_update() -> None:
    """Appends and confirms are HOT updates: the leadership stays one page, however many there are (N-4)."""

    async def scene(store: PostgresStore) -> None:
        leader = store()
        await leader.open()
        for seq in range(1, 301):
            await leader.append(grants(seq, seq))
            await leader.confirm(seq)
        await leader.close()

    counted = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE schemaname = '{s}' AND relname = 'seat'"
    with postgres_store() as store:
        asyncio.run(scene(store))
        wait_until(lambda: int(store.sql(counted) or 0) >= 602)
        updates, hot = map(int, store.sql(counted.replace("n_tup_upd", "n_tup_upd, n_tup_hot_upd")).split("|"))
        assert hot >= updates - 6, f"{hot} of {updates} updates were made in place"
        assert store.sql("SELECT pg_relation_size('{s}.seat')") == "8192"


def test_leadership_names_the_leader() -> None:
    """A refused node is told who has the leadership (N-2)."""

    async def scene(store: PostgresStore) -> None:
        leader, other = store.node(make_peer("alpha")), store.node(make_peer("beta"))
        await leader.open()
        with pytest.raises(JournalLockedError, match=r"alpha has the seat \(epoch 1\)"):
            await other.open()
        await leader.close()
        await other.open()
        await other.close()

    with postgres_store() as store:
        asyncio.run(scene(store))
