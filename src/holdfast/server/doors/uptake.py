"""How the other side takes what is written to it: one that takes nothing for long is not waited for."""

from __future__ import annotations

TAKEN_BYTES_MIN = 1_024
"""Less than this is too little."""


class Uptake:
    """What was written to one connection, and since when too little of it was taken."""

    __slots__ = ("_since", "_taken_bytes", "written_bytes")

    def __init__(self, now_seconds: int) -> None:
        self.written_bytes = self._taken_bytes = 0
        self._since = now_seconds

    def seconds_without(self, unsent_bytes: int, now_seconds: int) -> int:
        """Return for how long too little was taken of what was written, of which `unsent_bytes` are still here."""
        taken_bytes = self.written_bytes - unsent_bytes
        if unsent_bytes == 0 or taken_bytes - self._taken_bytes >= TAKEN_BYTES_MIN:
            self._taken_bytes, self._since = taken_bytes, now_seconds
        return now_seconds - self._since
