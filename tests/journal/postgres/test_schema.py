"""The tables in PostgreSQL: made once, by one, whole; refused where they are not ours, gone, or too new."""

import asyncio
import uuid

import msgspec
import pytest

from holdfast.journal.codec import FORMAT
from holdfast.journal.interface import (
    JournalDamagedError,
    JournalError,
    JournalLockedError,
    JournalLostError,
    JournalTooNewError,
    JournalUnavailableError,
)
from holdfast.journal.postgres.connection import statements
from holdfast.journal.postgres.leadership import RollbackDetector
from tests.journal.records import grants
from tests.journal.shared_stores import PostgresStore, make_peer, postgres_store

ROLE = "owner_of_tests"


def test_concurrent_nodes_create_one_authority(caplog: pytest.LogCaptureFixture) -> None:
    """Of several nodes that start at once on an empty store one makes the authority, and all find the same (N-6).

    The log of none names another.
    """

    async def scene(store: PostgresStore) -> None:
        nodes = [store() for _ in range(8)]
        leaderships = await asyncio.gather(*(node.read_leadership() for node in nodes))
        keys = await asyncio.gather(*(node.key() for node in nodes))
        assert len({leadership.authority for leadership in leaderships}) == 1 and len(set(keys)) == 1
        assert store.sql("SELECT count(*) FROM {s}.authority") == "1"
        log_texts = [line for line in caplog.messages if "had no store" in line or "has no store" in line]
        assert sum("it was made now" in line for line in log_texts) == 1
        assert all(line.endswith(f"as authority {leaderships[0].authority}") for line in log_texts)
        opened = await asyncio.gather(*(node.open() for node in nodes), return_exceptions=True)
        assert sum(not isinstance(each, JournalLockedError) for each in opened) == 1
        for node in nodes:
            await node.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


def test_node_without_a_new_authority_creates_nothing() -> None:
    """Whoever only looks finds no store, says what to do, and leaves no table behind (N-6)."""

    async def scene(store: PostgresStore) -> None:
        journal = store(new_authority=None)
        with pytest.raises(JournalUnavailableError, match="holdfast store init"):
            await journal.read_leadership()
        await journal.close()

    with postgres_store() as store:
        asyncio.run(scene(store))
        assert store.sql("SELECT to_regnamespace('{s}') IS NULL") == "t"


def test_missing_authority_is_not_recreated() -> None:
    """A process that knew an authority, and finds none or another, serves nothing and makes nothing (N-6, N-21)."""

    async def scene(store: PostgresStore) -> None:
        rollback_detector = RollbackDetector()
        leader = store(rollback_detector=rollback_detector)
        await leader.open()
        await leader.append(grants(1, 1))
        await leader.close()
        store.sql("DROP SCHEMA {s} CASCADE")
        again = store(rollback_detector=rollback_detector)
        for _ in range(2):
            with pytest.raises(JournalLostError, match="has no authority"):
                await again.read_leadership()
        with pytest.raises(JournalLostError, match="has no authority"):
            await again.open()
        assert store.sql("SELECT to_regnamespace('{s}') IS NULL") == "t"
        newcomer = store()
        await newcomer.read_leadership()
        with pytest.raises(JournalLostError, match="has the authority"):
            await again.read_leadership()
        await again.close()
        await newcomer.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


def test_role_needs_no_rights_but_its_schema() -> None:
    """A role that owns an empty schema, and may create none, can do all that a node does (N-6, N-24)."""

    async def scene(store: PostgresStore) -> None:
        journal, other = store(), store()
        await journal.open()
        await journal.append(grants(1, 3))
        await journal.archive(3, b"head", [], 0)
        await journal.report(make_peer("a"))
        assert [peer.node for peer in await other.peers()] == ["a"]
        other.depose(await other.read_leadership())
        assert (await other.open()).epoch == 2
        await other.close()
        await journal.close()

    with postgres_store(user=ROLE) as store:
        asyncio.run(scene(store))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("UPDATE {s}.authority SET schema_version = 99", JournalTooNewError),
        (f"UPDATE {{s}}.seat SET format = {FORMAT + 1}", JournalTooNewError),
        ("DELETE FROM {s}.seat", JournalDamagedError),
        ("DELETE FROM {s}.authority", JournalDamagedError),
        ("UPDATE {s}.authority SET id = 'other'", JournalDamagedError),
    ],
)
def test_unreadable_store_is_left_unchanged(change: str, error: type[JournalError]) -> None:
    """A node that is too old or too new for what is stored, or finds half of it, takes no leadership (N-36)."""

    async def scene(store: PostgresStore) -> None:
        journal = store()
        await journal.read_leadership()
        store.sql(change)
        for asked in (journal.read_leadership, journal.open):
            with pytest.raises(error) as caught:
                await asked()
            assert type(caught.value) is error
        await journal.close()

    with postgres_store() as store:
        asyncio.run(scene(store))
        assert store.sql("SELECT count(*) FROM {s}.seat WHERE epoch > 0") == "0"


