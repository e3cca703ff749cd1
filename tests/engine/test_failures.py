"""What a failed append means: taken back when it is known to have failed, the end when it is not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

import pytest

from holdfast.core.events import Granted
from holdfast.core.outcomes import Acquired, Extended, Held, NotCurrent
from holdfast.engine import engine as engine_module
from holdfast.engine.archiver import ArchivePolicy
from holdfast.engine.waiters import Unavailable, Unknown, after_wait
from holdfast.journal.failpoints import arm
from holdfast.journal.interface import DeposedError, JournalDamagedError, JournalUnavailableError, OutcomeUnknownError
from tests.engine.harness import (
    Asked,
    FateJournal,
    GateJournal,
    SlicedJournal,
    acquire,
    events,
    history,
    picture,
    release,
    renew,
    run,
    serving,
    tail,
    turns,
)
from tests.support.memory_journal import MemoryJournal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.core.events import Record
    from holdfast.core.state import State
    from holdfast.journal.interface import Recovered, Values
    from holdfast.testing.clock import ManualClock

REFUSED = JournalUnavailableError("append: no")
UNKNOWN = OutcomeUnknownError("append: who knows")


def _bug(*_: object) -> NoReturn:
    raise ZeroDivisionError("a bug")


def test_refused_append_rolls_back_all_later_decisions() -> None:
    """A refused batch and all decided on top of it did not happen: said in order, state reloaded, work goes on (I6)."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("old"))
            before = picture(engine.state)
            asked = Asked(engine)
            journal.is_shut = True
            asked.submit("lost", acquire("job"))
            asked.submit("lost too", release("old"))
            await turns()
            asked.submit("on top", acquire("other"))
            asked.submit("held by nobody", acquire("job", "second"))
            asked.read("dirty", lambda state, _: len(state.index.held))
            await turns()
            assert asked.answers == []
            journal.let_through(REFUSED)
            await turns()
            assert asked.labels == ["lost", "lost too", "on top", "held by nobody", "dirty"]
            assert {type(outcome) for _, outcome in asked.answers} == {Unavailable}
            assert picture(engine.state) == before
            journal.is_shut = False
            answer, _ = await engine.ask(acquire("job", "second"))
            assert isinstance(answer, Acquired) and answer.lease.token == 2
            assert isinstance((await engine.ask(renew("old")))[0], Extended)
            assert engine.failed is None and not engine.ended.is_set()

    run(test)


either_way = pytest.mark.parametrize("is_at_once", [True, False])
"""In a journal that appends at once, and in one that waits for somebody else."""


@either_way
def test_engine_survives_repeated_refusals(*, is_at_once: bool) -> None:
    """A store that refuses for a while is asked again by each command: reads go on, the first success counts (I6)."""

    async def test(clock: ManualClock) -> None:
        journal = FateJournal(is_at_once=is_at_once)
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("old"))
            journal.fates.extend(["refused"] * 5)
            for number in range(5):
                assert isinstance((await engine.ask(acquire(f"job/{number}")))[0], Unavailable)
                await turns()
                assert await engine.query(lambda state, _: list(state.index.held.walk())) == ["old"]
            assert isinstance((await engine.ask(acquire("job")))[0], Acquired)
            assert [record.seq for record in await tail(journal.inner)] == [1, 2, 3]

    run(test)


@either_way
def test_refused_append_stops_decisions_until_reload(*, is_at_once: bool) -> None:
    """Once an append is known to have failed, nothing is decided on top of it: not even by its own replies (I6)."""

    async def test(clock: ManualClock) -> None:
        journal = FateJournal(is_at_once=is_at_once)
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            journal.fates.append("refused")
            engine.submit(acquire("job"), lambda *_: asked.submit("by the reply", acquire("job", "again")))
            await turns(10)
            assert asked.kinds == ["Unavailable"]
            assert isinstance((await engine.ask(acquire("job", "later")))[0], Acquired)
            assert len(await tail(journal.inner)) == 2

    run(test)


