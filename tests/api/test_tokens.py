"""Bearer tokens: made, listed and revoked by operators, hashed at rest, scoped, confined, expiring; static ones; the
first one.
"""

from __future__ import annotations

import hashlib
import re
import stat
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import refused, seconds_from_now, unique, wait_until
from tests.support.http import Answer
from tests.support.server import ServerFailed, ServerProcess

TOKEN = re.compile(r"hold_[0-9A-Za-z]{36}")


def _create(operator: Api, **fields: object) -> dict[str, Any]:
    answer = operator.post("/tokens", {"name": unique("token"), **fields})
    assert answer.status == 201, answer
    body: dict[str, Any] = answer.json()
    return body


def _listed(answer: Answer) -> list[dict[str, Any]]:
    """The rows of a listing. (The documents do not say whether they are wrapped.)"""
    assert answer.status == 200, answer
    body = answer.json()
    rows: list[dict[str, Any]] = body["tokens"] if isinstance(body, dict) else body
    return rows


def _as(api: Api, token: str) -> Api:
    return Api(api.host, api.port, token)


def _typo(token: str, index: int) -> str:
    return token[:index] + ("a" if token[index] != "a" else "b") + token[index + 1 :]


# Making, listing, revoking.


def test_token_is_made(operator: Api, name: str) -> None:
    """A token is 201 with its name, itself, scopes, prefix and expiry, and works at once."""
    answer = operator.post("/tokens", {"name": name})
    assert answer.status == 201
    body = answer.json()
    assert body["name"] == name
    assert TOKEN.fullmatch(body["token"])
    assert set(body["scopes"]) <= {"read", "claim", "admin"} and body["scopes"]
    assert "admin" not in body["scopes"]
    assert (body["prefix"], body["expires_at"]) == (None, None)
    _as(operator, body["token"]).acquired(name)


def test_tokens_differ(operator: Api) -> None:
    """No two tokens are alike."""
    assert len({_create(operator)["token"] for _ in range(5)}) == 5


def test_list_shows_neither_token_nor_hash(operator: Api) -> None:
    """The list has name, scopes, prefix and expiry of every token, and nothing one could use or guess from."""
    made = _create(operator, scopes=["read"], prefix="team/", expires_in_seconds=600)
    answer = operator.get("/tokens")
    row = next(row for row in _listed(answer) if row["name"] == made["name"])
    assert (row["scopes"], row["prefix"]) == (["read"], "team/")
    assert 590 < seconds_from_now(row["expires_at"]) <= 601
    secret = made["token"]
    for hidden in (secret, secret[5:35], hashlib.sha256(secret.encode()).hexdigest()):
        assert hidden not in answer.text


def test_name_is_taken_once(operator: Api) -> None:
    """A second token of the same name is 409 `conflict`; the first goes on."""
    made = _create(operator)
    refused(operator.post("/tokens", {"name": made["name"]}), 409, "conflict")
    assert _as(operator, made["token"]).locks().status == 200


def test_revoked_token_is_shut_out_at_once(operator: Api, name: str) -> None:
    """A revoked token is 401 with the next request; its leases live on, and its name may be given again."""
    made = _create(operator)
    holder = _as(operator, made["token"])
    lease = holder.acquired(name)
    answer = operator.delete(f"/tokens/{made['name']}")
    assert (answer.status, answer.body) == (204, b"")
    refused(holder.locks(), 401, "authentication_failed")
    refused(holder.renew(name, lease["lease_id"]), 401, "authentication_failed")
    assert operator.status(name).json()["status"] == "held"
    # The principal is the name of the token, so a rotated token keeps its leases (L3).
    again = _create(operator, name=made["name"])
    assert again["token"] != made["token"]
    assert _as(operator, again["token"]).renew(name, lease["lease_id"]).status == 200
    refused(holder.locks(), 401, "authentication_failed")


