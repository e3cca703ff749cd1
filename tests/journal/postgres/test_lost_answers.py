"""Answers of PostgreSQL that are lost: what is asked then, what is said, and that nothing is ever cancelled."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from holdfast.journal.interface import (
    DeposedError,
    JournalError,
    JournalUnavailableError,
    OutcomeUnknownError,
)
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.writer import Ask
from tests.cluster.proxy import Fate
from tests.journal.records import grants
from tests.journal.shared_stores import PostgresStore, postgres_store
from tests.support.checks import wait_until
from tests.support.postgres import Postgres, running


@pytest.fixture(scope="module")
def own() -> Iterator[Postgres]:
    """A server whose processes may be stopped, and whose settings may be changed."""
    with running() as server:
        yield server


async def last_of(leader: PostgresJournal) -> int:
    return (await leader.read_leadership()).last_seq


def numbers_in(store: PostgresStore) -> list[int]:
    return [int(line) for line in store.sql("SELECT first_seq FROM {s}.batch ORDER BY 1").split()]


def pid_of(leader: PostgresJournal) -> int:
    """The server's process at the other end of the connection that writes."""
    line = leader._writer._connection
    assert line is not None
    return line.pid


def test_stopped_backend_appends_nothing_twice(own: Postgres) -> None:
    """A process of the server that has the append in its socket, and runs it after the verdict, adds nothing (N-7)."""

    async def scene(store: PostgresStore) -> None:
        leader = store(append_ms=200)
        await leader.open()
        for seq in range(1, 6):
            pid = pid_of(leader)
            os.kill(pid, signal.SIGSTOP)
            await leader.append(grants(seq, seq))
            os.kill(pid, signal.SIGCONT)
            await asyncio.to_thread(wait_until, lambda pid=pid: not is_there(pid))
            assert numbers_in(store) == list(range(1, seq + 1))
        await leader.close()

    with postgres_store(own) as store:
        asyncio.run(scene(store))


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_unreachable_store_makes_an_append_unknown() -> None:
    """An append that was sent, and cannot be asked about, is unknown, and so is all that comes after it (N-8)."""

    async def scene(store: PostgresStore) -> None:
        leader = store(append_ms=200, resolve_ms=500)
        await leader.open()
        await leader.append(grants(1, 1))
        store.proxy.hold()
        for _ in range(2):
            with pytest.raises(OutcomeUnknownError):
                await leader.append(grants(2, 2))
        with pytest.raises(OutcomeUnknownError):
            await leader.confirm(1)
        store.proxy.restore()
        await leader.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


@pytest.mark.parametrize("asks", ["append", "confirm"])
@pytest.mark.parametrize("when", ["before", "while it asks"])
def test_hurry_ends_resolving(asks: str, when: str) -> None:
    """A node that is about to end does not wait for a store that is away: the last append is told as unknown (N-8)."""

    async def scene(store: PostgresStore) -> None:
        leader = store(append_ms=200, resolve_ms=3_600_000)
        await leader.open()
        store.proxy.hold()
        if when == "before":
            leader.hurry(0.3)
        pending = asyncio.ensure_future(leader.append(grants(1, 1)) if asks == "append" else leader.confirm(1))
        if when == "while it asks":
            await asyncio.to_thread(wait_until, lambda: leader._writer._resolve_timeout is not None)
            leader.hurry(0.1)
        with pytest.raises(OutcomeUnknownError if asks == "append" else JournalUnavailableError, match="ended"):
            await pending
        store.proxy.restore()
        await leader.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


def test_unsent_append_did_not_happen() -> None:
    """An append while there is no connection, and none can be made, did not happen: the same term goes on (N-8)."""

    async def scene(store: PostgresStore) -> None:
        leader = store(resolve_ms=300)
        await leader.open()
        await leader.append(grants(1, 1))
        store.proxy.cut()
        await asyncio.to_thread(wait_until, lambda: store.proxy.connections == 0)
        with pytest.raises(JournalUnavailableError):
            await leader.confirm(1)
        with pytest.raises(JournalUnavailableError, match="nothing of it was sent"):
            await leader.append(grants(2, 2))
        store.proxy.restore()
        leader._resolve_seconds = 30.0  # Reconnecting may be slow on a busy machine; only the refusals had to be quick.
        recovered = await leader.open()
        assert (recovered.epoch, len(list(recovered.records))) == (1, 1)
        await leader.append(grants(2, 2))
        assert numbers_in(store) == [1, 2]
        await leader.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


