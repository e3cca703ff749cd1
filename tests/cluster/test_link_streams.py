"""Streams through a follower: whole, in order, bounded on both sides, and cut when the leader is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.cluster.link_frames import StreamData, StreamEnd, StreamStart
from holdfast.cluster.link_leader import PIECE_BYTES_MAX, WINDOW_BYTES, LinkedStream
from holdfast.http.messages import Request, ResponseWriter, request_from
from tests.cluster.linked_nodes import run, two_nodes, until
from tests.support.checks import refused

CLAIM = {"ttl_seconds": 60}


def test_events_come_through_a_follower(tmp_path: Path) -> None:
    """N-32: everything that happens is told through a follower, in order, and from a number on."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            reader, claimer = await follower.call(), await leader.call()
            reader.send("GET", "/events?after=0")
            for number in range(20):
                await claimer.ask("POST", f"/locks/n{number}/acquire", CLAIM)
            said = await reader.read_until(b'"n19"')
            positions = [said.index(b'"n%d"' % number) for number in range(20)]
            assert positions == sorted(positions)
            again = await follower.call()
            again.send("GET", "/events", Last_Event_ID="0")
            assert b'"n0"' in await again.read_until(b'"n19"')

    run(test)


def test_stream_of_the_page_comes_through_a_follower(tmp_path: Path) -> None:
    """N-32: a page that a follower serves is told of a claim made at the leader, and of its end."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            reader, claimer = await follower.call(), await leader.call()
            reader.send("GET", "/ui/live")
            await reader.read_until(b"event: hello")
            await claimer.ask("POST", "/locks/a/acquire", {"ttl_seconds": 60, "owner": "ana"})
            await reader.read_until(b'"owner":"ana"')
            await claimer.ask("POST", "/locks/a/revoke", {"reason": "over"})
            await reader.read_until(b'"how":"revoked"')

    run(test)


def test_watches_come_through_a_follower(tmp_path: Path) -> None:
    """N-32, L9: a watcher sees a claim, and a holder hears of its end, through a follower."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            watcher, holder, claimer = await follower.call(), await follower.call(), await leader.call()
            watcher.send("GET", "/locks/a/watch")
            await watcher.read_until(b'"released"')
            lease = (await claimer.ask("POST", "/locks/a/acquire", CLAIM)).json()
            await watcher.read_until(b'"acquired"')
            holder.send("POST", "/leases/watch", {"leases": {"a": lease["lease_id"]}})
            await holder.read_until(b"event: following")
            await claimer.ask("POST", "/locks/a/release", {"lease_id": lease["lease_id"]})
            await holder.read_until(b"event: ended")

    run(test)


def test_backup_through_a_follower_is_complete(tmp_path: Path) -> None:
    """N-32: an answer in pieces that has an end comes with its end, and with the length of what the leader sent."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            claimer, here, there = await leader.call(), await follower.call(), await leader.call()
            for number in range(50):
                body = {**CLAIM, "metadata": "x" * 1_000}
                await claimer.ask("POST", f"/locks/n{number}/acquire", body)
            backup = await here.ask("GET", "/backup")
            direct = await there.ask("GET", "/backup")
            assert backup.status == direct.status == 200
            assert abs(len(backup.body) - len(direct.body)) < 200 and len(backup.body) > 10_000

    run(test)


def test_stream_is_refused_in_the_leaders_words(tmp_path: Path) -> None:
    """N-30: who may have a stream is the leader's to know, and its refusal comes as a whole answer."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (_, follower):
            caller = await follower.call()
            refused(await caller.ask("GET", "/events", token="nobody-has-this-one"), 401, "authentication_failed")
            refused(await caller.ask("GET", "/events?after=x"), 400, "invalid_input")
            assert (await caller.ask("HEAD", "/events")).status == 200

    run(test)


def test_disconnected_reader_ends_the_stream_at_the_leader(tmp_path: Path) -> None:
    """N-32: when the client of a stream leaves the follower, the stream at the leader ends."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            reader = await follower.call()
            reader.send("GET", "/locks/a/watch")
            await reader.read_until(b'"released"')
            assert leader.term is not None
            feed = leader.term.engine.feed
            assert feed.is_listened_to("a")
            reader.close()
            await until(lambda: not feed.is_listened_to("a"))

    run(test)


def test_streams_of_events_end_when_the_leader_is_lost(tmp_path: Path) -> None:
    """N-32: a stream of events is ended when its leader is lost, so that its reader comes back."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (_, follower):
            reader = await follower.call()
            reader.send("GET", "/events", Connection="close")
            await reader.read_until(b": from")
            assert follower.forwarder._link is not None
            follower.forwarder._link.end(at_once=True)
            assert (await reader.read_to_end()).endswith(b"0\r\n\r\n")

    run(test)


