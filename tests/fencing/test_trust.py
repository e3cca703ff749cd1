"""Whom a handler believes a token: nobody can raise its fence beyond what the server, or a key, vouches for. No other
spelling of a path leads around it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.errors import Unreachable
from holdfast.fencing import TOKEN_MAX, FencedASGI, FencedWSGI, MemoryFence, routed_path, sign_token
from holdfast.fencing import _web as trust
from tests.fencing.test_web import KINDS, App, Ask, asgi_app, ask_asgi, ask_wsgi, passes, wsgi_app
from tests.support import callers
from tests.support.checks import unique
from tests.support.server import ServerProcess

KEY = b"0123456789abcdef"


class Server:
    """A server as a handler sees it: it has given tokens, and one of them is current."""

    def __init__(self, current: int) -> None:
        self.current = current
        self.asked: list[tuple[str, int]] = []

    def is_current(self, resource: str, token: int) -> bool:
        self.asked.append((resource, token))
        return token == self.current

    async def is_current_async(self, resource: str, token: int) -> bool:
        await asyncio.sleep(0)
        return self.is_current(resource, token)


# --- Who vouches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("middleware", [FencedWSGI, FencedASGI])
def test_there_is_no_trust_by_default(middleware: App) -> None:
    """Who vouches for tokens must be said, and only once; nothing that is not a key is one."""
    for said in (
        {},
        {"trust_callers": False},
        {"trust_callers": True, "key": KEY},
        {"is_current": Server(1).is_current, "key": KEY},
        {"is_current": Server(1).is_current, "trust_callers": True},
    ):
        with pytest.raises(TypeError, match="say who vouches"):
            middleware(wsgi_app, MemoryFence(), **said)
    with pytest.raises(ValueError, match="at least 16 bytes"):
        middleware(wsgi_app, MemoryFence(), key=b"short")
    with pytest.raises(TypeError, match="a key is bytes"):
        middleware(wsgi_app, MemoryFence(), key="0123456789abcdef")


@KINDS
def test_token_beyond_the_current_one_is_refused(middleware: App, app: App, ask: Ask) -> None:
    """A token that the server does not vouch for is 412 and raises nothing: the owner goes on, and so does the next."""
    server, fence = Server(current=4), MemoryFence()
    guarded = middleware(app, fence, is_current=server.is_current)
    assert ask(guarded, "/reports/7", "4") == (200, 4)
    status, body = ask(guarded, "/reports/7", str(TOKEN_MAX))
    assert (status, body["code"]) == (412, "fencing_token_not_current")
    assert body["fencing_token"] == TOKEN_MAX and "claim it again" in body["details"]
    assert ask(guarded, "/reports/7", "4") == (200, 4)
    assert ask(guarded, "/reports/8", "5")[0] == 412, "for a path that nobody came to yet, too"
    server.current = 9
    assert ask(guarded, "/reports/7", "9") == (200, 9)
    status, body = ask(guarded, "/reports/7", "4")
    assert (status, body["code"], body["current"]) == (412, "stale_token", 9)
    assert not passes(fence, "/reports/7", 8)


@KINDS
def test_an_owner_is_asked_about_once(middleware: App, app: App, ask: Ask) -> None:
    """The server is asked about a token that is greater than all before it, once for each resource, and never again."""
    server = Server(current=4)
    guarded = middleware(app, MemoryFence(), is_current=server.is_current)
    for _ in range(3):
        assert ask(guarded, "/reports/7", "4") == (200, 4)
        assert ask(guarded, "/reports/7", "3")[0] == 412
    assert server.asked == [("/reports/7", 4)]


@KINDS
def test_application_compares_after_the_server_vouches(middleware: App, app: App, ask: Ask) -> None:
    """Without a fence, for one in the handler's own transaction, tokens are let in by the same rule."""
    guarded = middleware(app, is_current=Server(current=4).is_current)
    assert ask(guarded, "/reports/7", "5")[0] == 412
    assert ask(guarded, "/reports/7", "4") == (200, 4)
    assert ask(guarded, "/reports/7", "3") == (200, 3), "the application refuses it"


@KINDS
def test_unreachable_server_refuses_everyone(middleware: App, app: App, ask: Ask) -> None:
    """If the server cannot be asked it is 503, and the application is not reached; who was let in before still is."""
    answers: list[object] = [True]

    def is_current(resource: str, token: int) -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    guarded = middleware(app, MemoryFence(), is_current=is_current)
    assert ask(guarded, "/reports/7", "4") == (200, 4)
    answers.append(Unreachable("http://127.0.0.1:1", "nobody is there"))
    status, body = ask(guarded, "/reports/7", "5")
    assert (status, body["code"]) == (503, "fencing_token_not_checked") and "nobody is there" in body["details"]
    assert ask(guarded, "/reports/7", "4") == (200, 4)
    answers.append(LookupError())
    with pytest.raises(LookupError):
        ask(guarded, "/reports/7", "5")


