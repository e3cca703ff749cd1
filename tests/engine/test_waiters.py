"""Who waits in line: told once, when it is durable, in time; a place outlives the request and the process (W2–W5)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.core.commands import Leave
from holdfast.core.events import Granted, Joined, Left
from holdfast.core.outcomes import Acquired, AcquiredMany, TicketGone, Waiting, Withdrawn
from holdfast.engine.archiver import ArchivePolicy
from holdfast.engine.waiters import (
    RECONNECT_MS_MAX,
    STALE_DEADLINES_MAX,
    Unavailable,
    Unknown,
    Waited,
    Waiter,
    Waiters,
    after_wait,
)
from holdfast.journal.interface import JournalUnavailableError, OutcomeUnknownError
from tests.engine.harness import FineClock, GateJournal, acquire, events, release, run, serving, turns
from tests.support.commands import claim_all
from tests.support.memory_journal import MemoryJournal

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from holdfast.core.commands import Acquire
    from holdfast.engine.engine import Engine
    from holdfast.testing.clock import ManualClock

    Test = Callable[[ManualClock], Coroutine[Any, Any, None]]

MINUTE_MS = 60_000


def wait_for(name: str, owner: str, *, wait_ms: int = 30_000, **more: Any) -> Acquire:  # noqa: ANN401 - passed on
    """A claim that waits."""
    fields: dict[str, Any] = {"owner": owner, "wait_ms": wait_ms, "new_ticket": f"ticket-of-{owner}", **more}
    return acquire(name, f"id-of-{owner}", ttl_ms=fields.pop("ttl_ms", 3_600_000), **fields)


class PendingCommand:
    """A command that was submitted, the one who waits for it, and the answers that came: one at most."""

    def __init__(self, engine: Engine, command: Any) -> None:  # noqa: ANN401 - any command
        self.answers: list[Any] = []
        self.is_answered = asyncio.Event()
        self.engine = engine
        self.waiter = engine.submit(command, self._receive)

    def _receive(self, outcome: object, _: object) -> None:
        self.answers.append(outcome)
        self.is_answered.set()

    @property
    def answer(self) -> object:
        (outcome,) = self.answers
        return after_wait(outcome)[0]

    @property
    def waited_ms(self) -> int:
        return after_wait(self.answers[0])[1]

    def go(self) -> None:
        """Be gone."""
        assert self.waiter is not None
        self.engine.stop_waiting(self.waiter)


def test_release_wakes_exactly_one_waiter() -> None:
    """On release exactly one is told, and nobody else hears anything (W5)."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(acquire("job", ttl_ms=3_600_000))
            line = [PendingCommand(engine, wait_for("job", f"o-{number}")) for number in range(100)]
            await engine.ask(release("job"))
            for number, pending in enumerate(line):
                assert isinstance(pending.answer, Acquired)
                assert not any(later.answers for later in line[number + 1 :])
                await engine.ask(release("job", f"id-of-o-{number}"))

    run(test)


def test_waiter_is_notified_once_its_grant_is_durable() -> None:
    """Nobody in line hears of its turn before the record of it is durable (C1)."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("job", ttl_ms=3_600_000))
            pending = PendingCommand(engine, wait_for("job", "ben"))
            await turns(20)
            journal.is_shut = True
            engine.submit(release("job"), lambda *_: None)
            await turns(20)
            assert pending.answers == []
            journal.open_gate()
            await turns(20)
            assert isinstance(pending.answer, Acquired)

    run(test)


@pytest.mark.parametrize("fate", ["refused", "unknown"])
def test_failed_append_answers_all_waiters(fate: str) -> None:
    """When the store fails, those who wait are told, each once, what is true: who joined before keeps its place and
    hears so, of who joined in the failed batch nothing happened, and nobody knows if the store does not (I6, W2).
    """

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("job", ttl_ms=3_600_000))
            early = PendingCommand(engine, wait_for("job", "early"))
            await turns(20)
            journal.is_shut = True
            late = PendingCommand(engine, wait_for("job", "late"))
            await turns(20)
            error = JournalUnavailableError("no") if fate == "refused" else OutcomeUnknownError("who knows")
            journal.let_through(error)
            await turns(20)
            journal.is_shut = False
            if fate == "unknown":
                assert isinstance(early.answer, Unknown)
                assert isinstance(late.answer, Unknown)
            else:
                assert early.answer == Waiting("ticket-of-early", 1)
                assert late.answer == Unavailable("no")
                assert list(engine.state.tickets) == ["ticket-of-early"]
                assert engine.state.connected.attached == set()
                back = PendingCommand(engine, wait_for("job", "early", ticket="ticket-of-early"))
                await engine.ask(release("job"))
                assert isinstance(back.answer, Acquired)

    run(test)


def test_rolled_back_grant_preserves_the_ticket() -> None:
    """Whose turn came in a batch that failed is still in line, in its order, and hears so: it did not lose it (W2)."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("job", ttl_ms=3_600_000))
            line = [PendingCommand(engine, wait_for("job", owner)) for owner in ("first", "second", "third")]
            await turns(20)
            journal.is_shut = True
            released = PendingCommand(engine, release("job"))
            await turns(20)
            on_top = PendingCommand(engine, release("job", "id-of-first"))
            journal.let_through(JournalUnavailableError("no"))
            await turns(20)
            journal.is_shut = False
            assert [pending.answer for pending in line] == [
                Waiting("ticket-of-first", 1),
                Waiting("ticket-of-second", 2),
                Waiting("ticket-of-third", 3),
            ]
            assert isinstance(released.answer, Unavailable)
            assert isinstance(on_top.answer, Unavailable)
            assert engine.state.connected.attached == set()
            back = PendingCommand(engine, wait_for("job", "first", ticket="ticket-of-first"))
            await engine.ask(release("job"))
            assert isinstance(back.answer, Acquired)

    run(test)


