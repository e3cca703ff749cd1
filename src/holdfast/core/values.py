"""Values of the core: leases, sessions, tokens, limits; and who may act on a lease.

All are frozen, so a changed value can be encoded later, between two turns of the loop. `gc=False` keeps them out of the
garbage collector, since none can be part of a cycle.

A caller is a principal (the name of its token) and the session whose secret it used, if any. A token may act on all
that its principal claimed. A session's secret may act only on what is bound to that session, so no run can release
another's claim (L3, S3). The server checks scopes and prefixes.
"""

from __future__ import annotations

import re

import msgspec

TOKEN_MAX = 2**53 - 1
OWNER_CHARS_MAX = 128
KEY_CHARS_MAX = 256
SESSION_NAME_CHARS_MAX = 128
LOCK_DELAY_MS_MAX = 30_000
SESSION_TTL_MS_MIN = 10_000
WAIT_MS_MAX = 50_000
DETACHED_MS_MAX = 60_000  # how long a ticket waits for its holder to come back (W2)
INTEREST_MS = 60_000
INTERESTS_MAX = 100_000  # of all holders together; beyond it fair-share eviction begins (D3)
INTERESTS_OF_HOLDER_MAX = 1_000
REMEMBER_MS_MAX = 30 * 86_400_000
REASON_CHARS_MAX = 1_024
LABELS_MAX = 16
LABEL_KEY = re.compile(r"[A-Za-z0-9._/-]{1,63}")
LABEL_VALUE_CHARS_MAX = 128
LABELS_OF_ALL_BYTES_MAX = 2**20  # labels of a claim of all, as JSON, times its names: each lease stores them
LABELS_OF_QUEUE_BYTES_MAX = 2**20  # as JSON, of the waiters that finished work answers: one record stores them

Labels = dict[str, str]


class Instant(msgspec.Struct, frozen=True, gc=False):
    ms: int  # authority time, to decide by (T1)
    wall_ms: int  # to show people (T4)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    ttl_ms_max: int = 86_400_000
    session_ttl_ms_max: int = 86_400_000
    metadata_chars_max: int = 1_024
    leases_per_principal_max: int = 10_000
    sessions_per_principal_max: int = 10_000
    retry_memory_ms: int = 600_000
    retry_bytes_max: int = 128 * 2**20
    ended_bytes_max: int = 128 * 2**20
    done_bytes_per_principal_max: int = 16 * 2**20
    tokens_max: int = 10_000
    tickets_per_principal_max: int = 10_000
    waiting_names_per_principal_max: int = 10_000
    queue_max: int = 20_000
    names_per_call_max: int = 1_000
    reentrant: str = "resume"  # `resume`: only `resume: true` gives a lease back (C4); `holder`: any equal holder


class Terms(msgspec.Struct, frozen=True, gc=False):
    principal: str
    ttl_ms: int
    owner: str | None = None
    session: str | None = None
    bound: bool = False  # Ends with its session (S2); a plain `session` only counts.
    delay_ms: int = 0
    metadata: str | None = None
    redo: bool = False
    key: str | None = None
    fingerprint: str = ""  # what the request comes to: another request may not reuse its key (C5)
    labels: Labels | None = None


class LastEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How the last lease of a name ended, for its successor (C7)."""

    how: str
    token: int
    owner: str | None
    note: str | None
    at_ms: int
    wall_ms: int
    by: str | None = None
    reason: str | None = None
    delay_ms: int = 0
    whose: str | None = None  # the principal of a lease that named no owner, for people to see


class Lease(msgspec.Struct, frozen=True, array_like=True, gc=False):
    lease_id: str
    token: int
    principal: str
    owner: str | None
    session: str | None
    bound: bool
    ttl_ms: int
    until_ms: int  # its own deadline; `State.until_of` also looks at the session
    delay_ms: int
    metadata: str | None
    note: str | None
    granted_wall_ms: int
    beat_wall_ms: int
    key: str | None = None
    renew_key: str | None = None
    labels: Labels | None = None
    offered: bool = False  # transferred and not renewed yet: a session of its owner may take it (L8a)


class Done(msgspec.Struct, frozen=True, array_like=True, gc=False):
    owner: str | None
    token: int
    result: str | None
    wall_ms: int
    until_ms: int
    whose: str | None = None


class Slot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    lease: Lease | None = None
    closed_until_ms: int = 0
    last_end: LastEnd | None = None
    attempts: int = 0
    done: Done | None = None
    left_by: str | None = None  # the principal charged for a free name, and its session if the lease was bound
    left_in: str | None = None


class Session(msgspec.Struct, frozen=True, array_like=True, gc=False):
    session_id: str
    principal: str
    name: str | None
    metadata: str | None
    ttl_ms: int
    until_ms: int
    opened_wall_ms: int
    key: str | None = None
    salt: str = ""  # makes its secret unique (S5)


class Ticket(msgspec.Struct, frozen=True, gc=False):
    """A position in the queue of a name, or of several (W2, M2); on disk a flat row (`TicketRow` in the codec)."""

    ticket_id: str
    names: tuple[str, ...]
    lease_ids: tuple[str, ...]  # that it will get
    terms: Terms
    token_in_journal: bool = False  # when it joined: then a revocation is visible at the grant
    joined_wall_ms: int = 0

    @property
    def leases(self) -> dict[str, str]:
        return dict(zip(self.names, self.lease_ids, strict=True))


# A node of the wait-for graph: a session and its owner, a principal and its owner, or one lease or ticket alone.
Holder = tuple[str, str, str | None]


class EndedLease(msgspec.Struct, frozen=True, array_like=True, tag="lease", gc=False):
    """An ended lease, remembered so that a retry or a late holder gets a true answer (C5)."""

    name: str
    principal: str
    session: str | None
    end: LastEnd
    key: str | None = None
    end_key: str | None = None
    bound: bool = False

    @property
    def at_ms(self) -> int:
        return self.end.at_ms


class EndedSession(msgspec.Struct, frozen=True, array_like=True, tag="session", gc=False):
    principal: str
    how: str  # `expired`, `deleted` or `revoked` (the end of its token)
    at_ms: int
    wall_ms: int
    key: str | None = None
    end_key: str | None = None


class UsedKey(msgspec.Struct, frozen=True, array_like=True, tag="key", gc=False):
    """An idempotency key that belongs to neither a lease nor a session."""

    principal: str
    key: str
    at_ms: int
    session: str | None = None


Remembered = EndedLease | EndedSession | UsedKey


class IdempotencyRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an idempotency key made."""

    kind: str  # the operation, or `left`: the ticket was given up, or a later request of its holder has it
    made: str  # the lease, session or token that it made or ended, or the ticket
    fingerprint: str
    leases: int = 1  # that live or are remembered: several for a claim of all (M2)
    lease_ids: tuple[str, ...] = ()  # in the order of the names of a claim of all; empty for a claim of one


class AccessToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    name: str
    digest: str
    scopes: tuple[str, ...]
    prefix: str | None
    expires_wall_ms: int | None
    made_wall_ms: int
    made_by: str
    salt: str = ""  # A token made with a key is derived from it and the key; empty without one.


def holder_of_lease(lease: Lease) -> Holder:
    return _holder(lease, lease.lease_id)


def holder_of_ticket(ticket: Ticket) -> Holder:
    return _holder(ticket.terms, ticket.ticket_id)


def _holder(whose: Lease | Terms, itself: str) -> Holder:
    if whose.bound and whose.session is not None:
        return ("session", whose.session, whose.owner)
    if whose.owner is not None:
        return ("principal", whose.principal, whose.owner)
    return ("alone", itself, None)


def lease_from(terms: Terms, lease_id: str, token: int, now: Instant) -> Lease:
    return Lease(
        lease_id,
        token,
        terms.principal,
        terms.owner,
        terms.session,
        terms.bound,
        terms.ttl_ms,
        now.ms + terms.ttl_ms,
        terms.delay_ms,
        terms.metadata,
        None,
        now.wall_ms,
        now.wall_ms,
        terms.key,
        None,
        terms.labels,
    )


def bad_labels(labels: Labels) -> str | None:
    if len(labels) > LABELS_MAX:
        return f"a claim has at most {LABELS_MAX} labels, this one has {len(labels)}"
    for key, value in labels.items():
        if not LABEL_KEY.fullmatch(key):
            return f"{key[:64]!r} is no key of a label: 1 to 63 letters (a–z, A–Z), digits, '.', '_', '-', '/'"
        if len(value) > LABEL_VALUE_CHARS_MAX:
            return f"the label {key!r} has a value of at most {LABEL_VALUE_CHARS_MAX} characters"
    return None


def has_labels(labels: Labels | None, wanted: frozenset[tuple[str, str]]) -> bool:
    return wanted <= ({} if labels is None else labels).items()


def may_touch(whose: Lease | Terms, principal: str, as_session: str | None) -> bool:
    """Return whether a caller may act on what was, or is about to be, claimed with these terms."""
    if whose.principal != principal:
        return False
    return as_session is None or (whose.bound and whose.session == as_session)


def is_of_run(lease: Lease, session: str | None, name: str | None, limits: Limits) -> bool:
    """Return whether a live lease is a run's own: bound to its session and, unlike a subagent's, under the run's name.

    With `reentrant = "holder"`, all that its session holds is.
    """
    if session is None or not lease.bound or lease.session != session:
        return False
    return limits.reentrant == "holder" or lease.owner == name