def test_coroutines_are_waited_for_or_refused() -> None:
    """In ASGI the question may be a coroutine; in WSGI one is refused, and one that slips through is no yes."""
    server = Server(current=4)
    for question in (server.is_current_async, lambda path, token: server.is_current_async(path[:], token)):
        guarded = FencedASGI(asgi_app, MemoryFence(), is_current=question)
        assert ask_asgi(guarded, "/reports/7", "4") == (200, 4)
        assert ask_asgi(guarded, "/reports/7", "5")[0] == 412
    with pytest.raises(TypeError, match="plain function"):
        FencedWSGI(wsgi_app, MemoryFence(), is_current=server.is_current_async)
    for answer in ("yes", 1, object()):
        sneaky: Any = lambda resource, token, answer=answer: answer  # noqa: E731 - what a user may pass
        assert ask_wsgi(FencedWSGI(wsgi_app, MemoryFence(), is_current=sneaky), "/reports/7", "4")[0] == 412
        assert ask_asgi(FencedASGI(asgi_app, MemoryFence(), is_current=sneaky), "/reports/7", "4")[0] == 412


def test_vouched_tokens_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many resources are remembered and no more; one that was forgotten is asked about again."""
    monkeypatch.setattr(trust, "RESOURCES_MAX", 2)
    server = Server(current=4)
    vouched = trust.Vouched(server.is_current)
    assert all(vouched.vouches(resource, 4) for resource in "abcb")
    assert [resource for resource, _ in server.asked] == ["a", "b", "c"]
    assert vouched.vouches("a", 4)
    assert [resource for resource, _ in server.asked] == ["a", "b", "c", "a"]


@KINDS
def test_signed_tokens(middleware: App, app: App, ask: Ask) -> None:
    """With a key only a token that is signed for this very resource passes, and no server is asked."""
    guarded = middleware(app, MemoryFence(), key=KEY)
    signed = sign_token(KEY, "/reports/7", 4)
    assert ask(guarded, "/reports/7", signed) == (200, 4)
    assert ask(guarded, "/reports/7", sign_token(KEY, "/reports/7", 9)) == (200, 9)
    assert ask(guarded, "/reports/7", signed)[1]["code"] == "stale_token"
    digits, _, signature = signed.partition(".")
    for forged in (
        str(TOKEN_MAX),
        digits,
        f"{digits}.",
        f"5.{signature}",
        f"{TOKEN_MAX}.{signature}",
        f"{digits}.{signature[:-1]}",
        f"{digits}.{signature}0",
        f"{digits}.é",
        sign_token(KEY, "/reports/8", TOKEN_MAX),
        sign_token(b"fedcba9876543210", "/reports/7", TOKEN_MAX),
    ):
        status, body = ask(guarded, "/reports/7", forged.encode().decode("latin-1"))
        assert (status, body["code"]) == (403, "fencing_token_not_signed"), forged
    assert ask(guarded, "/reports/7", f"x.{signature}")[1]["code"] == "fencing_token_invalid"
    assert ask(guarded, "/reports/7", sign_token(KEY, "/reports/7", 9)) == (200, 9)


def test_by_a_real_server(tmp_path: Path) -> None:
    """With the client's `check` as the question: the owner passes, a forged token and the owner before do not."""
    job = unique("report")
    with (
        ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server,
        holdfast.Holdfast(server.url, token=callers.ALICE) as client,
    ):
        first = client.claim_job(job, ttl=60)
        guarded = FencedWSGI(wsgi_app, MemoryFence(), is_current=lambda _, token: client.check(job, token))
        assert ask_wsgi(guarded, "/reports/7", str(TOKEN_MAX))[0] == 412
        assert ask_wsgi(guarded, "/reports/7", str(first.fencing_token)) == (200, first.fencing_token)
        client.release_job(job, first.lease_id)
        second = client.claim_job(job, ttl=60)
        assert ask_wsgi(guarded, "/reports/7", str(second.fencing_token)) == (200, second.fencing_token)
        assert ask_wsgi(guarded, "/reports/7", str(first.fencing_token))[1]["code"] == "stale_token"
        # A new process knows nothing yet, and the owner of before comes first: a fence alone would let it in.
        again = FencedWSGI(wsgi_app, MemoryFence(), is_current=lambda _, token: client.check(job, token))
        assert ask_wsgi(again, "/reports/7", str(first.fencing_token))[1]["code"] == "fencing_token_not_current"
        server.kill()
        assert ask_wsgi(again, "/reports/7", str(second.fencing_token))[0] == 503


# --- Paths -----------------------------------------------------------------------------------------------------------

