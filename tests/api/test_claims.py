"""Several names in one call: `any` and `all`, their bounds and their retries (M1, M2, C5)."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from tests.support.api import Api, lock_path
from tests.support.checks import at_once, is_uuid, refused, unique, wait_until
from tests.support.pending import pending, waiters, waiting

CLAIM = {
    "name",
    "lease_id",
    "fencing_token",
    "expires_at",
    "renew_after_ms",
    "expires_in_ms",
    "previous",
    "attempts",
}


def _claimed(api: Api, **fields: object) -> list[dict[str, Any]]:
    answer = api.claims(**fields)  # type: ignore[arg-type]
    body = answer.json()
    assert (answer.status, body.get("status")) == (200, "acquired"), answer
    claims: list[dict[str, Any]] = body["claims"]
    return claims


def _names(count: int) -> list[str]:
    stem = unique("job")
    return [f"{stem}/{number:04}" for number in range(count)]


def test_a_refusal_has_a_bound_in_bytes(alice: Api, bob: Api) -> None:
    """M1, M2: of a thousand names with long metadata the first are shown in full, and the others are counted."""
    names = _names(1_000)
    _claimed(bob, all=names, owner="ana", ttl_seconds=30, metadata="é" * 1_024)
    for how in ("any", "all"):
        answer = alice.claims(**{how: names})  # type: ignore[arg-type]
        body = answer.json()
        assert (answer.status, body["status"]) == (200, "held")
        shown = [each["name"] for each in body["held"]]
        assert 0 < len(shown) < 1_000 and shown == names[: len(shown)]
        assert all(each["metadata"] == "é" * 1_024 for each in body["held"])
        assert body["left_out"] == 1_000 - len(shown)
        assert len(answer.body) < 300 * 1_024
    assert "left_out" not in alice.claims(any=names[:10]).json()


# Any.


def test_any_takes_the_first_free_name(alice: Api, bob: Api) -> None:
    """M1: the first free name in the caller's order, and only that one."""
    names = _names(4)
    bob.acquired(names[2])
    order = [names[2], names[3], names[0]]
    answer = alice.claims(any=order, owner="ana", ttl_seconds=30, metadata="m")
    body = answer.json()
    assert (answer.status, body["status"], body["owner"]) == (200, "acquired", "ana")
    (claim,) = body["claims"]
    assert set(claim) == CLAIM
    assert claim["name"] == names[3]
    assert is_uuid(claim["lease_id"])
    assert (claim["attempts"], claim["previous"]) == (1, None)
    shown = alice.status(names[3]).json()
    assert (shown["owner"], shown["metadata"], shown["fencing_token"]) == ("ana", "m", claim["fencing_token"])
    assert alice.status(names[0]).json()["status"] == "free"
    assert alice.renew(names[3], claim["lease_id"]).status == 200


def test_any_of_held_names_says_who_holds_them(alice: Api, bob: Api) -> None:
    """M1, C2: names the caller holds count as held; the refusal names the owners and when to ask again, no ids."""
    names = _names(3)
    leases = [
        alice.acquired(names[0], owner="ana", ttl_seconds=50),
        bob.acquired(names[1], owner="ben", ttl_seconds=20, metadata="m"),
    ]
    closed = bob.acquired(names[2], lock_delay_seconds=30)
    bob.release(names[2], closed["lease_id"])
    answer = alice.claims(any=names, owner="ana")
    body = answer.json()
    assert (answer.status, body["status"]) == (200, "held")
    assert [each["name"] for each in body["held"]] == names
    assert [each["owner"] for each in body["held"]] == ["ana", "ben", None]
    assert body["held"][1]["metadata"] == "m"
    times = ("claimed_at", "last_heartbeat_at", "expires_at")
    assert all(body["held"][0][field] for field in times)
    assert not any(body["held"][2][field] for field in times)
    assert 0 < body["retry_after_ms"] <= 20_000
    assert not any(lease["lease_id"] in answer.text for lease in leases)
    refusal = alice.claims(any=names, on_held="409")
    assert refusal.status == 409
    assert 1 <= int(refusal.headers["Retry-After"]) <= 20


