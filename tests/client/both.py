"""Both clients with one face: the one for coroutines runs on an event loop in a thread, and is waited for.

So one test body states a fact of both. What only coroutines can do (be cancelled) is tested without this.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, TypeAlias

from holdfast import AsyncClaim, AsyncClaims, AsyncHoldfast, AsyncSession, Holdfast
from holdfast.client.aio import Acquiring

Either: TypeAlias = Any
"""A client of either kind, a claim of it, or a session."""

KINDS = ("threads", "coroutines")
SECONDS_MAX = 30.0


class Both:
    """Makes clients of one kind and closes them."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._opened: list[Any] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        if kind == "coroutines":
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
            self._thread.start()

    def client(self, **options: Any) -> Any:  # noqa: ANN401 - of either kind
        if self._loop is None:
            made: Any = Holdfast(**options)
        else:
            made = Waited(AsyncHoldfast(**options), self._loop)
        self._opened.append(made)
        return made

    def close(self) -> None:
        for made in self._opened:
            made.close()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(SECONDS_MAX)
            self._loop.close()


class Waited:
    """Something for coroutines, whose every call is waited for in the caller's thread."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:  # noqa: ANN401 - whatever it is
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it has
        value = getattr(self._inner, name)
        if name == "exclusive" or not callable(value):
            return value
        return self._waiting(value)

    def __repr__(self) -> str:
        return repr(self._inner)

    def __enter__(self) -> Any:  # noqa: ANN401 - whatever it gives
        return self._wait(self._inner.__aenter__)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wait(self._inner.__aexit__, kind, error, trace)

    def __iter__(self) -> Iterator[Any]:
        return iter([Waited(each, self._loop) for each in self._inner])

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - whatever it gives
        return Waited(self._inner[name], self._loop)

    def _waiting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def waited(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the same
            return self._wait(call, *args, **kwargs)

        return waited

    def _wait(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the same
        async def go() -> Any:  # noqa: ANN401 - the same
            result = call(*args, **kwargs)
            return await result if inspect.isawaitable(result) or isinstance(result, Acquiring) else result

        result = asyncio.run_coroutine_threadsafe(go(), self._loop).result(SECONDS_MAX)
        if result is self._inner:
            return self
        if inspect.isasyncgen(result):
            return self._drawn(result)
        return Waited(result, self._loop) if isinstance(result, AsyncClaim | AsyncClaims | AsyncSession) else result

    def _drawn(self, drawing: Any) -> Iterator[Any]:  # noqa: ANN401 - an asynchronous generator
        try:
            while True:
                yield asyncio.run_coroutine_threadsafe(drawing.__anext__(), self._loop).result(SECONDS_MAX)
        finally:
            asyncio.run_coroutine_threadsafe(drawing.aclose(), self._loop).result(SECONDS_MAX)