def test_timeout_of_the_first_copy_makes_an_append_unknown() -> None:
    """A batch whose only copy was sent while the limit ran out is unknown: it may yet be done, and here it is (N-8)."""

    async def scene(store: PostgresStore) -> None:
        leader = store(append_ms=30_000, resolve_ms=600)
        await leader.open()
        await leader.append(grants(1, 1))
        line = leader._writer._connection
        assert line is not None
        store.proxy.reset()
        await asyncio.to_thread(wait_until, lambda: not line.is_open)

        def hold_the_batch(piece: bytes) -> Fate:
            if b"lease-" in piece:
                store.proxy.hold()
            return Fate.PASS

        store.proxy.draw = hold_the_batch
        for _ in range(2):
            with pytest.raises(OutcomeUnknownError):
                await leader.append(grants(2, 2))
        store.proxy.restore()
        await asyncio.to_thread(wait_until, lambda: numbers_in(store) == [1, 2])
        await leader.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


@pytest.mark.parametrize(
    ("deny", "allow"),
    [
        ("REVOKE INSERT ON {s}.batch FROM {r}", "GRANT INSERT ON {s}.batch TO {r}"),
        (
            "ALTER TABLE {s}.batch ADD CHECK (last_seq < 2 OR 1 / (last_seq - 2) > 0)",
            "ALTER TABLE {s}.batch DROP CONSTRAINT batch_last_seq_check",
        ),
    ],
    ids=["42501", "22012"],
)
def test_refused_append_did_not_happen(deny: str, allow: str) -> None:
    """An error that comes before the commit, to the only copy, says that nothing happened; the term goes on (N-8)."""
    role = "writer_of_tests"

    async def scene(store: PostgresStore) -> None:
        leader = store()
        await leader.open()
        await leader.append(grants(1, 1))
        store.sql(deny.replace("{r}", role))
        with pytest.raises(JournalUnavailableError):
            await leader.append(grants(2, 2))
        store.sql(allow.replace("{r}", role))
        assert (await leader.open()).epoch == 1
        await leader.append(grants(2, 2))
        assert numbers_in(store) == [1, 2]
        await leader.close()

    with postgres_store(user=role) as store:
        asyncio.run(scene(store))


def test_lost_answer_and_lost_leadership_are_unknown() -> None:
    """An answer that is lost, and then the leadership: nobody may say that nothing happened (N-12)."""

    async def scene(store: PostgresStore, fate: Fate) -> tuple[bool, object]:
        """Return whether the leadership was lost before the leader asked, and what became of the append."""
        leader = store(append_ms=300)
        leader.depose(await leader.read_leadership())
        await leader.open()
        seq = await last_of(leader) + 1
        others = store()
        leadership = await others.read_leadership()
        others.depose(leadership)
        store.proxy.draw = lambda piece: fate if b"lease-" in piece else Fate.PASS
        store.proxy.delay_seconds = 0.02
        appending = asyncio.ensure_future(leader.append(grants(seq, seq)))
        wait_for = {Fate.BEFORE: seq - 1, Fate.LATE: seq - 1, Fate.AFTER: seq}[fate]
        await asyncio.to_thread(wait_until, lambda: store.proxy.fates[fate] > 0, every_seconds=0.001)
        # The leadership goes to another before the leader can ask: past the proxy, by the write that a takeover is.
        takeover = "UPDATE {s}.seat SET epoch = epoch + 1, tenure = 'x', held = false"
        is_lost = store.sql(f"{takeover} WHERE last_seq = {wait_for} RETURNING epoch") != ""
        store.proxy.draw = lambda _: Fate.PASS
        outcome = (await asyncio.gather(appending, return_exceptions=True))[0]
        await others.close()
        await leader.close()
        store.proxy.delay_seconds = 0
        return is_lost, outcome

    for fate in (Fate.BEFORE, Fate.LATE):
        with postgres_store() as store:
            # On a busy machine the late copy can arrive before the takeover: then the append is simply done.
            while not (result := asyncio.run(scene(store, fate)))[0]:
                assert result[1] is None
            assert type(result[1]) is OutcomeUnknownError


