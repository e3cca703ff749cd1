"""State that a process saves for the next one of its owner: its session, its jobs, and losses that it has not reported.

A host may restart this program at any time. The next process of the owner adopts the session if it still lives (C4),
and reports every job that does not. The file holds no secret: adopting needs the access token. It belongs to the
process that has its lock, which the kernel releases with the process. A second process of the same owner has a session
of its own, and saves nothing.
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

from holdfast.agents.guard.state import base_of
from holdfast.privatefiles import NotOursError, make_folder, open_ours, read_ours, reason_of, replace

FILE_BYTES_MAX = 1_048_576
FILES_MAX = 200
LOSSES_MAX = 100  # How many losses are kept; the oldest are dropped.
_LOCK = ".lock"


class SavedState(msgspec.Struct, kw_only=True):
    session: str | None = None
    jobs: list[str] = []
    lost: list[dict[str, Any]] = []


class SavedStateError(Exception):
    """The file cannot be used."""


class SavedStateFile:
    def __init__(self, path: Path, lock: int) -> None:
        self._path = path
        self._lock = lock

    def read(self) -> SavedState:
        """Return what the previous process left; nothing if the file cannot be decoded. Raises `SavedStateError`."""
        try:
            return msgspec.json.decode(read_ours(self._path, FILE_BYTES_MAX), type=SavedState)
        except (FileNotFoundError, msgspec.MsgspecError):
            return SavedState()
        except (OSError, NotOursError) as error:
            raise SavedStateError(f"{self._path} cannot be used: {reason_of(error)}") from error

    def write(self, saved: SavedState) -> None:
        saved.lost = saved.lost[-LOSSES_MAX:]
        try:
            replace(self._path, msgspec.json.encode(saved))
        except OSError as error:
            raise SavedStateError(f"{self._path} cannot be written: {reason_of(error)}") from error

    def close(self) -> None:
        """Release the lock, and remove the file if it has nothing to report."""
        with contextlib.suppress(SavedStateError, OSError):
            if self.read() == SavedState():
                _remove(self._path)
        os.close(self._lock)


def open_saved_state(url: str, owner: str, environment: Mapping[str, str]) -> SavedStateFile | None:
    """Return the memory of an owner; None if another live process has it. Raises `SavedStateError`."""
    folder = Path(base_of(environment)).parent / "mcp"
    if not folder.is_absolute():
        raise SavedStateError("there is no home folder; set XDG_STATE_HOME to a folder of yours")
    readable = re.sub(r"[^A-Za-z0-9._-]", "-", owner)[:40]
    digest = hashlib.sha256(f"{url}\n{owner}".encode("utf-8", "replace")).hexdigest()[:16]
    path = folder / f"{readable}-{digest}.json"
    try:
        make_folder(folder)
        _remove_oldest(folder)
        lock = _acquire_lock(path)
    except (OSError, NotOursError) as error:
        raise SavedStateError(f"{path} cannot be used: {reason_of(error)}") from error
    if lock is None:
        return None
    state_file = SavedStateFile(path, lock)
    try:
        state_file.read()
    except SavedStateError:
        state_file.close()
        raise
    return state_file


def _acquire_lock(path: Path) -> int | None:
    """Return a descriptor that holds the memory's lock, or None if another process has it."""
    lock_path = path.with_suffix(_LOCK)
    while True:
        lock = open_ours(lock_path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), lock_path.lstat()):
                return lock
        os.close(lock)  # The process that had it removed it between the two steps.


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_suffix(_LOCK).unlink(missing_ok=True)


def _remove_oldest(folder: Path) -> None:
    """Keep at most `FILES_MAX` memories: killed processes that were never restarted leave theirs."""
    locks = sorted(folder.glob(f"*{_LOCK}"), key=lambda path: path.lstat().st_mtime)
    for each in locks[:-FILES_MAX]:
        lock = _acquire_lock(each.with_suffix(".json"))
        if lock is not None:
            _remove(each.with_suffix(".json"))
            os.close(lock)
