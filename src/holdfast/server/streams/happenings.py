"""Records told to people and programs: what happened to which name, by whom. Never a lease id, a ticket or a digest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from holdfast.core.events import Ended, Granted, GrantedMany, Joined, Left, Reopened, SessionEnded, Transferred
from holdfast.server.times import rfc3339
from holdfast.wire.replies import HappenedReply

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.core.events import Record
    from holdfast.core.values import Labels


def changes(record: Record) -> Iterator[HappenedReply]:
    """Yield what a record means for each name it concerns; nothing for what concerns none."""
    event = record.event
    match event:
        case Granted():
            yield _granted(record, event)
        case GrantedMany():
            for grant in event.grants:
                yield _granted(record, grant)
        case Ended():
            yield _ended(record, event)
            yield from _left(record, event.left)
        case SessionEnded():
            for ended in event.leases:
                yield _ended(record, ended)
            yield from _left(record, event.left)
        case Transferred():
            lease = event.lease
            yield _said(record, "transferred", event.name, lease.owner, lease.token, by=event.by, labels=lease.labels)
        case Reopened():
            yield _said(record, "reopened", event.name, None, by=event.by, reason=event.reason)
        case Joined():
            terms = event.ticket.terms
            for name in event.ticket.names:
                yield _said(record, "waiting", name, terms.owner, by=terms.principal, labels=terms.labels)
        case Left():
            yield from _left(record, (event,))
        case _:
            return


def _left(record: Record, those: tuple[Left, ...]) -> Iterator[HappenedReply]:
    for each in those:
        for name in each.names:
            yield _said(record, "left", name, each.owner, reason=each.how, labels=each.labels)


def _granted(record: Record, event: Granted) -> HappenedReply:
    lease = event.lease
    return _said(record, "granted", event.name, lease.owner, lease.token, by=lease.principal, labels=lease.labels)


def _ended(record: Record, event: Ended) -> HappenedReply:
    how = "done" if event.done is not None else event.how
    who = (event.owner, event.token)
    return _said(record, how, event.name, *who, by=event.by, reason=event.reason, labels=event.labels)


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