def test_waiter_gets_no_unknown_outcome() -> None:
    """When the store refuses while the engine stops, the state is not read anew: a place in line is unknown (I6)."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("job", ttl_ms=3_600_000))
            waiting = PendingCommand(engine, wait_for("job", "ben"))
            await turns(20)
            journal.is_shut = True
            engine.submit(acquire("other"), lambda *_: None)
            stopping = asyncio.create_task(engine.stop())
            await turns(20)
            journal.let_through(JournalUnavailableError("no"))
            await stopping
            assert isinstance(waiting.answer, Unknown)

    run(test)


def test_wait_ends_on_time() -> None:
    """A wait ends when it should, a short one too although the clock ticks more slowly, and says how long it was."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(acquire("job", ttl_ms=3_600_000))
            for wait_ms in (1, 5, 99, 250, 50_000):
                began_ms = clock.monotonic_ms()
                pending = PendingCommand(engine, wait_for("job", "ben", wait_ms=wait_ms))
                await pending.is_answered.wait()
                passed_ms = clock.monotonic_ms() - began_ms
                assert pending.answer == Waiting("ticket-of-ben", 1)
                assert wait_ms <= passed_ms <= wait_ms + 110
                assert wait_ms - 2 <= pending.waited_ms <= passed_ms

    run(test)


def test_waited_ms_never_exceeds_the_real_wait() -> None:
    """The time of a wait is as of the turn that ended it, like the lease that it got (W4, I4)."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(acquire("job", ttl_ms=3_600_000))
            pending = PendingCommand(engine, wait_for("job", "ben", ttl_ms=10_000))
            await turns()
            clock.advance(200)
            moment = engine.tick()
            # The round takes its time before the release is decided in it: the lease counts from its release.
            clock.advance(150)
            engine.submit(release("job"), lambda *_: None)
            await turns()
            answer = pending.answer
            assert isinstance(answer, Acquired) and moment is not None
            assert answer.until_ms == moment.ms + 150 + 10_000
            assert pending.waited_ms == 200 + 150 - 1

    run(test)


@pytest.mark.parametrize("received_us", [0, 1, 500, 900, 999])
def test_waited_ms_is_rounded_down(received_us: int) -> None:
    """A wait of 4.2 ms is never told as 5 ms, wherever between two milliseconds it began: a client counts its lease
    from what it is told, and must not believe in it for longer than the server does (W4, I4).
    """

    async def test(clock: ManualClock) -> None:
        fine = FineClock(clock)
        async with serving(MemoryJournal(), fine) as engine:
            await engine.ask(acquire("job", ttl_ms=3_600_000))
            await turns()
            fine.past_us = received_us
            pending = PendingCommand(engine, wait_for("job", "ben"))
            await turns()
            fine.past_us += 4_200
            engine.submit(release("job"), lambda *_: None)
            await turns()
            assert isinstance(pending.answer, Acquired)
            assert 4.2 - 2 <= pending.waited_ms <= 4.2

    run(test)


@pytest.mark.parametrize("wait_ms", [1, 5, 60, 99])
def test_short_wait_ends_before_the_next_timer(wait_ms: int) -> None:
    """A wait that is shorter than a tick ends on time, also if the clock is about to tick later than that (W2)."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(acquire("job", ttl_ms=3_600_000))
            await turns()
            # The next tick is set already, and comes in 100 ms.
            assert engine.ticks.timer is not None
            began_ms = clock.monotonic_ms()
            pending = PendingCommand(engine, wait_for("job", "ben", wait_ms=wait_ms))
            await pending.is_answered.wait()
            assert pending.answer == Waiting("ticket-of-ben", 1)
            assert wait_ms <= clock.monotonic_ms() - began_ms <= wait_ms + 1

    run(test)


