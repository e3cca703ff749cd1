"""The one door to the decisions: which command goes where. Branches live here, arithmetic in the modules it calls.

`decide` and `settle` are plain functions of state and time. They change nothing that is durable: a decision is a list
of events, and `evolve` lets them take effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core import access, claims, line, sessions, several
from holdfast.core.commands import (
    Acquire,
    ClaimAll,
    ClaimAny,
    Command,
    CreateToken,
    EndSession,
    KeepSession,
    Leave,
    NoteUses,
    OpenSession,
    Release,
    Renew,
    RenewSession,
    Reopen,
    Revoke,
    RevokeToken,
    RotateToken,
    Transfer,
)
from holdfast.core.settle import settle, settle_line

if TYPE_CHECKING:
    from holdfast.core.decision import Decision
    from holdfast.core.state import State
    from holdfast.core.values import Limits, Moment

__all__ = ["decide", "settle", "settle_line"]


def decide(state: State, command: Command, now: Moment, limits: Limits) -> Decision:
    """Decide one command. `settle` must have found nothing due at `now` before (T3)."""
    match command:
        case Acquire():
            return claims.acquire(state, command, now, limits)
        case Renew():
            return claims.renew(state, command, now, limits)
        case Release():
            return claims.release(state, command, now, limits)
        case ClaimAny():
            return several.claim_any(state, command, now, limits)
        case ClaimAll():
            return several.claim_all(state, command, now, limits)
        case Leave():
            return line.leave(state, command)
        case Transfer():
            return claims.transfer(state, command, now, limits)
        case Revoke():
            return claims.revoke(state, command, now)
        case Reopen():
            return claims.reopen(state, command, now)
        case KeepSession():
            return sessions.keep(state, command, now)
        case RenewSession():
            return sessions.renew_all(state, command, now)
        case OpenSession():
            return sessions.open_(state, command, now, limits)
        case EndSession():
            return sessions.end(state, command, now)
        case CreateToken():
            return access.create(state, command, now, limits)
        case RevokeToken():
            return access.revoke(state, command, now)
        case RotateToken():
            return access.rotate(state, command, now)
        case NoteUses():
            return access.note_uses(state, command)
