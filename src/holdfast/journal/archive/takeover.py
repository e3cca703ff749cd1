"""Takes over a journal of schema 1 or 2, which had its snapshot and its history in the one file.

    look at all that will be taken ──► build the archive ──► sync it ──► one transaction in the journal:
                                                                          drop the old tables, schema 3

Killed anywhere before that transaction, the journal is as it was, and the next start begins again: an archive beside a
journal of an older schema counts for nothing and is thrown away. After it there is nothing left to do.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from zlib import crc32

import apsw

from holdfast.journal.archive.writer import Writer
from holdfast.journal.base import JournalDamagedError, JournalTooNewError
from holdfast.journal.codec import decode_batch, unseal, values_of_parts
from holdfast.journal.failpoints import failpoint
from holdfast.journal.store import DiskFullError
from holdfast.privatefiles import sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.core.events import Record
    from holdfast.journal.base import Keeping, Values
    from holdfast.journal.store import Store

SCHEMAS = (1, 2)
COUNTED = 2
"""The schema since which history is counted against whoever left it."""
HISTORY_ROWS = 1_000
REPORT_EVERY = 100_000
MUCH_BYTES = 64 * 2**20
"""From how much free space in the file on it is given back to the disk."""
_FORGET = (
    "forget_old_snapshots",
    "forget_old_history",
    "forget_old_names",
    "forget_old_shares",
    "forget_old_sums",
    "forget_old_scalars",
)

log = logging.getLogger("holdfast.journal")


class Old:
    """A journal of before: what it has beside its tail."""

    def __init__(self, store: Store) -> None:
        """Look at the snapshot. Raises for one that is not whole."""
        self._store = store
        self._is_counted = store.meta("schema") >= COUNTED
        self.upto = store.meta("upto")
        self.pruned = store.meta("pruned")
        self._parts = self._read_parts()

    def _read_parts(self) -> list[bytes]:
        for (text,) in self._store.run("check_parts"):
            if text != "ok":
                raise self._store.damaged(str(text))
        parts: list[bytes] = []
        checksum = 0
        for number, body in self._store.run("read_parts", (self.upto,)):
            if number != len(parts):
                raise self._store.damaged(f"part {len(parts)} of the snapshot is missing")
            try:
                parts.append(unseal(body))
            except JournalTooNewError:
                raise
            except JournalDamagedError as error:
                raise self._store.damaged(f"part {number} of the snapshot: {error}") from error
            checksum = crc32(body, checksum)
        if len(parts) != self._store.meta("parts") or checksum != self._store.meta("checksum"):
            raise self._store.damaged("the snapshot is not the one that was written")
        return parts

    def values(self) -> Iterator[Values]:
        """Yield the state as of the snapshot, as the archive has it."""
        return values_of_parts(self._parts)

    def history(self) -> Iterator[list[tuple[Record, str]]]:
        """Yield the history, and whom each record is counted against."""
        after, told, told_at = -1, 0, REPORT_EVERY
        name = "read_old_counted_history" if self._is_counted else "read_old_history"
        while rows := self._store.some(name, (after, self.upto, HISTORY_ROWS)):
            yield [(record, who) for _, body, who in rows for record in decode_batch(body)]
            after = rows[-1][0]
            told += len(rows)
            if told >= told_at:
                log.info("taking over: %d records of the history so far", told)
                told_at += REPORT_EVERY


def take_over(old: Old, store: Store, archive: Store, keeping: Keeping, *, schema: int) -> None:
    """Fill a new archive, then let the journal have no more than its tail, and be of `schema`."""
    path = archive.path
    log.info("taking over %s: its snapshot and its history go to %s", store.path, path.name)
    try:
        writer = Writer(archive, keeping)
        writer.fill(old.upto, old.pruned, old.values(), old.history())
    finally:
        archive.close()
    sync_folder(path.parent)
    failpoint("takeover_before_switch")

    def switch() -> None:
        for name in _FORGET:
            store.do(name, [()])
        scalars = [("schema", schema), ("archived", old.upto), ("identity", writer.position.identity)]
        store.do("write_meta", scalars)

    store.commit("take over", switch)
    _give_back_space(store)
    log.info("taken over: records up to %d are in %s", old.upto, path.name)


def _give_back_space(store: Store) -> None:
    """Make the file small again, if much of it is empty. If there is no room for that, it stays as it is."""
    free_bytes = store.db.execute("PRAGMA freelist_count").get * store.db.execute("PRAGMA page_size").get
    if free_bytes < MUCH_BYTES:
        return
    try:
        store.db.execute("VACUUM")
    except (apsw.FullError, DiskFullError) as error:
        log.warning("%s keeps %d MiB that it does not need: %s", store.path, free_bytes >> 20, error)
