"""An engine on a journal that nodes share: proofs for answers without records, a tenure that ends, a silent store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from holdfast.core.events import Opened, Restored
from holdfast.core.outcomes import Acquired, Waiting
from holdfast.core.values import TOKEN_MAX, Limits
from holdfast.engine.archiver import ArchivePolicy
from holdfast.engine.backup import BackupWriter, backup
from holdfast.engine.engine import LAST_ANSWERS_SECONDS, Engine
from holdfast.engine.feed import EVERYTHING
from holdfast.engine.recovery import TOKEN_GAP, TOKEN_GAP_PER_MS, UNKNOWN_MS
from holdfast.engine.waiters import NotLeader, after_wait
from holdfast.journal.interface import (
    DeposedError,
    JournalError,
    JournalUnavailableError,
    OutcomeUnknownError,
    Retention,
)
from tests.engine.harness import Asked, acquire, picture, run, serving, turns
from tests.engine.shared_harness import SharedShelf, journal_on

if TYPE_CHECKING:
    from holdfast.core.commands import Acquire
    from holdfast.core.state import State
    from holdfast.core.values import Instant
    from holdfast.testing.clock import ManualClock

MINUTE_MS = 60_000


def nothing(_state: State, _now: Instant) -> None:
    """Look at nothing: a heartbeat."""


def holders(state: State, _now: Instant) -> list[str]:
    return list(state.index.held.walk())


def wait_for(name: str, owner: str, wait_ms: int = 30_000) -> Acquire:
    return acquire(name, f"id-of-{owner}", owner=owner, wait_ms=wait_ms, new_ticket=f"ticket-of-{owner}")


def test_answer_without_a_record_waits_for_confirmation() -> None:
    """A read is answered once a write has proven the seat, sent after it was decided; one proof is for many (N-15)."""

    async def test(clock: ManualClock) -> None:
        shelf = SharedShelf()
        journal = await journal_on(shelf)
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            heartbeat = shelf.leadership.heartbeat
            journal.is_shut = True
            asked.read("one", holders)
            asked.read("two", holders)
            await turns()
            assert journal.waiting is not None and asked.answers == []
            journal.is_shut = False
            journal.let_through()
            await turns()
            assert asked.labels == ["one", "two"] and len(journal.confirms) == 1
            assert shelf.leadership.heartbeat == heartbeat + 1
            await engine.ask(acquire("job"))
            assert len(journal.confirms) == 1, "an append is a proof itself"

    run(test)


def test_deposed_leader_answers_no_read() -> None:
    """A leader that another has deposed shows nobody what was: the proof fails, and its tenure ends (N-15)."""

    async def test(clock: ManualClock) -> None:
        shelf = SharedShelf()
        async with serving(await journal_on(shelf, "a"), clock) as old:
            await old.ask(acquire("job"))
            async with serving(await journal_on(shelf, "b"), clock) as new:
                await new.ask(acquire("other"))
                asked = Asked(old)
                asked.read("stale", holders)
                await turns()
                assert asked.kinds == ["NotLeader"]
                assert old.ended.is_set() and old.failed is not None
                assert isinstance((await old.ask(acquire("late")))[0], NotLeader)
                with pytest.raises(DeposedError):
                    await old.query(holders)
                assert await new.query(holders) == ["job", "other"]

    run(test)


def test_backup_waits_for_confirmation() -> None:
    """A backup begins once a write has proven the seat: a leader that was deposed makes none (N-15)."""

    async def test(clock: ManualClock) -> None:
        shelf = SharedShelf()
        journal = await journal_on(shelf, "a")
        async with serving(journal, clock) as old:
            await old.ask(acquire("job"))
            pieces = [piece async for piece in backup(old, b"k" * 32, "test", BackupWriter())]
            assert pieces and len(journal.confirms) == 1
            async with serving(await journal_on(shelf, "b"), clock):
                with pytest.raises(DeposedError):
                    await anext(backup(old, b"k" * 32, "test", BackupWriter()))
                assert old.ended.is_set(), "it found out by a proof"

    run(test)


def test_confirmation_records_the_time_of_the_answer() -> None:
    """The time of an answer without a record is in the store before the answer is given (N-15)."""

    async def test(clock: ManualClock) -> None:
        shelf = SharedShelf()
        async with serving(await journal_on(shelf), clock) as engine:
            await engine.ask(acquire("job"))
            clock.advance(200)
            asked = Asked(engine)
            asked.read("late", nothing)
            await turns()
            assert shelf.leadership.now_ms == asked.moments["late"].ms == 200

    run(test)


def test_deposed_leader_rejects_all_requests() -> None:
    """Deposed by number: the batch, all that was decided on top, and all who wait hear `NotLeader` (N-12, N-18)."""

    async def test(clock: ManualClock) -> None:
        shelf = SharedShelf()
        journal = await journal_on(shelf, "a")
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            await engine.ask(acquire("held"))
            asked.submit("waits", wait_for("held", "ben"))
            await turns()
            listener = engine.feed.listen(EVERYTHING)
            journal.is_shut = True
            asked.submit("batch", acquire("job"))
            await turns()
            asked.submit("on top", acquire("other"))
            before = picture(engine.state)
            async with serving(await journal_on(shelf, "b"), clock) as new:
                journal.let_through()
                await asyncio.wait_for(engine.ended.wait(), 1)
                assert sorted(asked.labels) == ["batch", "on top", "waits"]
                assert {type(after_wait(outcome)[0]) for _, outcome in asked.answers} == {NotLeader}
                assert listener.is_over
                assert await new.query(holders) == ["held"], "nothing of it happened"
            assert picture(engine.state) == before, "and nothing more is decided"

    run(test)


@pytest.mark.parametrize("error", [OutcomeUnknownError("append: lost"), JournalError("append: odd")])
def test_unknown_outcome_ends_the_term(error: JournalError) -> None:
    """Whatever else goes wrong with a write, nobody knows: everybody hears that, and the tenure is over (N-12)."""

    async def test(clock: ManualClock) -> None:
        journal = await journal_on(SharedShelf())
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            journal.is_shut = True
            asked.submit("batch", acquire("job"))
            await turns()
            asked.submit("on top", acquire("job", "again"))
            journal.let_through(error)
            await asyncio.wait_for(engine.ended.wait(), 1)
            assert asked.kinds == ["Unknown", "Unknown"]
            assert isinstance((await engine.ask(acquire("new")))[0], NotLeader), "that was not decided here"

    run(test)


def test_store_errors_appear_in_the_log_only() -> None:
    """N-34: anybody may ask whether a node leads, and hears neither the store's error nor where the store is."""

    async def test(clock: ManualClock) -> None:
        journal = await journal_on(SharedShelf())
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            journal.is_shut = True
            asked.submit("job", acquire("job"))
            await turns()
            journal.let_through(OutcomeUnknownError("db.internal:5432 was cut off"))
            await turns()
            assert "db.internal" in (engine.failed or "")
            asked.submit("later", acquire("job"))
            assert "db.internal" not in engine.why_not_serving() + asked["later"].text

    run(test)


