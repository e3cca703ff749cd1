"""Work counted in steps, so that a test can say what a request costs on any machine, however busy that is."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_steps(work: Callable[[], object], within: str = "holdfast.core") -> int:
    """Return how many lines of the modules `within` were run by `work`."""
    steps = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:  # noqa: ANN401 - It returns itself.
        nonlocal steps
        if not frame.f_globals.get("__name__", "").startswith(within):
            return None
        steps += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return steps
