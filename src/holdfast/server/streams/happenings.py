"""Records as history entries: which name, what, by whom; never a lease id, a ticket or a digest."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from msgspec import UNSET

from holdfast.core.events import (
    Ended,
    Event,
    Granted,
    GrantedMany,
    Joined,
    Left,
    Record,
    Reopened,
    SessionEnded,
    TokenEnded,
    Transferred,
)
from holdfast.server.times import rfc3339
from holdfast.wire.holders import shown_as
from holdfast.wire.replies import HappenedReply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.core.values import Labels, Lease, Terms

Told: TypeAlias = Granted | Ended | Transferred | Reopened | Joined | Left  # The events that tell of names.


def changes(record: Record, is_wanted: Callable[[str], bool]) -> Iterator[HappenedReply]:
    """Yield an entry for each wanted name that a record concerns."""
    for name, told in concerned(record.event):
        if is_wanted(name):
            yield said(record.seq, record.wall_ms, name, told)


def concerned(event: Event) -> Iterator[tuple[str, Told]]:
    """Yield each name that an event concerns, with its part of the event."""
    match event:
        case Ended():
            yield event.name, event
            yield from _left(event.left, (event.name,))
        case Granted() | Transferred() | Reopened():
            yield event.name, event
        case GrantedMany():
            for grant in event.grants:
                yield grant.name, grant
        case SessionEnded():
            for ended in event.leases:
                yield ended.name, ended
            yield from _left(event.left)
        case TokenEnded():
            for session in event.sessions:
                yield from concerned(session)
            yield from _left(event.left)
        case Joined():
            for name in event.ticket.names:
                yield name, event
        case Left():
            yield from _left((event,))
        case _:
            return


def _left(those: tuple[Left, ...], own: tuple[str, ...] = ()) -> Iterator[tuple[str, Told]]:
    """Yield waiters that left. A ticket without names in the end of a lease was for the lease's own name."""
    for each in those:
        for name in each.names or own:
            yield name, each


def claim_of(told: Told) -> Lease | Terms | Ended | Left | None:
    match told:
        case Granted() | Transferred():
            return told.lease
        case Joined():
            return told.ticket.terms
        case Reopened():
            return None
        case _:
            return told


def labels_of(told: Told) -> Labels | None:
    claim = claim_of(told)
    return None if claim is None else claim.labels


def said(seq: int, wall_ms: int, name: str, told: Told) -> HappenedReply:
    """Return the history entry of one name. It never has metadata, because history is kept for long."""
    claim = claim_of(told)
    owner, labels = (None, None) if claim is None else (claim.owner, claim.labels)
    shown = UNSET if claim is None or owner is not None else shown_as(claim.principal)
    say = partial(HappenedReply, seq, rfc3339(wall_ms), labels=labels or UNSET, shown_as=shown)
    match told:
        case Granted(lease=lease):
            return say("granted", name, owner, lease.token, lease.principal, None)
        case Ended():
            return say("done" if told.done is not None else told.how, name, owner, told.token, told.by, told.reason)
        case Transferred(lease=lease):
            return say("transferred", name, owner, lease.token, told.by, told.reason)
        case Reopened():
            return say("reopened", name, None, None, told.by, told.reason)
        case Joined():
            return say("waiting", name, owner, None, told.ticket.terms.principal, None)
        case Left():
            return say("left", name, owner, None, None, told.how)
