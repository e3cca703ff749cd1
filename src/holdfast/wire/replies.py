"""The bodies of replies, as msgspec structs. The OpenAPI document is made from them, so it cannot drift.

`status` distinguishes the replies of one route. Times are given twice: as text for people, in milliseconds for
programs.

How people are shown a claim that names no owner: `(access token ci-runner, issue=1842)`.

The access token comes first, because every record knows it. Metadata is shown only where all of it is shown too: of a
live claim. Clients may send any text as metadata, so it is never parsed whole (what is nested is shown as `{…}`),
nothing here raises, and these words prove nothing: an owner may call itself the same. Programs read the fields: `owner`
is null for a claim that named none, and only then `shown_as` is there.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.wire.requests import Labels, Millis, Time, Token, Uuid


class _WithDisplayName(msgspec.Struct, kw_only=True, gc=False):
    shown_as: str | UnsetType = UNSET  # only if `owner` is null: `(access token ci-runner, issue=1842)`


class ShownClaim(_WithDisplayName, kw_only=True, gc=False):
    labels: Labels | UnsetType = UNSET


class Previous(_WithDisplayName, gc=False):
    """Who was there before."""

    owner: str | None
    fencing_token: Token
    ended: str  # `released`, `expired`, `revoked`, `session_ended` or `transferred`
    at: Time
    note: str | None


class AcquiredReply(msgspec.Struct, gc=False, tag_field="status", tag="acquired"):
    """The caller owns the name."""

    lease_id: Uuid
    fencing_token: Token
    expires_at: Time
    renew_after_ms: Millis
    metadata: str | None
    owner: str | None
    claimed_at: Time
    expires_in_ms: Millis
    waited_ms: Millis
    reacquired: bool
    previous: Previous | None
    attempts: int
    session_id: Uuid | None = None
    labels: Labels | UnsetType = UNSET


class HeldReply(ShownClaim, gc=False, tag_field="status", tag="held"):
    """Somebody else owns the name."""

    holder_id: Uuid  # a pseudonym of the holder, the same for all its claims
    expires_at: Time
    retry_after_ms: Millis
    metadata: str | None
    owner: str | None
    same_owner: bool
    claimed_at: Time
    last_heartbeat_at: Time
    expires_in_ms: Millis
    note: str | None
    waiting: int


class DelayedReply(msgspec.Struct, gc=False, tag_field="status", tag="delayed"):
    """The name is closed for a while after its last end."""

    available_at: Time
    lock_delay_seconds: int
    retry_after_ms: Millis


class WaitingReply(msgspec.Struct, gc=False, tag_field="status", tag="waiting"):
    """The caller waits in the queue: repeat the request with the ticket within a minute to keep the position."""

    ticket: Uuid
    position: int
    waited_ms: Millis


class DoneReply(_WithDisplayName, gc=False, tag_field="status", tag="done"):
    """The work is finished: do not do it again."""

    name: str
    owner: str | None
    fencing_token: Token
    completed_at: Time
    result: str | None
    remembered_for_ms: Millis


class ClaimReply(msgspec.Struct, gc=False):
    """One of the names that were claimed."""

    name: str
    lease_id: Uuid
    fencing_token: Token
    expires_at: Time
    renew_after_ms: Millis
    expires_in_ms: Millis
    previous: Previous | None
    attempts: int


class ClaimsReply(msgspec.Struct, gc=False, tag_field="status", tag="acquired"):
    """The names are the caller's."""

    claims: list[ClaimReply]
    owner: str | None
    waited_ms: Millis


class HeldName(ShownClaim, gc=False):
    """One of the names that could not be had."""

    name: str
    owner: str | None
    holder_id: Uuid | None
    retry_after_ms: Millis
    metadata: str | None
    note: str | None
    claimed_at: Time | None  # null, as the two below, for a name that nobody holds but that is closed
    last_heartbeat_at: Time | None
    expires_at: Time | None


class HeldManyReply(msgspec.Struct, gc=False, tag_field="status", tag="held"):
    """None of the names, or not all of them, can be had now."""

    held: list[HeldName]  # the first of them in the order asked for, as many as fit in a reply
    retry_after_ms: Millis
    left_out: int | UnsetType = UNSET


class CheckReply(msgspec.Struct, gc=False):
    """Whether the token is that of the live lease."""

    current: bool
    fencing_token: Token | None


class HistoryEntryReply(ShownClaim, gc=False):
    """Something that happened to a name."""

    seq: int
    at: Time
    event: str
    name: str
    owner: str | None
    fencing_token: Token | None
    by: str | None
    reason: str | None


