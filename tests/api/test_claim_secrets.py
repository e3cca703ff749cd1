"""The secret of a claim: it looks at, renews and releases what that claim holds, and nothing else."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from holdfast.api.auth.auth import Auth, StaticTokens, WrongTokenError
from holdfast.api.auth.secrets import (
    CLAIM_SECRET_CHARS_MAX,
    AuthorityKey,
    ClaimId,
    claim_in,
    claim_secret,
    is_claim_secret_of_ours,
)
from holdfast.core.state import State
from holdfast.server.components import OPERATIONS
from tests.support import callers
from tests.support.api import Api, lock_path
from tests.support.checks import refused, unique, wait_until
from tests.support.http import Answer
from tests.support.server import ServerProcess

ALLOWED = {
    ("POST", "/leases/watch"),
    ("POST", "/lease-watches/{id}"),
    ("GET", "/locks/{name}"),
    ("GET", "/locks/{name}/history"),
    ("GET", "/locks/{name}/watch"),
    ("POST", "/locks/{name}/check"),
    ("POST", "/locks/{name}/release"),
    ("POST", "/locks/{name}/renew"),
}
HINT = "--keep-token"
LEASE = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    settings = {"wrong_tokens_per_minute_max": 5, "watches_per_principal_max": 4}
    with ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as process:
        yield process


@pytest.fixture
def alice(server: ServerProcess) -> Api:
    return Api.of(server, callers.ALICE)


def _ask(api: Api, name: str, lease_id: object) -> Answer:
    return api.post("/claims/secret", {"lock_name": name, "lease_id": lease_id})


def _secret(api: Api, name: str, lease_id: object) -> str:
    answer = _ask(api, name, lease_id)
    assert answer.status == 200, answer
    found: str = answer.json()["claim_secret"]
    return found


def _claimed(server: ServerProcess, alice: Api, name: str, **fields: Any) -> tuple[dict[str, Any], Api]:  # noqa: ANN401
    lease = alice.acquired(name, key=unique(), **fields)
    return lease, Api.of(server, _secret(alice, name, lease["lease_id"]))


def _acquired(api: Api, name: str, key: str) -> dict[str, Any] | Literal[False]:
    """Claim with a key that was used before: that works as soon as what it made is forgotten."""
    answer = api.acquire(name, key=key, ttl_seconds=60)
    return answer.status == 200 and answer.json()


def test_claim_secret_permits_what_a_command_needs(server: ServerProcess, alice: Api) -> None:
    """It looks at the name, checks, reads history, watches, renews with a note, and releases; as a retry too."""
    name = f"repo/{unique()}"
    lease, child = _claimed(server, alice, name, ttl_seconds=60)
    assert child.status(name).json()["status"] == "held"
    assert child.check(name, lease["fencing_token"]).json()["current"] is True
    assert child.history(name).status == 200
    with child.watch_lock(name) as stream:
        assert stream.next().json()["event"] == "acquired"
        assert child.renew(name, lease["lease_id"], note="half way").status == 200
        assert stream.next().json()["event"] == "renewed"
        assert alice.status(name).json()["note"] == "half way"
        assert child.release(name, lease["lease_id"], key="r").status == 200
        assert stream.next().json()["event"] == "released"
        assert stream.wait_for_end(5), "the claim is over, and so is what its secret sees"
    assert child.release(name, lease["lease_id"], key="r").status == 200, "a lost reply costs nothing (C5)"
    assert alice.status(name).json()["status"] == "free"


def test_claim_secret_covers_all_names_of_its_claim(server: ServerProcess, alice: Api) -> None:
    """Whichever of the names is asked for, a claim of several has one secret, and it reaches all of them."""
    names = [unique(), unique(), unique()]
    got = alice.claims(all=names, ttl_seconds=60, key=unique()).json()["claims"]
    made = {_secret(alice, each["name"], each["lease_id"]) for each in got}
    assert len(made) == 1
    child = Api.of(server, made.pop())
    for each in got:
        assert child.renew(each["name"], each["lease_id"]).status == 200
    assert child.release(names[0], got[0]["lease_id"]).status == 200
    refused(child.status(names[0]), 403, "forbidden")
    assert child.status(names[1]).status == 200


def test_a_claim_that_waited_has_one(server: ServerProcess, alice: Api) -> None:
    """A claim that was granted in line, and one that was given back by resume, have a secret like any other."""
    name = unique()
    first = Api.of(server, callers.BOB).acquired(name, ttl_seconds=1)
    waited = alice.acquire(name, key=unique(), ttl_seconds=60, wait_seconds=20, owner="ana").json()
    assert waited["status"] == "acquired" and waited["fencing_token"] > first["fencing_token"]
    resumed = alice.acquired(name, key=unique(), ttl_seconds=60, owner="ana", resume=True)
    child = Api.of(server, _secret(alice, name, resumed["lease_id"]))
    assert child.renew(name, waited["lease_id"]).status == 200


def test_everything_else_is_refused_with_what_to_do(server: ServerProcess, alice: Api) -> None:
    """No other route takes it, whatever is in the request: 403, and the text says --keep-token."""
    name = unique()
    lease, child = _claimed(server, alice, name)
    other = alice.acquired(unique(), key=unique())
    bodies: dict[str, dict[str, Any]] = {
        "/claims": {"any": [name]},
        "/claims/secret": {"lock_name": name, "lease_id": lease["lease_id"]},
        "/locks/{name}/reopen": {},
        "/locks/{name}/revoke": {"reason": "mine"},
        "/locks/{name}/transfer": {"lease_id": lease["lease_id"], "to_owner": "me"},
        "/tokens": {"name": "more"},
    }
    asked = 0
    for operation in OPERATIONS:
        if operation.scope is None or (operation.method, operation.path) in ALLOWED or operation.reader is not None:
            continue
        path = operation.path.replace("{name}", name).replace("{id}", other["lease_id"])
        body = bodies.get(operation.path, {}) if operation.body is not None else None
        answer = child.request(operation.method, path, body)
        if path != "/locks/status":  # In the gateway's own words.
            assert HINT in refused(answer, 403, "forbidden")["details"], (operation.path, answer)
        assert answer.status == 403, (operation.path, answer)
        asked += 1
    assert asked > 12
    assert alice.status(name).json()["status"] == "held"


@pytest.mark.parametrize("ask", ["status", "check", "renew", "release", "history"])
def test_other_names_are_refused(server: ServerProcess, alice: Api, ask: str) -> None:
    """Another claim of the same token, somebody else's, and a free name are out of reach, with the right lease id."""
    _, child = _claimed(server, alice, unique())
    other = unique()
    foreign = alice.acquired(other, key=unique())
    calls: dict[str, Callable[[str], Answer]] = {
        "status": child.status,
        "check": lambda name: child.check(name, foreign["fencing_token"]),
        "renew": lambda name: child.renew(name, foreign["lease_id"]),
        "release": lambda name: child.release(name, foreign["lease_id"]),
        "history": child.history,
    }
    for name in (other, unique()):
        assert HINT in refused(calls[ask](name), 403, "forbidden")["details"]
    assert alice.status(other).json()["status"] == "held"
    refused(child.get(f"{lock_path(other)}/watch"), 403, "forbidden")


