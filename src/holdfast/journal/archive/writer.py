"""Writes the archive: a step at a time, or all of it from a snapshot of another store.

    begin ──► enter the batches since the last step ──► change what changed ──► commit: prune, write, sync

It is plain and synchronous, and knows nothing of processes: the child runs it, and so do a restore and tests on file
systems of their own. Whatever fails, the transaction is rolled back: all is as before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.journal.archive.entries import Entries, put_right
from holdfast.journal.archive.file import position_of
from holdfast.journal.archive.pruning import Pruning
from holdfast.journal.archive.shares import Shares
from holdfast.journal.archive.values import StateRows
from holdfast.journal.base import Changes, JournalUnavailableError, Values
from holdfast.journal.codec import encode_batch
from holdfast.journal.failpoints import failpoint
from holdfast.journal.store import DiskFullError

if TYPE_CHECKING:
    from holdfast.journal.base import History, Keeping
    from holdfast.journal.store import Store

_STEP = "archive"
FILL_ROWS = 50_000
"""How many rows are written in one transaction while it is filled: only the last one lets the archive count."""


class Writer:
    """The one who writes an archive."""

    def __init__(self, store: Store, keeping: Keeping) -> None:
        self._store = store
        self._keeping = keeping
        self.position = position_of(store)
        """How far the archive has come, by what is committed."""
        self._upto = self.position.upto
        """How far the step has come."""
        self._is_filling = False
        self._filled = 0

    def begin(self) -> None:
        """Begin a step."""
        self._store.begin(_STEP)
        with self._store.changing(_STEP):
            self._shares = Shares(self._store)
            self._entries = Entries(self._store, self._shares)
            self._values = StateRows(self._store)
            self._upto = self.position.upto
            failpoint("archive_begin")

    def enter(self, first: int, last: int, body: bytes) -> None:
        """Enter a batch: what follows what was entered before it."""
        with self._store.changing(_STEP):
            if first != self._upto + 1:
                raise JournalUnavailableError(f"archive: record {first} was given where {self._upto + 1} should be")
            self._entries.enter(body)
            self._upto = last

    def change(self, changes: Changes) -> None:
        """Put some changed values in place."""
        with self._store.changing(_STEP):
            self._values.change(changes)
            failpoint("archive_mid")

    def commit(self, upto: int, head: bytes, wall_ms: int) -> None:
        """Drop what of the history is too old or too much, and let the step count."""
        with self._store.changing(_STEP):
            if upto != self._upto:
                raise JournalUnavailableError(f"archive: the batches end with record {self._upto}, and not with {upto}")
            self._values.set_head(head)
        self._commit(upto, wall_ms)

    def prune(self, wall_ms: int) -> None:
        """Drop what is too old or too much, and nothing else: there is nothing new."""
        self.begin()
        self._commit(self.position.upto, wall_ms)

    def abort(self) -> None:
        """Let nothing of the step have happened."""
        self._store.roll_back()

    def _commit(self, upto: int, wall_ms: int) -> None:
        with self._store.changing(_STEP):
            self._entries.write()
            pruning = Pruning(self._store, self._shares, self._keeping)
            pruning.prune(wall_ms)
            self._write_totals(upto, max(self.position.pruned, pruning.newest))
            failpoint("archive_before_commit")
        self._end()

    def _write_totals(self, upto: int, pruned: int) -> None:
        self._shares.write()
        self._values.write_totals()
        self._store.do("write_meta", [("upto", upto), ("pruned", pruned)])

    def _end(self) -> None:
        try:
            self._store.end(_STEP)
        except DiskFullError as error:
            # COMMIT was sent. Whether it counts, only the next one who opens the file can tell.
            raise self._store.outcome_unknown(f"archive: the disk is full: {error}") from error
        self.position = position_of(self._store)
        failpoint("archive_after_commit")

    # All of it at once.

    def fill(self, part: Values | History) -> None:
        """Take a part of what an empty archive is to hold. It counts for nothing before `end_fill`."""
        if not self._is_filling:
            self.begin()
            self._is_filling = True
        with self._store.changing(_STEP):
            if isinstance(part, Values):
                self._values.change(Changes(part.table, new=part.rows))
                self._filled += len(part.rows)
            else:
                for record in part.records:
                    self._entries.keep(record, encode_batch([record]))
                self._filled += len(part.records)
        if self._filled >= FILL_ROWS:
            self._pause()

    def end_fill(self, upto: int, pruned: int) -> None:
        """Let it stand for all up to a record, with a history that is whole after another."""
        self._pause()
        with self._store.changing(_STEP):
            put_right(self._store, self._entries, pruned)
            self._entries.write()
            self._write_totals(upto, pruned)
        self._end()
        self._is_filling = False

    def _pause(self) -> None:
        """Write what there is so far, and go on in another transaction."""
        with self._store.changing(_STEP):
            self._entries.write()
            self._write_totals(0, 0)
        self._end()
        self._store.begin(_STEP)
        self._filled = 0
