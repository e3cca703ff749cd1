"""What a run tries is said in one place, and every number there is asked for."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support import proof
from tests.support.server import PROJECT


def test_each_run_tries_at_least_what_the_smaller_one_does() -> None:
    """A proof for a release contains that of every change, and that one contains `make test`."""
    for name, counts in proof.COUNTS.items():
        rising = sorted(counts, reverse=name.startswith("deadlock: one in so many"))
        assert list(counts) == rising, name


def test_every_count_is_asked_for() -> None:
    """No number stands in the table that no test asks for, and no test looks at the variable itself."""
    asked: list[str] = []
    for path in (PROJECT / "tests").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        asked += re.findall(r'proof\.count\(f?"([^"]+)"\)', text)
        if path.name not in {"proof.py", "test_proof.py"}:
            assert proof.VARIABLE not in text, path
    patterns = [re.sub(r"\\{.*?\\}", ".+", re.escape(one)) for one in asked]
    for name in proof.COUNTS:
        assert any(re.fullmatch(pattern, name) for pattern in patterns), name


def test_variable_chooses_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not set, `ci` and `release` take the numbers of `make test`, `make prove` and `make prove-release`."""
    for value, wanted in zip(proof.RUNS, proof.COUNTS["power: cuts"], strict=True):
        monkeypatch.setenv(proof.VARIABLE, value)
        assert proof.count("power: cuts") == wanted


def test_unknown_proof_is_refused() -> None:
    """A value that means nothing ends the run at once and says which there are, instead of proving less than wanted."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", __file__]
    environment = {"PATH": "", proof.VARIABLE: "full"}
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "HOLDFAST_PROOF=full means nothing here" in done.stderr and "ci (make prove)" in done.stderr
