"""Handlers behind a fence: the fence in memory, the decorator, and both kinds of middleware."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.fencing import (
    TOKEN_HEADER,
    TOKEN_MAX,
    FencedASGI,
    FencedWSGI,
    FolderFence,
    MemoryFence,
    SqlFence,
    StaleToken,
    fenced,
)


def passes(fence: MemoryFence, resource: str, token: int) -> bool:
    try:
        with fence.guard(resource, token):
            return True
    except StaleToken:
        return False


class WatchedFence(MemoryFence):
    """Tells when somebody has come, to pass or to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.came = threading.Semaphore(0)

    def _enqueue(self, resource: str, token: int) -> Any:  # noqa: ANN401 - a matter of the fence
        arrived = super()._enqueue(resource, token)
        self.came.release()
        return arrived


# --- In memory -------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 6) | st.integers(0, TOKEN_MAX)), max_size=20))
def test_passes_exactly_the_greatest_so_far(steps: list[tuple[str, int]]) -> None:
    """A token passes if and only if it is not smaller than every token that came for its resource before."""
    fence, greatest = MemoryFence(), {"a": 0, "b": 0}
    for resource, token in steps:
        assert passes(fence, resource, token) == (token >= greatest[resource])
        greatest[resource] = max(greatest[resource], token)


@settings(deadline=None)
@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 50)), max_size=40))
def test_eviction_never_admits_an_older_owner(resources_max: int, steps: list[tuple[str, int]]) -> None:
    """However few resources are remembered, a token older than one that passed is refused, and memory stays bounded."""
    fence, greatest = MemoryFence(resources_max=resources_max), dict.fromkeys("abcdefgh", 0)
    for resource, token in steps:
        if passes(fence, resource, token):
            assert token >= greatest[resource]
            greatest[resource] = token
        assert len(fence._entries) <= resources_max


def test_new_owner_passes_after_eviction() -> None:
    """Tokens come from one counter, so one that was given last passes a fence that has forgotten much."""
    fence = MemoryFence(resources_max=8)
    assert all(passes(fence, f"job/{token}", token) for token in range(1_000))
    assert not passes(fence, "job/3", 2)
    with pytest.raises(ValueError, match="resources_max"):
        MemoryFence(resources_max=0)


def test_resource_in_use_is_not_evicted() -> None:
    """A resource whose block runs is remembered beyond the limit, so that nobody enters beside it."""
    fence = MemoryFence(resources_max=1)
    with fence.guard("a", 1), fence.guard("b", 2), fence.guard("c", 3):
        assert sorted(fence._entries) == ["a", "b", "c"]
    assert passes(fence, "d", 4)
    assert not passes(fence, "a", 0)


def test_newer_owner_waits_and_older_is_refused() -> None:
    """While an owner is at work a newer one waits, an older one is refused at once, and they never run together."""
    fence, order = WatchedFence(), []

    def newer() -> None:
        with fence.guard("job", 9):
            order.append("newer")

    with ThreadPoolExecutor() as pool, fence.guard("job", 4):
        fence.came.acquire()
        task = pool.submit(newer)
        fence.came.acquire()
        assert not passes(fence, "job", 3)
        assert not passes(fence, "job", 4)  # Its own token: the newer one has raised the fence by coming.
        order.append("older")
    task.result()
    assert order == ["older", "newer"]


def test_stale_waiter_is_refused() -> None:
    """An owner that waits while a newer one comes is refused when its turn comes, and the newer passes."""
    fence = WatchedFence()
    with ThreadPoolExecutor() as pool:
        with fence.guard("job", 1):
            fence.came.acquire()
            first = pool.submit(passes, fence, "job", 4)
            fence.came.acquire()
            second = pool.submit(passes, fence, "job", 9)
            fence.came.acquire()
        assert not first.result()
        assert second.result()


def test_tasks_and_threads_share_one_queue() -> None:
    """A task that waits for a thread lets the loop run; a cancelled one leaves the line; the turn is not lost."""
    fence = MemoryFence()

    async def enter(token: int) -> None:
        async with fence.guard_async("job", token):
            pass

    async def main() -> None:
        with fence.guard("job", 4):
            cancelled, waiting = asyncio.create_task(enter(4)), asyncio.create_task(enter(9))
            await asyncio.sleep(0)  # One turn of the loop, in which both come.
            assert len(fence._entries["job"].queue) == 2
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            assert len(fence._entries["job"].queue) == 1
        await waiting
        with pytest.raises(StaleToken):
            await enter(4)

    asyncio.run(main())
    assert passes(fence, "job", 9)


