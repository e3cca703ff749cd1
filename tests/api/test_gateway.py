"""The gateway routes: every outcome, field for field, and the order of the checks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import refused, unique, wait_until
from tests.support.gateway import Run, answered, locked, resource
from tests.support.http import Answer
from tests.support.server import ServerProcess, serving

POSTS = ("acquire", "release", "heartbeat")


@pytest.fixture
def ana(alice: Api) -> Run:
    """A run."""
    return Run(alice, "ana")


@pytest.fixture
def ben(bob: Api) -> Run:
    """A run of another token."""
    return Run(bob, "ben")


def post(api: Api, verb: str, body: object, **options: object) -> Answer:
    return api.post(f"/locks/{verb}", body, token=None, **options)


def now_ms() -> float:
    return time.time() * 1000


# Acquire.


def test_free_resource_is_acquired(ana: Run) -> None:
    """C1: a free resource is 200 with `ok` and the key, and nothing else."""
    key = resource()
    answered(ana.rlock(key), 200, {"ok": True, "resourceKey": key})
    assert ana.has(key)


def test_a_held_resource_is_refused_with_its_holder(ana: Run, ben: Run) -> None:
    """C2: a resource of another run is 409 with the name of that run and since when; nothing else is said."""
    key, before = resource(), now_ms()
    locked(ana, key)
    answer = ben.rlock(key)
    body = answer.json()
    assert answer.status == 409
    assert body == {"ok": False, "holder": ana.name, "heldSince": body["heldSince"]}
    assert before - 1000 <= body["heldSince"] <= now_ms() + 1000


def test_a_run_gets_its_own_lock_again(ana: Run, alice: Api) -> None:
    """C4: the same run always gets its lock again; it is the same lease, and its time is never shortened."""
    key = resource()
    locked(ana, key, ttl=500)
    first, lease = ana.locks()[0], alice.status(key).json()
    locked(ana, key, ttl=1)
    again = ana.locks()[0]
    assert again["heldSince"] == first["heldSince"]
    assert again["expiresAt"] >= first["expiresAt"] - 50
    assert alice.status(key).json()["fencing_token"] == lease["fencing_token"]
    answered(ana.runlock(key), 200, {"ok": True})
    assert not ana.has(key), "one release frees it"


def test_two_runs_of_one_agent_exclude_each_other(alice: Api) -> None:
    """C3: two runs of one token and one name are two holders."""
    one, two = Run(alice, name="triage-1"), Run(alice, name="triage-1")
    key = resource()
    locked(one, key)
    assert two.rlock(key).json()["holder"] == "triage-1"
    assert two.runlock(key).json() == {"ok": False, "reason": "held by triage-1"}
    assert one.has(key) and not two.has(key)


def test_a_run_without_a_name_is_shown_by_its_id(alice: Api, ben: Run) -> None:
    """The holder of a session without a name is the session's id."""
    key, nameless = resource(), Run(alice, name=None)
    locked(nameless, key)
    assert ben.rlock(key).json()["holder"] == nameless.session_id
    unnamed = Run(alice, name="")
    locked(unnamed, other := resource())
    assert ben.rlock(other).json()["holder"] == unnamed.session_id


def test_expired_run_holds_nothing(ana: Run, ben: Run, alice: Api) -> None:
    """S2: the locks of a run whose session has ended are free at once."""
    key = resource()
    locked(ana, key)
    ana.end()
    locked(ben, key)


def test_an_expired_lock_is_had(ana: Run, ben: Run) -> None:
    """L2: an expired lock is as good as none; a fraction of a second is a time too."""
    key = resource()
    locked(ana, key, ttl=0.05)
    wait_until(lambda: ben.rlock(key).status == 200)
    answered(ana.heartbeat(key), 409, {"ok": False, "reason": f"held by {ben.name}"})