def test_any_does_not_wait(alice: Api) -> None:
    """M1: `any` with a wait or a ticket is refused."""
    refused(alice.claims(any=["x"], wait_seconds=1), 422, "invalid_input")
    refused(alice.claims(any=["x"], ticket="00000000-0000-4000-8000-000000000000"), 422, "invalid_input")


def test_any_passes_over_finished_jobs(alice: Api) -> None:
    """M1, L5: finished jobs are passed over; when only those are left the answer is `done`; `redo` takes one."""
    names = _names(3)
    for name in names[:2]:
        lease = alice.acquired(name, owner="ana")["lease_id"]
        alice.release(name, lease, outcome="done", remember_seconds=60, result=f"did {name}")
    (claim,) = _claimed(alice, any=names)
    assert claim["name"] == names[2]
    assert alice.claims(any=names).json()["status"] == "held"
    body = alice.claims(any=names[:2]).json()
    assert (body["status"], body["name"], body["result"]) == ("done", names[0], f"did {names[0]}")
    assert alice.claims(any=names[:2], on_held="409").status == 409
    (again,) = _claimed(alice, any=names[:2], redo=True)
    assert again["name"] == names[0]


def test_any_does_not_overtake_waiters(alice: Api, bob: Api, name: str) -> None:
    """W1: a release with somebody in line goes to that one; `any` finds the name held."""
    lease = alice.acquired(name)["lease_id"]
    request = waiting(bob, name)
    alice.release(name, lease)
    assert alice.claims(any=[name]).json()["status"] == "held"
    assert request.json()["status"] == "acquired"
    request.close()


# All.


def test_all_takes_every_name(alice: Api) -> None:
    """M2: every name in one call, with rising tokens in the caller's order and a lease id each."""
    names = _names(5)
    claims = _claimed(alice, all=names, owner="ana", ttl_seconds=30)
    assert [claim["name"] for claim in claims] == names
    tokens = [claim["fencing_token"] for claim in claims]
    assert tokens == sorted(set(tokens))
    assert len({claim["lease_id"] for claim in claims}) == 5
    for claim in claims:
        assert alice.release(claim["name"], claim["lease_id"]).status == 200


def test_all_or_nothing(alice: Api, bob: Api) -> None:
    """M2: one held name is enough for none: the refusal lists just those in the way, and nothing was taken."""
    names = _names(4)
    bob.acquired(names[2], owner="ben")
    before = alice.status(unique()).json()["fencing_token"]
    body = alice.claims(all=names, owner="ana").json()
    assert body["status"] == "held"
    assert [(each["name"], each["owner"]) for each in body["held"]] == [(names[2], "ben")]
    assert [alice.status(name).json()["status"] for name in names] == ["free", "free", "held", "free"]
    assert alice.status(unique()).json()["fencing_token"] == before
    refusal = alice.claims(all=names, on_held="409")
    assert refusal.status == 409 and refusal.headers["Retry-After"]


def test_all_of_finished_work_is_done(alice: Api) -> None:
    """M2, L5: one finished job among them answers `done`, and nothing is taken; `redo` takes all."""
    names = _names(2)
    alice.release(names[1], alice.acquired(names[1])["lease_id"], outcome="done", remember_seconds=60)
    body = alice.claims(all=names).json()
    assert (body["status"], body["name"]) == ("done", names[1])
    assert alice.status(names[0]).json()["status"] == "free"
    assert len(_claimed(alice, all=names, redo=True)) == 2


def test_all_waits_holding_nothing(alice: Api, bob: Api, carol: Api) -> None:
    """M2: who waits for all holds none of them meanwhile, is passed over while it cannot be met whole, and then gets
    all at once.
    """
    a, b = _names(2)
    lease = alice.acquired(b)["lease_id"]
    request = pending(bob, "/claims", {"all": [a, b], "owner": "ben", "wait_seconds": 30})
    wait_until(lambda: waiters(alice, b) == 1)
    passing = carol.acquired(a)
    carol.release(a, passing["lease_id"])
    assert not request.is_answered(0.05)
    passing = carol.acquired(a)
    alice.release(b, lease)
    assert not request.is_answered(0.05)
    assert alice.status(b).json()["status"] == "free"
    carol.release(a, passing["lease_id"])
    body = request.json()
    assert [claim["name"] for claim in body["claims"]] == [a, b]
    assert body["waited_ms"] > 0 and body["owner"] == "ben"
    request.close()


