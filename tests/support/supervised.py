"""Commands under supervision, seen from outside: the supervisor, its guardian, and what the command leaves in files."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tests.support.checks import wait_until

RUN_TESTS = Path(__file__).resolve().parents[1] / "run"
SECONDS_MAX = 60.0
"""Bounds every wait. Nothing is proved by it passing."""

PRELUDE = """
import os, signal, sys, time
def note(name, text):
    with open(name, "a") as file:
        file.write(f"{text}\\n")
def beat(seconds=600):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        note("beats", time.monotonic())
        time.sleep(0.02)
def deaf_to(*names):
    for name in names:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
def record(*names):
    for name in names:
        signal.signal(getattr(signal, name), lambda number, _: note("signals", signal.Signals(number).name))
note("pids", os.getpid())
"""
"""What every Python command of these tests begins with; its files are in its working directory."""


def program(*lines: str) -> list[str]:
    """A command of Python."""
    return [sys.executable, "-S", "-c", PRELUDE + "\n".join(lines)]


def state_of(pid: int) -> str:
    """How a process is: R, S, T, Z, …, and '' when it is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_dead(pid: int) -> bool:
    return state_of(pid) in {"", "Z", "X"}


class Supervised:
    """A command under `run_child` in a process of its own, in a directory that holds everything it says."""

    def __init__(self, folder: Path, *, remaining: object = 60) -> None:
        self.folder = folder
        self.hold(remaining)
        self._process: subprocess.Popen[str] | None = None

    @property
    def process(self) -> subprocess.Popen[str]:
        """The supervisor, once it is started."""
        assert self._process is not None
        return self._process

    def arguments(self, command: list[str], grace: float) -> list[str]:
        script = str(RUN_TESTS / "supervise.py")
        return [
            sys.executable,
            script,
            str(self.folder / "control"),
            str(self.folder / "outcome"),
            str(grace),
            *command,
        ]

    def start(self, command: list[str], *, grace: float = 5, before: list[str] | None = None, **options: Any) -> Self:  # noqa: ANN401 - passed on as they are
        self._process = subprocess.Popen(
            [*(before or []), *self.arguments(command, grace)],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        )
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing behind, also after a failure."""
        for pid in [*self.pids(), *([self._process.pid] if self._process else [])]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.communicate()

    def hold(self, remaining: object, *, lost: bool = False) -> None:
        """Say how the claim is."""
        draft = self.folder / "control.draft"
        draft.write_text(f"{remaining}{' lost' if lost else ''}\n")
        draft.rename(self.folder / "control")

    def send(self, number: int) -> None:
        """Signal the supervisor."""
        self.process.send_signal(number)

    def lines(self, name: str) -> list[str]:
        """What the command has noted."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / name).read_text().split("\n")[:-1]
        return []

    def wait_for(self, name: str, count: int = 1) -> list[str]:
        """Wait for that many lines."""
        return wait_until(lambda: lines if len(lines := self.lines(name)) >= count else False, seconds_max=SECONDS_MAX)

    def pids(self) -> list[int]:
        return [int(line) for line in self.lines("pids")]

    def pid(self) -> int:
        """The command's process, once it runs."""
        return int(self.wait_for("pids")[0])

    def is_alive(self) -> bool:
        """Does it still work? Waits for three new beats."""
        return bool(self.wait_for("beats", len(self.lines("beats")) + 3))

    def guardian(self) -> int:
        """The process of the guardian."""
        return self.guardian_of(self.process.pid)

    @staticmethod
    def guardian_of(supervisor: int) -> int:
        def find() -> int:
            for path in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                    if parent == supervisor and b"guardian.py" in (path / "cmdline").read_bytes():
                        return int(path.name)
            return 0

        return wait_until(find, seconds_max=SECONDS_MAX)

    def outcome(self) -> dict[str, Any]:
        """How it ended, once it has."""
        file = self.folder / "outcome"
        wait_until(file.exists, seconds_max=SECONDS_MAX)
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    def finish(self) -> tuple[int, str]:
        """Wait for the supervisor's end: its exit code and what it said."""
        said = self.process.communicate(timeout=SECONDS_MAX)[1]
        return self.process.returncode, said