def test_claims_of_other_routes_are_in_the_way(ana: Run, bob: Api) -> None:
    """One name has one owner, whichever route it was claimed by; the holder shown is the owner or the access token."""
    key, other = resource(), resource()
    bob.acquired(key, owner="deployer")
    lease = bob.acquired(other)
    assert ana.rlock(key).json()["holder"] == "deployer"
    assert ana.rlock(other).json()["holder"] == "(access token bob)"
    answered(ana.runlock(key), 409, {"ok": False, "reason": "held by deployer"})
    bob.release(other, lease["lease_id"])
    locked(ana, other)
    held = bob.held(other, owner="x")
    assert (held["owner"], held["same_owner"]) == (ana.name, False)


def test_a_claim_under_another_owner_is_not_the_runs_own(ana: Run, alice: Api) -> None:
    """C3: what a subagent claimed under its own name in the same session is not the run's to take or to release."""
    key = resource()
    secret = Api(alice.host, alice.port, ana.secret)
    lease = secret.acquired(key, owner="subagent")
    assert ana.rlock(key).json()["holder"] == "subagent"
    assert ana.runlock(key).json()["reason"] == ana.heartbeat(key).json()["reason"] == "held by subagent"
    assert ana.locks() == []
    assert secret.release(key, lease["lease_id"]).status == 200


def test_finished_and_closed_names_are_refused_with_a_reason(ana: Run, bob: Api) -> None:
    """L5, L6: work that is done and a name under a lock delay are 409 with a reason, and without a holder."""
    done, closed = resource(), resource()
    lease = bob.acquired(done, owner="finisher")
    bob.release(done, lease["lease_id"], outcome="done", remember_seconds=600)
    answered(ana.rlock(done), 409, {"ok": False, "reason": "done by finisher"})
    lease = bob.acquired(closed, lock_delay_seconds=30)
    bob.release(closed, lease["lease_id"])
    body = ana.rlock(closed).json()
    assert set(body) == {"ok", "reason"} and body["reason"].startswith("closed for another ")


# Release and heartbeat.


def test_release(ana: Run, ben: Run) -> None:
    """Release is 200 for one's own, 404 for what nobody holds, 409 for another's, which stays as it is."""
    key = resource()
    answered(ana.runlock(key), 404, {"ok": False, "reason": "lock not found"})
    locked(ana, key)
    answered(ben.runlock(key), 409, {"ok": False, "reason": f"held by {ana.name}"})
    assert ana.has(key)
    answered(ana.runlock(key), 200, {"ok": True})
    answered(ana.runlock(key), 404, {"ok": False, "reason": "lock not found"})


def test_heartbeat(ana: Run, ben: Run) -> None:
    """Heartbeat is 200 with the new expiry for one's own, 404 for what nobody holds, 409 for another's."""
    key = resource()
    answered(ana.heartbeat(key), 404, {"ok": False, "reason": "lock not found"})
    locked(ana, key)
    answered(ben.heartbeat(key), 409, {"ok": False, "reason": f"held by {ana.name}"})
    answer = ana.heartbeat(key, ttl=100)
    body = answer.json()
    assert answer.status == 200 and set(body) == {"ok", "expiresAt"} and body["ok"] is True
    assert abs(body["expiresAt"] - now_ms() - 100_000) < 5_000
    assert ana.locks()[0]["expiresAt"] == pytest.approx(body["expiresAt"], abs=1_000)


def test_heartbeat_without_a_ttl_means_the_default(ana: Run) -> None:
    """L3: without a ttl, or with 0 or null, it is `resourceLockTimeout` from now, not the lock's earlier ttl."""
    key = resource()
    long = Run(ana.api, ttl_seconds=80_000)
    locked(long, key, ttl=60_000)
    for fields in ({}, {"ttl": 0}, {"ttl": None}, {"ttl": 0.0}):
        long.heartbeat(key, ttl=60_000)
        assert abs(long.heartbeat(key, **fields).json()["expiresAt"] - now_ms() - 1_800_000) < 5_000


def test_an_expired_lock_cannot_be_revived(ana: Run) -> None:
    """L2: neither heartbeat nor release finds a lock whose time is over."""
    key = resource()
    locked(ana, key, ttl=0.05)
    wait_until(lambda: not ana.has(key))
    answered(ana.heartbeat(key), 404, {"ok": False, "reason": "lock not found"})
    answered(ana.runlock(key), 404, {"ok": False, "reason": "lock not found"})


