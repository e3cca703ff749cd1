"""The one write path: order, durability before answers, group commit, beginning and end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NoReturn

import pytest

from holdfast.core.commands import Acquire
from holdfast.core.decide import DECISIONS
from holdfast.core.outcomes import Acquired, Extended, Held, Released
from holdfast.core.values import Limits
from holdfast.engine.engine import Engine
from holdfast.engine.waiters import Unavailable
from holdfast.journal.interface import Health, JournalUnavailableError
from tests.engine.harness import Asked, GateJournal, acquire, release, renew, run, serving, tail, turns
from tests.support.memory_journal import MemoryJournal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.core.events import Record
    from holdfast.testing.clock import ManualClock


def test_tick_is_one_append() -> None:
    """Everything decided in one turn of the loop goes into one append, and its answers come in the order asked."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            for number in range(50):
                asked.submit(str(number), acquire(f"job/{number}"))
            assert asked.answers == []
            await turns()
            assert asked.labels == [str(number) for number in range(50)]
            assert [len(batch) for batch in journal.appends] == [1, 50]

    run(test)


def test_synchronous_append_needs_no_task() -> None:
    """What a journal makes durable at once is answered in the next round of the loop, without a task or a future."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            assert asyncio.all_tasks() == {asyncio.current_task()}
            asked = Asked(engine)
            with no_tasks():
                for number in range(3):
                    asked.submit(str(number), acquire(f"job/{number}"))
                    asked.read(f"read {number}", lambda state, _: len(state.index.held))
                    assert len(asked.answers) == 2 * number
                    await asyncio.sleep(0)
                    assert len(asked.answers) == 2 * number + 2

    run(test)


@contextlib.contextmanager
def no_tasks() -> Iterator[None]:
    """Let it fail to make a task."""

    def make(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a task was made")

    loop = asyncio.get_running_loop()
    loop.set_task_factory(make)
    try:
        yield
    finally:
        loop.set_task_factory(None)


def test_iteration_without_records_skips_the_journal() -> None:
    """Reads and refusals that rest on what is durable are answered at once: a journal far away is not asked."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("job"))
            journal.is_shut = True
            asked = Asked(engine)
            asked.submit("held", acquire("job", "other"))
            asked.read("read", lambda state, _: len(state.index.held))
            await turns()
            assert asked.labels == ["held", "read"]
            assert journal.waiting is None

    run(test)


def test_answers_wait_until_records_are_durable() -> None:
    """A grant, a refusal and a read that rest on a record wait until that record is durable (C1, I7)."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            journal.is_shut = True
            asked.submit("grant", acquire("job"))
            await turns()
            # Decided on top of the append that is on its way: nothing of these is to be written.
            asked.submit("held", acquire("job", "other"))
            asked.read("read", lambda state, _: state.lease_of("job"))
            asked.read("other read", lambda state, _: len(state.index.held))
            await turns(20)
            assert asked.answers == []
            journal.open_gate()
            await turns()
            assert asked.labels == ["grant", "held", "read", "other read"]
            assert isinstance(asked["held"], Held)
            assert asked["read"].lease_id == "id-of-job"

    run(test)


def test_next_batch_collects_during_an_append() -> None:
    """While an append is on its way to a remote journal, all that is asked makes one next batch, answered in order."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            journal.is_shut = True
            asked.submit("a", acquire("a"))
            await turns()
            for label in "bcd":
                asked.submit(label, acquire(label))
                await turns(3)
            assert asked.labels == []
            journal.let_through()
            await turns()
            assert asked.labels == ["a"]
            journal.open_gate()
            await turns()
            assert asked.labels == ["a", "b", "c", "d"]
            assert [len(batch) for batch in journal.appends] == [1, 1, 3]

    run(test)


