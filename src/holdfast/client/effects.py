"""The effects of flows, and how a flow becomes a method of a client.

A flow is an operation of the client, written once as a generator. It yields an effect and is sent the result. Its
driver (a thread, an event loop, a test with its own clock) performs the effect and throws errors and interrupts into
the flow, which can clean up with more effects. Flows use no socket, no clock and no randomness.

    def server_status(policy):                      the driver:
        answer = yield Send("GET", "/status")  ───►      sends it, by whatever transport it has
        return decoded(answer, StatusReply)   ◄───      flow.send(answer), or flow.throw(Unreachable(…))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import msgspec

from holdfast.client import clock

P = ParamSpec("P")
T = TypeVar("T")

ANSWER_SECONDS = 10.0
RETRY_SECONDS = 5.0


class Send(msgspec.Struct, frozen=True):
    """Send one request. Returns an `Answer` or raises `Unreachable`."""

    method: str
    path: str
    body: object = None
    key: str | None = None
    answer_seconds: float = ANSWER_SECONDS
    will_retry: bool = False  # Whether another request follows a `waiting`: the server keeps the place for it (W2).
    bearer: str | None = None  # A session's secret to send instead of our access token, when querying that session.

    def __repr__(self) -> str:  # Never a secret.
        return f"Send({self.method} {self.path}, {self.body!r}, key={self.key!r}, {self.answer_seconds} s)"


class Now(msgspec.Struct, frozen=True):
    """Read the clocks. Returns an `Instant`."""


class Sleep(msgspec.Struct, frozen=True):
    seconds: float


class NewKey(msgspec.Struct, frozen=True):
    """Make an idempotency key."""


class Random(msgspec.Struct, frozen=True):
    """Draw a random number from 0 up to 1."""


class Open(msgspec.Struct, frozen=True):
    """Open a streaming response. Returns a stream to `Read` from, or raises `Unreachable`."""

    path: str
    headers: Mapping[str, str]
    read_seconds: float
    method: str = "GET"
    body: object = None  # Sent as JSON; for secrets, which must not be in a URL.


class Read(msgspec.Struct, frozen=True):
    """Read from a stream. Returns bytes, empty at the end, or raises `Unreachable`."""

    stream: Any


class Close(msgspec.Struct, frozen=True):
    stream: Any


READ_SECONDS = 45.0  # How long a stream may be silent: three times as long as the server ever is.
ROAMING_READ_SECONDS = 20.0  # With other addresses: leaving one too early costs a new stream, but no events.

Effect = Send | Now | Sleep | NewKey | Random | Open | Read | Close
Flow = Generator[Effect, Any, T]


class Cleanup:
    """How to release what a flow obtained if an interrupt loses its result. The flow sets it before any request."""

    __slots__ = ("release",)

    def __init__(self) -> None:
        self.release: Callable[[], Flow[None]] | None = None


NOW = Now()
NEW_KEY = NewKey()
RANDOM = Random()
# The effects that need no waiting; every driver performs them in the same way.
IMMEDIATE: Mapping[type, Callable[[], Any]] = {Now: clock.now, NewKey: clock.new_key, Random: clock.random_fraction}


class Policy(msgspec.Struct, frozen=True):
    """A client's timeouts: for one answer, and for retries."""

    url: str  # For error texts; several addresses are separated by commas.
    answer_seconds: float = ANSWER_SECONDS
    retry_seconds: float = RETRY_SECONDS
    token_file: str | None = None  # The token's file, if any: a token that the server refuses may be replaced soon.
    addresses: int = 1  # How many addresses the server has.

    @property
    def read_seconds(self) -> float:
        return READ_SECONDS if self.addresses == 1 else ROAMING_READ_SECONDS

    def with_short_timeouts(self, seconds: float, *, retry_seconds: float = 0) -> Policy:
        """Return a policy for cleaning up, with short timeouts."""
        return msgspec.structs.replace(self, answer_seconds=seconds, retry_seconds=retry_seconds)


class Blocking:
    """A client for threads, or what it holds: operations block."""

    _link: Any  # A `sync.Link`, which runs flows.

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _implement_operations(cls)

    def _run(self, flow: Flow[T]) -> T:
        result: T = self._link.run(flow)
        return result