def test_claim_of_all_keeps_its_queue_position(alice: Api, bob: Api) -> None:
    """W2, M2: a wait for all that is over has a ticket; with it, or its key, it comes back to the same place."""
    names = _names(2)
    lease = alice.acquired(names[0])["lease_id"]
    key = unique("key")
    first = bob.claims(key=key, all=names, owner="ben", wait_seconds=0.01).json()
    assert (first["status"], first["position"]) == ("waiting", 1)
    assert bob.claims(key=key, all=names, owner="ben", wait_seconds=0.01).json()["ticket"] == first["ticket"]
    refused(bob.claims(all=names[:1], owner="ben", ticket=first["ticket"]), 404, "ticket_gone")
    alice.release(names[0], lease)
    body = bob.claims(key=key, all=names, owner="ben", ticket=first["ticket"]).json()
    assert [claim["name"] for claim in body["claims"]] == names
    again = bob.claims(key=key, all=names, owner="ben").json()
    assert [claim["lease_id"] for claim in again["claims"]] == [claim["lease_id"] for claim in body["claims"]]


def test_claim_of_all_in_another_order_keeps_its_position(alice: Api, bob: Api) -> None:
    """W3, C5: one place for an owner and a set of names. The answer has the order asked last; a key has its own."""
    names = _names(3)
    lease = alice.acquired(names[0])["lease_id"]
    ticket = bob.claims(all=names, owner="ben", wait_seconds=0.01).json()["ticket"]
    other, key = names[::-1], unique("key")
    assert bob.claims(key=key, all=other, owner="ben", wait_seconds=0.01).json()["ticket"] == ticket
    refused(bob.claims(key=key, all=names, owner="ben", wait_seconds=0.01), 422, "idempotency_conflict")
    alice.release(names[0], lease)
    body = bob.claims(key=key, all=other, owner="ben", wait_seconds=1).json()
    assert [claim["name"] for claim in body["claims"]] == other
    again = bob.claims(key=key, all=other, owner="ben").json()
    assert [claim["lease_id"] for claim in again["claims"]] == [claim["lease_id"] for claim in body["claims"]]
    refused(bob.claims(all=names, owner="ben", ticket=ticket), 404, "ticket_gone")
    bob.release(names[1], next(claim["lease_id"] for claim in body["claims"] if claim["name"] == names[1]))
    assert refused(bob.claims(key=key, all=other, owner="ben"), 404, "lease_not_current")["ended"] == "released"


def test_another_order_alone_makes_no_record(alice: Api, bob: Api) -> None:
    """W3: one place, asked for in other orders, is written once; the answer has the order asked last all the same."""
    names = _names(4)
    lease = alice.acquired(names[0])["lease_id"]
    orders = [names, names[::-1], names[2:] + names[:2], [names[1], names[0], names[3], names[2]]]
    tickets = {bob.claims(all=each, owner="ben", wait_seconds=0.01).json()["ticket"] for each in orders}
    assert len(tickets) == 1
    assert [each["event"] for each in alice.history(names[1]).json()["history"]] == ["waiting"]
    alice.release(names[0], lease)
    body = bob.claims(all=orders[-1], owner="ben", ticket=tickets.pop(), wait_seconds=1).json()
    assert [claim["name"] for claim in body["claims"]] == orders[-1]


def test_claim_of_all_with_one_name_has_same_reply_after_wait(alice: Api, bob: Api, name: str) -> None:
    """M2: a claim of all of one name is answered in the form of claims, at once and after a wait."""
    lease = alice.acquired(name)["lease_id"]
    request = pending(bob, "/claims", {"all": [name], "wait_seconds": 30})
    wait_until(lambda: waiters(alice, name) == 1)
    alice.release(name, lease)
    body = request.json()
    assert [claim["name"] for claim in body["claims"]] == [name]
    assert set(body["claims"][0]) == CLAIM
    request.close()