SPELLED = [
    "/reports/7",
    "/reports/7/",
    "//reports/7",
    "/reports//7",
    "/./reports/7",
    "/reports/./7",
    "/reports/7/.",
    "/other/../reports/7",
    "/reports/8/../7",
    "/../reports/7",
    "/reports/7;v=1",
    "/reports;x/7",
    "/;/reports/7",
]
ESCAPED = ["/reports/%37", "/%72eports/7", "/reports%2F7", "/reports/%2E/7", "/reports/7%2f", "/reports/7%3Bv"]


@KINDS
@pytest.mark.parametrize("spelled", SPELLED)
def test_equivalent_paths_share_one_fence(middleware: App, app: App, ask: Ask, spelled: str) -> None:
    """Slashes, dots and parameters that do not change where a path leads do not lead around its fence."""
    guarded = middleware(app, MemoryFence(), trust_callers=True)
    assert ask(guarded, "/reports/7", "9") == (200, 9)
    status, body = ask(guarded, spelled, "4")
    assert (status, body.get("resource")) == (412, "/reports/7")


@KINDS
def test_different_things_keep_fences_of_their_own(middleware: App, app: App, ask: Ask) -> None:
    """Another id, and another case, which routers tell apart, is another thing."""
    guarded = middleware(app, MemoryFence(), trust_callers=True)
    assert ask(guarded, "/reports/7", "9") == (200, 9)
    for path in ("/reports/8", "/reports", "/", "/Reports/7", "/reports/7/8", "/reports/.7", "/reports/%37"):
        assert ask(guarded, path, "4") == (200, 4), path


def test_mount_path_is_not_part_of_the_resource() -> None:
    """One application under two mounts has one fence for what it routes the same."""
    fence = MemoryFence()
    wsgi, asgi = FencedWSGI(wsgi_app, fence, trust_callers=True), FencedASGI(asgi_app, fence, trust_callers=True)
    for mount in ("/a", "/b"):
        environ = {"REQUEST_METHOD": "PUT", "SCRIPT_NAME": mount, "PATH_INFO": "/r", "HTTP_FENCING_TOKEN": "9"}
        list(wsgi(environ, lambda *_: None))
    assert list(fence._entries) == ["/r"]

    async def send(message: object) -> None: ...

    for mount, path in (("", "/r"), ("/a", "/a/r"), ("/a/", "/a/r"), ("/b", "/r"), ("/r", "/r")):
        headers = [(b"fencing-token", b"9")]
        scope = {"type": "http", "method": "PUT", "root_path": mount, "path": path, "headers": headers}
        asyncio.run(asgi(scope, None, send))
    assert list(fence._entries) == ["/r", "/"]


@given(st.text("ab./;%", max_size=20))
def test_a_routed_path_is_plain(path: str) -> None:
    """Whatever the path, what comes out is one spelling: it begins with a slash, ends with none, and stays as it is."""
    routed = routed_path(path)
    assert routed == routed_path(routed) == routed_path(f"{path}/") == routed_path(f"//{path}")
    assert routed == "/" or not (routed.endswith("/") or "//" in routed or ";" in routed)
    assert not {".", ".."} & set(routed.split("/"))


@contextmanager
def serving_wsgi(app: Callable[..., Any]) -> Iterator[int]:
    class Quiet(WSGIRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def serving_asgi(app: Callable[..., Any]) -> Iterator[int]:
    """Serve an ASGI application by the standard library, with the path as it was sent."""

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            raw, _, query = self.path.partition("?")
            headers = [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]
            scope = {"type": "http", "method": "PUT", "root_path": "", "path": unquote(raw), "raw_path": raw.encode()}
            sent: list[dict[str, Any]] = []

            async def receive() -> dict[str, Any]:
                return {"type": "http.request", "body": b"", "more_body": False}

            async def send(message: dict[str, Any]) -> None:
                sent.append(message)

            asyncio.run(app(scope | {"query_string": query.encode(), "headers": headers}, receive, send))
            body = b"".join(message.get("body", b"") for message in sent[1:])
            self.send_response(sent[0]["status"])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def put(port: int, path: str, token: int) -> tuple[int, Any]:
    """Ask with the path as it stands: this client does not tidy it up."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("PUT", path, headers={"Fencing-Token": str(token)})
        answer = connection.getresponse()
        return answer.status, json.load(answer)


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_fence_works_with_real_servers(kind: str) -> None:
    """Escaped or not, over the wire and through a real server, every spelling meets the same fence."""
    if kind == "wsgi":
        serving = serving_wsgi(FencedWSGI(wsgi_app, MemoryFence(), trust_callers=True))
    else:
        serving = serving_asgi(FencedASGI(asgi_app, MemoryFence(), trust_callers=True))
    with serving as port:
        assert put(port, "/reports/7", 9)[0] == 200
        for spelled in (*SPELLED, *ESCAPED):
            status, body = put(port, spelled, 4)
            assert (status, body.get("resource") if isinstance(body, dict) else body) == (412, "/reports/7"), spelled
        assert put(port, "/reports/8", 4)[0] == 200
