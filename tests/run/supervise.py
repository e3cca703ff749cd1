"""Runs a command under `run_child` with a claim made of a file: CONTROL OUTCOME GRACE COMMAND…

CONTROL holds how many seconds remain, or `until` and the moment at which they are over; then `lost` if it is lost.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

from holdfast.run import child, supervisor


class FileClaim:
    """A claim that the test holds in its hand."""

    def __init__(self, control: Path) -> None:
        self._control = control

    @property
    def remaining(self) -> float:
        match self._control.read_text().split():
            case ["until", moment, *_]:
                return max(0.0, float(moment) - time.monotonic())
            case [seconds, *_]:
                return float(seconds)
        raise ValueError(self._control)

    @property
    def refused(self) -> str | None:
        return None

    @property
    def lost(self) -> threading.Event:
        flag = threading.Event()
        if "lost" in self._control.read_text():
            flag.set()
        return flag


def main(control: str, outcome: str, grace: str, *command: str) -> None:
    """Run it, and leave the outcome in a file: who started us may be gone."""
    if script := os.environ.pop("GUARDIAN", None):
        supervisor.SCRIPT = Path(script)
    if os.environ.pop("PLAIN", None):  # As on a system without waitid and without /proc.
        child.CAN_PEEK = False
        child._alive = lambda group: None
    environment = json.loads(os.environ.pop("ENVIRONMENT", "null"))
    found = supervisor.run_child(
        command,
        environment=os.environ if environment is None else environment,
        held=FileClaim(Path(control)),
        grace_seconds=float(grace),
        say=lambda text: print(f"holdfast: {text}", file=sys.stderr, flush=True),
    )
    draft = Path(f"{outcome}.draft")
    draft.write_text(json.dumps(found._asdict()))
    draft.rename(outcome)
    sys.exit(found.returncode)


if __name__ == "__main__":
    main(*sys.argv[1:])