def test_refused_write_is_rolled_back_in_the_same_term() -> None:
    """What surely did not happen is taken back, and the same tenure goes on; a refused proof too (I6)."""

    async def test(clock: ManualClock) -> None:
        shelf = SharedShelf()
        journal = await journal_on(shelf)
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            for is_write in (True, False):
                journal.is_shut = True
                if is_write:
                    asked.submit("write", acquire("job"))
                else:
                    asked.read("read", holders)
                await turns()
                journal.is_shut = False
                journal.let_through(JournalUnavailableError("append: no"))
                await turns(10)
            assert asked.kinds == ["Unavailable", "Unavailable"]
            assert isinstance((await engine.ask(acquire("job")))[0], Acquired)
            assert shelf.leadership.epoch == engine.state.epoch == 1

    run(test)


def test_refusing_store_is_reported_until_it_accepts(caplog: pytest.LogCaptureFixture) -> None:
    """A full disk may take a proof of the seat and no record. It is told until a record is taken, and one is tried at
    every beat; each reason is in the log once, however they take turns.
    """

    async def test(clock: ManualClock) -> None:
        shelf = SharedShelf()
        journal = await journal_on(shelf)
        async with serving(journal, clock) as engine:
            assert not engine.is_refused
            for number in range(6):
                journal.is_shut = True
                engine.heartbeat() if number else engine.submit(acquire("job"), lambda *_: None)
                await turns()
                journal.is_shut = False
                journal.let_through(JournalUnavailableError(f"append: no room for file {number % 2}"))
                await turns(10)
                assert isinstance(await engine.query(holders), list), "a proof of the seat is taken"
                assert engine.is_refused
            engine.heartbeat()
            await turns(10)
            assert not engine.is_refused

    with caplog.at_level("WARNING", "holdfast.engine"):
        run(test)
    assert [text.partition(";")[0] for text in caplog.messages] == [
        "append: no room for file 0",
        "append: no room for file 1",
        "writes work again: 1 records are on the disk",
    ]


