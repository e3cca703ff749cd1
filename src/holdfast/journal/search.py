"""Which records and leases a look back asks for, and what can be told of a batch without reading its records whole.

One rule for all journals. A look back passes over a hundred thousand records to find a thousand. So each is checked as
ever, and of its fields only those in front are read: the structs below are those of `core/events.py`, cut off behind
what is wanted.
"""

from __future__ import annotations

import asyncio
import functools
import operator
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import msgspec

from holdfast.core.events import BAD_WORDS, Event, ended_badly, is_without_history, names_of, owners_of
from holdfast.core.values import has_labels
from holdfast.journal.base import JournalTooNewError
from holdfast.journal.codec import USE_THE_NEWER, bodies_in

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


Latest: TypeAlias = dict[str, tuple[int, bytes] | None]
"""By name: the number of the grant that counts, and that record (`codec.record_in`); None if nobody holds it."""
AT_ONCE = 1_024
"""How many records are looked at before others have their turn: a few milliseconds."""


class _Granted(msgspec.Struct, array_like=True, tag="granted", gc=False):
    name: str


class _Transferred(msgspec.Struct, array_like=True, tag="transferred", gc=False):
    name: str


class _GrantedMany(msgspec.Struct, array_like=True, tag="granted_many", gc=False):
    grants: tuple[_Granted, ...]


class _Ended(msgspec.Struct, array_like=True, tag="ended", gc=False):
    name: str


class _SessionEnded(msgspec.Struct, array_like=True, tag="session_ended", gc=False):
    session_id: str
    how: str
    leases: tuple[_Ended, ...]


class _TokenEnded(msgspec.Struct, array_like=True, tag="token_ended", gc=False):
    name: str
    by: str
    sessions: tuple[_SessionEnded, ...] = ()


_CHANGES = (_Granted, _Transferred, _GrantedMany, _Ended, _SessionEnded, _TokenEnded)


def _tag_of(event: type[msgspec.Struct]) -> str:
    return str(event.__struct_config__.tag)


_TAGS = {_tag_of(each) for each in _CHANGES}
_OTHERS = {
    event: msgspec.defstruct(f"_{event.__name__}", [], array_like=True, tag=_tag_of(event), gc=False)
    for event in get_args(Event)
    if _tag_of(event) not in _TAGS
}
_WITHOUT_HISTORY = frozenset(cut for event, cut in _OTHERS.items() if is_without_history(event))
_Cut = functools.reduce(operator.or_, (*_CHANGES, *_OTHERS.values()))


class _Head(msgspec.Struct, array_like=True, gc=False):
    seq: int
    at_ms: int
    wall_ms: int


class _Row(_Head, array_like=True, gc=False):
    event: _Cut  # type: ignore[valid-type] # Every event, cut off.


_head_of = msgspec.msgpack.Decoder(_Head).decode
_row_of = msgspec.msgpack.Decoder(_Row).decode


async def follow(data: bytes, upto: int, latest: Latest) -> None:
    """Note what the records of a batch, up to one, say of names: the last word on each counts.

    Others have their turn in between: a batch may have very many. The most frequent records come first.
    """
    try:
        for number, body in enumerate(bodies_in(data), 1):
            row = _row_of(body)
            if row.seq > upto:
                return
            event: Any = row.event
            kind = type(event)
            if kind is _Granted or kind is _Transferred:
                latest[event.name] = (row.seq, body)
            elif kind is _Ended:
                latest[event.name] = None
            elif kind is _GrantedMany:
                latest.update(dict.fromkeys((grant.name for grant in event.grants), (row.seq, body)))
            elif kind is _SessionEnded:
                latest.update(dict.fromkeys(ended.name for ended in event.leases))
            elif kind is _TokenEnded:
                latest.update(dict.fromkeys(ended.name for each in event.sessions for ended in each.leases))
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _unreadable(error) from error


async def last_by_in(data: bytes, wall_ms: int) -> int:
    """Return the number of the last record of a batch that has history value and is of no later wall time; else 0."""
    found = 0
    try:
        for number, body in enumerate(bodies_in(data), 1):
            head = _head_of(body)
            if head.wall_ms <= wall_ms and type(_row_of(body).event) not in _WITHOUT_HISTORY:
                found = head.seq
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _unreadable(error) from error
    return found


def _unreadable(error: Exception) -> JournalTooNewError:
    return JournalTooNewError(f"a record checks out but cannot be read: {error}", USE_THE_NEWER)
