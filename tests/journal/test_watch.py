"""Whoever watches the disk hears of every call to it that can hang, not only of the appends."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from holdfast.journal.interface import HistoryQuery, Retention
from holdfast.journal.sqlite import watermark
from holdfast.journal.sqlite.compactor import LocalCompactor
from holdfast.journal.sqlite.journal import SqliteJournal
from tests.journal.archive_samples import archive
from tests.journal.power_vfs import CHECKPOINT_PAGES, Disk, Image
from tests.journal.records import grant


class Watcher:
    """Knows what is on its way."""

    def __init__(self) -> None:
        self.on_their_way: dict[int, str] = {}
        self.entered: set[str] = set()
        self._number = 0

    def enter(self, what: str) -> int:
        self._number += 1
        self.on_their_way[self._number] = what
        self.entered.add(what)
        return self._number

    def leave(self, number: int) -> None:
        del self.on_their_way[number]


class WatchedDisk(Disk):
    """Notes what is written or synced while nobody knows of it."""

    watcher: Watcher
    is_open = False

    def __init__(self) -> None:
        super().__init__()
        self.unheard: list[str] = []

    def note(self, what: str) -> None:
        if self.is_open and not self.watcher.on_their_way:
            self.unheard.append(what)

    def write(self, name: str, image: Image, offset: int, data: bytes | None) -> None:
        self.note(f"write to {name}")
        super().write(name, image, offset, data)

    def sync(self, name: str, image: Image) -> None:
        self.note(f"sync of {name}")
        super().sync(name, image)


def test_watch_sees_every_disk_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first commit on, whatever is written or synced is on its way for the one who watches: records, each
    slice that is dropped from the tail, the mark, the reserve, the last words; and the archive, if this process writes.
    """
    disk, watcher = WatchedDisk(), Watcher()
    disk.watcher = watcher
    for module, name in ((watermark, "replace"), (os, "posix_fallocate"), (Path, "unlink")):
        real = getattr(module, name)

        def watched_call(*args: object, real: object = real, name: str = name, **more: object) -> object:
            disk.note(name)
            return real(*args, **more)  # type: ignore[operator] # whatever it was

        monkeypatch.setattr(module, name, watched_call)

    async def live() -> None:
        journal = SqliteJournal(
            tmp_path / "data",
            retention=Retention(records_max=3),
            disk_reserve_bytes=4096,
            checkpoint_pages=CHECKPOINT_PAGES,
            watch=watcher,
            compactor=LocalCompactor(connect=disk.connect, alone=True, checkpoint_pages=CHECKPOINT_PAGES),
            connect=disk.connect,
        )
        recovered = await journal.open()
        assert list(recovered.records) == []
        disk.is_open = True
        for seq in range(1, 21):
            await journal.append([grant(seq)])
        await archive(journal, 0, 20)
        journal._disk_reserve.release()
        journal._has_reserve = False
        assert journal.health().takes_claims
        assert len((await journal.history(HistoryQuery())).records) == 3
        assert len(await journal.follow(0, 10)) == 3
        await journal.append([grant(21)])
        await journal.close()

    asyncio.run(live())
    disk.unplug()
    assert disk.unheard == []
    assert watcher.on_their_way == {}
    expected = {
        "append",
        "archive",
        "drop",
        "open",
        "close",
        "write the mark",
        "lay the reserve",
        "give up the reserve",
    }
    assert expected <= watcher.entered, watcher.entered


def test_watch_ignores_slow_checks(tmp_path: Path) -> None:
    """A look at every page of a large journal may take minutes: nobody may take that for a disk that hangs."""
    watcher = Watcher()

    async def live() -> None:
        journal = SqliteJournal(tmp_path / "data", watch=watcher)
        await journal.open()
        await journal.close()

    asyncio.run(live())
    assert not any(what.startswith("check_") for what in watcher.entered)
