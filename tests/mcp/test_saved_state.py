"""What a process leaves for the next one of its owner: private, of one process at a time, and bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.mcp.saved_state import FILES_MAX, TOLD_MAX, BadMemoryError, Left, Memory, open_memory

URL = "http://127.0.0.1:1"


def _open(folder: Path, owner: str = "ana", url: str = URL) -> Memory:
    memory = open_memory(url, owner, {"XDG_STATE_HOME": str(folder)})
    assert memory is not None
    return memory


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "holdfast" / "mcp").iterdir())


def test_one_process_has_it_at_a_time(tmp_path: Path) -> None:
    """While one has the memory of an owner, another gets none; afterwards it reads what the first left."""
    first = _open(tmp_path)
    assert open_memory(URL, "ana", {"XDG_STATE_HOME": str(tmp_path)}) is None
    first.write(Left(session="s", jobs=["a", "b"]))
    first.close()
    second = _open(tmp_path)
    assert second.read() == Left(session="s", jobs=["a", "b"])
    second.close()


def test_owners_and_servers_are_kept_apart(tmp_path: Path) -> None:
    """Another owner, or the same at another server, has another memory, however alike the names are written."""
    memories = [
        _open(tmp_path, owner, url) for owner, url in (("a/b", URL), ("a-b", URL), ("a-b", "http://127.0.0.1:2"))
    ]
    for number, memory in enumerate(memories):
        memory.write(Left(jobs=[str(number)]))
    assert [memory.read().jobs for memory in memories] == [["0"], ["1"], ["2"]]
    for memory in memories:
        memory.close()


def test_nothing_to_tell_leaves_nothing(tmp_path: Path) -> None:
    """A memory with nothing in it is removed with its lock, and can be had again."""
    memory = _open(tmp_path)
    memory.write(Left(session="s"))
    memory.write(Left())
    memory.close()
    assert _files(tmp_path) == []
    _open(tmp_path).close()


def test_files_are_private(tmp_path: Path) -> None:
    """Nobody else can read the folder or a file in it; one that is open to others, or a link, is not used."""
    memory = _open(tmp_path)
    memory.write(Left(jobs=["a"]))
    folder = tmp_path / "holdfast" / "mcp"
    assert folder.stat().st_mode & 0o777 == 0o700
    for path in folder.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    (kept,) = folder.glob("*.json")
    kept.chmod(0o644)
    with pytest.raises(BadMemoryError, match="open to other users"):
        memory.read()
    kept.unlink()
    kept.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadMemoryError, match="is a link"):
        memory.read()
    kept.unlink()
    memory.close()


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    """There are at most so many jobs to tell of in one memory, and so many memories; one in use is never removed."""
    memory = _open(tmp_path, "busy")
    memory.write(Left(lost=[{"job": str(number)} for number in range(TOLD_MAX + 5)]))
    assert memory.read().lost[0] == {"job": "5"}
    os.utime(next((tmp_path / "holdfast" / "mcp").glob("busy*.lock")), (0, 0))
    for number in range(FILES_MAX + 5):
        other = _open(tmp_path, f"owner-{number}")
        other.write(Left(jobs=["a"]))
        other.close()
    names = _files(tmp_path)
    assert len(names) <= 2 * (FILES_MAX + 2) and any(name.startswith("busy") for name in names)
    memory.close()


def test_home_is_used_without_a_state_folder(tmp_path: Path) -> None:
    """Without `XDG_STATE_HOME`, or with one that is no whole path, it is below the home of the user."""
    for told in ({}, {"XDG_STATE_HOME": "relative"}):
        memory = open_memory(URL, "ana", {"HOME": str(tmp_path), **told})
        assert memory is not None
        memory.write(Left(jobs=["a"]))
        memory.close()
    assert len(_files(tmp_path / ".local" / "state")) == 2
