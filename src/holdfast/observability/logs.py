"""The process log: standard logging through a bounded queue to standard error.

    log.warning(…) ─► LogQueue formats the record and queues it ─► writer thread ─► standard error,
                          │ queue full: the record is dropped and counted          which may be a pipe without a reader
                          └ records below a warning may fill half of the queue, so a request log never costs a warning

Only the writer thread waits for standard error. It reports dropped lines where they are missing. When the process
stops, or its watchdog ends it, the last lines are flushed for at most `FLUSH_SECONDS`.

All lines are ASCII without control characters, and one record is one line; only in the format for people, a traceback
follows. JSON lines have the fields of a record (`extra={"fields": {…}}`). Formatters cut everything that looks like one
of our secrets, as a last net: callers never log queries, headers or bodies.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import sys
import threading
from datetime import UTC, datetime
from logging.handlers import QueueHandler
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote_from_bytes, unquote_to_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

QUEUE_LINES_MAX = 8_192
FLUSH_SECONDS = 2.0  # At most, for a standard error that accepts nothing.
MESSAGE_CHARS_MAX = 8_192
EXCEPTION_CHARS_MAX = 16_384  # Longer tracebacks keep their end, where the error is.
PATH_CHARS_MAX = 256

_WRITABLE_MS = 1_000
_SECRET = re.compile(r"(hold[a-z]?_)[A-Za-z0-9_-]{16,}|(?i:(bearer|cookie|basic) )[A-Za-z0-9._~+/=-]{16,}")
_SECRET_IN_PATH = re.compile(rb"(hold[a-z]?_)[A-Za-z0-9_-]+")


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: Mapping[str, object] = getattr(record, "fields", {})
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(record.getMessage()),
            **fields,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)[-EXCEPTION_CHARS_MAX:]
        return without_secrets(json.dumps(line, default=str))


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname.lower():8} {_escaped(_cut(record.getMessage()))}"
        if record.exc_info and record.levelno < logging.CRITICAL:
            traceback = self.formatException(record.exc_info)[-EXCEPTION_CHARS_MAX:].split("\n")
            line = "\n".join([line, *map(_escaped, traceback)])
        return without_secrets(line)


def without_secrets(line: str) -> str:
    """Cut access tokens and the secrets of sessions and claims out of a line."""
    return _SECRET.sub(lambda found: f"{found[1] or f'{found[2]} '}...", line)


def shown_path(path: bytes, chars_max: int = PATH_CHARS_MAX) -> str:
    """Return a request path as sent, cut, without our secrets even if they are percent-encoded.

    It contains no blanks, so a name cannot imitate the rest of a line.
    """
    text = _SECRET_IN_PATH.sub(rb"\1...", path)
    if b"%" in path and _SECRET_IN_PATH.search(decoded := unquote_to_bytes(path)):
        text = quote_from_bytes(_SECRET_IN_PATH.sub(rb"\1...", decoded)).encode()
    return text.decode("latin-1") if len(text) <= chars_max else f"{text[:chars_max].decode('latin-1')}..."


def _cut(message: str) -> str:
    return message if len(message) <= MESSAGE_CHARS_MAX else f"{message[:MESSAGE_CHARS_MAX]}..."


def _escaped(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii")


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


# A formatted record; an event that the writer sets once all records before it are written; None stops the writer.
_Queued: TypeAlias = logging.LogRecord | threading.Event | None


class LogQueue(QueueHandler):
    """Queues formatted records and writes them in its own thread.

    `QueueHandler.emit` holds the handler's lock, so only one thread at a time compares the length of the queue with its
    bound. `put` never waits, and is safe if a destructor logs while another record is being queued.
    """

    def __init__(self, fd: int, formatter: logging.Formatter, lines_max: int = QUEUE_LINES_MAX) -> None:
        self.records: SimpleQueue[_Queued] = SimpleQueue()
        super().__init__(self.records)
        self.setFormatter(formatter)
        self._fd = fd
        self._lines_max = lines_max
        self._overflowed = self._reported_overflow = 0
        self._unwritten = 0  # Counted by the writer thread alone.
        self._reported = 0
        self._is_failing = False
        self._drained: threading.Event | None = None
        self.thread = threading.Thread(target=self._write_all, name="holdfast-log", daemon=True)

    @property
    def dropped(self) -> int:
        return self._overflowed + self._unwritten

    def start(self) -> None:
        self.thread.start()

    def enqueue(self, record: logging.LogRecord) -> None:
        lines_max = self._lines_max if record.levelno >= logging.WARNING else self._lines_max // 2
        if self.records.qsize() >= lines_max:
            self._overflowed += 1
            return
        if self._overflowed != self._reported_overflow:
            self._reported_overflow = self._overflowed
            self.records.put(threading.Event())  # Here the writer reports what was dropped.
        self.records.put(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is logging's
        """Log that a record could not be formatted; the default prints to standard error and may block."""
        text = f"a line of {record.name} could not be written: {type(sys.exception()).__name__}"
        self.enqueue(self._made(text, logging.ERROR))

    def drain(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until all queued lines are written; return whether they are.

        After a timeout, later calls return immediately until the writer has caught up.
        """
        if self._drained is None or self._drained.is_set():
            self._drained = threading.Event()
            self.records.put(self._drained)
            return self._drained.wait(seconds)
        return False

    def flush(self) -> None:
        self.drain()

    def close(self) -> None:
        is_drained = self.drain()
        self.records.put(None)
        if is_drained:
            self.thread.join(FLUSH_SECONDS)
        super().close()

    def _made(self, text: str, level: int) -> logging.LogRecord:
        fields = {"name": __name__, "levelno": level, "levelname": logging.getLevelName(level), "msg": text}
        record: logging.LogRecord = self.prepare(logging.makeLogRecord(fields))
        return record

    def _write_all(self) -> None:
        while (item := self.records.get()) is not None:
            if isinstance(item, threading.Event):
                self._report_dropped()
                item.set()
                continue
            if self._is_failing:
                self._report_dropped()
            if not self._write(item):
                self._unwritten += 1
            elif self.records.empty():
                self._report_dropped()

    def _report_dropped(self) -> None:
        dropped = self.dropped
        if count := dropped - self._reported:
            text = f"log overflow: dropped {count} lines that standard error did not accept in time"
            if self._write(self._made(text, logging.WARNING)):
                self._reported = dropped

    def _write(self, record: logging.LogRecord) -> bool:
        """Write one line; return False if standard error fails, as a closed pipe or a full disk does."""
        rest = memoryview(record.getMessage().encode("ascii", "backslashreplace") + b"\n")
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:
                # Another process that shares standard error has made it non-blocking.
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll(_WRITABLE_MS)
            except OSError:
                self._is_failing = True
                return False
        self._is_failing = False
        return True


def configure(log_format: str) -> None:
    """Send the log of this process to standard error; other libraries are logged from warnings on."""
    is_for_people = log_format == "human" or (log_format == "auto" and sys.stderr.isatty())
    handler = LogQueue(sys.stderr.fileno(), TextFormatter() if is_for_people else JsonFormatter())
    handler.start()
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("holdfast").setLevel(logging.INFO)
    # asyncio would warn of everything that clients do to their connections.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    # OpenTelemetry would warn at each batch of spans without a collector, and at each retry.
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)


def flush(seconds: float = FLUSH_SECONDS) -> bool:
    return all(handler.drain(seconds) for handler in _queues())


def dropped_lines() -> int:
    return sum(handler.dropped for handler in _queues())


def _queues() -> list[LogQueue]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, LogQueue)]
