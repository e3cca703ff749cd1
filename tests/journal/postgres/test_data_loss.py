"""What PostgreSQL itself may lose: how it is noticed, who goes on after it, and with which record."""

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest

from holdfast.core.events import Record, Restored
from holdfast.journal.interface import (
    DeposedError,
    JournalLostError,
    JournalUnavailableError,
    OutcomeUnknownError,
)
from holdfast.journal.postgres.leadership import LeadershipTable, RollbackDetector
from tests.journal.records import grants
from tests.journal.shared_stores import PostgresStore, postgres_store
from tests.support.postgres import Postgres, running, standby_of

MARKS = ("system_id", "timeline", "database_oid", "table_oid")


def restored(seq: int) -> list[Record]:
    """The record by which tokens jump, in place."""
    return [Record(seq, seq, 0, Restored(2**32, seq - 1, 0, "test"))]


def marks_in(store: PostgresStore) -> str:
    return store.sql(f"SELECT {', '.join(MARKS)} FROM {{s}}.seat")


async def filled(store: PostgresStore, count: int = 3) -> None:
    journal = store()
    await journal.open()
    await journal.append(grants(1, count))
    await journal.close()


def test_process_detects_rollback_across_terms() -> None:
    """What was durable once is remembered by the process, whichever journal of it wrote it (N-21)."""

    async def scene(store: PostgresStore) -> None:
        rollback_detector = RollbackDetector()
        first = store(rollback_detector=rollback_detector)
        await first.open()
        await first.append(grants(1, 3))
        await first.close()
        await store.lose_records(0)
        again, newcomer = store(rollback_detector=rollback_detector), store()
        for asked in (again.read_leadership, again.open):
            with pytest.raises(JournalLostError, match="went back in time: its last record is 0, and 3 was durable"):
                await asked()
        assert (await newcomer.read_leadership()).last_seq == 0
        await again.close()
        await newcomer.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


@pytest.mark.parametrize(
    "change",
    ["SET epoch = epoch - 1", "SET tenure = 'another'", "SET jumps = jumps - 1"],
)
def test_earlier_leadership_is_refused(change: str) -> None:
    """A leadership with a lower epoch, another term id or fewer token gaps is an earlier one: it is refused (N-21)."""

    async def scene(store: PostgresStore) -> None:
        await filled(store)
        rollback_detector = RollbackDetector()
        watching = store(rollback_detector=rollback_detector)
        await watching.read_leadership()
        store.sql(f"UPDATE {{s}}.seat {change}")
        for asked in (watching.read_leadership, watching.open):
            with pytest.raises(JournalLostError, match="went back in time"):
                await asked()
        await watching.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


@pytest.mark.parametrize(
    ("change", "allow_data_loss"),
    [("SET epoch = epoch - 1", True), ("SET epoch = epoch - 1, wants_jump = true", False)],
)
def test_lost_epoch_is_shown_if_data_loss_is_allowed(change: str, allow_data_loss: bool) -> None:
    """Who may go on after a loss is shown the lower epoch, and that it knew more, at every look (N-23)."""

    async def scene(store: PostgresStore) -> None:
        await filled(store)
        watching = store(allow_data_loss=allow_data_loss)
        before = await watching.read_leadership()
        store.sql(f"UPDATE {{s}}.seat {change}")
        for _ in range(2):
            seen = await watching.read_leadership()
            assert (seen.epoch, seen.is_rolled_back, before.is_rolled_back) == (before.epoch - 1, True, False)
        await watching.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


