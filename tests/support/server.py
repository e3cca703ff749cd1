"""A real server in a process of its own, started, stopped, killed and paused by tests.

The law of this file: whatever is started here is ended here, its output is always drained, and every wait has a bound.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

PROJECT = Path(__file__).resolve().parents[2]
READY = re.compile(r"listening on (https?://(\[[^\]]+\]|[^\s:/]+):(\d+))")
START_SECONDS_MAX = 30.0
LAST_WORDS_SECONDS_MAX = 5.0
STOP_SECONDS_MAX = 20.0

_running: set[ServerProcess] = set()


class ServerFailed(Exception):
    """The server ended, or said nothing, before it was ready. Carries what it printed and its exit code, if it has
    one.
    """

    def __init__(self, reason: str, returncode: int | None, output: str) -> None:
        super().__init__(f"{reason} (exit code {returncode}); it printed:\n{output}")
        self.returncode = returncode
        self.output = output


class ServerProcess:
    """One `holdfast serve` process. Make it with `ServerProcess.start`; use it as a context manager to be sure it
    ends.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], data: Path, config_home: Path, started_with: dict[str, object]
    ) -> None:
        self.process = process
        self.data = data
        self.config_home = config_home
        self.url = ""
        self.host = ""
        self.port = 0
        self._started_with = started_with
        self._chunks: list[bytes] = []
        self._news = threading.Condition()
        self._at_end = False
        self._reader = threading.Thread(target=self._drain, name=f"drain-{process.pid}", daemon=True)
        self._reader.start()
        _running.add(self)

    @classmethod
    def start(
        cls,
        data: Path,
        *,
        settings: Mapping[str, object] | None = None,
        tokens: str | None = None,
        env: Mapping[str, str] | None = None,
        listen: str = "127.0.0.1:0",
        wrapper: Sequence[str] = (),
        config: Path | None = None,
        folder: Path | None = None,
        start_seconds_max: float = START_SECONDS_MAX,
    ) -> Self:
        """Start a server on `data` and return once it says that it listens. Raises `ServerFailed` with its output
        otherwise.

        `wrapper` is put before the command (`strace`, `prlimit` and the like). `folder` is the working directory of the
        server, else it is ours. The user's own configuration is never touched: unless `env` says otherwise,
        XDG_CONFIG_HOME is a directory beside `data`.
        """
        config_home = Path((env or {}).get("XDG_CONFIG_HOME", data.parent / f"{data.name}-config"))
        command = [*wrapper, sys.executable, "-m", "holdfast", "serve", "--listen", listen, "--data", str(data)]
        for name, value in (settings or {}).items():
            command += ["--set", f"{name}={_as_setting(value)}"]
        if config is not None:
            command += ["--config", str(config)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=_environment(config_home, tokens, env or {}),
            start_new_session=True,
        )
        started_with: dict[str, object] = {
            "settings": settings,
            "tokens": tokens,
            "env": env,
            "wrapper": wrapper,
            "config": config,
            "folder": folder,
        }
        server = cls(process, data, config_home, started_with)
        server._await_ready(start_seconds_max)
        return server

    def restart(self, **changes: object) -> ServerProcess:
        """Start again on the same data and the same address; the old process must have ended. `changes` override the
        old arguments.
        """
        arguments: dict[str, object] = {**self._started_with, "listen": f"{self.host}:{self.port}", **changes}
        return type(self).start(self.data, **arguments)  # type: ignore[arg-type]

    @property
    def pid(self) -> int:
        """The process id (of the wrapper, where there is one; signals go to the whole group)."""
        return self.process.pid

    @property
    def log(self) -> str:
        """Everything printed so far, standard output and standard error together; of one that ended, to its last word.

        A process may be known to have ended before its last lines were read from the pipe.
        """
        if self.process.poll() is not None:
            self._reader.join(LAST_WORDS_SECONDS_MAX)
        with self._news:
            return b"".join(self._chunks).decode("utf-8", "replace")

    def terminate(self, stop_seconds_max: float = STOP_SECONDS_MAX) -> int:
        """Ask it to stop (SIGTERM), wait, and return its exit code. A server that does not stop in time fails the
        test.
        """
        self._signal(signal.SIGTERM)
        try:
            returncode = self.process.wait(stop_seconds_max)
        except subprocess.TimeoutExpired:
            self.kill()
            message = f"the server did not stop within {stop_seconds_max} s of SIGTERM; it printed:\n{self.log}"
            raise AssertionError(message) from None
        self._ended()
        return returncode

    def kill(self) -> None:
        """End it without warning (SIGKILL) and wait until it is gone. Harmless when it is gone already."""
        self._signal(signal.SIGKILL)
        self.process.wait()
        self._ended()

    def pause(self) -> None:
        """Stop it in its tracks (SIGSTOP)."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def is_running(self) -> bool:
        """Has the process not ended yet?"""
        return self.process.poll() is None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _await_ready(self, seconds_max: float) -> None:
        deadline = time.monotonic() + seconds_max
        with self._news:
            while True:
                found = READY.search(b"".join(self._chunks).decode("utf-8", "replace"))
                if found:
                    self.url, self.host, self.port = found[1], found[2].strip("[]"), int(found[3])
                    return
                left = deadline - time.monotonic()
                if self._at_end or left <= 0:
                    break
                self._news.wait(left)
        reason = (
            "the server ended before it was ready" if self._at_end else f"the server was not ready in {seconds_max} s"
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5 if self._at_end else 0)
        returncode = self.process.returncode
        self.kill()
        raise ServerFailed(reason, returncode, self.log)

    def _drain(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self._chunks.append(line)
                self._news.notify_all()
        with self._news:
            self._at_end = True
            self._news.notify_all()

    def _signal(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def _ended(self) -> None:
        self._reader.join(LAST_WORDS_SECONDS_MAX)
        if not self._reader.is_alive() and self.process.stdout is not None:
            self.process.stdout.close()
        _running.discard(self)


@contextlib.contextmanager
def serving(data: Path, **arguments: object) -> Iterator[ServerProcess]:
    """`ServerProcess.start` as a `with` block; the process is gone at its end."""
    with ServerProcess.start(data, **arguments) as server:  # type: ignore[arg-type]
        yield server


def _as_setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _environment(config_home: Path, tokens: str | None, extra: Mapping[str, str]) -> dict[str, str]:
    """Ours without any HOLDFAST_ variable of the person who runs the tests."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    env["XDG_CONFIG_HOME"] = str(config_home)
    env["PYTHONUNBUFFERED"] = "1"
    if importlib.util.find_spec("holdfast") is None:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PROJECT / "src"), env.get("PYTHONPATH", "")]))
    if tokens is not None:
        env["HOLDFAST_TOKENS"] = tokens
    env.update(extra)
    return env


@atexit.register
def _end_everything() -> None:
    for server in list(_running):
        server.kill()