def test_no_row_to_the_only_copy_is_deposed() -> None:
    """If no answer was lost, a batch that found the leadership gone did not happen, and that is said (N-12)."""

    async def scene(store: PostgresStore) -> None:
        leader, other = store(), store()
        await leader.open()
        other.depose(await other.read_leadership())
        await other.open()
        for _ in range(2):
            with pytest.raises(DeposedError):
                await leader.append(grants(1, 1))
        with pytest.raises(DeposedError):
            await leader.open()
        await leader.close()
        await other.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


def test_cancelled_append_is_unknown() -> None:
    """If the task of an append is cancelled, the statement is not: what became of it is unknown (N-10)."""

    async def scene(store: PostgresStore) -> None:
        leader = store()
        await leader.open()
        store.proxy.delay_seconds = 0.1
        passed = store.proxy.fates[Fate.PASS]
        appending = asyncio.ensure_future(leader.append(grants(1, 1)))
        await asyncio.to_thread(wait_until, lambda: store.proxy.fates[Fate.PASS] > passed, every_seconds=0.001)
        appending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await appending
        store.proxy.delay_seconds = 0
        with pytest.raises(OutcomeUnknownError):
            await leader.append(grants(1, 1))
        await leader.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


def waiting_for_replica(own: Postgres) -> str:
    return own.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")


@pytest.mark.parametrize("how", ["nothing", "pg_cancel_backend", "pg_terminate_backend"])
def test_commit_without_a_replica_is_never_acknowledged(own: Postgres, how: str) -> None:
    """While a synchronous standby is away nothing is answered, whoever cancels or ends the wait for it (N-10)."""

    async def scene(store: PostgresStore) -> None:
        leader = store(append_ms=400, resolve_ms=1200)
        await leader.open()
        await leader.append(grants(1, 1))
        wait_for_standby(own, "nobody")
        appending = asyncio.ensure_future(leader.append(grants(2, 2)))
        await asyncio.to_thread(wait_until, lambda: waiting_for_replica(own) != "0", every_seconds=0.01)
        if how != "nothing":
            end = f"SELECT {how}(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            await asyncio.to_thread(own.sql, end)
        with pytest.raises(OutcomeUnknownError):
            await appending
        if how == "nothing":
            assert own.sql(f"SELECT last_seq FROM {store.schema}.seat") == "1", "a wait was cancelled"
        wait_for_standby(own, "")
        await asyncio.to_thread(wait_until, lambda: waiting_for_replica(own) == "0")
        assert numbers_in(store) == [1, 2]
        await leader.close()

    with postgres_store(own) as store:
        try:
            asyncio.run(scene(store))
        finally:
            wait_for_standby(own, "")


def wait_for_standby(own: Postgres, name: str) -> None:
    """Let every commit wait for a standby of this name, or for none."""
    own.configure(synchronous_standby_names=f"'{name}'")
    own.reload()


def test_crashed_server_is_asked_again(own: Postgres) -> None:
    """After a crash and restart of the server the same term goes on, and nothing is lost or twice (N-7, N-9)."""

    async def scene(store: PostgresStore) -> None:
        leader = store()
        await leader.open()
        for seq in range(1, 40):
            appending = asyncio.ensure_future(leader.append(grants(seq, seq)))
            if seq % 20 == 10:
                own.crash()
                own.start()
            await appending
        leadership = await leader.read_leadership()
        assert (leadership.epoch, leadership.last_seq, numbers_in(store)) == (1, 39, list(range(1, 40)))
        await leader.close()

    with postgres_store(own) as store:
        asyncio.run(scene(store))


@pytest.mark.parametrize(("is_deposed", "expected"), [(False, "JournalDamagedError"), (True, "DeposedError")])
def test_damage_is_reported_only_by_the_leader(is_deposed: bool, expected: str) -> None:
    """What a deposed node finds missing is no damage: it is told that the leadership is another's (N-2)."""

    class Slow(PostgresJournal):
        async def _read_tail(self, ask: Ask) -> tuple[list[bytes], list[tuple[int, dict[str, int]]]]:
            store.sql("DELETE FROM {s}.batch")
            if is_deposed:
                store.sql("UPDATE {s}.seat SET epoch = epoch + 1, tenure = 'x'")
            return await super()._read_tail(ask)

    async def scene() -> str:
        leader = store()
        await leader.open()
        await leader.append(grants(1, 3))
        await leader.close()
        slow = store(kind=Slow)
        try:
            await slow.open()
        except JournalError as error:
            return type(error).__name__
        finally:
            await slow.close()
        return "nothing"

    with postgres_store() as store:
        assert asyncio.run(scene()) == expected
