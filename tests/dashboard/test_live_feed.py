"""The feed of the page: made once for all readers of equal rights, bounded for each, and of what is durable alone."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.api.streams import WRITE_BYTES, OpenStreams
from holdfast.core.commands import EndSession, KeepSession, OpenSession
from holdfast.dashboard import live_feed
from holdfast.dashboard.live_feed import CHANNEL_BYTES_MAX, SLICE_NAMES, Channel, Live, LiveFeed
from holdfast.dashboard.rows import liveness_of, row_of
from holdfast.engine.feed import DIRTY_MAX
from holdfast.journal.interface import JournalUnavailableError
from tests.engine.harness import GateJournal, acquire, release, renew, run, serving, turns
from tests.support.memory_journal import MemoryJournal

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.core.values import Instant
    from holdfast.dashboard.live_feed import Subscription
    from holdfast.dashboard.rows import JobRow
    from holdfast.engine.engine import Engine
    from holdfast.testing.clock import ManualClock


def _decode(frame: bytes | None) -> dict[str, Any]:
    assert frame is not None, "it fell behind"
    event, data = frame.decode().split("\n")[:2]
    assert event == "event: rows"
    body: dict[str, Any] = json.loads(data.removeprefix("data: "))
    return body


async def _next(subscription: Subscription) -> dict[str, Any]:
    while not subscription.is_lagging:
        subscription.news.clear()
        await subscription.news.wait()
    return _decode(subscription.next())


def _lost_frames(subscription: Subscription) -> bool:
    """Is a reader told that it missed something?"""
    return subscription.is_lagging and subscription.next() is None


async def _rounds(count: int = 3) -> None:
    """Let some rounds of the feed pass."""
    await asyncio.sleep(count * (live_feed.FIRST_SECONDS + live_feed.GATHER_SECONDS))


def test_live_feed_sends_claim_heartbeat_and_end() -> None:
    """A claim is a row, a heartbeat tells its times alone, a note tells the row again, an end says how it ended."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            subscription = LiveFeed(engine).subscribe(None)
            await engine.ask(acquire("job", owner="ben", labels={"team": "web"}, metadata="model=x n=1"))
            frame = await _next(subscription)
            (row,) = frame["rows"]
            assert (row["name"], row["owner"], row["labels"]) == ("job", "ben", {"team": "web"})
            assert row["fields"] == [["model", "x"], ["n", "1"]]
            assert row["until"] - row["since"] == row["ttl"] == 60_000
            assert frame["totals"] == {"jobs": 1, "waiting": 0, "sessions": 0}
            await _pass(5_000, clock, engine)
            await engine.ask(renew("job"))
            frame = await _next(subscription)
            assert "rows" not in frame
            ((name, token, heartbeat, until, ttl, own),) = frame["beats"]
            assert (name, token, ttl, own) == ("job", row["token"], 60_000, 0)
            assert until - row["until"] == heartbeat - row["beat"] >= 5_000
            await engine.ask(renew("job", note="tests pass"))
            assert (await _next(subscription))["rows"][0]["note"] == "tests pass"
            await engine.ask(release("job"))
            (gone,) = (await _next(subscription))["gone"]
            assert (gone["name"], gone["how"], gone["owner"]) == ("job", "released", "ben")
            subscription.close()

    run(test)


def test_live_feed_sends_at_most_five_frames_a_second() -> None:
    """A job that is renewed every ten milliseconds for a second is told about five times, each time as it is then."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            subscription = LiveFeed(engine).subscribe(None)
            for _ in range(100):
                await engine.ask(acquire("job") if not engine.state.index.held else renew("job"))
                await asyncio.sleep(0.01)
            await _rounds()
            frames = []
            while subscription.is_lagging:
                frames.append(_decode(subscription.next()))
            assert 4 <= len(frames) <= 7
            last = frames[-1]["beats"][0]
            lease = engine.state.lease_of("job")
            assert lease is not None and last[2] == lease.beat_wall_ms
            subscription.close()

    run(test)


def test_many_frames_are_one_write() -> None:
    """A reader that is behind gets its frames in one write, a single frame uncopied, and `resync` if some were lost."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            feed = LiveFeed(engine)
            limits = OpenStreams(9, "pages")
            api: Any = SimpleNamespace(engine=engine, part=lambda _: feed, pages=limits, current_caller=lambda _: True)
            caller = SimpleNamespace(principal="p", session=None, prefix=None, share=None)
            call: Any = SimpleNamespace(caller=caller, request=SimpleNamespace(authorization=None))
            stream, other = Live(api, call), feed.subscribe(None)
            frames = stream.frames()
            assert (await anext(frames)).startswith(b"event: hello")
            for number in range(3 * SLICE_NAMES):
                await engine.ask(acquire(f"job-{number}"))
            await _rounds()
            write = await anext(frames)
            assert write.count(b"event: rows") >= 3 and len(write) < 2 * WRITE_BYTES
            while other.is_lagging:
                other.next()
            await engine.ask(acquire("one-more"))
            await _rounds()
            assert (await anext(frames)) is other.next()
            feed._drop_frames()
            assert (await anext(frames)).startswith(b"event: resync")
            stream.close()
            other.close()

    run(test)


