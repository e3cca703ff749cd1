"""What strangers at either end of a link can do before anything is proved."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.cluster import link_leader as leaders_end
from holdfast.cluster.link_follower import FollowerLink, Security, connect
from holdfast.cluster.link_frames import (
    HELLO_BYTES_MAX,
    NONCE_BYTES,
    PREFIX,
    Decoder,
    Greeting,
    Handshake,
    Hello,
    TermCredentials,
    ToLeader,
    framed,
)
from tests.cluster.linked_nodes import LinkedNode, nodes, run, two_nodes, until

F = b"f" * NONCE_BYTES


async def _connect_unauthenticated(node: LinkedNode, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    writer.write(data)
    return reader, writer


async def _is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(10):
            while await reader.read(65_536):
                pass
    except ConnectionError:
        return True
    return True


@asynccontextmanager
async def _serving(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """A port where somebody answers who is no node."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def test_link_that_knows_the_term_is_not_evicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-29: strangers who say nothing give way before one that has said which tenure it comes for."""
    monkeypatch.setattr(leaders_end, "UNAUTHENTICATED_MAX", 4)

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, _):
            leadership = leader.shelf.leadership
            ours, own = await _connect_unauthenticated(
                leader, PREFIX + framed(Hello(leadership.authority, leadership.epoch, leadership.term_id, F))
            )
            assert await asyncio.wait_for(ours.read(1_000), 10)
            unauthenticated = [await _connect_unauthenticated(leader, PREFIX) for _ in range(6)]
            assert await _is_closed(unauthenticated[0][0]) and await _is_closed(unauthenticated[1][0])
            await until(lambda: len(leader.links._unauthenticated) == 4)
            assert sum(end.is_greeted for end in leader.links._unauthenticated) == 1
            for writer in (own, *(writer for _, writer in unauthenticated)):
                writer.close()

    run(test)


def test_follower_sends_only_the_handshake_before_the_welcome(tmp_path: Path) -> None:
    """N-29: a leader that is slow with its proof hears nothing that is not said before it."""

    async def test() -> None:
        received, may_end = bytearray(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while more := await reader.read(10_000):
                received.extend(more)
            may_end.set()
            writer.close()

        async with nodes(tmp_path, 2) as (leader, follower), _serving(serve) as port:
            leadership = await leader.lead()
            follower.follow(leadership, f"http://127.0.0.1:{port}")
            await asyncio.wait_for(may_end.wait(), 10)
            follower.follow(None)
            decoder = Decoder(ToLeader, HELLO_BYTES_MAX)
            decoder.put(bytes(received).split(PREFIX)[1])
            assert isinstance(decoder.next(), Hello) and decoder.next() is None

    run(test)


def test_unproved_leader_makes_a_follower_buffer_little(tmp_path: Path) -> None:
    """N-29: before its proof the other end may send frames of a proof's size, and no larger ones."""

    async def test() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write((HELLO_BYTES_MAX + 1).to_bytes(4))
            while await reader.read(10_000):
                pass
            writer.close()

        async with nodes(tmp_path, 2) as (leader, follower), _serving(serve) as port:
            leadership = await leader.lead()
            follower.follow(leadership, f"http://127.0.0.1:{port}")
            await until(lambda: follower.link_client._reported_failure is not None)
            assert f"{HELLO_BYTES_MAX} is the most" in str(follower.link_client._reported_failure)
            follower.follow(None)

    run(test)


def test_localhost_is_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-29: in the clear the name localhost is not resolved: a resolver could name another machine."""

    async def test() -> None:
        async with nodes(tmp_path, 2) as (leader, follower):
            leadership = await leader.lead()

            async def resolve(host: str, *_: object, **__: object) -> list[object]:
                raise AssertionError(f"{host} was resolved")

            credentials = TermCredentials(leadership.authority, leadership.epoch, leadership.term_id, leader.shelf.key)
            link = FollowerLink(follower.manager, Handshake(credentials, F), follower.forwarder)
            monkeypatch.setattr(socket, "getaddrinfo", resolve)
            await connect(f"http://localhost:{leader.port}", link, Security())
            assert link.transport.get_extra_info("peername")[0] == "127.0.0.1"
            link.end(at_once=True)

    run(test)


def test_unauthenticated_peers_write_few_log_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """N-29: however many say that they are links, and whatever else, the log has few lines of it, and short ones."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, _):
            caplog.clear()
            hello = PREFIX + framed(Hello("x" * 900, 1, "t", F))
            for _ in range(leaders_end.LINES_MAX + 15):
                reader, writer = await _connect_unauthenticated(leader, hello)
                assert await _is_closed(reader)
                writer.close()
            lines = [record.getMessage() for record in caplog.records if record.name == "holdfast.server.nodes"]
            assert len(lines) == leaders_end.LINES_MAX and max(len(line) for line in lines) <= 200, lines

    with caplog.at_level(logging.WARNING):
        run(test)


DEEP = b"\x96\x01\xa0\x00\xa0\xc4\x00" + b"\x91" * (HELLO_BYTES_MAX - 8) + b"\xc0"
"""A greeting of the largest size, with lists in lists behind all that is looked at."""


@pytest.mark.parametrize("is_bug", [False, True], ids=["deep", "a bug"])
def test_unexpected_errors_of_unauthenticated_peers_fill_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_bug: bool
) -> None:
    """N-29: neither a deeply nested frame nor a bug in reading one floods the log. Only the bug is logged as one."""
    if is_bug:
        monkeypatch.setattr(Decoder, "next", _fail)

    async def test() -> None:
        async with nodes(tmp_path, 1) as (leader,):
            await leader.lead()
            caplog.clear()
            for _ in range(leaders_end.LINES_MAX + 5):
                reader, writer = await _connect_unauthenticated(leader, PREFIX + len(DEEP).to_bytes(4) + DEEP)
                assert await _is_closed(reader)
                writer.close()
            logged = [record for record in caplog.records if record.name == "holdfast.server.nodes"]
            assert len(logged) == leaders_end.LINES_MAX
            assert ("a bug" in logged[0].getMessage()) == is_bug
            assert bool(logged[0].exc_info) == is_bug

    with caplog.at_level(logging.WARNING):
        run(test)


