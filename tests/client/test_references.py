"""An error that has passed through the client keeps nothing alive once it is handled: no circle is left behind.

A claim is renewed for as long as somebody has it. If an error kept the frames of its callers in a circle, a claim of
theirs would be renewed until the garbage collector comes, which in an idle program is never.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from holdfast import AsyncHoldfast, Holdfast, HoldfastError, Unreachable
from holdfast.client import aio_transport as coroutines_http
from holdfast.client import sync_transport as threads_http

NOBODY = "http://127.0.0.1:1"
urls = pytest.mark.parametrize("url", [NOBODY, f"{NOBODY},http://127.0.0.1:2"], ids=["one", "several"])
CALLS: Mapping[str, Callable[[Any], Any]] = {
    "job": lambda client: client.job("a"),
    "claim": lambda client: client.claim("a"),
    "claim with a wait": lambda client: client.claim("a", wait=0.2),
    "claim_any": lambda client: client.claim_any(["a", "b"]),
    "claim_all": lambda client: client.claim_all(["a", "b"]),
    "session": lambda client: client.session("a"),
    "heartbeat_job": lambda client: client.heartbeat_job("a", "11111111-1111-4111-8111-111111111111"),
    "release_job": lambda client: client.release_job("a", "11111111-1111-4111-8111-111111111111"),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


class Claimed:
    """Stands for a claim that the caller has."""


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(params=[None, KeyboardInterrupt, ConnectionResetError], ids=["unreachable", "interrupted", "lost"])
def broken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens, or each request is interrupted, or its answer is lost."""
    error: type[BaseException] | None = request.param
    if error is None:
        return

    def send(*_: object) -> None:
        try:
            raise error
        except ConnectionResetError:
            raise Unreachable(NOBODY, "the connection broke") from None

    async def send_async(*_: object) -> None:
        send()

    monkeypatch.setattr(threads_http.HttpTransport, "_send", send)
    monkeypatch.setattr(coroutines_http.AsyncHttpTransport, "_send", send_async)


@pytest.mark.usefixtures("broken")
@urls
@each_call
def test_threads(call: Callable[[Any], Any], url: str) -> None:
    """What a caller of a thread's client had is gone with the caller, whatever was raised."""
    had: list[weakref.ref[Claimed]] = []

    def work() -> None:
        claimed = Claimed()
        had.append(weakref.ref(claimed))
        call(client)

    with Holdfast(url, token="t" * 20, retry_seconds=0.1) as client:
        with contextlib.suppress(HoldfastError, KeyboardInterrupt):
            work()
        assert had[0]() is None


@pytest.mark.usefixtures("broken")
@urls
@each_call
def test_coroutines(call: Callable[[Any], Any], url: str) -> None:
    """The same of a coroutine's client."""
    had: list[weakref.ref[Claimed]] = []

    async def main() -> None:
        async def work() -> None:
            claimed = Claimed()
            had.append(weakref.ref(claimed))
            await call(client)

        async with AsyncHoldfast(url, token="t" * 20, retry_seconds=0.1) as client:
            with contextlib.suppress(HoldfastError, KeyboardInterrupt):
                await work()
            assert had[0]() is None

    asyncio.run(main())
