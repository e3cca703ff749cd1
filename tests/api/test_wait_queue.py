"""Standing in line for a name: W1–W5, L6, and what ends a wait."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import callers
from tests.support.api import Api, lock_path
from tests.support.checks import is_uuid, refused, unique, wait_until
from tests.support.pending import Pending, payload, pending, waiters, waiting

ANONYMOUS = "00000000-0000-4000-8000-000000000000"


@pytest.fixture(scope="module", autouse=True)
def lapsing(alice: Api, bob: Api) -> Iterator[tuple[str, Pending]]:
    """A wait for a session of 10 s, the shortest there is. Begun first, so that its end costs its test little time."""
    name = unique("lapsing")
    alice.acquired(name)
    session = bob.new_session(ttl_seconds=10)["session_id"]
    with waiting(bob, name, session_id=session, ephemeral=True) as request:
        yield name, request


def _ticket(api: Api, name: str, **fields: Any) -> str:  # noqa: ANN401 - passed on as they are
    """Stand in line without waiting any longer than it takes to get a ticket."""
    body = api.acquire(name, wait_seconds=0.001, **fields).json()
    assert body["status"] == "waiting", body
    return str(body["ticket"])


# Being served.


def test_a_free_name_is_granted_without_waiting(alice: Api, name: str) -> None:
    """W1, W4: who would wait for a free name gets it at once, and has waited for nothing."""
    granted = alice.acquired(name, wait_seconds=50)
    assert granted["waited_ms"] == 0


def test_release_grants_to_waiter(alice: Api, bob: Api, name: str) -> None:
    """W1, W4, C7: a release grants the name to the one in line, who hears how long it waited and who was before."""
    lease = alice.acquired(name, owner="ana", ttl_seconds=60)
    with waiting(bob, name, owner="ben", ttl_seconds=40, metadata="mine") as ben:
        assert alice.held(name)["waiting"] == 1
        began = time.monotonic()
        time.sleep(0.3)
        assert alice.release(name, lease["lease_id"]).status == 200
        granted = ben.json()
        passed_ms = 1000 * (time.monotonic() - began)
    assert granted["status"] == "acquired"
    assert (granted["owner"], granted["metadata"], granted["reacquired"]) == ("ben", "mine", False)
    assert 290 <= granted["waited_ms"] <= passed_ms + 1_000
    assert 38_000 < granted["expires_in_ms"] <= 40_000
    assert granted["fencing_token"] > lease["fencing_token"]
    assert (granted["previous"]["owner"], granted["previous"]["ended"]) == ("ana", "released")
    assert alice.status(name).json()["waiting"] == 0
    assert bob.renew(name, granted["lease_id"]).status == 200


def test_expiry_grants_to_waiter(alice: Api, bob: Api, name: str) -> None:
    """W1, L2: the line moves when a lease runs out by itself."""
    lease = alice.acquired(name, owner="ana", ttl_seconds=60)
    with waiting(bob, name, owner="ben") as ben:
        assert alice.renew(name, lease["lease_id"], ttl_seconds=1).status == 200
        granted = ben.json()
    assert (granted["status"], granted["previous"]["ended"]) == ("acquired", "expired")
    assert 0 < granted["waited_ms"] < 30_000


def test_grants_follow_queue_order(alice: Api, bob: Api, name: str) -> None:
    """W1, W5, I12: a release wakes exactly one, the one that joined first; the others wait on."""
    lease_id = alice.acquired(name)["lease_id"]
    line = [waiting(bob, name, owner=f"agent-{number}") for number in range(5)]
    holder: Api = alice
    for served, request in enumerate(line):
        assert holder.release(name, lease_id).status == 200
        granted = request.json()
        assert (granted["status"], granted["owner"]) == ("acquired", f"agent-{served}")
        assert not any(later.is_answered() for later in line[served + 1 :])
        assert waiters(alice, name) == len(line) - served - 1
        lease_id, holder = granted["lease_id"], bob
        request.close()
    assert holder.release(name, lease_id).status == 200


def test_a_plain_try_never_overtakes(alice: Api, bob: Api, carol: Api, name: str) -> None:
    """W1: while somebody waits there is no instant at which a plain try gets the name."""
    lease_id = alice.acquired(name)["lease_id"]
    line = [waiting(bob, name, owner=f"agent-{number}") for number in range(3)]
    request = payload(f"{lock_path(name)}/acquire", callers.CAROL, {})
    for number, ahead in enumerate(line):
        releaser = callers.ALICE if number == 0 else callers.BOB
        # The release and the try arrive in one piece: they are decided one right after the other.
        both = payload(f"{lock_path(name)}/release", releaser, {"lease_id": lease_id}) + request
        with Pending(carol.host, carol.port, both) as burst:
            released, tried = burst.answers(2)
        assert (released.status, tried.json()["status"]) == (200, "held")
        lease_id = ahead.json()["lease_id"]
        ahead.close()


def test_waits_over_a_lock_delay(alice: Api, bob: Api, carol: Api, name: str) -> None:
    """L6, W1: a closed name can be waited for; the grant comes when the delay is over, to the first in line."""
    lease = alice.acquired(name, lock_delay_seconds=1)
    first = waiting(bob, name, owner="ben")
    began = time.monotonic()
    alice.release(name, lease["lease_id"])
    second = waiting(carol, name, owner="cara")
    assert bob.acquire(name).status == 409
    granted = first.json()
    assert (granted["status"], granted["owner"]) == ("acquired", "ben")
    assert time.monotonic() - began >= 0.99
    assert not second.is_answered()
    first.close()
    second.close()


def test_sole_waiter_for_closed_name(alice: Api, bob: Api, name: str) -> None:
    """L6, I14: a wait that begins while the name is closed is granted by the clock alone."""
    alice.release(name, alice.acquired(name, lock_delay_seconds=1)["lease_id"])
    granted = bob.acquired(name, wait_seconds=10)
    assert granted["waited_ms"] >= 500


# Going away and coming back.


def test_ended_wait_keeps_its_position(alice: Api, bob: Api, carol: Api, name: str) -> None:
    """W2: a wait that is over comes with ticket and position; who comes back with it stands where it stood."""
    lease_id = alice.acquired(name)["lease_id"]
    answer = bob.acquire(name, wait_seconds=0.2, owner="ben").json()
    assert set(answer) == {"status", "ticket", "position", "waited_ms"}
    assert (answer["status"], answer["position"]) == ("waiting", 1)
    assert is_uuid(answer["ticket"])
    assert 190 <= answer["waited_ms"] < 10_000
    second = waiting(carol, name, owner="cara")
    first = waiting(bob, name, owner="ben", ticket=answer["ticket"])
    alice.release(name, lease_id)
    assert first.json()["status"] == "acquired"
    assert not second.is_answered()
    first.close()
    second.close()


def test_positions_count_connected_waiters(alice: Api, bob: Api, name: str) -> None:
    """W2: a position counts those ahead that are there, and itself."""
    alice.acquired(name)
    away = _ticket(bob, name, owner="away")
    there = [waiting(bob, name, owner=f"there-{number}") for number in range(2)]
    assert bob.acquire(name, wait_seconds=0.001, owner="last").json()["position"] == 3
    back = waiting(bob, name, owner="away", ticket=away)
    assert bob.acquire(name, wait_seconds=0.001, owner="last").json()["position"] == 4
    for request in (*there, back):
        request.close()


def test_disconnected_waiter_blocks_no_other(alice: Api, bob: Api, name: str) -> None:
    """W2: later tickets are served while an earlier one is away, and a plain try too; the earlier comes back to its
    place.
    """
    lease_id = alice.acquired(name)["lease_id"]
    away = _ticket(bob, name, owner="away")
    later = waiting(bob, name, owner="later")
    alice.release(name, lease_id)
    granted = later.json()
    assert granted["owner"] == "later"
    bob.release(name, granted["lease_id"])
    plain = alice.acquired(name)
    last = waiting(bob, name, owner="last")
    back = waiting(bob, name, owner="away", ticket=away)
    alice.release(name, plain["lease_id"])
    assert back.json()["status"] == "acquired"
    assert not last.is_answered()
    for request in (later, back, last):
        request.close()


def test_returning_waiter_gets_free_name(alice: Api, bob: Api, name: str) -> None:
    """W2: a ticket is good for the name also when that became free meanwhile; it is used up then."""
    lease = alice.acquired(name)
    ticket = _ticket(bob, name, owner="ben")
    alice.release(name, lease["lease_id"])
    granted = bob.acquired(name, ticket=ticket, owner="ben")
    refused(bob.acquire(name, ticket=ticket, owner="ben"), 404, "ticket_gone")
    bob.release(name, granted["lease_id"])


def test_a_key_comes_back_too(alice: Api, bob: Api, name: str) -> None:
    """W2, C5: the same Idempotency-Key comes back to the same place, and after the grant to the same lease."""
    lease_id = alice.acquired(name)["lease_id"]
    key = unique("key")
    first = bob.acquire(name, key=key, wait_seconds=0.01).json()
    second = bob.acquire(name, key=key, wait_seconds=0.02).json()
    assert first["status"] == second["status"] == "waiting"
    assert first["ticket"] == second["ticket"]
    request = waiting(bob, name, key=key, wait_seconds=20)
    alice.release(name, lease_id)
    granted = request.json()
    assert granted["status"] == "acquired"
    again = bob.acquired(name, key=key)
    assert (again["lease_id"], again["fencing_token"]) == (granted["lease_id"], granted["fencing_token"])
    assert bob.acquired(name, key=key, wait_seconds=5)["lease_id"] == granted["lease_id"]
    refused(bob.acquire(name, key=key, ttl_seconds=7), 422, "idempotency_conflict")
    bob.release(name, granted["lease_id"])
    refused(bob.acquire(name, key=key, wait_seconds=5), 404, "lease_not_current")
    request.close()


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_broken_connection_keeps_its_position(alice: Api, bob: Api, name: str, reset: bool) -> None:
    """W2, W5: who is known to be gone delays nobody, and comes back to its place with its key within a minute."""
    lease_id = alice.acquired(name)["lease_id"]
    key = unique("key")
    waiting(bob, name, owner="gone", key=key).close(reset=reset)
    wait_until(lambda: waiters(alice, name) == 0)
    later = waiting(bob, name, owner="later")
    alice.release(name, lease_id)
    granted = later.json()
    assert granted["owner"] == "later"
    last = waiting(bob, name, owner="last")
    back = waiting(bob, name, owner="gone", key=key)
    bob.release(name, granted["lease_id"])
    assert back.json()["owner"] == "gone"
    assert not last.is_answered()
    for request in (later, last, back):
        request.close()


def test_disconnected_waiter_is_not_granted(alice: Api, bob: Api, name: str) -> None:
    """W5: when all in line are gone the name is free for whoever asks."""
    lease_id = alice.acquired(name)["lease_id"]
    for number in range(3):
        waiting(bob, name, owner=f"gone-{number}").close(reset=number % 2 == 0)
        wait_until(lambda: waiters(alice, name) == 0)
    alice.release(name, lease_id)
    assert alice.status(name).json()["status"] == "free"
    alice.acquired(name)


def test_repeated_request_attaches_to_same_ticket(alice: Api, bob: Api, carol: Api, name: str) -> None:
    """W3: one ticket for each holder and name: asking again takes the place over, and the earlier request is told."""
    lease_id = alice.acquired(name)["lease_id"]
    first = waiting(bob, name, owner="ben")
    other = waiting(carol, name, owner="cara")
    again = pending(bob, f"{lock_path(name)}/acquire", {"wait_seconds": 30, "owner": "ben"})
    body = first.json()
    assert (body["status"], body["position"]) == ("waiting", 1)
    assert waiters(alice, name) == 2
    first.close()
    alice.release(name, lease_id)
    assert again.json()["status"] == "acquired"
    assert not other.is_answered()
    again.close()
    other.close()


def test_attaching_outlives_the_first_connection(alice: Api, bob: Api, name: str) -> None:
    """W3: when the earlier request's connection breaks after it was answered, the later one still is there."""
    lease_id = alice.acquired(name)["lease_id"]
    first = waiting(bob, name, owner="ben")
    again = pending(bob, f"{lock_path(name)}/acquire", {"wait_seconds": 30, "owner": "ben"})
    first.json()
    first.close(reset=True)
    assert not again.is_answered(0.1)
    assert waiters(alice, name) == 1
    alice.release(name, lease_id)
    assert again.json()["status"] == "acquired"
    again.close()


