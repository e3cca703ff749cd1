"""Restoring: a data directory made of a backup.

It goes back in time, and what was given out since is unknown. So both counters leave a gap, `token_gap_since`: that of
fencing tokens (C6) and that of records, so that a reader of `/events` who saw a lost record has to start over. `beyond`
is a larger token that the operator knows of. Authority time goes on where the backup has it: leases have the time left
that they had then. All of the restored state is archived; the tail has one record, `Restored`.

**An interrupted restore is never taken for a complete one.** A folder for the new files is made first and removed last.
While it is there without a journal next to it, or while there is a key alone, a server refuses to start. Both files are
made in that folder, read once more, and moved when all else is done: the journal last.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.core.events import Record, Restored, is_history
from holdfast.core.state import Frozen, State
from holdfast.core.values import TOKEN_MAX
from holdfast.engine import snapshot
from holdfast.engine.ids import new_identity
from holdfast.engine.recovery import replay, token_gap_since
from holdfast.journal.backup import ANOTHER, KEY, RECORDS, ROWS, TAIL, About, BackupReader, Totals, frames, values_in
from holdfast.journal.codec import decode_batch
from holdfast.journal.interface import (
    HistoryPart,
    JournalDamagedError,
    JournalError,
    JournalTooNewError,
    SnapshotPart,
    Values,
)
from holdfast.journal.sqlite import watermark
from holdfast.journal.sqlite.archive import FILE as ARCHIVE
from holdfast.journal.sqlite.inspect import inspect
from holdfast.journal.sqlite.journal import FILE, SqliteWriter
from holdfast.privatefiles import check_folder, make_folder, replace, sync_folder

READ_BYTES = 1024 * 1024
FILES = (ARCHIVE, watermark.FILE, FILE)  # made beside the key, in the order in which they are moved into place
NOT_CONTENT = frozenset({"lost+found"})


class BackupLease(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    owner: str | None
    token: int
    left_ms: int


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    about: About
    totals: Totals
    key: bytes
    frozen: Frozen

    def leases(self) -> list[BackupLease]:
        state = State.thaw(self.frozen)
        found = [
            BackupLease(name=name, owner=lease.owner, token=lease.token, left_ms=state.until_of(lease) - state.now_ms)
            for name, slot in state.slots.items()
            if (lease := slot.lease) is not None
        ]
        return sorted(found, key=lambda each: -each.left_ms)


class Start(msgspec.Struct, frozen=True, kw_only=True):
    seq: int
    last_token: int


def read_backup(file: Path) -> Contents:
    """Read a whole backup and check every byte. Raises `JournalError` if it is not complete, and `OSError`.

    It reads the file twice: the records that are replayed on the state come before it, and may be many.
    """
    reader = BackupReader(str(file))
    key = b""
    values: list[Values] = []
    records = 0
    for chunk in _chunks(file):
        for kind, body in reader.feed(chunk):
            if kind == KEY:
                key = body
            elif kind == ROWS:
                values.append(values_in(body))
            elif kind in {TAIL, RECORDS}:
                records += sum(is_history(each.event) for each in decode_batch(body))
    reader.close()
    about, totals = reader.about, reader.totals
    if about is None or totals is None or records != totals.records:
        raise JournalDamagedError(f"{file} is not a whole backup: it has {records} records", ANOTHER)
    frozen = _state_of(file, values)
    if frozen.scalars.seq != about.seq:
        problem = f"{file} is not a whole backup: it ends with record {frozen.scalars.seq}, and not with {about.seq}"
        raise JournalDamagedError(problem, ANOTHER)
    return Contents(about=about, totals=totals, key=key, frozen=frozen)


def _state_of(file: Path, values: list[Values]) -> Frozen:
    try:
        state = snapshot.load(values)
        replay(state, (each for records in _records(file, TAIL) for each in records))
    except JournalTooNewError:
        raise
    except JournalDamagedError as error:
        raise JournalDamagedError(f"{file} is not a whole backup: {error.problem}", ANOTHER) from error
    return state.freeze()


def start_after(contents: Contents, wall_ms: int, beyond: int = 0) -> Start:
    """Return where a directory made of a backup at this wall time goes on. Raises if no counter is left."""
    token_gap = token_gap_since(contents.about.wall_ms, wall_ms)
    scalars = contents.frozen.scalars
    start = Start(seq=scalars.seq + token_gap, last_token=max(scalars.last_token + token_gap, beyond))
    if max(start.seq, start.last_token) >= TOKEN_MAX:
        text = (
            f"restored now, the backup would go on with fencing token {start.last_token}, and {TOKEN_MAX} is the last"
        )
        way = "Check that the clock of this machine is right, and --beyond"
        raise JournalError(text, way, "Take a newer backup: the older it is, the farther the counter jumps")
    return start


def restore(
    file: Path,
    contents: Contents,
    start: Start,
    directory: Path,
    *,
    key_file: str,
    wall_ms: int,
    version: str,
    tell: Callable[[int], None],
) -> None:
    """Make a data directory of a backup. `tell` gets the number of records of the history written so far.

    Raises `JournalError` for a directory that cannot be used, and `OSError`; then nothing of it is left.
    """
    is_new = not directory.exists()
    make_folder(directory)
    check_folder(directory)
    _refuse_unless_empty(directory, key_file)
    staging = directory / watermark.RESTORING
    try:
        staging.mkdir(mode=0o700)
        sync_folder(directory)
        replace(directory / key_file, contents.key)
        sync_folder(directory)
        source = _Restored(file, contents, start, wall_ms=wall_ms, version=version, tell=tell)
        asyncio.run(_write(staging, source))
        _check(staging)
        for name in FILES:
            (staging / name).replace(directory / name)
        staging.rmdir()
        sync_folder(directory)
    except BaseException:
        with contextlib.suppress(OSError):
            for name in (*FILES, key_file):
                (directory / name).unlink(missing_ok=True)
            shutil.rmtree(staging, ignore_errors=True)
            if is_new:
                directory.rmdir()
        raise


def _refuse_unless_empty(directory: Path, key_file: str) -> None:
    there = sorted({path.name for path in directory.iterdir()} - NOT_CONTENT)
    if not there:
        return
    names = ", ".join(there[:5]) + (", …" if len(there) > 5 else "")  # noqa: PLR2004 - enough to know it by
    problem = f"{directory} is not empty: there is {names}. Nothing is written over what is there"
    if watermark.RESTORING in there or set(there) <= {key_file, watermark.FILE, ARCHIVE}:
        raise JournalError(problem, f"A restore broke off there: remove {names} and try again")
    raise JournalError(
        problem, "Name another directory with --data, or stop the server that used this one and move the directory away"
    )


async def _write(staging: Path, source: _Restored) -> None:
    """Write the journal. It is synced once, at the end."""
    writer = SqliteWriter(staging, identity=new_identity(), epoch=source.epoch)
    try:
        await writer.begin()
        await snapshot.copy(source, writer, source.saw)
    finally:
        await writer.close()


class _Restored:
    """A backup behind a token gap: all of it is archived, and its tail is `Restored`."""

    def __init__(
        self, file: Path, contents: Contents, start: Start, *, wall_ms: int, version: str, tell: Callable[[int], None]
    ) -> None:
        scalars, about = contents.frozen.scalars, contents.about
        self._file = file
        self._frozen = msgspec.structs.replace(contents.frozen, scalars=msgspec.structs.replace(scalars, seq=start.seq))
        event = Restored(start.last_token, about.seq, about.wall_ms, version)
        self._record = Record(start.seq + 1, scalars.now_ms, wall_ms, event)
        self._tell = tell
        self._reported = 0
        self.epoch = scalars.epoch
        self.last_seq = start.seq + 1
        self.upto = self.pruned = start.seq

    async def tail(self) -> AsyncIterator[Sequence[Record]]:
        yield [self._record]

    async def values(self) -> AsyncIterator[Values]:
        for values in snapshot.values(self._frozen):
            yield values

    async def history(self) -> AsyncIterator[Sequence[Record]]:
        """Yield the archived records, then those of the backup's tail that have history value."""
        for kind in (RECORDS, TAIL):
            for records in _records(self._file, kind):
                yield [each for each in records if is_history(each.event)]

    def saw(self, part: SnapshotPart) -> None:
        if isinstance(part, HistoryPart):
            self._reported += len(part.records)
            self._tell(self._reported)


def _records(file: Path, wanted: bytes) -> Iterator[list[Record]]:
    for kind, body in frames(_chunks(file), str(file)):
        if kind == wanted:
            yield list(decode_batch(body))


def _check(staging: Path) -> None:
    left = [name for name in (f"{FILE}-wal", f"{ARCHIVE}-wal") if (staging / name).exists()]
    found = inspect(staging)
    if found.problems or left:
        problem = found.problems[0] if found.problems else f"{left[0]} was not emptied"
        raise JournalError(f"what was restored cannot be read: {problem}", "Check the disk and try again")


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while chunk := opened.read(READ_BYTES):
            yield chunk