def test_a_release_is_known_by_its_key(ana: Run, ben: Run) -> None:
    """C5: a retry of a release with the same key gets the first answer, and touches nothing that came after it."""
    key = resource()
    locked(ana, key)
    answered(ana.runlock(key, idempotency_key="r-1"), 200, {"ok": True})
    answered(ana.runlock(key, idempotency_key="r-1"), 200, {"ok": True})
    answered(ana.runlock(key, idempotency_key="r-2"), 404, {"ok": False, "reason": "lock not found"})
    locked(ben, key)
    answered(ana.runlock(key, idempotency_key="r-1"), 200, {"ok": True})
    answered(ana.runlock(key, idempotency_key="r-3"), 409, {"ok": False, "reason": f"held by {ben.name}"})
    assert ben.has(key)
    answer = ana.runlock(resource(), idempotency_key="r-1")
    assert answer.status == 422 and answer.json()["ok"] is False


def test_a_key_of_one_run_says_nothing_of_another(alice: Api) -> None:
    """S3: a run that uses a key of another run of the same token is not told what that one did; its lock stays."""
    one, two, key = Run(alice), Run(alice), resource()
    locked(one, key)
    answered(one.runlock(key, idempotency_key=key), 200, {"ok": True})
    locked(two, key)
    answer = two.runlock(key, idempotency_key=key)
    assert answer.status == 422 and answer.json()["ok"] is False
    assert two.has(key)
    answered(two.runlock(key), 200, {"ok": True})
    claims: tuple[tuple[str, dict[str, object]], ...] = (
        (f"/locks/{unique()}/acquire", {}),
        ("/claims", {"all": [unique()]}),
        ("/claims", {"any": [unique()]}),
    )
    for path, body in claims:
        headers = {"Idempotency-Key": unique()}
        first, again, other = (alice.post(path, body, token=run.secret, headers=headers) for run in (one, one, two))
        assert "lease_id" in first.text and "lease_id" in again.text
        refused(other, 422, "idempotency_conflict")


def test_a_release_has_no_ttl(ana: Run) -> None:
    """As in the original, a release passes over a ttl, whatever it is."""
    key = resource()
    locked(ana, key)
    answered(ana.runlock(key, ttl="soon"), 200, {"ok": True})


def test_concurrent_runs_get_one_grant(alice: Api, bob: Api) -> None:
    """I1: of four runs that ask for one resource at the same moment, a hundred times, one gets it each time."""
    runs = [Run(api, "racer") for api in (alice, alice, bob, bob)]
    keys = [resource() for _ in range(100)]
    start = Barrier(len(runs))

    def race(run: Run) -> list[Answer]:
        answers = []
        for key in keys:
            start.wait(timeout=30)
            answers.append(run.rlock(key))
        return answers

    with ThreadPoolExecutor(len(runs)) as threads:
        rounds = list(zip(*threads.map(race, runs), strict=True))
    for key, answers in zip(keys, rounds, strict=True):
        assert sorted(answer.status for answer in answers) == [200, 409, 409, 409]
        won = next(run for run, answer in zip(runs, answers, strict=True) if answer.status == 200)
        refusals = [answer.json() for answer in answers if answer.status == 409]
        assert all(won.name in (refusal.get("holder"), *refusal.get("cycle", [])) for refusal in refusals)
        assert won.runlock(key).status == 200
    assert [run.locks() for run in runs] == [[], [], [], []]


# S3: the weak point of the original.


def test_the_end_of_a_run_never_frees_anothers_lock(alice: Api, ana: Run, ben: Run) -> None:
    """S3, I11: a lock that expired, was asked for late and went to another run outlives the end of the first run."""
    key = resource()
    third = Run(alice, "cem")
    locked(ana, key, ttl=0.05)
    wait_until(lambda: not ana.has(key))
    assert ana.heartbeat(key).status == 404
    assert ana.runlock(key).status == 404
    locked(ben, key)
    ana.end()
    assert third.rlock(key).json()["holder"] == ben.name
    assert ben.heartbeat(key).status == 200


