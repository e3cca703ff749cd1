"""What of the tail waits for the archive, whose it is, and who may claim while it does.

One bound is for all together, and half of it for each principal: whoever writes faster than the archive is written is
refused alone, and everybody else claims on. Small records cannot outrun the archivist, so whose they are is not looked
at: only batches that are large are counted by principal.
"""

from __future__ import annotations

import logging
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from holdfast.core.events import principal_of
from holdfast.journal.codec import frame_sizes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.core.events import Record

    Part = tuple[int, dict[str, int]]
    """The last number of a large batch, and how many bytes of it each principal has."""

LARGE_BYTES = 64 * 1024
"""Batches that are larger are counted by principal."""
MIB = 2**20

log = logging.getLogger("holdfast.journal")


def part_of(last: int, records: Iterable[Record], body: bytes) -> Part:
    """Count a large batch by principal."""
    sums: dict[str, int] = {}
    for record, size_bytes in zip(records, frame_sizes(body), strict=True):
        who = principal_of(record.event)
        sums[who] = sums.get(who, 0) + size_bytes
    # Nobody's are the server's own, and renewals: those go on anyway.
    sums.pop("", None)
    return last, sums


class Room:
    """Counts what waits."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        """How many bytes may wait."""
        self.size_bytes = 0
        """How many bytes wait, of everybody."""
        self._parts: deque[Part] = deque()
        self._sums: dict[str, int] = {}
        self._refused: set[str] = set()
        """Who has more than half of the bound."""
        self.failing: tuple[int, str] | None = None
        """Since when, by wall time, the archive cannot be written, and why."""

    @property
    def is_open(self) -> bool:
        """Whether anybody may claim."""
        return self.size_bytes <= self.bytes_max

    @property
    def is_open_to_all(self) -> bool:
        """Whether everybody may."""
        return self.is_open and not self._refused

    def begin(self, size_bytes: int, parts: Iterable[Part]) -> None:
        """Count anew from what was found."""
        self.size_bytes = size_bytes
        self._parts.clear()
        self._sums.clear()
        for part in parts:
            self.add_part(part)

    def add_part(self, part: Part) -> None:
        """Count a large batch by principal."""
        self._parts.append(part)
        for who, size_bytes in part[1].items():
            self._sums[who] = self._sums.get(who, 0) + size_bytes
        self._judge()

    def drop(self, upto: int, size_bytes: int) -> None:
        """Count what is archived no more: so many bytes, and the large batches up to a number."""
        self.size_bytes -= size_bytes
        while self._parts and self._parts[0][0] <= upto:
            for who, part_bytes in self._parts.popleft()[1].items():
                self._sums[who] -= part_bytes
                if not self._sums[who]:
                    del self._sums[who]
        self._judge()

    def _judge(self) -> None:
        most = self.bytes_max // 2
        refused = {who for who, size_bytes in self._sums.items() if size_bytes > most}
        for who in refused - self._refused:
            log.warning("%s", self._words_for(who))
        for who in self._refused - refused:
            log.warning("claims of %s are taken again", who)
        self._refused = refused

    def why_not(self, principal: str) -> str | None:
        """Say why claims of a principal are refused, though others are taken; None if they are not."""
        return self._words_for(principal) if principal in self._refused else None

    def _words_for(self, who: str) -> str:
        size, most = _mib(self._sums[who]), _mib(self.bytes_max)
        return (
            f"of what the journal has to archive {size} are of {who}, more than half of tail_mib_max ({most}): "
            f"new claims of {who} are refused until that is archived. It opens again by itself"
        )

    def words(self) -> str:
        """Say for everybody how the archive is: ok, or since when it cannot be written, and what comes of it."""
        waiting, most = _mib(self.size_bytes), _mib(self.bytes_max)
        if self.failing is None and self.is_open_to_all:
            return "ok"
        why = "the archive has fallen behind"
        if self.failing is not None:
            since = datetime.fromtimestamp(self.failing[0] / 1000, UTC).isoformat(timespec="seconds")
            why = f"nothing could be archived since {since}: {self.failing[1]}"
        if not self.is_open:
            return (
                f"{why}. The journal has {waiting} to archive, more than tail_mib_max ({most}): new claims are refused"
            )
        if self._refused:
            return (
                f"{why}. The journal has {waiting} to archive. Whoever has more than half of tail_mib_max ({most}) "
                f"of it is refused new claims: {len(self._refused)} (the log says who)"
            )
        return f"{why}. The journal has {waiting} to archive; beyond {most} (tail_mib_max) new claims would be refused"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.0f} MiB"
