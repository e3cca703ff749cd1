"""Files that must be ours: what is opened, what is refused, and how a file is put in its place."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.journal.sqlite.journal import check_files
from holdfast.privatefiles import WRITE_FOR_OTHERS, NotOursError, check_folder, open_ours, read_ours, replace

SIZE_MAX = 100
NOBODY = 65_534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away, and be another user")


@contextlib.contextmanager
def being(user: int) -> Iterator[None]:
    """Be another user for a while."""
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can enter: those that pytest makes are its own user's alone."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "file"
    file.write_bytes(b"ours")
    file.chmod(0o600)
    return file


def problem_of(file: Path, *, closed: int = 0o077, root_shares: bool = False) -> str:
    with pytest.raises(NotOursError) as caught:
        read_ours(file, SIZE_MAX, closed=closed, root_shares=root_shares)
    assert str(caught.value) == f"{file} {caught.value.problem}"
    return caught.value.problem


def test_file_of_ours_is_read(file: Path) -> None:
    """A private file of ours is read up to its bound, and one byte more, so that the reader knows."""
    assert read_ours(file, SIZE_MAX) == b"ours"
    assert read_ours(file, 4) == b"ours"
    assert read_ours(file, 2) == b"our"
    with pytest.raises(FileNotFoundError):
        read_ours(file.with_name("nowhere"), SIZE_MAX)


@pytest.mark.parametrize("bits", [0o640, 0o620, 0o610, 0o604, 0o602, 0o601])
def test_any_bit_for_others_is_too_much(file: Path, bits: int) -> None:
    """A file that group or others may use in any way is refused, with the command that helps."""
    file.chmod(bits)
    assert problem_of(file) == f"is open to other users (mode {bits:04o}); run: chmod 600 '{file}'"
    if not bits & WRITE_FOR_OTHERS:
        assert read_ours(file, SIZE_MAX, closed=WRITE_FOR_OTHERS) == b"ours"


def test_links_are_not_followed(file: Path) -> None:
    """A link is refused, also one to a good file and one to nothing; a link on the way to a file is followed."""
    link = file.with_name("link")
    link.symlink_to(file)
    assert problem_of(link).startswith("is a link")
    assert "Kubernetes" not in problem_of(link, root_shares=True)
    link.unlink()
    link.symlink_to("..data/link")
    assert "(in a mounted secret of Kubernetes: ..data/link)" in problem_of(link)
    link.unlink()
    link.symlink_to("nowhere")
    assert problem_of(link).startswith("is a link")
    with pytest.raises(NotOursError, match="is a link"):
        open_ours(link, os.O_WRONLY | os.O_CREAT)
    assert not file.with_name("nowhere").exists()
    folder = file.with_name("..data")
    folder.symlink_to(file.parent)
    assert read_ours(folder / "file", SIZE_MAX) == b"ours"


def test_special_files_are_refused(file: Path) -> None:
    """A folder, a device, and a pipe that nobody writes to, are refused and not waited for."""
    pipe = file.with_name("pipe")
    os.mkfifo(pipe, 0o600)
    for other in (file.parent, Path("/dev/zero"), pipe):
        assert problem_of(other) == "is not a regular file"


def test_file_of_another_user_is_refused(file: Path, foreign: Callable[[Path], Path]) -> None:
    """Another user's file is refused, however private it is: that user can change it."""
    foreign(file)
    assert problem_of(file).startswith(f"belongs to user {file.stat().st_uid} and not to user {os.geteuid()}")


@needs_root
def test_root_is_not_advised_to_take_files(folder: Path) -> None:
    """In a folder of another user root is told to be that user; in its own it is told to take what came there."""
    theirs, file = folder / "theirs", folder / "theirs" / "file"
    theirs.mkdir()
    for path in (file, folder / "alone"):
        path.touch(0o600)
        os.chown(path, NOBODY, -1)
    os.chown(theirs, NOBODY, -1)
    said = f"belongs to user {NOBODY} (nobody) and not to user 0 (root), who would use it; "
    assert problem_of(file) == f"{said}run this as user nobody (runuser -u nobody -- COMMAND)"
    with pytest.raises(NotOursError, match=r"; run this as user nobody \(runuser -u nobody -- COMMAND\)"):
        check_folder(theirs)
    assert problem_of(folder / "alone") == f"{said}run: chown 0 '{folder / 'alone'}'"
    os.chown(theirs, 4_242, -1)
    os.chown(file, 4_242, -1)
    assert problem_of(file).endswith("; run this as user 4242")
    theirs.chmod(0o755)
    with being(NOBODY):
        assert problem_of(file).endswith(f"; run this as user 4242, or let root run: chown {NOBODY} '{file}'")
        with pytest.raises(NotOursError, match=f"or let root run: chown -R {NOBODY} '{theirs}'"):
            check_folder(theirs)


