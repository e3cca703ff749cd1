"""Files of others that we add something to: read as a whole, replaced as a whole, or left alone with the reason.

A file is changed only if it is a plain file of this user that may be written and has one name. A link is followed, so
that it stays one. A new file with the mode and owner of the old one takes its place in one step, unless that was
changed since it was read: a crash leaves the old one or the new one.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

SIZE_BYTES_MAX = 16 * 1024 * 1024
"""Hosts keep more than settings in these files, but not more than this."""
ROOT_USER = 0


class LeftAlone(Exception):
    """A file that was not changed; the message is the reason, and what to do."""


@dataclass(frozen=True, slots=True)
class Found:
    """What is at a place: its bytes, or None if there is nothing, and the file itself if a link leads to it.

    The `obstacle` is the reason why it may be read and not changed, if there is one.
    """

    path: Path
    target: Path
    content: bytes | None
    obstacle: str = ""


def look(path: Path, within: Path | None = None) -> Found:
    """Read what is at a path. Raises `LeftAlone` for what cannot be read, or must not be followed.

    `within`: links must not lead out of this folder.
    """
    try:
        target = path.resolve(strict=path.is_symlink())
    except (OSError, RuntimeError):
        raise LeftAlone("it is a link that leads nowhere; remove it, or make the file that it names") from None
    if within is not None and not target.is_relative_to(within.resolve()):
        raise LeftAlone(f"a link leads out of the project, to {target}; change that file yourself")
    try:
        # Without waiting: what lies there may be a pipe that nobody writes to.
        descriptor = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        return Found(path, target, None)
    except OSError as error:
        raise LeftAlone(f"it cannot be read: {error.strerror}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise LeftAlone("it is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(SIZE_BYTES_MAX + 1)
    if len(content) > SIZE_BYTES_MAX:
        raise LeftAlone(f"it is larger than {SIZE_BYTES_MAX // 1024 // 1024} MiB")
    return Found(path, target, content, _obstacle(status))


def _obstacle(status: os.stat_result) -> str:
    if os.geteuid() not in {status.st_uid, ROOT_USER}:
        return f"it belongs to another user ({status.st_uid})"
    if not status.st_mode & stat.S_IWUSR:
        return "it is read-only; if you mean it, run `chmod u+w` on it and try again"
    if status.st_nlink > 1:
        return f"it has {status.st_nlink} names (hard links), and the others would keep the old content"
    return ""


def put(found: Found, content: bytes | None) -> None:
    """Put these bytes in the place of what was found; None removes the file. Raises `LeftAlone`."""
    if found.obstacle:
        raise LeftAlone(found.obstacle)
    try:
        if content is None:
            _unchanged(found)
            found.target.unlink()
        else:
            found.target.parent.mkdir(parents=True, exist_ok=True)
            _replace(found, content)
    except OSError as error:
        raise LeftAlone(f"it cannot be written: {error.strerror}") from None


def tidy(folder: Path, base: Path) -> None:
    """Remove a folder and those above it, as long as they are empty and below the base."""
    while folder != base and folder.is_relative_to(base):
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def _replace(found: Found, content: bytes) -> None:
    target = found.target
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    unfinished = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            _dress(file.fileno(), target if found.content is not None else None)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _unchanged(found)
        unfinished.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def _dress(descriptor: int, like: Path | None) -> None:
    """Give a new file the owner and the mode of the old one; without one, those that any new file gets."""
    if like is None:
        mask = os.umask(0o077)
        os.umask(mask)
        os.fchmod(descriptor, 0o666 & ~mask)
        return
    old = like.stat()
    if (old.st_uid, old.st_gid) != (os.geteuid(), os.fstat(descriptor).st_gid):
        os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


def _unchanged(found: Found) -> None:
    now = found.target.read_bytes() if found.target.exists() else None
    if now != found.content:
        raise LeftAlone("somebody changed it in the meantime; run the command again")
