"""A standard error that nobody reads: the server serves, ends, and says afterwards what is missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import wait_until
from tests.support.server import READY

MISSING = "log overflow: dropped "
REQUESTS = 4_500
"""More than a pipe and half of the queue hold: a line has about 850 bytes."""
LONG = "/".join(["x" * 60] * 4)


class Unread:
    """A server with a pipe for its standard error."""

    def __init__(self, folder: Path) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        env |= {"XDG_CONFIG_HOME": str(folder), "HOLDFAST_TOKENS": callers.TOKENS}
        command = [sys.executable, "-m", "holdfast", "serve", "--listen", "127.0.0.1:0", "--data", str(folder / "data")]
        self.process = subprocess.Popen(
            [*command, "--set", "log_requests=true"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self.process.stdout is not None
        found = READY.search(self.process.stdout.readline().decode())
        assert found is not None
        self.api = Api(found[2], int(found[3]), callers.ALICE)
        self.received = b""
        self._reader = threading.Thread(target=self._read, daemon=True)

    def read(self) -> None:
        """Begin to read what it logged."""
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        while piece := os.read(self.process.stderr.fileno(), 65_536):
            self.received += piece

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        if self._reader.ident is not None:
            self._reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def unread(tmp_path: Path) -> Iterator[Unread]:
    made = Unread(tmp_path)
    yield made
    made.end()


def test_requests_do_not_wait_for_unread_log(unread: Unread) -> None:
    """Every request is answered though the log is full. Read again, it says how much is missing, and goes on."""
    for _ in range(REQUESTS):
        assert unread.api.get(f"/locks/{LONG}").status == 200
    assert unread.api.acquired("deploy")["fencing_token"] == 1
    unread.read()
    wait_until(lambda: MISSING in unread.received.decode())
    assert unread.api.get("/locks/the-last").status == 200
    wait_until(lambda: b"/locks/the-last" in unread.received)
    lines = unread.received.decode().splitlines()
    (report,) = [line for line in lines if MISSING in line]
    written = sum(LONG in line for line in lines)
    assert written + int(report.partition(MISSING)[2].split()[0]) >= REQUESTS
    assert written < REQUESTS


def test_server_stops_with_unread_log(unread: Unread) -> None:
    """Told to stop, it ends within its time, with 0."""
    for _ in range(REQUESTS):
        assert unread.api.get(f"/locks/{LONG}").status == 200
    unread.process.send_signal(signal.SIGTERM)
    assert unread.process.wait(20) == 0
