"""A store that does not answer: when its silence begins, when it ends, and when it last answered (N-19).

A store that nodes share may be reached by others and not by us. Whoever asks us meanwhile would wait for its own time
limit, and another node could have served it. So a write that is unanswered for a second begins a silence: new requests
are refused at once, and streams are cut. What was decided before goes on waiting: only the answer can tell what became
of it. The answer ends the silence, whatever it is.

Nothing rests on this but how soon a client goes elsewhere. What keeps an old leader from answering is the fence.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.clock import Clock

UNANSWERED_MS_MAX = 1_000


class Silence:
    """Follows the questions to one store. One is on its way at a time."""

    def __init__(self, clock: Clock, begin: Callable[[], None], end: Callable[[bool], None]) -> None:
        """`begin` is called when a question is late; `end` when that is over, and whether because it was answered."""
        self.is_on = False
        self._clock = clock
        self._begin = begin
        self._end = end
        self._asked_ms = 0
        self._proven_ms: int | None = None
        """When the question was asked that was answered last, and well."""
        self._timer: asyncio.TimerHandle | None = None

    def ask(self) -> None:
        """Know that a question is on its way."""
        self._asked_ms = self._clock.monotonic_ms()
        self._timer = asyncio.get_running_loop().call_later(UNANSWERED_MS_MAX / 1000, self._be_late)

    def hear(self, *, is_proof: bool, is_answer: bool) -> None:
        """Know that it is over: answered, or given up. Whether it proves that the seat was ours when it was asked."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if is_proof:
            self._proven_ms = self._asked_ms
        if self.is_on:
            self.is_on = False
            self._end(is_answer)

    def proven_ms_ago(self) -> int | None:
        """Return how long ago the seat was surely ours; None if it was never asked."""
        return None if self._proven_ms is None else self._clock.monotonic_ms() - self._proven_ms

    def _be_late(self) -> None:
        self._timer = None
        self.is_on = True
        self._begin()
