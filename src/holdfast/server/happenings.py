"""Records as history entries: which name, what, by whom; never a lease id, a ticket or a digest."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec import UNSET

from holdfast.core.events import (
    Ended,
    Granted,
    Joined,
    Left,
    Record,
    Reopened,
    Told,
    Transferred,
    claim_of,
    concerned,
)
from holdfast.server.times import rfc3339
from holdfast.wire.holders import shown_as
from holdfast.wire.replies import HistoryEntryReply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def changes(record: Record, is_wanted: Callable[[str], bool]) -> Iterator[HistoryEntryReply]:
    """Yield an entry for each wanted name that a record concerns."""
    for name, told in concerned(record.event):
        if is_wanted(name):
            yield said(record.seq, record.wall_ms, name, told)


def said(seq: int, wall_ms: int, name: str, told: Told) -> HistoryEntryReply:
    """Return the history entry of one name. It never has metadata, because history is kept for long."""
    claim = claim_of(told)
    owner, labels = (None, None) if claim is None else (claim.owner, claim.labels)
    shown = UNSET if claim is None or owner is not None else shown_as(claim.principal)
    say = partial(HistoryEntryReply, seq, rfc3339(wall_ms), labels=labels or UNSET, shown_as=shown)
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
