"""Builds the wheel and the source distribution as `make wheel` does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BUILD = "import sys; from flit_core import buildapi as b; print(b.build_wheel(sys.argv[1]), b.build_sdist(sys.argv[1]))"


def build(source: Path, target: Path) -> tuple[Path, Path]:
    """Build both of a folder with our source into another folder; return the wheel and the source distribution.

    Every file in them has the time of the folder's pyproject.toml, which an unpacked source distribution keeps.
    """
    target.mkdir(parents=True, exist_ok=True)
    when = str(int((source / "pyproject.toml").stat().st_mtime))
    built = subprocess.run(
        [sys.executable, "-c", BUILD, str(target)],
        cwd=source,
        env={**os.environ, "SOURCE_DATE_EPOCH": when},
        capture_output=True,
        text=True,
        check=True,
    )
    wheel, sdist = built.stdout.split()
    return target / wheel, target / sdist
