"""Runs that speak to the gateway: a session each, known by its secret, as Action Llama's containers are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from tests.support.api import Api
from tests.support.checks import unique
from tests.support.http import Answer


class Run:
    """One run: its session, and the gateway's routes as calls."""

    def __init__(self, api: Api, agent: str = "agent", *, ttl_seconds: int = 600, **fields: object) -> None:
        """Open the session with the caller's token; after that only its secret is used."""
        self.api = api
        self.name = unique(agent)
        opened = api.new_session(**{"name": self.name, "ttl_seconds": ttl_seconds, **fields})
        self.session_id: str = opened["session_id"]
        self.secret: str = opened["session_secret"]

    def rlock(self, key: str, **fields: object) -> Answer:
        """POST /locks/acquire."""
        return self.post("acquire", key, fields)

    def runlock(self, key: str, *, idempotency_key: str | None = None, **fields: object) -> Answer:
        """POST /locks/release."""
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        return self.post("release", key, fields, headers=headers)

    def heartbeat(self, key: str, **fields: object) -> Answer:
        """POST /locks/heartbeat."""
        return self.post("heartbeat", key, fields)

    def post(
        self, verb: str, key: str, fields: Mapping[str, object] | None = None, *, headers: dict[str, str] | None = None
    ) -> Answer:
        body = {"secret": self.secret, "resourceKey": key, **(fields or {})}
        return self.api.post(f"/locks/{verb}", body, token=None, headers=headers or {})

    def locks(self) -> list[dict[str, Any]]:
        """GET /locks/list, which must succeed."""
        answer = self.api.get(f"/locks/list?secret={quote(self.secret)}", token=None)
        assert answer.status == 200, answer
        found: list[dict[str, Any]] = answer.json()
        return found

    def has(self, key: str) -> bool:
        """Whether the run has a resource."""
        return any(lock["resourceKey"] == key for lock in self.locks())

    def end(self) -> None:
        """End the session, as whoever started the run does."""
        assert self.api.end_session(self.session_id).status == 204


def locked(run: Run, key: str, **fields: object) -> None:
    """The run gets the resource."""
    answered(run.rlock(key, **fields), 200, {"ok": True, "resourceKey": key})


def answered(answer: Answer, status: int, body: object) -> None:
    """The answer is this, field by field, and has a request id that is not in the body."""
    assert (answer.status, answer.json()) == (status, body), answer
    assert answer.text.startswith('{"ok":'), "shell scripts look at how it begins"
    assert answer.content_type == "application/json" and answer.request_id, answer


def resource() -> str:
    """A key no other test uses."""
    return f"test://{unique()}/1"