def test_read_writes_no_record() -> None:
    """A read that rests on nothing new is answered without an append."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            assert await engine.query(lambda state, _: len(state.index.held)) == 0
            assert len(journal.appends) == 1

    run(test)


def test_failing_reply_does_not_affect_other_answers(caplog: pytest.LogCaptureFixture) -> None:
    """The writer outlives a reply that raises: the others of its turn and all later ones are answered."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            asked = Asked(engine)
            asked.submit("before", acquire("a"))
            engine.submit(acquire("b"), _broken_reply)
            asked.submit("after", acquire("c"))
            await turns()
            assert asked.labels == ["before", "after"]
            assert isinstance((await engine.ask(renew("b")))[0], Extended)

    run(test)
    assert "a reply could not be delivered" in caplog.text


def _broken_reply(*_: object) -> None:
    raise ConnectionResetError("the caller went away")


def test_reply_may_submit_the_next_command() -> None:
    """What replies ask at once makes one next batch, and the rest of the loop has its turn in between."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            asked = Asked(engine)

            def go_on(number: int) -> None:
                engine.submit(
                    acquire(f"first/{number}"), lambda *_: asked.submit(str(number), acquire(f"then/{number}"))
                )

            for number in range(4):
                go_on(number)
            await turns(2)
            asked.submit("bystander", acquire("bystander"))
            await turns()
            assert sorted(asked.labels) == ["0", "1", "2", "3", "bystander"]
            assert [len(batch) for batch in journal.appends] == [1, 4, 5]

    run(test)


def test_cancelled_caller_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    """A caller that is cancelled while its command is on its way leaves the command, the others and the log alone."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            journal.is_shut = True
            gone = asyncio.create_task(engine.ask(acquire("job")))
            querying = asyncio.create_task(engine.query(lambda state, _: len(state.index.held)))
            await turns()
            gone.cancel()
            journal.open_gate()
            await turns()
            assert gone.cancelled()
            assert await querying == 1
            assert isinstance((await engine.ask(release("job")))[0], Released)
            assert caplog.records == []

    run(test)


def test_stop_answers_requests_in_flight() -> None:
    """A stop waits for the append on its way and for what gathered on top, answers both, then turns callers away."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            journal.is_shut = True
            asked.submit("in flight", acquire("a"))
            await turns()
            asked.submit("on top", acquire("b"))
            stopping = asyncio.create_task(engine.stop())
            await turns(20)
            assert not stopping.done()
            asked.submit("late", acquire("c"))
            assert asked.answers == [("late", Unavailable("the server is stopping or not yet ready"))]
            journal.open_gate()
            await stopping
            assert asked.labels == ["late", "in flight", "on top"]
            assert isinstance(asked["in flight"], Acquired) and isinstance(asked["on top"], Acquired)
            assert [record.seq for record in await tail(journal)] == [1, 2, 3]
            await engine.stop()

    run(test)


def test_concurrent_stops_release_everything() -> None:
    """Two stops at a time, or one that was cancelled and asked again, end the same: seat given back, nothing runs."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            journal.is_shut = True
            pending = asyncio.create_task(engine.ask(acquire("job")))
            await turns()
            impatient = asyncio.create_task(engine.stop())
            await turns()
            impatient.cancel()
            await turns()
            assert not pending.done()
            both = asyncio.gather(engine.stop(), engine.stop())
            await turns()
            journal.open_gate()
            await both
            assert isinstance((await pending)[0], Acquired)
            assert engine.ticks.timer is None
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert (await journal.open()).epoch == 2

    run(test)


def test_engine_rejects_requests_before_start() -> None:
    """An engine that does not serve yet answers at once that it cannot, to commands and reads alike."""

    async def test(clock: ManualClock) -> None:
        engine = Engine(MemoryJournal(), Limits(), clock=clock, version="test")
        assert isinstance((await engine.ask(acquire("job")))[0], Unavailable)
        with pytest.raises(JournalUnavailableError):
            await engine.query(lambda state, _: len(state.index.held))
        await engine.stop()

    run(test)


