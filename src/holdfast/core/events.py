"""What was decided: the records of the journal. Past participles; each holds the decision, never the question.

A field may be added at the end with a default; none is ever removed, moved or given another meaning. So a newer
version replays an older journal unchanged; `tests/journal/kept` has a journal of every release to prove it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.core.values import AccessToken, Done, Labels, Lease, Session, Terms, Ticket

if TYPE_CHECKING:
    from collections.abc import Iterator


class Opened(msgspec.Struct, frozen=True, array_like=True, tag="opened", gc=False):
    """An authority took the writer's seat. It is the proof that the journal takes writes."""

    epoch: int
    version: str


class Granted(msgspec.Struct, frozen=True, array_like=True, tag="granted", gc=False):
    """A name has a new live lease."""

    name: str
    lease: Lease
    fingerprint: str = ""
    ticket_id: str | None = None
    """The place in the line that it was granted to."""


class GrantedMany(msgspec.Struct, frozen=True, array_like=True, tag="granted_many"):
    """Several names have a new live lease, all in this one record (M2)."""

    grants: tuple[Granted, ...]
    ticket_id: str | None = None


class Transferred(msgspec.Struct, frozen=True, array_like=True, tag="transferred", gc=False):
    """A lease went over to another owner: the old one is over, the new one begins (L8)."""

    name: str
    old_lease_id: str
    lease: Lease
    by: str
    key: str | None = None
    fingerprint: str = ""
    reason: str | None = None
    """The old owner is told, and the history keeps it."""


class Reopened(msgspec.Struct, frozen=True, array_like=True, tag="reopened", gc=False):
    """Finished work may be claimed again (L5)."""

    name: str
    by: str
    reason: str | None = None
    key: str | None = None
    fingerprint: str = ""


class Joined(msgspec.Struct, frozen=True, array_like=True, tag="joined", gc=False):
    """A claim waits in the queue of its names."""

    ticket: Ticket


class TakenOver(msgspec.Struct, frozen=True, array_like=True, tag="taken_over", gc=False):
    """Another request of the same holder has the place now, with its own terms. The names stay as they are (W3).

    It is not another `Joined`: a place may have a thousand names, and anybody may come back often.
    """

    ticket_id: str
    terms: Terms


class Left(msgspec.Struct, frozen=True, array_like=True, tag="left", gc=False):
    """Somebody stands in line no more.

    `how` is `gone`, `withdrawn`, `deadlock`, `refused`, `done`, `session_ended` or `token_ended`.
    """

    ticket_id: str
    how: str
    names: tuple[str, ...] = ()
    """What it stood in line for. None, inside the end of a lease: the one name of that lease."""
    owner: str | None = None
    labels: Labels | None = None
    is_remembered: bool = False
    """Whether its key is remembered like that of a lease that ended (C5)."""
    principal: str | None = None
    """Whose place it was: the history is counted against whoever left it."""


class Renewed(msgspec.Struct, frozen=True, array_like=True, tag="renewed", gc=False):
    """A lease has a new deadline. `note` and `metadata` None leave what was there.

    `claim_key` is the idempotency key of the claim that was given its own lease back (C4, C5).
    """

    name: str
    lease_id: str
    ttl_ms: int
    until_ms: int
    note: str | None = None
    metadata: str | None = None
    key: str | None = None
    claim_key: str | None = None
    fingerprint: str = ""
    session: str | None = None
    """The session that took a transferred lease up, and that the lease is bound to from now on (L8a)."""


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended", gc=False):
    """A lease is over. `well` resets the attempts (C7); `closed_until_ms` keeps the name closed (L6)."""

    name: str
    lease_id: str
    token: int
    how: str
    well: bool
    closed_until_ms: int = 0
    by: str | None = None
    reason: str | None = None
    key: str | None = None
    fingerprint: str = ""
    done: Done | None = None
    """Finished: every ticket in line without `redo` has its answer by this record (L5)."""
    owner: str | None = None
    note: str | None = None
    left: tuple[Left, ...] = ()
    """Those in line whom finished work answers, in this very record (L5)."""
    labels: Labels | None = None
    principal: str | None = None
    """Whose lease it was: what is remembered of it is counted against that one."""
    whose: str | None = None
    """What `LastEnd` keeps of a lease that named no owner."""


class SessionOpened(msgspec.Struct, frozen=True, array_like=True, tag="session_opened", gc=False):
    """A session began."""

    session: Session
    fingerprint: str = ""


class SessionKept(msgspec.Struct, frozen=True, array_like=True, tag="session_kept", gc=False):
    """A session has a new deadline."""

    session_id: str
    until_ms: int


class SessionRenewed(msgspec.Struct, frozen=True, array_like=True, tag="session_renewed"):
    """A session has a new deadline, and so has each lease bound to it (S4)."""

    session_id: str
    until_ms: int
    leases: tuple[Renewed, ...]


