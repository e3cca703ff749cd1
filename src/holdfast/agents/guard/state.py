"""The guard's local state, in `$XDG_STATE_HOME/holdfast/guard`, private to its user.

```text
owners/SESSION/AGENT/   one owner: an agent, or a subagent of it (`main` is the agent itself)
    lock                locked during each change here
    session             the Holdfast session: its id, its secret, the server's address, the host process
    keeper              locked by the renewal daemon while it is alive, so its death is visible immediately
    asked               jobs that a person was asked about: for which call and which lease
    agreed              leases of jobs to which a person agreed
hosts/                  host processes with their MCP processes and agents: see `host_registry`
rules/                  cache of parsed rule files
log                     calls that passed without a server, messages of daemons; at most two files of 256 KiB
```

An owner's folder is removed when its session ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from holdfast.privatefiles import NotOursError, check_folder, read_ours, reason_of

OWNERS, RULES, LOG = "owners", "rules", "log"
MAIN = "main"
FILE_BYTES_MAX = 64 * 1024
LOG_BYTES_MAX = 256 * 1024
LOCK_SECONDS_MAX = 20.0
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_PLAIN_CHARS_MAX = 48


class StateError(Exception):
    """The guard's state cannot be used; the text says why and what to do."""


def base_of(environment: Mapping[str, str]) -> str:
    home = environment.get("XDG_STATE_HOME", "")
    if not home.startswith("/"):
        home = (environment.get("HOME") or os.path.expanduser("~")) + "/.local/state"
    return home + "/holdfast/guard"


class Owner:
    """An agent or subagent of a host, or a git process."""

    def __init__(self, base: str, host: str, session: str, agent: str = "") -> None:
        self.host, self.session, self.agent = host, session, agent
        of_session, of_agent = plain_id(session), plain_id(agent) if agent else ""
        self.folder = f"{base}/{OWNERS}/{host}-{of_session}/{of_agent or MAIN}"
        self.name = f"{host}:{of_session}" + (f"/{of_agent}" if of_agent else "")

    @property
    def host_session(self) -> str:
        return host_session_of(self.folder)


def host_session_of(folder: str) -> str:
    return os.path.basename(os.path.dirname(folder))  # HOST-SESSION


def plain_id(text: str) -> str:
    """Return an id that is safe as a file name; an unsafe one is replaced by its digest."""
    if 0 < len(text) <= _PLAIN_CHARS_MAX and set(text) <= _PLAIN and text[0] != "." and text != MAIN:
        return text
    from hashlib import sha256

    return "x" + sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]


class Session:
    """The Holdfast session of an owner, as stored.

    `from_url` and `from_config` identify the configuration that the server was found by (`server.found_by`). `host` is
    the key of the host process (see `processes`), "" after `detach_host`. `is_proven`: the kernel showed the host
    among the ancestors of the process that wrote this.
    """

    def __init__(self, fields: Mapping[str, object]) -> None:
        self.id, self.secret, self.owner = (str(fields[name]) for name in ("id", "secret", "owner"))
        self.urls, self.ca_file, self.host = (str(fields[name]) for name in ("urls", "ca_file", "host"))
        self.from_url, self.from_config = str(fields["from_url"]), str(fields["from_config"])
        self.ttl_seconds = float(str(fields["ttl_seconds"]))
        self.is_proven = fields["is_proven"] is True

    def fields(self) -> dict[str, object]:
        return dict(vars(self))


def session_of(fields: Mapping[str, object]) -> Session | None:
    try:
        return Session(fields)
    except (ValueError, KeyError, TypeError):
        return None


def read_session(folder: str) -> Session | None:
    return session_of(read_object(folder + "/session"))


def write_private(file: str, content: Mapping[str, object]) -> None:
    from pathlib import Path

    from holdfast.privatefiles import replace

    try:
        replace(Path(file), json.dumps(content).encode())
    except OSError as error:
        raise _write_error(file, error) from None


def make_folder(base: str, folder: str) -> None:
    """Make a private folder below the guard's own. Raises `StateError`."""
    try:
        make_private(folder)
        while folder.startswith(base):
            check_folder(folder)
            folder = os.path.dirname(folder)
    except NotOursError as error:
        raise StateError(f"the guard's folder cannot be used: {error}") from None
    except OSError as error:
        raise _write_error(folder, error) from None


def make_private(folder: str) -> None:
    if not os.path.isdir(folder):
        make_private(os.path.dirname(folder))
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)


