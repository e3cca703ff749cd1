"""Named failpoints on the commit path, where a test can make the process die, stall or fail.

`HOLDFAST_FAILPOINTS="after_append_before_publish=kill@7"` kills the process at the seventh pass. Actions: `kill`
(SIGKILL to itself), `sleep:MS`, `error` (raises `FailpointError`). The variable needs `HOLDFAST_TESTING=1` too, to
protect production servers. The compactor process reads the same variable for `archive_…`, and counts for itself.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

NAMES = frozenset(
    {
        "before_append",
        "before_commit",
        "after_commit",
        "after_append_before_publish",
        "after_publish_before_answer",
        "before_mark",
        "after_open",
        "archive_begin",
        "archive_mid",
        "archive_before_commit",
        "archive_after_commit",
        "before_drop",
        "mid_drop",
        "move_mid",
        "move_before_mark",
        "move_before_commit",
        "move_after_commit",
    }
)


class FailpointError(Exception):
    """Raised by the action `error`."""


class _Action(NamedTuple):
    what: str
    ms: int
    nth: int


_armed: dict[str, _Action] = {}
_passed: Counter[str] = Counter()


def arm(environment: Mapping[str, str]) -> None:
    """Read the failpoints from an environment. Raises `ValueError` for an invalid one."""
    _armed.clear()
    _passed.clear()
    text = environment.get("HOLDFAST_FAILPOINTS", "")
    if not text:
        return
    if environment.get("HOLDFAST_TESTING") != "1":
        raise ValueError("HOLDFAST_FAILPOINTS is for tests: set HOLDFAST_TESTING=1 as well, or unset it")
    for entry in text.split(","):
        name, _, action = entry.partition("=")
        if name not in NAMES:
            raise ValueError(f"no failpoint is called {name!r}; there are {', '.join(sorted(NAMES))}")
        action, _, nth = action.partition("@")
        what, _, ms = action.partition(":")
        if what not in {"kill", "sleep", "error"}:
            raise ValueError(f"a failpoint does kill, sleep:MS or error, not {what!r}")
        _armed[name] = _Action(what, int(ms or 0), int(nth or 1))


def failpoint(name: str) -> None:
    if not _armed or name not in _armed:
        return
    action = _armed[name]
    _passed[name] += 1
    if _passed[name] != action.nth:
        return
    match action.what:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "sleep":
            time.sleep(action.ms / 1000)
        case _:
            raise FailpointError(name)
