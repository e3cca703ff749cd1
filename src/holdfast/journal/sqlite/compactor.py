"""The server's side of an archive step: sends what to write, and receives how far the archive has come.

`LocalCompactor` writes in this process: for a restore and tests. `ChildCompactor` starts another process when there is
something to write, and again if it ended. Only the archiving task waits for it; the loop serves between any two
messages.

**The outcome of a step is always known.** Either the child confirms it, or the child ends without an answer: then the
server waits for its end and reads the archive, where a commit is visible only once it is synced.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path

import apsw
import msgspec

from holdfast import __version__
from holdfast.journal.interface import (
    Changes,
    JournalError,
    JournalUnavailableError,
    OutcomeUnknownError,
    Retention,
    Watch,
)
from holdfast.journal.sqlite.archive import (
    CHECKPOINT_PAGES,
    Connect,
    Lock,
    Position,
    Reader,
    open_for_reading,
    open_for_writing,
    truncate_wal,
)
from holdfast.journal.sqlite.archive_writer import Batches, Commit, Writer
from holdfast.journal.sqlite.compactor_process import LENGTH, Failed, Order, Setup, answer_of, framed
from holdfast.journal.sqlite.store import DiskFullError, Store

Feed = Callable[[int], list[tuple[int, int, bytes]]]  # Returns batches after a number; none at the end of the step.

COMMAND = (sys.executable, "-P", "-m", "holdfast.journal.sqlite.compactor_process")
POLL_SECONDS = 0.01
END_POLLS = 1_000  # Before a child is killed: ten seconds.
TIMEOUT_SECONDS = 120  # For one message or a commit: far longer than a child needs on a sound disk.


class ArchiveConfig(msgspec.Struct, frozen=True):
    path: Path
    identity: int
    retention: Retention
    lock: Lock
    watch: Watch


class Compactor(ABC):
    """Writes the archive of an open journal."""

    reader: Reader  # Sees committed data. For reads on the loop.
    position: Position  # How far the archive has come.
    _config: ArchiveConfig
    _connect: Connect = apsw.Connection

    @abstractmethod
    def open(self, config: ArchiveConfig) -> None:
        """Prepare to write an archive that exists."""

    @abstractmethod
    async def step(self, commit: Commit, changes: Iterable[Changes], feed: Feed) -> None:
        """Write a step. Raises `JournalUnavailableError` if it was not committed: `position` is unchanged."""

    @abstractmethod
    async def _send(self, order: Order) -> None: ...

    async def _write(self, commit: Commit, changes: Iterable[Changes], feed: Feed) -> None:
        if commit.head is not None:
            after = self.position.upto
            while rows := feed(after):
                await self._send(Batches(rows))
                after = rows[-1][1]
            for each in changes:
                await self._send(each)
        await self._send(commit)

    @contextlib.contextmanager
    def another_reader(self) -> Iterator[Reader]:
        """Yield a reader that sees one instant, and that another thread may use."""
        with contextlib.closing(self._open_for_reading()) as store:
            store.db.execute("BEGIN").fetchall()
            reader = Reader(store)
            reader.position()
            yield reader

    async def finish_abandoned_step(self) -> None:  # noqa: B027 - only a child can have one
        """Wait until no abandoned step is in progress."""

    @abstractmethod
    async def close(self) -> None:
        """Stop writing, and release the file."""

    def _open_for_reading(self) -> Store:
        return open_for_reading(self._config.path, connect=self._connect, watch=self._config.watch)


class LocalCompactor(Compactor):
    """Writes the archive in this process."""

    def __init__(
        self,
        *,
        connect: Connect = apsw.Connection,
        synchronous: str = "FULL",
        alone: bool = False,
        checkpoint_pages: int = CHECKPOINT_PAGES,
    ) -> None:
        """`alone`: readers share the writer's connection, for a file system that cannot have two."""
        self._connect = connect
        self._synchronous = synchronous
        self._alone = alone
        self._checkpoint_pages = checkpoint_pages

    def open(self, config: ArchiveConfig) -> None:
        self._config = config
        self._store = open_for_writing(
            config.path,
            config.identity,
            connect=self._connect,
            synchronous=self._synchronous,
            alone=self._alone,
            checkpoint_pages=self._checkpoint_pages,
            watch=config.watch,
        )
        self.writer = Writer(self._store, config.retention)
        self.position = self.writer.position
        self.reader = Reader(self._store if self._alone else self._open_for_reading())

    async def step(self, commit: Commit, changes: Iterable[Changes], feed: Feed) -> None:
        try:
            await self._write(commit, changes, feed)
        except OutcomeUnknownError as error:
            # Opened again, the file tells whether the step counts.
            await self.close()
            try:
                self.open(self._config)
            except (apsw.Error, DiskFullError, JournalError, OSError) as again:
                raise OutcomeUnknownError(f"{error}; then {again}") from again
            if self.position.upto != commit.upto or commit.head is None:
                raise JournalUnavailableError(str(error)) from error
        except DiskFullError as error:
            truncate_wal(self._store)
            raise JournalUnavailableError(f"archive: the disk is full: {error}") from error
        except JournalUnavailableError:
            raise
        except JournalError as error:
            raise JournalUnavailableError(str(error)) from error
        except BaseException:
            self._store.roll_back()
            raise
        self.position = self.writer.position

    async def _send(self, order: Order) -> None:
        if not isinstance(order, Setup):
            self.writer.do(order)
        if not isinstance(order, Commit):
            # After a commit nothing may be cancelled before `position` says so.
            await asyncio.sleep(0)

    @contextlib.contextmanager
    def another_reader(self) -> Iterator[Reader]:
        if self._alone:
            yield self.reader
            return
        with super().another_reader() as reader:
            yield reader

    async def close(self) -> None:
        if not self._alone:
            self.reader.store.close()
        self._store.close()