class Awaiting:
    """A client for coroutines, or what it holds: operations are awaited."""

    _link: Any  # An `aio.AsyncLink`, which runs flows.

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _implement_operations(cls)

    async def _run(self, flow: Flow[T]) -> T:
        result: T = await self._link.run(flow)
        return result


class operation(Generic[P, T]):  # noqa: N801 - a decorator, like `property`
    """A method written once, as a flow: it blocks in a `Blocking` class and is awaited in an `Awaiting` one.

    `_implement_operations` puts a real function into each such class, for `help()`.
    """

    def __init__(self, flow: Callable[Concatenate[Any, P], Flow[T]]) -> None:
        self.flow: Callable[..., Flow[T]] = flow
        self.__doc__ = flow.__doc__

    if TYPE_CHECKING:

        @overload
        def __get__(self, owner: None, kind: type[Blocking]) -> Callable[Concatenate[Any, P], T]: ...
        @overload
        def __get__(
            self, owner: None, kind: type[Awaiting]
        ) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]: ...
        @overload
        def __get__(self, owner: Blocking, kind: object) -> Callable[P, T]: ...
        @overload
        def __get__(self, owner: Awaiting, kind: object) -> Callable[P, Coroutine[Any, Any, T]]: ...
        def __get__(self, owner: object, kind: object) -> Any: ...

    def blocking(self) -> Callable[..., Any]:
        flow = self.flow

        def method(self: Blocking, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - what the flow takes and returns
            return self._link.run(flow(self, *args, **kwargs))

        return method

    def awaiting(self) -> Callable[..., Any]:
        flow = self.flow

        async def method(self: Awaiting, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the same
            return await self._link.run(flow(self, *args, **kwargs))

        return method


class acquisition(operation[P, T]):  # noqa: N801 - a decorator
    """An operation that obtains something. Its flow takes a `Cleanup` first, for release after an interrupt."""

    def __init__(self, flow: Callable[Concatenate[Any, Cleanup, P], Flow[T]]) -> None:
        super().__init__(flow)  # type: ignore[arg-type]

    def blocking(self) -> Callable[..., Any]:
        flow = self.flow

        def method(self: Blocking, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the same
            return self._link.hold(lambda cleanup: flow(self, cleanup, *args, **kwargs), lambda got: got)

        return method

    def awaiting(self) -> Callable[..., Any]:
        flow = self.flow

        async def method(self: Awaiting, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the same
            return await self._link.run(flow(self, Cleanup(), *args, **kwargs))  # A cancelled flow cleans up itself.

        return method


class release_operation(operation[P, None]):  # noqa: N801 - a decorator
    """An operation that releases its object and then always calls `_after_release`.

    If a thread is interrupted, the flow `_release_quickly` releases it quickly.
    """

    def blocking(self) -> Callable[..., Any]:
        flow = self.flow

        def method(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the same
            try:
                self._link.run_release(flow(self, *args, **kwargs), self._release_quickly)
            finally:
                self._after_release()

        return method

    def awaiting(self) -> Callable[..., Any]:
        flow = self.flow

        async def method(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the same
            try:
                await self._link.run(flow(self, *args, **kwargs))
            finally:
                self._after_release()

        return method


def _implement_operations(kind: type) -> None:
    """Add methods for the operations that a class's bases declare and none of them implements."""
    for base in kind.__mro__:
        for name, declared in vars(base).items():
            if isinstance(declared, operation) and inspect.getattr_static(kind, name) is declared:
                method = declared.blocking() if issubclass(kind, Blocking) else declared.awaiting()
                signature = inspect.signature(declared.flow)
                parameters = [each for each in signature.parameters.values() if each.name != "cleanup"]
                returns = signature.return_annotation.removeprefix("Flow[").removesuffix("]")
                method.__name__, method.__qualname__ = name, f"{kind.__name__}.{name}"
                method.__module__, method.__doc__ = kind.__module__, declared.__doc__
                method.__signature__ = signature.replace(  # type: ignore[attr-defined]
                    parameters=parameters, return_annotation=returns
                )
                setattr(kind, name, method)