def test_any_call_keeps_the_session_alive(alice: Api) -> None:
    """S1: a run that calls the gateway is alive for another ttl of its session, whatever the call finds."""
    run = Run(alice, ttl_seconds=10)
    for call in (
        lambda: run.rlock(resource()),
        lambda: run.runlock(resource()),
        lambda: run.heartbeat(resource()),
        run.locks,
    ):
        # Until some of the session's time has passed, so that a keepalive can be seen.
        low = wait_until(lambda: (left := _left_ms(alice, run)) < 9_400 and left)
        call()
        assert _left_ms(alice, run) > low


def _left_ms(api: Api, run: Run) -> float:
    probe = f"probe-{unique()}"
    lease = api.acquired(probe, session_id=run.session_id, ephemeral=True, ttl_seconds=600)
    api.release(probe, lease["lease_id"])
    left: int = lease["expires_in_ms"]
    return left


def test_a_lock_lives_no_longer_than_its_session(alice: Api) -> None:
    """S2: the expiry shown is the earlier of the lock's and its session's."""
    run, key = Run(alice, ttl_seconds=20), resource()
    locked(run, key, ttl=5_000)
    assert abs(run.heartbeat(key, ttl=5_000).json()["expiresAt"] - now_ms() - 20_000) < 5_000


# List and status.


def test_list_shows_the_runs_own_locks(ana: Run, ben: Run, nobody: Api) -> None:
    """The list is a bare array of the caller's own live locks; `[]` when there are none."""
    assert ana.locks() == []
    keys, before = sorted([resource(), resource()]), now_ms()
    for key in keys:
        locked(ana, key, ttl=100)
    locked(ben, resource())
    found = ana.locks()
    assert [lock["resourceKey"] for lock in found] == keys
    for lock in found:
        assert set(lock) == {"resourceKey", "holder", "heldSince", "expiresAt"} and lock["holder"] == ana.name
        assert before - 1000 <= lock["heldSince"] <= now_ms() + 1000
        assert abs(lock["expiresAt"] - now_ms() - 100_000) < 5_000
    for query in ("", "?secret=", "?colour=red"):
        answered(nobody.get(f"/locks/list{query}"), 400, {"ok": False, "error": "missing secret"})
    answered(nobody.get("/locks/list?secret=nope"), 403, {"ok": False, "error": "invalid secret"})
    assert nobody.get(f"/locks/list?secret={ana.secret}&secret=x").status == 400
    assert nobody.get("/locks/list?secret=%ff").status == 400


def test_status_shows_all_locks(ana: Run, ben: Run, alice: Api) -> None:
    """The status is for a reader's token: all live locks, with the agent's name and without expiry."""
    mine, other, plain = resource(), resource(), resource()
    locked(ana, mine)
    locked(ben, other)
    alice.acquired(plain, owner="nodash")
    answer = alice.get("/locks/status", token=callers.READER)
    assert answer.status == 200 and set(answer.json()) == {"locks"}
    found = {lock["resourceKey"]: lock for lock in answer.json()["locks"]}
    shown = found[mine]
    assert set(shown) == {"resourceKey", "agentName", "holder", "heldSince"}
    assert (shown["holder"], shown["agentName"]) == (ana.name, "ana")
    assert found[other]["agentName"] == "ben"
    assert found[plain]["agentName"] == found[plain]["holder"] == "nodash"


def test_status_needs_a_token(nobody: Api, operator: Api, ana: Run) -> None:
    """Without a token, or with one that is not known, the status is 401; without the scope it is 403."""
    for token in (None, "nobody-knows-this-one", f"{ana.secret}x"):
        answered(nobody.get("/locks/status", token=token), 401, {"ok": False, "error": "Unauthorized"})
    made = operator.post("/tokens", {"name": unique("claimer"), "scopes": ["claim"]}).json()["token"]
    claimer = Run(Api(nobody.host, nobody.port, made))
    locked(claimer, key := resource())
    assert claimer.has(key), "its own it may always see"
    answer = nobody.get("/locks/status", token=made)
    assert answer.status == 403 and answer.json()["ok"] is False and set(answer.json()) == {"ok", "error"}


