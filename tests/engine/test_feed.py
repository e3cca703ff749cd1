"""What listeners hear: durable records only, all of them, in order, or that they fell behind (I16)."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.core.commands import EndSession, OpenSession
from holdfast.core.events import (
    Ended,
    Granted,
    GrantedMany,
    Left,
    Record,
    Renewed,
    SessionEnded,
    TimePassed,
    TokenEnded,
    Transferred,
)
from holdfast.core.values import Lease
from holdfast.engine.feed import ALL_BACKLOG_MAX, BACKLOG_MAX, EVERYTHING, NAMES_BACKLOG_MAX, WATCHES_PER_ID_MAX, Feed
from holdfast.journal.interface import JournalUnavailableError
from tests.engine.harness import GateJournal, acquire, release, renew, run, serving, turns
from tests.support.memory_journal import MemoryJournal

if TYPE_CHECKING:
    from types import FrameType

    from holdfast.core.events import Event
    from holdfast.testing.clock import ManualClock


def _renewal(seq: int, name: str = "job") -> Record:
    return Record(seq, seq, seq, Renewed(name, "id", 1_000, 1_000 + seq))


def test_listener_receives_its_name_in_order() -> None:
    """A listener hears everything of its name once, in the journal's order, and nothing of other names (I16)."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(acquire("job", "before"))
            await engine.ask(release("job", "before"))
            listeners = [engine.feed.listen("job"), engine.feed.listen("job")]
            for command in (acquire("job"), acquire("other"), renew("job"), release("job"), acquire("job", "next")):
                await engine.ask(command)
            for listener in listeners:
                received = [await listener.next() for _ in range(4)]
                happenings = [happening for happening in received if happening is not None]
                assert [type(event) for _, event in happenings] == [Granted, Renewed, Ended, Granted]
                seqs = [record.seq for record, _ in happenings]
                assert seqs == sorted(set(seqs))

    run(test)


def test_listener_receives_durable_records_only() -> None:
    """A listener hears of a change only once it is durable, before the caller does, never of a refused one (I16)."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            listener = engine.feed.listen("job")
            hearing = asyncio.create_task(listener.next())
            journal.is_shut = True
            pending = asyncio.create_task(engine.ask(acquire("job", "refused")))
            await turns()
            journal.let_through(JournalUnavailableError("no"))
            await pending
            await turns()
            pending = asyncio.create_task(engine.ask(acquire("job", "taken")))
            await turns(20)
            assert not hearing.done()
            journal.let_through()
            happening = await hearing
            assert happening is not None
            event = happening[1]
            assert isinstance(event, Granted) and event.lease.lease_id == "taken"
            journal.is_shut = False

    run(test)


def test_session_end_is_published_under_each_name() -> None:
    """A session's end is one record, told to the listeners of every name that ended with it (I10, I16)."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(OpenSession(principal="ana", session_id="s", ttl_ms=60_000))
            for name in ("a", "b"):
                await engine.ask(acquire(name, session="s", bound=True))
            listeners = {name: engine.feed.listen(name) for name in ("a", "b", "c")}
            await engine.ask(EndSession(principal="ana", session_id="s"))
            received = {name: await listeners[name].next() for name in ("a", "b")}
            assert received["a"] is not None and received["b"] is not None
            assert received["a"][0] is received["b"][0]
            assert isinstance(received["a"][0].event, SessionEnded)
            for name, happening in received.items():
                assert happening is not None
                event = happening[1]
                assert isinstance(event, Ended) and (event.name, event.how) == (name, "session_ended")
            listeners["c"].close()
            assert await listeners["c"].next() is None

    run(test)


def test_slow_listener_is_disconnected_with_a_reason() -> None:
    """A listener whose backlog is full is ended and knows why; the others and the feed go on (I16)."""

    async def test(_: ManualClock) -> None:
        feed = Feed()
        slow, quick = feed.listen("job"), feed.listen("job")
        for seq in range(BACKLOG_MAX):
            feed.publish([_renewal(seq)])
            assert await quick.next() is not None
        assert (slow.is_over, slow.overflowed) == (False, False)
        feed.publish([_renewal(BACKLOG_MAX)])
        assert (slow.is_over, slow.overflowed) == (True, True)
        assert await slow.next() is None
        assert not quick.is_over
        assert feed.names == 1
        assert await quick.next() is not None

    run(test)


