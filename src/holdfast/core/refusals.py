"""What the core answers when it refuses. A refusal is a value with everything the caller needs to decide what next."""

from __future__ import annotations

import msgspec

from holdfast.core.values import Done, EndedLease, LastEnd, Lease


class Held(msgspec.Struct, frozen=True, gc=False):
    """Somebody owns the name (C2). `same_owner`: it calls itself what the caller calls itself (C4)."""

    lease: Lease
    until_ms: int
    same_owner: bool
    waiting: int = 0
    """How many waited for it when this was decided."""
    holder: str | None = None
    """What people called the holder then; None if it had no name, or if the caller is not a run."""


class AllHeld(msgspec.Struct, frozen=True, gc=False):
    """None of the names, or not all of them, can be had (M1, M2). `retry_after_ms`: when the first may open."""

    names: tuple[tuple[str, Held | Delayed], ...]
    retry_after_ms: int


class Finished(msgspec.Struct, frozen=True, gc=False):
    """The work is done and remembered (L5)."""

    name: str
    done: Done


class Deadlock(msgspec.Struct, frozen=True, gc=False):
    """The wait would close a circle (D1). `path`: requester, what it wants, who holds that, what that one wants …."""

    path: tuple[str, ...]
    """Of a long one the middle is left out: `…` stands for a holder there, and the next place says how many."""
    own: Lease | None = None
    """In a circle of one, the requester's own lease that it would wait for (D1a)."""


class TooTangled(msgspec.Struct, frozen=True, gc=False):
    """Too many waits hang together to rule out a circle among them (D1). `limit`: how many may be looked at."""

    limit: int


class TicketGone(msgspec.Struct, frozen=True, gc=False):
    """No such place in the line of this caller: it lapsed, was used or never was (W2)."""


class TooManyTickets(msgspec.Struct, frozen=True, gc=False):
    """The principal, or one of its sessions, has as many places in lines as it may."""

    limit: int
    of_session: bool = False


class LineFull(msgspec.Struct, frozen=True, gc=False):
    """The line for a name is as long as it may be."""

    limit: int


class NotHeld(msgspec.Struct, frozen=True, gc=False):
    """Nobody holds the name: there is nothing to end."""


class NotDone(msgspec.Struct, frozen=True, gc=False):
    """The name is not done, or no longer remembered as done: there is nothing to reopen."""


class NotAllowedAnyMore(msgspec.Struct, frozen=True, gc=False):
    """The token that stood in line was revoked."""


class Delayed(msgspec.Struct, frozen=True, gc=False):
    """The name is closed after its last end (L6)."""

    until_ms: int
    end: LastEnd | None


class NotCurrent(msgspec.Struct, frozen=True, gc=False):
    """The lease id does not own the name. `succeeded`: somebody else does by now. `ended`: what is remembered of it."""

    succeeded: bool
    ended: EndedLease | None = None


class SessionUnknown(msgspec.Struct, frozen=True, gc=False):
    """No such session, or somebody else's: the two cannot be told apart."""


class SessionLapsed(msgspec.Struct, frozen=True, gc=False):
    """The session missed its keepalive."""


class TooManyLeases(msgspec.Struct, frozen=True, gc=False):
    """The principal, or one of its sessions, holds as many as it may."""

    limit: int
    of_session: bool = False


class TooManySessions(msgspec.Struct, frozen=True, gc=False):
    """The principal has as many sessions as it may."""

    limit: int


class QuotaExceeded(msgspec.Struct, frozen=True, gc=False):
    """A principal, or one of its sessions, has as much of something as it may; the text names the setting."""

    text: str


class TooManyTokens(msgspec.Struct, frozen=True, gc=False):
    """There are as many tokens as there may be."""

    limit: int


class BadTtl(msgspec.Struct, frozen=True, gc=False):
    """The ttl is not in 1 ms … `max_ms`."""

    max_ms: int


class BadField(msgspec.Struct, frozen=True, gc=False):
    """A field has a value that no request may have; the text says which and what to do."""

    text: str


class BadName(msgspec.Struct, frozen=True, gc=False):
    """The name may not be claimed anew (N3); the text says which character is in the way and what to do."""

    text: str


class KeyConflict(msgspec.Struct, frozen=True, gc=False):
    """The idempotency key was used for another request (C5)."""


class TokenExists(msgspec.Struct, frozen=True, gc=False):
    """A token of that name is in use."""


class TokenUnknown(msgspec.Struct, frozen=True, gc=False):
    """No token of that name."""


class TokensExhausted(msgspec.Struct, frozen=True, gc=False):
    """The fencing counter is at its end: 2^53−1 grants were made."""


Taken = Held | AllHeld | Finished | Delayed
NotOwned = NotHeld | NotDone | NotCurrent | SessionUnknown | SessionLapsed
CannotWait = Deadlock | TooTangled | TicketGone | TooManyTickets | LineFull | NotAllowedAnyMore
OverLimit = TooManyLeases | TooManySessions | TooManyTokens | QuotaExceeded | TokensExhausted
Malformed = BadTtl | BadField | BadName | KeyConflict
Refusal = Taken | NotOwned | CannotWait | OverLimit | Malformed | TokenExists | TokenUnknown
