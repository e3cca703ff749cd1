"""A head seen before is not parsed again, and means what it would mean if it were."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.config import Settings
from holdfast.http import parser
from holdfast.http.messages import Request
from holdfast.http.parser import FEED_BYTES, MISSES_MAX, RequestParser
from holdfast.wire.problems import Problem
from tests.support import callers

KEY = "Idempotency-Key: {}"
HEADS = {
    "ours": (
        "Accept: application/json",
        f"Authorization: Bearer {callers.ALICE}",
        KEY,
        "Host: a",
        "Content-Length: {}",
    ),
    "key last": ("Host: a", "content-length:{}", "Connection: keep-alive", "IDEMPOTENCY-KEY:\t{}"),
    "no key": ("Host: a", "Content-Length: {}", "Content-Type: application/json"),
    "no length": ("Host: a", KEY),
    "neither": ("Host: a", f"Authorization: Bearer {callers.ALICE}"),
}


@dataclass
class Taken:
    """What was read on a connection, as a connection would be told of it."""

    now_seconds: int = 0
    requests: list[Request] = field(default_factory=list)
    refused: list[Problem] = field(default_factory=list)

    def enqueue(self, request: Request) -> None:
        self.requests.append(request)

    def enqueue_stream(self, _request: Request) -> None:
        return None

    def body_limit(self, _request: Request) -> int:
        return 0

    def enqueue_continue(self) -> None:
        pass

    def refuse(self, problem: Problem, _request: Request | None) -> None:
        self.refused.append(problem)


def connection() -> tuple[RequestParser, Taken]:
    taken: Any = Taken()
    return RequestParser(taken, taken, Settings(), "127.0.0.1"), taken


def written(fields: tuple[str, ...], name: str, key: str, body: bytes) -> bytes:
    said = [line.format(len(body) if line.lower().startswith("content-length") else key) for line in fields]
    return "\r\n".join([f"POST /locks/{name}/acquire HTTP/1.1", *said, "", ""]).encode("latin-1") + body


def shown(request: Request) -> tuple[object, ...]:
    """All that a request says."""
    said = (request.method, request.path, request.query, request.headers, request.body, request.peer)
    return (*said, request.host, request.authorization, request.content_type, request.key, request.keep_alive)


def parsed(data: bytes) -> Request | None:
    """The request that a parser of its own finds in this, if it is one whole request and nothing else."""
    fresh, taken = connection()
    for at in range(0, len(data), FEED_BYTES):
        fresh.feed(data[at : at + FEED_BYTES])
    is_complete = len(taken.requests) == 1 and not taken.refused and fresh.phase == parser.IDLE
    return taken.requests[0] if is_complete else None


@pytest.mark.parametrize("head", HEADS)
def test_another_key_and_another_length_need_no_parser(head: str) -> None:
    """A head is known again although its key and its length are others, and its request says what it would say if it
    were parsed. (Before, a key made every head a new one: that is what each claim of our own client has.)
    """
    fields = HEADS[head]
    has_length = head not in {"no length", "neither"}
    known, _ = connection()
    known.feed(written(fields, "a", "key-1", b"{}" if has_length else b""))
    for number, body in enumerate([b"{}", b"", b"x" * 9, b"x" * 1_500, b'{"ttl_seconds": 60}']):
        data = written(fields, f"b-{number}", f"another/{number}", body if has_length else b"")
        again, expected = known.repeated(data), parsed(data)
        assert again is not None and expected is not None
        assert shown(again) == shown(expected)


def test_another_length_that_stays_is_compared_with_the_rest() -> None:
    """The first request on a connection has another length than all that follow: from the third on they take no more
    steps than if it had been theirs.
    """
    known, _ = connection()
    known.feed(written(HEADS["no key"], "a", "", b"{}"))
    data = written(HEADS["no key"], "b", "", b'{"ttl_seconds": 60}')
    assert _steps(lambda: known.repeated(data)) > _steps(lambda: known.repeated(data))
    again, expected = known.repeated(data), parsed(data)
    assert again is not None and expected is not None and shown(again) == shown(expected)


def _steps(work: Callable[[], object]) -> int:
    """Return how many functions the work calls."""
    calls = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_cache_holds_a_claim_with_a_key_and_a_renewal_without() -> None:
    """Two heads are known at a time: who claims with a key and renews without one needs the parser once for each."""
    known, taken = connection()
    claim, renewal = (written(HEADS[head], "a", "k", b"{}") for head in ("ours", "no key"))
    known.feed(claim)
    known.feed(renewal)
    assert len(taken.requests) == 2
    for number in range(5):
        assert known.repeated(written(HEADS["ours"], "a", f"k{number}", b"{}")) is not None
        assert known.repeated(renewal) is not None


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("seed", range(4))
def test_cached_header_equals_the_parsed_header(head: str, seed: int) -> None:
    """However a request is changed from one that was read before: if it is taken without the parser, the parser would
    take it for the same request and find nothing behind it.
    """
    chance = random.Random(seed)
    fields = HEADS[head]
    body = b"" if head in {"no length", "neither"} else b'{"ttl_seconds": 60}'
    known, _ = connection()
    known.feed(written(fields, "a", "key-1", body))
    good = written(fields, "job", "key-2", body)
    pieces = [
        b"\r\n",
        b"\r",
        b"\n",
        b" ",
        b"\t",
        b"\x00",
        b"0",
        b"9",
        b":",
        b",",
        b"x",
        b"\xff",
        b"Content-Length: 1\r\n",
    ]
    pieces += [
        b"Transfer-Encoding: chunked\r\n",
        b"Idempotency-Key: z\r\n",
        b"\r\n\r\n",
        good,
        b"{}",
        b"GET / HTTP/1.1\r\n\r\n",
    ]
    taken = 0
    for _ in range(3_000):
        begin = chance.randrange(len(good) + 1)
        end = min(len(good), begin + chance.choice([0, 0, 1, 1, 2, 5]))
        data = good[:begin] + chance.choice(pieces) + good[end:]
        again = known.repeated(data)
        if again is not None:
            taken += 1
            expected = parsed(data)
            assert expected is not None, data
            assert shown(again) == shown(expected), data
    assert taken


@pytest.mark.parametrize(
    "line",
    ["Expect: 100-continue", "Connection: close", "Connection: x", "Upgrade: h2c", "Idempotency-Key: a b"],
)
def test_framing_fields_are_not_cached(line: str) -> None:
    """A head that says how its request or its connection goes on, or has a key that is not plain, is always parsed."""
    known, _ = connection()
    data = written(("Host: a", line, "Content-Length: {}"), "a", "", b"{}")
    known.feed(data)
    assert known.repeated(data) is None


def test_changing_headers_are_not_cached() -> None:
    """After so many heads in a row that were all new, none is kept any more; until one comes again, all are."""
    known, _ = connection()

    def data(number: int) -> bytes:
        return written(("Host: a", f"Traceparent: {number}"), "a", "", b"")

    for number in range(MISSES_MAX):
        known.feed(data(number))
        assert known.repeated(data(number)) is not None or number == MISSES_MAX
    for number in range(MISSES_MAX):
        known.feed(data(number))
    known.feed(data(999))
    assert known.repeated(data(999)) is None
