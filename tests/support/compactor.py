"""The child process that writes a server's archive, as one sees it who looks at the machine: to count and kill it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from contextlib import closing
from pathlib import Path
from typing import Self

import apsw

from holdfast.journal.sqlite.archive import FILE

MODULE = b"holdfast.journal.sqlite.compactor_process"


def compactors_of(server: int) -> set[int]:
    """The process ids of the compactors of a server: one, or none while there is nothing to archive."""
    found: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            if is_compactor(int(folder.name)) and _parent_of(folder) == server:
                found.add(int(folder.name))
    return found


def is_compactor(process: int) -> bool:
    """Whether a process runs and is one. What has ended and was not waited for has no command any more."""
    with contextlib.suppress(OSError):
        return MODULE in Path("/proc", str(process), "cmdline").read_bytes()
    return False


def _parent_of(folder: Path) -> int:
    # The name of the program stands in brackets, and may have any sign in it.
    return int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])


def archived_by_now(data: Path) -> int:
    """Up to which record a server that runs has archived. Others may read that file while it is written."""
    flags = apsw.SQLITE_OPEN_READWRITE  # A reader must be able to write to what it shares with the writer.
    with closing(apsw.Connection(str(data / FILE), flags=flags)) as db:
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        db.set_busy_timeout(5_000)
        upto: int | None = db.execute("SELECT value FROM meta WHERE key = 'upto'").get
        return upto or 0


class Hunter:
    """Sees every compactor of a server, and kills each after a while if it is told to. To be used as a context."""

    def __init__(self, server: int, chance: random.Random, *, kills: bool) -> None:
        self.seen: set[int] = set()
        self.alive: set[int] = set()
        self.killed = 0
        self._server = server
        self._chance = chance
        self._kills = kills
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._hunt, name="hunter", daemon=True)

    @property
    def gone(self) -> int:
        """How many were there and are no more."""
        return len(self.seen - self.alive)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _hunt(self) -> None:
        while not self._is_over.wait(self._chance.uniform(0.005, 0.05)):
            self.alive = compactors_of(self._server)
            self.seen |= self.alive
            if self._kills and self._chance.random() < 0.3:
                for each in self.alive:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(each, signal.SIGKILL)
                        self.killed += 1