def test_a_confined_token_confines_its_runs(operator: Api, alice: Api, ana: Run) -> None:
    """A run touches only what its token may touch, and its token sees only that in the status."""
    stem = unique("part")
    made = operator.post("/tokens", {"name": stem, "prefix": f"test://{stem}/"}).json()["token"]
    run = Run(Api(alice.host, alice.port, made))
    inside, outside = f"test://{stem}/1", resource()
    locked(run, inside)
    locked(ana, outside)
    for answer in (run.rlock(outside), run.runlock(outside), run.heartbeat(outside)):
        assert answer.status == 403 and set(answer.json()) == {"ok", "error"} and answer.json()["ok"] is False
    locks = alice.get("/locks/status", token=made).json()["locks"]
    assert [lock["resourceKey"] for lock in locks] == [inside]
    operator.delete(f"/tokens/{stem}")
    answered(run.heartbeat(inside), 403, {"ok": False, "error": "invalid secret"})


# What is refused before anything is decided, and in which order.


@pytest.mark.parametrize("verb", POSTS)
def test_order_of_checks(verb: str, ana: Run, nobody: Api) -> None:
    """The first that is wrong is told: the JSON, the secret, the key, its form, the ttl, whose secret it is."""
    key = resource()
    for text in (b"", b"{", b"{} x", b"\xff", b'{"secret": NaN}', b"\xef\xbb\xbf{}"):
        answered(post(nobody, verb, text), 400, {"ok": False, "error": "invalid JSON body"})
    bodies: list[object] = [{}, [], 5, "x", {"secret": ""}, {"secret": 5}, {"secret": None, "resourceKey": "bad key"}]
    for body in bodies:
        answered(post(nobody, verb, body), 400, {"ok": False, "error": "missing secret"})
    answered(post(nobody, verb, b"null"), 400, {"ok": False, "error": "missing secret"})
    for wrong in ({}, {"resourceKey": ""}, {"resourceKey": 5}, {"resourceKey": None}, {"resourceKey": ["a:b"]}):
        answer = post(nobody, verb, {"secret": "nobody", **wrong, "ttl": -1})
        answered(answer, 400, {"ok": False, "error": "missing resourceKey"})
    answer = post(nobody, verb, {"secret": "nobody", "resourceKey": "no uri", "ttl": -1})
    assert answer.status == 400 and answer.json()["error"].startswith("Invalid URI format: ")
    answer = post(nobody, verb, {"secret": "nobody", "resourceKey": key, "ttl": -1})
    if verb == "release":
        answered(answer, 403, {"ok": False, "error": "invalid secret"})
    else:
        assert answer.status == 400 and answer.json()["error"].startswith("invalid ttl: ")
    for secret in ("nobody", "holds_", f"{ana.secret}x", callers.ALICE, "é", "\ud800", "a\r\nb"):
        answer = post(nobody, verb, json.dumps({"secret": secret, "resourceKey": key}).encode())
        answered(answer, 403, {"ok": False, "error": "invalid secret"})
    answer = post(nobody, verb, {"secret": ana.secret, "resourceKey": key, "colour": "red"})
    assert answer.status in {200, 404}, "an unknown field is passed over, as in the original"


@pytest.mark.parametrize("verb", POSTS)
def test_a_secret_of_a_run_that_is_over_is_refused(verb: str, alice: Api) -> None:
    """S3: after the end of a run its secret is 403, and so is a guess."""
    run, key = Run(alice), resource()
    run.end()
    answered(run.post(verb, key), 403, {"ok": False, "error": "invalid secret"})
    answered(alice.get(f"/locks/list?secret={run.secret}"), 403, {"ok": False, "error": "invalid secret"})


