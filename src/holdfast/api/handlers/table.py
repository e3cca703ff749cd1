"""Every operation of the API, one row each: the routes, the decoding of requests and `/openapi.json` are made of them.

`server/components.py` adds the rows of the dashboard (`dashboard/table.py`) and of the documents about the API. The
rows of the gateway are in `handlers/gateway.py`.
"""

from __future__ import annotations

from functools import partial

from holdfast.api.auth.auth import own_scope
from holdfast.api.handlers import claims, events, health, history, locks, metrics, paging, sessions, tokens
from holdfast.api.handlers.gateway import GATEWAY
from holdfast.api.operation import Key, Operation
from holdfast.wire import replies, requests

_LEASE = ("lease_not_current", "revoked", "not_found", "session_expired")

_CLAIM = (
    *_LEASE,
    "invalid_lock_name",
    "invalid_ttl",
    "lock_limit_exceeded",
    "ticket_gone",
    "deadlock",
    "quota_exceeded",
)

_health = partial(Operation, "GET", any_host=True)
_for_read = partial(Operation, "GET", scope="read")
_for_claim = partial(Operation, "POST", scope="claim")
_for_admin = partial(Operation, scope="admin")
_session = partial(
    Operation, scope="claim", check_session=sessions.check_is_own, problems=("not_found", "session_expired")
)
OPERATIONS: tuple[Operation, ...] = (
    _for_admin(
        "GET",
        "/backup",
        events.Backup,
        "All that the server knows, as one file to restore from; it holds secrets",
        is_stream=True,
        replies={200: "application/octet-stream"},
        problems=("quota_exceeded", "capacity_exceeded"),
    ),
    _health("/health", health.health, "How the store is", replies={200: replies.HealthReply, 503: replies.HealthReply}),
    _health(
        "/health/leader",
        health.leader,
        "Whether this node leads: for a load balancer",
        replies={200: replies.ReadyReply, 503: replies.ReadyReply},
    ),
    _health("/healthz", health.alive, "Whether the process answers", is_local=True, replies={200: replies.ReadyReply}),
    Operation(
        "GET",
        "/metrics",
        metrics.metrics,
        "What this node has counted and measured, for Prometheus",
        scope=metrics.SCOPE,
        reader=metrics.reader,
        replies={200: "text/plain"},
    ),
    _for_read(
        "/nodes", health.nodes, "Who leads, since when, and which nodes are there", replies={200: replies.NodesReply}
    ),
    _health(
        "/readyz",
        health.ready,
        "Whether the journal takes writes",
        replies={200: replies.ReadyReply, 503: replies.ReadyReply},
    ),
    Operation("GET", "/status", health.status, "Counters since the start", replies={200: replies.StatusReply}),
    _for_claim(
        "/claims",
        claims.claim,
        "Claim the first free one of several names, or all of them",
        query={"on_held": "`409` answers held names with 409 and Retry-After instead of 200."},
        body=requests.ClaimsBody,
        read_query=claims.read_held_status,
        check_body=claims.check_claims,
        key=Key.WITH_CONTENT,
        check_session=claims.check_session,
        replies={
            200: replies.ClaimsReply | replies.HeldManyReply | replies.WaitingReply | replies.DoneReply,
            409: replies.HeldManyReply | replies.WaitingReply | replies.DoneReply,
        },
        problems=("invalid_lock_name", *_CLAIM),
    ),
    _for_claim(
        "/claims/secret",
        claims.secret,
        "A secret for a command that works on a claim: it can only look at, renew and release what the claim holds",
        body=requests.ClaimSecretBody,
        check_body=locks.check_lease_id,
        replies={200: replies.ClaimSecretReply},
        problems=("invalid_lock_name", *_LEASE),
    ),
    _for_read(
        "/events",
        events.Events,
        "Everything that happens but renewals, in order; resumable",
        query={
            "prefix": "Only names that start so.",
            "label": "Only what concerns claims with this label, written as `key:value`; repeated, all of them.",
            "after": "From after this record on; `Last-Event-ID` says the same.",
        },
        headers={"Last-Event-ID": "From after this record on. It counts, if `after` is there too."},
        is_stream=True,
        replies={200: "text/event-stream"},
        problems=("quota_exceeded",),
    ),
    _for_claim(
        "/lease-watches/{id}",
        events.add,
        "Add leases and sessions to a stream of `/leases/watch`",
        own_scope=own_scope("claim"),
        body=requests.LeaseWatchBody,
        check_body=events.check_ids,
        replies={200: replies.LeaseWatchReply},
        problems=("not_found",),
    ),
    _for_claim(
        "/leases/watch",
        events.LeaseWatch,
        "The ends of one's own leases and sessions, as they happen",
        own_scope=own_scope("claim"),
        body=requests.LeaseWatchBody,
        check_body=events.check_ids,
        is_stream=True,
        replies={200: "text/event-stream"},
        problems=("quota_exceeded",),
    ),
    _for_read(
        "/locks",
        locks.list_,
        "The held names, in order",
        query={
            "prefix": "Only names that start so.",
            "owner": "Only what this owner holds.",
            "session": "Only what this session holds.",
            "label": "Only what has this label, written as `key:value`; repeated, all of them.",
            "limit": "At most so many, and about 1 MiB; 1,000 unless told, 10,000 at most.",
            "after": "Only names after this one: the next page.",
            "at": "Who held what at this time (RFC 3339) of the kept history, by the order of the journal.",
            "record": "Who held what once this record was durable; with `at`, the next page of that time.",
        },
        read_query=locks.read_list_query,
        replies={200: (replies.LocksReply, replies.PastLocksReply)},
        problems=("history_not_kept",),
    ),
    *GATEWAY,
    _for_read(
        "/locks/{name}", locks.status, "Who owns a name", own_scope=own_scope("read"), replies={200: replies.LockReply}
    ),
    _for_claim(
        "/locks/{name}/acquire",
        claims.acquire,
        "Claim a name",
        query={"on_held": "`409` answers a held name with 409 and Retry-After instead of 200."},
        body=requests.AcquireBody,
        read_query=claims.read_held_status,
        check_body=claims.check_claim,
        key=Key.WITH_CONTENT,
        check_session=claims.check_session,
        replies={
            200: replies.AcquiredReply | replies.HeldReply | replies.WaitingReply | replies.DoneReply,
            409: replies.DelayedReply | replies.HeldReply | replies.WaitingReply | replies.DoneReply,
        },
        problems=_CLAIM,
    ),
    Operation(
        "POST",
        "/locks/{name}/check",
        locks.check,
        "Whether a fencing token is the current one",
        scope="read",
        own_scope=own_scope("read"),
        body=requests.CheckBody,
        replies={200: replies.CheckReply},
    ),
    _for_admin(
        "POST",
        "/locks/{name}/reopen",
        locks.reopen,
        "Let finished work be claimed again",
        body=requests.ReopenBody,
        key=Key.WITH_CONTENT,
        replies={204: None},
        problems=("not_found",),
    ),
    _for_admin(
        "POST",
        "/locks/{name}/revoke",
        locks.revoke,
        "End somebody's lease, with a reason",
        body=requests.RevokeBody,
        key=Key.WITH_CONTENT,
        replies={204: None},
        problems=("not_found",),
    ),
    _for_claim(
        "/locks/{name}/transfer",
        locks.transfer,
        "Hand a claim to another owner, without a gap. Without its lease id only with the scope `admin`",
        body=requests.TransferBody,
        check_body=locks.check_lease_id,
        key=Key.WITH_CONTENT,
        replies={200: replies.AcquiredReply, 204: None},
        problems=(*_LEASE, "invalid_ttl"),
    ),
    _for_read(
        "/locks/{name}/history",
        history.history,
        "Who owned a name, when, and how that ended; newest first",
        own_scope=own_scope("read"),
        query={
            "before": "Only records before this number: the next page.",
            "offset": "What `next_offset` said: the rest of record `before`, and then those before it.",
            "limit": "At most so many records; 100 unless told, 1,000 at most.",
            "owner": "Only what concerns this owner.",
            "since": "Only from this time on (RFC 3339).",
            "until": "Only up to this time (RFC 3339).",
        },
        read_query=partial(paging.read_limit, default=history.LIMIT, maximum=history.LIMIT_MAX),
        replies={200: replies.HistoryReply},
    ),
    _for_read(
        "/locks/{name}/why", locks.why, "Why a name cannot be had: the chain of waits", replies={200: replies.WhyReply}
    ),
    _for_claim(
        "/locks/{name}/release",
        locks.release,
        "Give a name back",
        own_scope=own_scope("claim"),
        body=requests.ReleaseBody,
        check_body=locks.check_release,
        key=Key.WITH_CONTENT,
        replies={200: None},
        problems=_LEASE,
    ),
    _for_claim(
        "/locks/{name}/renew",
        locks.renew,
        "Heartbeat: keep a lease alive",
        own_scope=own_scope("claim"),
        body=requests.RenewBody,
        check_body=locks.check_lease_id,
        key=Key.ALONE,
        replies={200: replies.RenewedReply},
        problems=(*_LEASE, "invalid_ttl"),
    ),
    _for_read(
        "/locks/{name}/watch",
        events.Watch,
        "What happens to a name, live",
        own_scope=own_scope("read"),
        is_stream=True,
        replies={200: "text/event-stream"},
        problems=("quota_exceeded", "capacity_exceeded"),
    ),
    _for_read(
        "/sessions",
        sessions.list_,
        "The caller's sessions, in order of their ids",
        query={
            "token": "Those of this access token: for an operator whose rights are at least that token's.",
            "limit": "At most so many, and about 1 MiB; 1,000 unless told, 10,000 at most.",
            "after": "Only sessions after this one: the next page.",
        },
        read_query=paging.read_limit,
        replies={200: replies.SessionsReply},
    ),
    _for_claim(
        "/sessions",
        sessions.open_,
        "Open a session: a group of claims that ends together",
        body=requests.SessionBody,
        key=Key.WITH_CONTENT,
        check_session=sessions.check_is_token,
        replies={201: replies.SessionOpenedReply},
        problems=("not_found", "session_expired", "quota_exceeded"),
    ),
    _session(
        "DELETE",
        "/sessions/{id}",
        sessions.end,
        "End a session and all that is bound to it",
        key=Key.WITH_CONTENT,
        replies={204: None},
    ),
    _session(
        "GET",
        "/sessions/{id}",
        sessions.describe,
        "What is known of a session",
        scope="read",
        replies={200: replies.SessionReply},
    ),
    _session(
        "POST",
        "/sessions/{id}/keepalive",
        sessions.keepalive,
        "Keep a session alive",
        replies={200: replies.SessionKeepaliveReply},
    ),
    _session(
        "POST",
        "/sessions/{id}/renew-all",
        sessions.renew_all,
        "Keep a session and every lease bound to it alive",
        replies={200: replies.SessionRenewedReply},
    ),
    _for_claim(
        "/sessions/{id}/secret",
        sessions.secret,
        "The secret of a session, after its access token was replaced",
        check_session=sessions.check_is_token,
        replies={200: replies.SessionSecretReply},
        problems=("not_found",),
    ),
    Operation(
        "DELETE",
        "/tickets/{id}",
        claims.leave_queue,
        "Leave a queue",
        scope="claim",
        replies={204: None},
        problems=("ticket_gone",),
    ),
    _for_admin(
        "GET",
        "/tokens",
        tokens.list_,
        "The access tokens within one's own rights, without their secrets",
        query={
            "limit": "At most so many, and about 1 MiB; 1,000 unless told, 10,000 at most.",
            "after": "Only names after this one: the next page.",
        },
        read_query=paging.read_limit,
        replies={200: replies.TokensReply},
    ),
    _for_admin(
        "POST",
        "/tokens",
        tokens.create,
        "Make an access token; shown this once",
        body=requests.TokenBody,
        key=Key.WITH_CONTENT,
        replies={201: replies.TokenMadeReply},
        problems=("not_found", "conflict", "quota_exceeded"),
    ),
    _for_admin(
        "DELETE",
        "/tokens/{name}",
        tokens.revoke,
        "Revoke an access token, with its sessions and tickets",
        query={"keep_sessions": "`true` lets its sessions live on for the next access token of that name."},
        read_query=tokens.read_keep_sessions,
        key=Key.WITH_CONTENT,
        replies={204: None},
        problems=("not_found", "conflict"),
    ),
    _for_admin(
        "POST",
        "/tokens/{name}/rotate",
        tokens.rotate,
        "Replace an access token by another of the same name and rights; shown this once",
        body=requests.RotateBody,
        body_may_be_empty=True,
        key=Key.WITH_CONTENT,
        replies={200: replies.TokenMadeReply},
        problems=("not_found", "conflict"),
    ),
)