def test_claims_without_owner_have_separate_tickets(alice: Api, bob: Api, name: str) -> None:
    """W3, C3: two who give no name are two, also with one token."""
    lease_id = alice.acquired(name)["lease_id"]
    first, second = waiting(bob, name), waiting(bob, name)
    assert waiters(alice, name) == 2
    alice.release(name, lease_id)
    granted = first.json()
    assert not second.is_answered()
    bob.release(name, granted["lease_id"])
    assert second.json()["status"] == "acquired"
    first.close()
    second.close()


def test_waiter_granted_otherwise_leaves_the_queue(alice: Api, bob: Api, name: str) -> None:
    """W3: a holder that is granted the name while its ticket is away has no ticket there any more."""
    lease = alice.acquired(name)
    ticket = _ticket(bob, name, owner="ben")
    alice.release(name, lease["lease_id"])
    bob.acquired(name, owner="ben")
    refused(bob.acquire(name, ticket=ticket, owner="ben", wait_seconds=1), 404, "ticket_gone")


# Leaving.


def test_leaving_the_queue(alice: Api, bob: Api, carol: Api, name: str) -> None:
    """W2: a place can be given up: who waits there is told, nobody else moves, and only its owner's token can."""
    lease_id = alice.acquired(name)["lease_id"]
    key = unique("key")
    ticket = bob.acquire(name, key=key, owner="ben", wait_seconds=0.001).json()["ticket"]
    request = waiting(bob, name, owner="ben", ticket=ticket)
    later = waiting(carol, name)
    refused(carol.leave(ticket), 404, "ticket_gone")
    left = bob.leave(ticket)
    assert (left.status, left.body) == (204, b"")
    refused(request.answer(), 404, "ticket_gone")
    refused(bob.leave(ticket), 404, "ticket_gone")
    refused(bob.acquire(name, owner="ben", ticket=ticket, wait_seconds=1), 404, "ticket_gone")
    alice.release(name, lease_id)
    assert later.json()["status"] == "acquired"
    request.close()
    later.close()