def test_a_failed_start_leaves_nothing_running() -> None:
    """A journal that refuses the first write fails the start; the seat is given back and no task or timer is left."""

    class Refusing(GateJournal):
        is_closed = False

        async def append(self, batch: Sequence[Record]) -> None:
            raise JournalUnavailableError("append: no")

        async def close(self) -> None:
            self.is_closed = True
            await super().close()

    async def test(clock: ManualClock) -> None:
        journal = Refusing()
        engine = Engine(journal, Limits(), clock=clock, version="test")
        with pytest.raises(JournalUnavailableError):
            await engine.start()
        assert journal.is_closed
        assert engine.ticks.timer is None
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert isinstance((await engine.ask(acquire("job")))[0], Unavailable)

    run(test)


def test_cancelled_start_releases_leadership() -> None:
    """A start that is cancelled while the journal still opens leaves the seat free for the next."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        journal.is_shut = True
        starting = asyncio.create_task(Engine(journal, Limits(), clock=clock, version="test").start())
        await turns()
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        assert asyncio.all_tasks() == {asyncio.current_task()}
        journal.is_shut = False
        async with serving(journal, clock) as engine:
            assert engine.state.epoch == 2

    run(test)


def test_a_full_store_refuses_new_claims_only() -> None:
    """Without room for claims an acquire is refused undecided, in its place in the order; renewals, releases go on."""

    class Full(MemoryJournal):
        def health(self) -> Health:
            return Health(takes_claims=self.takes_claims, size_bytes=0, storage="memory", text="the disk is full")

    async def test(clock: ManualClock) -> None:
        journal = Full()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("job"))
            asked = Asked(engine)
            journal.takes_claims = False
            asked.submit("renew", renew("job"))
            asked.submit("acquire", acquire("other"))
            asked.submit("release", release("job"))
            await turns()
            assert asked.labels == ["renew", "acquire", "release"]
            assert asked.kinds == ["Extended", "Unavailable", "Released"]
            assert asked["acquire"].text == "the disk is full"
            assert await engine.query(lambda state, _: len(state.index.held)) == 0

    run(test)


def test_store_with_space_again_accepts_claims_immediately() -> None:
    """A claim that finds the store recovered is decided, not refused with good news."""

    class Recovering(MemoryJournal):
        def health(self) -> Health:
            self.takes_claims = True
            return super().health()

    async def test(clock: ManualClock) -> None:
        journal = Recovering()
        async with serving(journal, clock) as engine:
            journal.takes_claims = False
            assert isinstance((await engine.ask(acquire("job")))[0], Acquired)

    run(test)


def test_full_store_is_checked_periodically() -> None:
    """A store that was full is asked every few seconds whether there is room again, though nobody claims anything."""

    class Recovering(MemoryJournal):
        def health(self) -> Health:
            self.takes_claims = True
            return super().health()

    async def test(clock: ManualClock) -> None:
        journal = Recovering()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("job", ttl_ms=60_000))
            journal.takes_claims = False
            await asyncio.sleep(6)
            assert journal.takes_claims

    run(test)


def test_bug_in_a_decision_fails_only_that_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision that raises has changed nothing: the asker gets the error, the others of the turn their answers."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            asked = Asked(engine)
            asked.submit("before", acquire("a"))
            with monkeypatch.context() as patch:
                patch.setitem(DECISIONS, Acquire, _bug)
                with pytest.raises(ZeroDivisionError):
                    engine.submit(acquire("b"), _broken_reply)
            with pytest.raises(ZeroDivisionError):
                engine.read(_bug, _broken_reply)
            asked.submit("after", acquire("c"))
            await turns()
            assert asked.kinds == ["Acquired", "Acquired"]
            assert list(engine.state.index.held.walk()) == ["a", "c"]
            assert engine.failed is None

    run(test)


def _bug(*_: object) -> NoReturn:
    raise ZeroDivisionError
