"""What the core speaks of: leases, sessions, tokens, limits.

Every struct here is frozen: a change makes a new one. That is why what changed can be given to the archive as it is,
between two turns of the loop, however long its encoding takes afterwards.
They are kept out of the garbage collector (`gc=False`): none of them can be part of a cycle.


Who may touch a lease, or a place in the line: `may_touch`, asked by every decision (L3, S3).

A caller is a principal, the name of its token, and the session whose secret it used, if it used one.

- A token touches all that its principal claimed, bound to a session or not.
- A session's secret touches what is bound to that session, and nothing else: no run can release another's claim.

Which scope a request needs, and which names a confined token may speak of, is the server's to say: a principal is all
that the core knows of a token.

A run says no lease id when it comes back. `is_of_run` tells whether the live lease is its own.
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
ABSENT_MS_MAX = 60_000
"""How long a ticket waits for its holder to come back (W2)."""
INTEREST_MS = 60_000
INTERESTS_MAX = 100_000
"""Of all together; beyond it whoever has most gives first (D3)."""
INTERESTS_OF_HOLDER_MAX = 1_000
"""Of one holder: all of them are dropped when it gives anything back."""
REMEMBER_MS_MAX = 30 * 86_400_000
REASON_CHARS_MAX = 1_024
LABELS_MAX = 16
LABEL_KEY = re.compile(r"[A-Za-z0-9._/-]{1,63}")
LABEL_VALUE_CHARS_MAX = 128
LABELS_OF_ALL_BYTES_MAX = 2**20
"""Of the labels of a claim of all, as JSON, times its names: they stand in the lease of each."""
LABELS_OF_LINE_BYTES_MAX = 2**20
"""Of the labels, as JSON, of those in a line whom finished work answers: they stand in one record."""

Labels = dict[str, str]
"""What a claim is marked with, to be found by. Never changed once it is made."""


class Moment(msgspec.Struct, frozen=True, gc=False):
    """An instant: authority time to decide by (T1), wall time to show people (T4)."""

    ms: int
    wall_ms: int


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds a decision is made under. Every collection of the state has one here."""

    ttl_ms_max: int = 86_400_000
    session_ttl_ms_max: int = 86_400_000
    metadata_chars_max: int = 1_024
    leases_per_principal_max: int = 10_000
    sessions_per_principal_max: int = 10_000
    retry_memory_ms: int = 600_000
    retry_keys_max: int = 200_000
    retry_bytes_max: int = 128 * 2**20
    ended_names_max: int = 1_000_000
    ended_bytes_max: int = 128 * 2**20
    done_names_per_principal_max: int = 10_000
    done_bytes_per_principal_max: int = 16 * 2**20
    tokens_max: int = 10_000
    tickets_per_principal_max: int = 10_000
    waiting_names_per_principal_max: int = 10_000
    line_max: int = 20_000
    names_per_call_max: int = 1_000
    reentrant: str = "resume"
    """`resume`: only `resume: true` gives a lease back (C4). `holder`: an equal holder gets it unasked."""


class Terms(msgspec.Struct, frozen=True, gc=False):
    """What a claim asks for, whoever asks and however: the one value from the request to the lease.

    A command carries it, a place in the line keeps it, and `lease_from` makes the lease of it.
    """

    principal: str
    ttl_ms: int
    owner: str | None = None
    session: str | None = None
    bound: bool = False
    """Ends with its session (S2). A plain `session` only counts."""
    delay_ms: int = 0
    metadata: str | None = None
    redo: bool = False
    """Claim it although it is done (L5)."""
    key: str | None = None
    fingerprint: str = ""
    """What the request comes to: another request may not use its key again (C5)."""
    labels: Labels | None = None


class LastEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How the last lease of a name ended: what its successor is told (C7)."""

    how: str
    """`released`, `expired`, `revoked`, `session_ended` or `transferred`."""
    token: int
    owner: str | None
    note: str | None
    at_ms: int
    wall_ms: int
    by: str | None = None
    reason: str | None = None
    delay_ms: int = 0
    whose: str | None = None
    """The principal of a lease that named no owner, so that people are shown somebody."""


class Lease(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One live ownership of one name."""

    lease_id: str
    token: int
    principal: str
    owner: str | None
    session: str | None
    bound: bool
    """Ends with its session (S2). A plain `session` only counts."""
    ttl_ms: int
    until_ms: int
    """Its own deadline; `until_of` in the state also looks at the session."""
    delay_ms: int
    metadata: str | None
    note: str | None
    granted_wall_ms: int
    beat_wall_ms: int
    key: str | None = None
    renew_key: str | None = None
    labels: Labels | None = None
    offered: bool = False
    """A transfer addressed it to its owner, which has not renewed it yet: a session of that owner may take it (L8a)."""


