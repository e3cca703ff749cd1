"""What decisions share: their result, the ends of leases and tickets, idempotency keys, quotas.

A principal may have so much of something at the same time, and each of its sessions half of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.core import outcomes, values
from holdfast.core.commands import Release, Revoke, WithKey
from holdfast.core.events import Ended, Event, Left, Transferred
from holdfast.core.outcomes import Answer, Refusal
from holdfast.core.state import State
from holdfast.core.usage import exceeded, half_of, quota_message
from holdfast.core.values import EndedSession, Holder, IdempotencyRecord, Instant, LastEnd, Lease, Limits, Terms, Ticket

Notice = tuple[str, Answer | Refusal]
Interest = tuple[Holder, str, str, int, int]  # holder, name, principal, from when, until when (D3)


class Decision(msgspec.Struct, frozen=True, gc=False):
    """The events to make durable, and the answer to give once they are."""

    events: tuple[Event, ...]
    answer: Answer | Refusal
    notices: tuple[Notice, ...] = ()  # answers to waiters, by ticket
    interest: Interest | None = None  # not durable: the engine keeps it (`ConnectedWaiters.add_interest`)


class Due(msgspec.Struct, frozen=True, gc=False):
    event: Event
    notices: tuple[Notice, ...] = ()


def refuse(refusal: Refusal) -> Decision:
    return Decision((), refusal)


def accept(answer: Answer) -> Decision:
    return Decision((), answer)


def too_long(field: str, text: str | None, limits: Limits) -> outcomes.BadField | None:
    if text is None or len(text) <= limits.metadata_chars_max:
        return None
    return outcomes.BadField(f"{field} has at most {limits.metadata_chars_max} characters (metadata_chars_max)")


def recall(state: State, asked: Terms | WithKey, kind: str) -> IdempotencyRecord | outcomes.KeyConflict | None:
    """Return what this very request made before, None if it is new, or `KeyConflict` (C5)."""
    if asked.key is None:
        return None
    memo = state.memos.get((asked.principal, asked.key))
    if memo is None or (memo.kind == kind and memo.fingerprint == asked.fingerprint):
        return memo
    if memo.kind == "left" and kind == "acquire" and memo.fingerprint == asked.fingerprint:
        return memo  # It made a ticket that is not its own any more.
    return outcomes.KeyConflict()


def left(ticket: Ticket, how: str) -> Left:
    """Return the end of a ticket. Its key is remembered, unless its request was refused (C5)."""
    terms = ticket.terms
    is_remembered = terms.key is not None and how not in {"refused", "deadlock"}
    return Left(ticket.ticket_id, how, ticket.names, terms.owner, terms.labels, is_remembered, terms.principal)


def answered_by_done(tickets: Iterable[Ticket]) -> Iterator[Left]:
    """Yield the ends of the tickets that finished work answers, for its record (L5).

    There may be thousands. So a ticket for that one name does not repeat it, and labels beyond a megabyte are left out.
    """
    remaining_bytes = values.LABELS_OF_QUEUE_BYTES_MAX
    for ticket in tickets:
        terms = ticket.terms
        names = ticket.names if len(ticket.names) > 1 else ()
        labels = terms.labels if remaining_bytes > 0 else None
        if labels is not None:
            remaining_bytes -= len(msgspec.json.encode(labels))
        yield Left(ticket.ticket_id, "done", names, terms.owner, labels, principal=terms.principal)


def end_of(
    name: str,
    lease: Lease,
    how: str,
    now_ms: int,
    by: str | None = None,
    *,
    asked: Release | Revoke | None = None,
    reason: str | None = None,
    well: bool = False,
) -> Ended:
    """Return the end of a lease, which the idempotency key of `asked` leads to; any end starts its lock delay (L6)."""
    return Ended(
        name,
        lease.lease_id,
        lease.token,
        how,
        well,
        now_ms + lease.delay_ms if lease.delay_ms else 0,
        by,
        reason,
        None if asked is None else asked.key,
        "" if asked is None else asked.fingerprint,
        None,
        lease.owner,
        lease.note,
        (),
        lease.labels,
        lease.principal,
        lease.principal if lease.owner is None else None,
    )


def end_by_transfer(event: Transferred, old: Lease, now: Instant) -> LastEnd:
    # The holder itself is `by`, except where an operator handed over the claim of another principal.
    whose = old.principal if old.owner is None and event.by != old.principal else None
    return LastEnd(
        "transferred", old.token, old.owner, old.note, now.ms, now.wall_ms, event.by, event.reason, whose=whose
    )


def too_many_leases(
    state: State, terms: Terms, wanted: int, limits: Limits, *, already: int = 0
) -> outcomes.TooManyLeases | None:
    """Return why so many more leases are too many, or None. `already` of those held are not counted."""
    held = state.index.lease_count.get(terms.principal, 0) - already
    bound = len(state.index.names_by_session.get(terms.session or "", ())) if terms.bound else None
    principal_limit = limits.leases_per_principal_max
    limit = exceeded(principal_limit, wanted, held, bound)
    return None if limit is None else outcomes.TooManyLeases(limit, limit != principal_limit)


def why_no_grant(state: State, terms: Terms, names: tuple[str, ...], limits: Limits) -> Refusal | None:
    if terms.session is not None and (lacking := why_unusable(state, terms.session, terms.principal)) is not None:
        return lacking
    if (full := too_many_leases(state, terms, len(names), limits)) is not None:
        return full
    return outcomes.TokensExhausted() if state.last_token + len(names) > values.TOKEN_MAX else None


def why_unusable(state: State, session_id: str, principal: str) -> Refusal | None:
    """Return why a session cannot be used, or None. Foreign and unknown look the same."""
    if (session := state.sessions.get(session_id)) is not None:
        return None if session.principal == principal else outcomes.SessionUnknown()
    ended = state.remembered.get(session_id)
    if isinstance(ended, EndedSession) and ended.principal == principal and ended.how == "expired":
        return outcomes.SessionLapsed()
    return outcomes.SessionUnknown()


def why_no_ticket(state: State, ticket: Ticket, limits: Limits) -> Refusal | None:
    index, who = state.index, ticket.terms.principal
    session = ticket.terms.session if ticket.terms.bound else None
    ticket_count = len(index.tickets_by_principal.get(who, ()))
    bound = None if session is None else len(index.tickets_by_session.get(session, ()))
    if (limit := exceeded(limits.tickets_per_principal_max, 1, ticket_count, bound)) is not None:
        return outcomes.TooManyTickets(limit, limit != limits.tickets_per_principal_max)
    waiting = index.waiting_names
    names = None if session is None else waiting.get((who, session), 0)
    principal_limit = limits.waiting_names_per_principal_max
    if (limit := exceeded(principal_limit, len(ticket.names), waiting.get((who, None), 0), names)) is not None:
        whose = quota_message(f"wait for {limit} names", of_session=limit != principal_limit)
        return outcomes.QuotaExceeded(
            f"{whose} (waiting_names_per_principal_max): leave some lines, or wait for fewer names"
        )
    for name in ticket.names:
        if len(index.queues.get(name, ())) >= limits.queue_max:
            return outcomes.QueueFull(limits.queue_max)
        taken = None if session is None else index.ticket_counts.get((name, who, session), 0)
        principal_limit = half_of(limits.queue_max)
        if (limit := exceeded(principal_limit, 1, index.ticket_counts.get((name, who, None), 0), taken)) is not None:
            whose = quota_message(f"have {limit} places in one line", of_session=limit != principal_limit)
            return outcomes.QuotaExceeded(
                f"{whose} (an access token has half of queue_max): leave some, or try again later"
            )
    return None