def test_run_can_delete_only_its_own_tickets(alice: Api, bob: Api, name: str) -> None:
    """S3: a session's secret leaves the line for that session alone; the token it belongs to may for all of its own."""
    alice.acquired(name)
    first, second = (bob.new_session() for _ in range(2))
    runs = [Api(bob.host, bob.port, session["session_secret"]) for session in (first, second)]
    tickets = [_ticket(run, name) for run in runs]
    plain = _ticket(bob, name)
    for ticket in (tickets[1], plain):
        refused(runs[0].leave(ticket), 404, "ticket_gone")
    assert runs[0].leave(tickets[0]).status == 204
    assert bob.leave(tickets[1]).status == 204
    assert bob.leave(plain).status == 204


def test_leaving_the_queue_requires_uuid_and_token(alice: Api, nobody: Api) -> None:
    """The id of a ticket is a UUID; without a token there is nothing to give up."""
    refused(alice.leave("nope"), 400, "invalid_input")
    refused(alice.leave(ANONYMOUS), 404, "ticket_gone")
    refused(nobody.leave(ANONYMOUS), 401, "authentication_required")
    refused(alice.delete(f"/tickets/{ANONYMOUS}?colour=red"), 400, "invalid_input")


def test_tickets_of_others_are_gone(alice: Api, bob: Api, carol: Api, name: str) -> None:
    """W3: a ticket is good for its holder and its name alone; to all others there is none such."""
    alice.acquired(name)
    other = unique()
    alice.acquired(other)
    ticket = _ticket(bob, name, owner="ben")
    refused(carol.acquire(name, ticket=ticket, owner="ben", wait_seconds=1), 404, "ticket_gone")
    refused(bob.acquire(other, ticket=ticket, owner="ben", wait_seconds=1), 404, "ticket_gone")
    refused(bob.acquire(name, ticket=ticket, owner="other", wait_seconds=1), 404, "ticket_gone")
    refused(bob.acquire(name, ticket=ticket, wait_seconds=1), 404, "ticket_gone")
    refused(bob.acquire(name, ticket=ANONYMOUS, owner="ben", wait_seconds=1), 404, "ticket_gone")
    session = bob.new_session()["session_id"]
    bound = _ticket(bob, name, owner="ben", session_id=session, ephemeral=True)
    refused(bob.acquire(name, ticket=bound, owner="ben", wait_seconds=1), 404, "ticket_gone")
    assert bob.acquire(name, ticket=ticket, owner="ben").json()["ticket"] == ticket


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"wait_seconds": 51}, 400),
        ({"wait_seconds": 1e308}, 400),
        ({"wait_seconds": -1}, 422),
        ({"wait_seconds": "x"}, 422),
        ({"wait_seconds": True}, 422),
        ({"wait_seconds": [1]}, 422),
        ({"ticket": "not-a-uuid"}, 422),
        ({"ticket": 7}, 422),
        ({"wait_second": 1}, 422),
        ({"redo": "yes"}, 422),
    ],
    ids=str,
)
def test_bad_values(alice: Api, name: str, fields: dict[str, Any], status: int) -> None:
    """W1: a wait is 0 to 50 seconds, a ticket a UUID; anything else is refused and nobody stands in line."""
    alice.acquired(name)
    refused(alice.acquire(name, **fields), status, "invalid_input")
    assert waiters(alice, name) == 0


