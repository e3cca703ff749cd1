"""Supported interpreters: what `make` accepts, and what `make pythons` finds and reports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import pythons
from tests.support.pages import ROOT

CURRENT = "{}.{}.{}".format(*sys.version_info[:3]) + sys.abiflags


def fake_python(folder: Path, prints: str) -> Path:
    """Make a program that answers every question with one text."""
    program = folder / "python3"
    program.write_text(f"#!/bin/sh\necho '{prints}'\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("version", ["2.7", "3.10", "3.14t", "3.15"])
def test_make_rejects_an_unsupported_interpreter_in_one_line(tmp_path: Path, version: str) -> None:
    """Older, newer and free-threaded interpreters are rejected with what to do, before anything is created."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    program = fake_python(tmp_path, version)
    command = ["make", "--silent", ".venv/made", f"PYTHON={program}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    said, *rest = done.stderr.splitlines()
    assert done.returncode != 0 and version in said and "PYTHON=" in said
    assert [line for line in rest if not line.startswith("make")] == []
    assert not (tmp_path / ".venv").exists()


def test_make_passes_over_a_pip_that_fails_on_the_interpreter(tmp_path: Path) -> None:
    """An old pip prints its version under a newer Python and fails at everything else, so another pip installs."""
    for name in ("Makefile", "pyproject.toml", "requirements/run.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    programs = {
        "python": f'test "$2" = pip || exec {sys._base_executable} "$@"; exit 1',  # type: ignore[attr-defined]
        "pip3": 'test "$3" = --version || { echo "pip3 $3" >> calls; exit 1; }',
        "pip": 'echo "pip $3" >> calls',
    }
    for name, script in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    command = ["make", "--silent", ".venv/run.stamp", f"PYTHON={tmp_path / 'python'}"]
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=True)
    assert (tmp_path / "calls").read_text().split("\n")[:-1] == ["pip3 list", "pip list", "pip install", "pip install"]


def test_find_returns_each_supported_version_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Interpreters that were given, pyenv's and those on the PATH are found; unsupported ones are named."""
    pyenv = tmp_path / "pyenv"
    for version in ("3.10.13", "3.12.1"):
        folder = pyenv / "versions" / version / "bin"
        folder.mkdir(parents=True)
        fake_python(folder, f"{version} True")
    on_path = tmp_path / "path"
    on_path.mkdir()
    (on_path / "python3").symlink_to(sys._base_executable)  # type: ignore[attr-defined]
    monkeypatch.setenv("PYENV_ROOT", str(pyenv))
    monkeypatch.setenv("PATH", os.pathsep.join([str(on_path), str(on_path)]))
    found = pythons.find([sys._base_executable])  # type: ignore[attr-defined]
    assert {each.version for each in found} == {"3.12.1", CURRENT}
    assert "3.10.13" in capsys.readouterr().out
    with pytest.raises(FileNotFoundError, match="nowhere"):
        pythons.find(["/nowhere/python3"])


def test_virtual_environment_is_not_an_interpreter_to_test() -> None:
    """An activated environment is on the PATH, and only its base interpreter counts."""
    assert sys.prefix != sys.base_prefix, "tests run in .venv"
    assert pythons.ask(Path(sys.executable)) is None


@pytest.mark.parametrize(
    ("output", "code", "shown"),
    [
        ("..... [100%]\n==== 5 passed, 2 skipped in 1.20s ====\n", 0, ["ok", "5", "0", "2"]),
        ("FAILED tests/a.py\n= 1 failed, 4 passed, 1 error in 61.20s (0:01:01) =\n", 2, ["exit", "2", "4", "2", "0"]),
        ("Installing requirements/dev.txt into .venv …\n", 0, ["exit", "1", "0", "0", "0"]),
    ],
    ids=["passed", "failed", "no test ran"],
)
def test_run_reports_the_outcome_of_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, code: int, shown: list[str]
) -> None:
    """The counts are those of pytest's summary; a run without tests has failed."""

    def clone(interpreter: pythons.Interpreter) -> None:
        interpreter.clone.mkdir()
        (interpreter.clone / "output").write_text(output)
        (interpreter.clone / "Makefile").write_text(f"test:\n\t@cat output; exit {code}\n")

    monkeypatch.setattr(pythons, "ROOT", tmp_path)
    monkeypatch.setattr(pythons, "FOLDER", tmp_path)
    monkeypatch.setattr(pythons, "clone", clone)
    result = pythons.run_tests(pythons.Interpreter("3.12.1", Path("/usr/bin/python3")), "")
    assert str(result).split()[1 : 1 + len(shown)] == shown
    assert (tmp_path / "3.12.1.log").read_text().startswith(output)
