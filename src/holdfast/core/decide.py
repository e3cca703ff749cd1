"""The one door to the decisions: which command goes where. The table is here, arithmetic in the modules it names.

`decide` and `settle` are plain functions of state and time. They change nothing that is durable: a decision is a list
of events, and `evolve` lets them take effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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


Decide = Callable[["State", Any, "Moment", "Limits"], "Decision"]

DECISIONS: dict[type, Decide] = {
    Acquire: claims.acquire,
    Renew: claims.renew,
    Release: claims.release,
    ClaimAny: several.claim_any,
    ClaimAll: several.claim_all,
    Leave: lambda state, command, _now, _limits: line.leave(state, command),
    Transfer: claims.transfer,
    Revoke: lambda state, command, now, _limits: claims.revoke(state, command, now),
    Reopen: lambda state, command, now, _limits: claims.reopen(state, command, now),
    KeepSession: lambda state, command, now, _limits: sessions.keep(state, command, now),
    RenewSession: lambda state, command, now, _limits: sessions.renew_all(state, command, now),
    OpenSession: sessions.open_,
    EndSession: lambda state, command, now, _limits: sessions.end(state, command, now),
    CreateToken: access.create,
    RevokeToken: lambda state, command, now, _limits: access.revoke(state, command, now),
    RotateToken: lambda state, command, now, _limits: access.rotate(state, command, now),
    NoteUses: lambda state, command, _now, _limits: access.note_uses(state, command),
}
"""Who decides what, by the type of the command. A table and no `match`: the last is found as fast as the first."""


def decide(state: State, command: Command, now: Moment, limits: Limits) -> Decision:
    """Decide one command. `settle` must have found nothing due at `now` before (T3)."""
    return DECISIONS[type(command)](state, command, now, limits)
