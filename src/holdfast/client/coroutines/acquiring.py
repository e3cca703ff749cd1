"""What `claim` and `session` return to a coroutine: something to `await`, or to enter with `async with`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar


class Entered(Protocol):
    """An async context manager that gives itself."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


C = TypeVar("C", bound=Entered)


class Acquiring(Generic[C]):
    """Something that is about to be claimed: `await` it to have it, or enter it with `async with`."""

    def __init__(self, get: Callable[[], Coroutine[Any, Any, C]]) -> None:
        self._get = get
        self._held: C | None = None

    def __await__(self) -> Generator[Any, None, C]:
        return self._get().__await__()

    async def __aenter__(self) -> C:
        self._held = await self._get()
        return await self._held.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held, self._held = self._held, None
        if held is not None:
            await held.__aexit__(kind, error, trace)
