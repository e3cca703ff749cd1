"""What ends with a token: its sessions and their secrets, its places in line, its waits and its streams (S5)."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import refused, unique, wait_until
from tests.support.http import Answer
from tests.support.pending import waiting
from tests.support.server import ServerProcess

AT_ONCE_SECONDS = 10.0
"""Much less than the time to the next keepalive of a stream, or than the waits here."""


class Worker:
    """A token with a session, and callers for both."""

    def __init__(self, operator: Api, **fields: object) -> None:
        self.operator = operator
        self.name = unique("worker")
        answer = operator.post("/tokens", {"name": self.name, **fields})
        assert answer.status == 201, answer
        self.token = self.with_secret(answer.json()["token"])
        self.session_id, self.run = self.open_session(self.token)

    def with_secret(self, secret: str) -> Api:
        return Api(self.operator.host, self.operator.port, secret)

    def open_session(self, token: Api, **fields: object) -> tuple[str, Api]:
        opened = token.new_session(ttl_seconds=600, **fields)
        return opened["session_id"], self.with_secret(opened["session_secret"])

    def rotated(self, **body: object) -> Api:
        answer = self.operator.post(f"/tokens/{self.name}/rotate", body)
        assert answer.status == 200, answer
        return self.with_secret(answer.json()["token"])

    def revoke(self, query: str = "") -> None:
        assert self.operator.delete(f"/tokens/{self.name}{query}").status == 204


@pytest.fixture
def worker(operator: Api) -> Worker:
    return Worker(operator)


def shut_out(answer: Answer) -> None:
    refused(answer, 401, "authentication_failed")


def test_revoking_ends_what_is_bound(worker: Worker, operator: Api, name: str) -> None:
    """Sessions and their claims end with the token; a plain claim lives on, for the next token of that name."""
    worker.run.acquired(f"{name}-bound")
    lease = worker.token.acquired(f"{name}-plain", ttl_seconds=600)
    worker.revoke()
    assert operator.status(f"{name}-bound").json()["status"] == "free"
    assert operator.status(f"{name}-plain").json()["status"] == "held"
    again = operator.post("/tokens", {"name": worker.name}).json()["token"]
    heir = worker.with_secret(again)
    assert heir.renew(f"{name}-plain", lease["lease_id"]).status == 200
    assert heir.sessions().json()["sessions"] == []
    refused(worker.run.locks(), 410, "session_expired")
    events = operator.history(f"{name}-bound").json()
    assert "session_ended" in str(events)


@pytest.mark.parametrize("how", ["revoke", "keep", "rotate", "rotate and keep"])
def test_old_secrets_are_dead(worker: Worker, operator: Api, how: str) -> None:
    """A session's secret dies with its token, whatever becomes of the session, and no later token brings it back."""
    if how.startswith("rotate"):
        worker.rotated(keep_sessions=how.endswith("keep"))
    else:
        worker.revoke("?keep_sessions=true" if how == "keep" else "")
        assert operator.post("/tokens", {"name": worker.name}).status == 201
    shut_out(worker.token.locks())
    answer = worker.run.locks()
    assert (answer.status, answer.json()["code"]) in {(401, "authentication_failed"), (410, "session_expired")}, answer


def test_remaining_session_has_a_new_secret(worker: Worker, name: str) -> None:
    """With `keep_sessions` the session, its claims and its places live on; its new secret comes with the new token."""
    key = unique("key")
    opened = worker.token.create_session(key=key, ttl_seconds=600, name="night run").json()
    run = worker.with_secret(opened["session_secret"])
    lease = run.acquired(name, ttl_seconds=600)
    token = worker.rotated(keep_sessions=True)
    shut_out(run.renew(name, lease["lease_id"]))
    path = f"/sessions/{opened['session_id']}/secret"
    answer = token.post(path)
    assert answer.status == 200 and set(answer.json()) == {"session_id", "session_secret"}, answer
    secret = answer.json()["session_secret"]
    assert secret != opened["session_secret"]
    retried = token.create_session(key=key, ttl_seconds=600, name="night run").json()
    assert (retried["session_id"], retried["session_secret"]) == (opened["session_id"], secret)
    assert worker.with_secret(secret).renew(name, lease["lease_id"]).status == 200
    refused(worker.with_secret(secret).post(path), 403, "forbidden")
    refused(token.post(f"/sessions/{lease['lease_id']}/secret"), 404, "not_found")


