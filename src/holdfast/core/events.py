"""What was decided: the records of the journal. Past participles; each holds the decision, never the question.

A field may be added at the end with a default; none is ever removed, moved or given another meaning. So a newer
version replays an older journal unchanged, and `tests/journal` keeps a journal of every format to prove it.
"""

from __future__ import annotations

import msgspec

from holdfast.core.values import AccessToken, Lease, Session


class Opened(msgspec.Struct, frozen=True, array_like=True, tag="opened", gc=False):
    """An authority took the writer's seat. It is the proof that the journal takes writes."""

    epoch: int
    version: str


class Granted(msgspec.Struct, frozen=True, array_like=True, tag="granted", gc=False):
    """A name has a new live lease."""

    name: str
    lease: Lease
    fingerprint: str = ""


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
    """A session is over, with all that was bound to it (I10). `how` is `expired` or `deleted`."""

    session_id: str
    how: str
    leases: tuple[Ended, ...]
    by: str | None = None
    key: str | None = None
    fingerprint: str = ""


class TokenCreated(msgspec.Struct, frozen=True, array_like=True, tag="token_created", gc=False):
    """A bearer token was let in. Holds its digest, never the token."""

    token: AccessToken
    key: str | None = None
    fingerprint: str = ""


class TokenRevoked(msgspec.Struct, frozen=True, array_like=True, tag="token_revoked", gc=False):
    """A bearer token was shut out."""

    name: str
    by: str
    key: str | None = None
    fingerprint: str = ""


class Forgotten(msgspec.Struct, frozen=True, array_like=True, tag="forgotten", gc=False):
    """The oldest so many of what is only remembered were dropped: of the retry memory, and of the free names."""

    remembered: int = 0
    names: int = 0


class TimePassed(msgspec.Struct, frozen=True, array_like=True, tag="time_passed", gc=False):
    """Nothing else was written for a while: authority time is kept, so that a crash gives little of it back (T2)."""


Event = (
    Opened
    | Granted
    | Renewed
    | Ended
    | SessionOpened
    | SessionKept
    | SessionRenewed
    | SessionEnded
    | TokenCreated
    | TokenRevoked
    | Forgotten
    | TimePassed
)


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One place in the journal: its number, authority time, wall time for people, and what was decided."""

    seq: int
    at_ms: int
    wall_ms: int
    event: Event


def names_of(event: Event) -> tuple[str, ...]:
    """Return the names whose history this event belongs to; none for what has no history value."""
    match event:
        case Granted() | Ended():
            return (event.name,)
        case SessionEnded():
            return tuple(ended.name for ended in event.leases)
        case _:
            return ()


def is_history(event: Event) -> bool:
    """Tell whether the event outlives the next snapshot. Renewals and ticks are most of the traffic and do not."""
    return not isinstance(event, Renewed | SessionKept | SessionRenewed | Forgotten | TimePassed)