def test_turn_granted_to_a_cancelled_task_is_passed_on() -> None:
    """A task cancelled in the moment its turn came does not keep the resource."""
    fence = MemoryFence()

    async def enter() -> None:
        async with fence.guard_async("job", 4):
            raise AssertionError("it was cancelled")

    async def main() -> None:
        with fence.guard("job", 4):
            task = asyncio.create_task(enter())
            await asyncio.sleep(0)  # One turn of the loop, in which it comes.
            assert len(fence._entries["job"].queue) == 1
        task.cancel()  # The end of the block gave it the turn; it has not run since.
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert passes(fence, "job", 4)


def test_concurrent_blocks_run_one_at_a_time() -> None:
    """Threads with rising tokens enter one at a time and in no order but that of their tokens."""
    fence, inside, entered = MemoryFence(), [], []
    tokens = iter(range(2_000))
    mutex = threading.Lock()

    def work() -> None:
        while True:
            with mutex:
                token = next(tokens, None)
            if token is None:
                return
            try:
                with fence.guard("job", token):
                    inside.append(token)
                    entered.append(token)
                    assert inside == [token]
                    inside.remove(token)
            except StaleToken:
                continue

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work) for _ in range(8)]:
            done.result()
    assert entered == sorted(entered)
    assert entered[-1] == 1_999


# --- A function ------------------------------------------------------------------------------------------------------


def test_a_function_runs_with_a_token_that_is_not_stale() -> None:
    """A decorated function takes its resource and token from its arguments, by name or by a function of them."""
    fence = MemoryFence()

    @fenced(fence, resource="reports/{report_id}")
    def save(report_id: int, body: str, *, token: int = 0) -> str:
        return f"{report_id}: {body}"

    @fenced(fence, resource=lambda request: request["path"], token=lambda request: request["token"])
    def handle(request: dict[str, Any]) -> str:
        return "handled"

    assert save(7, "ana", token=4) == "7: ana"
    assert save(report_id=7, body="ben", token=9) == "7: ben"
    with pytest.raises(StaleToken):
        save(7, "ana", token=4)
    with pytest.raises(StaleToken):
        handle({"path": "reports/7", "token": 8})
    assert handle({"path": "reports/8", "token": 8}) == "handled"
    with pytest.raises(StaleToken):
        save(8, "nobody")
    with pytest.raises(TypeError, match="whole number"):
        save(7, "ana", token="9")  # type: ignore[arg-type] # what a user may write
    assert save.__name__ == "save"


def test_an_async_function_holds_its_resource_while_it_awaits(tmp_path: Path) -> None:
    """An `async def` keeps newer owners waiting until it is done, with either kind of fence."""

    async def main(fence: MemoryFence | FolderFence) -> list[str]:
        order: list[str] = []
        begun, go_on = asyncio.Event(), asyncio.Event()

        @fenced(fence, resource="job")
        async def work(token: int) -> None:
            order.append(f"{token} begins")
            begun.set()
            await go_on.wait()
            order.append(f"{token} ends")

        older = asyncio.create_task(work(4))
        await begun.wait()
        newer = asyncio.create_task(work(9))
        await asyncio.sleep(0)  # One turn of the loop, in which the newer one comes.
        assert order == ["4 begins"]
        go_on.set()
        await asyncio.gather(older, newer)
        with pytest.raises(StaleToken):
            await work(4)
        return order

    for fence in (MemoryFence(), FolderFence(tmp_path)):
        assert asyncio.run(main(fence)) == ["4 begins", "4 ends", "9 begins", "9 ends"]


