"""The API as data: every operation with its body, its replies and its problems. The OpenAPI document is made of it.

A reply is a message, a media type, or None for an empty or `null` body.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.wire import gateway, replies, requests

_UNKEYED = ("/keepalive", "/renew-all", "/check", "/tickets/{id}", "/locks/acquire", "/locks/heartbeat")


class Operation(msgspec.Struct, frozen=True):
    """A method on a path: what it takes, what it may answer. `scope` None: no bearer token is asked for."""

    method: str
    path: str
    summary: str
    scope: str | None = None
    body: type[Any] | None = None
    replies: dict[int, Any] = {}
    problems: tuple[str, ...] = ()
    query: dict[str, str] = {}

    @property
    def keyed(self) -> bool:
        """Whether an idempotency key is read. Keeping a session alive twice is the same as once."""
        return self.method != "GET" and not self.path.endswith(_UNKEYED)


_NAME = ("invalid_lock_name",)
_LEASE = ("lease_not_current", "revoked", "not_found", "session_expired")

_CLAIM = (
    "invalid_input",
    "invalid_ttl",
    "forbidden",
    "lock_limit_exceeded",
    "lease_not_current",
    "revoked",
    "not_found",
    "ticket_gone",
    "session_expired",
    "deadlock",
    "quota_exceeded",
    "idempotency_conflict",
)

_GATEWAY = dict.fromkeys((400, 403, 503), gateway.GatewayErrorReply)

OPERATIONS: tuple[Operation, ...] = (
    Operation("GET", "/", "This API, for people", replies={200: "text/html"}),
    Operation("GET", "/docs", "This API, for people", replies={200: "text/html"}),
    Operation(
        "POST",
        "/claims",
        "Claim the first free one of several names, or all of them",
        "claim",
        requests.ClaimsBody,
        {
            200: replies.ClaimsReply | replies.HeldManyReply | replies.WaitingReply | replies.DoneReply,
            409: replies.HeldManyReply | replies.WaitingReply | replies.DoneReply,
        },
        (*_NAME, *_CLAIM),
        {"on_held": "`409` answers held names with 409 and Retry-After instead of 200."},
    ),
    Operation(
        "GET",
        "/events",
        "Everything that happens but renewals, in order; resumable",
        "read",
        replies={200: "text/event-stream"},
        problems=("invalid_input", "forbidden", "quota_exceeded"),
        query={
            "prefix": "Only names that start so.",
            "after": "From after this record on; `Last-Event-ID` says the same.",
        },
    ),
    Operation(
        "GET",
        "/health",
        "How the store is",
        replies={200: replies.HealthReply, 503: replies.HealthReply},
    ),
    Operation("GET", "/healthz", "Whether the process answers", replies={200: replies.ReadyReply}),
    Operation(
        "GET",
        "/locks",
        "The held names, in order",
        "read",
        replies={200: replies.LocksReply},
        problems=("invalid_input", "forbidden"),
        query={
            "prefix": "Only names that start so.",
            "owner": "Only what this owner holds.",
            "session": "Only what this session holds.",
            "limit": "At most so many; 1,000 unless told, 10,000 at most.",
            "after": "Only names after this one: the next page.",
        },
    ),
    Operation(
        "POST",
        "/locks/acquire",
        "Gateway: have a resource, as a run",
        None,
        gateway.GatewayTimedBody,
        {200: gateway.GatewayAcquiredReply, 409: gateway.GatewayRefusedReply, **_GATEWAY},
    ),
    Operation(
        "POST",
        "/locks/heartbeat",
        "Gateway: keep a resource, as a run",
        None,
        gateway.GatewayTimedBody,
        {
            200: gateway.GatewayKeptReply,
            404: gateway.GatewayRefusedReply,
            409: gateway.GatewayRefusedReply,
            **_GATEWAY,
        },
    ),
    Operation(
        "GET",
        "/locks/list",
        "Gateway: what a run has",
        replies={200: list[gateway.GatewayOwnLock], **_GATEWAY},
        query={"secret": "The session's secret."},
    ),
    Operation(
        "POST",
        "/locks/release",
        "Gateway: give a resource back, as a run",
        None,
        gateway.GatewayBody,
        {
            200: gateway.GatewayReleasedReply,
            404: gateway.GatewayRefusedReply,
            409: gateway.GatewayRefusedReply,
            **_GATEWAY,
        },
    ),
    Operation(
        "GET",
        "/locks/status",
        "Gateway: who has what",
        "read",
        replies={200: gateway.GatewayStatusReply, 401: gateway.GatewayErrorReply, **_GATEWAY},
    ),
    Operation(
        "GET",
        "/locks/{name}",
        "Who owns a name",
        "read",
        replies={200: replies.LockReply},
        problems=(*_NAME, "forbidden"),
    ),
    Operation(
        "POST",
        "/locks/{name}/acquire",
        "Claim a name",
        "claim",
        requests.AcquireBody,
        {
            200: replies.AcquiredReply | replies.HeldReply | replies.WaitingReply | replies.DoneReply,
            409: replies.DelayedReply | replies.HeldReply | replies.WaitingReply | replies.DoneReply,
        },
        (*_NAME, *_CLAIM),
        {"on_held": "`409` answers a held name with 409 and Retry-After instead of 200."},
    ),
    Operation(
        "POST",
        "/locks/{name}/check",
        "Whether a fencing token is the current one",
        "read",
        requests.CheckBody,
        {200: replies.CheckReply},
        (*_NAME, "invalid_input", "forbidden"),
    ),
    Operation(
        "POST",
        "/locks/{name}/reopen",
        "Let finished work be claimed again",
        "admin",
        requests.ReopenBody,
        {204: None},
        (*_NAME, "invalid_input", "forbidden", "not_found", "idempotency_conflict"),
    ),
    Operation(
        "POST",
        "/locks/{name}/revoke",
        "End somebody's lease, with a reason",
        "admin",
        requests.RevokeBody,
        {204: None},
        (*_NAME, "invalid_input", "forbidden", "not_found", "idempotency_conflict"),
    ),
    Operation(
        "POST",
        "/locks/{name}/transfer",
        "Hand a claim to another owner, without a gap",
        "claim",
        requests.TransferBody,
        {200: replies.AcquiredReply},
        (*_NAME, *_LEASE, "invalid_input", "invalid_ttl", "forbidden", "idempotency_conflict"),
    ),
    Operation(
        "GET",
        "/locks/{name}/history",
        "Who owned a name, when, and how that ended; newest first",
        "read",
        replies={200: replies.HistoryReply},
        problems=(*_NAME, "invalid_input", "forbidden"),
        query={
            "before": "Only records before this number: the next page.",
            "limit": "At most so many records; 100 unless told, 1,000 at most.",
            "owner": "Only what concerns this owner.",
            "since": "Only from this time on (RFC 3339).",
            "until": "Only up to this time (RFC 3339).",
        },
    ),
    Operation(
        "GET",
        "/locks/{name}/why",
        "Why a name cannot be had: the chain of waits",
        "read",
        replies={200: replies.WhyReply},
        problems=(*_NAME, "forbidden"),
    ),
    Operation(
        "POST",
        "/locks/{name}/release",
        "Give a name back",
        "claim",
        requests.ReleaseBody,
        {200: None},
        (*_NAME, *_LEASE, "invalid_input", "forbidden", "idempotency_conflict"),
    ),
    Operation(
        "POST",
        "/locks/{name}/renew",
        "Heartbeat: keep a lease alive",
        "claim",
        requests.RenewBody,
        {200: replies.RenewedReply},
        (*_NAME, *_LEASE, "invalid_input", "invalid_ttl", "forbidden"),
    ),
    Operation(
        "GET",
        "/locks/{name}/watch",
        "What happens to a name, live",
        "read",
        replies={200: "text/event-stream"},
        problems=(*_NAME, "forbidden", "quota_exceeded", "capacity_exceeded"),
    ),
    Operation("GET", "/openapi.json", "This document", replies={200: "application/json"}),
    Operation("GET", "/openapi.yaml", "This document", replies={200: "application/yaml"}),
    Operation(
        "GET",
        "/readyz",
        "Whether the journal takes writes",
        replies={200: replies.ReadyReply, 503: replies.ReadyReply},
    ),
    Operation(
        "GET",
        "/sessions",
        "The caller's sessions",
        "read",
        replies={200: replies.SessionsReply},
        problems=("forbidden",),
    ),
    Operation(
        "POST",
        "/sessions",
        "Open a session: a group of claims that ends together",
        "claim",
        requests.SessionBody,
        {201: replies.SessionOpenedReply},
        ("invalid_input", "forbidden", "not_found", "session_expired", "quota_exceeded", "idempotency_conflict"),
    ),
    Operation(
        "DELETE",
        "/sessions/{id}",
        "End a session and all that is bound to it",
        "claim",
        replies={204: None},
        problems=("invalid_input", "forbidden", "not_found", "session_expired", "idempotency_conflict"),
    ),
    Operation(
        "GET",
        "/sessions/{id}",
        "What is known of a session",
        "read",
        replies={200: replies.SessionReply},
        problems=("invalid_input", "forbidden", "not_found", "session_expired"),
    ),
    Operation(
        "POST",
        "/sessions/{id}/keepalive",
        "Keep a session alive",
        "claim",
        replies={200: replies.SessionKeptReply},
        problems=("invalid_input", "forbidden", "not_found", "session_expired"),
    ),
    Operation(
        "POST",
        "/sessions/{id}/renew-all",
        "Keep a session and every lease bound to it alive",
        "claim",
        replies={200: replies.SessionRenewedReply},
        problems=("invalid_input", "forbidden", "not_found", "session_expired"),
    ),
    Operation("GET", "/status", "Counters since the start", replies={200: replies.StatusReply}),
    Operation(
        "DELETE",
        "/tickets/{id}",
        "Give up a place in a line",
        "claim",
        replies={204: None},
        problems=("invalid_input", "forbidden", "ticket_gone"),
    ),
    Operation(
        "GET",
        "/tokens",
        "All tokens, without the tokens",
        "admin",
        replies={200: replies.TokensReply},
        problems=("invalid_input", "forbidden"),
    ),
    Operation(
        "POST",
        "/tokens",
        "Make a token; shown this once",
        "admin",
        requests.TokenBody,
        {201: replies.TokenMadeReply},
        ("invalid_input", "forbidden", "not_found", "conflict", "quota_exceeded", "idempotency_conflict"),
    ),
    Operation(
        "DELETE",
        "/tokens/{name}",
        "Revoke a token",
        "admin",
        replies={204: None},
        problems=("invalid_input", "forbidden", "not_found", "conflict", "idempotency_conflict"),
    ),
)
