"""Events, the records of the journal: each holds what was decided.

A field may be added at the end with a default; none is ever removed, moved or given another meaning. So a newer
version replays an older journal unchanged; `tests/journal/kept` has a journal of every release to prove it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from holdfast.core.values import AccessToken, Done, Labels, Lease, Session, Terms, Ticket


class Opened(msgspec.Struct, frozen=True, array_like=True, tag="opened", gc=False):
    """An authority opened the journal; the record proves that the journal takes writes."""

    epoch: int
    version: str


class Granted(msgspec.Struct, frozen=True, array_like=True, tag="granted", gc=False):
    name: str
    lease: Lease
    fingerprint: str = ""
    ticket_id: str | None = None


class GrantedMany(msgspec.Struct, frozen=True, array_like=True, tag="granted_many"):
    grants: tuple[Granted, ...]
    ticket_id: str | None = None


class Transferred(msgspec.Struct, frozen=True, array_like=True, tag="transferred", gc=False):
    name: str
    old_lease_id: str
    lease: Lease
    by: str
    key: str | None = None
    fingerprint: str = ""
    reason: str | None = None


class Reopened(msgspec.Struct, frozen=True, array_like=True, tag="reopened", gc=False):
    name: str
    by: str
    reason: str | None = None
    key: str | None = None
    fingerprint: str = ""


class Joined(msgspec.Struct, frozen=True, array_like=True, tag="joined", gc=False):
    ticket: Ticket


class TicketReassigned(msgspec.Struct, frozen=True, array_like=True, tag="taken_over", gc=False):
    """Another request of the same holder has the ticket, with its own terms but the same names (W3).

    Not another `Joined`: a ticket may have a thousand names, and its holder may come back often.
    """

    ticket_id: str
    terms: Terms


class Left(msgspec.Struct, frozen=True, array_like=True, tag="left", gc=False):
    ticket_id: str
    how: str  # `gone`, `withdrawn`, `deadlock`, `refused`, `done`, `session_ended` or `token_ended`
    names: tuple[str, ...] = ()  # empty inside the end of a lease: then it is that lease's name
    owner: str | None = None
    labels: Labels | None = None
    is_remembered: bool = False
    principal: str | None = None


class Renewed(msgspec.Struct, frozen=True, array_like=True, tag="renewed", gc=False):
    name: str
    lease_id: str
    ttl_ms: int
    until_ms: int
    note: str | None = None  # None, as in `metadata`, leaves what was there
    metadata: str | None = None
    key: str | None = None
    claim_key: str | None = None  # idempotency key of a claim that got its own lease back (C4, C5)
    fingerprint: str = ""
    session: str | None = None  # took a transferred lease up: the lease is bound to it from now on (L8a)


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended", gc=False):
    name: str
    lease_id: str
    token: int
    how: str
    well: bool  # resets the attempts (C7)
    closed_until_ms: int = 0  # keeps the name closed (L6)
    by: str | None = None
    reason: str | None = None
    key: str | None = None
    fingerprint: str = ""
    done: Done | None = None
    owner: str | None = None
    note: str | None = None
    left: tuple[Left, ...] = ()
    labels: Labels | None = None
    principal: str | None = None
    whose: str | None = None


class SessionOpened(msgspec.Struct, frozen=True, array_like=True, tag="session_opened", gc=False):
    session: Session
    fingerprint: str = ""


class SessionExtended(msgspec.Struct, frozen=True, array_like=True, tag="session_kept", gc=False):
    session_id: str
    until_ms: int


class SessionRenewed(msgspec.Struct, frozen=True, array_like=True, tag="session_renewed"):
    session_id: str
    until_ms: int
    leases: tuple[Renewed, ...]  # each lease bound to it (S4)


class SessionEnded(msgspec.Struct, frozen=True, array_like=True, tag="session_ended"):
    session_id: str
    how: str  # `expired`, `deleted` or `revoked`
    leases: tuple[Ended, ...]  # all that were bound to it (I10)
    by: str | None = None
    key: str | None = None
    fingerprint: str = ""
    left: tuple[Left, ...] = ()
    principal: str | None = None


class TokenCreated(msgspec.Struct, frozen=True, array_like=True, tag="token_created", gc=False):
    token: AccessToken
    key: str | None = None
    fingerprint: str = ""


class TokenRevoked(msgspec.Struct, frozen=True, array_like=True, tag="token_revoked", gc=False):
    """Nothing of the principal ended: it has a token of the settings too."""

    name: str
    by: str
    key: str | None = None
    fingerprint: str = ""


class TokenEnded(msgspec.Struct, frozen=True, array_like=True, tag="token_ended"):
    """A bearer token ended, with its sessions and its unbound tickets, all in one record (S5)."""

    name: str
    by: str
    sessions: tuple[SessionEnded, ...] = ()
    left: tuple[Left, ...] = ()
    keeps_sessions: bool = False  # They live on, with all that is bound to them, for the next token of that name.
    successor: AccessToken | None = None  # that next token, if the token was rotated
    key: str | None = None
    fingerprint: str = ""


class TokensUsed(msgspec.Struct, frozen=True, array_like=True, tag="tokens_used"):
    uses: tuple[tuple[str, int], ...]  # each name with the minute of its last use, as wall time; 0 forgets it


class Forgotten(msgspec.Struct, frozen=True, array_like=True, tag="forgotten", gc=False):
    remembered: int  # the oldest entries of the retry memory that were dropped


class UsageEvicted(msgspec.Struct, frozen=True, array_like=True, tag="shares_forgotten", gc=False):
    """A limit was exceeded: the oldest of the largest accounts (principal, session or None, how many) were dropped."""

    remembered: tuple[tuple[str, str | None, int], ...] = ()
    # Free names that were checked: those that may go were dropped, the others moved after the rest.
    names: tuple[tuple[str, str | None, int], ...] = ()


class DoneExpired(msgspec.Struct, frozen=True, array_like=True, tag="done_faded", gc=False):
    names: tuple[str, ...]


class TimePassed(msgspec.Struct, frozen=True, array_like=True, tag="time_passed", gc=False):
    """Keeps authority time, which a crash sets back to the last record: after a silence (T2), or a delay (T3a)."""


class Restored(msgspec.Struct, frozen=True, array_like=True, tag="restored", gc=False):
    """The journal was made from a backup, or its store lost records: the fencing tokens jumped (C6).

    The next fencing token is greater than any that was given out since. In a directory the record numbers jumped too.
    In a store that went back by itself they did not: there this is the record after `backup_seq`, its last one.
    """

    last_token: int
    backup_seq: int
    backup_wall_ms: int
    version: str


LeaseEvent = Granted | GrantedMany | Transferred | Reopened | Renewed | Ended
QueueEvent = Joined | TicketReassigned | Left
SessionEvent = SessionOpened | SessionExtended | SessionRenewed | SessionEnded
TokenEvent = TokenCreated | TokenRevoked | TokenEnded | TokensUsed
Event = (
    LeaseEvent
    | QueueEvent
    | SessionEvent
    | TokenEvent
    | (Forgotten | UsageEvicted | DoneExpired | TimePassed | Opened | Restored)
)


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    seq: int
    at_ms: int
    wall_ms: int
    event: Event


_GRANTING = (Granted, Transferred)
_ENDING = (Ended, Transferred)


def parts_of(event: Event) -> Iterator[Event]:
    """Yield the simple events that an event consists of, in order; most consist of themselves."""
    match event:
        case Ended():
            yield event
            yield from event.left
        case GrantedMany():
            yield from event.grants
        case SessionEnded():
            yield from event.leases
            yield from event.left
        case TokenEnded():
            for session in event.sessions:
                yield from parts_of(session)
            yield from event.left
        case _:
            yield event


def names_of(event: Event) -> tuple[str, ...]:
    """Return the names whose history this event belongs to; none for an event without history value."""
    match event:
        case Granted() | Transferred() | Reopened() | Ended(left=()):
            return (event.name,)
        case Joined():
            return event.ticket.names
        case Left():
            return event.names
        case Ended() | GrantedMany() | SessionEnded() | TokenEnded():
            parts = [part.names if isinstance(part, Left) else (part.name,) for part in parts_of(event)]  # type: ignore[union-attr]
            return tuple(dict.fromkeys(name for names in parts for name in names))
        case _:
            return ()


def grants_of(event: Event) -> tuple[tuple[str, Lease], ...]:
    return tuple((part.name, part.lease) for part in parts_of(event) if isinstance(part, _GRANTING))


def ends_of(event: Event) -> tuple[str, ...]:
    """Return the names whose leases this event ended. A transferred one was free in between (L8)."""
    return tuple(part.name for part in parts_of(event) if isinstance(part, _ENDING))


def ended_badly(event: Event) -> bool:
    """Return whether this event ended a lease by expiry, by force, or as failed.

    The encoding of each such event contains one of `BAD_WORDS`.
    """
    match event:
        case Ended():
            return not event.well
        case SessionEnded():
            return event.how != "deleted" and bool(event.leases)
        case TokenEnded():
            return any(waiter.leases for waiter in event.sessions)
        case _:
            return False


BAD_WORDS = ("expired", "revoked", "failed")


def owners_of(event: Event) -> set[str | None]:
    owners: set[str | None] = set()
    for part in parts_of(event):
        match part:
            case Granted() | Transferred():
                owners.add(part.lease.owner)
            case Left() | Ended():
                owners.add(part.owner)
            case Joined():
                owners.add(part.ticket.terms.owner)
            case _:
                pass
    return owners


def principal_of(event: Event) -> str:
    """Return the principal that the history of this event is counted against; the empty name for none."""
    match event:
        case Granted() | Transferred():
            return event.lease.principal
        case GrantedMany():
            return event.grants[0].lease.principal
        case Ended() | Left() | SessionEnded():
            return event.principal or ""
        case Joined():
            return event.ticket.terms.principal
        case SessionOpened():
            return event.session.principal
        case TokenCreated():
            return event.token.made_by
        case TokenRevoked() | Reopened():
            return event.by
        case TokenEnded():
            return event.name  # Most of it are the ends of what that principal had, not the operator's.
        case _:
            return ""


def is_history(event: Event) -> bool:
    """Return whether the event is kept once it is archived. Renewals and ticks are most of the traffic and are not."""
    return type(event) not in _WITHOUT_HISTORY


_WITHOUT_HISTORY = frozenset(
    {
        Renewed,
        TicketReassigned,
        SessionExtended,
        SessionRenewed,
        TokensUsed,
        Forgotten,
        UsageEvicted,
        DoneExpired,
        TimePassed,
    }
)


HistoryEvent: TypeAlias = Granted | Ended | Transferred | Reopened | Joined | Left  # The events that tell of names.


def events_by_name(event: Event) -> Iterator[tuple[str, HistoryEvent]]:
    """Yield each name that an event concerns, with its part of the event."""
    match event:
        case Ended():
            yield event.name, event
            yield from _left(event.left, (event.name,))
        case Granted() | Transferred() | Reopened():
            yield event.name, event
        case GrantedMany():
            for grant in event.grants:
                yield grant.name, grant
        case SessionEnded():
            for ended in event.leases:
                yield ended.name, ended
            yield from _left(event.left)
        case TokenEnded():
            for session in event.sessions:
                yield from events_by_name(session)
            yield from _left(event.left)
        case Joined():
            for name in event.ticket.names:
                yield name, event
        case Left():
            yield from _left((event,))
        case _:
            return


def _left(those: tuple[Left, ...], own: tuple[str, ...] = ()) -> Iterator[tuple[str, HistoryEvent]]:
    """Yield waiters that left. A ticket without names in the end of a lease was for the lease's own name."""
    for waiter in those:
        for name in waiter.names or own:
            yield name, waiter


def claim_of(event: HistoryEvent) -> Lease | Terms | Ended | Left | None:
    match event:
        case Granted() | Transferred():
            return event.lease
        case Joined():
            return event.ticket.terms
        case Reopened():
            return None
        case _:
            return event


def labels_of(event: HistoryEvent) -> Labels | None:
    claim = claim_of(event)
    return None if claim is None else claim.labels
