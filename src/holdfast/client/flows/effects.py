"""What a flow may ask of the world: send a request, look at the clock, rest, draw a number, follow a stream.

A flow is an operation of the client, written once, as a generator. It yields an effect and is sent what came of it.
Whoever drives it (a thread, a coroutine, a test with a clock of its own) performs the effect; what goes wrong is thrown
in, an interrupt too, so that a flow can clean up with effects of its own. Flows touch no socket, no clock, no chance.

    def server_status(policy):                      the driver:
        heard = yield Send("GET", "/status")  ───►      sends it, by whatever transport it has
        return decoded(heard, StatusReply)    ◄───      flow.send(answer), or flow.throw(Unreachable(…))
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar

import msgspec

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
    body: object = None
    """Sent as JSON; for what must not stand in an address."""


class Read(msgspec.Struct, frozen=True):
    """Read what comes next; comes back as bytes, empty at the end, or raises `Unreachable`."""

    stream: Any


class Close(msgspec.Struct, frozen=True):
    """Hang up."""

    stream: Any


READ_SECONDS = 45.0
"""How long a stream may be silent: three times as long as the server ever is."""
ROAMING_READ_SECONDS = 20.0
"""The same where there are other addresses. One that is left too early costs a new stream, and nothing is missed."""

Effect = Send | Now | Rest | NewKey | Share | Open | Read | Close
Flow = Generator[Effect, Any, T]


class Trail:
    """How to give back what a flow may have got. An interrupt can come when the flow is over, and its result is lost.

    `leave` is set from before the first request on, so whoever drives the flow can run it after any interrupt.
    """

    __slots__ = ("leave",)

    def __init__(self) -> None:
        self.leave: Callable[[], Flow[None]] | None = None


NOW = Now()
NEW_KEY = NewKey()
SHARE = Share()


class Policy(msgspec.Struct, frozen=True):
    """How patient a client is: for one answer, and with a server that does not answer."""

    url: str
    """For the text of errors; several addresses have commas in between."""
    answer_seconds: float = ANSWER_SECONDS
    retry_seconds: float = RETRY_SECONDS
    token_file: str | None = None
    """Where the token is, if in a file: one that the server does not know may be another soon."""
    addresses: int = 1
    """How many addresses the server has."""

    @property
    def read_seconds(self) -> float:
        """How long a stream may be silent."""
        return READ_SECONDS if self.addresses == 1 else ROAMING_READ_SECONDS
