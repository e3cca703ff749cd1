"""Files that must be ours: opened without following a link, then looked at through what was opened. A leaf.

A file that is looked at first and opened afterwards can be another one by then. So it is opened, and the descriptor is
asked: a regular file, of this user or of root, and closed to everybody else. What is written is written beside its
place, for this user alone from the first byte on, and put there as a whole: a link that somebody left there is
replaced and never followed, and a crash leaves the old file or the new one.

Reading imports next to nothing, because programs that must start at once read such files too; writing imports more.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

ROOT = 0
FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO
WRITE_FOR_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class NotOursError(Exception):
    """A file that others could have made, read or changed. The text says what is wrong with it and what to do."""

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(f"{path} {problem}")
        self.problem = problem


def reason_of(error: Exception) -> str:
    """Say why something failed in the system's own words, without what Python writes around them."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def open_ours(
    path: Path | str,
    flags: int = os.O_RDONLY,
    *,
    closed: int = FOR_OTHERS,
    root_shares: bool = False,
    one_name: bool = False,
) -> int:
    """Open a regular file of ours and return its descriptor; what `flags` may create is made private.

    `closed` are the bits of its mode that must not be set. With `root_shares` a group may read what root owns: root has
    no other way to hand a file to a user without giving it away. `one_name`: it may have no hard link beside.

    Raises `NotOursError`, and `OSError` for what cannot be opened at all.
    """
    try:
        # Without waiting: what lies there may be a pipe that nobody writes to.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, 0o600)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EMLINK}:
            raise _is_link(path) from None
        raise
    try:
        found = os.fstat(descriptor)
        if root_shares and found.st_uid == ROOT != os.geteuid():
            closed &= ~stat.S_IRGRP
        check_file(path, found, closed=closed, one_name=one_name)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_file(path: Path | str, found: os.stat_result, *, closed: int = FOR_OTHERS, one_name: bool = False) -> None:
    """Raise `NotOursError` unless this is a regular file of ours or of root, closed to all others."""
    if stat.S_ISLNK(found.st_mode):
        raise _is_link(path)
    if not stat.S_ISREG(found.st_mode):
        raise NotOursError(path, "is not a regular file")
    _check_owner(path, found)
    if found.st_mode & closed:
        do = f"run: chmod 600 '{path}'"
        if os.geteuid() not in {ROOT, found.st_uid}:
            do = "it is root's: let root give it mode 0440 and a group of yours, or give you a copy"
        raise NotOursError(path, f"is open to other users (mode {stat.S_IMODE(found.st_mode):04o}); {do}")
    if one_name and found.st_nlink != 1:
        raise NotOursError(path, f"has {found.st_nlink} names: it is the same file as another; remove this one")


def check_folder(path: Path | str) -> None:
    """Raise `NotOursError` for a directory that is not ours, or in which others can put files in the place of ours."""
    # The way to it may have links: systemd's own state directories do.
    found = os.stat(path)  # noqa: PTH116 - pathlib is heavy
    if not stat.S_ISDIR(found.st_mode):
        raise NotOursError(path, "is not a directory")
    _check_owner(path, found)
    if found.st_mode & WRITE_FOR_OTHERS:
        do = f"run: chmod go-w '{path}'"
        if os.geteuid() not in {ROOT, found.st_uid}:
            do = f"it is root's: use a directory of your own, as '{path}/data'"
        raise NotOursError(path, f"lets other users put files into it (mode {stat.S_IMODE(found.st_mode):04o}); {do}")


def check_may_use(path: Path | str, found: os.stat_result) -> None:
    """Raise `NotOursError` for a file of root's that we may not read and write. All others' are refused anyway."""
    effective = os.access in os.supports_effective_ids
    if found.st_uid == ROOT != os.geteuid() and not os.access(path, os.R_OK | os.W_OK, effective_ids=effective):
        raise _owned_by_root(path, root_shares=False)


def user_named(number: int) -> str:
    """Return what a user is called, for texts: by number and, if there is one, by name."""
    name = _name_of(number)
    return str(number) if name is None else f"{number} ({name})"


