"""A server of ours or a peer's as a child process: started, found ready, measured, and always ended."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 10.0
POLL_SECONDS = 0.005

# Settings in the caller's shell must not change what is measured.
_PREFIXES_DROPPED = ("HOLDFAST_", "ETCD_", "OCTOSTORE_", "STATIC_TOKENS", "GITHUB_", "BENCH_")


class StartError(Exception):
    """A server did not come up; the message carries the end of its log."""


class Child:
    """One child process, ended when the `with` block ends, however it ends."""

    def __init__(
        self, command: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        self.log = log
        self._started_at = time.monotonic()
        with log.open("ab") as out:
            # Its own session, so that Ctrl-C reaches only us and the child is stopped in order.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=_clean_environment(env or {}),
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, is_ready: Callable[[], bool]) -> float:
        """Ask until the server answers; return the seconds since it was started."""
        deadline = self._started_at + READY_SECONDS_MAX
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise StartError(f"it ended with code {self._process.returncode}: {self._log_tail()}")
            if is_ready():
                return time.monotonic() - self._started_at
            time.sleep(POLL_SECONDS)
        raise StartError(f"it was not ready after {READY_SECONDS_MAX:.0f} s: {self._log_tail()}")

    def stop(self) -> None:
        """Ask it to end, then insist."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS_MAX)
        self.kill()

    def kill(self) -> None:
        """End it at once, as a power cut would, with whatever it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _log_tail(self) -> str:
        text = self.log.read_text(errors="replace").strip()
        return text[-600:] or "(it printed nothing)"


def allow_open_files() -> int:
    """Raise the limit on open files to the hard one, for us and for all that we start; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has now. It could be taken before use; then the start says so."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def output_of(*command: str) -> str:
    """What a short command prints, or nothing when it cannot be run: for versions, never for numbers."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout or done.stderr).strip()


def _clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(_PREFIXES_DROPPED)}
    return {**inherited, **extra}