def test_waits_end_at_once(worker: Worker, alice: Api, name: str) -> None:
    """Whoever waits with a token that is revoked is told so at once, and its place is gone."""
    alice.acquired(name, ttl_seconds=600)
    with waiting(worker.token, name) as plain, waiting(worker.run, name, owner="run") as bound:
        worker.revoke()
        for request in (plain, bound):
            shut_out(request.answer(AT_ONCE_SECONDS))
    assert alice.status(name).json()["waiting"] == 0
    assert alice.why(name).json()["waiting"] == []


def test_bound_ticket_remains_with_its_session(worker: Worker, alice: Api, name: str) -> None:
    """With `keep_sessions` a waiter is answered too. Its place stays, blocks nobody, and is had by the new secret."""
    lease = alice.acquired(name, ttl_seconds=600)
    with waiting(worker.run, name, owner="run") as bound, waiting(worker.token, name) as plain:
        token = worker.rotated(keep_sessions=True)
        for request in (bound, plain):
            shut_out(request.answer(AT_ONCE_SECONDS))
    assert alice.status(name).json()["waiting"] == 0
    assert [each["owner"] for each in alice.why(name).json()["waiting"]] == ["run"]
    secret = token.post(f"/sessions/{worker.session_id}/secret").json()["session_secret"]
    with waiting(worker.with_secret(secret), name, owner="run") as again:
        alice.release(name, lease["lease_id"])
        assert again.json()["status"] == "acquired"


@pytest.mark.parametrize("query", ["", "?keep_sessions=true"])
def test_streams_end_at_once(worker: Worker, alice: Api, name: str, query: str) -> None:
    """The streams of a token and of its sessions end with it, also those of quiet names; nobody else's do."""
    streams = [
        caller.events() if kind == "events" else caller.watch_lock(name)
        for caller in (worker.token, worker.run)
        for kind in ("events", "watch")
    ]
    other = alice.watch_lock(name)
    other.next()
    worker.revoke(query)
    for stream in streams:
        assert stream.wait_for_end(AT_ONCE_SECONDS)
        stream.close()
    assert not other.wait_for_end(0.2)
    other.close()


def test_stream_of_a_session_ends_with_it(worker: Worker, name: str) -> None:
    """A stream that was opened with a session's secret ends when the session does; the token's own goes on."""
    mine, its = worker.token.watch_lock(name), worker.run.watch_lock(name)
    assert worker.token.end_session(worker.session_id).status == 204
    assert its.wait_for_end(AT_ONCE_SECONDS)
    assert not mine.wait_for_end(0.2)
    for stream in (mine, its):
        stream.close()


def test_quiet_stream_of_an_expired_token_ends(operator: Api, name: str) -> None:
    """A token that expires loses the stream of a quiet name by the next keepalive."""
    worker = Worker(operator, expires_in_seconds=2)
    with worker.token.watch_lock(name) as stream:
        stream.next()
        assert stream.wait_for_end(20)


def test_rotation_keeps_rights_and_plain_claims(operator: Api, name: str) -> None:
    """A rotated token has the rights of the one before, and what that held; its expiry is what is asked for."""
    worker = Worker(operator, scopes=["read", "claim"], prefix=f"{name}/")
    lease = worker.token.acquired(f"{name}/job", ttl_seconds=600)
    answer = operator.post(f"/tokens/{worker.name}/rotate")
    body = answer.json()
    assert (body["scopes"], body["prefix"], body["expires_at"]) == (["read", "claim"], f"{name}/", None)
    token = worker.with_secret(body["token"])
    assert token.renew(f"{name}/job", lease["lease_id"]).status == 200
    shut_out(worker.token.locks())
    path = f"/tokens/{worker.name}/rotate"
    assert operator.post(path, {"expires_in_seconds": 60}).json()["expires_at"]
    again = operator.post(path).json()
    lives = datetime.fromisoformat(again["expires_at"]) - datetime.fromisoformat(again["created_at"])
    assert 59 <= lives.total_seconds() <= 60, "a rotation alone keeps the lifetime"
    refused(operator.post(path, {"expires_in_seconds": 60, "never_expires": True}), 400, "invalid_input")
    assert operator.post(path, {"never_expires": True}).json()["expires_at"] is None
    refused(operator.post(f"/tokens/{worker.name}/rotate", {"expires_in_seconds": 0}), 400, "invalid_input")
    refused(operator.delete(f"/tokens/{worker.name}?keep_sessions=maybe"), 400, "invalid_input")