@either_way
def test_retry_after_a_refused_append_is_served(*, is_at_once: bool) -> None:
    """The state is read anew before anybody can ask again, if reading waits for nobody: one failure, one 503 (I6)."""

    async def test(clock: ManualClock) -> None:
        journal = FateJournal(is_at_once=is_at_once)
        async with serving(journal, clock) as engine:
            journal.fates.append("refused")
            assert isinstance((await engine.ask(acquire("job")))[0], Unavailable)
            assert isinstance((await engine.ask(acquire("job", "again")))[0], Acquired)

    run(test)


@either_way
@pytest.mark.parametrize("fate", ["lost", "kept"])
def test_unknown_append_is_not_acknowledged(fate: str, *, is_at_once: bool) -> None:
    """Nobody knows what became of the batch: its answers say so, nobody hears of its records, and the engine ends."""

    async def test(clock: ManualClock) -> None:
        journal = FateJournal(is_at_once=is_at_once)
        async with serving(journal, clock) as engine:
            listener = engine.feed.listen("job")
            journal.fates.append(fate)
            assert isinstance((await engine.ask(acquire("job")))[0], Unknown)
            assert engine.ended.is_set()
            assert listener.next_nowait() is None
            assert isinstance((await engine.ask(acquire("other")))[0], Unavailable)

    run(test)


@either_way
def test_rolled_back_expiry_is_repeated(*, is_at_once: bool) -> None:
    """A lease whose end could not be written ends when it can: the timer goes on after a failure (L2)."""

    async def test(clock: ManualClock) -> None:
        journal = FateJournal(is_at_once=is_at_once)
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("job", ttl_ms=2_000))
            journal.fates.extend(["refused"] * 3)
            await asyncio.sleep(10)
            assert await engine.query(lambda state, _: len(state.index.held)) == 0
            assert not journal.fates

    run(test)


def test_failed_reload_ends_the_engine() -> None:
    """When the state cannot be read anew after a failure, nobody is served from memory: the engine ends (I6)."""

    class Unreadable(GateJournal):
        is_broken = False

        async def open(self) -> Recovered:
            if self.is_broken:
                raise JournalDamagedError("open: damaged")
            return await super().open()

    async def test(clock: ManualClock) -> None:
        journal = Unreadable()
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            journal.is_shut = journal.is_broken = True
            asked.submit("lost", acquire("job"))
            await turns()
            journal.let_through(REFUSED)
            await asyncio.wait_for(engine.ended.wait(), 1)
            asked.submit("late", acquire("job"))
            assert asked.answers == [("lost", Unavailable("append: no")), ("late", Unavailable("open: damaged"))]

    run(test)


def test_unknown_outcome_ends_the_engine() -> None:
    """After an unknown append its answers and those on top say so, later ones are refused, nobody hears of it (I6)."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            listener = engine.feed.listen("job")
            asked = Asked(engine)
            journal.is_shut = True
            asked.submit("unknown", acquire("job", key="k"))
            await turns()
            asked.submit("its retry", acquire("job", "again", key="k"))
            asked.read("read", lambda state, _: len(state.index.held))
            await turns()
            journal.let_through(UNKNOWN)
            await asyncio.wait_for(engine.ended.wait(), 1)
            asked.submit("later", acquire("other"))
            text = "append: who knows"
            assert asked.answers == [
                ("unknown", Unknown(text)),
                ("its retry", Unknown(text)),
                ("read", Unknown(text)),
                ("later", Unavailable(text)),
            ]
            assert engine.failed == text
            assert engine.ticks.timer is None
            with pytest.raises(JournalUnavailableError):
                await engine.query(lambda state, _: len(state.index.held))
            await engine.stop()
            assert await listener.next() is None
            assert len(journal.appends) == 1

    run(test)


def test_read_with_unknown_outcome_raises() -> None:
    """Who looks at the state while the outcome of an append is unknown gets an error, and nothing that may be wrong."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            journal.is_shut = True
            engine.submit(acquire("job"), lambda *_: None)
            querying = asyncio.create_task(engine.query(lambda state, _: list(state.slots)))
            await turns()
            journal.let_through(UNKNOWN)
            with pytest.raises(JournalUnavailableError, match="who knows"):
                await querying

    run(test)