def test_claim_secret_reports_lost_claim(server: ServerProcess, alice: Api) -> None:
    """A command whose claim was taken away hears who did it and why, and touches nothing of the next owner."""
    name = unique()
    lease, child = _claimed(server, alice, name)
    assert Api.of(server, callers.OPERATOR).revoke(name, reason="stop it").status == 204
    assert "stop it" in refused(child.renew(name, lease["lease_id"]), 404, "revoked")["details"]
    mine = alice.acquired(name, key=unique())
    assert "stop it" in refused(child.renew(name, lease["lease_id"]), 404, "revoked")["details"]
    refused(child.renew(name, mine["lease_id"]), 403, "forbidden")
    refused(child.release(name, mine["lease_id"]), 403, "forbidden")
    refused(child.status(name), 403, "forbidden")


def test_ended_lease_reveals_no_other_names(server: ServerProcess, alice: Api) -> None:
    """L7: what became of a lease is asked for by its own name; with its id no other name can be probed."""
    name, other = unique(), unique()
    lease, child = _claimed(server, alice, name)
    Api.of(server, callers.BOB).acquired(other)
    assert child.release(name, lease["lease_id"]).status == 200
    refused(child.renew(name, lease["lease_id"]), 404, "lease_not_current")
    for probed in (other, unique()):
        refused(child.renew(probed, lease["lease_id"]), 403, "forbidden")
        refused(child.release(probed, lease["lease_id"]), 403, "forbidden")