def test_unresponsive_store_rejects_new_requests() -> None:
    """A second without an answer: new requests are refused at once and streams end; the answer ends that (N-19)."""

    async def test(clock: ManualClock) -> None:
        journal = await journal_on(SharedShelf())
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            listener = engine.feed.listen(EVERYTHING)
            journal.is_shut = True
            asked.submit("before", acquire("job"))
            await asyncio.sleep(0.9)
            asked.read("in time", nothing)
            assert asked.answers == [] and not listener.is_over
            await asyncio.sleep(0.2)
            assert [listener.is_over, engine.tick(), engine.confirmed_ms_ago()] == [True, None, None]
            asked.read("refused", nothing)
            asked.submit("refused too", acquire("job", "again"))
            assert asked.labels == ["refused", "refused too"] and set(asked.kinds) == {"NotLeader"}
            journal.is_shut = False
            journal.let_through()
            await turns(10)
            assert asked.labels[2:] == ["before", "in time"] and asked.kinds[2:] == ["Acquired", "NoneType"]
            assert isinstance((await engine.ask(acquire("new")))[0], Acquired)
            assert engine.failed is None and engine.confirmed_ms_ago() == 0

    run(test)


def test_stop_does_not_wait_for_an_unresponsive_store() -> None:
    """An engine that is told to stop lets its journal ask no longer than a few seconds; what is owed is unknown."""

    async def test(clock: ManualClock) -> None:
        journal = await journal_on(SharedShelf())
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            journal.is_shut = True
            asked.submit("last", acquire("job"))
            stopping = asyncio.ensure_future(engine.stop())
            await turns(10)
            assert journal.hurries == [LAST_ANSWERS_SECONDS] and not stopping.done()
            journal.let_through(OutcomeUnknownError("append: its answer was lost"))
            await stopping
            assert asked.kinds == ["Unknown"]

    run(test)


def test_time_advances_again_after_a_store_timeout() -> None:
    """What fell due in a silence of the store ends when it is over, though nobody asks (N-19, T3)."""

    async def test(clock: ManualClock) -> None:
        journal = await journal_on(SharedShelf())
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("job", ttl_ms=2_000))
            journal.is_shut = True
            engine.read(nothing, lambda *_: None)
            await asyncio.sleep(1.5)
            journal.is_shut = False
            journal.let_through()
            await asyncio.sleep(4)
            assert not holders(engine.state, engine.ticks.now)

    run(test)


