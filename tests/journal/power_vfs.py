"""A disk in memory that forgets what was not synced, and fails when it is told to. SQLite runs on it unchanged.

Every file has two contents: what programs see, and what would be there after the power was cut. A sync makes them
equal. `cut` gives the disk that a power cut at this instant could leave: none of what was not synced, the first part of
it in the order it was written, or any part of it, by sectors of 512 bytes, one of which may hold noise. A file that was
made or removed is so for certain once its directory was synced, as SQLite does with the first sync of a new journal.
"""

# ruff: noqa: N802 — SQLite's own names.

import random
from collections.abc import Callable
from itertools import count
from typing import Any

import apsw

SECTOR = 512
CHECKPOINT_PAGES = 40
"""Checkpoints come often, so that cuts and errors fall into them."""
MODES = ("none", "first", "some", "noise")

Part = tuple[int, str, int, bytes | None]

_numbers = count()


class Image:
    """The contents of one file."""

    def __init__(self, content: bytes = b"") -> None:
        self.view = bytearray(content)
        self.durable = bytearray(content)
        self.pending: list[tuple[int, int, bytes | None]] = []
        """What was not synced: when, where, and the bytes; None cuts the file there."""

    def copy(self) -> "Image":
        other = Image()
        other.view, other.durable, other.pending = self.view[:], self.durable[:], self.pending[:]
        return other

    def sync(self) -> None:
        for _, offset, data in self.pending:
            _apply(self.durable, offset, data)
        self.pending.clear()


class Disk:
    """Files by name. `connect` is what a journal is given; the hooks are called before each sync and each write."""

    def __init__(self, files: dict[str, Image] | None = None, *, overwrites_safely: bool = True) -> None:
        self.files = files or {}
        self.durable_files = dict(self.files)
        self.mark: bytes | None = None
        """What the directory knows of its journal: never written in part, and there as soon as it was written."""
        self.overwrites_safely = overwrites_safely
        """Whether bytes beside those being written are safe in a power cut, as SQLite assumes by default."""
        self.before_sync: Callable[[str], None]
        self.before_write: Callable[[str, int, bytes | None], None]
        self.heal()
        self._clock = 0
        self._vfs: _MemoryVfs | None = None

    def connect(self, path: str, kind: type[apsw.Connection] = apsw.Connection) -> apsw.Connection:
        """Open a database on this disk."""
        if self._vfs is None:
            self._vfs = _MemoryVfs(self)
        return kind(path, vfs=self._vfs.name)

    def heal(self) -> None:
        """Call no hook any more."""
        self.before_sync = lambda _: None
        self.before_write = lambda _, __, ___: None

    def unplug(self) -> None:
        """Forget the file system, once nothing is open on it."""
        if self._vfs is not None:
            self._vfs.unregister()
            self._vfs = None

    def cut(self, chance: random.Random, mode: str) -> "Disk":
        """Return what is left after the power was cut now."""
        pending = sorted(
            (when, name, offset, data)
            for name, image in self.files.items()
            for when, offset, data in _sectors(image.pending)
        )
        surviving = _surviving(pending, chance, mode)
        images = {name: Image(bytes(image.durable)) for name, image in self.files.items()}
        for _, name, offset, data in surviving:
            _apply(images[name].durable, offset, data)
        if mode == "noise" and pending:
            _, name, offset, data = chance.choice(pending)
            if data is not None:
                _apply(images[name].durable, *self._noise(chance, offset, data))
        files: dict[str, Image] = {}
        for name in {*self.files, *self.durable_files}:
            choices = [names for names in (self.files, self.durable_files) if name in names]
            is_certain = len(choices) == 2 and self.files[name] is self.durable_files[name]
            is_new = is_certain or (mode != "none" and chance.random() < 0.5)
            if is_new and name in self.files:
                files[name] = Image(bytes(images[name].durable))
            elif not is_new and name in self.durable_files:
                files[name] = Image(bytes(self.durable_files[name].durable))
        left = Disk(files, overwrites_safely=self.overwrites_safely)
        left.mark = self.mark
        return left

    def crash(self) -> "Disk":
        """Return what the next process finds after this one died: all that was written, synced or not."""
        copies = {id(image): image.copy() for image in (*self.files.values(), *self.durable_files.values())}
        other = Disk({name: copies[id(image)] for name, image in self.files.items()})
        other.durable_files = {name: copies[id(image)] for name, image in self.durable_files.items()}
        other.overwrites_safely, other._clock, other.mark = self.overwrites_safely, self._clock, self.mark
        return other

    def write(self, name: str, image: Image, offset: int, data: bytes | None) -> None:
        self.before_write(name, offset, data)
        self.write_unseen(image, offset, data)

    def write_unseen(self, image: Image, offset: int, data: bytes | None) -> None:
        """Write without telling the hook."""
        self._clock += 1
        _apply(image.view, offset, data)
        image.pending.append((self._clock, offset, data))

    def sync(self, name: str, image: Image) -> None:
        self.before_sync(name)
        image.sync()
        if self.durable_files.get(name) is not image and not name.endswith(".sqlite3"):
            self.sync_directory()

    def sync_directory(self) -> None:
        self.durable_files = dict(self.files)

    def _noise(self, chance: random.Random, offset: int, data: bytes) -> tuple[int, bytes]:
        if self.overwrites_safely:
            return offset, chance.randbytes(len(data))
        return offset - offset % SECTOR, chance.randbytes(SECTOR)


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _sectors(pending: list[tuple[int, int, bytes | None]]) -> list[tuple[int, int, bytes | None]]:
    parts: list[tuple[int, int, bytes | None]] = []
    for when, offset, data in pending:
        if data is None:
            parts.append((when, offset, None))
            continue
        start = 0
        while start < len(data):
            end = min(len(data), start + SECTOR - (offset + start) % SECTOR)
            parts.append((when, offset + start, data[start:end]))
            start = end
    return parts


