"""A fence in a file of its own, locked with flock from the check to the end of the write.

The order on disk is the promise: the raised fence is durable before anything of the new owner is written, and the data
replaces the old data whole. After a crash in between, the old data is there and the fence is up; the same owner, or a
newer one, writes again.

flock holds among the processes and threads of one machine, on a local file system. The lock is let go by the kernel
when its holder dies. A fence file is never removed: somebody may be waiting for it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from holdfast.errors import CannotFence
from holdfast.fencing._token import TOKEN_MAX, checked_resource, checked_token, stale

_DIGITS_MAX = 16
_DIGITS = re.compile(rb"[0-9]{16}")
_POLL_SECONDS = 0.01


def fenced_write(path: str | os.PathLike[str], data: bytes, token: int) -> None:
    """Replace the file's content with `data`, or raise `StaleToken` and change nothing."""
    FileFence(path).write(data, token)


class FileFence:
    """The fence of one file, kept beside it in `<path>.fence`. A symbolic link and its target share one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).resolve()
        self._fence = self.path.with_name(f"{self.path.name}.fence")

    def write(self, data: bytes, token: int) -> None:
        """Replace the file's content, or raise `StaleToken` and change nothing."""
        with self.guard(token) as file:
            file.write(data)

    @contextmanager
    def guard(self, token: int) -> Iterator[HeldFile]:
        """Keep every other owner out while the block runs: to read, work and write as one step.

        The block may change the file in its own way, or `write` through what it is given. The fence stays raised
        whatever the block does. The same file cannot be guarded again inside the block: that would wait for itself.
        """
        checked_token(token)
        held = HeldFile(self.path)
        with _opened(self._fence) as fence:
            try:
                fcntl.flock(fence, fcntl.LOCK_EX)
                _raise(fence, self._fence, str(self.path), token)
                yield held
            finally:
                held._is_over = True  # noqa: SLF001 - the two are one


class HeldFile:
    """A file whose fence is held."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_over = False

    def write(self, data: bytes) -> None:
        """Replace the content whole and durably. A symbolic link to the file stays one.

        A file that was there keeps its mode, but no setuid, setgid or sticky bit: it belongs to whoever writes it.
        """
        if self._is_over:
            raise CannotFence(f"{self.path} is no longer guarded: write inside the `with` block")
        new = self.path.with_name(f"{self.path.name}.fence.new")  # One is enough: whoever holds the fence is alone.
        new.unlink(missing_ok=True)  # Of one that died here.
        try:
            _write_durably(new, data, _mode(self.path))
            new.replace(self.path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        _sync_folder(self.path)


class FolderFence:
    """Fences of many resources, one small file each in a folder of their own, for all processes of one machine.

    The fence of a resource is held while the block runs: a newer owner waits until the older one is done, and an older
    one that comes later is refused. They outlive the processes and the machine.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Name the folder. It is made when first needed, in one that is there."""
        self.folder = Path(folder).resolve()

    @contextmanager
    def guard(self, resource: str, token: int) -> Iterator[None]:
        """Raise the fence, or raise `StaleToken`; keep every other owner out while the block runs."""
        path = self._path(resource, token)
        with _opened(path) as fence:
            fcntl.flock(fence, fcntl.LOCK_EX)
            _raise(fence, path, resource, token, folder=self.folder)
            yield

    @asynccontextmanager
    async def guard_async(self, resource: str, token: int) -> AsyncIterator[None]:
        """Do the same in asyncio. It asks again and again: a thread waiting in flock could not be cancelled."""
        path = self._path(resource, token)
        with _opened(path) as fence:
            while not _try_lock(fence):  # noqa: ASYNC110 - other processes set no event of ours
                await asyncio.sleep(_POLL_SECONDS)
            _raise(fence, path, resource, token, folder=self.folder)
            yield

    def _path(self, resource: str, token: int) -> Path:
        checked_token(token)
        name = sha256(checked_resource(resource).encode()).hexdigest()
        self.folder.mkdir(mode=0o700, exist_ok=True)
        return self.folder / f"{name}.fence"


@contextmanager
def _opened(path: Path, flags: int = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW) -> Iterator[int]:
    opened = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield opened
    finally:
        os.close(opened)


def _try_lock(fence: int) -> bool:
    try:
        fcntl.flock(fence, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _raise(fence: int, path: Path, resource: str, token: int, *, folder: Path | None = None) -> None:
    """Compare and raise, under the lock. `folder` is one that we may have made."""
    kept = os.pread(fence, _DIGITS_MAX + 1, 0)
    if not kept:
        # The file may be new: its name has to be as durable as its content, and so has its folder's. Its maker may have
        # died before that was sure. A process that may not open the folder above has not made this one.
        if folder is not None:
            with suppress(PermissionError):
                _sync_folder(folder)
        _sync_folder(path)
    elif not _DIGITS.fullmatch(kept) or int(kept) > TOKEN_MAX:
        raise CannotFence(
            f"{path} does not hold a fencing token: find out why, then write the greatest one in 16 digits"
        )
    elif int(kept) > token:
        raise stale(resource, token, int(kept))
    if os.pwrite(fence, b"%016d" % token, 0) != _DIGITS_MAX:  # Always 16 digits: it is never half of a shorter one.
        if not kept:
            os.ftruncate(fence, 0)  # Nobody has passed yet.
        raise CannotFence(f"{path} could not be written whole: make room on its disk, then try again")
    os.fsync(fence)


def _mode(path: Path) -> int | None:
    """Return who may read, write and run it. Not setuid and its kin: the new content is another's, who may be us."""
    try:
        return stat.S_IMODE(path.stat().st_mode) & 0o777
    except FileNotFoundError:
        return None


def _write_durably(path: Path, data: bytes, mode: int | None) -> None:
    # Created with no more rights than it will have, so that nobody reads what they should not in between.
    new = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if mode is None else mode & 0o600)
    with os.fdopen(new, "wb") as file:
        if mode is not None:
            os.fchmod(new, mode)
        file.write(data)
        file.flush()
        os.fsync(new)


def _sync_folder(path: Path) -> None:
    with _opened(path.parent, os.O_RDONLY | os.O_DIRECTORY) as folder:
        os.fsync(folder)