def test_lease_end_notifies_its_waiter() -> None:
    """When a lease expires although nobody asks anything, the first in line hears of its turn at that time (L1, W5)."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            answer, _ = await engine.ask(acquire("job", ttl_ms=2_000))
            pending = PendingCommand(engine, wait_for("job", "ben"))
            began_ms = clock.monotonic_ms()
            await pending.is_answered.wait()
            assert isinstance(pending.answer, Acquired)
            assert pending.answer.lease.token == answer.lease.token + 1
            assert 2_000 <= clock.monotonic_ms() - began_ms <= 2_250
            assert 1_998 <= pending.waited_ms <= 2_250

    run(test)


def test_waited_ms_is_never_negative() -> None:
    """Who comes back to its place without waiting is told that it waited for 0 ms (W4)."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(acquire("job", ttl_ms=3_600_000))
            PendingCommand(engine, wait_for("job", "ben"))
            await turns()
            back = PendingCommand(engine, wait_for("job", "ben", ticket="ticket-of-ben", wait_ms=0))
            await turns()
            assert (back.answer, back.waited_ms) == (Waiting("ticket-of-ben", 1), 0)

    run(test)


def test_restarted_engine_accepts_waits() -> None:
    """An engine that was stopped and started again lets commands wait, as it did before (W2)."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(acquire("job", ttl_ms=3_600_000))
            await engine.stop()
            await engine.start()
            pending = PendingCommand(engine, wait_for("job", "ben"))
            await turns(20)
            assert pending.answers == []
            await engine.ask(release("job"))
            assert isinstance(pending.answer, Acquired)

    run(test)


def test_detached_ticket_lasts_a_minute() -> None:
    """Who is away comes back within a minute to its place; after that it is gone, and the record says so (W2)."""

    async def test(clock: ManualClock) -> None:
        journal = MemoryJournal()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("job", ttl_ms=3_600_000))
            pending = PendingCommand(engine, wait_for("job", "ben"))
            pending.go()
            await asyncio.sleep(MINUTE_MS / 1000 - 1)
            back = PendingCommand(engine, wait_for("job", "ben", ticket="ticket-of-ben", wait_ms=10))
            await asyncio.sleep(1)
            assert back.answer == Waiting("ticket-of-ben", 1)
            await asyncio.sleep(MINUTE_MS / 1000 + 1)
            gone = PendingCommand(engine, wait_for("job", "ben", ticket="ticket-of-ben"))
            await turns()
            assert gone.answer == TicketGone()
            assert engine.state.tickets == {}
            assert [event.how for event in await events(journal) if isinstance(event, Left)] == ["gone"]

    run(test)


@pytest.mark.parametrize("snapshot", [False, True])
def test_restart_gives_each_ticket_a_full_minute(snapshot: bool) -> None:
    """A place is kept for a minute after a restart however long ago it was taken, from records and snapshots (W2)."""

    async def test(clock: ManualClock) -> None:
        journal = MemoryJournal()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("job", ttl_ms=24 * 3_600_000))
            for _ in range(10):
                pending = PendingCommand(engine, wait_for("job", "ben", wait_ms=50_000))
                await asyncio.sleep(50.5)
                assert pending.answer == Waiting("ticket-of-ben", 1)
            if snapshot:
                await engine.archive()
            PendingCommand(engine, wait_for("job", "ben", wait_ms=50_000))
            await asyncio.sleep(40)
        crashed = journal.fork()
        async with serving(crashed, clock) as engine:
            await asyncio.sleep(MINUTE_MS / 1000 - 2)
            back = PendingCommand(engine, wait_for("job", "ben", ticket="ticket-of-ben"))
            await engine.ask(release("job"))
            assert isinstance(back.answer, Acquired)

    run(test)


def test_restart_preserves_the_queue_order() -> None:
    """After a restart from a snapshot and records the line is in the order of joining (I12, I15)."""

    async def test(clock: ManualClock) -> None:
        journal = MemoryJournal()
        async with serving(journal, clock, archive_policy=ArchivePolicy(records=1_000)) as engine:
            await engine.ask(acquire("job", ttl_ms=24 * 3_600_000))
            for number in range(20):
                PendingCommand(engine, wait_for("job", f"o-{number:02}"))
                await turns()
                if number == 12:
                    await engine.archive()
        async with serving(journal.fork(), clock) as engine:
            back = {
                number: PendingCommand(engine, wait_for("job", f"o-{number:02}", ticket=f"ticket-of-o-{number:02}"))
                for number in (19, 3, 0, 13, 12, 7)
            }
            lease_id = "id-of-job"
            for number in sorted(back):
                await engine.ask(release("job", lease_id))
                assert isinstance(back[number].answer, Acquired)
                lease_id = f"id-of-o-{number:02}"

    run(test)


def test_retrying_client_stays_attached_between_requests() -> None:
    """Who said that another request follows has its turn between two, and its key leads to the lease (W1, W2)."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(acquire("job", ttl_ms=3_600_000))
            soon = PendingCommand(engine, wait_for("job", "soon", wait_ms=50, key="k", will_retry=True))
            later = PendingCommand(engine, wait_for("job", "later"))
            clock.advance(60)
            await engine.query(lambda _state, _now: None)
            assert isinstance(soon.answer, Waiting) and soon.answer.position == 1
            await engine.ask(release("job"))
            assert later.answers == []
            again = PendingCommand(engine, wait_for("job", "soon", ticket="ticket-of-soon", key="k", will_retry=True))
            await turns()
            assert isinstance(again.answer, Acquired)

    run(test)


