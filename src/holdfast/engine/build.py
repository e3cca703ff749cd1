"""Puts an authority together: a journal in a directory, its archivist, the clock, the limits, the watchdog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.clock import SystemClock
from holdfast.engine.engine import Engine
from holdfast.engine.ids import new_identity
from holdfast.engine.watchdog import Watchdog
from holdfast.journal.archive.archivist import Child
from holdfast.journal.base import (
    DeposedError,
    HistoryPage,
    HistoryQuery,
    JournalDamagedError,
    JournalError,
    JournalLockedError,
    JournalUnavailableError,
    Keeping,
    OutcomeUnknownError,
    Peer,
    Seat,
    SharedJournal,
)
from holdfast.journal.failpoints import arm
from holdfast.journal.sqlite import SqliteJournal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from holdfast.core.values import Limits
    from holdfast.engine.archiving import Archiving

__all__ = [
    "DeposedError",
    "HistoryPage",
    "HistoryQuery",
    "JournalDamagedError",
    "JournalError",
    "JournalLockedError",
    "JournalUnavailableError",
    "Keeping",
    "OutcomeUnknownError",
    "Peer",
    "Seat",
    "SharedJournal",
    "arm_failpoints",
    "build",
]

arm_failpoints = arm


def build(
    directory: Path,
    limits: Limits,
    *,
    version: str,
    keeping: Keeping,
    witnesses: Sequence[str],
    archiving: Archiving,
    ballast_bytes: int,
    tail_bytes_max: int,
    disk_hang_ms: int,
) -> Engine:
    """Return an engine over the journal of a directory; nothing is touched before `start`.

    `witnesses` are names of files in the directory that are only there after a journal.
    """
    clock = SystemClock()
    watchdog = Watchdog(clock, end_ms=disk_hang_ms)
    return Engine(
        SqliteJournal(
            directory,
            keeping=keeping,
            ballast_bytes=ballast_bytes,
            tail_bytes_max=tail_bytes_max,
            archivist=Child(),
            identity=new_identity(),
            witnesses=witnesses,
            watch=watchdog,
        ),
        limits,
        clock=clock,
        version=version,
        archiving=archiving,
        watchdog=watchdog,
    )