def test_listener_to_everything_receives_all_history() -> None:
    """Who listens to everything hears each record with history value once, of all names, and no renewal and no tick."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            listener = engine.feed.listen(EVERYTHING)
            await engine.ask(acquire("a"))
            await engine.ask(renew("a"))
            await asyncio.sleep(6)
            await engine.ask(acquire("b"))
            await engine.ask(release("a"))
            received = []
            while (happening := listener.next_nowait()) is not None:
                received.append(type(happening[1]))
            assert received == [Granted, Granted, Ended]

    run(test)


_END = Ended("job", "id", 1, "released", True)
_LEFT = Left("ticket", "done", ("job",))
_THOUSAND: dict[str, Event] = {
    "an end that answers those in line": Ended("job", "id", 1, "released", True, left=(_LEFT,) * 999),
    "the end of a session": SessionEnded("s", "deleted", (_END,) * 400, left=(_LEFT,) * 600),
    "a place in line that ended": Left("ticket", "gone", ("job",) * 1_000),
}


@pytest.mark.parametrize("kind", _THOUSAND)
def test_backlog_is_bounded_by_its_names(kind: str) -> None:
    """Records that speak of a thousand names each fill a backlog a thousand times as fast; what was heard leaves it."""
    record = Record(1, 1, 1, _THOUSAND[kind])
    feed = Feed()
    listener = feed.listen(EVERYTHING)
    for _ in range(NAMES_BACKLOG_MAX // 1_000):
        feed.publish([record])
    assert listener.next_nowait() is not None
    feed.publish([record])
    before = (listener.is_over, listener.overflowed)
    feed.publish([record])
    assert (before, (listener.is_over, listener.overflowed)) == ((False, False), (True, True))


def test_cancelled_reader_loses_no_events() -> None:
    """A reader that gives up waiting loses nothing: the next one hears what came meanwhile (I16)."""

    async def test(_: ManualClock) -> None:
        feed = Feed()
        listener = feed.listen("job")
        waiting = asyncio.create_task(listener.next())
        await turns()
        feed.publish([_renewal(1), _renewal(2)])
        waiting.cancel()
        await turns()
        assert waiting.cancelled()
        received = [await listener.next(), await listener.next()]
        assert [happening[0].seq for happening in received if happening is not None] == [1, 2]

    run(test)


def test_a_closed_feed_ends_every_listener() -> None:
    """When the server stops, a listener hears what it still has and then the end; closing twice is harmless."""

    async def test(_: ManualClock) -> None:
        feed = Feed()
        with_backlog, waiting = feed.listen("job"), feed.listen("other")
        hearing = asyncio.create_task(waiting.next())
        await turns()
        feed.publish([_renewal(1), Record(2, 2, 2, TimePassed())])
        feed.close()
        feed.close()
        assert await hearing is None
        assert await with_backlog.next() is not None
        assert await with_backlog.next() is None
        assert not with_backlog.overflowed
        with_backlog.close()
        assert feed.names == 0
        assert not feed.is_listened_to("job")

    run(test)


def test_listener_cost_depends_on_its_own_name() -> None:
    """A record of 1,000 names costs each of 100 watchers of one name a few steps, not a thousand."""
    feed = Feed()
    lease = Lease("id", 1, "ci", None, None, False, 1, 1, 0, None, None, 1, 1)
    grants = tuple(Granted(f"job/{number:04}", lease) for number in range(1_000))
    ends = tuple(Ended(grant.name, "id", 1, "session_ended", False) for grant in grants)
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    def steps(watchers: int) -> int:
        nonlocal calls
        listeners = [feed.listen("job/0500") for _ in range(watchers)]
        calls = 0
        sys.setprofile(count)
        try:
            feed.publish([Record(1, 1, 1, GrantedMany(grants)), Record(2, 2, 2, SessionEnded("s", "expired", ends))])
            received = [
                (listener.next_nowait(), listener.next_nowait(), listener.next_nowait()) for listener in listeners
            ]
        finally:
            sys.setprofile(None)
        assert all(each[0] == (Record(1, 1, 1, GrantedMany(grants)), grants[500]) for each in received[:1])
        assert all(each[1] is not None and each[1][1] is ends[500] and each[2] is None for each in received)
        for listener in listeners:
            listener.close()
        return calls

    few, many = steps(1), steps(101)
    assert (many - few) / 100 < 40


def _end(seq: int, lease_id: str) -> Record:
    return Record(seq, seq, seq, Ended("job", lease_id, seq, "expired", well=False))


def test_lease_watch_receives_only_its_own_ends() -> None:
    """L9: an end is found by its id, within a session's and a token's end too, and each is told once."""
    feed = Feed()
    watch, other = feed.watch("ana"), feed.watch("ana")
    for id_ in ("a", "b", "c", "s"):
        watch.add(id_)
    other.add("a")
    lease = Lease("next", 2, "ana", None, None, False, 1, 1, 0, None, None, 0, 0)
    inner = SessionEnded("s", "revoked", (Ended("n3", "c", 3, "session_ended", well=False),))
    feed.publish([_renewal(1), _end(2, "a"), _end(3, "x"), Record(4, 4, 4, Transferred("n2", "b", lease, "ana"))])
    feed.publish([Record(5, 5, 5, TokenEnded("ben", "op", sessions=(inner,))), _end(6, "a")])
    received = []
    while (happening := watch.next_nowait()) is not None:
        received.append((happening[0].seq, type(happening[1])))
    assert received == [(2, Ended), (4, Transferred), (5, SessionEnded), (5, Ended)]
    assert (len(watch), len(other)) == (0, 0)
    assert other.next_nowait() is not None and other.next_nowait() is None


def test_lease_watch_ends_with_its_token() -> None:
    """Whatever a token followed is let go when it is shut out, and one that falls behind is ended."""
    feed = Feed()
    watch, idle, slow = feed.watch("ana", "s"), feed.watch("ana"), feed.watch("ben")
    watch.add("a")
    for number in range(ALL_BACKLOG_MAX + 1):
        slow.add(f"slow-{number}")
    slow.add("a")
    feed.publish([Record(1, 1, 1, TokenEnded("ana", "op"))])
    assert (watch.is_over, idle.is_over, slow.is_over) == (True, True, False)
    watch.add("b")
    assert len(watch) == 0, "one that is over follows nothing more"
    feed.publish([_end(number + 2, f"slow-{number}") for number in range(ALL_BACKLOG_MAX + 1)])
    assert slow.is_over and slow.overflowed
    assert not feed._by_id and not feed._by_secret


def test_oldest_lease_watch_is_displaced_and_notified() -> None:
    """A client that came back often, and whose dead connections are not known to be dead, is told on its last one.

    The eldest is over, and knows why: if it lives it comes again (L9).
    """
    feed = Feed()
    followers = [feed.watch("ana") for _ in range(WATCHES_PER_ID_MAX + 1)]
    for each in followers:
        each.add("other")
        each.add("a")
    assert [len(each) for each in followers] == [0] + [2] * WATCHES_PER_ID_MAX
    assert [(each.is_over, each.displaced_at) for each in followers[:2]] == [(True, "other"), (False, None)]
    feed.publish([_end(1, "a")])
    assert [each.next_nowait() is not None for each in followers] == [False] + [True] * WATCHES_PER_ID_MAX


def test_lease_watch_displaces_only_watches_with_the_same_secret() -> None:
    """L9: followers with a claim's or a session's secret give way to each other, and those with the token stay."""
    feed = Feed()
    supervisor = feed.watch("ana")
    supervisor.add("a")
    for claim in ["c"] * 20:
        feed.watch("ana", claim=claim).add("a")
    for session in ["s"] * 20:
        feed.watch("ana", session).add("a")
    feed.publish([_end(1, "a")])
    assert supervisor.next_nowait() is not None and not supervisor.is_over


def test_lease_watches_cost_nothing_when_unused() -> None:
    """A batch costs the same calls as before there were followers; with one, an end costs one more."""

    def calls(feed: Feed) -> int:
        count = 0

        def profile(_frame: FrameType, event: str, _arg: object) -> None:
            nonlocal count
            count += event == "call"

        records = [_renewal(1), _end(2, "x")]
        sys.setprofile(profile)
        try:
            feed.publish(records)
        finally:
            sys.setprofile(None)
        return count

    quiet, followed = Feed(), Feed()
    followed.watch("ana").add("a")
    assert calls(quiet) == 2, "publish, and the tally"
    assert calls(followed) == 3