class ChildCompactor(Compactor):
    """Writes the archive in a child process."""

    def __init__(self, command: tuple[str, ...] = COMMAND, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """The last argument of `command` will be a socket's descriptor. A child silent for so long is killed."""
        self._command = command
        self._timeout_seconds = timeout_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def open(self, config: ArchiveConfig) -> None:
        """Make the archive durable, and open it for reading. The child starts with the first step."""
        self._config = config
        self._checkpoint()
        self.reader = Reader(self._open_for_reading())
        self.position = self.reader.position()

    async def step(self, commit: Commit, changes: Iterable[Changes], feed: Feed) -> None:
        await self.finish_abandoned_step()
        try:
            if self._process is None:
                await self._start()
            await self._write(commit, changes, feed)
            await self._receive()
        except (OSError, _GoneError) as error:
            await self._recover(commit, error)
        except BaseException:
            # Part of a message may have been sent. After its end the file tells what the child has done.
            self._kill()
            raise

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._socket = ours
            ours.setblocking(False)
            # Popen uses vfork: it takes a few milliseconds, however large this process is.
            self._process = subprocess.Popen(  # noqa: ASYNC220, S603 - our own module
                [*self._command, str(theirs.fileno())],
                pass_fds=(theirs.fileno(), self._config.lock.file),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        config = self._config
        config.lock.note(self._process.pid)
        await self._send(Setup(str(config.path), config.identity, config.retention, __version__))
        await self._receive()

    async def _receive(self) -> None:
        async with self._time_limit():
            (length,) = LENGTH.unpack(await self._bytes(LENGTH.size))
            answer = answer_of(await self._bytes(length))
        if isinstance(answer, Failed):
            raise _GoneError(answer.text)
        if answer.identity != self._config.identity:
            raise _GoneError(f"archive: {self._config.path} is that of another journal")
        self.position = answer

    async def _send(self, order: Order) -> None:
        if self._socket is None:
            raise _GoneError
        async with self._time_limit():
            await asyncio.get_running_loop().sock_sendall(self._socket, framed(order))
        # `sock_sendall` does not yield while the socket has room, and a quick child makes room constantly.
        await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def _time_limit(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                yield
        except TimeoutError:
            text = f"archive: the archivist did nothing for {self._timeout_seconds} s and was ended"
            raise _GoneError(text) from None

    async def _bytes(self, count: int) -> bytes:
        loop, parts = asyncio.get_running_loop(), b""
        while len(parts) < count:
            part = b"" if self._socket is None else await loop.sock_recv(self._socket, count - len(parts))
            if not part:
                raise _GoneError
            parts += part
        return parts

    async def _recover(self, commit: Commit, error: Exception) -> None:
        """Wait for the end of a child that failed. Raises unless the step was committed nevertheless."""
        why = str(error)
        if isinstance(error, OSError):
            # It ended while we wrote to it. Read its last answer.
            try:
                await self._receive()
            except (OSError, _GoneError) as said:
                why = str(said) or why
        process = self._process
        self._kill()
        await self.finish_abandoned_step()
        if commit.head is None or self.position.upto != commit.upto:
            raise JournalUnavailableError(_exit_text(why, process))

    def _kill(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()

    async def finish_abandoned_step(self) -> None:
        process = self._process
        if process is None or (self._socket is not None and process.poll() is None):
            return
        self._kill()
        await _end_of(process)
        self._process = None
        self.position = self.reader.position()

    async def close(self) -> None:
        """Let the child end by itself, which empties its WAL."""
        self.reader.store.close()
        process = self._process
        if process is not None:
            if self._socket is not None:
                self._socket.close()
                self._socket = None
            await _end_of(process, END_POLLS)
            self._process = None
        with contextlib.suppress(apsw.Error, JournalError, DiskFullError):
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Sync the archive, and empty its WAL."""
        open_for_writing(self._config.path, self._config.identity, watch=self._config.watch).close()


class _GoneError(Exception):
    """The child has ended or will. The text is its last answer."""


async def _end_of(process: subprocess.Popen[bytes], polls_max: int = 0) -> None:
    """Wait for the end of a process. Kill it after so many polls (0: never)."""
    polls = 0
    while process.poll() is None:
        polls += 1
        if polls == polls_max:
            process.kill()
        await asyncio.sleep(POLL_SECONDS)


def _exit_text(why: str, process: subprocess.Popen[bytes] | None) -> str:
    if why.startswith("archive: "):
        return why
    if process is None:
        return f"archive: the archivist cannot be started: {why}"
    code = process.returncode
    ended = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
    return f"archive: the archivist {ended}" + (f": {why}" if why else "")