def test_unknown_token_cannot_be_revoked(operator: Api) -> None:
    """Revoking a name nobody has, or twice, is 404 `not_found`."""
    refused(operator.delete(f"/tokens/{unique()}"), 404, "not_found")
    made = _create(operator)
    assert operator.delete(f"/tokens/{made['name']}").status == 204
    refused(operator.delete(f"/tokens/{made['name']}"), 404, "not_found")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": None},
        {"name": 5},
        {"name": ""},
        {"name": "a:b"},
        {"name": "a,b"},
        {"name": "a b"},
        {"name": "x" * 300},
        {"name": "ok", "scopes": ["everything"]},
        {"name": "ok", "scopes": "read"},
        {"name": "ok", "expires_in_seconds": 0},
        {"name": "ok", "expires_in_seconds": -5},
        {"name": "ok", "expires_in_seconds": "soon"},
        {"name": "ok", "prefix": 5},
        {"name": "ok", "scope": ["read"]},
    ],
)
def test_bad_token_requests_are_refused(operator: Api, body: dict[str, object]) -> None:
    """A token without a usable name, with unknown scopes, a bad expiry or an unknown field is 400 or 422."""
    refused(operator.post("/tokens", body), (400, 422), "invalid_input")
    assert "ok" not in {row["name"] for row in _listed(operator.get("/tokens"))}


def test_token_expires(operator: Api) -> None:
    """A token with an expiry works until then and is 401 after it."""
    made = _create(operator, expires_in_seconds=2)
    assert 0 < seconds_from_now(made["expires_at"]) <= 3
    short = _as(operator, made["token"])
    assert short.locks().status == 200
    wait_until(lambda: short.locks().status == 401)
    refused(short.locks(), 401, "authentication_failed")


@pytest.mark.parametrize("index", [5, 20, 35, 40])
def test_typo_is_refused(operator: Api, index: int) -> None:
    """One wrong character, in the random part or in the checksum, is 401 `authentication_failed`."""
    made = _create(operator)
    refused(operator.get("/locks", token=_typo(made["token"], index)), 401, "authentication_failed")
    refused(operator.get("/locks", token=made["token"][:-1]), 401, "authentication_failed")


def test_token_routes_are_for_operators(alice: Api, nobody: Api, operator: Api) -> None:
    """Without a token `/tokens` is 401, without the admin scope 403, and nothing happens."""
    name = unique()
    remaining = _create(operator)["name"]
    for api, status, code in ((alice, 403, "forbidden"), (nobody, 401, "authentication_required")):
        refused(api.post("/tokens", {"name": name}), status, code)
        refused(api.get("/tokens"), status, code)
        refused(api.delete(f"/tokens/{remaining}"), status, code)
    names = {row["name"] for row in _listed(operator.get("/tokens"))}
    assert remaining in names and name not in names


# Scopes and prefixes.


def test_read_only_token_cannot_claim(server: ServerProcess, operator: Api, alice: Api, name: str) -> None:
    """A token with the scope `read` alone reads and watches; acquire, renew, release and sessions are 403
    `forbidden`.
    """
    lease = alice.acquired(name)
    made = _as(operator, _create(operator, scopes=["read"])["token"])
    for reader in (made, Api.of(server, callers.READER)):
        assert reader.status(name).json()["status"] == "held"
        assert reader.locks(prefix=name).json()["total"] == 1
        with reader.watch_lock(name) as stream:
            assert stream.next().json()["event"] == "acquired"
        refused(reader.acquire(unique()), 403, "forbidden")
        refused(reader.renew(name, lease["lease_id"]), 403, "forbidden")
        refused(reader.release(name, lease["lease_id"]), 403, "forbidden")
        refused(reader.create_session(), 403, "forbidden")
        refused(reader.get("/tokens"), 403, "forbidden")


def test_token_is_confined_to_its_prefix(operator: Api, alice: Api, name: str) -> None:
    """A token with a prefix may touch only names under it: anything else is 403 on every route."""
    outside = f"{name}-b/x"
    alice.acquired(outside)
    confined = _as(operator, _create(operator, prefix=f"{name}-a/")["token"])
    lease = confined.acquired(f"{name}-a/x")
    assert confined.status(f"{name}-a/x").json()["status"] == "held"
    lease_id = str(uuid.uuid4())
    for answer in (
        confined.acquire(outside),
        confined.acquire(f"{name}-a"),
        confined.status(outside),
        confined.renew(outside, lease_id),
        confined.release(outside, lease_id),
        confined.get(f"/locks/{name}-b/x/watch"),
    ):
        refused(answer, 403, "forbidden")
    assert confined.release(f"{name}-a/x", lease["lease_id"]).status == 200


