"""The lock API as calls: one method per route, answers as they came."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from tests.support.http import Answer, Client, EventStream
from tests.support.server import ServerProcess


class Api(Client):
    """A caller of the lock API. Fields given as keywords make the JSON body; a field that is not given is not sent."""

    @classmethod
    def of(cls, server: ServerProcess, token: str | None) -> Api:
        """A caller of this server with this token."""
        return cls(server.host, server.port, token)

    def acquire(self, name: str, *, key: str | None = None, on_held: str | None = None, **fields: object) -> Answer:
        """POST /locks/{name}/acquire."""
        query = f"?on_held={on_held}" if on_held else ""
        return self.post(f"{lock_path(name)}/acquire{query}", fields, headers=_keyed(key))

    def renew(self, name: str, lease_id: object, *, key: str | None = None, **fields: object) -> Answer:
        """POST /locks/{name}/renew."""
        return self.post(f"{lock_path(name)}/renew", {"lease_id": lease_id, **fields}, headers=_keyed(key))

    def release(self, name: str, lease_id: object, *, key: str | None = None, **fields: object) -> Answer:
        """POST /locks/{name}/release."""
        return self.post(f"{lock_path(name)}/release", {"lease_id": lease_id, **fields}, headers=_keyed(key))

    def status(self, name: str) -> Answer:
        """GET /locks/{name}."""
        return self.get(lock_path(name))

    def locks(self, **query: object) -> Answer:
        """GET /locks."""
        return self.get("/locks" + (f"?{urlencode(query, doseq=True)}" if query else ""))

    def watch_lock(self, name: str) -> EventStream:
        """GET /locks/{name}/watch."""
        return self.watch(f"{lock_path(name)}/watch")

    def claims(self, *, key: str | None = None, on_held: str | None = None, **fields: object) -> Answer:
        """POST /claims."""
        query = f"?on_held={on_held}" if on_held else ""
        return self.post(f"/claims{query}", fields, headers=_keyed(key))

    def leave(self, ticket: str) -> Answer:
        """DELETE /tickets/{id}."""
        return self.delete(f"/tickets/{ticket}")

    def transfer(self, name: str, lease_id: object, *, key: str | None = None, **fields: object) -> Answer:
        """POST /locks/{name}/transfer."""
        return self.post(f"{lock_path(name)}/transfer", {"lease_id": lease_id, **fields}, headers=_keyed(key))

    def hand_over(self, name: str, *, key: str | None = None, **fields: object) -> Answer:
        """POST /locks/{name}/transfer without the lease id, as an operator."""
        return self.post(f"{lock_path(name)}/transfer", fields, headers=_keyed(key))

    def check(self, name: str, fencing_token: object) -> Answer:
        """POST /locks/{name}/check."""
        return self.post(f"{lock_path(name)}/check", {"fencing_token": fencing_token})

    def revoke(self, name: str, *, key: str | None = None, **fields: object) -> Answer:
        """POST /locks/{name}/revoke."""
        return self.post(f"{lock_path(name)}/revoke", fields, headers=_keyed(key))

    def reopen(self, name: str, *, key: str | None = None, **fields: object) -> Answer:
        """POST /locks/{name}/reopen."""
        return self.post(f"{lock_path(name)}/reopen", fields, headers=_keyed(key))

    def why(self, name: str) -> Answer:
        """GET /locks/{name}/why."""
        return self.get(f"{lock_path(name)}/why")

    def history(self, name: str, **query: object) -> Answer:
        """GET /locks/{name}/history."""
        return self.get(f"{lock_path(name)}/history" + (f"?{urlencode(query)}" if query else ""))

    def events(self, *, last_event_id: str | None = None, **query: object) -> EventStream:
        """GET /events."""
        path = "/events" + (f"?{urlencode(query, doseq=True)}" if query else "")
        headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
        return EventStream(self.host, self.port, path, token=self.token, headers=headers)

    def watch_leases(self, leases: dict[str, str] | None = None, sessions: list[str] | None = None) -> EventStream:
        """POST /leases/watch."""
        body = {"leases": leases or {}, "sessions": sessions or []}
        return EventStream(self.host, self.port, "/leases/watch", token=self.token, body=body)

    def add_to_lease_watch(self, stream: str, **fields: object) -> Answer:
        """POST /lease-watches/{id}."""
        return self.post(f"/lease-watches/{stream}", fields)

    def sessions(self) -> Answer:
        """GET /sessions."""
        return self.get("/sessions")

    def renew_all(self, session_id: str) -> Answer:
        """POST /sessions/{id}/renew-all."""
        return self.post(f"/sessions/{session_id}/renew-all")

    def create_session(self, *, key: str | None = None, **fields: object) -> Answer:
        """POST /sessions."""
        return self.post("/sessions", fields, headers=_keyed(key))

    def session(self, session_id: str) -> Answer:
        """GET /sessions/{id}."""
        return self.get(f"/sessions/{session_id}")

    def keepalive(self, session_id: str) -> Answer:
        """POST /sessions/{id}/keepalive."""
        return self.post(f"/sessions/{session_id}/keepalive")

    def end_session(self, session_id: str) -> Answer:
        """DELETE /sessions/{id}."""
        return self.delete(f"/sessions/{session_id}")

    def acquired(self, name: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - passed on as it is
        """Acquire, insist that it was granted, and return the JSON."""
        answer = self.acquire(name, **fields)
        body: dict[str, Any] = answer.json()
        assert (answer.status, body.get("status")) == (200, "acquired"), f"not acquired: {answer}"
        return body

    def held(self, name: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - passed on as it is
        """Try to acquire, insist that it is held by another, and return the JSON."""
        answer = self.acquire(name, **fields)
        body: dict[str, Any] = answer.json()
        assert (answer.status, body.get("status")) == (200, "held"), f"not held: {answer}"
        return body

    def new_session(self, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - passed on as it is
        """Create a session, insist on success, and return the JSON."""
        answer = self.create_session(**fields)
        assert answer.status == 201, f"no session: {answer}"
        body: dict[str, Any] = answer.json()
        return body


def lock_path(name: str) -> str:
    """The path of a name, as one percent-encoded segment (N2)."""
    return "/locks/" + quote(name, safe="")


def _keyed(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Idempotency-Key": key}
