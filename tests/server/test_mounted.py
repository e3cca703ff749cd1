"""An ASGI application mounted beside our routes: body and answer go through the queue of the connection, in pieces."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from uvicorn.server import ServerState

from holdfast import __version__
from holdfast.core.values import Limits
from holdfast.engine.clock import SystemClock
from holdfast.engine.engine import Engine
from holdfast.journal.memory import MemoryJournal
from holdfast.server.access.auth import Auth, StaticTokens
from holdfast.server.access.secrets import AuthorityKey
from holdfast.server.api import Api
from holdfast.server.doors.asgi import Door
from holdfast.server.doors.exchange import BODY_BYTES_MAX, Exchange
from holdfast.server.doors.incoming import Incoming
from holdfast.server.doors.lane import Lane
from holdfast.server.doors.lanes import Lanes, front_of
from holdfast.server.operations.routes import Routes
from holdfast.server.operations.table import OPERATIONS
from holdfast.settings import Settings
from tests.support.http import Answer, parse_answers
from tests.support.raw import head

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

HEALTH = head("GET", "/healthz", "Host: 127.0.0.1")
SECONDS_MAX = 20.0


class Caller:
    """One connection to the server under test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, payload: bytes, count: int) -> list[Answer]:
        """Send, and read until there are so many answers."""
        self.writer.write(payload)
        return await self.answers(count)

    async def answers(self, count: int) -> list[Answer]:
        """Read until there are so many answers."""
        data = b""
        while len(parse_answers(data, closed=False)) < count:
            more = await asyncio.wait_for(self.reader.read(65_536), SECONDS_MAX)
            assert more, f"closed after {data!r}"
            data += more
        return parse_answers(data, closed=False)


@asynccontextmanager
async def _serving(
    directory: Path, application: Application, body_bytes_max: int = 2_097_152, trusted_proxies: str = ""
) -> AsyncIterator[Callable[[], Awaitable[Caller]]]:
    """Serve our routes, and the application below /other, on a real socket; yield what connects to it."""
    engine = Engine(MemoryJournal(), Limits(), clock=SystemClock(), version=__version__)
    await engine.start()
    api = Api(
        engine,
        Auth(StaticTokens([]), AuthorityKey(b"k" * 32)),
        Settings(data=directory, body_bytes_max=body_bytes_max, trusted_proxies=trusted_proxies),
    )
    routes = Routes(api, OPERATIONS)
    front = front_of(routes, Door(routes, {"/other": application}, chunks_only=False))
    lanes = Lanes(front, api.settings, engine.clock, api.proxies, ServerState())
    server = await asyncio.get_running_loop().create_server(lambda: Lane(lanes), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    callers: list[Caller] = []

    async def connect() -> Caller:
        callers.append(Caller(*await asyncio.open_connection("127.0.0.1", port)))
        return callers[-1]

    try:
        yield connect
    finally:
        server.close()
        for caller in callers:
            caller.writer.transport.abort()
            with contextlib.suppress(OSError):
                await caller.writer.wait_closed()
        for task in list(lanes.tasks):
            task.cancel()
        await engine.stop()


def _run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the path and the body, in the pieces in which it came."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": scope["path"].encode() + b" ", "more_body": True})
    while True:
        message = await receive()
        more = message.get("more_body", False)
        await send({"type": "http.response.body", "body": message.get("body", b""), "more_body": more})
        if not more:
            return


def _post(body: bytes, *headers: str, path: str = "/other/place") -> bytes:
    return head("POST", path, "Host: 127.0.0.1", f"Content-Length: {len(body)}", *headers) + body


def test_it_answers_in_its_place_between_ours(tmp_path: Path) -> None:
    """Pipelined requests to the application and to our routes are answered in their order."""

    async def test() -> None:
        async with _serving(tmp_path, _echo) as connect:
            caller = await connect()
            answers = await caller.ask(HEALTH + _post(b"one") + HEALTH + _post(b"two", path="/other") + HEALTH, 5)
            assert [answer.status for answer in answers] == [200] * 5
            assert [answers[index].body for index in (1, 3)] == [b"/other/place one", b"/other two"]
            assert (await caller.ask(head("GET", "/otherwise", "Host: 127.0.0.1"), 1))[0].status == 404

    _run(test())


