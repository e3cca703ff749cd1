"""What every system under test has in common: found, started on a new data directory, pressed, and ended.

An acquire means the same everywhere: a name that nobody holds becomes mine for an hour, and the answer comes after the
fsync. How each system says it stands in its class.
"""

from __future__ import annotations

import http.client
import os
import shutil
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from benchmarks.load import tools as load
from benchmarks.load.generator import Plan
from benchmarks.load.http import Names, Target
from benchmarks.load.press import press
from benchmarks.systems.process import Child, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.load.tools import Load

BENCHMARKS = Path(__file__).resolve().parents[1]
ROOT = BENCHMARKS.parent
SCRATCH = Path(os.environ.get("BENCH_DIR") or BENCHMARKS / ".scratch")
PEERS = SCRATCH / "peers"
"""Where `python -m benchmarks get` puts what it gets, and where any peer is looked for before the PATH."""
TTL_SECONDS = 3600
COUNT_SECONDS_MAX = 120.0
USERS_PER_RUN = 1_000
RUNS_PER_START = 8


def find_program(name: str) -> str | None:
    """Return where a peer's program is: what was got for the benchmark comes before the PATH."""
    own = PEERS / name
    return str(own) if os.access(own, os.X_OK) and own.is_file() else shutil.which(name)


@dataclass(frozen=True)
class Tools:
    """The load generators this machine has."""

    wrk: str | None
    redis_benchmark: str | None

    @staticmethod
    def find(*, builtin_only: bool = False) -> Tools:
        wrk = None if builtin_only else find_program("wrk")
        return Tools(wrk=wrk, redis_benchmark=find_program("redis-benchmark"))


class Server(ABC):
    """One system: made once, started afresh for every round, always on a new data directory."""

    key: ClassVar[str]
    title: ClassVar[str]
    how_to_get: ClassVar[str]

    def __init__(self) -> None:
        self.child: Child | None = None
        self.port = 0
        self.ready_seconds = 0.0

    @abstractmethod
    def missing(self) -> str | None:
        """What is not there, or None when the system can be run."""

    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def _launch(self, folder: Path) -> Child:
        """Start the process on `self.port`."""

    @abstractmethod
    def _is_ready(self) -> bool: ...

    def _prepare(self) -> None:  # noqa: B027 - Most systems have nothing to prepare.
        """Ask of a ready server what must be asked once."""

    @contextmanager
    def running(self, folder: Path) -> Iterator[Child]:
        """The server on the data in `folder`, stopped when the block ends."""
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        with self._launch(folder) as child:
            self.child = child
            self.ready_seconds = child.wait_ready(self._is_ready)
            self._prepare()
            yield child


class System(Server):
    """A server that can be pressed: so many acquires, for so many seconds, at so many connections."""

    def __init__(self, tools: Tools) -> None:
        super().__init__()
        self.tools = tools

    @abstractmethod
    def press(self, *, connections: int, seconds: int) -> Load:
        """Acquire new names for so many seconds with the best tool there is."""

    @abstractmethod
    def press_exactly(self, count: int, *, connections: int = 1) -> Load:
        """Acquire exactly so many new names."""


class HttpSystem(System):
    """A system spoken to over HTTP: wrk presses it, or our own generator where there is no wrk."""

    health_path: ClassVar[str]

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._runs = 0

    @abstractmethod
    def target(self) -> Target: ...

    def press(self, *, connections: int, seconds: int) -> Load:
        names = self.next_names()
        if self.tools.wrk is None:
            return self._press_builtin(names, connections, seconds, None)
        return load.by_wrk(self.tools.wrk, self.target(), names, connections=connections, seconds=seconds)

    def press_exactly(self, count: int, *, connections: int = 1) -> Load:
        return self._press_builtin(self.next_names(), connections, COUNT_SECONDS_MAX, count)

    def _press_builtin(self, names: Names, connections: int, seconds: float, count: int | None) -> Load:
        target = self.target()
        given = {"template": target.template, "marker": target.marker, "names": asdict(names)}
        plan = Plan(target.port, "template", connections, seconds, arguments=given, count=count)
        return load.of_run(press(plan), connections)

    def next_names(self) -> Names:
        run, self._runs = self._runs, self._runs + 1
        user_first = (run % RUNS_PER_START) * USERS_PER_RUN
        return Names(prefix=f"bench{run % 1_000:03d}", user_first=user_first)

    def _is_ready(self) -> bool:
        try:
            status, _ = ask(self.port, "GET", self.health_path)
        except OSError:
            return False
        return status == http.client.OK


def ask(
    port: int, method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None
) -> tuple[int, str]:
    """One HTTP exchange with a server on this machine."""
    wire = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        wire.request(method, path, body, headers or {})
        answer = wire.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    except http.client.HTTPException as error:
        raise OSError(f"no HTTP answer: {error}") from error
    finally:
        wire.close()
