"""A fence in a file of its own, locked with flock from the check to the end of the write.

The raised fence is durable before anything of the new owner is written, and the data replaces the old data atomically.
After a crash in between, the old data is there and the fence is raised; the same owner, or a newer one, writes again.

flock works between processes and threads of one machine, on a local file system. The kernel releases the lock when its
holder dies. A fence file is never removed: another process may be waiting for it.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from holdfast.errors import CannotFence
from holdfast.fencing._memory import TOKEN_MAX, checked_resource, checked_token, stale

_DIGITS_MAX = 16
_DIGITS = re.compile(rb"[0-9]{16}")
_POLL_SECONDS = 0.01
_FENCE_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # Windows has no such flag, and no fences here.


def fenced_write(path: str | os.PathLike[str], data: bytes, token: int) -> None:
    """Replace the file's content with `data`, or raise `StaleToken` and change nothing."""
    FileFence(path).write(data, token)


class FileFence:
    """The fence of one file, kept next to it in `<path>.fence`. A symbolic link and its target share one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        _check_system()
        self.path = Path(path).resolve()
        self._fence = self.path.with_name(f"{self.path.name}.fence")

    def write(self, data: bytes, token: int) -> None:
        """Replace the file's content, or raise `StaleToken` and change nothing."""
        with self.guard(token) as file:
            file.write(data)

    @contextmanager
    def guard(self, token: int) -> Iterator[HeldFile]:
        """Keep every other owner out while the block runs: to read, work and write as one step.

        The block may change the file in its own way, or call `write` of what it gets. The fence stays raised whatever
        the block does. Guarding the same file again inside the block would deadlock.
        """
        checked_token(token)
        held = HeldFile(self.path)
        with _opened(self._fence) as fence:
            try:
                _lock(fence)
                _raise(fence, self._fence, str(self.path), token)
                yield held
            finally:
                held._is_over = True  # noqa: SLF001 - its counterpart


class HeldFile:
    """A file whose fence is held."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_over = False

    def write(self, data: bytes) -> None:
        """Replace the content atomically and durably. A symbolic link to the file stays one.

        An existing file keeps its mode, but no setuid, setgid or sticky bit: the writer becomes its owner.
        """
        if self._is_over:
            raise CannotFence(f"{self.path} is no longer guarded: write inside the `with` block")
        new = self.path.with_name(f"{self.path.name}.fence.new")  # One name is enough: the fence is exclusive.
        new.unlink(missing_ok=True)  # Left by a writer that died here.
        try:
            _write_durably(new, data, _mode(self.path))
            new.replace(self.path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        _sync_folder(self.path)


class FolderFence:
    """Fences of many resources, one small file each in one folder, for all processes of one machine.

    A fence is held while the block runs: a newer owner waits until the older one is done, and an older owner that comes
    later is refused. Fences survive restarts of processes and machine.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Name the folder. It is created when first needed; its parent must exist."""
        _check_system()
        self.folder = Path(folder).resolve()

    @contextmanager
    def guard(self, resource: str, token: int) -> Iterator[None]:
        """Raise the fence, or raise `StaleToken`; keep every other owner out while the block runs."""
        path = self._path(resource, token)
        with _opened(path) as fence:
            _lock(fence)
            _raise(fence, path, resource, token, folder=self.folder)
            yield

    @asynccontextmanager
    async def guard_async(self, resource: str, token: int) -> AsyncIterator[None]:
        """Do the same in asyncio. It polls, because a thread that waits in flock could not be cancelled."""
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
def _opened(path: Path, flags: int = _FENCE_FLAGS) -> Iterator[int]:
    opened = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield opened
    finally:
        os.close(opened)


def _check_system() -> None:
    """Raise `CannotFence` where files cannot be locked."""
    try:
        import fcntl  # noqa: F401, PLC0415 - not on Windows, where the other fences work
    except ModuleNotFoundError:
        raise CannotFence("this system has no flock, which a fence in a file needs; use SqlFence") from None


def _lock(fence: int) -> None:
    import fcntl  # noqa: PLC0415 - the same

    fcntl.flock(fence, fcntl.LOCK_EX)


def _try_lock(fence: int) -> bool:
    import fcntl  # noqa: PLC0415 - the same

    try:
        fcntl.flock(fence, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _raise(fence: int, path: Path, resource: str, token: int, *, folder: Path | None = None) -> None:
    """Compare and raise, under the lock. `folder` is the one that we may have created."""
    stored = os.pread(fence, _DIGITS_MAX + 1, 0)
    if not stored:
        # The file may be new, and its creator may have died before its name and its folder's name were durable.
        # A process that may not open the parent folder has not created this one.
        if folder is not None:
            with suppress(PermissionError):
                _sync_folder(folder)
        _sync_folder(path)
    elif not _DIGITS.fullmatch(stored) or int(stored) > TOKEN_MAX:
        raise CannotFence(
            f"{path} does not hold a fencing token: find out why, then write the greatest one in 16 digits"
        )
    elif int(stored) > token:
        raise stale(resource, token, int(stored))
    if os.pwrite(fence, b"%016d" % token, 0) != _DIGITS_MAX:  # Always 16 digits: an overwrite never mixes lengths.
        if not stored:
            os.ftruncate(fence, 0)  # No owner has passed yet.
        raise CannotFence(f"{path} could not be written whole: make room on its disk, then try again")
    os.fsync(fence)


def _mode(path: Path) -> int | None:
    """Return the permission bits, without setuid, setgid and sticky: the new content is the writer's."""
    try:
        return stat.S_IMODE(path.stat().st_mode) & 0o777
    except FileNotFoundError:
        return None


def _write_durably(path: Path, data: bytes, mode: int | None) -> None:
    # Created with no more rights than it will have, so that it is never readable by more users in between.
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
