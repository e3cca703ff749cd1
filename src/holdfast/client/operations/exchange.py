"""Asking the server: send a request until there is an answer, and make of it the reply that was promised."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec.json import Decoder

from holdfast.client.answers import (
    NOBODY_LEADS,
    NOT_NOW,
    Answer,
    decoded,
    envelope,
    in_words,
    lacks_leader,
    may_have_happened,
    refusal,
    retry_seconds,
)
from holdfast.client.clock import Instant, elapsed_ms
from holdfast.client.operations.effects import NOW, SHARE, Flow, Policy, Rest, Send
from holdfast.errors import Unreachable

T = TypeVar("T")

RETRY_FIRST_SECONDS = 0.05
RETRY_SECONDS_MAX = 1.0
AWAY_SECONDS = 1.0
"""A server that has not answered for so long is said to be away. Less than that nobody needs to hear of."""
LATE_TOKEN_SECONDS = 15.0  # How long one who waits, or follows, waits at least for a new token in its file.
LEADER_SECONDS = 5.0
"""How long one who would ask again at all waits for a node to lead: longer than it takes another to take over.

It counts from the first request on: a node that knows of no leader waits for one itself before it says so.
"""
HASTE_SECONDS = 3.0  # How long cleaning up may take after an interrupt.
_TOKEN_NOT_KNOWN = frozenset({"authentication_failed", "too_many_wrong_tokens"})

Passes = Callable[[Answer], bool]
"""Tells of an answer whether it may be another one soon, so that it is worth to ask again."""
Longer = Callable[[Instant, float, Answer | Unreachable], float]
"""Is told of each try in vain: when, for how many seconds there were no others, and what came of it.

Returns for how many seconds more it is to be tried, if that is longer than what is left of `retry_seconds`.
"""


class Heard(msgspec.Struct, frozen=True):
    """An answer, and when its request was sent."""

    answer: Answer
    sent: Instant


def restarts(answer: Answer) -> bool:
    """Tell whether it is only that the server restarts."""
    return answer.status in NOT_NOW


def lacks_new_token(answer: Answer, policy: Policy) -> bool:
    """Tell whether our token is out of use, and comes from a file: the new one may be in there soon."""
    if policy.token_file is None or answer.status < 400:  # noqa: PLR2004 - where refusals begin
        return False
    found = envelope(answer)
    return found is not None and found.code in _TOKEN_NOT_KNOWN


def exchange(
    request: Send | Callable[[Instant], Send], policy: Policy, passes: Passes = restarts, longer: Longer | None = None
) -> Flow[Heard]:
    """Send a request until there is an answer that does not pass by itself, for `retry_seconds` after the first.

    Only for requests that can be sent twice: reads, and those with an idempotency key (C5). One that waits is made
    anew for each try, because less of the wait is left. It may be tried for `longer`.
    """
    pause = RETRY_FIRST_SECONDS
    failing_since: Instant | None = None
    trying_since: Instant | None = None
    unsure: Answer | tuple[str, str] | None = None  # Of the last copy that may have been done.
    while True:
        sent: Instant = yield NOW
        asked = request if isinstance(request, Send) else request(sent)
        found: Answer | Unreachable
        try:
            answer: Answer = yield asked
        except Unreachable as error:
            found = error.with_traceback(None)  # Else this frame and the error would keep each other.
            if found.was_sent and asked.method != "GET":
                unsure = found.url, found.problem  # Not the error itself: what it came of has our frames.
        else:
            if not passes(answer):
                return Heard(answer, sent)
            found = answer
            if asked.method != "GET" and may_have_happened(answer):
                unsure = answer
        now: Instant = yield NOW
        if failing_since is None or trying_since is None:
            failing_since, trying_since = now, sent
        if policy.answer_seconds < asked.answer_seconds and (
            policy.retry_seconds * 1_000 < elapsed_ms(sent, now) < asked.answer_seconds * 1_000
        ):
            # It ended in the middle of a long wait: there was a server at its other end till now.
            failing_since = trying_since = now
        failing = elapsed_ms(failing_since, now) / 1_000
        left = policy.retry_seconds - failing
        is_leaderless = isinstance(found, Answer) and lacks_leader(found)
        if is_leaderless and policy.retry_seconds:
            left = max(policy.retry_seconds, LEADER_SECONDS) - elapsed_ms(trying_since, now) / 1_000
        if longer is not None:
            left = max(left, longer(now, failing, found))
        if pause > left:
            if unsure is not None and isinstance(found, Answer) and restarts(found) and not may_have_happened(found):
                # That nothing happened is true of the last copy alone.
                hint = NOBODY_LEADS if is_leaderless else f"then {in_words(found)}"
                found = unsure if isinstance(unsure, Answer) else Unreachable(*unsure, hint)
            if isinstance(found, Unreachable):
                try:
                    raise found
                finally:
                    del found
            return Heard(found, sent)
        # A server without a leader asks for a pause; it is no longer than the request is tried at all.
        wanted = (
            min(retry_seconds(found), RETRY_SECONDS_MAX, left) if isinstance(found, Answer) and is_leaderless else 0
        )
        yield Rest(max(pause * (0.5 + (yield SHARE) / 2), wanted))
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
    return Send("GET", path, answer_seconds=policy.answer_seconds)


def reply_in(answer: Answer, policy: Policy, request: Send, reply: type[T]) -> T:
    """Return the reply in an answer, or raise the refusal."""
    if not 200 <= answer.status < 300:  # noqa: PLR2004 - the range of success
        raise refusal(answer, policy.url, policy.token_file)
    decoder: Decoder[T] = _decoder(cast("Any", reply))
    return decoded(answer, decoder, f"{request.method} {request.path}", policy.url)


def fields_of(frame: bytes) -> dict[str, str]:
    """Return the fields of one frame of an event stream; a comment is the field without a name."""
    lines = (line.partition(":") for line in frame.decode("utf-8", "replace").split("\n"))
    return {name: value.removeprefix(" ") for name, _, value in lines}


@cache
def _decoder(reply: type[Any]) -> Decoder[Any]:
    """Return what reads a reply. Kept, because to make one takes longer than to read the reply."""
    return Decoder(reply)
