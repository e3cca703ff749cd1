"""What a claim that is given back at once costs in the client: counted in steps, because times are the machine's."""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec
import pytest

from holdfast import Holdfast
from holdfast.client import clock
from holdfast.client.answers import Answer
from holdfast.client.effects import Send
from holdfast.client.lease_flows import RENEWAL_DELAY_MS
from holdfast.client.sync import BackgroundThread
from holdfast.client.sync_transport import HttpTransport

CALLS_MAX = 350
"""Calls of functions, of ours and of the library's, in a claim and its release. Before they were counted: 1,054."""
PAIRS = 50


def pair(client: Holdfast, job: str) -> None:
    with client.claim(job, ttl=60):
        pass


def calls_of(work: Callable[[], object]) -> int:
    """How many functions this thread calls, written in Python or in C."""
    counted = 0

    def count(_frame: object, event: str, _what: object) -> None:
        nonlocal counted
        counted += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counted


def test_a_short_claim_takes_few_steps(client: Holdfast, job: str) -> None:
    """A claim and its release take no more steps than what is said here, in the thread that claims."""
    pair(client, job)
    assert min(calls_of(lambda: pair(client, job)) for _ in range(3)) <= CALLS_MAX


def test_a_short_claim_is_two_requests(client: Holdfast, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that is given back at once asks twice: nothing is renewed or followed for it, and no stream is opened."""
    asked: list[str] = []
    send = HttpTransport.send

    def recorded(transport: HttpTransport, request: Send) -> Answer:
        asked.append(request.path.rpartition("/")[2])
        return send(transport, request)

    monkeypatch.setattr(HttpTransport, "send", recorded)
    monkeypatch.setattr(HttpTransport, "stream", lambda *_: pytest.fail("a stream was opened"))
    for _ in range(PAIRS):
        pair(client, job)
    assert asked == ["acquire", "release"] * PAIRS


def test_only_given_options_are_sent(client: Holdfast, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body has the fields that somebody gave, and no others: the server need not look at what is null."""
    said: list[set[str]] = []
    send = HttpTransport.send

    def recorded(transport: HttpTransport, request: Send) -> Answer:
        said.append(set(msgspec.json.decode(msgspec.json.encode(request.body))))
        return send(transport, request)

    monkeypatch.setattr(HttpTransport, "send", recorded)
    with client.claim(job, ttl=60) as claim:
        claim.renew()
    assert said == [{"ttl_seconds", "owner"}, {"lease_id", "keep_ttl"}, {"lease_id"}]


def test_short_claims_do_not_wake_the_keeper() -> None:
    """A keeper that sleeps is not woken by what comes and goes: each leaves one entry in its inbox, no more.

    What is given back before its moment is over never stands in the schedule.
    """
    keeper = BackgroundThread()
    keeper._runs, keeper._wakes_ms = True, clock.boot_ms() + 1  # As if it slept, for less than a moment.
    held = [Never() for _ in range(2 * PAIRS)]
    scheduled = [keeper.start_at(clock.boot_ms() + RENEWAL_DELAY_MS, each) for each in held]
    for each in scheduled[PAIRS:]:
        each.stopped = True
    held.clear()  # The others are dropped without a word.
    assert (keeper._wakeups.qsize(), len(keeper._inbox)) == (0, 2 * PAIRS)
    keeper._drain_inbox()
    assert (len(keeper._schedule), len(keeper._inbox)) == (0, 0)


def test_stopping_removes_a_scheduled_entry() -> None:
    """What is in the schedule when it is stopped is removed from it before its time, within a second."""
    keeper = BackgroundThread()
    keeper._runs = True
    held = Never()
    running = keeper.start_at(clock.boot_ms() + 3_600_000, held)
    keeper._drain_inbox()
    assert len(keeper._schedule) == 1
    running.stopped = True
    assert keeper._schedule.take(clock.boot_ms()) == []
    assert len(keeper._schedule) == 0


class Never:
    """What must not begin."""

    def begin(self) -> None:
        pytest.fail("it was begun")