def remove_folder(folder: str) -> None:
    """Remove an owner's folder; the caller holds its lock."""
    # Temporary files of processes that were killed while writing.
    names = [name for name in names_in(folder) if name.startswith((".session.", ".asked.", ".agreed."))]
    for name in ["session", "asked", "agreed", "keeper", *names, "lock"]:
        with suppress(OSError):
            os.unlink(f"{folder}/{name}")
    for each in (folder, os.path.dirname(folder)):
        with suppress(OSError):
            os.rmdir(each)


@contextmanager
def locked(base: str, folder: str) -> Iterator[None]:
    """Hold the lock of an owner's folder. Raises `StateError` if another process keeps it."""
    deadline = now() + LOCK_SECONDS_MAX
    for _ in range(_LOCK_TRIES):
        make_folder(base, folder)
        try:
            descriptor = os.open(folder + "/lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            continue
        try:
            while not try_lock(descriptor):
                if now() > deadline:
                    file = f"{folder}/lock"
                    raise StateError(f"{file} has been held for too long; look who holds it: fuser -v {file}")
                time.sleep(_PAUSE_SECONDS)
            # The folder may have been removed and recreated while we waited for the old lock.
            if is_same(descriptor, folder + "/lock"):
                yield
                return
        finally:
            os.close(descriptor)
    raise StateError(f"{folder} is removed again and again; look whether something cleans it up")


@contextmanager
def locked_with_session(base: str, folder: str, session: Session) -> Iterator[bool]:
    """Lock an owner's folder; yield whether it still has this session."""
    with locked(base, folder):
        found = read_session(folder)
        yield found is not None and found.id == session.id


def try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_same(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def is_daemon_alive(folder: str) -> bool:
    try:
        descriptor = os.open(folder + "/keeper", os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)


def read_map(file: str) -> dict[str, list[str]]:
    entries = read_object(file).items()
    return {str(job): [str(text) for text in texts] for job, texts in entries if isinstance(texts, list)}


def owner_folders(base: str) -> list[str]:
    sessions = [f"{base}/{OWNERS}/{name}" for name in names_in(f"{base}/{OWNERS}")]
    return [f"{session}/{agent}" for session in sessions for agent in names_in(session)]


def sessions(base: str) -> dict[str, Session]:
    found = {folder: read_session(folder) for folder in owner_folders(base)}
    return {folder: session for folder, session in found.items() if session is not None}


def names_in(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def read_object(file: str, bytes_max: int = FILE_BYTES_MAX) -> dict[str, object]:
    """Return the JSON object in a private file; empty if it is missing or invalid."""
    try:
        found = json.loads(read_ours(file, bytes_max))
    except (OSError, ValueError, NotOursError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def log(base: str, text: str) -> None:
    from holdfast.sanitize import plain

    file = f"{base}/{LOG}"
    with suppress(OSError):
        make_private(base)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(descriptor).st_size > LOG_BYTES_MAX:
                os.replace(file, file + ".1")
            line = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {plain(text)}\n"
            os.write(descriptor, line.encode("utf-8", "backslashreplace"))
        finally:
            os.close(descriptor)


def _write_error(path: str, error: OSError) -> StateError:
    return StateError(f"{path} cannot be written: {reason_of(error)}; let XDG_STATE_HOME name a folder that can")


def now() -> float:
    return time.monotonic()


LOCK_DESCRIPTOR = 3
_TRIES, _PAUSE_SECONDS = 5, 0.01
_LOCK_TRIES = 100


def start_daemon(folder: str, python: str) -> bool:
    """Start a renewal daemon unless one is alive; the caller holds the owner's lock. Raises `StateError`."""
    try:
        descriptor = os.open(folder + "/keeper", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StateError(f"{folder}/keeper cannot be opened: {error.strerror}") from None
    try:
        tries = _TRIES  # `is_daemon_alive` in another process locks the file briefly.
        while not try_lock(descriptor):
            tries -= 1
            if not tries:
                return False
            time.sleep(_PAUSE_SECONDS)
        if not python:
            raise StateError("the keeper cannot be started: Python does not know its own program")
        if not os.fork():
            _exec_daemon(descriptor, folder, python)
        return True
    except OSError as error:
        raise StateError(f"the keeper cannot be started: {error.strerror}") from None
    finally:
        os.close(descriptor)


def _exec_daemon(descriptor: int, folder: str, python: str) -> None:
    """Detach from the host's session, terminal, files and folder, and exec the renewal daemon."""
    try:
        os.setsid()
        os.chdir("/")
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        os.dup2(descriptor, LOCK_DESCRIPTOR)
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(nothing, standard)
        os.closerange(LOCK_DESCRIPTOR + 1, os.sysconf("SC_OPEN_MAX"))
        # -P: never import a module from the hook's working directory.
        os.execv(python, [python, "-P", "-m", "holdfast.agents.guard.renewal_daemon", folder])  # noqa: S606 - ours
    finally:
        os._exit(1)
