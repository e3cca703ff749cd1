"""Starts the generator, waits for it, and reads its result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

from benchmarks.load.generator import PATIENCE_SECONDS, Run
from benchmarks.load.tools import LoadError

if TYPE_CHECKING:
    from benchmarks.load.generator import Plan

_ROOT = Path(__file__).resolve().parents[2]


class Press:
    """A generator under way. Ended when the `with` block ends, however it ends."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # Its own session: Ctrl-C reaches only us, and we end it.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.load.worker", plan.as_json()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
            start_new_session=True,
        )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def result(self) -> Run:
        """Wait for the end. Raises `LoadError` if the generator failed."""
        try:
            out, complaint = self._process.communicate(timeout=self._plan.seconds + 3 * PATIENCE_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise LoadError(f"the generator did not end: {error}") from error
        if self._process.returncode != 0:
            raise LoadError(f"the generator ended with {self._process.returncode}: {complaint.strip()[-400:]}")
        return Run.from_json(out)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def press(plan: Plan) -> Run:
    """Run the generator once."""
    with Press(plan) as under_way:
        return under_way.result()
