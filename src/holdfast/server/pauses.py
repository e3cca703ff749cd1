"""How long the loop's own thread stood in line for a processor: time that passed, and that no request took.

Linux counts it for each thread. Where nobody counts it, there was none.
"""

from __future__ import annotations

import contextlib
import os

COUNTS = "/proc/thread-self/schedstat"
"""Three numbers: nanoseconds on a processor, nanoseconds in line for one, and how often it had one."""
_BYTES = 128


class Pauses:
    """The pauses of the thread that made it."""

    def __init__(self, counts: str = COUNTS) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open(counts, os.O_RDONLY | os.O_CLOEXEC)
        self._seen_ns = self._read()

    def since_last(self) -> float:
        """Return for how many seconds it paused since the last call."""
        before, self._seen_ns = self._seen_ns, self._read()
        return (self._seen_ns - before) / 1e9

    def _read(self) -> int:
        if self._file is None:
            return 0
        try:
            return int(os.pread(self._file, _BYTES, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return 0

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)
