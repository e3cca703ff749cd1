"""A program in a process of its own, such as an example, whose output a test can wait for.

The law of this file: what is started here is ended here with all that it started, its output is always drained, and
every wait has a bound.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

SECONDS_MAX = 30.0


class Program:
    """One process in a group of its own. Use it as a context manager to be sure that the whole group ends."""

    def __init__(
        self, command: Sequence[str | Path], *, env: Mapping[str, str], folder: Path, stdin: str | None = None
    ) -> None:
        """Start it in `folder` with `env`, and with `stdin` as its whole input."""
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=folder,
            text=True,
            start_new_session=True,
        )
        if self.process.stdin is not None:
            self.process.stdin.write(stdin or "")
            self.process.stdin.close()
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._at_end = False
        self._reader = threading.Thread(target=self._drain, name=f"drain-{self.process.pid}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        """Everything printed so far, standard output and standard error together."""
        with self._news:
            return "".join(self._lines)

    @property
    def is_silent(self) -> bool:
        """Has everybody ended who could still print: it, and all that it started and that has its output?"""
        with self._news:
            return self._at_end

    def said(self, pattern: str, *, times: int = 1, seconds_max: float = SECONDS_MAX) -> list[re.Match[str]]:
        """Wait until it has printed so many matches, and return all there are."""
        deadline = time.monotonic() + seconds_max
        with self._news:
            while True:
                found = list(re.finditer(pattern, "".join(self._lines)))
                if len(found) >= times:
                    return found
                left = deadline - time.monotonic()
                assert left > 0 and not self._at_end, f"no {pattern!r} in:\n{''.join(self._lines)}"
                self._news.wait(left)

    def ended(self, seconds_max: float = SECONDS_MAX) -> int:
        """Wait until it has ended and all is read, and return its exit code."""
        try:
            code = self.process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds_max} s; it printed:\n{self.output}") from None
        self._reader.join(seconds_max)
        return code

    def end(self) -> None:
        """End it and all that it started, without warning. Harmless when they are gone already."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(5)
        if self.process.stdout is not None and not self._reader.is_alive():
            self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def _drain(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()
        with self._news:
            self._at_end = True
            self._news.notify_all()
