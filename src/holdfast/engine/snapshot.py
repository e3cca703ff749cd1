"""The state as rows of bytes and back: for the archive and for backups.

A row is a key and a value: the key as UTF-8, or as MessagePack if it is a pair; the value as MessagePack. The rows are
bit for bit the same for the same state (I15): tables keep their order, indexes are left out.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import msgspec

from holdfast.core.state import TABLES, Frozen, State, StateScalars
from holdfast.core.values import AccessToken, IdempotencyRecord, Remembered, Session, Slot
from holdfast.journal.codec import PAIRS, TicketRow, ticket_of, ticket_row
from holdfast.journal.interface import HEAD, RESTORE, Changes, HistoryPart, JournalDamagedError, TailPart, Values

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator

    from holdfast.core.state import ChangeSet, StateChanges
    from holdfast.journal.interface import Snapshot, SnapshotPart, StoreWriter

T = TypeVar("T")

SLICE_ROWS = 512
SLICE_BYTES = 128 * 1024

encode = msgspec.msgpack.Encoder().encode


class _Codec(NamedTuple):
    key_bytes: Callable[[Any], bytes]
    key_of: Callable[[bytes], Any]
    value_bytes: Callable[[Any], bytes]
    value_of: Callable[[bytes], Any]


def _reads(type_: Any) -> Callable[[bytes], Any]:  # noqa: ANN401 - any type of a value
    return msgspec.msgpack.Decoder(type_).decode


_ticket_row_of = _reads(TicketRow)
_types = {
    HEAD: StateScalars,
    "slots": Slot,
    "sessions": Session,
    "remembered": Remembered,
    "memos": IdempotencyRecord,
    "tokens": AccessToken,
}
_values: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    **{table: (encode, _reads(type_)) for table, type_ in _types.items()},
    "tickets": (lambda ticket: encode(ticket_row(ticket)), lambda data: ticket_of(_ticket_row_of(data))),
    "last_used": (encode, _reads(int)),
}
_pair_of = _reads(tuple[str, str])
_codecs = {
    table: _Codec(encode, _pair_of, *value) if table in PAIRS else _Codec(str.encode, bytes.decode, *value)
    for table, value in _values.items()
}


# What changed, for the archive.


def changes(taken: StateChanges) -> Iterator[Changes]:
    """Yield slices of what changed: of each table what is gone, then what changed, then what is new."""
    for table in TABLES:
        yield from _changes_of(table, taken.tables[table])


def _changes_of(table: str, change_set: ChangeSet[Any, Any]) -> Iterator[Changes]:
    codec = _codecs[table]
    gone = iter(change_set.gone)
    while keys := [codec.key_bytes(key) for key in islice(gone, SLICE_ROWS)]:
        yield Changes(table, gone=keys)
    for rows in _slices(codec, change_set.changed):
        yield Changes(table, changed=rows)
    for rows in _slices(codec, change_set.new):
        yield Changes(table, new=rows)


def _slices(codec: _Codec, rows: dict[Any, Any]) -> Iterator[list[tuple[bytes, bytes]]]:
    key_bytes, _, value_bytes, _ = codec
    some: list[tuple[bytes, bytes]] = []
    size_bytes = 0
    for key, value in rows.items():
        data = value_bytes(value)
        some.append((key_bytes(key), data))
        size_bytes += len(data)
        if len(some) >= SLICE_ROWS or size_bytes >= SLICE_BYTES:
            yield some
            some, size_bytes = [], 0
    if some:
        yield some


# All of it.


def values(frozen: Frozen) -> Iterator[Values]:
    yield from (Values(HEAD, rows) for rows in _slices(_codecs[HEAD], {HEAD: frozen.scalars}))
    for table in TABLES:
        yield from (Values(table, rows) for rows in _slices(_codecs[table], getattr(frozen, table)))


def load(archived: Iterable[Values]) -> State:
    """Return the state of all values of the archive; none make an empty one."""
    return all_steps(loading(archived))


def loading(archived: Iterable[Values]) -> Generator[None, None, State]:
    """The same in steps: a large state takes seconds, and a shared store needs heartbeats."""
    state, scalars = State(), StateScalars()
    for table, rows in _read(archived):
        if table == HEAD:
            scalars = rows[HEAD]
        else:
            state.table(table).load(rows)
        yield
    state.rebuild_from(scalars)
    return state


def all_steps(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return cast("T", done.value)


def _read(archived: Iterable[Values]) -> Iterator[tuple[str, dict[Any, Any]]]:
    for each in archived:
        try:
            codec = _codecs[each.table]
            key_of, value_of = codec.key_of, codec.value_of
            yield each.table, {key_of(key): value_of(value) for key, value in each.rows}
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError) as error:
            problem = f"a value of the table {each.table!r} in the archived state cannot be read: {error}"
            raise JournalDamagedError(problem, RESTORE) from error


# All that a journal holds, for backups, restores and moves:
#
#     backup     a journal                               ──►  a file
#     restore    a file, behind a gap in the tokens      ──►  an empty data directory
#     move       a data directory, sealed before the end ──►  an empty store in PostgreSQL


async def parts(source: Snapshot) -> AsyncIterator[SnapshotPart]:
    async for records in source.tail():
        yield TailPart(records)
    async for values in source.values():
        yield values
    async for records in source.history():
        yield HistoryPart(records)


async def copy(source: Snapshot, target: StoreWriter, saw: Callable[[SnapshotPart], None]) -> None:
    """Write all that a snapshot holds into an empty store, which takes effect at the end. `saw` gets each part."""
    async for part in parts(source):
        await target.put(part)
        saw(part)
    await target.end(source)