@pytest.mark.parametrize("wait_seconds", [0, 0.0001, None], ids=str)
def test_no_wait_is_a_plain_try(alice: Api, name: str, wait_seconds: float | None) -> None:
    """W1: a wait of nothing is none: the answer is `held`, and no ticket is made."""
    alice.acquired(name)
    alice.held(name, wait_seconds=wait_seconds)


def test_on_held_counts_for_waiting_too(alice: Api, bob: Api, name: str) -> None:
    """A script that asked for 409 gets it for a wait that ended without the name, too."""
    alice.acquired(name)
    answer = bob.acquire(name, on_held="409", wait_seconds=0.05)
    assert (answer.status, answer.json()["status"]) == (409, "waiting")


# What ends a wait.


def test_a_session_that_ends_takes_its_tickets_along(alice: Api, bob: Api, carol: Api, name: str) -> None:
    """I10, W5: who waits for a session is told when that is deleted, and the line goes on without it."""
    lease_id = alice.acquired(name)["lease_id"]
    session = bob.new_session()["session_id"]
    request = waiting(bob, name, session_id=session, ephemeral=True, owner="ben")
    later = waiting(carol, name)
    assert bob.end_session(session).status == 204
    refused(request.answer(), 404, "not_found")
    alice.release(name, lease_id)
    assert later.json()["status"] == "acquired"
    request.close()
    later.close()


