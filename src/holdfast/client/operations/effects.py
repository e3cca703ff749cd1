"""The effects that a flow may ask for, and how a flow becomes a method of a client.

A flow is an operation of the client, written once, as a generator. It yields an effect and is sent the result. Its
driver (a thread, an event loop, a test with a clock of its own) performs the effect and throws errors in, interrupts
too, so that a flow can clean up with effects of its own. Flows touch no socket, no clock and no randomness.

    def server_status(policy):                      the driver:
        heard = yield Send("GET", "/status")  ───►      sends it, by whatever transport it has
        return decoded(heard, StatusReply)    ◄───      flow.send(answer), or flow.throw(Unreachable(…))
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
    """Send one request; comes back as an `Answer`, or raises `Unreachable`."""

    method: str
    path: str
    body: object = None
    key: str | None = None
    answer_seconds: float = ANSWER_SECONDS
    comes_back: bool = False
    """Whether we ask again at once if it ends in `waiting`: the place has its turn meanwhile (W2)."""
    bearer: str | None = None
    """Sent in place of our access token: the secret of a session, which is asked about itself alone."""

    def __repr__(self) -> str:
        """Show what is asked for, never a secret."""
        return f"Send({self.method} {self.path}, {self.body!r}, key={self.key!r}, {self.answer_seconds} s)"


class Now(msgspec.Struct, frozen=True):
    """Look at the clocks; comes back as an `Instant`."""


class Rest(msgspec.Struct, frozen=True):
    """Let some time pass."""

    seconds: float


class NewKey(msgspec.Struct, frozen=True):
    """Make an idempotency key; comes back as text."""


class Share(msgspec.Struct, frozen=True):
    """Draw a number from 0 up to 1."""


class Open(msgspec.Struct, frozen=True):
    """Open a response that goes on and on; comes back as something to `Read` from, or raises `Unreachable`."""

    path: str
    headers: Mapping[str, str]
    read_seconds: float
    method: str = "GET"
    body: object = None  # Sent as JSON; for what must not stand in an address.


class Read(msgspec.Struct, frozen=True):
    """Read what comes next; comes back as bytes, empty at the end, or raises `Unreachable`."""

    stream: Any


class Close(msgspec.Struct, frozen=True):
    """Hang up."""

    stream: Any


READ_SECONDS = 45.0  # How long a stream may be silent: three times as long as the server ever is.
ROAMING_READ_SECONDS = 20.0
"""The same where there are other addresses. One that is left too early costs a new stream, and nothing is missed."""

Effect = Send | Now | Rest | NewKey | Share | Open | Read | Close
Flow = Generator[Effect, Any, T]


class Trail:
    """How to give back what a flow may have got, if an interrupt comes when the flow is over and its result is lost.

    A flow sets `leave` before its first request, so its driver can run it after any interrupt.
    """

    __slots__ = ("leave",)

    def __init__(self) -> None:
        self.leave: Callable[[], Flow[None]] | None = None


NOW = Now()
NEW_KEY = NewKey()
SHARE = Share()
IMMEDIATE: Mapping[type, Callable[[], Any]] = {Now: clock.now, NewKey: clock.new_key, Share: clock.share}
"""The effects that need no waiting, and what performs each: every driver performs them alike."""


class Policy(msgspec.Struct, frozen=True):
    """How patient a client is: for one answer, and with a server that does not answer."""

    url: str  # For the text of errors; several addresses have commas in between.
    answer_seconds: float = ANSWER_SECONDS
    retry_seconds: float = RETRY_SECONDS
    token_file: str | None = None
    """Where the token is, if in a file: one that the server does not know may be another soon."""
    addresses: int = 1  # How many addresses the server has.

    @property
    def read_seconds(self) -> float:
        """How long a stream may be silent."""
        return READ_SECONDS if self.addresses == 1 else ROAMING_READ_SECONDS

    def hasty(self, seconds: float, *, retry_seconds: float = 0) -> Policy:
        """Return the policy of cleaning up: little time for an answer, and for trying again."""
        return msgspec.structs.replace(self, answer_seconds=seconds, retry_seconds=retry_seconds)


class Blocking:
    """A client for threads, or something that it holds: its operations block."""

    _link: Any  # A `sync.Link`, which runs flows.

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _implement_operations(cls)

    def _run(self, flow: Flow[T]) -> T:
        result: T = self._link.run(flow)
        return result


class Awaiting:
    """A client for coroutines, or something that it holds: its operations are awaited."""

    _link: Any  # An `aio.AsyncLink`, which runs flows.

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _implement_operations(cls)

    async def _run(self, flow: Flow[T]) -> T:
        result: T = await self._link.run(flow)
        return result


class operation(Generic[P, T]):  # noqa: N801 - a decorator, like `property`
    """A method written once, as a flow: it blocks where the class is `Blocking`, and is awaited where it is `Awaiting`.

    `_implement_operations` puts a real function into each such class, so that `help()` shows what there is.
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
    """An operation that obtains something. Its flow takes a `Trail` first, by which an interrupt gives it back."""

    def __init__(self, flow: Callable[Concatenate[Any, Trail, P], Flow[T]]) -> None:
        super().__init__(flow)  # type: ignore[arg-type]

    def blocking(self) -> Callable[..., Any]:
        flow = self.flow

        def method(self: Blocking, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the same
            return self._link.hold(lambda trail: flow(self, trail, *args, **kwargs), lambda got: got)

        return method

    def awaiting(self) -> Callable[..., Any]:
        flow = self.flow

        async def method(self: Awaiting, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the same
            # A cancelled flow gives back what it got by itself.
            return await self._link.run(flow(self, Trail(), *args, **kwargs))

        return method


class giving_back(operation[P, None]):  # noqa: N801 - a decorator
    """An operation that gives back what its object is, and then calls `_settle`, whatever came of it.

    If a thread is interrupted, the flow `_leaving` gives it back in haste.
    """

    def blocking(self) -> Callable[..., Any]:
        flow = self.flow

        def method(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the same
            try:
                self._link.give_back(flow(self, *args, **kwargs), self._leaving)
            finally:
                self._settle()

        return method

    def awaiting(self) -> Callable[..., Any]:
        flow = self.flow

        async def method(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the same
            try:
                await self._link.run(flow(self, *args, **kwargs))
            finally:
                self._settle()

        return method


def _implement_operations(kind: type) -> None:
    """Give a class the methods for the operations that its bases declare and none of them implements."""
    for base in kind.__mro__:
        for name, declared in vars(base).items():
            if isinstance(declared, operation) and inspect.getattr_static(kind, name) is declared:
                method = declared.blocking() if issubclass(kind, Blocking) else declared.awaiting()
                signature = inspect.signature(declared.flow)
                parameters = [each for each in signature.parameters.values() if each.name != "trail"]
                returns = signature.return_annotation.removeprefix("Flow[").removesuffix("]")
                method.__name__, method.__qualname__ = name, f"{kind.__name__}.{name}"
                method.__module__, method.__doc__ = kind.__module__, declared.__doc__
                method.__signature__ = signature.replace(  # type: ignore[attr-defined]
                    parameters=parameters, return_annotation=returns
                )
                setattr(kind, name, method)
