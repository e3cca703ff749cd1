"""The writer: whoever logs puts a line into a bounded queue and goes on; a thread writes it.

      emit ──► queue, `QUEUE_BYTES_MAX` ──► the thread ──► standard error, which may be a pipe that nobody reads
                │ full: the line is left out, and counted
                └ lines below a warning may take half of it: a log of requests never costs us a warning

Nobody waits for standard error but the thread. What was left out is told by a line at the place where it is missing, as
soon as there is room for that.

**Last words.** `flush` waits until all is written, but only so long: a process that stops, or is ended by its watchdog,
flushes (`logging.shutdown` does it at the end of every Python process). One that is killed loses what was in the queue:
usually nothing, because the thread is woken by each line.

**Whole lines.** A write to a pipe of up to `BATCH_BYTES` is not mixed with what others write there, as the kernel
promises; only a longer line is written alone.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

QUEUE_BYTES_MAX = 4_194_304
BATCH_BYTES = select.PIPE_BUF
LAST_WORDS_SECONDS = 2.0
"""How long the end of the process waits for a standard error that takes nothing."""
_WRITABLE_MS = 1_000


class LineWriter:
    """A bounded queue of lines, and the thread that writes them. `start` makes the thread."""

    def __init__(self, fd: int, tell: Callable[[int], bytes], queue_bytes_max: int = QUEUE_BYTES_MAX) -> None:
        """`tell` makes the line that says how many were left out."""
        self._fd = fd
        self._tell = tell
        self._bytes_max = queue_bytes_max
        self._news = threading.Condition()
        self._lines: deque[tuple[bytes, int]] = deque()
        """Each with the number of left out lines that it tells of: those are untold again if it cannot be written."""
        self._bytes = 0
        self._untold = 0
        self._is_writing = self._is_failing = self._is_stuck = self._is_stopped = False
        self.left_out = 0
        """How many lines were left out since the start."""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to write."""
        self._thread = threading.Thread(target=self._run, name="holdfast-log", daemon=True)
        self._thread.start()

    def put(self, line: bytes, *, is_urgent: bool = True) -> None:
        """Have a line written, or count it if there is no room. Never waits for whoever reads it."""
        with self._news:
            room = (self._bytes_max if is_urgent else self._bytes_max // 2) - self._bytes
            if len(line) > room:
                self._untold += 1
                self.left_out += 1
                return
            if self._untold:
                self._enter_untold()
            self._enter(line)
            self._news.notify_all()

    def flush(self, seconds: float) -> bool:
        """Wait until all is written, but no longer than this. False: it is not.

        Whoever waited in vain did it for those who come after, until something is taken again.
        """
        with self._news:
            self._is_stuck = not self._news.wait_for(self._has_nothing, 0 if self._is_stuck else seconds)
            return not self._is_stuck

    def stop(self, seconds: float) -> bool:
        """Write what is there, but no longer than this, and end the thread. False: something is not written."""
        is_written = self.flush(seconds)
        with self._news:
            self._is_stopped = True
            self._news.notify_all()
        if is_written and self._thread is not None:
            self._thread.join(seconds)
        return is_written

    def _has_nothing(self) -> bool:
        return not self._lines and not self._is_writing and (not self._untold or self._is_failing)

    # What is done with the lock held.

    def _enter(self, line: bytes, tells_of: int = 0) -> None:
        self._lines.append((line, tells_of))
        self._bytes += len(line)

    def _enter_untold(self) -> None:
        """Tell what was left out. The few bytes of it may be beyond the bound."""
        untold, self._untold = self._untold, 0
        self._enter(self._tell(untold), untold)

    def _taken(self) -> list[tuple[bytes, int]]:
        """Take what is written at once: some whole lines, or one that is long."""
        taken: list[tuple[bytes, int]] = []
        size = 0
        while self._lines and (not taken or size + len(self._lines[0][0]) <= BATCH_BYTES):
            taken.append(self._lines.popleft())
            size += len(taken[-1][0])
        self._bytes -= size
        return taken

    # The thread.

    def _run(self) -> None:
        while batch := self._next():
            is_written = self._write(b"".join(line for line, _ in batch))
            with self._news:
                self._is_failing, self._is_stuck = not is_written, False
                if not is_written:
                    lost = sum(not tells_of for _, tells_of in batch)
                    self.left_out += lost
                    self._untold += lost + sum(tells_of for _, tells_of in batch)

    def _next(self) -> list[tuple[bytes, int]]:
        """Wait for lines and take some; none: it is stopped."""
        with self._news:
            self._is_writing = False
            # Where nothing can be written it is told later, with the next line that somebody puts.
            if not self._lines and self._untold and not self._is_failing:
                self._enter_untold()
            if not self._lines:
                self._news.notify_all()
            while not self._lines and not self._is_stopped:
                self._news.wait()
            self._is_writing = bool(self._lines)
            return self._taken()

    def _write(self, data: bytes) -> bool:
        """Write all of it. False: standard error cannot be written to, as a pipe that was closed or a full disk."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:
                # Somebody who shares it made it one that does not wait.
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll(_WRITABLE_MS)
            except OSError:
                return False
        return True


class WriterHandler(logging.Handler):
    """Hands what is logged to a writer."""

    def __init__(self, fd: int, formatter: logging.Formatter, queue_bytes_max: int = QUEUE_BYTES_MAX) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.writer = LineWriter(fd, self._told, queue_bytes_max)

    def emit(self, record: logging.LogRecord) -> None:
        """Put a line into the queue. One that cannot be made is told of by another."""
        try:
            line = self.format(record)
        except Exception as error:  # noqa: BLE001 - Whatever it is, it must not go to whoever logs, nor be lost.
            line = self._line(f"a line of {record.name} could not be written: {type(error).__name__}", logging.ERROR)
        self.writer.put(_encoded(line), is_urgent=record.levelno >= logging.WARNING)

    def flush(self) -> None:
        """Let the last words out, if somebody takes them."""
        self.writer.flush(LAST_WORDS_SECONDS)

    def close(self) -> None:
        """Let the last words out, and end the thread."""
        self.writer.stop(LAST_WORDS_SECONDS)
        super().close()

    def _told(self, count: int) -> bytes:
        text = f"{count} lines of the log are missing here: nobody took them in time, or they could not be written"
        return _encoded(self._line(text, logging.WARNING))

    def _line(self, text: str, level: int) -> str:
        name = logging.getLevelName(level)
        fields = {"name": __name__, "levelno": level, "levelname": name, "msg": "%s", "args": (text,)}
        return self.format(logging.makeLogRecord(fields))


def _encoded(line: str) -> bytes:
    return line.encode("ascii", "backslashreplace") + b"\n"
