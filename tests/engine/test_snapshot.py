"""The state as rows of bytes and back, bit for bit, or not at all (I15)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

import pytest

from holdfast.core.commands import Command, CreateToken, OpenSession, RecordUses
from holdfast.core.state import State
from holdfast.engine import engine as engine_module
from holdfast.engine import snapshot
from holdfast.engine.archiver import ArchivePolicy
from holdfast.journal.interface import JournalDamagedError, Values
from tests.engine.harness import GateJournal, SlicedJournal, acquire, picture, release, renew, run, serving, tail, turns
from tests.support.memory_journal import MemoryJournal

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine
    from holdfast.testing.clock import ManualClock


async def _fill(engine: Engine, names: int = 1_100) -> None:
    """Put something of every kind into the state, and more names than one part holds."""
    commands: list[Command] = [
        *(acquire(f"job/{number}", key=f"key-{number}", metadata="é") for number in range(names)),
        *(release(f"job/{number}", key=f"end-{number}") for number in range(0, names, 3)),
        *(renew(f"job/{number}", ttl_ms=1_000 + number, note="half") for number in range(1, names, 3)),
        OpenSession(principal="ana", session_id="s", ttl_ms=60_000, key="s"),
        acquire("bound", session="s", bound=True),
        CreateToken(principal="ana", name="t", digest="d", scopes=("read",), key="t"),
        RecordUses(uses=(("t", 1_750_000_020_000),)),
    ]
    for command in commands:
        engine.submit(command, lambda *_: None)
    await turns()


def _bug(*_: object) -> NoReturn:
    raise ZeroDivisionError("a bug")


def _filled() -> list[Values]:
    async def test(clock: ManualClock) -> list[Values]:
        async with serving(MemoryJournal(), clock) as engine:
            await _fill(engine)
            return picture(engine.state)

    return run(test)


def test_snapshot_round_trips_bit_for_bit() -> None:
    """What is read from a snapshot and written again is the same bytes: nothing durable is left out (I15)."""
    values = _filled()
    assert len(values) > 8
    assert picture(snapshot.load(values)) == values


def test_snapshot_contains_only_durable_state() -> None:
    """Where settling looks next and who is present are in no snapshot: states that differ in these have one (I15)."""
    state = snapshot.load(_filled())
    before = picture(state)
    state.timers.lease_deadlines.heap.clear()
    state.connected.detached_since.clear()
    state.connected.add_interest(("principal", "ana", "ana"), "job", "ana", 0, 60_000)
    state.timers.names_with_new_holder.append("job")
    assert picture(state) == before


def test_empty_state_has_an_empty_snapshot() -> None:
    """A journal without a snapshot is one whose state begins empty; so is the picture of an empty state."""
    assert picture(snapshot.load([])) == picture(State())
    assert snapshot.load(picture(State())).freeze() == State().freeze()


def test_unreadable_values_are_refused() -> None:
    """A value that cannot be read, or is of no table of ours, means damage; no state is made from it."""
    values = _filled()
    for strange in (Values("slots", [(b"\xff\xff", b"\xc0")]), Values("slots", [(b"job", b"")]), Values("other", [])):
        with pytest.raises(JournalDamagedError):
            snapshot.load([*values, strange])


def test_snapshot_is_unaffected_by_later_changes() -> None:
    """What was frozen is encoded as it was, however the state changes before the last part (I15)."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await _fill(engine)
            before = picture(engine.state)
            slowly = snapshot.values(engine.state.freeze())
            parts = [next(slowly)]
            for number in range(1, 1_100, 3):
                engine.submit(release(f"job/{number}"), lambda *_: None)
            await turns()
            assert parts + list(slowly) == before
            assert picture(engine.state) != before

    run(test)


def test_archiving_runs_concurrently_with_commands() -> None:
    """Commands are decided and written between the slices of an archive, and nothing of either is lost (I5, I15)."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        async with serving(journal, clock, archive_policy=ArchivePolicy(records=1_500)) as engine:
            await _fill(engine)
            await turns(3)
            assert len(journal.begun) == 1 and journal.counted == []
            begun = engine.state.seq
            for number in range(1, 1_100, 3):
                await engine.ask(renew(f"job/{number}", ttl_ms=5_000))
            assert journal.counted == journal.begun == [begun]
            assert engine.state.seq > begun + 300
            crashed = journal.fork()
            async with serving(crashed, clock) as recovered:
                assert picture(recovered.state)[1:] == picture(engine.state)[1:]
            assert {each.table for each in (await journal.open()).values} >= {"head", "slots", "memos", "tokens"}

    run(test)


def test_archive_waits_for_the_pending_append() -> None:
    """An archive asked for while an append is on its way is written once that is durable, though nobody asks more."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            journal.is_shut = True
            engine.submit(release("nothing"), lambda *_: None)
            engine.submit(acquire("job"), lambda *_: None)
            await turns()
            archiving = asyncio.create_task(engine.archive())
            await turns(20)
            assert not archiving.done()
            journal.open_gate()
            await turns(20)
            assert archiving.done()
            assert await tail(journal) == []

    run(test)


def test_archives_do_not_overlap() -> None:
    """An archive asked for while one is on its way is that one; one asked for later is a new one."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        async with serving(journal, clock, archive_policy=ArchivePolicy(records=1)) as engine:
            for number in range(20):
                await engine.ask(acquire(f"job/{number}"))
                await engine.archive()
            assert journal.begun == journal.counted
            assert journal.counted == sorted(set(journal.counted))
        await engine.archive()

    run(test)


def test_failed_engine_cancels_its_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive that is on its way when the engine fails is not written to its end: it says nothing more (I9)."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        async with serving(journal, clock, archive_policy=ArchivePolicy(records=1_500)) as engine:
            await _fill(engine)
            await turns(3)
            assert len(journal.begun) == 1 and journal.counted == []
            with monkeypatch.context() as patch:
                patch.setattr(engine_module, "evolve", _bug)
                with pytest.raises(ZeroDivisionError):
                    engine.submit(acquire("other"), lambda *_: None)
            await turns(1_000)
            assert journal.counted == []

    run(test)


def test_replayed_records_count_towards_archiving() -> None:
    """Records that a start had to replay count for the next archive: else many short lives would never make one."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        async with serving(journal, clock) as engine:
            for number in range(10):
                await engine.ask(acquire(f"job/{number}"))
        replayed = len(await tail(journal))
        async with serving(journal, clock, archive_policy=ArchivePolicy(records=replayed + 2)) as engine:
            await engine.ask(renew("job/1"))
            await turns(100)
            assert journal.begun == []
            await engine.ask(renew("job/1"))
            await turns(100)
            assert journal.counted == [engine.state.seq]

    run(test)