def test_client_that_does_not_retry_is_detached() -> None:
    """Who said that another request follows, and sends none, blocks nobody after two seconds (W2)."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(acquire("job", ttl_ms=3_600_000))
            PendingCommand(engine, wait_for("job", "gone", wait_ms=50, key="k", will_retry=True))
            later = PendingCommand(engine, wait_for("job", "later"))
            for _ in range(RECONNECT_MS_MAX // 200 + 2):
                clock.advance(200)
                await engine.query(lambda _state, _now: None)
            assert engine.state.connected.attached == {"ticket-of-later"}
            assert "ticket-of-gone" in engine.state.connected.detached_since, "it keeps its order"
            await engine.ask(release("job"))
            assert isinstance(later.answer, Acquired)

    run(test)


def test_stopping_engine_answers_waiters() -> None:
    """All who wait hear their place when the engine is about to stop; who comes after does not wait (W2)."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(acquire("job", ttl_ms=3_600_000))
            line = [PendingCommand(engine, wait_for("job", f"o-{number}")) for number in range(3)]
            await turns()
            engine.end_waits()
            late = PendingCommand(engine, wait_for("job", "late"))
            await turns()
            for pending in (*line, late):
                assert isinstance(pending.answer, Waiting)
            assert engine.state.connected.attached == set()
            free = PendingCommand(engine, wait_for("other", "late"))
            await turns()
            assert isinstance(free.answer, Acquired)

    run(test)


def test_stop_answers_waiters() -> None:
    """`stop` leaves nobody without an answer."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(acquire("job", ttl_ms=3_600_000))
            pending = PendingCommand(engine, wait_for("job", "ben"))
            await turns()
        assert pending.answer == Waiting("ticket-of-ben", 1)

    run(test)


def test_second_request_takes_over_the_ticket() -> None:
    """Asking again takes the place over: the first is told `waiting`, and its going away later changes nothing (W3)."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(acquire("job", ttl_ms=3_600_000))
            first = PendingCommand(engine, wait_for("job", "ben"))
            second = PendingCommand(engine, wait_for("job", "ben", new_ticket="another"))
            await turns()
            assert first.answer == Waiting("ticket-of-ben", 1)
            first.go()
            assert engine.state.connected.attached == {"ticket-of-ben"}
            await engine.ask(release("job"))
            assert isinstance(second.answer, Acquired)
            second.go()
            assert engine.state.lease_of("job") is not None

    run(test)