def test_invalid_function_is_refused_immediately() -> None:
    """A wrong argument's name, and a generator, are refused when they are decorated and not when it is too late."""

    def save(report_id: int, token: int) -> None: ...

    def stream(token: int) -> Iterator[int]:
        yield token

    with pytest.raises(TypeError, match="no argument 'report'"):
        fenced(MemoryFence(), resource="reports/{report}")(save)
    with pytest.raises(TypeError, match="no argument ''"):
        fenced(MemoryFence(), resource="reports/{}")(save)
    with pytest.raises(TypeError, match="no argument 'fence'"):
        fenced(MemoryFence(), resource="reports", token="fence")(save)
    with pytest.raises(TypeError, match="generator"):
        fenced(MemoryFence(), resource="reports")(stream)


# --- Applications ----------------------------------------------------------------------------------------------------

Ask = Callable[..., tuple[int, Any]]
App = Callable[..., Any]


def wsgi_app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    body = json.dumps(environ.get("holdfast.token")).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]


async def asgi_app(scope: dict[str, Any], receive: object, send: Callable[..., Awaitable[None]]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(scope.get("holdfast.token")).encode()})


def ask_wsgi(app: App, path: str = "/reports/7", *tokens: str, method: str = "PUT") -> tuple[int, Any]:
    environ: dict[str, Any] = {"REQUEST_METHOD": method, "SCRIPT_NAME": "", "QUERY_STRING": ""}
    environ["PATH_INFO"] = path.encode().decode("latin-1")
    setup_testing_defaults(environ)
    if tokens:
        environ["HTTP_FENCING_TOKEN"] = ",".join(tokens)
    started: list[str] = []

    def start_response(status: str, headers: object, error: object = None) -> Callable[[bytes], object]:
        started.append(status)
        return bytes

    answer: Any = validator(app)(environ, start_response)
    try:
        body = b"".join(answer)
    finally:
        answer.close()
    return int(started[-1].split()[0]), json.loads(body)


def ask_asgi(app: App, path: str = "/reports/7", *tokens: str, method: str = "PUT") -> tuple[int, Any]:
    headers = [(TOKEN_HEADER.lower().encode(), token.encode()) for token in tokens]
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app({"type": "http", "method": method, "path": path, "headers": headers}, None, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


KINDS = pytest.mark.parametrize(
    ("middleware", "app", "ask"), [(FencedWSGI, wsgi_app, ask_wsgi), (FencedASGI, asgi_app, ask_asgi)]
)


@KINDS
def test_a_stale_request_is_answered_412(middleware: App, app: App, ask: Ask) -> None:
    """A stale token is answered 412 with what to do; others reach the application, which finds the token."""
    guarded = middleware(app, MemoryFence(), trust_callers=True)
    assert ask(guarded, "/reports/7", "4") == (200, 4)
    assert ask(guarded, "/reports/7", "9") == (200, 9)
    assert ask(guarded, "/reports/8", "4") == (200, 4)
    status, body = ask(guarded, "/reports/7", "4")
    assert status == 412
    assert body == {
        "error": "Stale fencing token",
        "code": "stale_token",
        "details": "fencing token 4 is too old for /reports/7, which has seen 9: "
        "you no longer own the job, so stop, and claim it again if it still needs doing.",
        "resource": "/reports/7",
        "fencing_token": 4,
        "current": 9,
    }


@KINDS
@pytest.mark.parametrize(
    ("tokens", "code"),
    [
        ([], "fencing_token_missing"),
        ([""], "fencing_token_invalid"),
        (["four"], "fencing_token_invalid"),
        (["-4"], "fencing_token_invalid"),
        (["4", "9"], "fencing_token_invalid"),
        ([str(TOKEN_MAX + 1)], "fencing_token_invalid"),
    ],
)
def test_a_request_without_a_token_is_answered_400(
    middleware: App, app: App, ask: Ask, tokens: list[str], code: str
) -> None:
    """A request whose token is missing, garbled or said twice never reaches the application."""
    status, body = ask(middleware(app, MemoryFence(), trust_callers=True), "/reports/7", *tokens)
    assert (status, body["code"]) == (400, code)
    assert "send the fencing token of your claim" in body["details"].lower()


@KINDS
def test_reading_needs_no_token(middleware: App, app: App, ask: Ask) -> None:
    """Safe methods pass unguarded; a function of your own decides otherwise."""
    assert ask(middleware(app, MemoryFence(), trust_callers=True), method="GET") == (200, None)
    everything = middleware(app, MemoryFence(), trust_callers=True, resource=lambda request: "the one thing")
    assert ask(everything, "/a", method="GET")[0] == 400
    assert ask(everything, "/a", "9", method="GET") == (200, 9)
    assert ask(everything, "/b", "4")[0] == 412
    nothing = middleware(app, MemoryFence(), trust_callers=True, resource=lambda request: None)
    assert ask(nothing) == (200, None)


@KINDS
def test_paths_are_names(middleware: App, app: App, ask: Ask) -> None:
    """A path is compared as text; one that no fence can keep is refused."""
    fence = MemoryFence()
    guarded = middleware(app, fence, trust_callers=True)
    assert ask(guarded, "/berichte/größe", "9") == (200, 9)
    assert not passes(fence, "/berichte/größe", 4)
    status, body = ask(guarded, "/" + "a" * 256, "9")
    assert (status, body["code"]) == (400, "invalid_resource")


def test_a_stale_write_inside_the_application_is_answered_too(tmp_path: Path) -> None:
    """With a fence in the handler's own transaction the middleware needs none, and answers what the handler raised."""
    file = tmp_path / "data.sqlite3"
    with closing(sqlite3.connect(file)) as connection:
        SqlFence().create(connection)

    def save(token: int) -> None:
        with closing(sqlite3.connect(file)) as connection, connection:
            SqlFence().check(connection, "reports/7", token)

    def in_wsgi(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "application/json")])
        save(environ["holdfast.token"])
        return [b"true"]

    def streamed_wsgi(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "application/json")])
        save(environ["holdfast.token"])
        yield b"true"

    async def in_asgi(scope: dict[str, Any], receive: object, send: Callable[..., Awaitable[None]]) -> None:
        save(scope["holdfast.token"])
        await asgi_app(scope, receive, send)

    save(4)
    for ask, guarded in (
        (ask_wsgi, FencedWSGI(in_wsgi, trust_callers=True)),
        (ask_wsgi, FencedWSGI(streamed_wsgi, trust_callers=True)),
        (ask_asgi, FencedASGI(in_asgi, trust_callers=True)),
    ):
        assert ask(guarded, "/reports/7", "3")[0] == 412
        assert ask(guarded, "/reports/7", "4")[0] == 200