def test_all_for_a_session(alice: Api) -> None:
    """S2, I10: claims of several bound to a session end with it."""
    names = _names(3)
    session = alice.new_session()
    run = Api(alice.host, alice.port, session["session_secret"])
    assert len(_claimed(run, all=names)) == 3
    refused(alice.claims(any=["x"], ephemeral=True), 400, "invalid_input")
    alice.end_session(session["session_id"])
    assert all(alice.status(name).json()["status"] == "free" for name in names)


# Bounds.


def test_a_thousand_names_and_not_one_more(alice: Api) -> None:
    """M2: 1,000 names are one call, 1,001 are refused; so are none."""
    names = _names(1001)
    refused(alice.claims(all=names), 400, "invalid_input")
    refused(alice.claims(any=names), 400, "invalid_input")
    refused(alice.claims(all=[]), 400, "invalid_input")
    refused(alice.claims(any=[]), 400, "invalid_input")
    claims = _claimed(alice, all=names[:1000], ttl_seconds=5)
    assert len(claims) == 1000
    (last,) = _claimed(alice, any=names[1:1001], ttl_seconds=5)
    assert last["name"] == names[1000]


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({}, 422, "invalid_input"),
        ({"any": ["a"], "all": ["b"]}, 422, "invalid_input"),
        ({"any": "a"}, 422, "invalid_input"),
        ({"any": [1]}, 422, "invalid_input"),
        ({"any": ["a", None]}, 422, "invalid_input"),
        ({"all": ["dup", "dup"]}, 400, "invalid_input"),
        ({"any": ["dup", "x", "dup"]}, 400, "invalid_input"),
        ({"any": ["bad name"]}, 400, "invalid_lock_name"),
        ({"all": ["ok", ""]}, 400, "invalid_lock_name"),
        ({"all": ["list"]}, 400, "invalid_lock_name"),
        ({"any": ["__election/x"]}, 403, "forbidden"),
        ({"all": ["a"], "ttl_seconds": 0}, 400, "invalid_ttl"),
        ({"all": ["a"], "wait_seconds": 51}, 400, "invalid_input"),
        ({"all": ["a"], "wait_seconds": 1e308}, 400, "invalid_input"),
        ({"all": ["a"], "session_id": "x"}, 422, "invalid_input"),
        ({"all": ["a"], "ticket": "x"}, 422, "invalid_input"),
        ({"all": ["a"], "resume": True}, 422, "invalid_input"),
        ({"every": ["a"]}, 422, "invalid_input"),
    ],
    ids=str,
)
def test_bad_claims(alice: Api, fields: dict[str, object], status: int, code: str) -> None:
    """A call that cannot be meant is refused with the reason, and nothing is taken."""
    refused(alice.claims(**fields), status, code)  # type: ignore[arg-type]


def test_claims_need_the_scope_and_the_prefix(alice: Api, operator: Api, nobody: Api) -> None:
    """A reader claims nothing; a confined token only under its prefix, and one name outside is enough to refuse."""
    stem = unique("confined")
    made = operator.post("/tokens", {"name": unique("tok"), "prefix": f"{stem}/"}).json()
    confined = Api(alice.host, alice.port, made["token"])
    refused(nobody.claims(any=["x"]), 401, "authentication_required")
    refused(confined.claims(all=[f"{stem}/a", "elsewhere"]), 403, "forbidden")
    assert alice.status(f"{stem}/a").json()["status"] == "free"
    assert len(_claimed(confined, all=[f"{stem}/a", f"{stem}/b"])) == 2


def test_quota_counts_every_name(tmp_path_factory: pytest.TempPathFactory) -> None:
    """M2: a claim of all that would pass the limit of leases takes none of them."""
    from tests.support import callers
    from tests.support.server import ServerProcess

    data = tmp_path_factory.mktemp("quota") / "data"
    with ServerProcess.start(data, settings={"leases_per_principal_max": 5}, tokens=callers.TOKENS) as server:
        alice = Api.of(server, callers.ALICE)
        _claimed(alice, all=["a", "b", "c"])
        refused(alice.claims(all=["d", "e", "f"]), 403, "lock_limit_exceeded")
        assert alice.status("d").json()["status"] == "free"
        _claimed(alice, all=["d", "e"])
        full = refused(alice.claims(any=["f"]), 403, "lock_limit_exceeded")
        assert "This access token may hold 5 leases (leases_per_principal_max)" in full["details"]