def test_write_during_a_leadership_read_is_not_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that was read before an append, and arrives after its answer, is no store that went back (N-21)."""

    async def scene(store: PostgresStore) -> None:
        leader = store()
        await leader.open()
        read = LeadershipTable._read

        async def read_slowly(watching: LeadershipTable) -> object:
            row = await read(watching)
            await leader.append(grants(1, 3))
            return row

        with monkeypatch.context() as patch:
            patch.setattr(LeadershipTable, "_read", read_slowly)  # So the answer is late.
            assert (await leader.read_leadership()).last_seq == 0
        await store.lose_records(2)
        with pytest.raises(JournalLostError, match="its last record is 2, and 3 was durable"):
            await leader.read_leadership()
        await leader.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


@pytest.mark.parametrize("mark", MARKS)
def test_store_on_another_server_waits_for_an_operator(mark: str) -> None:
    """On another server, timeline, database or table than the last records were written on nobody goes on (N-23)."""

    async def scene(store: PostgresStore) -> None:
        await filled(store)
        store.sql(f"UPDATE {{s}}.seat SET {mark} = {mark} - 1")
        journal = store()
        assert (await journal.read_leadership()).last_seq == 3
        with pytest.raises(JournalLostError, match=r"(?s)went back in time.*holdfast store restored"):
            await journal.open()
        assert store.sql("SELECT epoch, held FROM {s}.seat") == "1|f"
        await journal.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


@pytest.mark.parametrize(
    ("change", "allow_data_loss"),
    [
        ("wants_jump = true", False),
        ("timeline = timeline - 1, has_standby = true", False),
        ("timeline = timeline - 1", True),
        ("system_id = system_id - 1", True),
    ],
    ids=["an operator said so", "a synchronous standby", "continue", "continue elsewhere"],
)
def test_data_loss_is_the_first_record_of_the_next_term(change: str, allow_data_loss: bool) -> None:
    """Who may go on begins with `Restored`; the marks change with that record and never before (N-22)."""

    async def scene(store: PostgresStore) -> None:
        await filled(store)
        right = marks_in(store)
        store.sql(f"UPDATE {{s}}.seat SET {change}")
        changed = marks_in(store)
        for _ in range(2):
            # One that dies before that record leaves the duty to the next.
            journal = store(allow_data_loss=allow_data_loss)
            recovered = await journal.open()
            assert recovered.needs_token_gap and len(list(recovered.records)) == 3
            await journal.confirm(9)
            with pytest.raises(JournalUnavailableError, match="the first one now has to say so"):
                await journal.append(grants(4, 4))
            assert marks_in(store) == changed
            await journal.close()
        journal = store(allow_data_loss=allow_data_loss)
        assert (await journal.open()).needs_token_gap
        await journal.append(restored(4))
        assert marks_in(store) == right
        assert store.sql("SELECT wants_jump, jumps FROM {s}.seat") == "f|1"
        await journal.append(grants(5, 5))
        await journal.close()
        again = store()
        assert not (await again.open()).needs_token_gap
        await again.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


def test_rollback_detector_resets_after_a_token_gap() -> None:
    """Nodes that knew records which are gone serve nothing until `Restored` is there, and then go on (N-21, N-23)."""

    async def scene(store: PostgresStore) -> None:
        await filled(store, 5)
        rollback_detector = RollbackDetector()
        follower = store(rollback_detector=rollback_detector)
        await follower.read_leadership()
        await store.lose_records(0)
        with pytest.raises(JournalLostError):
            await follower.read_leadership()
        store.sql("UPDATE {s}.seat SET wants_jump = true")
        assert (await follower.read_leadership()).last_seq == 0
        leader = store()
        assert (await leader.open()).needs_token_gap
        await leader.append(restored(1))
        assert (await follower.read_leadership()).last_seq == 1
        assert (rollback_detector.last_seq, rollback_detector.token_gaps) == (1, 1)
        await leader.close()
        await follower.open()
        await follower.append(grants(2, 2))
        await follower.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


def test_allowed_data_loss_continues_after_the_last_seen_record() -> None:
    """With `after_data_loss = "continue"` a node that saw more than the store has adds a token gap and leads (N-23)."""

    async def scene(store: PostgresStore) -> None:
        rollback_detector = RollbackDetector()
        leader = store(rollback_detector=rollback_detector, allow_data_loss=True)
        await leader.open()
        await leader.append(grants(1, 5))
        await store.lose_records(0)
        with pytest.raises(JournalLostError):
            await leader.confirm(1)
        await leader.close()
        again = store(rollback_detector=rollback_detector, allow_data_loss=True)
        again.depose(await again.read_leadership())
        assert (await again.open()).needs_token_gap
        await again.append(restored(1))
        await again.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


@pytest.fixture
def primary() -> Iterator[Postgres]:
    with running("primary") as server:
        yield server


def promote(primary: Postgres, standby: Postgres) -> None:
    """The primary is gone, and its standby takes writes."""
    primary.crash()
    standby.promote()


async def lead(store: PostgresStore, urls: str, **options: object) -> tuple[list[type[Exception] | None], bool]:
    """Append while the database fails over; return what was said, and whether the next term has to jump."""
    leader = store.at(urls, **options)
    await leader.open()
    await leader.append(grants(1, 3))
    said: list[type[Exception] | None] = []
    store.fail_over()
    for asked in (leader.append(grants(4, 4)), leader.confirm(1)):
        try:
            await asked
            said.append(None)
        except (DeposedError, OutcomeUnknownError, JournalLostError) as error:
            said.append(type(error))
    await leader.close()
    successor = store.at(urls, **options)
    try:
        successor.depose(await successor.read_leadership())
        recovered = await successor.open()
        return said, recovered.needs_token_gap
    finally:
        await successor.close()


@pytest.mark.parametrize("is_synchronous", [True, False])
def test_promotion_ends_the_term(primary: Postgres, is_synchronous: bool) -> None:
    """After a promotion the term is over and nothing is sent again; with a synchronous standby the next one jumps and
    goes on, without one it waits for an operator (N-22, N-23).
    """
    with standby_of(primary, "standby") as standby, postgres_store(primary) as store:
        if is_synchronous:
            primary.configure(synchronous_standby_names="'standby'")
            primary.reload()
        urls = primary.url.replace(str(primary.port), f"{primary.port},127.0.0.1:{standby.port}")
        store.fail_over = partial(promote, primary, standby)
        store.server = standby
        if is_synchronous:
            said, needs_token_gap = asyncio.run(lead(store, urls))
            assert needs_token_gap
        else:
            with pytest.raises(JournalLostError, match="another server or timeline"):
                asyncio.run(lead(store, urls))
            said, needs_token_gap = asyncio.run(follow_on(store, urls))
            assert needs_token_gap
        assert said in ([DeposedError, DeposedError], [OutcomeUnknownError, OutcomeUnknownError], []), said


async def follow_on(store: PostgresStore, urls: str) -> tuple[list[type[Exception] | None], bool]:
    """An operator let it go on."""
    successor = store.at(urls, allow_data_loss=True)
    successor.depose(await successor.read_leadership())
    recovered = await successor.open()
    await successor.close()
    return [], recovered.needs_token_gap
