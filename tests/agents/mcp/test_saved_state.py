"""What a process leaves for the next one of its owner: private, of one process at a time, and bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.agents.mcp.saved_state import (
    FILES_MAX,
    LOSSES_MAX,
    SavedState,
    SavedStateError,
    SavedStateFile,
    open_saved_state,
)

URL = "http://127.0.0.1:1"


def _open(folder: Path, owner: str = "ana", url: str = URL) -> SavedStateFile:
    state_file = open_saved_state(url, owner, {"XDG_STATE_HOME": str(folder)})
    assert state_file is not None
    return state_file


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "holdfast" / "mcp").iterdir())


def test_saved_state_has_one_process_at_a_time(tmp_path: Path) -> None:
    """While one has the memory of an owner, another gets none; afterwards it reads what the first left."""
    first = _open(tmp_path)
    assert open_saved_state(URL, "ana", {"XDG_STATE_HOME": str(tmp_path)}) is None
    first.write(SavedState(session="s", jobs=["a", "b"]))
    first.close()
    second = _open(tmp_path)
    assert second.read() == SavedState(session="s", jobs=["a", "b"])
    second.close()


def test_owners_and_servers_have_separate_files(tmp_path: Path) -> None:
    """Another owner, or the same at another server, has another memory, however alike the names are written."""
    memories = [
        _open(tmp_path, owner, url) for owner, url in (("a/b", URL), ("a-b", URL), ("a-b", "http://127.0.0.1:2"))
    ]
    for number, state_file in enumerate(memories):
        state_file.write(SavedState(jobs=[str(number)]))
    assert [state_file.read().jobs for state_file in memories] == [["0"], ["1"], ["2"]]
    for state_file in memories:
        state_file.close()


def test_empty_state_leaves_no_file(tmp_path: Path) -> None:
    """A memory with nothing in it is removed with its lock, and can be had again."""
    state_file = _open(tmp_path)
    state_file.write(SavedState(session="s"))
    state_file.write(SavedState())
    state_file.close()
    assert _files(tmp_path) == []
    _open(tmp_path).close()


def test_files_are_private(tmp_path: Path) -> None:
    """Nobody else can read the folder or a file in it; one that is open to others, or a link, is not used."""
    state_file = _open(tmp_path)
    state_file.write(SavedState(jobs=["a"]))
    folder = tmp_path / "holdfast" / "mcp"
    assert folder.stat().st_mode & 0o777 == 0o700
    for path in folder.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    (saved_file,) = folder.glob("*.json")
    saved_file.chmod(0o644)
    with pytest.raises(SavedStateError, match="open to other users"):
        state_file.read()
    saved_file.unlink()
    saved_file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SavedStateError, match="is a link"):
        state_file.read()
    saved_file.unlink()
    state_file.close()


def test_saved_losses_and_files_are_bounded(tmp_path: Path) -> None:
    """There are at most so many jobs to tell of in one memory, and so many memories; one in use is never removed."""
    state_file = _open(tmp_path, "busy")
    state_file.write(SavedState(lost=[{"job": str(number)} for number in range(LOSSES_MAX + 5)]))
    assert state_file.read().lost[0] == {"job": "5"}
    os.utime(next((tmp_path / "holdfast" / "mcp").glob("busy*.lock")), (0, 0))
    for number in range(FILES_MAX + 5):
        other = _open(tmp_path, f"owner-{number}")
        other.write(SavedState(jobs=["a"]))
        other.close()
    names = _files(tmp_path)
    assert len(names) <= 2 * (FILES_MAX + 2) and any(name.startswith("busy") for name in names)
    state_file.close()


def test_home_is_used_without_a_state_folder(tmp_path: Path) -> None:
    """Without `XDG_STATE_HOME`, or with one that is no whole path, it is below the home of the user."""
    for result in ({}, {"XDG_STATE_HOME": "relative"}):
        state_file = open_saved_state(URL, "ana", {"HOME": str(tmp_path), **result})
        assert state_file is not None
        state_file.write(SavedState(jobs=["a"]))
        state_file.close()
    assert len(_files(tmp_path / ".local" / "state")) == 2