def test_failed_answer_ends_the_store_timeout() -> None:
    """A silence that ends with a refusal is taken back as any other, and the engine serves (N-19, I6)."""

    async def test(clock: ManualClock) -> None:
        journal = await journal_on(SharedShelf())
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            journal.is_shut = True
            asked.submit("job", acquire("job"))
            await asyncio.sleep(1.1)
            journal.is_shut = False
            journal.let_through(JournalUnavailableError("append: no"))
            await turns(10)
            assert asked.kinds == ["Unavailable"]
            assert isinstance((await engine.ask(acquire("job")))[0], Acquired)

    run(test)


def test_only_successful_answers_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A silence that ends because the question was given up does not say that the store answers again."""

    async def test(clock: ManualClock) -> None:
        journal = await journal_on(SharedShelf())
        async with serving(journal, clock) as engine:
            for outcome in (JournalUnavailableError("confirm: PostgreSQL could not be asked for 10 s"), None):
                journal.is_shut = True
                engine.read(nothing, lambda *_: None)
                await asyncio.sleep(1.1)
                journal.is_shut = False
                journal.let_through(outcome)
                await turns(10)
                said = [text for text in caplog.messages if "answers again" in text]
                assert said == ([] if outcome else ["the store answers again"]), caplog.messages

    with caplog.at_level("WARNING", "holdfast.engine"):
        run(test)


def test_confirmed_ms_ago_counts_from_the_request() -> None:
    """What is proven is that the seat was ours when the store was asked, however late it answers (N-34)."""

    async def test(clock: ManualClock) -> None:
        journal = await journal_on(SharedShelf())
        async with serving(journal, clock) as engine:
            assert engine.confirmed_ms_ago() is None
            journal.is_shut = True
            engine.read(nothing, lambda *_: None)
            await asyncio.sleep(0.7)
            journal.is_shut = False
            journal.let_through()
            await turns()
            assert engine.confirmed_ms_ago() == 700

    run(test)


def test_time_continues_after_the_previous_term() -> None:
    """Authority time resumes at the later of the last record and the last proof; `Opened` has that time (N-17)."""

    async def test(clock: ManualClock) -> None:
        shelf = SharedShelf()
        old = await journal_on(shelf, "a")
        async with serving(old, clock) as engine:
            await engine.ask(acquire("job", ttl_ms=8_000))
            await engine.ask(wait_for("job", "ben", wait_ms=1))
            for _ in range(3):
                clock.advance(200)
                await engine.query(nothing)
            returned_ms = shelf.leadership.now_ms
            last_ms = old.appends[-1][-1].at_ms
            assert returned_ms > last_ms, "nothing was written since, but something was answered"
            clock.advance(10_000)
            new = await journal_on(shelf, "b")
            async with serving(new, clock) as successor:
                assert [(type(r.event), r.at_ms) for r in new.appends[0]] == [(Opened, returned_ms)]
                assert successor.ticks.now_ms == returned_ms, "the time in between counts for nobody: never fast"
                assert await successor.query(holders) == ["job"]
                assert set(successor.state.connected.detached_since.values()) == {returned_ms}, "a full minute (W2)"

    run(test)


def test_long_recovery_sends_heartbeats() -> None:
    """Who takes the seat and reads for seconds says meanwhile that it lives, so that nobody takes it away (N-13)."""

    async def test(clock: ManualClock) -> None:
        shelf = SharedShelf()
        limits = Limits(leases_per_principal_max=20_000)
        async with serving(await journal_on(shelf, "a"), clock, limits=limits) as engine:
            asked = Asked(engine)
            for number in range(5_000):
                asked.submit(f"{number}", acquire(f"job/{number}"))
            await turns()
            await engine.archive()
            for number in range(5_000):
                asked.submit(f"{number} again", acquire(f"more/{number}"))
            await turns()
        journal = await journal_on(shelf, "b")
        epoch = shelf.leadership.epoch
        slow = SlowClock(clock)
        engine = Engine(journal, limits, clock=slow, version="test")
        slow.runs = True
        await engine.start()
        slow.runs = False
        assert len(journal.confirms) >= 7 and set(journal.confirms) == {0}
        assert shelf.leadership.epoch == epoch + 1
        assert len(engine.state.index.held) == 10_000
        await engine.stop()

    run(test)


class SlowClock:
    """Passes 400 ms whenever it is asked, as if each step of reading took as long."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.runs = False
        self.monotonic_seconds = clock.monotonic_seconds
        self.wall_ms = clock.wall_ms

    def monotonic_ms(self) -> int:
        if self.runs:
            self._clock.advance(400)
        return self._clock.monotonic_ms()