class SessionEnded(msgspec.Struct, frozen=True, array_like=True, tag="session_ended"):
    """A session is over, with all that was bound to it (I10). `how` is `expired`, `deleted` or `revoked`."""

    session_id: str
    how: str
    leases: tuple[Ended, ...]
    by: str | None = None
    key: str | None = None
    fingerprint: str = ""
    left: tuple[Left, ...] = ()
    """The places in line that end with it."""
    principal: str | None = None
    """Whose session it was."""


class TokenCreated(msgspec.Struct, frozen=True, array_like=True, tag="token_created", gc=False):
    """A bearer token was let in. Holds its digest, never the token."""

    token: AccessToken
    key: str | None = None
    fingerprint: str = ""


class TokenRevoked(msgspec.Struct, frozen=True, array_like=True, tag="token_revoked", gc=False):
    """A bearer token was shut out, and nothing of its principal ended: it has a token of the settings too."""

    name: str
    by: str
    key: str | None = None
    fingerprint: str = ""


class TokenEnded(msgspec.Struct, frozen=True, array_like=True, tag="token_ended"):
    """A bearer token was shut out, with its sessions and places in line, all in this one record (S5).

    With `keeps_sessions` its sessions live on, with all that is bound to them, for the next token of that name.
    `successor` is that next token, if there is one at once.
    """

    name: str
    by: str
    sessions: tuple[SessionEnded, ...] = ()
    left: tuple[Left, ...] = ()
    """The places in line that are not bound to a session."""
    keeps_sessions: bool = False
    successor: AccessToken | None = None
    key: str | None = None
    fingerprint: str = ""


class TokensUsed(msgspec.Struct, frozen=True, array_like=True, tag="tokens_used"):
    """Tokens were used: each name with the minute of its last use, as wall time. 0: nothing is known of it any more."""

    uses: tuple[tuple[str, int], ...]


class Forgotten(msgspec.Struct, frozen=True, array_like=True, tag="forgotten", gc=False):
    """The oldest so many entries of the retry memory were dropped."""

    remembered: int


class SharesForgotten(msgspec.Struct, frozen=True, array_like=True, tag="shares_forgotten", gc=False):
    """A limit was passed, and the eldest of whoever had most went: each part names a principal and a session, or None.

    `remembered` says how many entries of the retry memory were dropped. `names` says how many free names were looked
    at: those that may go were dropped, the others were put behind the rest.
    """

    remembered: tuple[tuple[str, str | None, int], ...] = ()
    names: tuple[tuple[str, str | None, int], ...] = ()


class DoneFaded(msgspec.Struct, frozen=True, array_like=True, tag="done_faded", gc=False):
    """Finished work is no longer remembered: its time is over (L5)."""

    names: tuple[str, ...]


class TimePassed(msgspec.Struct, frozen=True, array_like=True, tag="time_passed", gc=False):
    """Authority time is kept: nothing else was written for a while (T2), or a delay is over (T3a).

    A crash gives back no more than what has passed since the last record.
    """


class Restored(msgspec.Struct, frozen=True, array_like=True, tag="restored", gc=False):
    """The journal was made from a backup, or its store lost records: the fencing tokens jumped (C6).

    Nobody knows what was given out after the backup was made. So the next fencing token is greater than any of those.
    In a directory the numbers of records jumped too. In a store that went back by itself they did not: there this is
    the record after `backup_seq`.
    """

    last_token: int
    """Fencing tokens go on after this one."""
    backup_seq: int
    """The last record that the backup has."""
    backup_wall_ms: int
    """When the backup was made."""
    version: str


LeaseEvent = Granted | GrantedMany | Transferred | Reopened | Renewed | Ended
QueueEvent = Joined | TakenOver | Left
SessionEvent = SessionOpened | SessionKept | SessionRenewed | SessionEnded
TokenEvent = TokenCreated | TokenRevoked | TokenEnded | TokensUsed
Event = (
    LeaseEvent
    | QueueEvent
    | SessionEvent
    | TokenEvent
    | (Forgotten | SharesForgotten | DoneFaded | TimePassed | Opened | Restored)
)


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One place in the journal: its number, authority time, wall time for people, and what was decided."""

    seq: int
    at_ms: int
    wall_ms: int
    event: Event


_GRANTING = (Granted, Transferred)
_ENDING = (Ended, Transferred)


def parts_of(event: Event) -> Iterator[Event]:
    """Yield the simple events that an event consists of: itself, or its parts in their order."""
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
    """Return the names that this event granted, each with its new lease."""
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
            return any(each.leases for each in event.sessions)
        case _:
            return False


BAD_WORDS = ("expired", "revoked", "failed")


def owners_of(event: Event) -> set[str | None]:
    """Return the owners that this event names."""
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
    """Return whom the history of this event is counted against; nobody is the empty name."""
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
            # Most of it are the ends of what that principal had, and not the operator's doing.
            return event.name
        case _:
            return ""


def is_history(event: Event) -> bool:
    """Return whether the event is kept once it is archived. Renewals and ticks are most of the traffic and are not."""
    return type(event) not in _WITHOUT_HISTORY


_WITHOUT_HISTORY = frozenset(
    {Renewed, TakenOver, SessionKept, SessionRenewed, TokensUsed, Forgotten, SharesForgotten, DoneFaded, TimePassed}
)