def test_list_of_a_confined_token(operator: Api, alice: Api, name: str) -> None:
    """A confined token's list is silently scoped to its prefix, which is echoed; a foreign prefix is 403."""
    for tail in ("a/1", "a/2", "b/1"):
        alice.acquired(f"{name}-{tail}")
    prefix = f"{name}-a/"
    confined = _as(operator, _create(operator, prefix=prefix)["token"])
    body = confined.locks().json()
    assert body["prefix"] == prefix
    assert [lock["name"] for lock in body["locks"]] == [f"{prefix}1", f"{prefix}2"]
    assert body["total"] == 2
    body = confined.locks(prefix=f"{prefix}1").json()
    assert (body["prefix"], [lock["name"] for lock in body["locks"]]) == (f"{prefix}1", [f"{prefix}1"])
    refused(confined.locks(prefix=f"{name}-b/"), 403, "forbidden")
    refused(confined.locks(prefix=name), 403, "forbidden")


# At rest, and over restarts.


def test_tokens_survive_a_restart_as_hashes(tmp_path: Path) -> None:
    """Tokens and revocations survive a stop and a kill; the data directory, write-ahead log and all, never holds one
    in clear.
    """
    data = tmp_path / "data"
    server = ServerProcess.start(data, tokens=callers.TOKENS)
    try:
        operator = Api.of(server, callers.OPERATOR)
        remaining, revoked = _create(operator), _create(operator)
        assert operator.delete(f"/tokens/{revoked['name']}").status == 204
        for stop in (ServerProcess.terminate, ServerProcess.kill):
            _assert_nowhere(data, remaining["token"], revoked["token"], callers.OPERATOR)
            stop(server)
            _assert_nowhere(data, remaining["token"], revoked["token"], callers.OPERATOR)
            assert remaining["token"] not in server.log and callers.OPERATOR not in server.log
            server = server.restart()
            assert _as(operator, remaining["token"]).locks().status == 200
            refused(operator.get("/locks", token=revoked["token"]), 401, "authentication_failed")
            assert remaining["name"] in {row["name"] for row in _listed(operator.get("/tokens"))}
    finally:
        server.kill()


def _assert_nowhere(folder: Path, *secrets: str) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        content = path.read_bytes()
        for secret in secrets:
            # The random part alone must not be there either.
            assert secret.encode() not in content and secret.encode()[5:35] not in content, path


def test_authority_key_is_private(tmp_path: Path) -> None:
    """S5: the key that session secrets are derived from is a file nobody else can read."""
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        Api.of(server, callers.ALICE).new_session()
        # Its name is not documented; whatever is called a key must be private.
        for path in (tmp_path / "data").rglob("*"):
            if path.is_file() and ("key" in path.name or "secret" in path.name):
                assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


# Static tokens.


@pytest.mark.parametrize(
    ("tokens", "secret"),
    [
        ("alice:short-012345678", "short-012345678"),
        ("alice:has blank 0123456789", "blank 0123456789"),
        ("alice:has\ttab-0123456789", "tab-0123456789"),
        ("alice:has:colon-0123456789", "colon-0123456789"),
        ("alice:long-enough-012345:second-part-012345", "second-part-012345"),
        ("alice:has,comma-0123456789abcdef", "comma-0123456789abcdef"),
        ("alice:token-0123456789ab:read+everything", "token-0123456789ab"),
        (":nameless-0123456789", "nameless-0123456789"),
        ("alice:${TOKEN_OF_ALICE}", "${TOKEN_OF_ALICE}"),
        ("alice:YOUR-TOKEN-GOES-HERE:admin", "YOUR-TOKEN-GOES-HERE"),
        ("alice:change_me_change_me", "change_me_change_me"),
        ("alice:xxxxxxxxxxxxxxxxxxxxxxxx", "xxxxxxxxxxxxxxxxxxxxxxxx"),
        ("alice:", "alice:"),
        ("alice", "alice"),
    ],
)
def test_bad_static_tokens_stop_the_start(tmp_path: Path, tokens: str, secret: str) -> None:
    """A static token that is too short, has blanks, `:` or `,`, has unknown scopes or only stands where one belongs
    stops the start with a clear message that does not show it.
    """
    with pytest.raises(ServerFailed) as failed:
        ServerProcess.start(tmp_path / "data", tokens=tokens).kill()
    output, returncode = failed.value.output, failed.value.returncode
    assert returncode is not None and 64 <= returncode <= 78, (returncode, output)
    assert "token" in output.lower()
    assert "Traceback" not in output
    if len(secret) >= 14:
        assert secret not in output


