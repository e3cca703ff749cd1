"""Answers and refusals of the core, as values."""

from __future__ import annotations

import msgspec

from holdfast.core.values import AccessToken, Done, EndedLease, LastEnd, Lease, Session


class Held(msgspec.Struct, frozen=True, gc=False):
    lease: Lease
    until_ms: int
    same_owner: bool  # The lease has the caller's owner name (C4).
    waiting: int = 0
    holder: str | None = None  # None if it has no name, or if the caller is not a run


class AllHeld(msgspec.Struct, frozen=True, gc=False):
    names: tuple[tuple[str, Held | Delayed], ...]  # those that are not free (M1, M2)
    retry_after_ms: int  # until the first may open


class Finished(msgspec.Struct, frozen=True, gc=False):
    name: str
    done: Done


class Deadlock(msgspec.Struct, frozen=True, gc=False):
    """The wait would close a cycle (D1).

    `path`: requester, what it wants, who holds that, what that holder wants, … The middle of a long one is left out:
    `…` takes the place of a holder, and the next entry says how many.
    """

    path: tuple[str, ...]
    own: Lease | None = None  # in a cycle of one, the requester's own lease (D1a)


class DeadlockSearchExceeded(msgspec.Struct, frozen=True, gc=False):
    limit: int  # of connected waits that are searched for a cycle (D1)


class TicketGone(msgspec.Struct, frozen=True, gc=False):
    """The caller has no such ticket: it lapsed, was used or never was (W2)."""


class TooManyTickets(msgspec.Struct, frozen=True, gc=False):
    limit: int
    of_session: bool = False


class QueueFull(msgspec.Struct, frozen=True, gc=False):
    limit: int


class NotHeld(msgspec.Struct, frozen=True, gc=False):
    """Nobody holds the name: there is nothing to end."""


class NotDone(msgspec.Struct, frozen=True, gc=False):
    """The name is not done, or no longer remembered as done."""


class NotAllowedAnyMore(msgspec.Struct, frozen=True, gc=False):
    """The waiter's token was revoked."""


class Delayed(msgspec.Struct, frozen=True, gc=False):
    until_ms: int
    end: LastEnd | None


class NotCurrent(msgspec.Struct, frozen=True, gc=False):
    succeeded: bool  # Another lease owns the name.
    ended: EndedLease | None = None  # what is remembered of the caller's


class SessionUnknown(msgspec.Struct, frozen=True, gc=False):
    """No such session, or somebody else's, which looks the same."""


class SessionLapsed(msgspec.Struct, frozen=True, gc=False):
    """The session missed its keepalive."""


class TooManyLeases(msgspec.Struct, frozen=True, gc=False):
    limit: int
    of_session: bool = False


class TooManySessions(msgspec.Struct, frozen=True, gc=False):
    limit: int


class QuotaExceeded(msgspec.Struct, frozen=True, gc=False):
    text: str  # names the setting


class TooManyTokens(msgspec.Struct, frozen=True, gc=False):
    limit: int


class BadTtl(msgspec.Struct, frozen=True, gc=False):
    max_ms: int


class BadField(msgspec.Struct, frozen=True, gc=False):
    text: str


class BadName(msgspec.Struct, frozen=True, gc=False):
    text: str  # why the name may not be claimed any more (N3)


class KeyConflict(msgspec.Struct, frozen=True, gc=False):
    """The idempotency key was used for another request (C5)."""


class TokenExists(msgspec.Struct, frozen=True, gc=False):
    """A token of that name is in use."""


class TokenUnknown(msgspec.Struct, frozen=True, gc=False):
    """No token of that name."""


class TokensExhausted(msgspec.Struct, frozen=True, gc=False):
    """The fencing counter is at its end, 2^53−1."""


NotFree = Held | AllHeld | Finished | Delayed
NotOwned = NotHeld | NotDone | NotCurrent | SessionUnknown | SessionLapsed
CannotWait = Deadlock | DeadlockSearchExceeded | TicketGone | TooManyTickets | QueueFull | NotAllowedAnyMore
OverLimit = TooManyLeases | TooManySessions | TooManyTokens | QuotaExceeded | TokensExhausted
Malformed = BadTtl | BadField | BadName | KeyConflict
Refusal = NotFree | NotOwned | CannotWait | OverLimit | Malformed | TokenExists | TokenUnknown


class Acquired(msgspec.Struct, frozen=True, gc=False):
    lease: Lease
    until_ms: int  # the earlier of the lease's and its session's deadline (S2)
    previous: LastEnd | None
    attempts: int
    reacquired: bool = False


class AcquiredMany(msgspec.Struct, frozen=True, gc=False):
    claims: tuple[tuple[str, Acquired], ...]


class MustWait(msgspec.Struct, frozen=True, gc=False):
    ticket_id: str
    wait_ms: int


class Waiting(msgspec.Struct, frozen=True, gc=False):
    ticket_id: str
    position: int


class Withdrawn(msgspec.Struct, frozen=True, gc=False):
    """The ticket is given up."""


class OpenAgain(msgspec.Struct, frozen=True, gc=False):
    """The name may be claimed again."""


class Extended(msgspec.Struct, frozen=True, gc=False):
    lease: Lease  # as it was before the renewal
    until_ms: int


class Released(msgspec.Struct, frozen=True, gc=False):
    """The name is free, or was freed by this very request before."""


class HandedOver(msgspec.Struct, frozen=True, gc=False):
    """An operator's transfer took effect. The new lease id is for the new owner alone."""


class SessionOpen(msgspec.Struct, frozen=True, gc=False):
    session: Session
    renewed: int = 0  # leases that were renewed with it (S4)


class SessionOver(msgspec.Struct, frozen=True, gc=False):
    """The session is over, with all that was bound to it."""


class TokenMade(msgspec.Struct, frozen=True, gc=False):
    token: AccessToken


class TokenGone(msgspec.Struct, frozen=True, gc=False):
    """The token has ended."""


class UsesRecorded(msgspec.Struct, frozen=True, gc=False):
    """The last uses of tokens are recorded."""


Claimed = Acquired | AcquiredMany | MustWait | Waiting
Changed = Withdrawn | OpenAgain | Extended | Released | HandedOver
Answer = Claimed | Changed | SessionOpen | SessionOver | TokenMade | TokenGone | UsesRecorded