@pytest.mark.parametrize("verb", POSTS)
def test_doubled_fields_are_refused(verb: str, ana: Run, nobody: Api) -> None:
    """A field that stands twice is 400, so that nothing can be slipped in behind another value."""
    one, two = resource(), resource()
    body = f'{{"secret":"{ana.secret}","resourceKey":"{one}","resourceKey":"{two}"}}'
    answer = post(nobody, verb, body.encode())
    answered(answer, 400, {"ok": False, "error": "invalid JSON body"})
    assert ana.locks() == []


@pytest.mark.parametrize("ttl", [-1, -0.001, "2", "abc", True, False, [], {}, [5], 86_401, 1e308, 10**400])
def test_a_ttl_that_cannot_be_meant_is_refused(ttl: object, ana: Run, ben: Run) -> None:
    """A ttl is a number of seconds from 0 to `max_ttl_seconds`: all else is 400, and no lock is had or changed."""
    key = resource()
    locked(ana, key, ttl=500)
    before = ana.locks()[0]["expiresAt"]
    for answer in (ana.rlock(key, ttl=ttl), ana.heartbeat(key, ttl=ttl), ben.rlock(resource(), ttl=ttl)):
        assert answer.status == 400 and answer.json()["error"].startswith("invalid ttl: "), answer
        assert set(answer.json()) == {"ok", "error"} and answer.json()["ok"] is False
    assert ana.locks()[0]["expiresAt"] == pytest.approx(before, abs=1_000)
    assert ben.locks() == []


def test_non_numeric_ttl_is_refused(ana: Run, nobody: Api) -> None:
    """NaN, the infinite and numbers beyond all numbers are 400."""
    for text in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5_000):
        body = f'{{"secret":"{ana.secret}","resourceKey":"{resource()}","ttl":{text}}}'
        answer = post(nobody, "acquire", body.encode())
        assert answer.status == 400 and answer.json()["ok"] is False, answer
    assert ana.locks() == []


def test_the_content_type_is_not_looked_at(ana: Run, nobody: Api) -> None:
    """As in the original, any content type will do, and none."""
    for kind in ("", "text/plain", "application/x-www-form-urlencoded"):
        key = resource()
        body = json.dumps({"secret": ana.secret, "resourceKey": key}).encode()
        answer = post(nobody, "acquire", body, headers={"Content-Type": kind})
        answered(answer, 200, {"ok": True, "resourceKey": key})


@pytest.mark.parametrize(
    "key",
    [
        "https://example.com/a?b=c#d",
        "file:///etc/hosts",
        "file:///",
        "custom+scheme://x",
        "a1.b2+c3://x",
        "urn:isbn:1",
        "a:b",
        "localhost:3000",
        "C:\\x",
        "http:example.com",
        "http://[::1]:80/",
        "github://acme/app/issues/42",
        'test://"quoted"/{"a":1}',
        "test://größe/∆",
    ],
)
def test_uris_are_keys(key: str, ana: Run) -> None:
    """N1: what has a scheme and neither blanks nor control characters is a key, and is kept as it is written."""
    locked(ana, key)
    assert ana.has(key)
    assert ana.runlock(key).status == 200


@pytest.mark.parametrize(
    "key",
    [
        "plain",
        "repo/app:1",
        "123://x",
        "x:",
        "://x",
        "github issue acme/app#42",
        "deploy://api prod",
        " deploy://api",
        "deploy://api\n",
        "deploy://a\0b",
        "http://",
        "https:///",
        "HTTP://:80/x",
        "http://user@/x",
        "wss://?x",
        "-h",
        f"long://{'x' * 256}",
        "test://e\u0301",
    ],
)
def test_malformed_uri_is_refused(key: str, ana: Run) -> None:
    """N1: a key without a scheme, with a blank, or without the host that its scheme needs is 400 with the reason."""
    for answer in (ana.rlock(key), ana.runlock(key), ana.heartbeat(key)):
        body = answer.json()
        assert answer.status == 400 and set(body) == {"ok", "error"} and body["ok"] is False, answer
        assert body["error"].startswith("Invalid URI format: ") and len(body["error"]) > 25
    assert ana.locks() == []


