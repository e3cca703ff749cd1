"""The five agents, seen from the demonstration: it starts them, gives them cues, hears their reports, and ends them.

All agents write into one pipe, so their reports come in the order in which they were made. The law of this file: what
is started here is ended here, and every wait has a bound.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from examples.demo.errors import FailedError, StoppedError
from examples.demo.reports import Report

LOOK_SECONDS = 0.2
LAST_WORDS_LINES = 6


class Crew:
    """The agents that live."""

    def __init__(self, until: float) -> None:
        """`until` is a time of `time.monotonic`, by which all must be over."""
        self._until = until
        self.is_stopping = False
        self._folder = Path()
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self._reports: queue.SimpleQueue[Report | None] = queue.SimpleQueue()
        self._unread: deque[Report] = deque()
        self._read_end, self._write_end = os.pipe()
        self._reader = threading.Thread(target=self._read, name="reports", daemon=True)
        self._reader.start()

    @property
    def names(self) -> list[str]:
        return list(self._agents)

    def pid_of(self, name: str) -> int:
        return self._agents[name].pid

    def start(self, names: Sequence[str], folder: Path, env: Mapping[str, str], arguments: Sequence[str]) -> None:
        """Start an agent for each name. They are ready when they say so."""
        self._folder = folder
        for name in names:
            with (folder / f"{name}.log").open("wb") as log:
                self._agents[name] = subprocess.Popen(
                    [sys.executable, "-m", "examples.demo.agent", name, str(folder), *arguments],
                    stdin=subprocess.PIPE,
                    stdout=self._write_end,
                    stderr=log,
                    env=dict(env),
                    start_new_session=True,  # Ctrl-C in the terminal is for us: we end the agents.
                )

    def cue(self, names: Sequence[str], scene: str, jobs: Sequence[str]) -> None:
        """Let these agents work through some jobs, all from the same moment on."""
        line = json.dumps({"scene": scene, "jobs": list(jobs)}).encode() + b"\n"
        for name in names:
            pipe = self._agents[name].stdin
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # It has ended; `reports` says so.
                    pipe.write(line)
                    pipe.flush()

    def reports(self, names: Sequence[str]) -> Iterator[Report]:
        """Yield what is reported until each of these agents is ready for its next cue, or was killed by us."""
        busy = set(names)
        while busy & self._agents.keys():
            report = self._next()
            if report is None:
                continue
            if report.kind == "ready":
                busy.discard(report.who)
            else:
                yield report

    def _next(self) -> Report | None:
        """The next report; None if there is none yet. Raises where there will be none."""
        if self._unread:
            return self._unread.popleft()
        try:
            report = self._reports.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            for name, agent in self._agents.items():
                if agent.poll() is not None:
                    raise FailedError(
                        f"{name} has ended by itself ({agent.returncode}); {self._last_words(name)}"
                    ) from None
            if time.monotonic() > self._until:
                raise FailedError("this machine is too slow: the demonstration took too long, and was ended") from None
            return None
        if report is None:
            raise StoppedError
        return report

    def pause(self, seconds: float) -> None:
        """Let time pass, so that a reader can follow. What is reported meanwhile is told afterwards."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                report = self._reports.get(timeout=left)
                if report is None:
                    raise StoppedError
                self._unread.append(report)

    def stop_soon(self) -> None:
        """Raise `StoppedError` where the next report is waited for. A signal handler may call this."""
        self.is_stopping = True
        self._reports.put(None)

    def kill(self, name: str) -> None:
        """End an agent and all that it started, as `kill -9` does."""
        agent = self._agents.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()
        if agent.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                agent.stdin.close()

    def end(self) -> None:
        """End them all."""
        for name in self.names:
            self.kill(name)

    def close(self) -> None:
        """Stop listening, when all have ended."""
        os.close(self._write_end)
        self._reader.join()
        os.close(self._read_end)

    def _read(self) -> None:
        with open(self._read_end, "rb", closefd=False) as pipe:
            for line in pipe:
                self._reports.put(Report.of(line))

    def _last_words(self, name: str) -> str:
        lines = (self._folder / f"{name}.log").read_text(errors="replace").splitlines()[-LAST_WORDS_LINES:]
        return "its last words:\n" + "\n".join(f"  {line}" for line in lines)
