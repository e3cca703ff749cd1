"""Which names to look at again: durable records alone say it, each name once, and nothing while nobody looks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.core.commands import KeepSession, OpenSession
from holdfast.core.events import Joined, Left, Record, Renewed, SessionEnded, SessionOpened, TimePassed, TokenEnded
from holdfast.core.values import Session, Terms, Ticket
from holdfast.engine.feed import DIRTY_MAX, DirtyNames, Feed
from tests.engine.harness import GateJournal, acquire, release, renew, run, serving, turns
from tests.support.memory_journal import MemoryJournal

if TYPE_CHECKING:
    from holdfast.core.events import Event
    from holdfast.testing.clock import ManualClock


def _record(event: Event) -> Record:
    return Record(1, 1, 1, event)


def _renewal(name: str, note: str | None = None) -> Record:
    return _record(Renewed(name, "id", 1_000, 2_000, note))


def test_dirty_names_contain_each_name_once() -> None:
    """A name is noted once however often it changes; a plain heartbeat says so, and any other change counts more."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(acquire("before"))
            touched = DirtyNames()
            engine.feed.observe(touched.note)
            for _ in range(3):
                await engine.ask(renew("before"))
            for command in (acquire("new"), renew("new"), acquire("short"), release("short")):
                await engine.ask(command)
            assert touched.take(10) == {"before": False, "new": True, "short": True}
            await engine.ask(renew("before", note="tests pass"))
            assert touched.take(10) == {"before": True}
            assert touched.take(10) == {}

    run(test)


def test_heartbeat_preserves_a_changed_note() -> None:
    """Once more than a heartbeat has changed, a later heartbeat does not make less of it."""
    touched = DirtyNames()
    touched.note([_renewal("a", "a note"), _renewal("a"), _renewal("b"), _renewal("b", "a note")])
    assert touched.take(10) == {"a": True, "b": True}


def test_queue_change_marks_its_names_dirty() -> None:
    """Who joins or leaves a line touches every name that it stands in line for; time that passes touches none."""
    touched = DirtyNames()
    ticket = Ticket("t", ("a", "b"), ("1", "2"), Terms("ana", 1_000))
    touched.note([_record(Joined(ticket)), _record(TimePassed())])
    assert touched.take(10) == {"a": True, "b": True}
    touched.note([_record(Left("t", "gone", ("b", "c")))])
    assert touched.take(10) == {"b": True, "c": True}


def test_session_keepalive_marks_one_session_dirty() -> None:
    """A session with another deadline is one entry, however many jobs are bound to it."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(OpenSession(principal="ana", session_id="s", ttl_ms=60_000))
            for name in ("a", "b"):
                await engine.ask(acquire(name, session="s", bound=True))
            touched = DirtyNames()
            engine.feed.observe(touched.note)
            clock.advance(20_000)
            await engine.ask(KeepSession(principal="ana", session_id="s"))
            assert (touched.take(10), list(touched.take_sessions())) == ({}, ["s"])

    run(test)


def test_opened_and_ended_sessions_are_dirty() -> None:
    """A session that begins or ends is noted, be it empty; so are those that end with their access token."""
    touched = DirtyNames()
    touched.note([_record(SessionOpened(Session("opened", "ana", None, None, 60_000, 60_000, 1)))])
    assert list(touched.take_sessions()) == ["opened"]
    ended = SessionEnded("ended", "deleted", ())
    touched.note(
        [_record(ended), _record(TokenEnded("ana", "boss", sessions=(SessionEnded("of a token", "revoked", ()),)))]
    )
    assert list(touched.take_sessions()) == ["ended", "of a token"]


def test_names_become_dirty_once_durable() -> None:
    """A name is noted when its record is durable, and never for one that was refused (I16)."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            touched = DirtyNames()
            engine.feed.observe(touched.note)
            waiting = asyncio.create_task(touched.wait())
            journal.is_shut = True
            pending = asyncio.create_task(engine.ask(acquire("job")))
            await turns(20)
            assert not waiting.done() and not touched.names
            journal.open_gate()
            await pending
            await waiting
            assert touched.take(10) == {"job": True}

    run(test)


def test_removed_observer_receives_nothing() -> None:
    """Who looks away is noted nothing more for, and while nobody looks the feed has nobody to note it for."""
    feed = Feed()
    one, other = DirtyNames(), DirtyNames()
    feed.observe(one.note)
    feed.observe(other.note)
    feed.ignore(one.note)
    feed.publish([_renewal("a")])
    assert (one.names, other.names) == ({}, {"a": False})
    feed.ignore(other.note)
    feed.ignore(other.note)
    feed.publish([_renewal("b")])
    assert other.names == {"a": False} and feed.observers == ()


def test_dirty_names_are_bounded() -> None:
    """Beyond the most that is noted everything is dropped, and said; then it begins anew."""
    touched = DirtyNames()
    touched.note([_renewal(f"job-{number}") for number in range(DIRTY_MAX)])
    assert not touched.overflowed
    touched.note([_renewal("one more")])
    assert touched.names == {} and touched.take_overflow() and not touched.take_overflow()
    touched.note([_renewal("again")])
    assert touched.take(1) == {"again": False}


def test_take_returns_some_names_and_leaves_the_rest() -> None:
    """Those that were touched first are taken first; the rest is still there to be waited for."""

    async def test(_: ManualClock) -> None:
        touched = DirtyNames()
        touched.note([_renewal(name) for name in "abc"])
        assert list(touched.take(2)) == ["a", "b"]
        await touched.wait()
        assert list(touched.take(2)) == ["c"]
        waiting = asyncio.create_task(touched.wait())
        await turns()
        assert not waiting.done()
        waiting.cancel()

    run(test)
