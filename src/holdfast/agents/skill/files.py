"""Edit files that others own: read whole and replaced atomically, or left alone with a reason.

Only a regular, writable file of this user without further hard links is changed. Links are followed and kept. The new
file has the old one's mode and owner, and replaces it only if that is unchanged since it was read.

Files that are installed whole carry a digest of their other text, which identifies unmodified copies of every version.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

SIZE_BYTES_MAX = 16 * 1024 * 1024  # Hosts also keep other data in these files.
ROOT_USER = 0


class FileSkipped(Exception):
    """A file was not changed; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class FileState:
    path: Path
    target: Path  # `path`, with links resolved.
    content: bytes | None  # None: there is no file.
    obstacle: str = ""  # Why it may be read and not changed.


def read_file(path: Path, within: Path | None = None) -> FileState:
    """Read a file. Raises `FileSkipped` if it is unreadable, or a link out of the folder `within`."""
    try:
        target = path.resolve(strict=path.is_symlink())
    except (OSError, RuntimeError):
        raise FileSkipped("it is a link that leads nowhere; remove it, or make the file that it names") from None
    if within is not None and not target.is_relative_to(within.resolve()):
        raise FileSkipped(f"a link leads out of the project, to {target}; change that file yourself")
    try:
        # Non-blocking: it may be a pipe without a writer.
        descriptor = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        return FileState(path, target, None)
    except OSError as error:
        raise FileSkipped(f"it cannot be read: {error.strerror}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise FileSkipped("it is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(SIZE_BYTES_MAX + 1)
    if len(content) > SIZE_BYTES_MAX:
        raise FileSkipped(f"it is larger than {SIZE_BYTES_MAX // 1024 // 1024} MiB")
    return FileState(path, target, content, _obstacle(status))


def _obstacle(status: os.stat_result) -> str:
    if os.geteuid() not in {status.st_uid, ROOT_USER}:
        return f"it belongs to another user ({status.st_uid})"
    if not status.st_mode & stat.S_IWUSR:
        return "it is read-only; if you mean it, run `chmod u+w` on it and try again"
    if status.st_nlink > 1:
        return f"it has {status.st_nlink} names (hard links), and the others would keep the old content"
    return ""


def write_file(found: FileState, content: bytes | None) -> None:
    """Replace a file, or remove it if `content` is None. Raises `FileSkipped`."""
    if found.obstacle:
        raise FileSkipped(found.obstacle)
    try:
        if content is None:
            _check_unchanged(found)
            found.target.unlink()
        else:
            found.target.parent.mkdir(parents=True, exist_ok=True)
            _replace(found, content)
    except OSError as error:
        raise FileSkipped(f"it cannot be written: {error.strerror}") from None


def remove_empty_folders(folder: Path, base: Path) -> None:
    """Remove a folder and its parents while they are empty and below `base`."""
    while folder != base and folder.is_relative_to(base):
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def _replace(found: FileState, content: bytes) -> None:
    target = found.target
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    unfinished = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            _copy_owner_and_mode(file.fileno(), target if found.content is not None else None)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _check_unchanged(found)
        unfinished.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def _copy_owner_and_mode(descriptor: int, like: Path | None) -> None:
    """Give a new file the old one's owner and mode, or the default mode if there was none."""
    if like is None:
        mask = os.umask(0o077)
        os.umask(mask)
        os.fchmod(descriptor, 0o666 & ~mask)
        return
    old = like.stat()
    if (old.st_uid, old.st_gid) != (os.geteuid(), os.fstat(descriptor).st_gid):
        os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


def _check_unchanged(found: FileState) -> None:
    now = found.target.read_bytes() if found.target.exists() else None
    if now != found.content:
        raise FileSkipped("somebody changed it in the meantime; run the command again")


FILE = Path(__file__).with_name("holdfast") / "SKILL.md"
PLUGIN = Path(__file__).with_name("opencode.js")
_DIGEST = re.compile(r'^(  digest: ")([0-9a-f]*)("$)', re.MULTILINE)


def text(file: Path = FILE) -> str:
    return file.read_text(encoding="utf-8")


def digest_of(document: str) -> str:
    """Return the digest for a copy, with line ends normalised because git may change them."""
    plain = _DIGEST.sub(r"\1\3", document.replace("\r\n", "\n"))
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


def is_unchanged(document: str) -> bool:
    found = _DIGEST.findall(document.replace("\r\n", "\n"))
    return len(found) == 1 and found[0][1] == digest_of(document)
