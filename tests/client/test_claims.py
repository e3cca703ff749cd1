"""Claiming as flows, in a world without clocks and sockets: retries, places in the line, what an interrupt leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.client.answers import Answer
from holdfast.client.claim_flows import (
    LOST_IN_ROW_MAX,
    WAIT_SECONDS_MAX,
    AcquiredClaim,
    claim,
    claim_all,
    claim_any,
)
from holdfast.client.deadline import safe_ms
from holdfast.client.effects import Flow, Policy, Send
from holdfast.client.lease_flows import release, renew, transfer
from holdfast.client.options import ClaimRequest
from holdfast.client.records import QueuePosition
from holdfast.client.requests import integer_seconds
from holdfast.errors import (
    Deadlock,
    JobDone,
    JobHeld,
    LeaseLost,
    NotAllowed,
    NotInTime,
    Refused,
    ServerError,
    Unreachable,
)
from tests.client.driving import (
    AT,
    BROKEN,
    HOLDER,
    LEASE,
    POLICY,
    TICKET,
    URL,
    World,
    acquired,
    after,
    answer,
    bodies,
    held,
    lock,
    no_answer,
    problem,
    renewed,
    scripted,
    waiting,
)

FREED = answer(200)


def wanted(wait: float = 0, **fields: Any) -> ClaimRequest:  # noqa: ANN401 - passed on as it is
    return ClaimRequest(ttl=60, owner="o", wait=wait, **fields)


def claiming(wait: float = 0, **fields: Any) -> Flow[AcquiredClaim]:  # noqa: ANN401 - the same
    return claim("j", wanted(wait, **fields), POLICY)


def test_counts_from_the_attempt_that_was_answered() -> None:
    """T4: the term counts from before the send of the attempt that was answered, neither earlier nor later."""
    world = World(scripted(no_answer, after(2.5, acquired(50_000))))
    got = world.run(claiming())
    assert len(world.sent) == 2
    assert got.deadline.left_ms(world.sent_at[1]) == safe_ms(50_000)
    assert got.deadline.left_ms(world.now()) == safe_ms(50_000) - 2_500


def test_retries_use_the_same_key() -> None:
    """C5: every try of one claim has the same key, whether the answer was lost or said that nobody knows."""
    unknown = problem(503, "outcome_unknown", retry_after_ms=10)
    world = World(scripted(BROKEN, unknown, problem(502, "bad_gateway"), acquired()))
    assert world.run(claiming()).claim.fencing_token == 7
    assert world.keys == ["key-1"] * 4


def test_gives_up_after_a_while() -> None:
    """A server that does not answer is asked again for `retry_seconds`, with longer and longer pauses."""
    world = World(scripted(BROKEN))
    with pytest.raises(Unreachable, match="connection refused"):
        world.run(claiming())
    assert sum(world.sleeps) <= POLICY.retry_seconds
    assert world.sleeps == sorted(world.sleeps) and len(world.sleeps) >= 5


def test_outcome_unknown_for_too_long_is_refused() -> None:
    """A server that goes on saying 503 is believed in the end, in its own words."""
    with pytest.raises(Refused) as caught:
        World(scripted(problem(503, "storage_unavailable"))).run(claiming())
    assert (caught.value.status, caught.value.code) == (503, "storage_unavailable")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 429])
def test_refusals_are_not_retried(status: int) -> None:
    """What the server refuses is not asked again: the exception says what it said."""
    world = World(scripted(problem(status, "deadlock" if status == 409 else "some_code", retry_after_ms=50)))
    with pytest.raises(Refused) as caught:
        world.run(claiming())
    assert len(world.sent) == 1
    kinds = {409: Deadlock, 401: NotAllowed, 403: NotAllowed}
    assert type(caught.value) is kinds.get(status, Refused)


def test_held_job_names_its_owner() -> None:
    """C2: a held job raises `JobHeld` with all that the server knows of the owner."""
    with pytest.raises(JobHeld) as caught:
        World(scripted(held(metadata='{"a":1}', same_owner=True, waiting=3))).run(claiming())
    error = caught.value
    assert type(error) is JobHeld
    assert (error.job_id, error.owner, error.note, error.metadata) == ("j", "ana", "half way", {"a": 1})
    assert (error.same_owner, error.waiting, error.retry_after) == (True, 3, 5.0)
    assert str(error).startswith("you hold j yourself, as ana, since 2026-01-01 00:00:00Z")
    assert "resume=True gives it back" in str(error)
    assert "ana" in str(error) and "half way" in str(error)


def test_done_and_closed() -> None:
    """L5, L6: a finished job raises `JobDone` with its result, a closed one `JobHeld` with the time it opens."""
    done = answer(
        200, status="done", name="j", owner="o", fencing_token=5, completed_at=AT, result="r", remembered_for_ms=5
    )
    with pytest.raises(JobDone) as caught:
        World(scripted(done)).run(claiming())
    assert (caught.value.result, caught.value.fencing_token, caught.value.owner) == ("r", 5, "o")
    closed = answer(200, status="delayed", available_at=AT, lock_delay_seconds=5, retry_after_ms=4_000)
    with pytest.raises(JobHeld, match="closed until") as shut:
        World(scripted(closed)).run(claiming())
    assert (shut.value.owner, shut.value.retry_after) == (None, 4.0)


def test_long_wait_sends_several_requests_with_one_ticket() -> None:
    """W2: a wait beyond the longest request comes back to its place with the ticket and the same key."""
    granted = acquired(60_000, waited_ms=20_000)
    world = World(scripted(after(WAIT_SECONDS_MAX, waiting()), after(20, granted)))
    got = world.run(claiming(120))
    assert world.keys == ["key-1", "key-1"]
    first, second = bodies(world.sent)
    assert (first["wait_seconds"], "ticket" in first) == (50, False)
    assert (second["wait_seconds"], second["ticket"]) == (50, TICKET)
    assert got.deadline.left_ms(world.now()) == safe_ms(60_000, 20_000) - 20_000


def test_retry_of_a_wait_waits_for_what_is_left() -> None:
    """A wait that breaks off is taken up again for the rest of it only, however often, and never as a new one."""
    network = scripted(*[after(20, BROKEN)] * 2, after(19, BROKEN), acquired())
    world = World(network)
    world.run(claiming(50))
    assert [body.get("wait_seconds") for body in bodies(world.sent)] == pytest.approx([50, 30, 10, None], abs=1)
    assert set(world.keys) == {"key-1"}


def test_timeout_leaves_the_queue() -> None:
    """A wait that is over leaves the line and raises `NotInTime`, which says who has the job."""
    world = World(scripted(after(10, waiting()), FREED, lock()))
    with pytest.raises(NotInTime, match="held by ana") as caught:
        world.run(claiming(10))
    assert world.paths == ["POST /locks/j/acquire", f"DELETE /tickets/{TICKET}", "GET /locks/j"]
    assert (caught.value.owner, caught.value.note) == ("ana", "half way")


def test_timeout_without_read_scope_has_no_owner() -> None:
    """A token that may claim but not read gets `NotInTime` all the same."""
    world = World(scripted(after(10, waiting()), FREED, problem(403, "forbidden")))
    with pytest.raises(NotInTime) as caught:
        world.run(claiming(10))
    assert caught.value.owner is None


@pytest.mark.parametrize(
    "gone",
    [
        problem(404, "ticket_gone"),
        problem(404, "lease_not_current", ended="expired"),
        problem(400, "lease_not_current", ended="expired"),
    ],
    ids=["ticket gone", "lease ended", "lease ended and succeeded"],
)
def test_lost_ticket_restarts_the_claim(gone: Answer) -> None:
    """W2, C5: a place that lapsed, or a lease that ended before we heard of it, is asked for anew with a new key."""
    world = World(scripted(after(50, waiting()), gone, acquired()))
    world.run(claiming(600))
    assert world.keys == ["key-1", "key-1", "key-2"]
    assert "ticket" not in bodies(world.sent)[2]


def test_claim_restarts_a_few_times_only() -> None:
    """A server whose every place is gone is not asked for ever."""
    world = World(scripted(problem(404, "ticket_gone")))
    with pytest.raises(Refused, match="No") as caught:
        world.run(claiming(600))
    assert caught.value.code == "ticket_gone"
    assert len(world.sent) == LOST_IN_ROW_MAX + 1


def test_sent_away_early_backs_off() -> None:
    """W3: two requests of one owner push each other off one place; each waits a little longer before it comes back."""
    world = World(scripted(*[after(0.01, waiting())] * 4, acquired()))
    world.run(claiming(600))
    assert world.sleeps == [0.5, 1.0, 1.5, 2.0]


def test_backing_off_ends_with_the_wait() -> None:
    """Nobody backs off for longer than the wait lasts; then it is `NotInTime`."""

    def network(world: World, request: Send) -> Answer:
        return lock() if request.method == "GET" else waiting()

    world = World(network)
    before = world.now()
    with pytest.raises(NotInTime):
        world.run(claiming(3))
    assert (world.now().boot_ms - before.boot_ms) == 3_000


def test_on_wait_reports_the_queue_position() -> None:
    """`on_wait` hears the place, the time and the owner: first after a glance, then every few seconds."""
    updates: list[QueuePosition] = []

    def network(world: World, request: Send) -> Answer:
        if request.method == "GET":
            return lock()
        if len(updates) == 3:
            return acquired()
        world.advance(bodies([request])[0]["wait_seconds"])
        return waiting(5 - len(updates))

    world = World(network)
    world.run(claiming(60, on_wait=updates.append))
    assert [update.position for update in updates] == [5, 4, 3]
    assert [round(update.waited) for update in updates] == [0, 5, 10]
    assert updates[0].owner is not None and updates[0].owner.owner == "ana"


def test_on_wait_may_end_the_wait() -> None:
    """An exception of `on_wait` ends the wait: the line is left and the exception comes out."""

    class Enough(Exception):
        pass

    def stop(update: QueuePosition) -> None:
        raise Enough

    world = World(scripted(waiting(), lock(), waiting(), FREED))
    with pytest.raises(Enough):
        world.run(claiming(60, on_wait=stop))
    assert world.paths[-2:] == ["POST /locks/j/acquire", f"DELETE /tickets/{TICKET}"]


INTERRUPTS: list[Callable[[], BaseException]] = [KeyboardInterrupt, asyncio.CancelledError, SystemExit]


@pytest.mark.parametrize("interrupt", INTERRUPTS)
def test_interrupted_wait_leaves_the_queue(interrupt: Callable[[], BaseException]) -> None:
    """An interrupt while waiting comes to the same place once more, without waiting, and leaves the line."""
    world = World(scripted(interrupt(), waiting(), FREED))
    with pytest.raises(type(interrupt())):
        world.run(claiming(60))
    assert world.paths[1:] == ["POST /locks/j/acquire", f"DELETE /tickets/{TICKET}"]
    assert world.keys[:2] == ["key-1", "key-1"]
    assert "wait_seconds" not in bodies(world.sent)[1]


@pytest.mark.parametrize("interrupt", INTERRUPTS)
def test_interrupted_claim_releases_the_grant(interrupt: Callable[[], BaseException]) -> None:
    """An interrupt gives back what the server had granted by then, as failed: nobody worked, so attempts go on (C7)."""
    world = World(scripted(interrupt(), BROKEN, acquired(), FREED))
    with pytest.raises(type(interrupt())):
        world.run(claiming(60))
    assert world.paths[-1] == "POST /locks/j/release"
    assert bodies(world.sent)[-1] == {"lease_id": LEASE, "outcome": "failed"}
    assert world.keys[:3] == ["key-1"] * 3


def test_interrupted_backoff_leaves_the_queue() -> None:
    """The same in the pauses between requests."""
    world = World(scripted(waiting(), waiting(), FREED))

    def interrupt(seconds: float) -> None:
        world.on_sleep = None
        raise KeyboardInterrupt

    world.on_sleep = interrupt
    with pytest.raises(KeyboardInterrupt):
        world.run(claiming(60))
    assert world.paths[-1] == f"DELETE /tickets/{TICKET}"


def test_interrupted_resume_keeps_what_was_ours() -> None:
    """C4: what was ours before we asked for it back is not given away by an interrupt; what is new is."""
    world = World(scripted(KeyboardInterrupt(), acquired(reacquired=True)))
    with pytest.raises(KeyboardInterrupt):
        world.run(claiming(resume=True))
    assert world.paths == ["POST /locks/j/acquire"] * 2
    world = World(scripted(KeyboardInterrupt(), acquired(), FREED))
    with pytest.raises(KeyboardInterrupt):
        world.run(claiming(resume=True))
    assert world.paths[-1] == "POST /locks/j/release"


def test_interrupt_without_a_server_ends_soon() -> None:
    """When nobody answers, an interrupt is not held up for long."""
    world = World(scripted(KeyboardInterrupt(), no_answer))
    before = world.now()
    with pytest.raises(KeyboardInterrupt):
        world.run(claiming(60))
    assert world.now().boot_ms - before.boot_ms <= 10_000


def many(*names: str) -> Answer:
    each: dict[str, Any] = {
        "lease_id": LEASE,
        "fencing_token": 7,
        "expires_at": AT,
        "renew_after_ms": 1,
        "expires_in_ms": 60_000,
        "previous": None,
        "attempts": 1,
    }
    return answer(200, status="acquired", claims=[{"name": name, **each} for name in names], owner="o", waited_ms=0)


def none_free(*names: str) -> Answer:
    each = {"owner": "ana", "holder_id": HOLDER, "retry_after_ms": 700, "metadata": None, "note": None}
    each |= {"claimed_at": AT, "last_heartbeat_at": AT, "expires_at": AT}
    return answer(200, status="held", held=[{"name": name, **each} for name in names], retry_after_ms=700)


def test_claim_any_asks_again_while_it_waits() -> None:
    """M1: the server does not wait for any of several, so a wait asks again, with a new key for each time."""
    world = World(scripted(none_free("a", "b"), none_free("a", "b"), none_free("a", "b"), many("b")))
    assert world.run(claim_any(["a", "b"], wanted(30), POLICY)).claim.job_id == "b"
    assert world.keys == ["key-1", "key-2", "key-3", "key-4"]
    assert world.sleeps == [0.25, 0.5, 0.7]
    assert all("wait_seconds" not in body and body["any"] == ["a", "b"] for body in bodies(world.sent))


def test_claim_any_without_a_wait_asks_once() -> None:
    """Without a wait the refusal comes at once, with each job that is in the way."""
    world = World(scripted(none_free("a", "b")))
    with pytest.raises(JobHeld, match="and 1 more") as caught:
        world.run(claim_any(["a", "b"], wanted(), POLICY))
    assert type(caught.value) is JobHeld and len(world.sent) == 1
    assert [(other.job_id, other.owner) for other in caught.value.others] == [("a", "ana"), ("b", "ana")]
    assert caught.value.claimed_at is not None and caught.value.claimed_at == caught.value.others[1].claimed_at


def test_claim_any_is_not_in_time() -> None:
    """A wait for any of several that is over is `NotInTime`, and was not exceeded."""
    world = World(scripted(none_free("a")))
    before = world.now()
    with pytest.raises(NotInTime):
        world.run(claim_any(["a"], wanted(5), POLICY))
    assert world.now().boot_ms - before.boot_ms == 5_000


def test_claim_all_is_one_wait_for_all() -> None:
    """M2: all of several is one request and one place; an interrupt gives back every one of them."""
    world = World(scripted(after(50, waiting()), many("a", "b")))
    got = world.run(claim_all(["a", "b"], wanted(120), POLICY))
    assert [each.claim.job_id for each in got] == ["a", "b"]
    assert bodies(world.sent)[1]["ticket"] == TICKET
    world = World(scripted(KeyboardInterrupt(), many("a", "b"), FREED))
    with pytest.raises(KeyboardInterrupt):
        world.run(claim_all(["a", "b"], wanted(120), POLICY))
    assert world.paths[2:] == ["POST /locks/a/release", "POST /locks/b/release"]


def test_release_is_seen_through() -> None:
    """An interrupted release is sent once more with the same key before the interrupt goes on."""
    world = World(scripted(KeyboardInterrupt(), FREED))
    with pytest.raises(KeyboardInterrupt):
        world.run(release("j", LEASE, POLICY, owner="o"))
    assert world.paths == ["POST /locks/j/release"] * 2
    assert world.keys == ["key-1"] * 2


def test_release_twice_is_harmless() -> None:
    """A lease that was released before is released; one that ended otherwise is lost."""
    World(scripted(problem(404, "lease_not_current", ended="released"))).run(release("j", LEASE, POLICY, owner="o"))
    with pytest.raises(LeaseLost) as caught:
        World(scripted(problem(404, "lease_not_current", ended="expired"))).run(release("j", LEASE, POLICY, owner="o"))
    assert caught.value.reason == "expired"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (problem(404, "lease_not_current", ended="session_ended"), "session_ended"),
        (problem(400, "lease_not_current"), "expired"),
        (problem(404, "revoked", by="op", reason="because"), "revoked"),
        (problem(410, "session_expired"), "session_ended"),
    ],
)
def test_loss_reports_its_reason(reply: Answer, reason: str) -> None:
    """L7: renewing or handing over what has ended raises `LeaseLost` with how it ended."""
    flows: list[Flow[Any]] = [renew("j", LEASE, POLICY), transfer("j", LEASE, "ben", POLICY, owner="o")]
    for flow in flows:
        with pytest.raises(LeaseLost) as caught:
            World(scripted(reply)).run(flow)
        assert caught.value.reason == reason


def test_renewal_keeps_the_ttl() -> None:
    """L3: a renewal asks for the lease's own ttl unless reply otherwise, and may be sent twice without a key."""
    world = World(scripted(BROKEN, renewed(), renewed()))
    world.run(renew("j", LEASE, POLICY, note="n"))
    world.run(renew("j", LEASE, POLICY, ttl=0.2))
    first, again, second = bodies(world.sent)
    assert first == again == {"lease_id": LEASE, "keep_ttl": True, "note": "n"}
    assert second == {"lease_id": LEASE, "ttl_seconds": 1}


