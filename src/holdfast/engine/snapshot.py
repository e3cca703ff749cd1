"""A picture of the state as parts of bytes and back. Each part is small: encoding one takes a millisecond or two.

The parts are bit for bit the same for the same state (I15): dictionaries keep their order, indexes are left out. The
last part counts the others, so that a picture with a hole in it is never taken for a whole one.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.state import Frozen, Head
from holdfast.core.values import AccessToken, Memo, Remembered, Session, Slot
from holdfast.journal.base import RESTORE, JournalDamagedError
from holdfast.journal.codec import TicketRow, ticket_of, ticket_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PART_ROWS = 512

_encode = msgspec.msgpack.Encoder().encode


class _Part(msgspec.Struct, frozen=True, array_like=True):
    """What a part holds, and its rows."""

    kind: str
    rows: msgspec.Raw


_decode_part = msgspec.msgpack.Decoder(_Part).decode
_row_types: dict[str, Any] = {
    "head": list[tuple[str, Head]],
    "slots": list[tuple[str, Slot]],
    "sessions": list[tuple[str, Session]],
    "remembered": list[tuple[str, Remembered]],
    "memos": list[tuple[tuple[str, str], Memo]],
    "tokens": list[tuple[str, AccessToken]],
    "tickets": list[tuple[str, TicketRow]],
    "last_used": list[tuple[str, int]],
    "end": list[tuple[str, int]],
}
_decoders = {kind: msgspec.msgpack.Decoder(type_).decode for kind, type_ in _row_types.items()}


def encode(frozen: Frozen) -> Iterator[bytes]:
    """Yield the picture part by part."""
    count = 0
    for part in _tables(frozen):
        yield part
        count += 1
    yield _part("end", [("parts", count)])


def decode(parts: Iterable[bytes]) -> Frozen:
    """Put the picture together again; no parts make an empty one."""
    tables: dict[str, dict[Any, Any]] = {kind: {} for kind in _decoders}
    count = 0
    for data in parts:
        try:
            part = _decode_part(data)
            tables[part.kind].update(_decoders[part.kind](part.rows))
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError) as error:
            raise JournalDamagedError(f"part {count} of the snapshot cannot be read: {error}") from error
        count += 1
    wanted = tables.pop("end").get("parts", -1) + 1
    if count != wanted:
        raise JournalDamagedError(f"the snapshot has {count} parts and should have {wanted}", RESTORE)
    head = tables.pop("head").get("head", Head())
    tickets = {ticket_id: ticket_of(row) for ticket_id, row in tables.pop("tickets").items()}
    return Frozen(head=head, tickets=tickets, **tables)


def _tables(frozen: Frozen) -> Iterator[bytes]:
    yield _part("head", [("head", frozen.head)])
    yield from _parts("slots", frozen.slots.items())
    yield from _parts("sessions", frozen.sessions.items())
    yield from _parts("remembered", frozen.remembered.items())
    yield from _parts("memos", frozen.memos.items())
    yield from _parts("tokens", frozen.tokens.items())
    yield from _parts("tickets", ((ticket_id, ticket_row(ticket)) for ticket_id, ticket in frozen.tickets.items()))
    yield from _parts("last_used", frozen.last_used.items())


def _parts(kind: str, rows: Iterable[tuple[Any, Any]]) -> Iterator[bytes]:
    walk = iter(rows)
    while some := list(islice(walk, PART_ROWS)):
        yield _part(kind, some)


def _part(kind: str, rows: list[tuple[Any, Any]]) -> bytes:
    return _encode(_Part(kind, msgspec.Raw(_encode(rows))))
