"""Flows: an operation of the client, written once. It yields what it needs of the world and is sent what came of it.

A flow is a generator. Whoever drives it (a thread, a coroutine, a test with its own clock) performs each effect and
sends the result in; what goes wrong is thrown in, so that a flow can clean up with effects of its own. Flows themselves
touch no socket, no clock and no chance.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar

import msgspec

from holdfast.client.clock import Instant, elapsed_ms
from holdfast.client.values.answer import Answer, decoded, refusal
from holdfast.errors import Unreachable

T = TypeVar("T")

ANSWER_SECONDS = 10.0
RETRY_SECONDS = 5.0
RETRY_FIRST_SECONDS = 0.05
RETRY_SECONDS_MAX = 1.0
HASTE_SECONDS = 3.0
"""How long cleaning up may take after an interrupt."""
AGAIN = frozenset({502, 503, 504})
"""What may be gone when asked again: the server restarts, or what stands in between does."""


class Send(msgspec.Struct, frozen=True):
    """Send one request; comes back as an `Answer`, or raises `Unreachable`."""

    method: str
    path: str
    body: object = None
    key: str | None = None
    answer_seconds: float = ANSWER_SECONDS


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


class Read(msgspec.Struct, frozen=True):
    """Read what comes next; comes back as bytes, empty at the end, or raises `Unreachable`."""

    stream: Any


class Close(msgspec.Struct, frozen=True):
    """Hang up."""

    stream: Any


Effect = Send | Now | Rest | NewKey | Share | Open | Read | Close
Flow = Generator[Effect, Any, T]

NOW = Now()
NEW_KEY = NewKey()
SHARE = Share()


class Policy(msgspec.Struct, frozen=True):
    """How patient a client is: for one answer, and with a server that does not answer."""

    url: str
    """For the text of errors."""
    answer_seconds: float = ANSWER_SECONDS
    retry_seconds: float = RETRY_SECONDS


class Heard(msgspec.Struct, frozen=True):
    """An answer, and when its request was sent."""

    answer: Answer
    sent: Instant


def exchange(request: Send | Callable[[Instant], Send], policy: Policy) -> Flow[Heard]:
    """Send a request until there is an answer, for `retry_seconds` after the first failure.

    Only for requests that can be sent twice: reads, and those with an idempotency key (C5). One that waits is made
    anew for each try, because less of the wait is left.
    """
    pause = RETRY_FIRST_SECONDS
    failing_since: Instant | None = None
    while True:
        sent: Instant = yield NOW
        heard = None
        problem: Unreachable | None = None
        asked = request if isinstance(request, Send) else request(sent)
        try:
            heard = Heard((yield asked), sent)
        except Unreachable as error:
            problem = error
        else:
            if heard.answer.status not in AGAIN:
                return heard
        now: Instant = yield NOW
        waited = asked.answer_seconds > policy.answer_seconds and elapsed_ms(sent, now) > policy.retry_seconds * 1_000
        if failing_since is None or waited:
            # What breaks off in the middle of a long wait had a server at its other end till then.
            failing_since = now
        if elapsed_ms(failing_since, now) + pause * 1_000 > policy.retry_seconds * 1_000:
            if problem is not None:
                raise problem
            if heard is not None:
                return heard
        yield Rest(pause * (0.5 + (yield SHARE) / 2))
        pause = min(pause * 2, RETRY_SECONDS_MAX)


def insist(request: Send, policy: Policy) -> Flow[Heard]:
    """Exchange, and see it through even if interrupted or cancelled: then the request is sent once more, in haste."""
    try:
        return (yield from exchange(request, policy))
    except (Exception, GeneratorExit):
        raise
    except BaseException:
        hasty = msgspec.structs.replace(policy, retry_seconds=HASTE_SECONDS / 2)
        with contextlib.suppress(Unreachable):  # The server is gone; what it was to end ends by itself.
            yield from exchange(msgspec.structs.replace(request, answer_seconds=HASTE_SECONDS), hasty)
        raise


def ask(request: Send, policy: Policy, reply: type[T]) -> Flow[T]:
    """Send a request and return the reply it was promised. Raises `ServerError` in one of its forms."""
    heard = yield from exchange(request, policy)
    return said(heard.answer, policy, request, reply)


def said(answer: Answer, policy: Policy, request: Send, reply: type[T]) -> T:
    """Return the reply in an answer, or raise the refusal."""
    if not 200 <= answer.status < 300:  # noqa: PLR2004 - the range of success
        raise refusal(answer, policy.url)
    return decoded(answer, reply, f"{request.method} {request.path}", policy.url)
