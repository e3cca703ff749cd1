"""The server's side of a step: whoever writes the archive is told what to write, and says how far it has come.

`Local` writes it in the same process: for a restore, a take-over and tests. `Child` lets another process do it, which
is started when there is something to write, and started again when it is gone. Nobody waits for it but the one task
that archives; between any two pieces the loop serves.

**Whether a step counts is always known.** If the child says so, it does. If the child is gone before it says anything,
its end is waited for, and the archive is read: a commit is seen by others only once it is synced.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Protocol

import apsw
import msgspec

from holdfast import __version__
from holdfast.journal.archive.child import (
    LENGTH,
    Batches,
    Begin,
    Changed,
    Commit,
    Failed,
    Reached,
    Setup,
    answer_of,
    framed,
)
from holdfast.journal.archive.file import CHECKPOINT_PAGES, give_back, look_at, open_for_reading, open_for_writing
from holdfast.journal.archive.reader import Reader, one_instant
from holdfast.journal.archive.writer import Writer
from holdfast.journal.base import JournalError, JournalUnavailableError, OutcomeUnknownError
from holdfast.journal.store import DiskFullError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from pathlib import Path

    from holdfast.journal.archive.child import Answer, Order
    from holdfast.journal.archive.file import Connect, Lock, Position
    from holdfast.journal.base import Changes, Keeping, Watch
    from holdfast.journal.store import Store

    Feed = Callable[[int], list[tuple[int, int, bytes]]]
    """Returns some batches after a number, and none when that was the last of the step."""

COMMAND = (sys.executable, "-P", "-m", "holdfast.journal.archive.child")
POLL_SECONDS = 0.01
END_POLLS = 1_000
"""How often the end of a child is looked for before it is killed: ten seconds."""
SILENCE_SECONDS = 120
"""How long a child may take for one piece, or for a commit: far longer than a sound one does, niced as it is."""


class Place(msgspec.Struct, frozen=True):
    """Which archive, of which journal, how much history is kept, the lock of it, and who watches the disk."""

    path: Path
    identity: int
    keeping: Keeping
    lock: Lock
    watch: Watch


class Step(msgspec.Struct, frozen=True):
    """What a step brings: the state up to a record. With no head nothing is new, and history is looked through."""

    upto: int
    head: bytes | None
    changes: Iterable[Changes]
    wall_ms: int


class Archivist(Protocol):
    """Whoever writes the archive of a journal that is open."""

    reader: Reader
    """What is committed. For reads on the loop."""
    position: Position
    """How far the archive has come."""

    def look_at(self, path: Path, watch: Watch) -> Store:
        """Open an archive that nobody writes, to read it; nothing of it is changed."""
        ...

    def open_for_writing(self, path: Path, identity: int, watch: Watch) -> Store:
        """Open an archive that nobody writes, or make it, and let all that is in it be durable."""
        ...

    def open(self, place: Place) -> None:
        """Be ready to write an archive that is there."""
        ...

    async def step(self, step: Step, feed: Feed) -> None:
        """Write a step. Raises `JournalUnavailableError` if nothing of it counts. Then `position` is as before."""
        ...

    def another_reader(self) -> contextlib.AbstractContextManager[Reader]:
        """Give a reader that sees one instant, for as long as it is open. It may be used in another thread."""
        ...

    async def settle(self) -> None:
        """Wait until nothing is on its way any more that was given up."""
        ...

    async def close(self) -> None:
        """End, and leave the file as one that nobody writes."""
        ...


class Local:
    """Writes the archive itself, in this process."""

    reader: Reader
    position: Position

    def __init__(
        self,
        *,
        connect: Connect = apsw.Connection,
        synchronous: str = "FULL",
        alone: bool = False,
        checkpoint_pages: int = CHECKPOINT_PAGES,
    ) -> None:
        """`alone`: readers share the writer's connection, on a file system that cannot have two."""
        self._connect = connect
        self._synchronous = synchronous
        self._alone = alone
        self._checkpoint_pages = checkpoint_pages

    def look_at(self, path: Path, watch: Watch) -> Store:
        """Open an archive that nobody writes."""
        return look_at(path, self._connect, watch)

    def open_for_writing(self, path: Path, identity: int, watch: Watch) -> Store:
        """Open an archive that nobody writes, or make it."""
        return open_for_writing(
            path,
            identity,
            connect=self._connect,
            synchronous=self._synchronous,
            alone=self._alone,
            checkpoint_pages=self._checkpoint_pages,
            watch=watch,
        )

    def open(self, place: Place) -> None:
        """Open the archive for writing."""
        self._place = place
        self._open()

    def _open(self) -> None:
        place = self._place
        self._store = self.open_for_writing(place.path, place.identity, place.watch)
        self.writer = Writer(self._store, place.keeping)
        self.position = self.writer.position
        self.reader = Reader(self._store if self._alone else self._read_only())

    def _read_only(self) -> Store:
        return open_for_reading(self._place.path, connect=self._connect, watch=self._place.watch)

    async def step(self, step: Step, feed: Feed) -> None:
        """Write a step, piece by piece."""
        try:
            await self._write(step, feed)
        except OutcomeUnknownError as error:
            # Opened anew, the file says what became of it.
            self._close()
            try:
                self._open()
            except (apsw.Error, DiskFullError, JournalError, OSError) as again:
                raise OutcomeUnknownError(f"{error}; then {again}") from again
            if self.position.upto != step.upto or step.head is None:
                raise JournalUnavailableError(str(error)) from error
        except DiskFullError as error:
            give_back(self._store)
            raise JournalUnavailableError(f"archive: the disk is full: {error}") from error
        except JournalUnavailableError:
            raise
        except JournalError as error:
            raise JournalUnavailableError(str(error)) from error
        except BaseException:
            self.writer.abort()
            raise
        self.position = self.writer.position

    async def _write(self, step: Step, feed: Feed) -> None:
        writer = self.writer
        if step.head is None:
            writer.prune(step.wall_ms)
            return
        writer.begin()
        after = self.position.upto
        while rows := feed(after):
            for first, last, body in rows:
                writer.enter(first, last, body)
                after = last
            await asyncio.sleep(0)
        for changes in step.changes:
            writer.change(changes)
            await asyncio.sleep(0)
        writer.commit(step.upto, step.head, step.wall_ms)

    @contextlib.contextmanager
    def another_reader(self) -> Iterator[Reader]:
        """Give a reader of its own, or the only one there is."""
        if self._alone:
            yield self.reader
            return
        with one_instant(self._read_only()) as reader:
            yield reader

    async def settle(self) -> None:
        """Nothing is ever on its way."""

    async def close(self) -> None:
        """Close the file."""
        self._close()

    def _close(self) -> None:
        if not self._alone:
            self.reader.store.close()
        self._store.close()


