"""A real server for a test: `with holdfast.testing.server() as server:`.

The server is a separate process: the program that runs in production, out of reach of what a test patches (clocks,
sockets, the environment), and it can be killed and restarted.

    test run ──► guard ──► holdfast serve        writes into one temporary folder

The guard stops the server and removes the folder when the test run ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.clientconfig import read_token
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast import Holdfast

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 20.0
LAST_WORDS_SECONDS_MAX = 1.0
READY = re.compile(r"listening on (http://(\S+))")
OURS = {"listen", "data", "tokens", "tokens_file"}  # Set here; a server with other tokens would not know ours.
FOREIGN = ("HOLDFAST_", "GATEWAY_URL", "SHUTDOWN_SECRET")  # Variables that would lead a command to another server.


class ServerFailedError(HoldfastError):
    """The server did not start or did not stop; the text has all that it printed."""


@contextlib.contextmanager
def server(**settings: str | float | bool) -> Iterator[RunningServer]:
    """Start a server on a free port of this machine, with data and a token of its own; stop it at the end.

    `settings` are those of `holdfast serve`: `server(max_ttl_seconds=3600)`. Needs the extra `server`.
    """
    if taken := sorted(OURS & settings.keys()):
        raise TypeError(f"{', '.join(taken)}: a server for tests chooses this itself")
    folder = Path(tempfile.mkdtemp(prefix="holdfast-testing-"))
    # A test needs no reserve for a full disk; the least is 1 MiB.
    running = RunningServer(folder, {"disk_reserve_mib": 1, **settings})
    try:
        running.restart()
        yield running
    finally:
        running.close()


class RunningServer:
    """A server that a test has to itself. Made by `server()`."""

    def __init__(self, folder: Path, settings: dict[str, str | float | bool]) -> None:
        self.url = ""
        self.token = ""  # It may do everything: read, claim, admin.
        self.data = folder / "data"
        self._folder = folder
        self._maker = os.getpid()
        self._settings = settings
        self._listen = "127.0.0.1:0"
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._ready = threading.Event()
        self._printed: list[str] = []
        self._clients: list[Holdfast] = []

    @property
    def log(self) -> str:
        """All that the server printed so far, through all its restarts."""
        return "".join(self._printed)

    def client(self, owner: str | None = None) -> Holdfast:
        """A new client with this server's token. It is closed when the server ends, if it was not before."""
        from holdfast import Holdfast  # noqa: PLC0415 - whoever only wants commands does not pay for it

        client = Holdfast(self.url, token=self.token, owner=owner)
        self._clients.append(client)
        return client

    def environment(self) -> dict[str, str]:
        """The variables by which commands and `holdfast.claim` find this server, and none of the user's own files."""
        return {
            "HOLDFAST_URL": self.url,
            "HOLDFAST_TOKEN": self.token,
            "XDG_CONFIG_HOME": str(self._folder / "config"),
            "XDG_STATE_HOME": str(self._folder / "state"),
        }

    def env(self, **more: str) -> dict[str, str]:
        """The whole environment for a command: that of this process, with this server in it and `more` on top."""
        return {**_without_foreign(os.environ), **self.environment(), **more}

    def kill(self) -> None:
        """End the server without warning, as `kill -9` does. `restart()` starts it again on the same data."""
        self._check_maker()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._ended(self._process)

    def stop(self) -> None:
        """Stop the server as SIGTERM does: what was asked is answered. `restart()` starts it again."""
        self._check_maker()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.kill()
                raise ServerFailedError(f"the server did not stop; it printed:\n{self.log}") from None
            self._ended(self._process)

    def restart(self) -> None:
        """Stop the server if it runs, and start it on the same address and data."""
        self.stop()
        self._process = process = subprocess.Popen(  # noqa: S603 - our own command
            self._command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_without_foreign(os.environ)
            | {"XDG_CONFIG_HOME": str(self._folder / "config"), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # Ctrl-C in a terminal is for the test run, which then stops the server.
        )
        self._ready.clear()
        printed_before = len(self._printed)
        self._reader = threading.Thread(target=self._drain, args=(process,), daemon=True)
        self._reader.start()
        self._ready.wait(START_SECONDS_MAX)
        found = READY.search("".join(self._printed[printed_before:]))
        if found is None:
            self.kill()
            raise ServerFailedError(f"the server did not start; it printed:\n{self.log}")
        self.url, self._listen = found[1], found[2]
        self.token = read_token(self._folder / "config" / "holdfast" / "token")

    def close(self) -> None:
        """End it for good, and remove all that it wrote. Called by `server()`."""
        if os.getpid() != self._maker:
            return  # A forked process that leaves the block: the server is not its own.
        for client in self._clients:
            client.close()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()  # The guard stops the server and removes the folder.
            try:
                self._process.wait(STOP_SECONDS_MAX)
                self._ended(self._process)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _check_maker(self) -> None:
        # A forked process could neither wait for the guard nor tell the others that the server was replaced.
        if os.getpid() != self._maker:
            raise RuntimeError(f"the server is that of process {self._maker}, which started it; end it there")

    def _command(self) -> list[str]:
        # -P: modules of the working directory are not imported.
        module = [sys.executable, "-P", "-m"]
        serve = [*module, "holdfast", "serve", "--listen", self._listen, "--data", str(self.data)]
        # An empty file, so that no holdfast.toml of the working directory is read.
        nothing = self._folder / "holdfast.toml"
        nothing.touch()
        serve += ["--config", str(nothing)]
        for name, value in self._settings.items():
            serve += ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
        return [*module, "holdfast.testing.guard", str(self._folder), *serve]

    def _drain(self, process: subprocess.Popen[bytes]) -> None:
        for line in process.stdout or ():
            self._printed.append(line.decode("utf-8", "replace"))
            if READY.search(self._printed[-1]):
                self._ready.set()
        self._ready.set()  # It ended.

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        if self._reader is not None:
            self._reader.join(LAST_WORDS_SECONDS_MAX)
            if self._reader.is_alive():
                # Only the guard was killed. The server is in its group, so the number is still taken.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                self._reader.join()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None


def _without_foreign(environment: os._Environ[str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(FOREIGN)}
