"""Asking the server: send a request until there is an answer, and make of it the reply that was promised."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

import msgspec

from holdfast.client.clock import Instant, elapsed_ms
from holdfast.client.flows.effects import NOW, SHARE, Flow, Policy, Rest, Send
from holdfast.client.values.answer import Answer, decoded, envelope, refusal
from holdfast.errors import Unreachable

T = TypeVar("T")

RETRY_FIRST_SECONDS = 0.05
RETRY_SECONDS_MAX = 1.0
HASTE_SECONDS = 3.0
"""How long cleaning up may take after an interrupt."""
AGAIN = frozenset({502, 503, 504})
"""What may be gone when asked again: the server restarts, or what stands in between does."""
_TOKEN_NOT_KNOWN = frozenset({"authentication_failed", "too_many_wrong_tokens"})

Passes = Callable[[Answer], bool]
"""Tells of an answer whether it may be another one soon, so that it is worth to ask again."""


class Heard(msgspec.Struct, frozen=True):
    """An answer, and when its request was sent."""

    answer: Answer
    sent: Instant


def restarts(answer: Answer) -> bool:
    """Tell whether it is only that the server restarts."""
    return answer.status in AGAIN


def lacks_new_token(answer: Answer, policy: Policy) -> bool:
    """Tell whether our token is out of use, and comes from a file: the new one may be in there soon."""
    if policy.token_file is None or answer.status < 400:  # noqa: PLR2004 - where refusals begin
        return False
    found = envelope(answer)
    return found is not None and found.code in _TOKEN_NOT_KNOWN


def exchange(request: Send | Callable[[Instant], Send], policy: Policy, passes: Passes = restarts) -> Flow[Heard]:
    """Send a request until there is an answer that does not pass by itself, for `retry_seconds` after the first.

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
            if not passes(heard.answer):
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
    """Exchange, and see it through even if interrupted or cancelled: then the request is sent once more, in haste.

    What gives something back must not fail because the token was rotated and the new one is not in its file yet.
    """
    try:
        return (
            yield from exchange(request, policy, lambda answer: restarts(answer) or lacks_new_token(answer, policy))
        )
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
    return reply_in(heard.answer, policy, request, reply)


def get(path: str, policy: Policy) -> Send:
    """Return the request that reads a path."""
    return Send("GET", path, answer_seconds=policy.answer_seconds)


def reply_in(answer: Answer, policy: Policy, request: Send, reply: type[T]) -> T:
    """Return the reply in an answer, or raise the refusal."""
    if not 200 <= answer.status < 300:  # noqa: PLR2004 - the range of success
        raise refusal(answer, policy.url, policy.token_file)
    return decoded(answer, reply, f"{request.method} {request.path}", policy.url)
