"""Moving: all that a data directory holds, copied into a store that nodes share. Offline, and never half.

Only one of the two may ever count, or both would give out the same fencing tokens. So the copy is one transaction of
the store, and a file in the directory (`journal/sqlite/watermark.py`) says that it is moved before that is committed:

    take the directory's seat ─► copy ─► read back, compare ─► mark: about to be ─► commit ─► mark: moved
                                                                    │
         interrupted before here: the directory counts, ◄───────────┴──────► after here: moving again finds out.
         and nothing of the copy is in the store                             Neither is served until then

The commit is the one step that may have happened or not when it is interrupted. The next move waits in the store for
the rest of the interrupted one, and then sees whether the authority that the mark names is there. Another store cannot
tell, so an interrupted move goes on to the store where it began, and to no other.

Digests of the bytes that were given to the store and of those that are read back are compared.

`named` and the functions after it are what commands ask of a shared store without a node. They raise `JournalError`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.config import load as load_settings
from holdfast.config.addresses import ESCAPES, is_torn, shown
from holdfast.core.events import is_history
from holdfast.engine.build import store_secret
from holdfast.engine.clock import SystemClock
from holdfast.engine.ids import new_secret
from holdfast.engine.recovery import replay
from holdfast.engine.snapshot import copy, load, parts
from holdfast.errors import SettingsError
from holdfast.journal.codec import encode_batch
from holdfast.journal.failpoints import failpoint
from holdfast.journal.interface import JournalError, JournalUnavailableError, Leadership, Peer, SnapshotPart, Values
from holdfast.journal.postgres.admin import Contents, Facts, PostgresWriter, StoreAdmin, open_writer
from holdfast.journal.postgres.leadership import NewAuthority
from holdfast.journal.sqlite import watermark
from holdfast.journal.sqlite.journal import SqliteJournal

REPORT_EVERY = 10_000


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    authority: str
    was_done: bool
    epoch: int = 0
    seq: int = 0
    last_token: int = 0
    records: int = 0
    leases: int = 0
    sessions: int = 0
    tokens: int = 0
    waiting: int = 0


async def move(
    directory: Path,
    filling: AbstractAsyncContextManager[PostgresWriter],
    *,
    to: str,
    schema: str,
    key: bytes,
    witnesses: Sequence[str],
    authority: str,
    wall_ms: int,
    tell: Callable[[str], None],
) -> Moved:
    """Move a directory that no server has open into an empty store. Raises `JournalError`, and `OSError`.

    `to` and `schema` name the store for people and in the mark, `authority` is the id of the one to be made there,
    `witnesses` are names of files that are only there after a journal, and `tell` gets the progress.
    """
    tell("waiting for the store")
    async with filling as store:
        if (known := watermark.read_moved(directory)) is not None and known.authority == store.authority:
            watermark.write_moved(directory, msgspec.structs.replace(known, is_done=True))
            return Moved(authority=known.authority, was_done=True)
        _refuse(directory, known, store.authority, to, schema)
        if known is not None:
            watermark.remove_moved(directory)
        source = SqliteJournal(directory, disk_reserve_bytes=0, witnesses=witnesses)
        try:
            moved = await _copy(source, store, key=key, authority=authority, tell=tell)
            failpoint("move_before_mark")
            left = watermark.Moved(to=to, schema=schema, authority=authority, is_done=False, wall_ms=wall_ms)
            watermark.write_moved(directory, left)
            tell("letting it count")
            failpoint("move_before_commit")
            await store.commit()
            failpoint("move_after_commit")
            watermark.write_moved(directory, msgspec.structs.replace(left, is_done=True))
        finally:
            await source.close()
    return moved


def _refuse(directory: Path, known: watermark.Moved | None, there: str | None, to: str, schema: str) -> None:
    if known is not None and known.is_done:
        problem = f"{directory} was moved to {known.to} already, and counts no more"
        raise JournalError(problem, f"Start the nodes on it: holdfast serve --store {known.to}")
    if known is not None and (known.to, known.schema) != (to, schema):
        problem = (
            f"a move of {directory} to {known.to} (schema {known.schema}) was interrupted at its last step, and only"
        )
        problem += " that store knows which of them counts"
        again = f"Move it there again: holdfast move --from {directory} --to {known.to}, with HOLDFAST_STORE_SCHEMA"
        gone = "If that store is gone for good: make sure that no node serves from there,"
        gone += f" remove {directory / watermark.MOVED}"
        raise JournalError(problem, f"{again}={known.schema}", f"{gone}, and move it")
    if there is not None:
        problem = f"{to} is not empty: there is an authority in it ({there}). Nothing is written over it"
        other = "Name another schema with HOLDFAST_STORE_SCHEMA, or another database"
        raise JournalError(problem, other, "If nobody needs what is there, drop the schema, and move again")


async def _copy(
    source: SqliteJournal, store: PostgresWriter, *, key: bytes, authority: str, tell: Callable[[str], None]
) -> Moved:
    tell("looking at the directory")
    epoch = (await source.open()).epoch
    await store.begin(authority, key, epoch)
    given, found, copied, read = _Digests(), _Digests(), _Progress(tell, "copied"), _Progress(tell, "read back")

    def saw(part: SnapshotPart) -> None:
        given.add(part)
        failpoint("move_mid")
        copied.add(part)

    async with source.snapshot() as snapshot:
        tail = [record async for records in snapshot.tail() for record in records]
        state = load([values async for values in snapshot.values()])
        replay(state, tail)
        await copy(snapshot, store, saw)
    async for part in parts(await store.snapshot()):
        found.add(part)
        read.add(part)
    if found.digests() != given.digests() or state.seq != snapshot.last_seq:
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


class _Progress:
    def __init__(self, tell: Callable[[str], None], what: str) -> None:
        self._tell = tell
        self._what = what
        self._count = self._reported = 0

    def add(self, part: SnapshotPart) -> None:
        self._count += len(part.rows if isinstance(part, Values) else part.records)
        if self._count >= self._reported + REPORT_EVERY:
            self._reported = self._count
            self._tell(f"{self._count} rows {self._what}")


class _Digests:
    """A digest of each kind of part, over its bytes in their order, however they were cut into parts."""

    def __init__(self) -> None:
        self._digests: dict[str, hashlib._Hash] = {}
        self.records = 0

    def add(self, part: SnapshotPart) -> None:
        if isinstance(part, Values):
            digest = self._digest_of(part.table)
            for row in part.rows:
                for data in row:
                    digest.update(len(data).to_bytes(8))
                    digest.update(data)
            return
        for record in part.records:
            self._digest_of(type(part).__name__).update(encode_batch((record,)))
            self.records += is_history(record.event)

    def _digest_of(self, kind: str) -> hashlib._Hash:
        return self._digests.setdefault(kind, hashlib.sha256())

    def digests(self) -> dict[str, bytes]:
        return {kind: each.digest() for kind, each in self._digests.items()}


ROUND_TRIPS = 20
KEY_BYTES = 32
CHECK_CONNECTION = (
    "Check that the database runs, and the address, the role and its password (PGPASSFILE, else ~/.pgpass)"
)

T = TypeVar("T")


class StoreAddress(msgspec.Struct, frozen=True):
    """The address of a store, and the secret that its key is sealed with."""

    url: str
    schema: str
    secret: bytes | None = None
    watch_seconds: float = 3.0

    @property
    def shown(self) -> str:
        return shown(self.url)

    def __repr__(self) -> str:
        return f"StoreAddress({self.shown!r}, {self.schema!r})"


def named(url: str | None, environment: Mapping[str, str]) -> StoreAddress:
    """Return the store named on the command line or else in the settings. Raises `SettingsError`."""
    overrides = {} if url is None else {"store": url}
    settings = load_settings(overrides=overrides, environment=environment, file=None).settings
    if not settings.store:
        raise SettingsError("store", "command line", "no store is named", "postgresql://user@host/database")
    return StoreAddress(
        settings.store,
        settings.store_schema,
        store_secret(settings.store_secret_file),
        watch_seconds=settings.takeover_seconds + 1.0,
    )


def roster(address: StoreAddress) -> tuple[Leadership, Sequence[Peer]]:
    return _ask(address, lambda store: store.roster())


def facts(address: StoreAddress) -> tuple[Facts, float]:
    async def query(store: StoreAdmin) -> tuple[Facts, float]:
        clock = SystemClock()
        found = await store.facts(address.watch_seconds)
        began_ms = clock.monotonic_ms()
        await store.ping(ROUND_TRIPS)
        return found, (clock.monotonic_ms() - began_ms) / ROUND_TRIPS

    return _ask(address, query)


def contents(address: StoreAddress, tell: Callable[[int], None]) -> Contents:
    return _ask(address, lambda store: store.read(tell))


def init(address: StoreAddress) -> tuple[str, bool]:
    new_authority = NewAuthority(new_secret(16).hex(), new_secret(KEY_BYTES), SystemClock().wall_ms())
    found = _ask(address, lambda store: store.init(new_authority, address.secret))
    return (new_authority.authority, True) if found is None else (found.authority, False)


def restored(address: StoreAddress) -> int:
    """Let the next leader begin with `Restored`; return its epoch. Raises `JournalLockedError` for a live one."""
    return _ask(address, lambda store: store.restored(new_secret(16).hex(), address.watch_seconds))


def filled(address: StoreAddress) -> AbstractAsyncContextManager[PostgresWriter]:
    return open_writer(_checked(address), address.schema, address.secret, new_secret(16).hex(), SystemClock().wall_ms())


def _ask(address: StoreAddress, what: Callable[[StoreAdmin], Awaitable[T]]) -> T:
    async def ask() -> T:
        store = StoreAdmin(_checked(address), address.schema)
        try:
            return await what(store)
        except JournalUnavailableError as error:
            raise JournalUnavailableError(error.problem, *(error.remedies or (CHECK_CONNECTION,))) from error
        finally:
            await store.close()

    return asyncio.run(ask())


def _checked(address: StoreAddress) -> str:
    if not address.url.startswith(("postgresql://", "postgres://")):
        raise JournalError(f"{address.shown} is no address of a store", "Write it as postgresql://user@host/database")
    if is_torn(address.url):
        raise JournalError(f"the address of the store cannot be used: {ESCAPES}")
    return address.url
