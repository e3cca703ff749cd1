"""Runs a server whose wall clock is off by as many seconds as a file says; the file may change while it runs.

Put before the command of a server: `python -P wallshift.py FILE python -m holdfast serve …`. It works because one
module alone reads clocks, by `time.time_ns`, which the house rules check. The monotonic clock is left alone, as a step
of the wall clock leaves it alone.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def shift(file: Path) -> None:
    """Put the shifted clocks in the place of the real ones."""
    real_ns = time.time_ns

    def time_ns() -> int:
        return real_ns() + int(float(file.read_text(encoding="ascii")) * 1_000_000_000)

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1_000_000_000


if __name__ == "__main__":
    shift(Path(sys.argv[1]))
    from holdfast.cli.main import main

    sys.argv = ["holdfast", *sys.argv[sys.argv.index("serve") :]]
    main()