def test_sixteen_characters_are_enough(tmp_path: Path) -> None:
    """A static token of 16 characters is taken; entries are separated by commas or newlines; scopes are joined by
    `+`.
    """
    tokens = "alice:0123456789abcdef,bob:bob-0123456789ab\nroot:root-0123456789a:read+claim+admin\n"
    with ServerProcess.start(tmp_path / "data", tokens=tokens) as server:
        Api.of(server, "0123456789abcdef").acquired("job")
        assert Api.of(server, "bob-0123456789ab").held("job")["status"] == "held"
        refused(Api.of(server, "bob-0123456789ab").get("/tokens"), 403, "forbidden")
        assert Api.of(server, "root-0123456789a").get("/tokens").status == 200
        assert not (server.config_home / "holdfast" / "token").exists()


def test_tokens_from_a_file(tmp_path: Path) -> None:
    """HOLDFAST_TOKENS_FILE names a file of static tokens; one that is not there stops the start."""
    file = tmp_path / "tokens"
    file.write_text("alice:alice-0123456789abcdef\nroot:root-0123456789abcdef:read+claim+admin\n")
    file.chmod(0o600)
    with ServerProcess.start(tmp_path / "data", env={"HOLDFAST_TOKENS_FILE": str(file)}) as server:
        Api.of(server, "alice-0123456789abcdef").acquired("job")
        assert Api.of(server, "root-0123456789abcdef").get("/tokens").status == 200
    with pytest.raises(ServerFailed) as failed:
        ServerProcess.start(tmp_path / "other", env={"HOLDFAST_TOKENS_FILE": str(tmp_path / "nowhere")}).kill()
    assert failed.value.returncode is not None and 64 <= failed.value.returncode <= 78, failed.value.output
    assert "nowhere" in failed.value.output


def test_removed_static_token_is_shut_out(tmp_path: Path) -> None:
    """A static token that is no longer in the environment is 401 after the restart; its leases live on."""
    server = ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS)
    try:
        lease = Api.of(server, callers.ALICE).acquired("job", ttl_seconds=600)
        assert server.terminate() == 0
        server = server.restart(tokens=f"bob:{callers.BOB},alice:alice-has-a-new-token")
        refused(Api.of(server, callers.ALICE).locks(), 401, "authentication_failed")
        assert Api.of(server, callers.BOB).held("job")["status"] == "held"
        assert Api.of(server, "alice-has-a-new-token").renew("job", lease["lease_id"]).status == 200
    finally:
        server.kill()


# The first start.


def test_first_start_makes_a_token(tmp_path: Path) -> None:
    """The first start on loopback with no token makes one with every scope, keeps it privately, says where, and keeps
    it for good.
    """
    server = ServerProcess.start(tmp_path / "data")
    try:
        file = server.config_home / "holdfast" / "token"
        token = file.read_text().strip()
        assert TOKEN.fullmatch(token)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        wait_until(lambda: str(file) in server.log)
        assert token not in server.log
        assert (server.config_home / "holdfast" / "client.toml").is_file()
        local = Api.of(server, token)
        lease = local.acquired("job", ttl_seconds=600)
        assert local.get("/tokens").status == 200
        refused(Api.of(server, None).locks(), 401, "authentication_required")
        assert server.terminate() == 0
        _assert_nowhere(tmp_path / "data", token)
        server = server.restart()
        assert file.read_text().strip() == token
        assert local.renew("job", lease["lease_id"]).status == 200
    finally:
        server.kill()


def test_a_dead_session_secret(server: ServerProcess) -> None:
    """S5: a secret is 410 once its session is over, by its token's end too, and 401 while the session lives on."""
    operator = Api.of(server, callers.OPERATOR)
    for query, status in (("", 410), ("?keep_sessions=true", 401)):
        name = unique("dead")
        token = operator.post("/tokens", {"name": name}).json()["token"]
        secret = Api.of(server, token).new_session()["session_secret"]
        assert operator.delete(f"/tokens/{name}{query}").status == 204
        assert Api.of(server, secret).get("/locks").status == status
