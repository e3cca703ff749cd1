"""The writer of the log: bounded, never waited for, and honest about what it left out."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Iterator

import pytest

from holdfast.server.logs.lines import JsonLines
from holdfast.server.logs.writer import BATCH_BYTES, LineWriter, WriterHandler

LINE = b"0123456789012345678\n"


def _tell(count: int) -> bytes:
    return b"%d missing\n" % count


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

    def close(self) -> None:
        for fd in (self.reads, self.writes):
            if fd >= 0:
                os.close(fd)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


def test_lines_come_out_in_order(pipe: Pipe) -> None:
    """What many threads put in comes out in whole lines, each thread's in its own order."""
    writer = LineWriter(pipe.writes, _tell)
    writer.start()

    def put(who: int) -> None:
        for number in range(200):
            writer.put(b"%d %d\n" % (who, number))

    threads = [threading.Thread(target=put, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert writer.flush(10)
    writer.put(b"end\n")
    lines = pipe.read(b"end\n").decode().splitlines()[:-1]
    for who in range(4):
        assert [line for line in lines if line.startswith(f"{who} ")] == [f"{who} {number}" for number in range(200)]
    assert writer.stop(10) and writer.left_out == 0


def test_what_finds_no_room_is_left_out_and_told_in_its_place(pipe: Pipe) -> None:
    """Beyond the bound nothing is kept. How many are missing stands between what came before and what came after."""
    writer = LineWriter(pipe.writes, _tell, queue_bytes_max=len(LINE) * 3)
    for number in range(8):
        writer.put(b"%019d\n" % number)
    assert writer.left_out == 5 and writer._bytes == len(LINE) * 3
    writer.start()
    assert writer.flush(10)
    writer.put(b"end\n")
    expected = [b"%019d" % 0, b"%019d" % 1, b"%019d" % 2, b"5 missing", b"end"]
    assert pipe.read(b"end\n").splitlines() == expected
    writer.stop(10)


def test_lines_below_a_warning_never_cost_a_warning(pipe: Pipe) -> None:
    """Lines that are not urgent have half of the room: behind any number of them there is room for a warning."""
    writer = LineWriter(pipe.writes, _tell, queue_bytes_max=len(LINE) * 8)
    for _ in range(100):
        writer.put(LINE, is_urgent=False)
    writer.put(b"a warning\n")
    writer.start()
    assert pipe.read(b"a warning\n").splitlines() == [*[LINE.strip()] * 4, b"96 missing", b"a warning"]
    writer.stop(10)


def test_nobody_waits_for_a_reader_that_does_not_read(pipe: Pipe) -> None:
    """With a full pipe each `put` returns, the queue stays within its bound, and a stop waits only so long."""
    os.set_blocking(pipe.writes, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(pipe.writes, bytes(4_096)):
            pass
    os.set_blocking(pipe.writes, True)
    writer = LineWriter(pipe.writes, _tell, queue_bytes_max=20 * BATCH_BYTES)
    writer.start()
    for _ in range(10_000):
        writer.put(LINE)
    assert 0 < writer._bytes <= 20 * BATCH_BYTES and writer.left_out > 1_000
    assert not writer.flush(0.05)
    assert not writer.stop(60), "the second wait is none: the first was in vain"
    os.close(pipe.reads)
    pipe.reads = -1
    assert writer._thread is not None
    writer._thread.join(10)
    assert not writer._thread.is_alive(), "it is not kept by a pipe that was closed"


def test_what_cannot_be_written_is_told_when_it_can(pipe: Pipe) -> None:
    """Standard error that refuses (a closed pipe, a full disk) costs lines, is not tried in a loop, and is told of."""
    broken = LineWriter(pipe.reads, _tell)  # Its reading end: each write is refused.
    broken.start()
    for _ in range(3):
        broken.put(LINE)
        assert broken.flush(10)
    assert broken.left_out == 3
    with broken._news:
        broken._fd = pipe.writes
    broken.put(b"end\n")
    assert pipe.read(b"end\n") == b"3 missing\nend\n"
    broken.stop(10)


def test_a_pipe_that_does_not_wait_is_waited_for(pipe: Pipe) -> None:
    """If somebody who shares standard error made it non-blocking, nothing is lost and nothing spins."""
    os.set_blocking(pipe.writes, False)
    writer = LineWriter(pipe.writes, _tell)
    writer.start()
    for _ in range(10_000):
        writer.put(LINE)
    writer.put(b"end\n")
    assert pipe.read(b"end\n") == LINE * 10_000 + b"end\n"
    assert writer.stop(10) and writer.left_out == 0


def test_whole_lines_are_written_at_once(pipe: Pipe) -> None:
    """A write has whole lines and is no longer than what the kernel does not mix, but for one that is longer."""
    writer = LineWriter(pipe.writes, _tell)
    for _ in range(1_000):
        writer.put(LINE)
    writer.put(b"x" * (BATCH_BYTES + 5) + b"\n")
    sizes = []
    while writer._lines:
        taken = b"".join(line for line, _ in writer._taken())
        assert taken.endswith(b"\n")
        sizes.append(len(taken))
    assert sizes.pop() == BATCH_BYTES + 6 and max(sizes) <= BATCH_BYTES and len(sizes) < 10
    assert writer._bytes == 0


def test_a_line_that_cannot_be_made_hurts_nobody(pipe: Pipe) -> None:
    """A message that does not fit its arguments is a line that says so, and no exception for whoever logs."""
    handler = WriterHandler(pipe.writes, JsonLines())
    handler.writer.start()
    for message, values in (("%d of %d", ("one",)), ("after it", ())):
        handler.handle(logging.LogRecord("holdfast.test", logging.ERROR, "", 0, message, values, None))
    first, second = (json.loads(line) for line in pipe.read(b'after it"}\n').splitlines())
    assert first["message"] == "a line of holdfast.test could not be written: TypeError"
    assert second["message"] == "after it"
    handler.close()
