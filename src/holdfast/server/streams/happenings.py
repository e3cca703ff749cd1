"""Records told to people and programs: what happened to which name, by whom. Never a lease id, a ticket or a digest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

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
from holdfast.wire.replies import HappenedReply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.core.events import Record
    from holdfast.core.values import Labels


def changes(record: Record, is_wanted: Callable[[str], bool]) -> Iterator[HappenedReply]:
    """Yield what a record means for each wanted name that it concerns. What is said of others is not even made."""
    event = record.event
    match event:
        case Granted() | Ended() | Transferred() | Reopened():
            if is_wanted(event.name):
                yield _changed(record, event)
            if isinstance(event, Ended):
                yield from _left(record, event.left, is_wanted)
        case GrantedMany():
            for grant in event.grants:
                if is_wanted(grant.name):
                    yield _changed(record, grant)
        case SessionEnded():
            for ended in event.leases:
                if is_wanted(ended.name):
                    yield _changed(record, ended)
            yield from _left(record, event.left, is_wanted)
        case TokenEnded():
            for session in event.sessions:
                for ended in session.leases:
                    if is_wanted(ended.name):
                        yield _changed(record, ended)
                yield from _left(record, session.left, is_wanted)
            yield from _left(record, event.left, is_wanted)
        case Joined():
            terms = event.ticket.terms
            for name in event.ticket.names:
                if is_wanted(name):
                    yield _said(record, "waiting", name, terms.owner, by=terms.principal, labels=terms.labels)
        case Left():
            yield from _left(record, (event,), is_wanted)
        case _:
            return


def _left(record: Record, those: tuple[Left, ...], is_wanted: Callable[[str], bool]) -> Iterator[HappenedReply]:
    for each in those:
        for name in each.names:
            if is_wanted(name):
                yield _said(record, "left", name, each.owner, reason=each.how, labels=each.labels)


def _changed(record: Record, event: Granted | Ended | Transferred | Reopened) -> HappenedReply:
    """Say what happened to the one name of an event."""
    match event:
        case Granted(lease=lease):
            return _said(
                record, "granted", event.name, lease.owner, lease.token, by=lease.principal, labels=lease.labels
            )
        case Ended():
            how = "done" if event.done is not None else event.how
            who = (event.owner, event.token)
            return _said(record, how, event.name, *who, by=event.by, reason=event.reason, labels=event.labels)
        case Transferred(lease=lease):
            return _said(record, "transferred", event.name, lease.owner, lease.token, by=event.by, labels=lease.labels)
        case Reopened():
            return _said(record, "reopened", event.name, None, by=event.by, reason=event.reason)


def _said(
    record: Record,
    what: str,
    name: str,
    owner: str | None,
    token: int | None = None,
    *,
    by: str | None = None,
    reason: str | None = None,
    labels: Labels | None = None,
) -> HappenedReply:
    at = rfc3339(record.wall_ms)
    return HappenedReply(record.seq, at, what, name, owner, token, by, reason, labels=labels or UNSET)
