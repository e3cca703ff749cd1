"""Two processes and one seat: whoever writes is stopped at a random moment, the other takes over, the first is woken.

A writer that was deposed acknowledges nothing that its successor does not know, and no record of its epoch stands
behind one of a later epoch. In some rounds the server's own process of the writer is stopped too: perhaps while it has
the row locked, perhaps with the append in its socket. A fence that looks and does not lock is caught here (N-3).
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from tests.cluster.journals import stored
from tests.support import proof
from tests.support.postgres import new_schema, shared
from tests.support.server import PROJECT

ROUNDS = proof.count("nodes: writers stopped at the fence")
MUTANT_ROUNDS_MAX = 60
HEAR_SECONDS_MAX = 30.0
BACKEND_STOPS_SECONDS = (0.05, 0.3, 1.4)
"""The last is long enough for whoever takes over to end it."""


class WriterTerm(NamedTuple):
    """What a writer said when it took the seat."""

    epoch: int
    last_seq: int
    backend: int


class DisturbedError(Exception):
    """Whoever has the seat by right met something in the store that it did not write."""


class Writer:
    """One of the two processes."""

    def __init__(self, url: str, schema: str, name: str, *mutant: str) -> None:
        command = [sys.executable, "-m", "tests.cluster.writer_process", url, schema, name, *mutant]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=PROJECT, text=True
        )
        self._said: queue.Queue[list[str]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def take(self) -> WriterTerm:
        """Let it take the seat, and wait until it has it."""
        self._tell("take")
        return WriterTerm(*map(int, self._hear("took")))

    def go(self) -> None:
        """Let it append."""
        self._tell("go")

    def _tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def hear(self) -> list[str]:
        """The next thing that it says."""
        return self._said.get(timeout=HEAR_SECONDS_MAX)

    def acks(self, count: int) -> None:
        """Wait for so many acknowledgements."""
        for _ in range(count):
            self._hear("ack")

    def end(self) -> tuple[int, str]:
        """Wait until its tenure is over: the last number that it had acknowledged, and why it ended."""
        last = 0
        while True:
            word, what = self.hear()
            if word == "end":
                return last, what
            last = int(what)

    def _hear(self, wanted: str) -> list[str]:
        word, *rest = self.hear()
        if word != wanted:
            raise DisturbedError(f"who has the seat was disturbed: {word} {rest} in place of {wanted}")
        return rest

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(5)
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):
            for line in self._process.stdout:
                self._said.put(line.split())


@contextlib.contextmanager
def writers(schema: str, *mutant: str) -> Iterator[tuple[Writer, Writer]]:
    with contextlib.ExitStack() as stack:
        made = [Writer(shared().url, schema, name, *mutant) for name in ("one", "two")]
        for writer in made:
            stack.callback(writer.close)
        yield made[0], made[1]


@contextlib.contextmanager
def backend_stopped(pid: int, seconds: float) -> Iterator[None]:
    """Stop a process of the server, for so long."""

    def go_on() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    timer = threading.Timer(seconds, go_on)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def play(rounds: int, seed: int, schema: str, *mutant: str) -> tuple[list[str], Counter[str]]:
    """Let the seat go to and fro: complaints, and how the tenures ended."""
    chance, complaints, ends = random.Random(seed), [], Counter[str]()
    with writers(schema, *mutant) as both:
        leader, other = both
        term = leader.take()
        leader.go()
        for _ in range(rounds):
            leader.acks(2)
            time.sleep(chance.uniform(0, 0.03))  # The moment of the stop is drawn; nothing is waited for.
            with contextlib.ExitStack() as stack:
                if chance.random() < 0.4:
                    stack.enter_context(backend_stopped(term.backend, chance.choice(BACKEND_STOPS_SECONDS)))
                    time.sleep(chance.uniform(0, 0.003))  # The same.
                leader.signal(signal.SIGSTOP)
                taken = other.take()
            # Who is woken may find a successor that has written, and one that has not yet.
            is_first = chance.random() < 0.5
            if is_first:
                other.go()
                other.acks(1)
            leader.signal(signal.SIGCONT)
            last, why = leader.end()
            if not is_first:
                other.go()
            ends[why] += 1
            # An answer that lay in its socket may be of a batch that its successor knows. Nothing else may be.
            if last > taken.last_seq:
                complaints.append(f"{last} of epoch {term.epoch} is acknowledged; {taken} did not know it")
            leader, other, term = other, leader, taken
    complaints += stored(shared().url, schema).complaints()
    return complaints, ends


def test_stopped_writer_acknowledges_nothing(record_property: Callable[[str, object], None]) -> None:
    """I9, N-3: stopped anywhere and woken, a deposed writer acknowledges nothing that its successor does not know."""
    seed = random.SystemRandom().getrandbits(32)
    complaints, ends = play(ROUNDS, seed, new_schema())
    assert not complaints, f"seed {seed}: {complaints[:5]}"
    assert set(ends) <= {"DeposedError", "OutcomeUnknownError"}, f"seed {seed}: {ends}"
    record_property("count: writers stopped at the fence", ROUNDS)


def test_fence_that_does_not_lock_is_caught() -> None:
    """A fence that is looked at and not locked is caught by this ring: a stopped writer writes behind its successor."""
    for seed in range(MUTANT_ROUNDS_MAX // 6):
        try:
            complaints, _ = play(6, seed, new_schema(), "unlocked")
        except DisturbedError:
            return
        if complaints:
            return
    pytest.fail("nobody noticed")