def test_newer_format_waits_for_older_nodes() -> None:
    """A node with a newer format acquires the leadership only once no live node has an older one (N-36)."""

    async def scene(store: PostgresStore) -> None:
        old, new = store.node(make_peer("old")), store.node(make_peer("new"))
        await old.read_leadership()
        store.sql(f"UPDATE {{s}}.seat SET format = {FORMAT - 1}")
        await old.report(msgspec.structs.replace(old._peer, format_max=FORMAT - 1))
        await new.report(new._peer)
        with pytest.raises(JournalLockedError, match="Upgrade every node first"):
            await new.open()
        await old.close()
        assert (await new.open()).epoch == 1
        assert (await new.read_leadership()).format == FORMAT
        await new.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


def test_silent_nodes_are_deleted() -> None:
    """A node that has told nothing for a day is forgotten, and one that ends leaves at once: the table has a bound."""

    async def scene(store: PostgresStore) -> None:
        one, two = store.node(make_peer("one")), store.node(make_peer("two"))
        await one.read_leadership()
        await one.report(one._peer)
        await two.report(two._peer)
        store.sql("INSERT INTO {s}.node SELECT 'gone', 'p', '', '', 4, '', now() - interval '25 hours'")
        assert {peer.node for peer in await one.peers()} == {"one", "two", "gone"}
        await one.report(one._peer)
        assert [peer.node for peer in await one.peers()] == ["one", "two"]
        assert all(0 <= peer.seen_ms_ago < 60_000 for peer in await one.peers())
        await two.close()
        assert [peer.node for peer in await one.peers()] == ["one"]
        await one.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


@pytest.mark.parametrize("name", ["", "1a", "A", "a-b", 'a"; DROP TABLE x; --', "a" * 64, "a.b", "ä"])
def test_name_of_a_schema_is_nothing_else(name: str) -> None:
    """What is put into the statements can only be the name of a schema."""
    with pytest.raises(ValueError, match="no name for a schema"):
        statements(name)
    with postgres_store() as store, pytest.raises(JournalError, match="no name for a schema"):
        store(schema=name)


def test_every_statement_is_for_its_schema() -> None:
    """No statement is left with the place of its schema open, and none names a table without one."""
    found = statements("other")
    assert len(found) > 20 and not any("{s}" in sql for sql in found.values())
    assert "other.seat" in found["append"] and "other.batch" in found["append"]


@pytest.mark.parametrize("secret", [None, b"a secret of the operator's"])
def test_key_is_made_once_and_sealed_by_a_secret(secret: bytes | None) -> None:
    """The authority's key stands in the store: as it is, or so that nobody reads it who has no secret (N-6)."""

    async def scene(store: PostgresStore) -> None:
        one, two = store(secret=secret), store(secret=secret)
        key = await one.key()
        assert (await two.open()).key == key
        stored = bytes.fromhex(store.sql("SELECT encode(key, 'hex') FROM {s}.authority"))
        assert (key in stored) == (secret is None)
        newcomer = store(secret=None if secret else b"another")
        with pytest.raises(JournalError, match="store_secret_file"):
            await newcomer.key()
        with pytest.raises(JournalError):
            await newcomer.open()
        for journal in (two, one, newcomer):
            await journal.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


def test_authority_never_changes() -> None:
    """What a second node would make of the authority is not taken: the first one counts (N-6)."""

    async def scene(store: PostgresStore) -> None:
        one, two = store(), store()
        first = await one.read_leadership()
        assert uuid.UUID(first.authority).hex == first.authority
        assert (await two.read_leadership()).authority == first.authority
        await one.close()
        await two.close()

    with postgres_store() as store:
        asyncio.run(scene(store))