def test_seconds_are_rounded_up() -> None:
    """What is asked for in fractions of a second is never shortened."""
    assert [integer_seconds(seconds) for seconds in (0.1, 1, 1.0, 1.01, 120)] == [1, 1, 1, 2, 120]


def test_invalid_replies_are_errors() -> None:
    """An answer that is not a Holdfast server's is an error, never a claim."""
    for body in (answer(200), answer(200, status="acquired"), answer(200, status="sure")):
        with pytest.raises(Exception, match="does not answer"):
            World(scripted(body)).run(claim("j", wanted(), Policy(URL)))
    with pytest.raises(ServerError, match="for a time"):
        World(scripted(acquired(expires_at="soon"))).run(claim("j", wanted(), Policy(URL)))


def test_any_is_not_polled_without_end() -> None:
    """A server that says "at once" again and again is asked ever more seldom, and not for longer than the wait."""
    taken = {"name": "a", "owner": "ana", "retry_after_ms": 0, "holder_id": HOLDER, "metadata": None, "note": None}
    times = {"claimed_at": AT, "last_heartbeat_at": AT, "expires_at": AT}
    world = World(scripted(answer(200, status="held", held=[{**taken, **times}], retry_after_ms=0)))
    with pytest.raises(NotInTime):
        world.run(claim_any(["a"], wanted(wait=30.0), Policy(URL)))
    assert len(world.sent) < 30 / 0.08 + 10


def test_empty_group_is_no_claim() -> None:
    """A grant of fewer jobs than were asked for is an error, and so is a refusal that names nobody."""
    granted = answer(200, status="acquired", claims=[], owner="o", waited_ms=0)
    with pytest.raises(ServerError, match="granted 0 jobs where 2"):
        World(scripted(granted)).run(claim_all(["a", "b"], wanted(), Policy(URL)))
    with pytest.raises(ServerError, match="granted 0 jobs where 1"):
        World(scripted(granted)).run(claim_any(["a", "b"], wanted(), Policy(URL)))
    refused = answer(200, status="held", held=[], retry_after_ms=1)
    with pytest.raises(ServerError, match="named nobody"):
        World(scripted(refused)).run(claim_any(["a", "b"], wanted(), Policy(URL)))
