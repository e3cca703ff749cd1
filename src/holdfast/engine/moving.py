"""Moving: all that a data directory holds, copied into a store that nodes share. Offline, and never half.

Only one of the two may ever count: both would give out the same fencing tokens. So the copy is one transaction of the
store, and a file in the directory (`journal/mark.py`) says that it is moved before that is committed:

    take the directory's seat ─► fill ─► read back, compare ─► mark: about to be ─► commit ─► mark: moved
                                                                    │
         interrupted before here: the directory counts, ◄───────────┴──────► after here: moving again finds out.
         and nothing of the copy is in the store                             Neither is served until then

The commit is the one step that may have happened or not when it is interrupted. Whoever moves again waits in the store
for whatever is left of the move before, and then sees it: the authority that the mark names is there, or it is not.

What is copied is the archived state, the records since, the history and the key. The bytes that were given to the store
are summed up in their order, and so are those that are read back: they must be the same, and make a state.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast.core.events import is_history
from holdfast.engine import snapshot
from holdfast.engine.recovery import replay
from holdfast.journal import mark
from holdfast.journal.base import JournalError
from holdfast.journal.codec import encode_batch
from holdfast.journal.failpoints import failpoint
from holdfast.journal.sqlite import SqliteJournal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from holdfast.core.events import Record
    from holdfast.core.state import State
    from holdfast.journal.base import Values, Whole

TELL_EVERY = 10_000


class Filling(Protocol):
    """An empty store while it is filled. Nobody else sees anything of it before `commit`."""

    authority: str | None
    """The id of the authority that is there already. None: there is none, so it can be filled."""

    async def begin(self, authority: str, key: bytes, epoch: int) -> None:
        """Make the tables, and the authority with its key. The tenure that fills it has this epoch."""
        ...

    async def put_values(self, values: Values) -> None:
        """Take some of the archived state, in order."""
        ...

    async def put_history(self, records: Sequence[Record]) -> None:
        """Take some of the archived history, oldest first."""
        ...

    async def put_tail(self, records: Sequence[Record]) -> None:
        """Take some records that are not archived, in order."""
        ...

    async def end(self, *, last_seq: int, now_ms: int, upto: int, pruned: int) -> None:
        """Let that be all: nobody has the seat, all up to `upto` is archived, and history begins after `pruned`."""
        ...

    def whole(self) -> Whole:
        """Show all that was put."""
        ...

    async def commit(self) -> None:
        """Let it count. Raises `OutcomeUnknownError` if nobody can know whether it does."""
        ...


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """What was moved."""

    authority: str
    was_done: bool
    """Whether an earlier move had done it, and only the directory did not know."""
    epoch: int = 0
    seq: int = 0
    last_token: int = 0
    records: int = 0
    """Of history."""
    leases: int = 0
    sessions: int = 0
    tokens: int = 0
    waiting: int = 0


async def move(
    directory: Path,
    filling: AbstractAsyncContextManager[Filling],
    *,
    to: str,
    key: bytes,
    witnesses: Sequence[str],
    authority: str,
    wall_ms: int,
    tell: Callable[[str], None],
) -> Moved:
    """Move a directory that no server has open into an empty store.

    `to` names the store for people, `authority` is the id of the one to be made there, `witnesses` are names of files
    that are only there after a journal, and `tell` is told how far it has come. Raises `JournalError`, and `OSError`.
    """
    tell("waiting for the store")
    async with filling as store:
        known = mark.moved_to(directory)
        if known is not None and known.authority == store.authority:
            mark.leave_moved(directory, msgspec.structs.replace(known, is_done=True))
            return Moved(authority=known.authority, was_done=True)
        _refuse(directory, known, store, to)
        if known is not None:
            mark.take_moved(directory)
        source = SqliteJournal(directory, ballast_bytes=0, witnesses=witnesses)
        try:
            moved = await _copy(source, store, key=key, authority=authority, tell=tell)
            failpoint("move_before_mark")
            left = mark.Moved(to=to, authority=authority, is_done=False, wall_ms=wall_ms)
            mark.leave_moved(directory, left)
            tell("letting it count")
            failpoint("move_before_commit")
            await store.commit()
            failpoint("move_after_commit")
            mark.leave_moved(directory, msgspec.structs.replace(left, is_done=True))
        finally:
            await source.close()
    return moved


def _refuse(directory: Path, known: mark.Moved | None, store: Filling, to: str) -> None:
    if known is not None and known.is_done:
        problem = f"{directory} was moved to {known.to} already, and counts no more"
        raise JournalError(problem, f"Start the nodes on it: holdfast serve --store {known.to}")
    if store.authority is not None:
        problem = f"{to} is not empty: there is an authority in it ({store.authority}). Nothing is written over it"
        other = "Name another schema with HOLDFAST_STORE_SCHEMA, or another database"
        raise JournalError(problem, other, "If nobody needs what is there, drop the schema, and move again")


async def _copy(
    source: SqliteJournal, store: Filling, *, key: bytes, authority: str, tell: Callable[[str], None]
) -> Moved:
    tell("looking at the directory")
    epoch = (await source.open()).epoch
    given, found = _Sums(), _Sums()
    await store.begin(authority, key, epoch)
    told = _Told(tell, "copied")
    async with source.whole() as whole:
        tail = await _put(whole, store, given, told)
        last_seq, upto = whole.last_seq, whole.last_seq - tail
    before = await _state_of(source)
    await store.end(last_seq=last_seq, now_ms=before.now_ms, upto=upto, pruned=source.history_begins_after)
    state = await _read_back(store.whole(), found, _Told(tell, "read back"))
    if found.digests() != given.digests() or state.seq != last_seq or state.freeze() != before.freeze():
        raise JournalError("what came back from the store is not what was put there", "Look at its log, and move again")
    return Moved(
        authority=authority,
        was_done=False,
        epoch=epoch,
        seq=state.seq,
        last_token=state.last_token,
        records=given.records,
        leases=len(state.index.held),
        sessions=len(state.sessions),
        tokens=len(state.tokens),
        waiting=len(state.tickets),
    )


async def _put(whole: Whole, store: Filling, sums: _Sums, told: _Told) -> int:
    """Copy everything; return how many records were not archived."""
    count = 0
    async for records in whole.tail():
        sums.take_tail(records)
        await store.put_tail(records)
        count += len(records)
        told.more(len(records))
    async for values in whole.values():
        sums.take_values(values)
        await store.put_values(values)
        failpoint("move_mid")
        told.more(len(values.rows))
    async for records in whole.history():
        sums.take_history(records)
        await store.put_history(records)
        told.more(len(records))
    return count


async def _state_of(source: SqliteJournal) -> State:
    """Read the state of the directory, as a start would."""
    recovered = await source.open()
    state = snapshot.load(recovered.values)
    replay(state, recovered.records)
    return state


async def _read_back(whole: Whole, sums: _Sums, told: _Told) -> State:
    """Read what is in the store now, as a node would, and all else."""
    tail: list[Record] = []
    async for records in whole.tail():
        sums.take_tail(records)
        tail += records
        told.more(len(records))
    rows: list[Values] = []
    async for values in whole.values():
        sums.take_values(values)
        rows.append(values)
        told.more(len(values.rows))
    async for records in whole.history():
        sums.take_history(records)
        told.more(len(records))
    state = snapshot.load(rows)
    replay(state, tail)
    return state


class _Sums:
    """A digest of each part, over its bytes in their order; how they were cut into pieces counts for nothing."""

    def __init__(self) -> None:
        self._tail, self._history = hashlib.sha256(), hashlib.sha256()
        self._tables: dict[str, hashlib._Hash] = {}
        self.records = 0

    def take_tail(self, records: Sequence[Record]) -> None:
        for record in records:
            self._tail.update(encode_batch((record,)))
            self.records += is_history(record.event)

    def take_values(self, values: Values) -> None:
        digest = self._tables.setdefault(values.table, hashlib.sha256())
        for row in values.rows:
            for part in row:
                digest.update(len(part).to_bytes(8))
                digest.update(part)

    def take_history(self, records: Sequence[Record]) -> None:
        for record in records:
            self._history.update(encode_batch((record,)))
        self.records += len(records)

    def digests(self) -> dict[str, bytes]:
        parts = {"the tail": self._tail, "the history": self._history, **self._tables}
        return {name: each.digest() for name, each in parts.items()}


class _Told:
    """Says now and then how far it has come."""

    def __init__(self, tell: Callable[[str], None], what: str) -> None:
        self._tell = tell
        self._what = what
        self._count = self._told = 0

    def more(self, count: int) -> None:
        self._count += count
        if self._count >= self._told + TELL_EVERY:
            self._told = self._count
            self._tell(f"{self._count} rows {self._what}")