@needs_root
def test_files_of_root_have_a_next_step(folder: Path) -> None:
    """A file that root took is refused with the command that gives it back, the journal's own files too."""
    os.chown(folder, NOBODY, -1)
    for name in ("file", "journal.sqlite3"):
        (folder / name).touch(0o600)
    with being(NOBODY):
        said = f"is root's, and user {NOBODY} (nobody) may not use it; let root run: chown {NOBODY} '{folder / 'file'}'"
        assert problem_of(folder / "file") == said
        shared = problem_of(folder / "file", root_shares=True)
        assert shared == f"{said}, or give it mode 0440 and a group of that user's"
        with pytest.raises(NotOursError, match=f"let root run: chown {NOBODY} '{folder / 'journal.sqlite3'}'"):
            check_files(folder)
        with pytest.raises(FileNotFoundError):
            read_ours(folder / "nowhere", SIZE_MAX)
    folder.chmod(0o700)
    os.chown(folder, 0, -1)
    with being(NOBODY), pytest.raises(PermissionError):
        read_ours(folder / "file", SIZE_MAX)


@needs_root
def test_root_may_share_with_a_group(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where root may share, a group may read what is root's and not ours; nobody may write, and others not read."""
    file.chmod(0o440)
    assert problem_of(file, root_shares=True).startswith("is open to other users"), "root can keep it to itself"
    monkeypatch.setattr(os, "geteuid", lambda: 4_242)
    assert read_ours(file, SIZE_MAX, root_shares=True) == b"ours"
    assert "let root give it mode 0440" in problem_of(file)
    for bits in (0o460, 0o444, 0o442):
        file.chmod(bits)
        assert "let root give it mode 0440" in problem_of(file, root_shares=True)


def test_hard_link_is_another_name(file: Path) -> None:
    """What must have one name is refused if it is the same file as another."""
    os.close(open_ours(file, one_name=True))
    file.with_name("other").hardlink_to(file)
    with pytest.raises(NotOursError, match="has 2 names"):
        open_ours(file, one_name=True)


def test_created_files_are_private(tmp_path: Path) -> None:
    """A file that is made here is private from its first byte on, whatever the umask says."""
    before = os.umask(0)
    try:
        os.close(open_ours(tmp_path / "made", os.O_WRONLY | os.O_CREAT))
        replace(tmp_path / "put", b"content")
    finally:
        os.umask(before)
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("made", "put")} == {0o600}


def test_putting_a_file_follows_no_link(file: Path) -> None:
    """A link in the place of the new file is replaced, and what it leads to stays; nothing unfinished is left."""
    link = file.with_name("link")
    link.symlink_to(file)
    replace(link, b"new")
    assert (link.is_symlink(), link.read_bytes(), file.read_bytes()) == (False, b"new", b"ours")
    blocked = file.with_name("blocked")
    blocked.mkdir()
    with pytest.raises(OSError, match="directory"):
        replace(blocked, b"new")
    assert sorted(path.name for path in file.parent.iterdir()) == ["blocked", "file", "link"]


def test_folder_writable_by_others_is_refused(tmp_path: Path, foreign: Callable[[Path], Path]) -> None:
    """A directory that group or others may write to is refused, a sticky one too; reading in it is no harm."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for bits in (0o700, 0o755):
        folder.chmod(bits)
        check_folder(folder)
    for bits in (0o770, 0o707, 0o1777):
        folder.chmod(bits)
        with pytest.raises(NotOursError, match=f"chmod go-w '{folder}'"):
            check_folder(folder)
    folder.chmod(0o700)
    link = tmp_path / "link"
    link.symlink_to(folder)
    check_folder(link)
    foreign(folder)
    with pytest.raises(NotOursError, match="belongs to user"):
        check_folder(folder)
