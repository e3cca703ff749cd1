"""A project and a home directory of their own, and the real command in them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.cli import main

Run = Callable[..., subprocess.CompletedProcess[str]]
Tree = dict[str, tuple[int, bytes]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that is the working directory, beside an empty home directory."""
    for name in (
        "CLAUDE_CONFIG_DIR",
        "CODEX_HOME",
        "XDG_CONFIG_HOME",
        "GEMINI_CLI_TRUST_WORKSPACE",
        "GEMINI_CLI_TRUSTED_FOLDERS_PATH",
    ):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


@pytest.fixture
def home(project: Path) -> Path:
    """That home directory."""
    return Path(os.environ["HOME"])


@pytest.fixture
def skill(project: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs `holdfast skill …` there."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        capfd.readouterr()
        code = main.run(["skill", *words])
        shown = capfd.readouterr()
        return subprocess.CompletedProcess(words, code, shown.out, shown.err)

    return run


def tree_of(folder: Path) -> Tree:
    """Every file and folder below a folder, with modes and contents."""
    found = {}
    for path in sorted(folder.rglob("*")):
        content = b"" if path.is_dir() else str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        found[str(path.relative_to(folder))] = (path.lstat().st_mode, content)
    return found