def test_time_never_goes_back_within_a_term() -> None:
    """A refused write is taken back, and the time that was answered with is not: nothing opens twice (N-15, T1)."""

    async def test(clock: ManualClock) -> None:
        journal = await journal_on(SharedShelf())
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("job"))
            asked = Asked(engine)
            clock.advance(200)
            asked.read("late", nothing)
            await turns()
            journal.is_shut = True
            asked.submit("refused", acquire("other"))
            await turns()
            journal.is_shut = False
            journal.let_through(JournalUnavailableError("append: no"))
            await turns(10)
            assert engine.ticks.now_ms >= asked.moments["late"].ms == 200

    run(test)


def test_store_that_lost_records_gets_a_token_gap() -> None:
    """After a loss `Restored` comes first, in one append with `Opened`, and no token comes twice (N-22, C6)."""

    async def test(clock: ManualClock) -> None:
        shelf = SharedShelf()
        async with serving(await journal_on(shelf, "a"), clock) as engine:
            await engine.ask(acquire("job"))
        clock.advance(10 * MINUTE_MS)
        journal = await journal_on(shelf, "b", needs_token_gap=True)
        async with serving(journal, clock) as engine:
            (first,) = journal.appends
            restored, opened = (record.event for record in first)
            assert isinstance(restored, Restored) and isinstance(opened, Opened)
            assert restored.last_token == 1 + TOKEN_GAP + TOKEN_GAP_PER_MS * 10 * MINUTE_MS
            assert restored.backup_seq == first[0].seq - 1
            answer, _ = await engine.ask(acquire("other"))
            assert answer.lease.token == restored.last_token + 1
            assert (engine.state.restores, engine.state.restored_seq) == (1, first[0].seq)

    run(test)


@pytest.mark.parametrize("is_retained", [True, False])
def test_loss_after_archiving_gets_a_large_enough_token_gap(*, is_retained: bool) -> None:
    """With no record to replay, the history tells how old the newest is; without any, a year is taken (C6)."""

    async def test(clock: ManualClock) -> None:
        shelf = SharedShelf()
        journal = await journal_on(shelf, "a")
        if not is_retained:
            journal._retention = Retention(wall_ms=0, records_max=0, bytes_max=0)
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("job"))
            clock.advance(1)
            await engine.archive()
            passed_ms = clock.wall_ms()
        clock.advance(MINUTE_MS)
        async with serving(await journal_on(shelf, "b", needs_token_gap=True), clock) as engine:
            passed_ms = clock.wall_ms() - passed_ms + 1 if is_retained else UNKNOWN_MS
            assert engine.state.last_token == 1 + TOKEN_GAP + TOKEN_GAP_PER_MS * passed_ms

    run(test)


