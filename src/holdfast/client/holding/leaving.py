"""What is still held when the program ends is given back then, in haste: nobody will renew it."""

from __future__ import annotations

import atexit
from abc import ABC, abstractmethod
from weakref import ref

from holdfast.client import clock

EXIT_SECONDS = 2.0
"""How long giving back may go on at exit; what is begun then may take `LAST_TRY_SECONDS` more."""


class Leaving(ABC):
    """Something that is held, and can be given back at exit."""

    @abstractmethod
    def _leave_at_exit(self) -> None:
        """Give it back if it is still held; raises nothing if that fails."""


_held: dict[ref[Leaving], None] = {}
"""In the order in which they were got."""


def note(held: Leaving) -> None:
    """Take note of something that is held. It is forgotten when nobody has it any more."""
    _held[ref(held, _gone)] = None


def forget(held: Leaving) -> None:
    """It was given back."""
    _held.pop(ref(held), None)


def _gone(whose: ref[Leaving]) -> None:
    _held.pop(whose, None)


@atexit.register
def give_back() -> None:
    """Give back all that is left, in the order it was got: a session takes its claims with it."""
    until_ms = clock.monotonic_ms() + EXIT_SECONDS * 1_000
    for each in tuple(_held):
        held = each()
        if held is not None and clock.monotonic_ms() < until_ms:
            held._leave_at_exit()  # noqa: SLF001 - one of ours