def test_live_feed_shares_bytes_between_equal_readers() -> None:
    """What is told is put into bytes once: two readers of one prefix get the very same object."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            live_feed_ = LiveFeed(engine)
            subscriptions = [
                live_feed_.subscribe(None),
                live_feed_.subscribe(None),
                live_feed_.subscribe("a/"),
                live_feed_.subscribe("a/"),
            ]
            await engine.ask(acquire("a/job"))
            await _rounds()
            frames = [subscription.next() for subscription in subscriptions]
            assert frames[0] is frames[1] and frames[2] is frames[3]
            assert _decode(frames[2])["rows"] == _decode(frames[0])["rows"]
            for subscription in subscriptions:
                subscription.close()

    run(test)


def test_a_confined_reader_sees_its_prefix_alone() -> None:
    """A reader that is confined to a prefix is told of names below it, of nothing else, and no totals of all."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            live_feed_ = LiveFeed(engine)
            confined, deeper, other = (
                live_feed_.subscribe("acme/"),
                live_feed_.subscribe("acme/web/"),
                live_feed_.subscribe("b"),
            )
            for name in ("acme/one", "acme", "acme/web/two", "zebra"):
                await engine.ask(acquire(name))
            await _rounds()
            frame = _decode(confined.next())
            assert [row["name"] for row in frame["rows"]] == ["acme/one", "acme/web/two"] and "totals" not in frame
            assert [row["name"] for row in _decode(deeper.next())["rows"]] == ["acme/web/two"]
            assert not (confined.is_lagging or deeper.is_lagging or other.is_lagging)
            for subscription in (confined, deeper, other):
                subscription.close()

    run(test)


def test_live_feed_sends_keepalive_once_to_readers_of_its_jobs() -> None:
    """The new deadline of a session is told as one entry, and only to channels that see a job bound to it."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(OpenSession(principal="ana", session_id="s", ttl_ms=60_000))
            for number in range(5):
                await engine.ask(acquire(f"a/{number}", session="s", bound=True, ttl_ms=600_000))
            live_feed_ = LiveFeed(engine)
            everything, own, other = live_feed_.subscribe(None), live_feed_.subscribe("a/"), live_feed_.subscribe("b/")
            await _pass(20_000, clock, engine)
            await engine.ask(KeepSession(principal="ana", session_id="s"))
            await _rounds()
            for subscription in (everything, own):
                frame = _decode(subscription.next())
                ((session, until),) = frame["kept"]
                assert session == "s" and until - frame["now"] <= 60_000 and "rows" not in frame
            assert not other.is_lagging
            for subscription in (everything, own, other):
                subscription.close()

    run(test)


def test_live_feed_sends_session_changes_to_unconfined_readers() -> None:
    """A session without jobs changes one number on the page: who may see all is told of its begin, and of its end."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            live_feed_ = LiveFeed(engine)
            everything, own = live_feed_.subscribe(None), live_feed_.subscribe("a/")
            await engine.ask(OpenSession(principal="ana", session_id="s", ttl_ms=60_000))
            frame = await _next(everything)
            ((session, until),) = frame["kept"]
            assert (session, frame["totals"]["sessions"]) == ("s", 1) and 0 < until - frame["now"] <= 60_000
            await engine.ask(EndSession(principal="ana", session_id="s"))
            frame = await _next(everything)
            assert (frame["kept"], frame["totals"]["sessions"]) == ([["s", 0]], 0)
            assert not own.is_lagging
            for subscription in (everything, own):
                subscription.close()

    run(test)


