"""Records told to people and programs: what happened to which name, by whom. Never a lease id, a ticket or a digest."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from msgspec import UNSET, UnsetType

from holdfast.core.events import (
    Ended,
    Granted,
    GrantedMany,
    Joined,
    Left,
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

    from holdfast.core.events import Event, Record
    from holdfast.core.values import Labels

Told: TypeAlias = Granted | Ended | Transferred | Reopened | Joined | Left
"""The events that tell of names."""


def changes(record: Record, is_wanted: Callable[[str], bool]) -> Iterator[HappenedReply]:
    """Yield what a record means for each wanted name that it concerns. What is said of others is not even made."""
    for name, told in concerned(record.event):
        if is_wanted(name):
            yield said(record.seq, record.wall_ms, name, told)


def concerned(event: Event) -> Iterator[tuple[str, Told]]:
    """Yield each name that an event concerns, with the event that tells of it. Nothing is made yet."""
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
    """Yield who left. A place that has no names in the end of a lease was one for the lease's own name."""
    for each in those:
        for name in each.names or own:
            yield name, each


def labels_of(told: Told) -> Labels | None:
    """Return the labels that will be said."""
    match told:
        case Granted() | Transferred():
            return told.lease.labels
        case Ended() | Left():
            return told.labels
        case Joined():
            return told.ticket.terms.labels
        case Reopened():
            return None


def _shown_as(told: Told) -> str | UnsetType:
    """Return how somebody is shown who named no owner. Never with metadata: what is told here is kept for long."""
    match told:
        case Granted(lease=lease) | Transferred(lease=lease) if lease.owner is None:
            return shown_as(lease.principal)
        case Ended(owner=None) | Left(owner=None):
            return shown_as(told.principal)
        case Joined() if told.ticket.terms.owner is None:
            return shown_as(told.ticket.terms.principal)
        case _:
            return UNSET


def said(seq: int, wall_ms: int, name: str, told: Told) -> HappenedReply:
    """Say what happened to one name, in the record of this number and time."""
    say = partial(HappenedReply, seq, rfc3339(wall_ms), labels=labels_of(told) or UNSET, shown_as=_shown_as(told))
    match told:
        case Granted(lease=lease):
            return say("granted", name, lease.owner, lease.token, lease.principal, None)
        case Ended():
            how = "done" if told.done is not None else told.how
            return say(how, name, told.owner, told.token, told.by, told.reason)
        case Transferred(lease=lease):
            return say("transferred", name, lease.owner, lease.token, told.by, told.reason)
        case Reopened():
            return say("reopened", name, None, None, told.by, told.reason)
        case Joined():
            terms = told.ticket.terms
            return say("waiting", name, terms.owner, None, terms.principal, None)
        case Left():
            return say("left", name, told.owner, None, None, told.how)