def how_to_be(number: int) -> str:
    """Return what to do to be another user: the command where there is a name for it."""
    name = _name_of(number)
    if name is None:
        return f"run this as user {number}"
    return f"run this as user {name}" + (f" (runuser -u {name} -- COMMAND)" if os.geteuid() == ROOT else "")


def _name_of(number: int) -> str | None:
    import pwd  # noqa: PLC0415 - not on Windows, where the client imports this module too

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return None


def _check_owner(path: Path | str, found: os.stat_result) -> None:
    """Raise `NotOursError` for what is another user's.

    Root is told to be that user, and not to take the file: a server of that user could not use it any more. But what
    lies alone in a folder of root's, or of ours, only came there with the wrong owner.
    """
    us = os.geteuid()
    if found.st_uid in {us, ROOT}:
        return
    is_folder = stat.S_ISDIR(found.st_mode)
    take = f"chown {'-R ' if is_folder else ''}{us} '{path}'"
    beside = os.path.dirname(path) or "."  # noqa: PTH120 - pathlib is heavy
    if not is_folder and os.stat(beside).st_uid != found.st_uid:  # noqa: PTH116 - the same
        do = f"run: {take}" if us == ROOT else f"let root run: {take}"
    elif us == ROOT:
        do = how_to_be(found.st_uid)
    else:
        do = f"{how_to_be(found.st_uid)}, or let root run: {take}"
    text = f"belongs to user {user_named(found.st_uid)} and not to user {user_named(us)}, who would use it; {do}"
    raise NotOursError(path, text)


def read_ours(path: Path | str, size_bytes_max: int, *, closed: int = FOR_OTHERS, root_shares: bool = False) -> bytes:
    """Return what a file of ours holds, or its first bytes and one more if it is too long. Raises as `open_ours`.

    What another user keeps closed to us raises `NotOursError` too, with what to do.
    """
    try:
        descriptor = open_ours(path, closed=closed, root_shares=root_shares)
    except PermissionError:
        found = os.lstat(path)  # Raises the same again if it is a folder on the way that we may not enter.
        _check_owner(path, found)
        if found.st_uid == ROOT:
            raise _owned_by_root(path, root_shares=root_shares) from None
        raise
    with os.fdopen(descriptor, "rb") as file:
        return file.read(size_bytes_max + 1)


def _owned_by_root(path: Path | str, *, root_shares: bool) -> NotOursError:
    user = os.geteuid()
    do = f"chown {user} '{path}'"
    if root_shares:
        do += ", or give it mode 0440 and a group of that user's"
    return NotOursError(path, f"is root's, and user {user_named(user)} may not use it; let root run: {do}")


def replace(path: Path, content: bytes) -> None:
    """Put a file there as a whole, readable by its user alone from its first byte on (`mkstemp` makes it so).

    A power cut can take the new one away and leave the old one, until `sync_folder`.
    """
    with replacing(path) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write to, which is put there as a whole at the end; as `replace` does. If it raises, none is."""
    import tempfile  # noqa: PLC0415 - heavy, and only writing needs it

    descriptor, unfinished = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)  # noqa: PTH105 - pathlib is heavy
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)  # noqa: PTH108 - pathlib is heavy
        raise


def make_folder(directory: Path) -> None:
    """Make the directory, and make it last: one whose entry was not synced is gone after a power cut with all in it."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        wrong = next(path for path in (directory, *directory.parents) if path.exists() or path.is_symlink())
        raise NotOursError(wrong, "is not a directory; name one, or a path where it can be made") from None
    for path in missing:
        sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Make what is in a file last."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


sync_folder = sync_file  # Makes the names in it last: one that was not synced is gone after a power cut.


def _is_link(path: Path | str) -> NotOursError:
    with contextlib.suppress(OSError):
        target = os.readlink(path)  # noqa: PTH115 - pathlib is heavy
        if target.startswith("..data/"):
            return NotOursError(path, _LINK.format(f" (in a mounted secret of Kubernetes: {target})"))
    return NotOursError(path, _LINK.format(""))


_LINK = "is a link, and those are not followed here: name the file itself{}, or put a copy in its place"
