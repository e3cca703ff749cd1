"""What a process of an owner leaves for the next one: which session it holds, which jobs, and what it has not told yet.

A host may end this program at any time and start it again. The next process of the same owner takes the session over if
it still lives (C4), and tells of every job that does not. The file has no secret in it: a session is taken over with
the access token.

Two processes of one owner never share anything. The file belongs to whoever has its lock, and the kernel drops that
with the process. A second one that lives beside the first keeps nothing over its end, has a session of its own, and is
refused what the first has, as any other.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.privatefiles import NotOursError, make_folder, open_ours, read_ours, reason_of, replace

FILE_BYTES_MAX = 1_048_576
FILES_MAX = 200
TOLD_MAX = 100
"""How many jobs are told of at most: of more than that the eldest are left out."""
_LOCK = ".lock"


class Left(msgspec.Struct, kw_only=True):
    """What one process leaves."""

    session: str | None = None
    """The session that it holds; None if it has none, or has ended it."""
    jobs: list[str] = []
    """What it believes to have."""
    lost: list[dict[str, Any]] = []
    """What ended and was not told yet."""


class BadMemoryError(Exception):
    """The file cannot be used. The text says which, and why."""


class Memory:
    """The file of one owner at one server, for as long as this process has its lock."""

    def __init__(self, path: Path, lock: int) -> None:
        """Made by `open_memory`."""
        self._path = path
        self._lock = lock

    def read(self) -> Left:
        """Return what the process before has left. What cannot be read is nothing: it may be of another version."""
        try:
            return msgspec.json.decode(read_ours(self._path, FILE_BYTES_MAX), type=Left)
        except (FileNotFoundError, msgspec.MsgspecError):
            return Left()
        except (OSError, NotOursError) as error:
            raise BadMemoryError(f"{self._path} cannot be used: {reason_of(error)}") from error

    def write(self, left: Left) -> None:
        """Leave this for the next one."""
        left.lost = left.lost[-TOLD_MAX:]
        try:
            replace(self._path, msgspec.json.encode(left))
        except OSError as error:
            raise BadMemoryError(f"{self._path} cannot be written: {reason_of(error)}") from error

    def close(self) -> None:
        """Let another process have it. If nothing is left to tell, nothing stays behind."""
        with contextlib.suppress(BadMemoryError, OSError):
            if self.read() == Left():
                _remove(self._path)
        os.close(self._lock)


def open_memory(url: str, owner: str, environment: Mapping[str, str]) -> Memory | None:
    """Return the memory of an owner; None if another process that lives has it. Raises `BadMemoryError`."""
    folder = _state_folder(environment) / "holdfast" / "mcp"
    # Readable for people, and another one for each server and each owner, whatever signs their names have.
    readable = re.sub(r"[^A-Za-z0-9._-]", "-", owner)[:40]
    digest = hashlib.sha256(f"{url}\n{owner}".encode("utf-8", "replace")).hexdigest()[:16]
    path = folder / f"{readable}-{digest}.json"
    try:
        make_folder(folder)
        _forget_eldest(folder)
        lock = _locked(path)
    except (OSError, NotOursError) as error:
        raise BadMemoryError(f"{path} cannot be used: {reason_of(error)}") from error
    if lock is None:
        return None
    memory = Memory(path, lock)
    try:
        memory.read()
    except BadMemoryError:
        memory.close()
        raise
    return memory


def _locked(path: Path) -> int | None:
    """Lock a memory and return what holds the lock; None if another has it."""
    place = path.with_suffix(_LOCK)
    while True:
        lock = open_ours(place, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), place.lstat()):
                return lock
        os.close(lock)  # Whoever had it removed it between our two steps.


def _remove(path: Path) -> None:
    """Remove a memory; only for whoever has its lock."""
    path.unlink(missing_ok=True)
    path.with_suffix(_LOCK).unlink(missing_ok=True)


def _forget_eldest(folder: Path) -> None:
    """Keep no more memories than `FILES_MAX`: processes that were killed and never came back have left them."""
    locks = sorted(folder.glob(f"*{_LOCK}"), key=lambda path: path.lstat().st_mtime)
    for each in locks[:-FILES_MAX]:
        lock = _locked(each.with_suffix(".json"))
        if lock is not None:
            _remove(each.with_suffix(".json"))
            os.close(lock)


def _state_folder(environment: Mapping[str, str]) -> Path:
    """Return where programs of this user keep what they remember."""
    told = environment.get("XDG_STATE_HOME", "")
    if told.startswith("/"):
        return Path(told)
    with contextlib.suppress(RuntimeError):
        return Path(environment.get("HOME") or Path.home()) / ".local" / "state"
    raise BadMemoryError("there is no home folder; set XDG_STATE_HOME to a folder of yours")