def test_slow_reader_does_not_fill_memory(tmp_path: Path) -> None:
    """N-32: a reader that takes nothing makes both nodes keep a window of its stream, and holds up nobody else."""

    async def test() -> None:
        async with two_nodes(tmp_path, metadata_chars_max=10_000) as (leader, follower):
            claimer, reader = await follower.call(), await follower.call()
            body = {**CLAIM, "metadata": "x" * 10_000}
            for number in range(1_500):
                await claimer.ask("POST", f"/locks/n{number}/acquire", body)
            reader.writer.transport.pause_reading()  # type: ignore[attr-defined]
            reader.send("GET", "/backup")
            (end,) = leader.links._open
            await until(lambda: any(stream._credit_bytes <= 0 for stream in end._streams.values()))
            assert (await claimer.ask("POST", "/locks/other/acquire", CLAIM)).status == 200
            assert follower.forwarder._link is not None
            (pending,) = follower.forwarder._link._unanswered.values()
            assert pending.inbox is not None
            pieces = pending.inbox._queue  # type: ignore[attr-defined]
            buffered = sum(len(piece.body) for piece in pieces if isinstance(piece, StreamData))
            assert buffered <= WINDOW_BYTES + PIECE_BYTES_MAX
            assert end.unsent_bytes <= WINDOW_BYTES + PIECE_BYTES_MAX
            # Once it reads, it gets all of it.
            reader.writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert await reader.size_until(b"\r\n0\r\n\r\n") > 15_000_000

    run(test)


class _Sent:
    """A link that only remembers."""

    def __init__(self) -> None:
        self.frames: list[object] = []
        self.is_writing_paused = False

    def send(self, frame: object) -> None:
        self.frames.append(frame)


def test_stream_is_never_more_than_a_window_ahead(tmp_path: Path) -> None:
    """N-32: the leader sends a window and a piece at most before something of it was taken; then exactly that more."""

    async def test() -> None:
        link = _Sent()
        stream = LinkedStream(link, 7, request_from(b"GET", b"/events", b"", {}, b""))  # type: ignore[arg-type]

        async def handler(_request: Request, response: ResponseWriter) -> None:
            response.start(200, [(b"a", b"b")])
            await response.write(b"x" * 10 * WINDOW_BYTES)
            response.finish()

        def sent() -> int:
            return sum(len(frame.body) for frame in link.frames if isinstance(frame, StreamData))

        task = asyncio.ensure_future(stream.run(handler))
        await until(lambda: sent() >= WINDOW_BYTES)
        await asyncio.sleep(0)
        assert sent() == WINDOW_BYTES and link.frames[0] == StreamStart(7, 200, ((b"a", b"b"),), None)
        # More than was sent cannot have been taken: it gives no larger window.
        stream.more(100 * WINDOW_BYTES)
        await until(lambda: sent() > WINDOW_BYTES)
        await asyncio.sleep(0)
        assert sent() == 2 * WINDOW_BYTES
        link.is_writing_paused = True
        stream.more(WINDOW_BYTES)
        await asyncio.sleep(0)
        assert sent() == 2 * WINDOW_BYTES
        link.is_writing_paused = False
        while not task.done():
            stream.more(WINDOW_BYTES)
            await asyncio.sleep(0)
        assert sent() == 10 * WINDOW_BYTES and link.frames[-1] == StreamEnd(7, is_complete=True)

    run(test)


def test_response_that_is_not_finished_is_cut() -> None:
    """N-32: what was not completed is told as a part, so that nobody takes it for the whole."""

    async def test() -> None:
        link = _Sent()
        stream = LinkedStream(link, 7, request_from(b"GET", b"/backup", b"", {}, b""))  # type: ignore[arg-type]

        async def handler(_request: Request, response: ResponseWriter) -> None:
            response.start(200, [])

        await stream.run(handler)
        assert link.frames[-1] == StreamEnd(7, is_complete=False)

    run(test)