@pytest.mark.parametrize(
    ("error", "outcome"), [(DeposedError("append: deposed"), "NotLeader"), (TypeError("a bug"), "Unknown")]
)
def test_any_other_failure_ends_the_engine(error: Exception, outcome: str) -> None:
    """A deposed writer, or one that met a bug below it, answers and announces nothing more (I9)."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            journal.is_shut = True
            asked.submit("job", acquire("job"))
            await turns()
            journal.let_through(error)
            await asyncio.wait_for(engine.ended.wait(), 1)
            assert asked.kinds == [outcome]

    run(test)


def test_partial_change_is_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug while a decision takes effect ends the engine with nothing of its turn written; what is in flight is."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock, archive_policy=ArchivePolicy(records=1)) as engine:
            asked = Asked(engine)
            journal.is_shut = True
            asked.submit("in flight", acquire("a"))
            await turns()
            asked.submit("same turn", acquire("b"))
            with monkeypatch.context() as patch:
                patch.setattr(engine_module, "evolve", _bug)
                with pytest.raises(ZeroDivisionError):
                    asked.submit("bug", acquire("c"))
            asked.submit("later", acquire("d"))
            assert asked.kinds == ["Unknown", "Unavailable"]
            journal.open_gate()
            await turns()
            assert asked.labels == ["same turn", "later", "in flight"]
            assert isinstance(asked["in flight"], Acquired)
            await engine.stop()
            assert [len(batch) for batch in journal.appends] == [1, 1]
            assert len(await tail(journal)) == 2

    run(test)


def test_partial_change_is_never_archived(monkeypatch: pytest.MonkeyPatch) -> None:
    """What falls due to be archived after a bug is not taken: memory may be half changed (I5)."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock, archive_policy=ArchivePolicy(records=3)) as engine:
            await engine.ask(acquire("a"))
            await engine.ask(renew("a"))
            journal.is_shut = True
            engine.submit(renew("a"), lambda *_: None)
            await turns()
            with monkeypatch.context() as patch:
                patch.setattr(engine_module, "evolve", _bug)
                with pytest.raises(ZeroDivisionError):
                    engine.submit(acquire("c"), lambda *_: None)
            journal.open_gate()
            await turns(20)
            assert engine.failed is not None
            assert list((await journal.fork().open()).values) == []

    run(test)


