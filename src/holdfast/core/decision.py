"""What every decision is made of: the result, the ends of leases, and the memory of idempotency keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.core import refusals
from holdfast.core.answers import Answer
from holdfast.core.events import Ended, Event, Left
from holdfast.core.refusals import Refusal
from holdfast.core.values import LABELS_OF_LINE_BYTES_MAX, Holder, LastEnd

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.core.commands import (
        CreateToken,
        EndSession,
        OpenSession,
        Release,
        Reopen,
        Revoke,
        RevokeToken,
        RotateToken,
        Transfer,
    )
    from holdfast.core.events import Transferred
    from holdfast.core.state import State
    from holdfast.core.values import Lease, Memo, Moment, Terms, Ticket

    Keyed = (
        Terms
        | CreateToken
        | EndSession
        | OpenSession
        | Release
        | Reopen
        | Revoke
        | RevokeToken
        | RotateToken
        | Transfer
    )


Notice = tuple[str, Answer | Refusal]
Interest = tuple[Holder, str, str, int, int]
"""Who wants which name, whose principal it is, from when, until when (D3)."""


class Decision(msgspec.Struct, frozen=True, gc=False):
    """What a command led to: the events to make durable, and the answer to give once they are.

    `notices` are the answers to those in line whom it concerns, by ticket. `interest` is what the one who asked is
    thought to want from now on; it is soft, and the engine keeps it (`Presence.take_interest`).
    """

    events: tuple[Event, ...]
    answer: Answer | Refusal
    notices: tuple[Notice, ...] = ()
    interest: Interest | None = None


class Due(msgspec.Struct, frozen=True, gc=False):
    """What fell due: the event, and the answers to those in line whom it concerns."""

    event: Event
    notices: tuple[Notice, ...] = ()


def refuse(refusal: Refusal) -> Decision:
    """Decide to change nothing and say why."""
    return Decision((), refusal)


def accept(answer: Answer) -> Decision:
    """Decide that what was asked for is so already."""
    return Decision((), answer)


def recall(state: State, asked: Keyed, kind: str) -> Memo | refusals.KeyConflict | None:
    """Return what this very request made before, or None if it is new, or that its key was used for another (C5)."""
    if asked.key is None:
        return None
    memo = state.memos.get((asked.principal, asked.key))
    if memo is None or (memo.kind == kind and memo.fingerprint == asked.fingerprint):
        return memo
    if memo.kind == "left" and kind == "acquire" and memo.fingerprint == asked.fingerprint:
        # It made a place in the line that is not its own any more.
        return memo
    return refusals.KeyConflict()


def left(ticket: Ticket, how: str) -> Left:
    """Make the end of a place in the line. Its key is remembered, unless its request was refused (C5)."""
    terms = ticket.terms
    is_remembered = terms.key is not None and how not in {"refused", "deadlock"}
    return Left(ticket.ticket_id, how, ticket.names, terms.owner, terms.labels, is_remembered, terms.principal)


def answered_by_done(tickets: Iterable[Ticket]) -> Iterator[Left]:
    """Make the ends of places in a line for the record of the finished work that answers them all (L5).

    Thousands may stand there. So a place for that one name has no names of its own, for the record has it; and once the
    labels come to a megabyte, those behind have none.
    """
    room_bytes = LABELS_OF_LINE_BYTES_MAX
    for ticket in tickets:
        terms = ticket.terms
        names = ticket.names if len(ticket.names) > 1 else ()
        labels = terms.labels if room_bytes > 0 else None
        if labels is not None:
            room_bytes -= len(msgspec.json.encode(labels))
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
    """Make the end of a lease; a lock delay closes the name from now on, whatever the end (L6).

    `asked` is the command that asked for it: its idempotency key leads to this end.
    """
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


def end_by_transfer(event: Transferred, old: Lease, now: Moment) -> LastEnd:
    """Return how the old lease ended, for its successor."""
    # The holder itself is `by`, except where an operator handed over the claim of another principal.
    whose = old.principal if old.owner is None and event.by != old.principal else None
    return LastEnd(
        "transferred", old.token, old.owner, old.note, now.ms, now.wall_ms, event.by, event.reason, whose=whose
    )