def test_one_may_rotate_itself(operator: Api) -> None:
    """An operator's token can replace itself, and the old one is out."""
    admin = Worker(operator, scopes=["read", "claim", "admin"])
    answer = admin.token.post(f"/tokens/{admin.name}/rotate")
    assert answer.status == 200
    shut_out(admin.token.get("/tokens"))
    assert admin.with_secret(answer.json()["token"]).get("/tokens").status == 200


def keyed(api: Api, path: str, key: str, body: object) -> Answer:
    return api.post(path, body, headers={"Idempotency-Key": key})


@pytest.mark.parametrize("rotates", [False, True])
def test_retry_repeats_the_token(operator: Api, name: str, *, rotates: bool) -> None:
    """C5: a retry with its key is told the same token, and 404 once that is revoked or replaced: never another's."""
    path, body = (f"/tokens/{name}/rotate", {}) if rotates else ("/tokens", {"name": name})
    if rotates:
        assert operator.post("/tokens", {"name": name}).status == 201
    first = keyed(operator, path, f"{name}-key", body)
    again = keyed(operator, path, f"{name}-key", body)
    assert first.status in {200, 201} and again.json() == first.json()
    other = operator.post(f"/tokens/{name}/rotate").json()["token"]
    late = keyed(operator, path, f"{name}-key", body)
    refused(late, 404, "not_found")
    assert other not in late.text


def test_same_key_later_makes_another_token(tmp_path: Path) -> None:
    """C5: once a key is forgotten, it makes another string: a token that was revoked never works again."""
    settings: dict[str, object] = {"retry_memory_seconds": 1}
    with ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server:
        operator = Api.of(server, callers.OPERATOR)
        first = keyed(operator, "/tokens", "key", {"name": "ci"}).json()["token"]
        assert operator.delete("/tokens/ci").status == 204

        def made() -> Any:  # noqa: ANN401 - JSON
            # Time passes in the server when something is asked of it.
            operator.acquire(unique(), ttl_seconds=1)
            answer = keyed(operator, "/tokens", "key", {"name": "ci"})
            return answer.status == 201 and answer.json()["token"]

        second = wait_until(made)
        assert second != first
        shut_out(Api.of(server, first).locks())


def test_static_token_that_changed_has_other_secrets(tmp_path: Path) -> None:
    """S5: a static token replaced at a restart makes the secrets of its sessions others, without a record."""
    old, new = "alice-0123456789abcdef", "alice-fedcba9876543210"
    with ServerProcess.start(tmp_path / "data", tokens=f"alice:{old}") as server:
        opened = Api.of(server, old).new_session(ttl_seconds=600)
        Api.of(server, opened["session_secret"]).acquired("job", ttl_seconds=600)
    with ServerProcess.start(tmp_path / "data", tokens=f"alice:{new}") as server:
        shut_out(Api.of(server, opened["session_secret"]).locks())
        alice = Api.of(server, new)
        assert alice.status("job").json()["status"] == "held"
        secret = alice.post(f"/sessions/{opened['session_id']}/secret").json()["session_secret"]
        assert Api.of(server, secret).locks().status == 200


def test_invalid_secret_is_distinguished_from_a_guess(tmp_path: Path) -> None:
    """A secret that was right once is not counted as a wrong token; a guess is, though the session is there."""
    settings: dict[str, object] = {"wrong_tokens_per_minute_max": 3}
    with ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server:
        worker = Worker(Api.of(server, callers.OPERATOR))
        secret = str(worker.run.token)
        _, over = worker.open_session(worker.token)
        assert over.sessions().status == 200
        worker.token.end_session(over.sessions().json()["sessions"][0]["session_id"])
        worker.rotated(keep_sessions=True)
        for _ in range(6):
            shut_out(worker.run.locks())
            refused(over.locks(), 410, "session_expired")
        guess = secret[:-20] + ("A" * 20 if not secret.endswith("A" * 20) else "B" * 20)
        codes = {worker.with_secret(guess).locks().json()["code"] for _ in range(6)}
        assert codes == {"authentication_failed", "too_many_wrong_tokens"}
