"""Requests with retries: send until there is an answer, and decode it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias, TypeVar, cast

import msgspec
from msgspec.json import Decoder

from holdfast.client.answers import (
    NO_LEADER_HINT,
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
from holdfast.client.effects import NOW, RANDOM, Flow, Policy, Send, Sleep
from holdfast.errors import Unreachable

T = TypeVar("T")

RETRY_FIRST_SECONDS = 0.05
RETRY_SECONDS_MAX = 1.0
AWAY_SECONDS = 1.0  # A server that has not answered for this long is reported as away.
LATE_TOKEN_SECONDS = 15.0  # The least time that waiting and following requests allow for a new token in its file.
# How long retries wait for a leader: longer than a takeover. Counts from the first request on, because a node that has
# no leader waits for one itself before it answers.
LEADER_SECONDS = 5.0
HASTE_SECONDS = 3.0  # For cleaning up after an interrupt.
_TOKEN_NOT_KNOWN = frozenset({"authentication_failed", "too_many_wrong_tokens"})

Request: TypeAlias = Send | Callable[[Instant], Send]  # A request, or what makes one for each try.
IsTransient = Callable[[Answer], bool]  # Whether an answer may change soon, so that a retry is worthwhile.
# Called for each failed try with its time, the seconds for which all tries failed, and the result. Returns for how many
# more seconds to retry, if that is longer than what is left of `retry_seconds`.
ExtendRetries = Callable[[Instant, float, Answer | Unreachable], float]


class ReceivedAnswer(msgspec.Struct, frozen=True):
    answer: Answer
    sent: Instant


def is_down(answer: Answer) -> bool:
    """Tell whether the server may only be restarting."""
    return answer.status in NOT_NOW


def lacks_new_token(answer: Answer, policy: Policy) -> bool:
    """Tell whether the server refused a token from a file, which may have a new one soon."""
    if policy.token_file is None or answer.status < 400:  # noqa: PLR2004 - where refusals begin
        return False
    found = envelope(answer)
    return found is not None and found.code in _TOKEN_NOT_KNOWN


def request_with_retry(
    request: Request, policy: Policy, is_transient: IsTransient = is_down, extend_retries: ExtendRetries | None = None
) -> Flow[ReceivedAnswer]:
    """Send a request until there is a final answer, for `retry_seconds` or as `extend_retries` says.

    Only for requests that can be sent twice: reads, and those with an idempotency key (C5). One that waits is rebuilt
    for each try, because less of the wait is left.
    """
    pause = RETRY_FIRST_SECONDS
    failing_since: Instant | None = None
    trying_since: Instant | None = None
    unsure: Answer | tuple[str, str] | None = None  # Of the last copy that may have been executed.
    while True:
        sent: Instant = yield NOW
        asked = request if isinstance(request, Send) else request(sent)
        found: Answer | Unreachable
        try:
            answer: Answer = yield asked
        except Unreachable as error:
            found = error.with_traceback(None)  # Else a reference cycle of this frame and the error.
            if found.was_sent and asked.method != "GET":
                unsure = found.url, found.problem  # Not the error itself: its cause refers to our frames.
        else:
            if not is_transient(answer):
                return ReceivedAnswer(answer, sent)
            found = answer
            if asked.method != "GET" and may_have_happened(answer):
                unsure = answer
        now: Instant = yield NOW
        if failing_since is None or trying_since is None:
            failing_since, trying_since = now, sent
        if policy.answer_seconds < asked.answer_seconds and (
            policy.retry_seconds * 1_000 < elapsed_ms(sent, now) < asked.answer_seconds * 1_000
        ):
            # It ended in the middle of a long wait: until now there was a server.
            failing_since = trying_since = now
        failing = elapsed_ms(failing_since, now) / 1_000
        left = policy.retry_seconds - failing
        is_leaderless = isinstance(found, Answer) and lacks_leader(found)
        if is_leaderless and policy.retry_seconds:
            left = max(policy.retry_seconds, LEADER_SECONDS) - elapsed_ms(trying_since, now) / 1_000
        if extend_retries is not None:
            left = max(left, extend_retries(now, failing, found))
        if pause > left:
            if unsure is not None and isinstance(found, Answer) and is_down(found) and not may_have_happened(found):
                # "Nothing happened" is true of the last copy only.
                hint = NO_LEADER_HINT if is_leaderless else f"then {in_words(found)}"
                found = unsure if isinstance(unsure, Answer) else Unreachable(*unsure, hint)
            if isinstance(found, Unreachable):
                try:
                    raise found
                finally:
                    del found
            return ReceivedAnswer(found, sent)
        # A server without a leader asks for a pause, which must fit into the time left for retries.
        leader_pause = (
            min(retry_seconds(found), RETRY_SECONDS_MAX, left) if isinstance(found, Answer) and is_leaderless else 0
        )
        yield Sleep(max(pause * (0.5 + (yield RANDOM) / 2), leader_pause))
        pause = min(pause * 2, RETRY_SECONDS_MAX)


def complete_request(request: Send, policy: Policy) -> Flow[ReceivedAnswer]:
    """Send it with retries; if interrupted or cancelled, send the request once more with short timeouts.

    It also waits for a new token: a release must not fail because a rotated token is not in its file yet.
    """
    try:
        return (
            yield from request_with_retry(
                request, policy, lambda answer: is_down(answer) or lacks_new_token(answer, policy)
            )
        )
    except (Exception, GeneratorExit):
        raise
    except BaseException:
        short_policy = msgspec.structs.replace(policy, retry_seconds=HASTE_SECONDS / 2)
        with contextlib.suppress(Unreachable):  # The server is away; what it was to end expires.
            yield from request_with_retry(msgspec.structs.replace(request, answer_seconds=HASTE_SECONDS), short_policy)
        raise


def ask(request: Send, policy: Policy, reply: type[T]) -> Flow[T]:
    """Send a request and return the decoded reply. Raises subclasses of `ServerError`."""
    received = yield from request_with_retry(request, policy)
    return reply_in(received.answer, policy, request, reply)


def get(path: str, policy: Policy) -> Send:
    return Send("GET", path, answer_seconds=policy.answer_seconds)


def reply_in(answer: Answer, policy: Policy, request: Send, reply: type[T]) -> T:
    if not 200 <= answer.status < 300:  # noqa: PLR2004 - the range of success
        raise refusal(answer, policy.url, policy.token_file)
    decoder: Decoder[T] = _decoder(cast("Any", reply))
    return decoded(answer, decoder, f"{request.method} {request.path}", policy.url)


def fields_of(frame: bytes) -> dict[str, str]:
    """Parse one frame of an event stream; a comment is the field with an empty name."""
    lines = (line.partition(":") for line in frame.decode("utf-8", "replace").split("\n"))
    return {name: value.removeprefix(" ") for name, _, value in lines}


@cache
def _decoder(reply: type[Any]) -> Decoder[Any]:
    return Decoder(reply)  # Cached: making one takes longer than decoding a reply.