def test_stop_waiting_twice_is_harmless() -> None:
    """Who is gone is gone once; who was told meanwhile was told."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(acquire("job", ttl_ms=3_600_000))
            pending = PendingCommand(engine, wait_for("job", "ben"))
            pending.go()
            pending.go()
            assert engine.state.connected.queues == {}
            await engine.ask(release("job"))
            assert pending.answers == []
            assert engine.state.lease_of("job") is None

    run(test)


def test_withdrawn_wait_is_answered() -> None:
    """Giving a place up answers the one who waits at it."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(acquire("job", ttl_ms=3_600_000))
            pending = PendingCommand(engine, wait_for("job", "ben"))
            outcome, _ = await engine.ask(Leave(ticket_id="ticket-of-ben", principal="ana"))
            assert outcome == Withdrawn()
            assert pending.answer == TicketGone()

    run(test)


def test_waits_of_claim_all_end_and_resume() -> None:
    """A claim of all waits, comes back and is granted in one record (M2)."""

    async def test(clock: ManualClock) -> None:
        journal = MemoryJournal()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("b", ttl_ms=3_600_000))
            fields: dict[str, Any] = {"names": ("a", "b"), "lease_ids": ("ia", "ib"), "owner": "ben"}
            command = claim_all(principal="ana", ttl_ms=60_000, wait_ms=20, new_ticket="t", **fields)
            pending = PendingCommand(engine, command)
            await asyncio.sleep(0.2)
            assert pending.answer == Waiting("t", 1)
            back = PendingCommand(
                engine, claim_all(principal="ana", ttl_ms=60_000, wait_ms=9_000, ticket="t", **fields)
            )
            await engine.ask(release("b"))
            answer = back.answer
            assert isinstance(answer, AcquiredMany)
            assert [name for name, _ in answer.claims] == ["a", "b"]
            kinds = [type(event) for event in await events(journal)]
            assert kinds.count(Joined) == 1 and kinds.count(Granted) == 1

    run(test)


# The list of those who wait.


def _waiter(ticket_id: str, deadline_ms: int) -> Waiter:
    return Waiter(ticket_id, lambda *_: None, received_ms=0, deadline_ms=deadline_ms)


def test_overdue_waiters_end_in_order() -> None:
    """Those who have waited long enough come in the order of their deadlines, each once, and wait no more."""
    waiters = Waiters()
    for number in (3, 1, 2):
        assert waiters.put(_waiter(f"t-{number}", number)) is None
    assert waiters.next_deadline_ms() == 1
    assert [waiter.ticket_id for waiter in waiters.overdue(2)] == ["t-1", "t-2"]
    assert list(waiters.overdue(2)) == []
    assert len(waiters) == 1


def test_answered_waiter_is_not_overdue() -> None:
    """Who was told, gone or replaced does not come up when its time is over."""
    waiters = Waiters()
    notified, gone, first = (_waiter(ticket, 5) for ticket in ("notified", "gone", "place"))
    for waiter in (notified, gone, first):
        waiters.put(waiter)
    assert waiters.take("notified") is notified
    assert waiters.drop(gone)
    assert not waiters.drop(gone)
    second = _waiter("place", 7)
    assert waiters.put(second) is first
    assert not waiters.drop(first)
    assert list(waiters.overdue(6)) == []
    assert waiters.take_all() == [second]
    assert waiters.next_deadline_ms() is None


def test_stale_deadlines_are_removed() -> None:
    """Many who come and are served at once leave nothing behind until their deadlines: their number is bounded."""
    waiters = Waiters()
    stays = _waiter("stays", 50_000)
    waiters.put(stays)
    for number in range(20 * STALE_DEADLINES_MAX):
        waiters.put(_waiter(f"t-{number}", 40_000 + number))
        waiters.take(f"t-{number}")
        assert len(waiters.deadlines) <= STALE_DEADLINES_MAX + 5
    assert list(waiters.overdue(60_000)) == [stays]


def test_removing_stale_deadlines_preserves_the_order() -> None:
    """After the spent are cleared out, those who still wait come in the order of their deadlines, none too late."""
    waiters = Waiters()
    deadlines_ms = [number * 7_919 % 10_007 for number in range(6 * STALE_DEADLINES_MAX)]
    for number, deadline_ms in enumerate(deadlines_ms):
        waiters.put(_waiter(f"t-{number}", deadline_ms))
        if number % 10:
            waiters.take(f"t-{number}")
    waiters.put(_waiter("last", 20_000))
    for reached_ms in range(0, 21_000, 500):
        assert all(reached_ms - 500 < waiter.deadline_ms <= reached_ms for waiter in waiters.overdue(reached_ms))
    assert len(waiters) == 0


def test_after_wait_returns_plain_outcomes() -> None:
    """What came at once was waited for for no time."""
    assert after_wait("x") == ("x", 0)
    assert after_wait(Waited("x", 7, "ticket")) == ("x", 7)