class EndReply(msgspec.Struct, gc=False):
    """The end of a lease or a session, for a lease watch."""

    id: Uuid
    name: str | None
    ended: str  # of a lease as in `Previous`; of a session `expired`, `deleted` or `revoked` with its token
    at: Time
    by: str | None
    reason: str | None


class LeaseWatchReply(msgspec.Struct, gc=False):
    """Which of the leases and sessions are watched, have ended, or are unknown."""

    stream: Uuid  # The stream that reports their ends: `POST /lease-watches/{id}` adds to it.
    following: int
    ended: list[EndReply]
    unknown: list[Uuid]  # not the caller's, never there, or ended too long ago to be remembered


class DisplacedReply(msgspec.Struct, gc=False):
    """Why a stream of ends was ended: too many watch the same with one token or secret, and it was the oldest."""

    id: Uuid


class HistoryReply(msgspec.Struct, gc=False):
    """What happened, newest first."""

    history: list[HistoryEntryReply]
    next_before: int | None  # `before` for the next page; a page may have fewer than `limit`, or none
    next_offset: int | UnsetType = UNSET  # `offset` for the other changes of record `next_before`


class WhyLink(_WithDisplayName, gc=False):
    """One link of the chain: a name, who holds it, how alive that one looks, what it waits for itself."""

    name: str
    status: Literal["held", "free", "closed", "done"]
    owner: str | None
    claimed_at: Time | None
    last_heartbeat_at: Time | None
    expires_in_ms: Millis | None
    note: str | None
    waits_for: list[str]


class WhyWaiter(_WithDisplayName, gc=False):
    """A waiter in the queue."""

    owner: str | None
    since: Time
    there: bool


class WhyReply(msgspec.Struct, gc=False):
    """Why a name cannot be had: the chain of waits from it to the owner everybody waits for."""

    name: str
    chain: list[WhyLink]
    waiting: list[WhyWaiter]
    circle: bool


class RenewedReply(msgspec.Struct, gc=False):
    """The lease lives on."""

    lease_id: Uuid
    expires_at: Time
    renew_after_ms: Millis
    expires_in_ms: Millis


class LockReply(ShownClaim, gc=False, omit_defaults=True):
    """What is known of a name."""

    name: str
    status: Literal["free", "held", "done"]
    holder_id: Uuid | None
    fencing_token: Token  # of the live lease; for a free name the next one to be given
    expires_at: Time | None
    metadata: str | None
    owner: str | None
    claimed_at: Time | None
    last_heartbeat_at: Time | None
    expires_in_ms: Millis | None
    note: str | None
    session: Uuid | None
    waiting: int
    attempts: int
    previous: Previous | None
    available_at: Time | UnsetType = UNSET
    retry_after_ms: Millis | UnsetType = UNSET
    completed_at: Time | UnsetType = UNSET
    result: str | UnsetType | None = UNSET


class LocksReply(msgspec.Struct, gc=False):
    """The held names, in order."""

    locks: list[LockReply]
    total: int | None  # on all pages; null if filtered by owner, session or labels, unless this page is all
    prefix: str | None
    next_after: str | None


class SessionOpenedReply(msgspec.Struct, gc=False):
    """A session began."""

    session_id: Uuid
    expires_at: Time
    keepalive_interval_secs: int
    session_secret: str
    expires_in_ms: Millis
    name: str | None
    metadata: str | None
    public_url: str | msgspec.UnsetType = msgspec.UNSET


class SessionSecretReply(msgspec.Struct, gc=False):
    """The secret that a session has under the caller's token."""

    session_id: Uuid
    session_secret: str


class SessionKeepaliveReply(msgspec.Struct, gc=False):
    """The session lives on."""

    session_id: Uuid
    expires_at: Time
    expires_in_ms: Millis


class SessionRenewedReply(SessionKeepaliveReply, gc=False):
    """The session and all that is bound to it live on."""

    renewed: int


class SessionsReply(msgspec.Struct, gc=False):
    """The caller's sessions."""

    sessions: list[SessionReply]
    total: int
    next_after: str | UnsetType = UNSET


class SessionReply(msgspec.Struct, gc=False):
    """What is known of a session."""

    session_id: Uuid
    user_id: Uuid
    expires_at: Time
    lock_count: int
    active: bool
    name: str | None
    metadata: str | None


class ClaimSecretReply(msgspec.Struct, gc=False):
    """The secret of a claim: a bearer token that can only look at, renew and release what the claim holds."""

    claim_secret: str


class TokenReply(msgspec.Struct, gc=False):
    """What is known of a token."""

    name: str
    scopes: list[str]
    prefix: str | None
    expires_at: Time | None
    created_at: Time | None
    source: Literal["made", "static"]
    last_used: Time | None = None