def test_live_feed_sends_keepalive_of_large_session() -> None:
    """Jobs that were only claimed in a session hide none that is bound to it, nor do jobs that a reader may not see."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(OpenSession(principal="ana", session_id="s", ttl_ms=60_000))
            for number in range(150):
                await engine.ask(acquire(f"a/{number}", session="s", ttl_ms=600_000))
                await engine.ask(acquire(f"b/{number}", session="s", bound=True, ttl_ms=600_000))
            await engine.ask(acquire("c/1", session="s", bound=True, ttl_ms=600_000))
            feed = LiveFeed(engine)
            subscriptions = {prefix: feed.subscribe(prefix) for prefix in (None, "a/", "b/", "c/")}
            await engine.ask(KeepSession(principal="ana", session_id="s"))
            await _rounds()
            assert {prefix: subscription.is_lagging for prefix, subscription in subscriptions.items()} == {
                None: True,
                "a/": False,
                "b/": True,
                "c/": True,
            }
            for subscription in subscriptions.values():
                subscription.close()

    run(test)


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000, 3_000])
def test_live_feed_resyncs_after_wall_clock_step(step_ms: int) -> None:
    """What was told of deadlines is wall time: where that clock is set, or the server stood still, it is told anew."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            subscription = LiveFeed(engine).subscribe(None)
            await engine.ask(acquire("job", ttl_ms=600_000))
            assert (await _next(subscription))["rows"]
            clock.step_wall(step_ms)
            await engine.ask(renew("job", ttl_ms=600_000))
            await _rounds()
            assert _lost_frames(subscription)
            await engine.ask(renew("job", ttl_ms=600_000))
            assert (await _next(subscription))["beats"]
            subscription.close()

    run(test)


def test_live_feed_wakes_many_readers_in_groups() -> None:
    """However many read, they are woken in a bounded number of groups: thousands who take nothing delay nobody."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            live_feed_ = LiveFeed(engine)
            subscriptions = [live_feed_.subscribe(None) for _ in range(3_000)]
            await engine.ask(acquire("job"))
            await _rounds()
            assert all(subscription.news.is_set() for subscription in subscriptions)
            sleeps = 0

            async def pause(_seconds: float) -> None:
                nonlocal sleeps
                sleeps += 1

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(asyncio, "sleep", pause)
                await live_feed_._wake()
            assert 0 < sleeps <= live_feed.WAKES_MAX
            for subscription in subscriptions:
                subscription.close()

    run(test)


def test_a_bound_job_says_when_it_would_end_by_itself() -> None:
    """A job that ends with its session shows the session's end, and beside it its own: the browser needs both."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(OpenSession(principal="ana", session_id="s", ttl_ms=60_000))
            subscription = LiveFeed(engine).subscribe(None)
            await engine.ask(acquire("job", session="s", bound=True, ttl_ms=600_000))
            (row,) = (await _next(subscription))["rows"]
            assert row["bound"] and row["session"] == "s"
            assert row["own"] - row["since"] == 600_000 and row["until"] - row["since"] <= 60_000
            subscription.close()

    run(test)


def test_a_bound_job_lives_by_the_keepalives_of_its_session() -> None:
    """A lease of a minute in a session of ten seconds is alive while the session is kept, though nobody renews it."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(OpenSession(principal="ana", session_id="s", ttl_ms=10_000))
            await engine.ask(acquire("job", session="s", bound=True, ttl_ms=60_000))
            for round_number in range(3):
                assert await _after(5_000, clock, engine) == (10_000, "alive"), round_number
                assert await _after(2_500, clock, engine) == (10_000, "late"), round_number
                assert await _after(2_000, clock, engine) == (10_000, "ending"), round_number
                await engine.ask(KeepSession(principal="ana", session_id="s"))

    run(test)


async def _pass(ms: int, clock: ManualClock, engine: Engine) -> None:
    """Let time pass, in steps that are no pause."""
    for _ in range(ms // 250):
        clock.advance(250)
        await engine.query(lambda _state, _now: None)


async def _after(ms: int, clock: ManualClock, engine: Engine) -> tuple[int, str]:
    """Let time pass, and look at the job."""
    await _pass(ms, clock, engine)
    row, sign = await engine.query(_row_and_sign)
    return row.ttl, sign


def _row_and_sign(state: State, now: Instant) -> tuple[JobRow, str]:
    lease = state.lease_of("job")
    assert lease is not None
    row = row_of("job", lease, state, now)
    return row, liveness_of(row, now.wall_ms)


def test_live_feed_sends_only_durable_changes() -> None:
    """A row waits for the record that it rests on, like every answer (I16)."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            subscription = LiveFeed(engine).subscribe(None)
            await engine.ask(acquire("before"))
            journal.is_shut = True
            request = asyncio.create_task(engine.ask(acquire("job")))
            await turns(20)
            # The feed looks at "before" now, on top of a grant that is not durable: its look has to wait for it.
            await asyncio.sleep(live_feed.FIRST_SECONDS * 2)
            assert not subscription.is_lagging and not request.done()
            journal.open_gate()
            await request
            assert [row["name"] for row in (await _next(subscription))["rows"]] == ["before"]
            assert [row["name"] for row in (await _next(subscription))["rows"]] == ["job"]
            subscription.close()

    run(test)