def test_equal_is_byte_for_byte(ana: Run, ben: Run) -> None:
    """N1: keys are compared as they are written, not as the addresses they may be."""
    stem = unique()
    locked(ana, f"https://{stem}/a")
    for other in (f"HTTPS://{stem}/a", f"https://{stem}/a/", f"https://{stem.upper()}/a"):
        locked(ben, other)


# Where the routes are.


def test_routes_and_names(alice: Api, nobody: Api) -> None:
    """N2: the gateway's paths are its own for its methods; a name that looks alike stays a name."""
    refused(nobody.get("/locks/acquire"), 404, "not_found")
    refused(nobody.post("/locks/list", {}), 405, "invalid_input")
    answer = nobody.request("PUT", "/locks/heartbeat")
    refused(answer, 405, "invalid_input")
    assert answer.headers["Allow"] == "GET, HEAD, POST"
    alice.acquired("heartbeat")
    assert alice.get("/locks/heartbeat").json()["status"] == "held"
    assert alice.request("HEAD", "/locks/status").status == 200
    refused(alice.acquire("list"), 400, "invalid_lock_name")
    refused(alice.get("/locks/%6cist"), 400, "invalid_lock_name")


def test_status_reports_default_ttl(nobody: Api) -> None:
    """GET /status has what a lock lives for when nothing else is said."""
    assert nobody.get("/status").json()["resource_lock_timeout_seconds"] == 1_800


# Settings and trouble.


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose file says what Action Llama's says."""
    folder = tmp_path_factory.mktemp("short")
    file = folder / "holdfast.toml"
    file.write_text("resourceLockTimeout = 90\nleases_per_principal_max = 4\nreentrant = 'holder'\n")
    with serving(folder / "data", tokens=callers.TOKENS, config=file) as server:
        yield server


def test_the_file_sets_the_default_ttl(short: ServerProcess) -> None:
    """`resourceLockTimeout` at the top of the file is what a lock lives for without a ttl of its own."""
    alice = Api.of(short, callers.ALICE)
    run, key = Run(alice), resource()
    locked(run, key)
    assert abs(run.locks()[0]["expiresAt"] - now_ms() - 90_000) < 5_000
    assert alice.get("/status").json()["resource_lock_timeout_seconds"] == 90
    run.end()


def test_a_full_token_is_refused_with_a_reason(short: ServerProcess) -> None:
    """Who may hold no more, half of what its token may, is told so with 409 and a reason; what it holds it still gets
    again.
    """
    run = Run(Api.of(short, callers.BOB))
    first = resource()
    locked(run, first)
    locked(run, resource())
    answer = run.rlock(resource())
    assert answer.status == 409 and set(answer.json()) == {"ok", "reason"}
    locked(run, first)
    run.end()


def test_with_reentrant_holder_a_session_is_one_holder(short: ServerProcess) -> None:
    """C4: with `reentrant = "holder"` all that the session holds is the run's, whatever the owner."""
    alice = Api.of(short, callers.CAROL)
    run, key = Run(alice), resource()
    Api(alice.host, alice.port, run.secret).acquired(key, owner="subagent")
    locked(run, key)
    assert run.has(key)
    assert run.runlock(key).status == 200
    run.end()


def test_failed_write_changes_nothing(tmp_path: Path) -> None:
    """I6: when the journal cannot take it the answer is 503 with `ok: false`, and nothing was changed."""
    # The first passing is the server's own first record, the second opens the session, the third is the acquire.
    env = {"HOLDFAST_TESTING": "1", "HOLDFAST_FAILPOINTS": "before_commit=error@3"}
    with serving(tmp_path / "data", tokens=callers.TOKENS, env=env) as server:
        run, key = Run(Api.of(server, callers.ALICE)), resource()
        answer = run.rlock(key)
        assert answer.status == 503 and set(answer.json()) == {"ok", "error"} and answer.json()["ok"] is False
        assert answer.headers["Retry-After"]
        assert run.locks() == []
        locked(run, key)
