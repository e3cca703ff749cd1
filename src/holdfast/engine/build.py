"""Puts an engine together: a journal, its archivist, the clock, the limits, the watchdog.

A journal is in a directory, with one server; or in a store that several nodes share, which needs an extra and is
imported late.
"""

# ruff: noqa: I001, PLC0414 - What the server may use of the journal is re-exported here, in one import.

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.core.values import Limits
from holdfast.engine.archiver import ArchivePolicy
from holdfast.engine.clock import Clock, SystemClock
from holdfast.engine.engine import Engine
from holdfast.engine.ids import new_identity, new_secret
from holdfast.engine.metrics import EngineMetrics
from holdfast.engine.watchdog import Watchdog
from holdfast.errors import SettingsError
from holdfast.journal.sqlite.compactor import ChildCompactor
from holdfast.journal.interface import (
    DeposedError as DeposedError,
    Health as Health,
    Held as Held,
    HeldQuery as HeldQuery,
    HistoryPage as HistoryPage,
    HistoryQuery as HistoryQuery,
    JournalDamagedError as JournalDamagedError,
    JournalError as JournalError,
    JournalLockedError as JournalLockedError,
    JournalLostError as JournalLostError,
    JournalUnavailableError as JournalUnavailableError,
    Retention as Retention,
    OutcomeUnknownError as OutcomeUnknownError,
    Peer as Peer,
    Leadership as Leadership,
    SharedJournal as SharedJournal,
)
from holdfast.journal.codec import FORMAT as FORMAT
from holdfast.journal.failpoints import arm
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.privatefiles import NotOursError, read_ours, reason_of
from holdfast.config import Settings

_AUTHORITY_BYTES, _KEY_BYTES = 16, 32
SECRET_BYTES_MAX, SECRET_BYTES_MIN = 4_096, 16

arm_failpoints = arm


def build(
    directory: Path,
    limits: Limits,
    *,
    version: str,
    retention: Retention,
    witnesses: Sequence[str],
    archive_policy: ArchivePolicy,
    disk_reserve_bytes: int,
    tail_bytes_max: int,
    disk_hang_ms: int,
    metrics: EngineMetrics | None = None,
) -> Engine:
    """Return an engine over the journal of a directory; nothing is touched before `start`.

    `witnesses` are names of files that only a directory with a journal has.
    """
    clock = SystemClock()
    watchdog = Watchdog(clock, end_ms=disk_hang_ms)
    return Engine(
        SqliteJournal(
            directory,
            retention=retention,
            disk_reserve_bytes=disk_reserve_bytes,
            tail_bytes_max=tail_bytes_max,
            compactor=ChildCompactor(),
            identity=new_identity(),
            witnesses=witnesses,
            watch=watchdog,
        ),
        limits,
        clock=clock,
        version=version,
        archive_policy=archive_policy,
        watchdog=watchdog,
        metrics=metrics,
    )


def store_secret(file: Path | None) -> bytes | None:
    if file is None:
        return None
    try:
        secret = read_ours(file, SECRET_BYTES_MAX, root_shares=True).strip()
    except (OSError, NotOursError) as error:
        raise SettingsError("store_secret_file", "settings", f"{file} cannot be used: {reason_of(error)}") from error
    if not SECRET_BYTES_MIN <= len(secret) < SECRET_BYTES_MAX:
        allowed = f"{SECRET_BYTES_MIN} to {SECRET_BYTES_MAX - 1} bytes, as of openssl rand -hex 32"
        raise SettingsError("store_secret_file", "settings", f"{file} has {len(secret)} bytes", allowed)
    return secret


def shared_journals(settings: Settings, me: Peer, clock: Clock, retention: Retention) -> Callable[[str], SharedJournal]:
    """Return a factory of journals in a store, one for each term. Nothing is asked before it is used.

    All of one process share what they know of the store; the first to read an empty one makes its authority. Raises
    `ModuleNotFoundError` without the extra that the store needs, and `SettingsError`.
    """
    secret = store_secret(settings.store_secret_file)
    from holdfast.journal.postgres.journal import PostgresJournal  # noqa: PLC0415 - an extra
    from holdfast.journal.postgres.leadership import NewAuthority, RollbackDetector  # noqa: PLC0415

    rollback_detector = RollbackDetector()
    new_authority = NewAuthority(new_secret(_AUTHORITY_BYTES).hex(), new_secret(_KEY_BYTES), clock.wall_ms())

    def make(term: str) -> SharedJournal:
        return PostgresJournal(
            settings.store,
            me,
            term_id=term,
            wall_ms=clock.wall_ms(),
            schema=settings.store_schema,
            retention=retention,
            rollback_detector=rollback_detector,
            new_authority=new_authority,
            secret=secret,
            allow_data_loss=settings.after_data_loss == "continue",
            append_ms=settings.append_timeout_seconds * 1000,
            resolve_ms=settings.resolve_seconds * 1000,
            tail_bytes_max=settings.tail_mib_max * 2**20,
        )

    return make