def _fail(_decoder: Decoder) -> None:
    raise RuntimeError("on purpose")


def test_bug_in_an_open_link_is_an_error_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug that ends the link of a node is an error with its trace, and no mere warning."""

    async def test() -> None:
        async with two_nodes(tmp_path):
            caplog.clear()
            with monkeypatch.context() as patch:
                patch.setattr(Decoder, "next", _fail)
                await until(lambda: any("a link with" in message for message in caplog.messages))
            logged = [record for record in caplog.records if "a link with" in record.getMessage()]
            assert all(record.levelno == logging.ERROR and record.exc_info for record in logged)

    with caplog.at_level(logging.WARNING):
        run(test)


def test_dropped_log_lines_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a minute the log says how many lines it does not have, and lines are written again."""
    monkeypatch.setattr(leaders_end, "LINES_SECONDS", 0.05)

    async def test() -> None:
        async with nodes(tmp_path, 1) as (leader,):
            for number in range(leaders_end.LINES_MAX + 7):
                leader.links.warn(f"line {number} {'x' * 1_000}")
            assert len(caplog.messages) == leaders_end.LINES_MAX and max(map(len, caplog.messages)) < 200
            await until(lambda: caplog.messages[-1].startswith("7 more connections"))
            leader.links.warn("again")
            assert caplog.messages[-1] == "again"

    with caplog.at_level(logging.WARNING):
        run(test)


def test_unproved_leader_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """N-29: a follower tries again and again, and says once why it has no link."""

    async def test() -> None:
        tries = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal tries
            tries += 1
            await reader.read(10_000)
            writer.write(framed(Greeting(F, b"x" * 32)))
            await reader.read(10_000)
            writer.close()

        async with nodes(tmp_path, 2) as (leader, follower), _serving(serve) as port:
            leadership = await leader.lead()
            caplog.clear()
            follower.follow(leadership, f"http://127.0.0.1:{port}")
            await until(lambda: tries >= 4)
            follower.follow(None)
            (line,) = [record.getMessage() for record in caplog.records if record.name == "holdfast.server.nodes"]
            assert "does not know the authority's key" in line

    with caplog.at_level(logging.WARNING):
        run(test)
