"""Progress, on standard error, so that the report on standard output can be kept by itself."""

from __future__ import annotations

import sys
import time


def say(text: str) -> None:
    """Say what happens, and when."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()
