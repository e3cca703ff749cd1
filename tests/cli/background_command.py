"""A `holdfast` command that runs beside the test, on a terminal of its own or on pipes. It ends with the test."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

SECONDS_MAX = 30.0
CLOCK = r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d"
"""A time as commands write it: around midnight with its date."""


def clean_environment(home: Path, **more: str) -> dict[str, str]:
    """An environment without anything of the person who runs the tests."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "XDG_"))}
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        environment.pop(name, None)
    return {
        **environment,
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_STATE_HOME": str(home / "state"),
        "TERM": "xterm",
        **more,
    }


class BackgroundCommand:
    """One command. `shown` is what it wrote so far, standard output and standard error together."""

    def __init__(
        self, *arguments: str, environment: Mapping[str, str], terminal: bool = False, columns: int = 80
    ) -> None:
        self._chunks: list[bytes] = []
        self._news = threading.Condition()
        self._at_end = False
        command = [sys.executable, "-m", "holdfast", *arguments]
        if terminal:
            self._read, write = pty.openpty()
            fcntl.ioctl(write, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        else:
            self._read, write = os.pipe()
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=write, stderr=write, start_new_session=True
        )
        os.close(write)
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    @property
    def shown(self) -> str:
        """What it wrote so far."""
        with self._news:
            return b"".join(self._chunks).decode()

    def until(self, text: str, seconds_max: float = SECONDS_MAX) -> str:
        """Wait until it has written this; return all it wrote."""
        deadline = time.monotonic() + seconds_max
        with self._news:
            while text.encode() not in b"".join(self._chunks):
                left = deadline - time.monotonic()
                assert left > 0 and not self._at_end, f"{text!r} did not come, but:\n{b''.join(self._chunks).decode()}"
                self._news.wait(left)
        return self.shown

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Wait for its end and return its exit code."""
        code = self.process.wait(SECONDS_MAX)
        self._reader.join(SECONDS_MAX)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(SECONDS_MAX)
        os.close(self._read)

    def _drain(self) -> None:
        # A terminal whose other side is closed is an error to read from, and a pipe is at its end.
        with contextlib.suppress(OSError):
            while data := os.read(self._read, 65_536):
                with self._news:
                    self._chunks.append(data)
                    self._news.notify_all()
        with self._news:
            self._at_end = True
            self._news.notify_all()