def _surviving(pending: list[Part], chance: random.Random, mode: str) -> list[Part]:
    match mode:
        case "none":
            return []
        case "first":
            return pending[: chance.randrange(len(pending) + 1)]
        case _:
            share = chance.random()
            return [part for part in pending if chance.random() < share]


class _MemoryVfs(apsw.VFS):
    def __init__(self, disk: Disk) -> None:
        self.name = f"holdfast-memory-{next(_numbers)}"
        self._disk = disk
        super().__init__(self.name, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> "_MemoryFile":  # type: ignore[override] # apsw asks for the methods only
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        flags[1] = flags[0]
        if path is None:
            return _MemoryFile(Disk(), "", Image())
        return _MemoryFile(self._disk, path, self._disk.files.setdefault(path, Image()))

    def xAccess(self, path: str, flags: int) -> bool:
        return path in self._disk.files

    def xDelete(self, path: str, sync_directory: bool) -> None:
        if self._disk.files.pop(path, None) is None:
            error: Any = apsw.IOError()  # Its codes may be set, which the stubs do not know.
            error.extendedresult = apsw.SQLITE_IOERR_DELETE_NOENT
            raise error
        if sync_directory:
            self._disk.sync_directory()

    def xFullPathname(self, name: str) -> str:
        return name


class _MemoryFile:
    def __init__(self, disk: Disk, name: str, image: Image) -> None:
        self._disk, self._name, self._image = disk, name, image

    def xRead(self, amount: int, offset: int) -> bytes:
        return bytes(self._image.view[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.write(self._name, self._image, offset, bytes(data))

    def xTruncate(self, size: int) -> None:
        self._disk.write(self._name, self._image, size, None)

    def xSync(self, flags: int) -> None:
        self._disk.sync(self._name, self._image)

    def xFileSize(self) -> int:
        return len(self._image.view)

    def xSectorSize(self) -> int:
        return SECTOR

    def xDeviceCharacteristics(self) -> int:
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE if self._disk.overwrites_safely else 0

    def xFileControl(self, operation: int, pointer: int) -> bool:
        return False

    def xLock(self, level: int) -> None: ...

    def xUnlock(self, level: int) -> None: ...

    def xCheckReservedLock(self) -> bool:
        return False

    def xClose(self) -> None: ...