def test_a_body_in_chunks_reaches_it_whole(tmp_path: Path) -> None:
    """A chunked body reaches the application without its framing, and the request behind it is not part of it."""

    async def test() -> None:
        async with _serving(tmp_path, _echo) as connect:
            caller = await connect()
            start = head("POST", "/other", "Host: 127.0.0.1", "Transfer-Encoding: chunked")
            answers = await caller.ask(start + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nX-Late: 1\r\n\r\n" + HEALTH, 2)
            assert answers[0].body == b"/other abcde"

    _run(test())


def test_a_large_body_waits_until_it_is_taken(tmp_path: Path) -> None:
    """Of a body that the application does not take yet, only a bounded part is kept; then nothing more is read."""

    async def test() -> None:
        taking = asyncio.Event()
        sizes: list[int] = []

        async def slow(_scope: Scope, receive: Receive, send: Send) -> None:
            await taking.wait()
            more = True
            while more:
                message = await receive()
                sizes.append(len(message["body"]))
                more = message["more_body"]
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body"})

        async with _serving(tmp_path, slow, body_bytes_max=100_000_000) as connect:
            caller = await connect()
            length = 64 * 1024 * 1024
            caller.writer.write(head("POST", "/other", "Host: 127.0.0.1", f"Content-Length: {length}"))
            sent = 0
            try:
                while sent < length:
                    caller.writer.write(bytes(1_048_576))
                    sent += 1_048_576
                    await asyncio.wait_for(caller.writer.drain(), 1)
            except TimeoutError:
                pass
            assert sent < length, "all of it was read, and nobody took it"
            taking.set()
            caller.writer.write(bytes(length - sent))
            assert (await caller.answers(1))[0].status == 204
            assert sum(sizes) == length
            assert max(sizes) <= BODY_BYTES_MAX + 2_048

    _run(test())


def test_an_answer_that_is_not_taken_makes_it_wait(tmp_path: Path) -> None:
    """An application that writes without end waits for its reader, and is told when that one is gone."""

    async def test() -> None:
        written = [0]
        ended = asyncio.Event()

        async def endless(_scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            gone = asyncio.ensure_future(_until_gone(receive))
            while not gone.done():
                await send({"type": "http.response.body", "body": bytes(65_536), "more_body": True})
                written[0] += 65_536
                await asyncio.sleep(0)
            ended.set()

        async with _serving(tmp_path, endless) as connect:
            caller = await connect()
            caller.writer.write(_post(b""))
            before = -1
            while written[0] != before:
                before = written[0]
                await asyncio.sleep(0.3)
            assert written[0] < 64 * 1024 * 1024
            caller.writer.transport.abort()
            await asyncio.wait_for(ended.wait(), SECONDS_MAX)

    _run(test())


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def test_one_that_fails_is_a_500_and_the_connection_goes_on(tmp_path: Path) -> None:
    """An application that fails before it has answered is 500 in our envelope; one that fails later breaks off."""

    async def test() -> None:
        async def broken(scope: Scope, _receive: Receive, send: Send) -> None:
            if scope["path"] == "/other/late":
                start = [(b"content-length", b"10")]
                await send({"type": "http.response.start", "status": 200, "headers": start})
                await send({"type": "http.response.body", "body": b"half", "more_body": True})
            raise RuntimeError("on purpose")

        async with _serving(tmp_path, broken) as connect:
            caller = await connect()
            answers = await caller.ask(_post(b"") + HEALTH, 2)
            assert [answer.status for answer in answers] == [500, 200]
            assert answers[0].json()["code"] == "internal_error"
            caller.writer.write(_post(b"", path="/other/late"))
            data = b""
            while more := await asyncio.wait_for(caller.reader.read(65_536), SECONDS_MAX):
                data += more
            assert data.endswith(b"half")

    _run(test())


def test_a_body_that_breaks_off_is_told(tmp_path: Path) -> None:
    """A body that turns out to be no HTTP ends: the application hears that nobody is there, the caller 400."""

    async def test() -> None:
        heard: list[str] = []

        async def patient(_scope: Scope, receive: Receive, _send: Send) -> None:
            await _until_gone(receive)
            heard.append("gone")

        async with _serving(tmp_path, patient) as connect:
            caller = await connect()
            start = head("POST", "/other", "Host: 127.0.0.1", "Transfer-Encoding: chunked")
            answers = await caller.ask(start + b"3\r\nabc\r\nnonsense\r\n", 1)
            assert answers[0].status == 400
            assert heard == ["gone"]

    _run(test())


def test_head_and_http_1_0_have_their_own_framing(tmp_path: Path) -> None:
    """HEAD gets no body, and HTTP/1.0 no chunks: the end of its answer is the end of the connection."""

    async def test() -> None:
        async with _serving(tmp_path, _echo) as connect:
            caller = await connect()
            caller.writer.write(head("HEAD", "/other", "Host: 127.0.0.1"))
            asked = await asyncio.wait_for(caller.reader.readuntil(b"\r\n\r\n"), SECONDS_MAX)
            assert asked.startswith(b"HTTP/1.1 200 ")
            assert (await caller.ask(HEALTH, 1))[0].status == 200
            old = await connect()
            old.writer.write(head("GET", "/other/old", version="HTTP/1.0"))
            data = await asyncio.wait_for(old.reader.read(-1), SECONDS_MAX)
            assert data.endswith(b"\r\n\r\n/other/old ")
            assert b"chunked" not in data

    _run(test())


def test_it_sees_the_client_that_a_trusted_proxy_tells(tmp_path: Path) -> None:
    """Address and scheme of the client are those that a proxy tells, if the settings name it, and else our own."""

    async def test(trusted_proxies: str) -> tuple[str, str]:
        seen: list[tuple[str, str]] = []

        async def look(scope: Scope, receive: Receive, send: Send) -> None:
            seen.append((scope["client"][0], scope["scheme"]))
            await _echo(scope, receive, send)

        async with _serving(tmp_path, look, trusted_proxies=trusted_proxies) as connect:
            caller = await connect()
            await caller.ask(_post(b"", "X-Forwarded-For: 203.0.113.9", "X-Forwarded-Proto: https"), 1)
        return seen[0]

    assert asyncio.run(test("127.0.0.0/8")) == ("203.0.113.9", "https")
    assert asyncio.run(test("")) == ("127.0.0.1", "http")


def _kept() -> list[str]:
    return [type(each).__name__ for each in gc.get_objects() if isinstance(each, (Lane, Incoming, Exchange))]


def test_a_connection_that_is_over_leaves_no_circle(tmp_path: Path) -> None:
    """What a connection was made of is freed at its end, without the garbage collector: that would make others wait."""

    async def test() -> None:
        async with _serving(tmp_path, _echo) as connect:
            gc.collect()
            gc.disable()
            try:
                for payload in (HEALTH, _post(b"one"), b"nonsense\r\n\r\n", HEALTH[:20], b""):
                    caller = await connect()
                    caller.writer.write(payload)
                    await asyncio.sleep(0.05)
                    caller.writer.transport.abort()
                looks = 0
                while _kept() and looks < 200:
                    looks += 1
                    await asyncio.sleep(0.02)
                assert _kept() == []
            finally:
                gc.enable()

    _run(test())