class TokenMadeReply(msgspec.Struct, gc=False):
    """A new token: the only time it is shown."""

    name: str
    token: str
    scopes: list[str]
    prefix: str | None
    expires_at: Time | None
    created_at: Time


class TokensReply(msgspec.Struct, gc=False):
    """All tokens, without the tokens."""

    tokens: list[TokenReply]
    next_after: str | UnsetType = UNSET


class HealthReply(msgspec.Struct, gc=False):
    """Whether the store takes writes."""

    status: str
    storage: str
    db_size_bytes: int
    details: str
    disk_free_bytes: int | None = None


class ReadyReply(msgspec.Struct, gc=False):
    """Alive, or ready."""

    status: str
    details: str


class StatusReply(msgspec.Struct, gc=False):
    """Counters since the process started."""

    status: str
    uptime_seconds: int
    active_locks: int
    total_users: int
    total_acquires: int
    total_releases: int
    version: str
    time: Time
    resource_lock_timeout_seconds: int
    total_refusals: int = 0  # what was decided against: held names, lost leases, full quotas, bad values


class NodeReply(msgspec.Struct, gc=False):
    """A node, as the store last heard of it."""

    name: str
    url: str
    role: Literal["leader", "follower", "silent"]
    version: str
    seen_ms_ago: int


class NodesReply(msgspec.Struct, gc=False):
    """The leader, its term, and the other nodes."""

    leader: str | None
    epoch: int
    since: Time | None
    authority: str | None
    nodes: list[NodeReply]


class PastLockReply(ShownClaim, gc=False):
    """A name that was held at a moment, as far as the history knows: by the lease as it was granted."""

    name: str
    status: Literal["held"]
    holder_id: Uuid
    fencing_token: Token
    owner: str | None
    claimed_at: Time
    ttl_ms: Millis  # as granted: renewals are not kept, so its deadline then is unknown
    session: Uuid | None
    record: int  # the record that granted it; 0 if it is older than all numbers


class PastLocksReply(msgspec.Struct, gc=False):
    """The names that were held at a moment, in order."""

    locks: list[PastLockReply]
    at: Time | None  # what was asked for; of a record alone, its time; null if nothing of it is kept
    record: int  # The last record by then: ask for the next page with it, to stay at the same record.
    prefix: str | None
    next_after: str | None


class TimelineMarker(msgspec.Struct, gc=False):
    """A record in which something ended badly."""

    seq: int
    at: Time
    event: str
    name: str
    owner: str
    others: int


class TimelineMarkersReply(msgspec.Struct, gc=False):
    """Where things ended badly, newest first, and how far back one can look."""

    marks: list[TimelineMarker]
    next_before: int | None
    begins_at: Time | None  # the earliest moment that can be looked at; null if there is none yet
    now: Time


FOLLOWS = "this node follows, and passes requests on to the leader"  # It is well; it does not know the store's size.
LEADS = "this node leads"  # how it begins, of one that has the seat; also if it cannot serve now
SHARED = "postgresql"


METADATA_CHARS_MAX = 40

_TEXT = r'"(?:[^"\\]|\\.)*"'
# The first key of an object and its value, or how the value begins if it is nested.
_FIRST_FIELD = re.compile(rf"\s*\{{\s*({_TEXT})\s*:\s*({_TEXT}|[{{\[]|[^\s,}}\]]+)", re.DOTALL)
_NO_FIELD = re.compile(r"\s*\{\s*\}")
_NESTED = {"{": "{…}", "[": "[…]"}


def shown_as(token_name: str | None, metadata: str | None = None) -> str:
    """Return how people are shown a claim without an owner. `token_name` is None where it is not known."""
    whose = "no owner given" if token_name is None else f"access token {token_name}"
    first = _first_of(metadata) if metadata else ""
    return f"({whose}, {first})" if first else f"({whose})"


def _first_of(metadata: str) -> str:
    """Return the first field of metadata as key=value, or the beginning of its first line if it is plain text."""
    if _NO_FIELD.match(metadata):
        return ""
    field = _FIRST_FIELD.match(metadata)
    try:
        text = f"{_as_text(field[1])}={_as_text(field[2])}" if field else _first_line(metadata)
    except msgspec.MsgspecError:
        text = _first_line(metadata)
    return text if len(text) <= METADATA_CHARS_MAX else text[: METADATA_CHARS_MAX - 1] + "…"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _as_text(value: str) -> str:
    return msgspec.json.decode(value, type=str) if value.startswith('"') else _NESTED.get(value, value)