class Child:
    """Lets a process of its own write the archive."""

    reader: Reader
    position: Position

    def __init__(self, command: tuple[str, ...] = COMMAND, silence_seconds: float = SILENCE_SECONDS) -> None:
        """Prepare. `command` is what is started, with the number of a socket behind it.

        One that neither takes nor says anything for `silence_seconds` hangs, and is killed.
        """
        self._command = command
        self._silence_seconds = silence_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def look_at(self, path: Path, watch: Watch) -> Store:
        """Open an archive that nobody writes."""
        return look_at(path, watch=watch)

    def open_for_writing(self, path: Path, identity: int, watch: Watch) -> Store:
        """Open an archive that nobody writes, or make it."""
        return open_for_writing(path, identity, watch=watch)

    def open(self, place: Place) -> None:
        """Make the archive durable as it is, and open it for reading. No process is started yet."""
        self._place = place
        self._tidy()
        self.reader = Reader(open_for_reading(place.path, watch=place.watch))
        self.position = self.reader.position()

    async def step(self, step: Step, feed: Feed) -> None:
        """Let the child write a step."""
        await self.settle()
        try:
            if self._process is None:
                await self._start()
            await self._write(step, feed)
        except (OSError, _GoneError) as error:
            await self._bury(step, error)
        except BaseException:
            # Nobody knows how much of a message was sent. What it has done is read from the file, after its end.
            self._kill()
            raise

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._socket = ours
            ours.setblocking(False)
            numbers = (theirs.fileno(), self._place.lock.file)
            command = [*self._command, str(theirs.fileno())]
            self._process = _started(command, numbers)
        place = self._place
        place.lock.note(self._process.pid)
        await self._send(Setup(str(place.path), place.identity, place.keeping, __version__))
        self._hear(await self._receive())

    async def _write(self, step: Step, feed: Feed) -> None:
        if step.head is not None:
            after = self.position.upto
            await self._send(Begin(after))
            while rows := feed(after):
                await self._send(Batches(rows))
                after = rows[-1][1]
            for each in step.changes:
                await self._send(Changed(each.table, list(each.gone), list(each.changed), list(each.new)))
        await self._send(Commit(step.upto, step.head, step.wall_ms))
        self._hear(await self._receive())

    def _hear(self, answer: Answer) -> None:
        match answer:
            case Failed(text):
                raise _GoneError(text)
            case Reached(position) if position.identity == self._place.identity:
                self.position = position
            case _:
                raise _GoneError(f"archive: {self._place.path} is that of another journal")

    async def _send(self, order: Order) -> None:
        if self._socket is None:
            raise _GoneError
        async with self._patience():
            await asyncio.get_running_loop().sock_sendall(self._socket, framed(order))
        # What the socket takes at once is sent without a turn of the loop, and a quick child makes room all the time.
        await asyncio.sleep(0)

    async def _receive(self) -> Answer:
        async with self._patience():
            (length,) = LENGTH.unpack(await self._bytes(LENGTH.size))
            return answer_of(await self._bytes(length))

    @contextlib.asynccontextmanager
    async def _patience(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._silence_seconds):
                yield
        except TimeoutError:
            text = f"archive: the archivist did nothing for {self._silence_seconds} s and was ended"
            raise _GoneError(text) from None

    async def _bytes(self, count: int) -> bytes:
        loop, parts = asyncio.get_running_loop(), bytearray()
        while len(parts) < count and self._socket is not None:
            part = await loop.sock_recv(self._socket, count - len(parts))
            if not part:
                break
            parts += part
        if len(parts) < count:
            raise _GoneError
        return bytes(parts)

    async def _bury(self, step: Step, error: Exception) -> None:
        """Wait for the end of a child that broke off. Raises, unless the step was committed all the same."""
        why = str(error)
        if isinstance(error, OSError):
            # It ended while it was written to. What it said last is still to be read.
            with contextlib.suppress(OSError, _GoneError):
                why = getattr(await self._receive(), "text", why)
        process = self._process
        self._kill()
        await self.settle()
        if step.head is None or self.position.upto != step.upto:
            raise JournalUnavailableError(_words(why, process))

    def _kill(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()

    async def settle(self) -> None:
        """Wait for the end of a child that was given up, and read how far it came."""
        process = self._process
        if process is None or (self._socket is not None and process.poll() is None):
            return
        self._kill()
        await _end_of(process)
        self._process = None
        self.position = self.reader.position()

    @contextlib.contextmanager
    def another_reader(self) -> Iterator[Reader]:
        """Give a reader of its own."""
        with one_instant(open_for_reading(self._place.path, watch=self._place.watch)) as reader:
            yield reader

    async def close(self) -> None:
        """Let the child end by itself: it empties its WAL."""
        self.reader.store.close()
        process = self._process
        if process is not None:
            if self._socket is not None:
                self._socket.close()
                self._socket = None
            await _end_of(process, END_POLLS)
            self._process = None
        with contextlib.suppress(apsw.Error, JournalError, DiskFullError):
            self._tidy()

    def _tidy(self) -> None:
        """Let all that is in the archive be durable, and in one file."""
        self.open_for_writing(self._place.path, self._place.identity, self._place.watch).close()


def _started(command: list[str], numbers: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """Start a process that inherits these files. It takes a few milliseconds, however large this one is (`vfork`).

    It finds its modules where this one did, whatever had been done to let it find them.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(  # noqa: S603 - our own module
        command, pass_fds=numbers, stdin=subprocess.DEVNULL, env=environment
    )


class _GoneError(Exception):
    """The child has ended, or is about to. The text is what it said last."""


async def _end_of(process: subprocess.Popen[bytes], polls_max: int = 0) -> None:
    """Wait for the end of a process. If it does not end by itself, it is killed after so many looks."""
    polls = 0
    while process.poll() is None:
        polls += 1
        if polls == polls_max:
            process.kill()
        await asyncio.sleep(POLL_SECONDS)


def _words(why: str, process: subprocess.Popen[bytes] | None) -> str:
    if why.startswith("archive: "):
        return why
    if process is None:
        return f"archive: the archivist cannot be started: {why}"
    code = process.returncode
    ended = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
    return f"archive: the archivist {ended}" + (f": {why}" if why else "")
