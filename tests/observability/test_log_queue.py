"""The log queue: bounded, never waited for, and honest about what it dropped."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import threading
from collections.abc import Iterator

import pytest

from holdfast.observability.logs import JsonFormatter, LogQueue

LINE = "0123456789012345678"


class Pipe:
    """A pipe, and what came out of it. Nobody reads until it is asked."""

    def __init__(self) -> None:
        self.reads, self.writes = os.pipe()

    def read(self, end: bytes) -> bytes:
        """Read until this came."""
        found = b""
        while not found.endswith(end):
            found += os.read(self.reads, 65_536)
        return found

    def fill(self) -> int:
        """Fill the pipe, so that the next write blocks; return its bytes."""
        os.set_blocking(self.writes, False)
        filled = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                filled += os.write(self.writes, bytes(4_096))
        os.set_blocking(self.writes, True)
        return filled

    def close(self) -> None:
        for fd in (self.reads, self.writes):
            if fd >= 0:
                os.close(fd)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


def log_queue(fd: int, lines_max: int = 100_000) -> LogQueue:
    return LogQueue(fd, logging.Formatter("%(message)s"), lines_max)


def put(queue: LogQueue, text: str, level: int = logging.WARNING) -> None:
    queue.handle(logging.LogRecord("holdfast.test", level, "", 0, "%s", (text,), None))


def dropped(count: int) -> bytes:
    return b"log overflow: dropped %d lines that standard error did not accept in time" % count


def test_lines_come_out_in_order(pipe: Pipe) -> None:
    """What many threads log comes out in whole lines, each thread's in its own order."""
    queue = log_queue(pipe.writes)
    queue.start()

    def work(who: int) -> None:
        for number in range(200):
            put(queue, f"{who} {number}")

    threads = [threading.Thread(target=work, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert queue.drain(10)
    put(queue, "end")
    lines = pipe.read(b"end\n").decode().splitlines()[:-1]
    for who in range(4):
        assert [line for line in lines if line.startswith(f"{who} ")] == [f"{who} {number}" for number in range(200)]
    queue.close()
    assert not queue.thread.is_alive() and queue.dropped == 0


def test_log_queue_drops_and_reports_overflow_in_order(pipe: Pipe) -> None:
    """Beyond the bound nothing is kept. The count is between what came before and what came after."""
    queue = log_queue(pipe.writes, lines_max=3)
    for number in range(8):
        put(queue, str(number))
    assert queue.dropped == 5 and queue.records.qsize() == 3
    queue.start()
    assert queue.drain(10)
    put(queue, "end")
    assert pipe.read(b"end\n").splitlines() == [b"0", b"1", b"2", dropped(5), b"end"]
    queue.close()


def test_a_count_does_not_wait_for_the_next_line(pipe: Pipe) -> None:
    """What was dropped is reported as soon as the queue is empty, though nobody logs any more."""
    queue = log_queue(pipe.writes, lines_max=1)
    put(queue, "first")
    put(queue, "second")
    queue.start()
    assert pipe.read(b"in time\n").splitlines() == [b"first", dropped(1)]
    queue.close()


def test_lines_below_a_warning_never_cost_a_warning(pipe: Pipe) -> None:
    """Info lines may fill half of the queue: after any number of them there is room for a warning."""
    queue = log_queue(pipe.writes, lines_max=8)
    for _ in range(100):
        put(queue, LINE, logging.INFO)
    put(queue, "a warning")
    queue.start()
    assert pipe.read(b"a warning\n").splitlines() == [*[LINE.encode()] * 4, dropped(96), b"a warning"]
    queue.close()


def test_logging_does_not_wait_for_stalled_reader(pipe: Pipe) -> None:
    """With a full pipe each line is queued, the queue stays within its bound, and flushes wait only so long."""
    pipe.fill()
    queue = log_queue(pipe.writes, lines_max=100)
    queue.start()
    for _ in range(10_000):
        put(queue, LINE)
    assert 0 < queue.records.qsize() <= 101 and queue.dropped > 1_000
    assert not queue.drain(0.05)
    assert not queue.drain(60), "the second flush does not wait: the first was in vain"
    queue.close()
    assert queue.thread.is_alive(), "nor does the end of the process wait for it: it is a daemon"
    os.close(pipe.reads)
    pipe.reads = -1
    queue.thread.join(10)
    assert not queue.thread.is_alive(), "it is not kept by a pipe that was closed"


def test_a_flush_waits_again_once_lines_are_read_again(pipe: Pipe) -> None:
    """A flush in vain is forgotten as soon as the writer has caught up with it."""
    filled = pipe.fill()
    queue = log_queue(pipe.writes)
    queue.start()
    put(queue, "one")
    assert not queue.drain(0.05)
    first = queue._drained
    assert first is not None and len(os.read(pipe.reads, filled)) == filled and first.wait(10)
    put(queue, "two")
    assert queue.drain(10)
    assert pipe.read(b"two\n") == b"one\ntwo\n"
    queue.close()


def test_lines_that_could_not_be_written_are_reported_when_they_can(pipe: Pipe) -> None:
    """Standard error that refuses (a closed pipe, a full disk) costs lines, is not tried in a loop, and is reported."""
    queue = log_queue(pipe.reads)  # Its reading end: each write is refused.
    queue.start()
    for _ in range(3):
        put(queue, LINE)
        assert queue.drain(10)
    assert queue.dropped == 3
    queue._fd = pipe.writes
    put(queue, "end")
    assert pipe.read(b"end\n").splitlines() == [dropped(3), b"end"]
    queue.close()


def test_a_pipe_that_does_not_block_is_waited_for(pipe: Pipe) -> None:
    """If another process that shares standard error made it non-blocking, nothing is lost and nothing spins."""
    os.set_blocking(pipe.writes, False)
    queue = log_queue(pipe.writes)
    queue.start()
    for _ in range(10_000):
        put(queue, LINE)
    put(queue, "end")
    assert pipe.read(b"end\n") == f"{LINE}\n".encode() * 10_000 + b"end\n"
    queue.close()
    assert queue.dropped == 0


def test_a_line_is_one_write(monkeypatch: pytest.MonkeyPatch, pipe: Pipe) -> None:
    """A whole line is written at once: one of up to PIPE_BUF bytes is not mixed with what others write there."""
    written: list[int] = []
    write = os.write

    def record_write(fd: int, data: bytes) -> int:
        written.append(len(data))
        return write(fd, data)

    monkeypatch.setattr(os, "write", record_write)
    queue = log_queue(pipe.writes)
    queue.start()
    put(queue, LINE)
    put(queue, "x" * (select.PIPE_BUF - 1))
    assert queue.drain(10)
    assert written == [len(LINE) + 1, select.PIPE_BUF]
    queue.close()


def test_log_queue_survives_unformattable_record(pipe: Pipe) -> None:
    """A message that does not fit its arguments is a line that says so, and no exception for the caller."""
    queue = LogQueue(pipe.writes, JsonFormatter())
    queue.start()
    for message, values in (("%d of %d", ("one",)), ("after it", ())):
        queue.handle(logging.LogRecord("holdfast.test", logging.ERROR, "", 0, message, values, None))
    first, second = (json.loads(line) for line in pipe.read(b'after it"}\n').splitlines())
    assert first["message"] == "a line of holdfast.test could not be written: TypeError"
    assert second["message"] == "after it"
    queue.close()