def test_a_session_that_lapses_takes_its_tickets_along(alice: Api, lapsing: tuple[str, Pending]) -> None:
    """S1, W5: a wait for a session does not keep it alive; when it misses its keepalive the wait ends with it."""
    name, request = lapsing
    answer = request.answer(20)
    assert answer.json()["code"] == "session_expired", answer
    assert waiters(alice, name) == 0


def test_a_revoked_token_is_not_granted(alice: Api, operator: Api, name: str) -> None:
    """W5: whose token is shut out while it waits is refused at its turn, and the next one is served."""
    lease_id = alice.acquired(name)["lease_id"]
    made = operator.post("/tokens", {"name": unique("tok")}).json()
    caller = Api(alice.host, alice.port, made["token"])
    request = waiting(caller, name, owner="shut-out")
    later = waiting(alice, name, owner="later")
    assert operator.delete(f"/tokens/{made['name']}").status == 204
    alice.release(name, lease_id)
    refused(request.answer(), 401, "authentication_failed")
    assert later.json()["owner"] == "later"
    request.close()
    later.close()


def test_finished_work_answers_the_queue(alice: Api, bob: Api, name: str) -> None:
    """L5: when the work is done all in line hear so, except who wants to do it again: that one gets it."""
    lease_id = alice.acquired(name, owner="ana")["lease_id"]
    line = [waiting(bob, name, owner=f"agent-{number}") for number in range(3)]
    again = waiting(bob, name, owner="again", redo=True)
    alice.release(name, lease_id, outcome="done", remember_seconds=60, result="pr-7")
    for request in line:
        body = request.json()
        assert (body["status"], body["owner"], body["result"]) == ("done", "ana", "pr-7")
        request.close()
    granted = again.json()
    assert (granted["status"], granted["owner"]) == ("acquired", "again")
    again.close()


