"""Checks that many tests make, each failing with the whole answer in its message."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from tests.support.http import Answer

T = TypeVar("T")

REQUEST_ID = re.compile(r"req_[0-9a-f]{32}")
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")
ENVELOPE = {"error", "code", "details", "request_id"}


def refused(answer: Answer, status: int | tuple[int, ...], code: str | tuple[str, ...]) -> dict[str, Any]:
    """This is an error envelope with that status and that code, complete and with the right request id. Returns its
    JSON.
    """
    statuses = (status,) if isinstance(status, int) else status
    codes = (code,) if isinstance(code, str) else code
    assert answer.status in statuses, f"expected {statuses} {codes}, got {answer}"
    assert answer.content_type == "application/json", f"an error must be JSON: {answer}"
    body: dict[str, Any] = answer.json()
    assert set(body) >= ENVELOPE, f"the envelope lacks {ENVELOPE - set(body)}: {answer}"
    assert body["code"] in codes, f"expected {codes}, got {answer}"
    assert isinstance(body["details"], str) and body["details"].strip(), f"details must say something: {answer}"
    assert isinstance(body["error"], str) and body["error"].strip(), f"the label is missing: {answer}"
    has_request_id(answer)
    assert body["request_id"] == answer.request_id, f"body and header disagree on the request id: {answer}"
    return body


def has_request_id(answer: Answer) -> str:
    """The answer carries exactly one request id, and it is one of ours. Returns it."""
    ids = answer.headers.get_all("X-Request-Id") or []
    assert len(ids) == 1, f"expected one X-Request-Id: {answer}"
    assert REQUEST_ID.fullmatch(ids[0]), f"not a request id of ours: {answer}"
    return str(ids[0])


def moment(text: object) -> datetime:
    """A timestamp as the API writes it: RFC 3339, UTC, `Z`."""
    assert isinstance(text, str) and TIMESTAMP.fullmatch(text), f"not a timestamp: {text!r}"
    seconds, _, fraction = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{seconds}.{(fraction + '000000')[:6]}").replace(tzinfo=UTC)


def moment_over() -> str:
    """A moment that is over, as the API writes it: whatever happens from now on is of a later millisecond."""

    def text() -> str:
        return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    at = text()
    wait_until(lambda: text() > at, every_seconds=0.0002)
    return at


def seconds_from_now(text: object) -> float:
    """How far ahead of this machine's wall clock a timestamp is."""
    return (moment(text) - datetime.now(UTC)).total_seconds()


def is_uuid(text: object) -> bool:
    """Is this a UUID in its usual form?"""
    try:
        return isinstance(text, str) and str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False


def unique(stem: str = "t") -> str:
    """A name no other test uses."""
    return f"{stem}-{uuid.uuid4().hex[:12]}"


def wait_until(
    question: Callable[[], T | Literal[False]], *, seconds_max: float = 10.0, every_seconds: float = 0.05
) -> T:
    """Ask until the answer is true, and return it. Fails with the last answer when time is up."""
    deadline = time.monotonic() + seconds_max
    while True:
        answer = question()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"still {answer!r} after {seconds_max} s"
        time.sleep(every_seconds)


def at_once(calls: Sequence[Callable[[], T]], *, seconds_max: float = 30) -> list[T]:
    """Make all calls at the same moment, each in a thread of its own, and return their results in order."""
    barrier = threading.Barrier(len(calls))
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(index: int, call: Callable[[], T]) -> None:
        try:
            barrier.wait(10)
            results[index] = call()
        except BaseException as error:  # noqa: BLE001 - raised again below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds_max)
    if errors:
        raise errors[0]
    assert len(results) == len(calls), f"a call did not come back within {seconds_max} s"
    return [results[index] for index in range(len(calls))]
