"""An ASGI application mounted beside our routes: body and answer go through the queue of the connection, in pieces."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import __version__
from holdfast.api.auth.auth import Auth, StaticTokens
from holdfast.api.auth.secrets import AuthorityKey
from holdfast.api.mounts import Ask, Mount, MountTable
from holdfast.api.router import Routes
from holdfast.api.service import ApiService
from holdfast.config import Settings
from holdfast.core.values import Limits
from holdfast.engine.clock import SystemClock
from holdfast.engine.engine import Engine
from holdfast.http.connection import BODY_BYTES_MAX, HttpConnection, ResponseStream
from holdfast.http.manager import ConnectionManager
from holdfast.http.parser import RequestParser
from holdfast.http.proxies import Proxies
from holdfast.server.components import OPERATIONS
from tests.support.http import Answer, parse_answers
from tests.support.memory_journal import MemoryJournal
from tests.support.raw import head

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

HEALTH = head("GET", "/healthz", "Host: 127.0.0.1")
SECONDS_MAX = 20.0
TOKEN = "alice-0123456789abcdef"


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
    directory: Path, mount: Mount, body_bytes_max: int = 2_097_152, trusted_proxies: str = "", path: str = "/mcp"
) -> AsyncIterator[Callable[[], Awaitable[Caller]]]:
    """Serve our routes, and an application below a path, on a real socket; yield what connects to it."""
    engine = Engine(MemoryJournal(), Limits(), clock=SystemClock(), version=__version__)
    await engine.start()
    api = ApiService(
        engine,
        Auth(StaticTokens.parse(f"alice:{TOKEN}"), AuthorityKey(b"k" * 32)),
        Settings(data=directory, body_bytes_max=body_bytes_max, trusted_proxies=trusted_proxies),
    )
    routes = Routes(api, OPERATIONS)
    mounting = MountTable({path: mount}, api.settings, api.proxies, body_bytes_max=body_bytes_max)
    manager = ConnectionManager(mounting.wrap(routes.handler()), api.settings, engine.clock, api.proxies)
    server = await asyncio.get_running_loop().create_server(lambda: HttpConnection(manager), "127.0.0.1", 0)
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
        for task in list(manager.tasks):
            task.cancel()
        await engine.stop()


def _as_it_is(application: Application) -> Mount:
    """An application that asks the server nothing."""
    return lambda _ask: application


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


def _post(body: bytes, *headers: str, path: str = "/mcp/place") -> bytes:
    return head("POST", path, "Host: 127.0.0.1", f"Content-Length: {len(body)}", *headers) + body


def test_mounted_app_answers_in_pipeline_order(tmp_path: Path) -> None:
    """Pipelined requests to the application and to our routes are answered in their order."""

    async def test() -> None:
        async with _serving(tmp_path, _as_it_is(_echo)) as connect:
            caller = await connect()
            answers = await caller.ask(HEALTH + _post(b"one") + HEALTH + _post(b"two", path="/mcp") + HEALTH, 5)
            assert [answer.status for answer in answers] == [200] * 5
            assert [answers[index].body for index in (1, 3)] == [b"/mcp/place one", b"/mcp two"]
            assert (await caller.ask(head("GET", "/mcpother", "Host: 127.0.0.1"), 1))[0].status == 404

    _run(test())


def test_mounted_app_receives_entire_chunked_body(tmp_path: Path) -> None:
    """A chunked body reaches the application without its framing, and the request behind it is not part of it."""

    async def test() -> None:
        async with _serving(tmp_path, _as_it_is(_echo)) as connect:
            caller = await connect()
            start = head("POST", "/mcp", "Host: 127.0.0.1", "Transfer-Encoding: chunked")
            answers = await caller.ask(start + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nX-Late: 1\r\n\r\n" + HEALTH, 2)
            assert answers[0].body == b"/mcp abcde"

    _run(test())


def test_a_large_body_waits_until_it_is_taken(tmp_path: Path) -> None:
    """Of a body that the application does not take yet, only a bounded part is kept; then nothing more is read."""

    async def test() -> None:
        may_read = asyncio.Event()
        sizes: list[int] = []

        async def slow(_scope: Scope, receive: Receive, send: Send) -> None:
            await may_read.wait()
            more = True
            while more:
                message = await receive()
                sizes.append(len(message["body"]))
                more = message["more_body"]
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body"})

        async with _serving(tmp_path, _as_it_is(slow), body_bytes_max=100_000_000) as connect:
            caller = await connect()
            length = 64 * 1024 * 1024
            caller.writer.write(head("POST", "/mcp", "Host: 127.0.0.1", f"Content-Length: {length}"))
            sent = 0
            try:
                while sent < length:
                    caller.writer.write(bytes(1_048_576))
                    sent += 1_048_576
                    await asyncio.wait_for(caller.writer.drain(), 1)
            except TimeoutError:
                pass
            assert sent < length, "all of it was read, and nobody took it"
            may_read.set()
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

        async with _serving(tmp_path, _as_it_is(endless)) as connect:
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


def test_failing_mounted_app_answers_500_and_keeps_the_connection(tmp_path: Path) -> None:
    """An application that fails before it has answered is 500 in our envelope; one that fails later breaks off."""

    async def test() -> None:
        async def broken(scope: Scope, _receive: Receive, send: Send) -> None:
            if scope["path"] == "/mcp/late":
                start = [(b"content-length", b"10")]
                await send({"type": "http.response.start", "status": 200, "headers": start})
                await send({"type": "http.response.body", "body": b"half", "more_body": True})
            raise RuntimeError("on purpose")

        async with _serving(tmp_path, _as_it_is(broken)) as connect:
            caller = await connect()
            answers = await caller.ask(_post(b"") + HEALTH, 2)
            assert [answer.status for answer in answers] == [500, 200]
            assert answers[0].json()["code"] == "internal_error"
            caller.writer.write(_post(b"", path="/mcp/late"))
            data = b""
            while more := await asyncio.wait_for(caller.reader.read(65_536), SECONDS_MAX):
                data += more
            assert data.endswith(b"half")

    _run(test())


def test_mounted_app_sees_truncated_body(tmp_path: Path) -> None:
    """A body that turns out to be no HTTP ends: the application hears that nobody is there, the caller 400."""

    async def test() -> None:
        events: list[str] = []

        async def patient(_scope: Scope, receive: Receive, _send: Send) -> None:
            await _until_gone(receive)
            events.append("gone")

        async with _serving(tmp_path, _as_it_is(patient)) as connect:
            caller = await connect()
            start = head("POST", "/mcp", "Host: 127.0.0.1", "Transfer-Encoding: chunked")
            answers = await caller.ask(start + b"3\r\nabc\r\nnonsense\r\n", 1)
            assert answers[0].status == 400
            assert events == ["gone"]

    _run(test())


def test_head_and_http_1_0_have_their_own_framing(tmp_path: Path) -> None:
    """HEAD gets no body, and HTTP/1.0 no chunks: the end of its answer is the end of the connection."""

    async def test() -> None:
        async with _serving(tmp_path, _as_it_is(_echo)) as connect:
            caller = await connect()
            caller.writer.write(head("HEAD", "/mcp", "Host: 127.0.0.1"))
            asked = await asyncio.wait_for(caller.reader.readuntil(b"\r\n\r\n"), SECONDS_MAX)
            assert asked.startswith(b"HTTP/1.1 200 ")
            assert (await caller.ask(HEALTH, 1))[0].status == 200
            old = await connect()
            old.writer.write(head("GET", "/mcp/old", version="HTTP/1.0"))
            data = await asyncio.wait_for(old.reader.read(-1), SECONDS_MAX)
            assert data.endswith(b"\r\n\r\n/mcp/old ")
            assert b"chunked" not in data

    _run(test())


def test_mounted_app_sees_client_behind_trusted_proxy(tmp_path: Path) -> None:
    """Address and scheme of the client are those that a proxy tells, if the settings name it, and else our own."""

    async def test(trusted_proxies: str) -> tuple[str, str]:
        seen: list[tuple[str, str]] = []

        async def look(scope: Scope, receive: Receive, send: Send) -> None:
            seen.append((scope["client"][0], scope["scheme"]))
            await _echo(scope, receive, send)

        async with _serving(tmp_path, _as_it_is(look), trusted_proxies=trusted_proxies) as connect:
            caller = await connect()
            await caller.ask(_post(b"", "X-Forwarded-For: 203.0.113.9", "X-Forwarded-Proto: https"), 1)
        return seen[0]

    assert asyncio.run(test("127.0.0.0/8")) == ("203.0.113.9", "https")
    assert asyncio.run(test("")) == ("127.0.0.1", "http")


def _retained_types() -> list[str]:
    return [
        type(each).__name__
        for each in gc.get_objects()
        if isinstance(each, (HttpConnection, RequestParser, ResponseStream))
    ]


def test_closed_connection_leaves_no_reference_cycle(tmp_path: Path) -> None:
    """What a connection was made of is freed at its end, without the garbage collector: that would make others wait."""

    async def test() -> None:
        async with _serving(tmp_path, _as_it_is(_echo)) as connect:
            gc.collect()
            gc.disable()
            try:
                for payload in (HEALTH, _post(b"one"), b"nonsense\r\n\r\n", HEALTH[:20], b""):
                    caller = await connect()
                    caller.writer.write(payload)
                    await asyncio.sleep(0.05)
                    caller.writer.transport.abort()
                attempts = 0
                while _retained_types() and attempts < 200:
                    attempts += 1
                    await asyncio.sleep(0.02)
                assert _retained_types() == []
            finally:
                gc.enable()

    _run(test())


def _request(seen: list[tuple[int, bytes]], path: str, authorization: str | None) -> Mount:
    """An application that asks the server one thing, and answers what it was told."""

    def mount(ask: Ask) -> Application:
        async def application(scope: Scope, _receive: Receive, send: Send) -> None:
            headers = {} if authorization is None else {"Authorization": authorization}
            status, _, body = await ask(scope, "GET", path, headers, b"")
            seen.append((status, body))
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body"})

        return application

    return mount


def test_mounted_app_asks_on_behalf_of_its_request(tmp_path: Path) -> None:
    """What an application asks the server has the rights of its token, and the id of the request it answers."""

    async def test(authorization: str | None) -> tuple[int, bytes, str]:
        seen: list[tuple[int, bytes]] = []
        async with _serving(tmp_path, _request(seen, "/sessions?limit=1", authorization)) as connect:
            (answer,) = await (await connect()).ask(_post(b""), 1)
            return *seen[0], answer.headers["x-request-id"]

    status, body, request_id = asyncio.run(test(None))
    assert status == 401 and request_id in body.decode()
    assert asyncio.run(test(f"Bearer {TOKEN}"))[0] == 200


def test_a_page_of_another_origin_is_refused(tmp_path: Path) -> None:
    """A browser may ask from our own pages; from anywhere else, or from nowhere that it tells, it is 403."""

    async def test() -> None:
        async with _serving(tmp_path, _as_it_is(_echo)) as connect:
            for header, status in (
                ("Origin: https://evil.example", 403),
                ("Origin: null", 403),
                ("Sec-Fetch-Site: cross-site", 403),
                ("Origin: http://127.0.0.1", 200),
                ("Accept: */*", 200),
            ):
                (answer,) = await (await connect()).ask(_post(b"", header), 1)
                assert answer.status == status, header
            (other,) = await (await connect()).ask(_post(b"").replace(b"Host: 127.0.0.1", b"Host: evil.example"), 1)
            assert other.status == 421

    _run(test())


def test_repeated_heads_reach_it(tmp_path: Path) -> None:
    """A request like the one before goes to the application too."""

    async def test() -> None:
        async with _serving(tmp_path, _as_it_is(_echo)) as connect:
            caller = await connect()
            for number in range(4):
                (answer,) = await caller.ask(_post(b"%d" % number, path="/mcp"), 1)
                assert answer.body == b"/mcp %d" % number

    _run(test())


def test_an_application_elsewhere_is_refused(tmp_path: Path) -> None:
    """A repeated POST is not checked for being one of an application's, so that must be below a path that is known."""
    settings, proxies = Settings(data=tmp_path), Proxies("")
    with pytest.raises(ValueError, match="/other"):
        MountTable({"/other": _as_it_is(_echo)}, settings, proxies)
