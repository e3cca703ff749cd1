"""A server that is killed in any moment of a start, also of its first, leaves a directory that the next can use."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.crash import crash_points


def deaths_of(template: Path, folder: Path) -> list[dict[str, Any]]:
    """Let an authority die at every place on copies of a directory; return what was told of each."""
    folder.mkdir(0o700)
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.crash_points", template, folder],
        capture_output=True,
        text=True,
        timeout=900,
        check=True,
    )
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(outcomes) > 30 and all(death["died"] for death in outcomes[:-1]), (
        "it died everywhere until there was no more"
    )
    assert outcomes[-1] == {**outcomes[-1], "died": False, "said": ""}
    return outcomes


def test_first_start_can_be_killed_anywhere(tmp_path: Path) -> None:
    """Wherever the first start is killed, the next one goes on: neither mark nor key is there too early (I5)."""
    outcomes = deaths_of(tmp_path / "nothing", tmp_path / "copies")
    for number, death in enumerate(outcomes):
        assert (death["again"], death["then"]) == (0, ""), f"after death {number}, with {death['files']}"
    seen = [{name for name in death["files"] if not name.startswith(".")} for death in outcomes]
    for name in ("journal.sqlite3", "journal.mark", "authority.key"):
        assert any(name in files for files in seen) and any(name not in files for files in seen)
    assert all("journal.mark" in files for files in seen if "authority.key" in files)
    assert {"journal.sqlite3", "ballast", "journal.mark", "authority.key"} <= seen[-1]


def test_later_start_can_be_killed_anywhere(tmp_path: Path) -> None:
    """Wherever a later start, its work or its stop is killed, the next one goes on: the mark is never ahead (I5)."""
    template = tmp_path / "template"
    asyncio.run(crash_points.work(template))
    for number, death in enumerate(deaths_of(template, tmp_path / "copies")):
        assert (death["again"], death["then"]) == (0, ""), f"after death {number}, with {death['files']}"
