"""The budget of a turn: one that took too long is told in the log, with what it did.

Nobody else is served while a turn goes on. So whatever makes one long is to be found, and a line in the log is how an
operator finds it. It says what the turn left behind: the records by kind, the answers by kind, the largest record.
It names no job, and there are at most six lines a minute, however many turns are slow.

A process that was stopped looks the same from inside: a line without much work in it tells of a busy machine.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from holdfast.journal.codec import encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.core.events import Record
    from holdfast.engine.clock import Clock
    from holdfast.engine.replies import OwedAnswer

BUDGET_MS = 50
SILENCE_MS = 10_000
"""How long nothing is said after a line: slow turns come in swarms."""
KINDS_MAX = 8
LARGEST_OF = 1_000
"""How many records are measured to find the largest: the telling must not be a slow turn itself."""

log = logging.getLogger("holdfast.engine")


class Budget:
    """Tells of turns that took more than their budget. Called for those alone."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._silent_until_ms: int | None = None
        self._untold = 0

    def tell(self, began_ms: int, batch: Sequence[Record], answers: Sequence[OwedAnswer]) -> None:
        """Tell of one turn, or count it if another was told of just now."""
        now_ms = self._clock.monotonic_ms()
        if self._silent_until_ms is not None and now_ms < self._silent_until_ms:
            self._untold += 1
            return
        log.warning(
            "a turn took %d ms, and %d is the budget: %s; %s%s; %d slow turns were not told of since the last line",
            now_ms - began_ms,
            BUDGET_MS,
            _counted("records", (type(record.event).__name__ for record in batch)),
            _counted("answers", (_kind_of(outcome) for _, outcome, _ in answers)),
            _largest(batch),
            self._untold,
        )
        self._untold = 0
        self._silent_until_ms = now_ms + SILENCE_MS


def _kind_of(outcome: object) -> str:
    """Return what an answer is called. What was read is rendered already: a tuple, whatever was asked."""
    return "Read" if isinstance(outcome, tuple) else type(outcome).__name__


def _counted(title: str, kinds: Iterable[str]) -> str:
    counts = Counter(kinds)
    if not counts:
        return f"no {title}"
    shown = ", ".join(f"{count} {kind}" for kind, count in counts.most_common(KINDS_MAX))
    return f"{counts.total()} {title} ({shown})"


def _largest(batch: Sequence[Record]) -> str:
    if not batch:
        return ""
    sizes = ((len(encode_batch([record])), type(record.event).__name__) for record in batch[:LARGEST_OF])
    size_bytes, kind = max(sizes)
    return f", the largest {size_bytes} bytes of {kind}"
