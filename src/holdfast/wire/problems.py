"""Every way to say no over HTTP: a stable code, its status and label, and the envelope around them.

`details` says what to do next. `retry_after_ms` is there only when a retry can help.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Kind(msgspec.Struct, frozen=True):
    status: int
    label: str


KINDS: dict[str, Kind] = {
    "authentication_required": Kind(401, "Authorization header required"),
    "authentication_failed": Kind(401, "Authentication failed"),
    "forbidden": Kind(403, "Forbidden"),
    "lock_limit_exceeded": Kind(403, "Lock limit exceeded"),
    "invalid_input": Kind(400, "Invalid input"),
    "invalid_ttl": Kind(400, "Invalid TTL"),
    "invalid_lock_name": Kind(400, "Invalid lock name"),
    "lease_not_current": Kind(404, "Lease is not current"),
    "not_found": Kind(404, "Resource not found"),
    "session_expired": Kind(410, "Session expired"),
    "history_not_kept": Kind(410, "History not kept"),
    "conflict": Kind(409, "Conflict"),
    "capacity_exceeded": Kind(409, "Capacity exceeded"),
    "quota_exceeded": Kind(429, "Quota exceeded"),
    "too_many_wrong_tokens": Kind(429, "Too many wrong tokens"),
    "deadlock": Kind(409, "Deadlock"),
    "ticket_gone": Kind(404, "Ticket gone"),
    "revoked": Kind(404, "Lease revoked"),
    "idempotency_conflict": Kind(422, "Idempotency key reused"),
    "storage_unavailable": Kind(503, "Storage unavailable"),
    "outcome_unknown": Kind(503, "Outcome unknown"),
    "not_leader": Kind(503, "No leader"),
    "overloaded": Kind(503, "Too many connections"),
    "misdirected": Kind(421, "Misdirected request"),
    "internal_error": Kind(500, "Internal server error"),
}


class Problem(Exception):
    """A refusal on its way out. Raised by what reads a request, returned by what renders a refusal."""

    def __init__(
        self,
        code: str,
        details: str,
        *,
        status: int | None = None,
        label: str | None = None,
        retry_after_ms: int | None = None,
        allow: str | None = None,
        fields: Mapping[str, object] | None = None,
    ) -> None:
        """`status` and `label` replace the usual ones; `fields` are in the body after the envelope's."""
        super().__init__(details)
        kind = KINDS[code]
        self.code = code
        self.details = details
        self.status = kind.status if status is None else status
        self.label = label or kind.label
        self.retry_after_ms = retry_after_ms
        self.allow = allow
        self.fields = fields or {}

    def body(self, request_id: str) -> bytes:
        envelope: dict[str, object] = {
            "error": self.label,
            "code": self.code,
            "details": self.details,
            "request_id": request_id,
        }
        if self.retry_after_ms is not None:
            envelope["retry_after_ms"] = self.retry_after_ms
        return msgspec.json.encode(envelope | dict(self.fields))

    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        extra: list[tuple[bytes, bytes]] = []
        if self.retry_after_ms is not None:
            extra.append((b"retry-after", str(-(-self.retry_after_ms // 1000)).encode()))
        if self.allow is not None:
            extra.append((b"allow", self.allow.encode()))
        return tuple(extra)
