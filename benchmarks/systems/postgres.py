"""PostgreSQL with a lock by hand: a row for each name (`lock.sql`), pressed by its own pgbench."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.load.tools import LoadError, parse_pgbench
from benchmarks.systems.base import System, find_program
from benchmarks.systems.process import Child, StartError, output_of

if TYPE_CHECKING:
    from benchmarks.load.tools import Load

CONNECTIONS_MAX = 1_100
_PROGRAMS = ("initdb", "postgres", "pgbench", "psql")
_ROOT_USER = 0
_SERVICE_USER = "postgres"
_USER = "bench"


def statement(name: str) -> str:
    """Return a statement of `lock.sql`."""
    text = Path(__file__).with_name("lock.sql").read_text(encoding="utf-8")
    body = text.partition(f"-- {name}:")[2].partition("\n")[2]
    return body.partition("\n-- ")[0].strip()


def find_pg(program: str) -> str | None:
    """Return where a program of PostgreSQL is: on the PATH, or where Debian keeps one folder for each version."""
    found = find_program(program)
    if found is not None:
        return found
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    return next((str(folder / program) for folder in folders if os.access(folder / program, os.X_OK)), None)


class Postgres(System):
    """Every commit synced, which is its default. Nothing else is set but the number of connections."""

    key = "postgres"
    title = "PostgreSQL by hand"
    how_to_get = "apt install postgresql"

    def missing(self) -> str | None:
        absent = [program for program in _PROGRAMS if find_pg(program) is None]
        if absent:
            return f"no `{'`, no `'.join(absent)}`"
        if os.getuid() == _ROOT_USER and not shutil.which("runuser"):
            return "PostgreSQL will not run as root, and there is no `runuser`"
        return None

    def version(self) -> str:
        return output_of(find_pg("postgres") or "postgres", "--version").removeprefix("postgres (PostgreSQL) ")

    @property
    def address(self) -> str:
        """Return what a client connects to."""
        return f"host=127.0.0.1 port={self.port} user={_USER} dbname=postgres"

    @property
    def url(self) -> str:
        """Return the same as a URL."""
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/postgres"

    def _launch(self, folder: Path) -> Child:
        data = folder / "data"
        if not data.exists():
            data.mkdir(parents=True)
            if os.getuid() == _ROOT_USER:
                # It refuses to run as root. Its user must reach the folder and own it.
                for each in (folder, *list(folder.parents)[:3]):
                    each.chmod(each.stat().st_mode | 0o011)
                shutil.chown(data, _SERVICE_USER)
            made = _as_service(find_pg("initdb"), "-D", str(data), "-A", "trust", "-U", _USER, "--no-instructions")
            done = subprocess.run(made, capture_output=True, text=True, check=False, cwd="/")
            if done.returncode != 0:
                raise StartError(f"initdb failed: {done.stderr.strip()[-400:]}")
        command = _as_service(find_pg("postgres"), "-D", str(data), "-p", str(self.port))
        command += ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        command += ["-c", f"max_connections={CONNECTIONS_MAX}"]
        return Child(command, log=folder / "log", cwd=Path("/"))

    def _is_ready(self) -> bool:
        return self._psql("select 1") == "1"

    def _prepare(self) -> None:
        # Asked back, because a PostgreSQL that answers before its fsync would be another contest.
        if [self._psql(f"show {setting}") for setting in ("fsync", "synchronous_commit")] != ["on", "on"]:
            raise StartError("it does not sync its commits")
        self._psql(statement("table"))

    def press(self, *, connections: int, seconds: int) -> Load:
        return self._pgbench(connections, "-T", str(seconds))

    def press_exactly(self, count: int, *, connections: int = 1) -> Load:
        return self._pgbench(connections, "-t", str(max(1, count // connections)))

    def _pgbench(self, connections: int, *amount: str) -> Load:
        if self.child is None:
            raise LoadError("the server does not run")
        folder = self.child.log.parent
        script = folder / "pgbench.sql"
        script.write_text(statement("pgbench"), encoding="utf-8")
        logs = folder / "pgbench_log"
        for old in folder.glob("pgbench_log*"):
            old.unlink()
        held_before = int(self._psql(statement("held")))
        command = [find_pg("pgbench") or "pgbench", "-n", "-M", "prepared", "-c", str(connections), "-j", "1", *amount]
        command += ["-f", str(script), "-D", f"prefix='{held_before}-'", "-l", "--log-prefix", str(logs)]
        done = subprocess.run([*command, self.address], capture_output=True, text=True, check=False, cwd=folder)
        if done.returncode != 0:
            raise LoadError(f"pgbench failed: {done.stderr.strip()[-400:]}")
        lines = [line for path in sorted(folder.glob("pgbench_log*")) for line in path.read_text().splitlines()]
        held = int(self._psql(statement("held"))) - held_before
        return parse_pgbench(done.stdout, lines, connections, acquired=held)

    def _psql(self, command: str) -> str:
        return output_of(find_pg("psql") or "psql", self.address, "-X", "-A", "-t", "-q", "-c", command)


def _as_service(program: str | None, *arguments: str) -> list[str]:
    """Return a command that runs as a user that PostgreSQL accepts."""
    command = [program or "postgres", *arguments]
    return ["runuser", "-u", _SERVICE_USER, "--", *command] if getpass.getuser() == "root" else command