def test_a_response_holds_its_resource_until_it_is_closed() -> None:
    """A WSGI response made on the way keeps the resource until the server closes it, and a failing one lets it go."""
    fence, closed = MemoryFence(), []

    class Response:
        def __iter__(self) -> Iterator[bytes]:
            yield b"1"

        def close(self) -> None:
            closed.append(fence._entries["/reports/7"].is_taken)
            raise LookupError

    def fail(environ: object, start_response: object) -> Iterable[bytes]:
        raise LookupError

    environ = {"REQUEST_METHOD": "PUT", "PATH_INFO": "/reports/7", "HTTP_FENCING_TOKEN": "4"}
    response: Any = FencedWSGI(lambda environ, start_response: Response(), fence, trust_callers=True)(environ, print)
    assert list(response) == [b"1"]
    with pytest.raises(LookupError):
        response.close()
    assert closed == [True]
    assert passes(fence, "/reports/7", 4)
    with pytest.raises(LookupError):
        FencedWSGI(fail, fence, trust_callers=True)(environ, print)
    assert passes(fence, "/reports/7", 4)


def test_started_response_is_not_replaced() -> None:
    """A StaleToken after an ASGI response has begun is raised to the server; what is not HTTP passes untouched."""
    seen: list[dict[str, Any]] = []

    async def late(scope: dict[str, Any], receive: object, send: Callable[..., Awaitable[None]]) -> None:
        await asgi_app(scope, receive, send)
        raise StaleToken("a newer owner has been here")

    async def note(scope: dict[str, Any], receive: object, send: object) -> None:
        seen.append(scope)

    with pytest.raises(StaleToken):
        ask_asgi(FencedASGI(late, trust_callers=True), "/reports/7", "4")
    asyncio.run(FencedASGI(note, MemoryFence(), trust_callers=True)({"type": "lifespan"}, None, None))
    assert seen == [{"type": "lifespan"}]