def test_claim_reports_session_limit(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Limits: a session has half of its token's share, and the refusal says whose share is full."""
    from tests.support import callers
    from tests.support.server import ServerProcess

    data = tmp_path_factory.mktemp("half") / "data"
    settings = {"leases_per_principal_max": 4, "tickets_per_principal_max": 2}
    with ServerProcess.start(data, settings=settings, tokens=callers.TOKENS) as server:
        alice = Api.of(server, callers.ALICE)
        run = Api.of(server, alice.post("/sessions", {}).json()["session_secret"])
        _claimed(run, all=["a", "b"])
        full = refused(run.claims(any=["c"]), 403, "lock_limit_exceeded")
        assert "This session may hold 2 leases, half of what its token may" in full["details"]
        _claimed(alice, any=["d"])
        for owner in ("one", "two"):
            assert alice.acquire("d", owner=owner, wait_seconds=1).json()["status"] == "waiting"
        full = refused(alice.acquire("d", owner="three", wait_seconds=1), 429, "quota_exceeded")
        assert "This access token may have 2 places in lines (tickets_per_principal_max)" in full["details"]


# Retries.


def test_a_retry_gets_the_same_claims(alice: Api) -> None:
    """C5: the same key gets the same leases again, `any` and `all`; with another request it is refused."""
    names = _names(6)
    either: list[dict[str, Any]] = [{"any": names[:3]}, {"all": names[3:]}]
    for fields in either:
        key = unique("key")
        first = _claimed(alice, key=key, **fields)
        again = _claimed(alice, key=key, **fields)
        for claim, repeated in zip(first, again, strict=True):
            for field in ("name", "lease_id", "fencing_token", "attempts", "previous"):
                assert claim[field] == repeated[field]
        refused(alice.claims(key=key, all=[names[0], names[5]]), 422, "idempotency_conflict")
        alice.release(first[0]["name"], first[0]["lease_id"])
        ended = refused(alice.claims(key=key, **fields), 404, "lease_not_current")
        assert ended["ended"] == "released"


def test_refusals_leave_nothing(alice: Api, bob: Api) -> None:
    """C5: a refused claim of several leaves no memory: the same key may succeed later."""
    names = _names(2)
    lease = bob.acquired(names[1])["lease_id"]
    key = unique("key")
    assert alice.claims(key=key, all=names).json()["status"] == "held"
    bob.release(names[1], lease)
    assert len(_claimed(alice, key=key, all=names)) == 2


def test_a_lost_reply_costs_nothing(alice: Api) -> None:
    """C5: a connection broken before the answer was read; the retry gets every lease that was made."""
    for _ in range(20):
        names = _names(3)
        key = unique("key")
        pending(alice, "/claims", {"all": names}, key=key).close(reset=True)
        claims = _claimed(alice, key=key, all=names)
        assert [claim["name"] for claim in claims] == names
        assert len({claim["lease_id"] for claim in claims}) == 3


# Under contention.


def test_fifty_agents_over_five_hundred_jobs(alice: Api, bob: Api) -> None:
    """M1, L5: every job is claimed exactly once, no agent is refused while a job is free, and a second pass over the
    finished backlog gets only `done`.
    """
    jobs = _names(500)
    claimed: list[tuple[str, int]] = []
    refused_with_free: list[str] = []
    finished: list[str] = []
    ledger = threading.Lock()

    def agent(number: int) -> None:
        api = (alice, bob)[number % 2]
        order = jobs[:]
        random.Random(number).shuffle(order)
        while True:
            body = api.claims(any=order, owner=f"agent-{number}", ttl_seconds=600).json()
            if body["status"] == "done":
                return
            if body["status"] == "held":
                # All that is not done is held by somebody: as many as there are agents, at most.
                if len(body["held"]) > 50:
                    refused_with_free.append(str(len(body["held"])))
                continue
            (claim,) = body["claims"]
            with ledger:
                claimed.append((claim["name"], claim["fencing_token"]))
            done = api.release(
                claim["name"], claim["lease_id"], outcome="done", remember_seconds=600, result=f"by {number}"
            )
            assert done.status == 200, done
            with ledger:
                finished.append(claim["name"])

    at_once([lambda number=number: agent(number) for number in range(50)])  # type: ignore[misc]
    assert sorted(name for name, _ in claimed) == jobs
    assert len({token for _, token in claimed}) == 500
    assert sorted(finished) == jobs
    assert refused_with_free == []
    second = at_once([lambda: alice.claims(any=jobs, owner="late").json() for _ in range(10)])
    assert {body["status"] for body in second} == {"done"}
    assert {alice.acquire(name).json()["status"] for name in jobs[::25]} == {"done"}


def test_no_agent_is_refused_while_a_job_is_free(alice: Api) -> None:
    """M1: as many agents as jobs, all at once, with the same order: everybody gets one."""
    jobs = _names(40)
    bodies = at_once([lambda: alice.claims(any=jobs, ttl_seconds=30).json() for _ in range(40)])
    assert [body["status"] for body in bodies] == ["acquired"] * 40
    assert sorted(body["claims"][0]["name"] for body in bodies) == jobs


def test_all_under_contention_is_never_partial(alice: Api, bob: Api) -> None:
    """M2, I1: random pairs and triples of few names from many callers: never two owners of one name, never a part of a
    claim, and everybody who waits gets its turn.
    """
    names = _names(6)
    holders: dict[str, str] = {}
    wrong: list[str] = []
    rounds = dict.fromkeys(range(12), 0)
    ledger = threading.Lock()

    def caller(number: int) -> None:
        api = (alice, bob)[number % 2]
        chance = random.Random(number)
        for turn in range(12):
            wanted = chance.sample(names, chance.choice((2, 3)))
            me = f"agent-{number}-{turn}"
            body = api.claims(all=wanted, owner=me, wait_seconds=20, ttl_seconds=60).json()
            if body["status"] != "acquired":
                wrong.append(f"{me}: {body}")
                continue
            with ledger:
                wrong.extend(f"{name} had {holders[name]}" for name in wanted if name in holders)
                holders.update(dict.fromkeys(wanted, me))
            if [claim["name"] for claim in body["claims"]] != wanted:
                wrong.append(f"{me} got {body['claims']}")
            for claim in body["claims"]:
                with ledger:
                    del holders[claim["name"]]
                api.release(claim["name"], claim["lease_id"])
            rounds[number] += 1

    at_once([lambda number=number: caller(number) for number in range(12)])  # type: ignore[misc]
    assert wrong == []
    assert set(rounds.values()) == {12}
    assert all(alice.status(name).json()["status"] == "free" for name in names)


def test_many_who_wait_for_all_of_a_chain(alice: Api, bob: Api) -> None:
    """M2: long chains of claims that overlap pairwise are settled in bounded time and depth when all becomes free."""
    names = _names(1200)
    session = alice.new_session()
    run = Api(alice.host, alice.port, session["session_secret"])
    _claimed(run, all=names[:1000], ttl_seconds=600)
    _claimed(run, all=names[1000:], ttl_seconds=600)
    # The first to join wants the last names: a settling that starts at the first name must look through all.
    line = [
        pending(bob, "/claims", {"all": [names[number], names[number + 1]], "owner": f"o-{number}", "wait_seconds": 40})
        for number in reversed(range(1199))
    ]
    wait_until(lambda: waiters(alice, names[0]) == 1, seconds_max=30)
    alice.end_session(session["session_id"])
    # Every other one can be met: the first that joined, the third, and so on.
    for request in line[::2]:
        assert request.json(20)["status"] == "acquired"
    assert not any(request.is_answered() for request in line[1::2])
    assert alice.acquire(unique()).json()["status"] == "acquired"
    for request in line:
        request.close()


def test_claims_are_one_record(alice: Api) -> None:
    """M2: a claim of all is one record: every name has the same place in the history."""
    names = _names(3)
    _claimed(alice, all=names, owner="ana")
    seqs = {alice.history(name).json()["history"][0]["seq"] for name in names}
    assert len(seqs) == 1
    assert alice.get(f"{lock_path(names[0])}/history").status == 200