def test_its_keys_are_not_those_of_the_token(server: ServerProcess, alice: Api) -> None:
    """C5: a command may use any key. The token, and another claim's secret, can use the same one for something else."""
    key = unique()
    for name in (unique(), unique()):
        lease, child = _claimed(server, alice, name)
        assert child.renew(name, lease["lease_id"], key=key).status == 200
        assert child.release(name, lease["lease_id"], key=key).status == 200
        assert child.release(name, lease["lease_id"], key=key).status == 200
    assert alice.acquired(unique(), key=key)["fencing_token"] > 0


def test_its_watches_are_at_most_half(server: ServerProcess, alice: Api) -> None:
    """S4: as with a session's secret, a command cannot use up the watches of the token that it works for."""
    name = unique()
    _, child = _claimed(server, alice, name)
    with child.watch_lock(name) as first, child.watch_lock(name) as second:
        assert [each.next().json()["event"] for each in (first, second)] == ["acquired", "acquired"]
        refused(child.get(f"{lock_path(name)}/watch"), 429, "quota_exceeded")
        with alice.watch_lock(name) as own:
            assert own.next().json()["event"] == "acquired"


def test_claim_secret_stays_invalid_when_key_is_reused(tmp_path: Path) -> None:
    """A key that was forgotten may make another claim: the secret of the first one is not that one's."""
    settings = {"retry_memory_seconds": 1}
    with ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server:
        alice = Api.of(server, callers.ALICE)
        name, key = unique(), unique()
        first = alice.acquired(name, key=key)
        child = Api.of(server, _secret(alice, name, first["lease_id"]))
        assert child.release(name, first["lease_id"]).status == 200
        for claimed in (name, unique()):
            lease = wait_until(partial(_acquired, alice, claimed, key))
            refused(child.status(claimed), 403, "forbidden")
            refused(child.release(claimed, lease["lease_id"]), 403, "forbidden")
            own = Api.of(server, _secret(alice, claimed, lease["lease_id"]))
            assert own.release(claimed, lease["lease_id"]).status == 200


def test_claim_secret_ends_with_its_token(server: ServerProcess) -> None:
    """A token that is rotated takes the secrets of its claims along; the claim lives on, and such are no guesses."""
    operator = Api.of(server, callers.OPERATOR)
    owner = Api.of(server, operator.post("/tokens", {"name": "worker"}).json()["token"])
    name = unique()
    lease, child = _claimed(server, owner, name)
    assert child.status(name).status == 200
    successor = Api.of(server, operator.post("/tokens/worker/rotate", {}).json()["token"])
    for _ in range(10):
        refused(child.status(name), 401, "authentication_failed")
    again = Api.of(server, _secret(successor, name, lease["lease_id"]))
    assert again.token != child.token
    assert again.renew(name, lease["lease_id"]).status == 200


def test_wrong_ones_count_as_wrong_tokens(server: ServerProcess, alice: Api) -> None:
    """A secret that is none of ours is a guess, however much of it is right."""
    name = unique()
    _, child = _claimed(server, alice, name)
    right = str(child.token)
    said = base64.urlsafe_b64encode(f"bob {LEASE} key".encode()).rstrip(b"=").decode()
    for wrong in ("holdc_", "holdc_x", f"holdc_{said}_" + "A" * 43, "holdc_" + "x" * 4_000, "holdc_é"):
        answer = Api.of(server, None).get(lock_path(name), headers={"Authorization": f"Bearer {wrong}"})
        refused(answer, 401, "authentication_failed")
    changed = right[:-1] + ("A" if right[-1] != "A" else "B")
    refused(Api.of(server, changed).status(name), 429, "too_many_wrong_tokens")
    assert child.status(name).status == 200, "the right one passes"


