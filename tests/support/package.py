"""Builds the wheel and the source distribution as `make wheel` does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WHEEL = "b.build_wheel(sys.argv[1])"
BOTH = f"{WHEEL}, b.build_sdist(sys.argv[1])"


def build(source: Path, target: Path) -> tuple[Path, Path]:
    """Build both of a folder with our source into another folder; return the wheel and the source distribution.

    Every file in them has the time of the folder's pyproject.toml, which an unpacked source distribution keeps.
    """
    wheel, sdist = _built(BOTH, source, target)
    return wheel, sdist


def build_wheel(source: Path, target: Path) -> Path:
    """Build the wheel alone, of a folder that has no more than that needs."""
    (wheel,) = _built(WHEEL, source, target)
    return wheel


def _built(what: str, source: Path, target: Path) -> list[Path]:
    target.mkdir(parents=True, exist_ok=True)
    when = str(int((source / "pyproject.toml").stat().st_mtime))
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; from flit_core import buildapi as b; print({what})", str(target)],
        cwd=source,
        env={**os.environ, "SOURCE_DATE_EPOCH": when},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [target / name for name in done.stdout.split()]
