"""Which modules a request enters: one acquire in a warm server, and one renewal in the client.

    make bench ARGS=path

A profile hook (`sys.setprofile`) notes every Python function that is called while one request is served: from the
received bytes to the written response in the server, from the timer to the new deadline in the client. Timers of the
server may fire meanwhile, so only modules that every one of a few requests enters are counted.
"""

from __future__ import annotations

import _thread
import argparse
import socket
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import holdfast
from holdfast.config import Settings
from holdfast.server.app import serve

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

TOKEN = "path:0123456789abcdef0123456789abcdef:read+claim+admin"
SOURCE = str(Path(holdfast.__file__).parent) + "/"
WARM_REQUESTS = 50
SAMPLES = 5
TTL_SECONDS = 3
START_SECONDS = 30


@dataclass
class Recorder:
    """Notes the modules of some packages and counts their calls, while it is on."""

    packages: tuple[str, ...] = ("",)
    is_on: bool = False
    calls: int = 0
    modules: list[str] = field(default_factory=list)

    def hook(self, frame: FrameType, event: str, _arg: object) -> None:
        """Note a call of one of our functions."""
        if not self.is_on or event != "call":
            return
        path = frame.f_code.co_filename
        if path.startswith(SOURCE):
            module = path.removeprefix(SOURCE)
            if module.startswith(self.packages):
                self.calls += 1
                if module not in self.modules:
                    self.modules.append(module)

    def sample(self) -> tuple[list[str], int]:
        """Return what was noted since the last sample, and begin a new one."""
        sample = self.modules, self.calls
        self.modules, self.calls = [], 0
        return sample


def main(argv: Sequence[str] | None = None) -> int:
    """Print both paths."""
    argparse.ArgumentParser(prog="python -m benchmarks path", description=__doc__.splitlines()[0]).parse_args(argv)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server, client = Recorder(), Recorder(("client/", "wire/"))  # The server has other threads.
    failures: list[BaseException] = []
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(listen=f"127.0.0.1:{port}", data=Path(folder) / "data", tokens=TOKEN)
        requests = threading.Thread(target=_run, args=(port, server, client, failures), daemon=True)
        threading.setprofile(client.hook)  # For the client's threads, which start later.
        requests.start()
        sys.setprofile(server.hook)
        try:
            code = serve(settings, None)  # In the main thread, because it handles signals.
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    requests.join()
    if failures:
        raise failures[0]
    return code


def _run(port: int, server: Recorder, client: Recorder, failures: list[BaseException]) -> None:
    """Make the requests, print the paths and stop the server."""
    sys.setprofile(None)
    try:
        _wait_until_served(port)
        _print("server, one acquire with an idempotency key", _server_samples(port, server))
        _print("client, one renewal", _client_samples(port, client))
    except BaseException as error:  # noqa: BLE001 - raised in the main thread once the server has stopped
        failures.append(error)
    finally:
        _thread.interrupt_main()


def _wait_until_served(port: int) -> None:
    ends = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.05)
        else:
            return


def _server_samples(port: int, recorder: Recorder) -> list[tuple[list[str], int]]:
    samples = []
    token = TOKEN.split(":")[1]
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        for number in range(WARM_REQUESTS + SAMPLES):
            body = b'{"ttl_seconds":60,"owner":"path"}'
            head = (
                f"POST /locks/path-{number}/acquire HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
                f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
                f"Idempotency-Key: {uuid.uuid4()}\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            recorder.is_on = True
            connection.sendall(head.encode() + body)
            answer = connection.recv(65_536)
            recorder.is_on = False
            if not answer.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"an acquire was refused: {answer.decode(errors='replace')}")
            samples.append(recorder.sample())
    return samples[-SAMPLES:]


def _client_samples(port: int, recorder: Recorder) -> list[tuple[list[str], int]]:
    samples: list[tuple[list[str], int]] = []
    user = holdfast.Holdfast(f"http://127.0.0.1:{port}", token=TOKEN.split(":")[1])
    with user, user.claim("path-renewed", ttl=TTL_SECONDS) as claim:
        while len(samples) < SAMPLES + 1:
            recorder.is_on = True
            remaining = claim.remaining
            while claim.remaining <= remaining:
                remaining = claim.remaining
                time.sleep(0.01)
            time.sleep(0.05)  # The renewal schedules the next one.
            recorder.is_on = False
            samples.append(recorder.sample())
    return samples[1:]  # The first includes the start of the renewal thread.


def _print(title: str, samples: Sequence[tuple[list[str], int]]) -> None:
    first, *others = (modules for modules, _ in samples)
    path = [module for module in first if all(module in each for each in others)]
    calls = sorted(calls for _, calls in samples)[len(samples) // 2]
    sys.stdout.write(f"{title}: {len(path)} modules, {calls} calls of our functions\n")
    sys.stdout.write("".join(f"    {module}\n" for module in path) + "\n")
    sys.stdout.flush()
