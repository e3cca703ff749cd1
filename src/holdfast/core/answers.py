"""Answers of the core that grant a request, as of the decision."""

from __future__ import annotations

import msgspec

from holdfast.core.values import AccessToken, LastEnd, Lease, Session


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