def test_a_claim_without_a_key_has_none(alice: Api) -> None:
    """There is nothing to make a secret of: 422, and the text says what to do."""
    name = unique()
    lease = alice.acquired(name)
    assert "Idempotency-Key" in refused(_ask(alice, name, lease["lease_id"]), 422, "invalid_input")["details"]


def test_only_the_holder_gets_it(server: ServerProcess, alice: Api) -> None:
    """It needs what a renewal needs: the right lease id, and the right token."""
    name = unique()
    lease = alice.acquired(name, key=unique())
    refused(_ask(Api.of(server, callers.BOB), name, lease["lease_id"]), (400, 404), ("lease_not_current", "not_found"))
    refused(_ask(alice, name, "00000000-0000-4000-8000-000000000000"), (400, 404), "lease_not_current")
    refused(_ask(alice, unique(), lease["lease_id"]), 404, "lease_not_current")
    secret = alice.new_session()["session_secret"]
    refused(_ask(Api.of(server, secret), name, lease["lease_id"]), (400, 404), ("lease_not_current", "not_found"))
    refused(_ask(Api.of(server, callers.READER), name, lease["lease_id"]), 403, "forbidden")


def test_claim_secret_has_prefix_of_its_token(server: ServerProcess) -> None:
    """The scopes and the prefix of the token bound its secrets too, those that it has now."""
    operator = Api.of(server, callers.OPERATOR)
    token = operator.post("/tokens", {"name": "team", "prefix": "team/"}).json()["token"]
    name = f"team/{unique()}"
    lease, child = _claimed(server, Api.of(server, token), name)
    assert child.renew(name, lease["lease_id"]).status == 200


def test_claim_secret_is_not_logged(server: ServerProcess, alice: Api) -> None:
    """What is refused to a secret is a line with its token's name, and the secret is not in it."""
    _, child = _claimed(server, alice, unique())
    refused(child.locks(), 403, "forbidden")
    assert server.terminate() == 0
    assert "403 forbidden: alice (a claim's secret) from 127.0.0.1, GET /locks," in server.log
    assert str(child.token) not in server.log


# Without a server.


def test_claims_are_read_back() -> None:
    """Every principal and key that can be stands in a secret whole, and no secret is longer than is let in."""
    authority = AuthorityKey(b"k" * 32)
    for claim in (
        ClaimId("a", LEASE, "k"),
        ClaimId("x" * 64, LEASE, "~ key with blanks " + "k" * 238),
        ClaimId("a@b.c_d-e", LEASE, '"'),
    ):
        secret = claim_secret(authority, claim, "digest")
        assert claim_in(secret) == claim
        assert len(secret) <= CLAIM_SECRET_CHARS_MAX
        assert is_claim_secret_of_ours(authority, claim_secret(authority, claim, "another"), claim)
        assert not is_claim_secret_of_ours(AuthorityKey(b"l" * 32), secret, claim)
    for wrong in ("holdc_", "holdc_" + "A" * 43, "holdc_é_" + "A" * 43, "holdc_AA_" + "A" * 43, ""):
        assert claim_in(wrong) is None


def test_ordinary_tokens_cost_no_hmac(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what looks like a derived secret is derived again: a token, right or wrong, costs no HMAC."""
    asked: list[str] = []
    monkeypatch.setattr(AuthorityKey, "mac", lambda _self, purpose, _text: asked.append(purpose))
    auth = Auth(StaticTokens([f"ana:{callers.ALICE}"]), AuthorityKey(b"k" * 32))
    for _ in range(3):
        assert auth.identify(f"Bearer {callers.ALICE}".encode(), State(), 0).principal == "ana"
        with pytest.raises(WrongTokenError):
            auth.identify(b"Bearer not-a-token-of-ours", State(), 0)
    assert asked == []