def test_token_gap_beyond_the_last_token_is_refused() -> None:
    """Where no room is left to jump, the tenure does not begin: a token that came twice would be worse (C6)."""

    async def test(clock: ManualClock) -> None:
        shelf = SharedShelf()
        async with serving(await journal_on(shelf, "a"), clock) as engine:
            await engine.ask(acquire("job"))
        clock.step_wall(TOKEN_MAX // TOKEN_GAP_PER_MS)
        with pytest.raises(JournalError, match="clock of this machine"):
            async with serving(await journal_on(shelf, "b", needs_token_gap=True), clock):
                pass

    run(test)


def test_counters_of_losses_are_archived() -> None:
    """How often the store went back is part of the state: it is there after it was archived (N-32)."""

    async def test(clock: ManualClock) -> None:
        shelf = SharedShelf()
        async with serving(await journal_on(shelf, "a", needs_token_gap=True), clock) as engine:
            await engine.ask(acquire("job"))
            await engine.archive()
        async with serving(await journal_on(shelf, "b"), clock) as engine:
            assert (engine.state.restores, engine.state.restored_seq) == (1, 1)

    run(test)


def test_archiving_after_lost_leadership_defers_to_the_write_path() -> None:
    """An archive that is refused because another has the seat ends nothing: the next proof does (N-12)."""

    async def test(clock: ManualClock) -> None:
        shelf = SharedShelf()
        journal = await journal_on(shelf, "a")
        journal.archiving = DeposedError("archive: b has the seat")
        async with serving(journal, clock, archive_policy=ArchivePolicy(records=2)) as engine:
            await engine.ask(acquire("job"))
            await turns(10)
            assert not engine.ended.is_set()
            async with serving(await journal_on(shelf, "b"), clock):
                assert isinstance((await engine.ask(acquire("more")))[0], NotLeader)
                assert engine.ended.is_set()

    run(test)


def test_orderly_stop_returns_tickets_to_waiters() -> None:
    """Who stops in order tells all who wait their places, behind a proof, and gives the seat back (N-18)."""

    async def test(clock: ManualClock) -> None:
        shelf = SharedShelf()
        journal = await journal_on(shelf)
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            await engine.ask(acquire("held"))
            asked.submit("waits", wait_for("held", "ben"))
            await turns()
            journal.is_shut = True
            stopping = asyncio.ensure_future(engine.stop())
            await turns()
            assert asked.answers == [] and shelf.leadership.is_held
            journal.is_shut = False
            journal.let_through()
            await stopping
            assert after_wait(asked["waits"])[0] == Waiting("ticket-of-ben", 1)
            assert not shelf.leadership.is_held

    run(test)


def test_stop_after_lost_leadership_returns_no_tickets() -> None:
    """Who is deposed while it stops tells nobody a place: another may have given it away (N-18)."""

    async def test(clock: ManualClock) -> None:
        shelf = SharedShelf()
        async with serving(await journal_on(shelf, "a"), clock) as engine:
            asked = Asked(engine)
            await engine.ask(acquire("held"))
            asked.submit("waits", wait_for("held", "ben"))
            await turns()
            async with serving(await journal_on(shelf, "b"), clock):
                await engine.stop()
                assert [type(after_wait(outcome)[0]) for _, outcome in asked.answers] == [NotLeader]
                assert shelf.leadership.is_held and shelf.leadership.node == "b", "and it takes the seat from nobody"

    run(test)


def test_stop_during_a_store_timeout_answers_all() -> None:
    """Whoever waits when a node stops that hears nothing from the store is answered, too (N-18, N-19)."""

    async def test(clock: ManualClock) -> None:
        journal = await journal_on(SharedShelf())
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            await engine.ask(acquire("held"))
            asked.submit("waits", wait_for("held", "ben"))
            await turns()
            journal.is_shut = True
            engine.read(nothing, lambda *_: None)
            await asyncio.sleep(1.5)
            stopping = asyncio.ensure_future(engine.stop())
            await turns()
            journal.let_through()
            journal.is_shut = False
            await stopping
            assert [type(after_wait(outcome)[0]) for _, outcome in asked.answers] == [NotLeader]

    run(test)


def test_authority_key_is_read_with_leadership() -> None:
    """Every tenure reads the authority's key under its seat (N-6)."""

    async def test(clock: ManualClock) -> None:
        async with serving(await journal_on(SharedShelf(key=b"x" * 32)), clock) as engine:
            assert engine.key == b"x" * 32

    run(test)