def test_live_feed_resyncs_after_store_failure() -> None:
    """If a look cannot be answered, nothing of it is told; every reader is told to look anew, and then goes on."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            subscription = LiveFeed(engine).subscribe(None)
            await engine.ask(acquire("before"))
            journal.is_shut = True
            request = asyncio.create_task(engine.ask(acquire("refused")))
            await asyncio.sleep(live_feed.FIRST_SECONDS * 2)
            journal.is_shut = False
            journal.let_through(JournalUnavailableError("no"))
            await request
            await asyncio.sleep(live_feed.RETRY_SECONDS + 1)
            assert _lost_frames(subscription)
            await engine.ask(acquire("after"))
            assert [row["name"] for row in (await _next(subscription))["rows"]] == ["after"]
            subscription.close()

    run(test)


def test_live_feed_drops_frames_of_stalled_reader() -> None:
    """A channel keeps a bounded number of bytes. A reader whose position is gone is told once, and is at the newest."""
    channel = Channel(None)
    live_feed_ = LiveFeed.__new__(LiveFeed)
    slow, quick = live_feed.Subscription(live_feed_, channel), live_feed.Subscription(live_feed_, channel)
    frame = b"x" * 100_000
    for _ in range(40):
        channel.put(frame)
        assert quick.next() is frame
        assert channel.size_bytes <= CHANNEL_BYTES_MAX
    assert _lost_frames(slow) and not slow.is_lagging
    channel.put(b"newest")
    assert slow.next() == quick.next() == b"newest"


def test_live_feed_resyncs_after_too_many_changes() -> None:
    """When more names change than are noted, readers are told to look anew; what changes afterwards is told."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            feed = LiveFeed(engine)
            subscription = feed.subscribe(None)
            live_feed_ = feed._touched
            assert live_feed_ is not None
            live_feed_.names |= {f"job-{number}": True for number in range(DIRTY_MAX)}
            await engine.ask(acquire("one-more"))
            await _rounds()
            assert _lost_frames(subscription) and not subscription.is_lagging
            await engine.ask(renew("one-more"))
            assert (await _next(subscription))["beats"][0][0] == "one-more"
            subscription.close()

    run(test)


def test_live_feed_reads_names_in_slices() -> None:
    """A claim of many names is told in several frames: no look takes more than a slice."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            subscription = LiveFeed(engine).subscribe(None)
            for number in range(3 * live_feed.SLICE_NAMES):
                await engine.ask(acquire(f"job-{number:04}"))
            await _rounds()
            frames = []
            while subscription.is_lagging:
                frames.append(_decode(subscription.next()))
            assert max(len(frame.get("rows", ())) for frame in frames) <= live_feed.SLICE_NAMES
            names = [row["name"] for frame in frames for row in frame.get("rows", ())]
            assert sorted(set(names)) == [f"job-{number:04}" for number in range(3 * live_feed.SLICE_NAMES)]
            subscription.close()

    run(test)


def test_live_feed_is_idle_without_readers() -> None:
    """The feed listens from its first reader to its last; then nothing is noted, kept or running."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            live_feed_ = LiveFeed(engine)
            assert _is_idle(live_feed_, engine)
            one, other = live_feed_.subscribe(None), live_feed_.subscribe("a/")
            assert not _is_idle(live_feed_, engine)
            one.close()
            one.close()
            assert not _is_idle(live_feed_, engine)
            other.close()
            await turns()
            assert _is_idle(live_feed_, engine)
            again = live_feed_.subscribe(None)
            await engine.ask(acquire("job"))
            assert (await _next(again))["rows"]
            again.close()

    run(test)


def _is_idle(live_feed_: LiveFeed, engine: Engine) -> bool:
    return (
        engine.feed.observers == ()
        and live_feed_._task is None
        and not live_feed_._channels
        and not live_feed_._lengths
    )
