"""The `append` of a journal that waits for nobody: done in the call, without a task."""

from __future__ import annotations

from functools import partial, wraps
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Sequence

    from holdfast.core.events import Record


class AtOnce:
    """An append that waits for nobody: `now` does it, and so does whoever awaits it. Before that, nothing is done.

    Whoever can do without a task has the answer sooner by it: a task has to be begun, woken and ended by the loop.
    """

    __slots__ = ("now",)

    def __init__(self, append: Callable[[], None]) -> None:
        self.now = append

    def __await__(self) -> Generator[None, None, None]:
        self.now()
        yield from ()


J = TypeVar("J")


def at_once(append: Callable[[J, Sequence[Record]], None]) -> Callable[[J, Sequence[Record]], Awaitable[None]]:
    """Make the `append` of a journal that waits for nobody: on its own disk, or in memory."""

    @wraps(append)
    def begin(journal: J, batch: Sequence[Record]) -> Awaitable[None]:
        return AtOnce(partial(append, journal, batch))

    return begin
