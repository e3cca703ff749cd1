"""Which records and which leases a look back asks for: one rule for all journals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.events import BAD_WORDS, ended_badly, names_of, owners_of
from holdfast.core.values import has_labels

if TYPE_CHECKING:
    from holdfast.core.events import Record
    from holdfast.core.values import Lease
    from holdfast.journal.base import HeldQuery, HistoryQuery

_BAD_WORDS = tuple(word.encode() for word in BAD_WORDS)


def matches(query: HistoryQuery, record: Record) -> bool:
    """Tell whether a record is one of those asked for."""
    if query.before_seq is not None and record.seq >= query.before_seq:
        return False
    if query.since_wall_ms is not None and record.wall_ms < query.since_wall_ms:
        return False
    if query.until_wall_ms is not None and record.wall_ms > query.until_wall_ms:
        return False
    if query.owner is not None and query.owner not in owners_of(record.event):
        return False
    if query.badly and not ended_badly(record.event):
        return False
    return query.name is None or query.name in names_of(record.event)


def suits(query: HeldQuery, lease: Lease) -> bool:
    """Tell whether a lease is one of those asked for, by all but its name."""
    return (
        query.owner in {None, lease.owner}
        and query.session in {None, lease.session}
        and has_labels(lease.labels, query.labels)
    )


class Texts:
    """What must stand in the bytes of a record that is asked for: looking for it is cheaper than decoding."""

    def __init__(self, query: HistoryQuery) -> None:
        self.all = [text.encode() for text in (query.name, query.owner) if text is not None]
        self._any = _BAD_WORDS if query.badly else ()

    def __bool__(self) -> bool:
        """Tell whether anything must."""
        return bool(self.all or self._any)

    def are_in(self, body: bytes) -> bool:
        """Tell whether it does, so that the record may be one of them."""
        return all(text in body for text in self.all) and (not self._any or any(word in body for word in self._any))
