"""Whether a record speaks of what is there. Asked before one is replayed: `evolve` takes all it says for granted."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast.core.events import (
    DoneFaded,
    Ended,
    Event,
    Granted,
    GrantedMany,
    Joined,
    Left,
    Renewed,
    Reopened,
    Restored,
    SessionEnded,
    SessionKept,
    SessionRenewed,
    TakenOver,
    TokenEnded,
    TokenRevoked,
    Transferred,
)

if TYPE_CHECKING:
    from holdfast.core.state import State


def event_fits(state: State, event: Event) -> bool:
    """Tell whether the event speaks of what is there: a journal that does not fit its own past is damaged."""
    match event:
        case Granted():
            free = state.lease_of(event.name) is None and event.lease.token > state.last_token
            return free and (event.ticket_id is None or event.ticket_id in state.tickets)
        case GrantedMany():
            tokens = [state.last_token, *(grant.lease.token for grant in event.grants)]
            free = all(state.lease_of(grant.name) is None for grant in event.grants)
            rising = all(one < other for one, other in pairwise(tokens))
            return free and rising and (event.ticket_id is None or event.ticket_id in state.tickets)
        case Joined():
            return event.ticket.ticket_id not in state.tickets
        case Transferred():
            old = state.lease_of(event.name)
            return old is not None and old.lease_id == event.old_lease_id and event.lease.token > state.last_token
        case Left() | TakenOver():
            return event.ticket_id in state.tickets
        case Reopened():
            return event.name in state.slots
        case Renewed() | Ended():
            lease = state.lease_of(event.name)
            if lease is None or lease.lease_id != event.lease_id:
                return False
            if isinstance(event, Renewed):
                return event.session is None or event.session in state.sessions
            return _places_fit(state, event.left)
        case SessionKept():
            return event.session_id in state.sessions
        case SessionRenewed():
            return event.session_id in state.sessions and all(event_fits(state, renewed) for renewed in event.leases)
        case SessionEnded():
            fits = event.session_id in state.sessions and all(event_fits(state, ended) for ended in event.leases)
            return fits and _places_fit(state, event.left)
        case TokenRevoked():
            return event.name in state.tokens
        case Restored():
            return event.last_token > state.last_token
        case DoneFaded():
            return all(name in state.slots for name in event.names)
        case TokenEnded():
            fits = event.name in state.tokens and all(event_fits(state, each) for each in event.sessions)
            return fits and _places_fit(state, event.left)
        case _:
            return True


def _places_fit(state: State, left: tuple[Left, ...]) -> bool:
    return all(each.ticket_id in state.tickets for each in left)