class Done(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Work that is finished and remembered, so that nobody does it again (L5)."""

    owner: str | None
    token: int
    result: str | None
    wall_ms: int
    until_ms: int
    whose: str | None = None
    """As in `LastEnd`."""


class Slot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Everything known of one name."""

    lease: Lease | None = None
    closed_until_ms: int = 0
    last_end: LastEnd | None = None
    attempts: int = 0
    """Claims since the job last ended well (C7)."""
    done: Done | None = None
    left_by: str | None = None
    """The principal that a name which nobody holds is counted against, and its session if the lease was bound to it."""
    left_in: str | None = None


class Session(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A group of claims that ends together."""

    session_id: str
    principal: str
    name: str | None
    metadata: str | None
    ttl_ms: int
    until_ms: int
    opened_wall_ms: int
    key: str | None = None
    salt: str = ""
    """Makes its secret another than that of any other time (S5)."""


class Ticket(msgspec.Struct, frozen=True, gc=False):
    """A place in the line for a name, or for several at once (W2, M2). Carries the lease ids it will get.

    On the disk it is one flat row (`TicketRow` in the journal's codec).
    """

    ticket_id: str
    names: tuple[str, ...]
    lease_ids: tuple[str, ...]
    terms: Terms
    token_in_journal: bool = False
    """The principal's token was one of the journal's when it joined, so its revocation can be seen at the grant."""
    joined_wall_ms: int = 0

    @property
    def leases(self) -> dict[str, str]:
        """The lease id that it will get for each name. The order of the names is that of whoever joined."""
        return dict(zip(self.names, self.lease_ids, strict=True))


Holder = tuple[str, str, str | None]
"""Who waits for whom: a session and its owner, a principal and its owner, or one lease or ticket alone."""


class EndedLease(msgspec.Struct, frozen=True, array_like=True, tag="lease", gc=False):
    """A lease that is no more, remembered so that a retry or a late holder gets a true answer (C5)."""

    name: str
    principal: str
    session: str | None
    end: LastEnd
    key: str | None = None
    end_key: str | None = None
    bound: bool = False
    """Ended with its session, or could have: then it counts against that session."""

    @property
    def at_ms(self) -> int:
        """When it ended."""
        return self.end.at_ms


class EndedSession(msgspec.Struct, frozen=True, array_like=True, tag="session", gc=False):
    """A session that is no more. `how` is `expired`, `deleted` or `revoked`, which is the end of its token."""

    principal: str
    how: str
    at_ms: int
    wall_ms: int
    key: str | None = None
    end_key: str | None = None


class SpentKey(msgspec.Struct, frozen=True, array_like=True, tag="key", gc=False):
    """An idempotency key that belongs to neither a lease nor a session."""

    principal: str
    key: str
    at_ms: int
    session: str | None = None
    """The session it counts against, if what it was spent for was bound to one."""


Remembered = EndedLease | EndedSession | SpentKey
"""What the one retry memory keeps for a while after its end, oldest first."""


class Memo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an idempotency key made: `kind` is the operation, `made` the lease, session or token it made or ended.

    The kind `left` is a claim that has its place in the line no more, and `made` is that place: it was given up, or a
    later request of the same holder has it.
    """

    kind: str
    made: str
    fingerprint: str
    leases: int = 1
    """How many leases it made that live or are remembered: a claim of all makes several (M2)."""
    lease_ids: tuple[str, ...] = ()
    """The leases that a claim of all made, in the order of its names; empty for a claim of one."""


class AccessToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A bearer token as the journal knows it: never the token, only its digest."""

    name: str
    digest: str
    scopes: tuple[str, ...]
    prefix: str | None
    expires_wall_ms: int | None
    made_wall_ms: int
    made_by: str
    salt: str = ""
    """What a token made with an idempotency key is derived from, beside the key. Empty without one."""


def holder_of_lease(lease: Lease) -> Holder:
    """Return who holds a lease, as a knot of the graph."""
    return _holder(lease, lease.lease_id)


def holder_of_ticket(ticket: Ticket) -> Holder:
    """Return who stands in line: the one that its leases will belong to, or that place alone."""
    return _holder(ticket.terms, ticket.ticket_id)


def _holder(whose: Lease | Terms, itself: str) -> Holder:
    if whose.bound and whose.session is not None:
        return ("session", whose.session, whose.owner)
    if whose.owner is not None:
        return ("principal", whose.principal, whose.owner)
    return ("alone", itself, None)


def lease_from(terms: Terms, lease_id: str, token: int, now: Moment) -> Lease:
    """Make the lease that a claim with these terms gets at `now`. The only place where a lease begins from nothing."""
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
    """Return what is wrong with the labels of a claim, or None."""
    if len(labels) > LABELS_MAX:
        return f"a claim has at most {LABELS_MAX} labels, this one has {len(labels)}"
    for key, value in labels.items():
        if not LABEL_KEY.fullmatch(key):
            return f"{key[:64]!r} is no key of a label: 1 to 63 letters (a–z, A–Z), digits, '.', '_', '-', '/'"
        if len(value) > LABEL_VALUE_CHARS_MAX:
            return f"the label {key!r} has a value of at most {LABEL_VALUE_CHARS_MAX} characters"
    return None


def has_labels(labels: Labels | None, wanted: frozenset[tuple[str, str]]) -> bool:
    """Tell whether every pair of key and value that is wanted is there."""
    return wanted <= ({} if labels is None else labels).items()


def may_touch(whose: Lease | Terms, principal: str, as_session: str | None) -> bool:
    """Tell whether a caller may act on what was, or is about to be, claimed with these terms."""
    if whose.principal != principal:
        return False
    return as_session is None or (whose.bound and whose.session == as_session)


def is_of_run(lease: Lease, session: str | None, name: str | None, limits: Limits) -> bool:
    """Tell whether a live lease is a run's own: bound to its session, and held under the run's own name.

    What a subagent claimed under another name in the same session is not the run's. By `reentrant = "holder"` all that
    its session holds is.
    """
    if session is None or not lease.bound or lease.session != session:
        return False
    return limits.reentrant == "holder" or lease.owner == name