def test_failed_engine_stays_failed_after_a_refused_append(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that has failed stays failed when the append on its way is refused as well: it does not come back."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            journal.is_shut = True
            asked.submit("in flight", acquire("a"))
            await turns()
            with monkeypatch.context() as patch:
                patch.setattr(engine_module, "evolve", _bug)
                with pytest.raises(ZeroDivisionError):
                    asked.submit("bug", acquire("c"))
            journal.let_through(REFUSED)
            await turns()
            asked.submit("later", acquire("d"))
            assert asked.kinds == ["Unavailable", "Unavailable"]
            assert engine.ended.is_set()

    run(test)


def test_first_failure_reason_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails after the engine has failed does not hide why it did: operators look for the first reason."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            journal.is_shut = True
            asked.submit("in flight", acquire("a"))
            await turns()
            with monkeypatch.context() as patch:
                patch.setattr(engine_module, "evolve", _bug)
                with pytest.raises(ZeroDivisionError):
                    asked.submit("bug", acquire("c"))
            journal.let_through(UNKNOWN)
            await turns()
            assert engine.failed is not None and "a bug" in engine.failed
            assert engine.why_not_serving() == engine.failed
            assert "a bug" in asked["in flight"].text

    run(test)


def test_bug_in_expiry_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What falls due cannot be left half done: a bug there ends the engine before anything is decided (T3)."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("job"))
            monkeypatch.setattr(engine_module, "next_due", _bug)
            with pytest.raises(ZeroDivisionError):
                await engine.ask(acquire("other"))
            assert engine.ended.is_set()
            assert len(await tail(journal)) == 2

    run(test)


@pytest.mark.parametrize("failpoint", ["next_grant", "attach", "interest"])
def test_bug_after_a_decision_ends_the_engine(failpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that was decided has changed memory. If what follows from it raises, nothing of it is written, and
    everybody is told once that nobody knows, the one who asked too (W1, I6).
    """

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            await engine.ask(acquire("job"))
            asked.submit("waits", acquire("job", "id-of-ben", owner="ben", wait_ms=30_000, new_ticket="ticket"))
            await turns()
            asked.submit("on its way", acquire("other"))
            durable = len(await tail(journal))
            if failpoint == "next_grant":
                monkeypatch.setattr(engine_module, "next_grant", _bug)
                asked.submit("bug", release("job"))
            elif failpoint == "attach":
                monkeypatch.setattr(engine.state, "attach", _bug)
                asked.submit("bug", acquire("job", "x", owner="cy", wait_ms=30_000, new_ticket="ticket of cy"))
            else:
                monkeypatch.setattr(engine.state.connected, "add_interest", _bug)
                asked.submit("bug", acquire("job", "x", owner="cy", interest=True))
            await asyncio.wait_for(engine.ended.wait(), 1)
            await turns()
            assert sorted(asked.labels) == ["bug", "on its way", "waits"]
            kinds = {label: type(after_wait(outcome)[0]) for label, outcome in asked.answers}
            assert set(kinds.values()) == {Unknown}
            assert len(await tail(journal)) == durable

    run(test)


def test_cancelled_append_answers_all_waiters() -> None:
    """An append that is cancelled from outside has an unknown outcome: that is said, and the engine ends (I6)."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            journal.is_shut = True
            asked.submit("job", acquire("job"))
            await turns()
            asked.submit("on top", acquire("job", "other"))
            (appending,) = asyncio.all_tasks() - {asyncio.current_task()}
            appending.cancel()
            await asyncio.wait_for(engine.ended.wait(), 1)
            asked.submit("later", acquire("other"))
            assert asked.kinds == ["Unknown", "Unknown", "Unavailable"]

    run(test)


def test_refused_append_while_stopping_is_reported() -> None:
    """An append that is refused while the engine stops is answered as refused, and the engine does not come back."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            journal.is_shut = True
            asked.submit("job", acquire("job"))
            await turns()
            stopping = asyncio.create_task(engine.stop())
            await turns()
            journal.let_through(REFUSED)
            await stopping
            asked.submit("later", acquire("job"))
            assert asked.kinds == ["Unavailable", "Unavailable"]
            assert engine.ticks.timer is None

    run(test)


def test_stop_during_a_reload_is_final() -> None:
    """An engine that is stopped while it reads its state anew does not serve again when it has read it."""

    class SlowToOpen(GateJournal):
        gate: asyncio.Event | None = None

        async def open(self) -> Recovered:
            if self.gate is not None:
                await self.gate.wait()
            return await super().open()

    async def test(clock: ManualClock) -> None:
        journal = SlowToOpen()
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            journal.is_shut, journal.gate = True, asyncio.Event()
            asked.submit("lost", acquire("job"))
            await turns()
            journal.let_through(REFUSED)
            await turns()
            asked.submit("meanwhile", acquire("job"))
            stopping = asyncio.create_task(engine.stop())
            await turns()
            journal.gate.set()
            await stopping
            asked.submit("later", acquire("job"))
            assert asked.kinds == ["Unavailable"] * 3
            assert engine.failed is None

    run(test)


@pytest.fixture
def failpoints() -> Iterator[None]:
    yield
    arm({})


@either_way
@pytest.mark.usefixtures("failpoints")
@pytest.mark.parametrize(
    ("failpoint", "written"),
    [("before_append", 1), ("after_append_before_publish", 2), ("after_publish_before_answer", 2)],
)
def test_error_at_any_failpoint_is_an_unknown_outcome(failpoint: str, written: int, *, is_at_once: bool) -> None:
    """An error at any named place of the commit path is an unknown outcome, whatever the journal has by then (I6)."""

    async def test(clock: ManualClock) -> None:
        journal = MemoryJournal() if is_at_once else GateJournal()
        async with serving(journal, clock) as engine:
            arm({"HOLDFAST_FAILPOINTS": f"{failpoint}=error", "HOLDFAST_TESTING": "1"})
            assert isinstance((await engine.ask(acquire("job")))[0], Unknown)
            assert engine.ended.is_set()
            assert len(await tail(journal)) == written

    run(test)


def test_a_refused_archive_is_tried_again() -> None:
    """An archive that is refused costs nothing but space, and is tried again after a tenth more records."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        async with serving(journal, clock, archive_policy=ArchivePolicy(records=20)) as engine:
            journal.errors.append(JournalUnavailableError("archive: no"))
            await engine.ask(acquire("job"))
            for _ in range(30):
                await engine.ask(renew("job"))
                await turns(10)
                clock.advance(200)
            assert len(journal.begun) == 2
            assert journal.counted == [journal.begun[1]]
            assert 1 <= journal.begun[1] - journal.begun[0] <= 7
            assert engine.failed is None

    run(test)


def test_an_unknown_archive_ends_the_engine() -> None:
    """An archive of which nobody knows whether it counts ends the engine as an append would (I6)."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("job"))
            journal.errors.append(UNKNOWN)
            await engine.archive()
            assert engine.ended.is_set()
            assert isinstance((await engine.ask(acquire("other")))[0], Unavailable)

    run(test)


def test_refused_append_during_archiving_loses_nothing() -> None:
    """An append refused while the journal archives ends that too, and both work again afterwards (I5)."""

    class Both(SlicedJournal):
        is_refusing = False

        async def append(self, batch: Sequence[Record]) -> None:
            if self.is_refusing:
                raise REFUSED
            await super().append(batch)

    async def test(clock: ManualClock) -> None:
        journal = Both()
        async with serving(journal, clock) as engine:
            for number in range(2_000):
                engine.submit(acquire(f"job/{number}"), lambda *_: None)
            await turns()
            archiving = asyncio.create_task(engine.archive())
            await turns(4)
            assert journal.begun and not archiving.done()
            journal.is_refusing = True
            assert isinstance((await engine.ask(acquire("lost")))[0], Unavailable)
            journal.is_refusing = False
            await archiving
            assert journal.counted == []
            assert isinstance((await engine.ask(acquire("job/7", "other")))[0], Held)
            await engine.archive()
            assert len(journal.counted) == 1
            assert isinstance((await engine.ask(release("lost")))[0], NotCurrent)
            async with serving(journal.fork(), clock) as recovered:
                assert _durable(recovered.state) == _durable(engine.state)

    run(test)


def _durable(state: State) -> list[Values]:
    """Return all parts but the first, which counts the starts of engines."""
    return picture(state)[1:]


def test_the_archive_is_never_ahead_of_the_journal() -> None:
    """An archive asked for while an append is on its way shows whole durable batches, or does not happen (I6)."""

    class Both(GateJournal, SlicedJournal):
        def __init__(self) -> None:
            SlicedJournal.__init__(self)
            self.is_shut, self.appends, self.waiting = False, [], None

    async def test(clock: ManualClock) -> None:
        for error in (None, REFUSED):
            journal = Both()
            async with serving(journal, clock) as engine:
                journal.is_shut = True
                asked = Asked(engine)
                asked.submit("in flight", acquire("a"))
                await turns()
                asked.submit("on top", acquire("b"))
                archiving = asyncio.create_task(engine.archive())
                await turns()
                asked.submit("on top too", acquire("c"))
                await turns(20)
                assert journal.begun == []
                journal.let_through(error)
                await turns()
                assert journal.begun == []
                journal.open_gate()
                await archiving
                assert journal.begun == ([] if error else [4])
                names = ["a", "b", "c"] if error is None else []
                assert [event.name for event in await history(journal) if isinstance(event, Granted)] == names
                assert len(await events(journal)) == (0 if error is None else 1)

    run(test)


def test_failing_writes_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """However many batches are refused for the same reason, the log has one line, and one when writes work again."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            for number in range(20):
                journal.is_shut = True
                asked = Asked(engine)
                asked.submit("refused", acquire(f"job-{number}"))
                await turns()
                journal.let_through(REFUSED)
                await turns(10)
                assert isinstance(asked["refused"], Unavailable)
            journal.open_gate()
            await engine.ask(acquire("job"))
            await engine.ask(acquire("another"))

    with caplog.at_level("WARNING", "holdfast.engine"):
        run(test)
    first, second = caplog.messages
    assert first == "append: no; nothing of it happened, and the state is read anew"
    assert second == "writes work again: 1 records are on the disk; 20 writes had failed"
