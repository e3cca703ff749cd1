"""Ctrl-C in the first moment of a command, while it still imports, ends it with 130 and without a word."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

INTERRUPT = "import os, signal, sys\nos.kill(os.getpid(), signal.SIGINT)\n"
PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def started(folder: Path, more: str = "", *prefix: str) -> tuple[int, str, str]:
    """Run a command in which the first import of others' code is interrupted."""
    (folder / "click.py").write_text(INTERRUPT + more)
    command = [*prefix, sys.executable, "-m", "holdfast", "jobs"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_interrupted_while_it_imports(tmp_path: Path) -> None:
    """No traceback: nothing was begun."""
    assert started(tmp_path) == (130, "", "")


def test_ignored_interrupts_stay_ignored(tmp_path: Path) -> None:
    """A command in the background of a shell script does not hear the Ctrl-C of the terminal."""
    quiet = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
    assert started(tmp_path, "print('goes on', flush=True)\nos._exit(7)\n", *quiet) == (7, "goes on\n", "")


def test_installation_that_cannot_start_is_not_a_held_job(tmp_path: Path) -> None:
    """Python ends with 1 when an import fails, and so does a claim of a held job: here it is 70, and one line."""
    (tmp_path / "click.py").write_text("raise ImportError('broken')")
    command = [sys.executable, "-m", "holdfast", "claim", "job"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (70, "", 1), done


def test_error_that_cannot_be_written_is_not_a_held_job(tmp_path: Path) -> None:
    """Where standard error is a full disk, the line of a refusal fails too: the code is 70, and not Python's 1."""
    command = [sys.executable, "-m", "holdfast", "claim", "job"]
    environment = {**os.environ, "HOLDFAST_URL": "http://127.0.0.1:1", "XDG_CONFIG_HOME": str(tmp_path)}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=full, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (70, b"")


def test_entry_point_imports_little() -> None:
    """The command begins where hardly anything is imported, and the script that is installed begins there."""
    code = (
        "import sys, holdfast.cli.start; print(*sorted({'click', 'msgspec', 'typing', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": str(PROJECT.parent / "src")})  # fmt: skip
    assert (done.stdout, done.stderr) == ("\n", "")
    assert tomllib.loads(PROJECT.read_text())["project"]["scripts"]["holdfast"] == "holdfast.cli.start:main"