# On one connection.


def test_requests_after_a_wait_are_answered_after_it(alice: Api, bob: Api, name: str) -> None:
    """Requests sent behind a waiting one on the same connection are answered after it, in order."""
    lease_id = alice.acquired(name)["lease_id"]
    request = waiting(bob, name, owner="ben")
    request.send(payload("/healthz", None, method="GET") + payload(lock_path(name), callers.BOB, method="GET"))
    assert not request.is_answered(0.1)
    alice.release(name, lease_id)
    granted, alive, status = request.answers(3)
    assert granted.json()["status"] == "acquired"
    assert alive.status == 200 and "lease_id" not in alive.json()
    assert (status.json()["status"], status.json()["owner"]) == ("held", "ben")
    request.close()


def test_waits_one_after_the_other_on_one_connection(alice: Api, bob: Api, name: str) -> None:
    """A connection on which a wait was over can wait again: each answer belongs to its own request."""
    alice.acquired(name)
    with Pending(bob.host, bob.port, b"") as connection:
        for number in range(1, 5):
            body = {"wait_seconds": 0.02, "owner": "ben"}
            connection.send(payload(f"{lock_path(name)}/acquire", callers.BOB, body))
            assert connection.answers(number)[-1].json()["status"] == "waiting"


def test_ticket_ids_are_shown_only_to_their_owner(alice: Api, bob: Api, name: str) -> None:
    """A ticket and the lease id it carries appear in no answer to anybody but its holder."""
    alice.acquired(name)
    ticket = _ticket(bob, name, owner="ben")
    request = waiting(bob, name, owner="ben", ticket=ticket)
    for answer in (alice.status(name), alice.why(name), alice.history(name), alice.acquire(name), alice.locks()):
        assert answer.status == 200, answer
        assert ticket not in answer.text
        assert str(uuid.UUID(ticket).hex) not in answer.text
    request.close()
