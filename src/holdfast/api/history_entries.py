"""Records as history entries: which name, what, by whom; never a lease id, a ticket or a digest."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec import UNSET

from holdfast.api.times import rfc3339
from holdfast.core.events import (
    Ended,
    Granted,
    HistoryEvent,
    Joined,
    Left,
    Record,
    Reopened,
    Transferred,
    claim_of,
    events_by_name,
)
from holdfast.wire.holders import shown_as
from holdfast.wire.replies import HistoryEntryReply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def changes(record: Record, is_wanted: Callable[[str], bool]) -> Iterator[HistoryEntryReply]:
    """Yield an entry for each wanted name that a record concerns."""
    for name, event in events_by_name(record.event):
        if is_wanted(name):
            yield history_entry(record.seq, record.wall_ms, name, event)


def history_entry(seq: int, wall_ms: int, name: str, event: HistoryEvent) -> HistoryEntryReply:
    """Return the history entry of one name. It never has metadata, because history is kept for long."""
    claim = claim_of(event)
    owner, labels = (None, None) if claim is None else (claim.owner, claim.labels)
    shown = UNSET if claim is None or owner is not None else shown_as(claim.principal)
    entry = partial(HistoryEntryReply, seq, rfc3339(wall_ms), labels=labels or UNSET, shown_as=shown)
    match event:
        case Granted(lease=lease):
            return entry("granted", name, owner, lease.token, lease.principal, None)
        case Ended():
            return entry(
                "done" if event.done is not None else event.how, name, owner, event.token, event.by, event.reason
            )
        case Transferred(lease=lease):
            return entry("transferred", name, owner, lease.token, event.by, event.reason)
        case Reopened():
            return entry("reopened", name, None, None, event.by, event.reason)
        case Joined():
            return entry("waiting", name, owner, None, event.ticket.terms.principal, None)
        case Left():
            return entry("left", name, owner, None, None, event.how)
