"""What one principal may have at the same time, and each of its sessions half of that. Refusals name the setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core import refusals
from holdfast.core.shares import exceeded, half_of, may

if TYPE_CHECKING:
    from holdfast.core.refusals import Refusal
    from holdfast.core.state import State
    from holdfast.core.values import Limits, Terms, Ticket


def too_many_leases(
    state: State, terms: Terms, wanted: int, limits: Limits, *, already: int = 0
) -> refusals.TooManyLeases | None:
    """Return that so many more leases are too many for the caller. The principal has `already` so many of them."""
    held = state.index.lease_count.get(terms.principal, 0) - already
    bound = len(state.index.names_by_session.get(terms.session or "", ())) if terms.bound else None
    whole = limits.leases_per_principal_max
    limit = exceeded(whole, wanted, held, bound)
    return None if limit is None else refusals.TooManyLeases(limit, limit != whole)


def no_place(state: State, ticket: Ticket, limits: Limits) -> Refusal | None:
    """Return why whoever asks may not stand in these lines: its places, the names it waits for, or the line itself."""
    index, who = state.index, ticket.terms.principal
    session = ticket.terms.session if ticket.terms.bound else None
    places = len(index.tickets_by_principal.get(who, ()))
    bound = None if session is None else len(index.tickets_by_session.get(session, ()))
    limit = exceeded(limits.tickets_per_principal_max, 1, places, bound)
    if limit is not None:
        return refusals.TooManyTickets(limit, limit != limits.tickets_per_principal_max)
    waiting = index.waiting_names
    names = None if session is None else waiting.get((who, session), 0)
    whole = limits.waiting_names_per_principal_max
    limit = exceeded(whole, len(ticket.names), waiting.get((who, None), 0), names)
    if limit is not None:
        whose = may(f"wait for {limit} names", of_session=limit != whole)
        return refusals.QuotaExceeded(
            f"{whose} (waiting_names_per_principal_max): leave some lines, or wait for fewer names"
        )
    for name in ticket.names:
        if len(index.lines.get(name, ())) >= limits.line_max:
            return refusals.LineFull(limits.line_max)
        taken = None if session is None else index.places.get((name, who, session), 0)
        whole = half_of(limits.line_max)
        limit = exceeded(whole, 1, index.places.get((name, who, None), 0), taken)
        if limit is not None:
            whose = may(f"have {limit} places in one line", of_session=limit != whole)
            return refusals.QuotaExceeded(
                f"{whose} (an access token has half of line_max): leave some, or try again later"
            )
    return None
