"""Holdfast as somebody else has it: the built wheel in an environment of its own, with what it declares and no more.

No package index is asked: what the wheel needs is taken from the environment of the tests, each distribution that the
metadata names, and those that they name in turn.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

PIP = ("-m", "pip")


def install(wheel: Path, folder: Path, extras: Iterable[str] = ("server",)) -> Path:
    """Make an environment in `folder`, put the wheel and its dependencies there, and return its `bin`."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, capture_output=True)
    python = folder / "bin" / "python"
    _pip("--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    [packages] = (folder / "lib").glob("python*/site-packages")
    metadata = next(packages.glob("holdfast_jobs-*.dist-info"))
    for name in _needed(importlib.metadata.PathDistribution(metadata), frozenset(extras), set()):
        _link(name, packages)
    return folder / "bin"


def _pip(*arguments: str) -> None:
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    ways = [[str(base), *PIP], ["pip3"], ["pip"]]
    for way in ways:
        try:
            subprocess.run([*way, "--version"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_USER": "0"}
        subprocess.run([*way, *arguments], check=True, env=env)
        return
    raise AssertionError("no pip was found, and `make install` needs one too")


def _needed(distribution: importlib.metadata.Distribution, extras: frozenset[str], found: set[str]) -> set[str]:
    """Add the names of all that a distribution needs with these extras."""
    for line in distribution.requires or ():
        wanted, _, marker = line.partition(";")
        extra = re.search(r"extra\s*==\s*[\"'](\w+)[\"']", marker)
        if extra and extra[1] not in extras:
            continue
        name = re.split(r"[^\w.-]", wanted.strip())[0]
        if name in found:
            continue
        try:
            its = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # For another platform or another Python: the locks know.
        found.add(name)
        _needed(its, frozenset(), found)
    return found


def _link(name: str, packages: Path) -> None:
    """Put a distribution of ours into another environment, by links to its folders and files."""
    distribution = importlib.metadata.distribution(name)
    for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in {"..", "__pycache__"}}:
        if not (packages / top).exists():
            (packages / top).symlink_to(Path(str(distribution.locate_file(top))))
