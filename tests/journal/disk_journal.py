"""A journal on a disk in memory whose mark is on that disk too, though it is a file of the real one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest import mock

from holdfast.journal.interface import Recovered
from holdfast.journal.sqlite import watermark
from holdfast.journal.sqlite.archive import FILE as ARCHIVE
from holdfast.journal.sqlite.archive import LOCK
from holdfast.journal.sqlite.compactor import LocalCompactor
from holdfast.journal.sqlite.journal import CHECKPOINT_PAGES, FILE, SqliteJournal
from tests.journal.power_vfs import Disk


class OnDisk(SqliteJournal):
    """Lets the directory look as the disk does before it is opened, and the disk keep the mark that is left.

    The disk has the mark at once, as if it were synced: so one that says more than the journal can keep is found out.
    The archive is written on that disk too, in this process: SQLite cannot share memory on it, so readers share the
    writer's connection.
    """

    def __init__(self, directory: Path, disk: Disk, **options: Any) -> None:  # noqa: ANN401 - passed on as they are
        options = {"connect": disk.connect, **options}
        synchronous = options.get("synchronous", "FULL")
        pages = options.get("checkpoint_pages", CHECKPOINT_PAGES)
        compactor = LocalCompactor(
            connect=options["connect"], synchronous=synchronous, alone=True, checkpoint_pages=pages
        )
        super().__init__(directory, **{"compactor": compactor, **options})
        self._disk = disk

    def __del__(self) -> None:
        # One that was killed is only dropped here, and its process goes on: it must not keep the lock open.
        if self._lock is not None:
            os.close(self._lock.file)

    async def open(self) -> Recovered:
        for name in (FILE, ARCHIVE):
            path = self._directory / name
            path.unlink(missing_ok=True)
            if str(path) in self._disk.files:
                path.touch(0o600)
        # Each disk is another machine, though all have this one directory.
        (self._directory / LOCK).unlink(missing_ok=True)
        left = self._directory / watermark.FILE
        left.unlink(missing_ok=True)
        if self._disk.mark is not None:
            left.touch(0o600)
            left.write_bytes(self._disk.mark)
        return await super().open()

    def _write_watermark(self) -> None:
        # The real file is only the way to the disk: tens of thousands of them need not last.
        with mock.patch.object(os, "fsync"):
            super()._write_watermark()
        self._disk.mark = (self._directory / watermark.FILE).read_bytes()
