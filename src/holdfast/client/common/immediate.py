"""The effects that need no waiting: every driver performs them alike."""

from __future__ import annotations

from typing import Any

from holdfast.client import chance, clock
from holdfast.client.flows.effects import Effect, NewKey, Now, Share


def perform_immediate(effect: Effect) -> Any:  # noqa: ANN401 - each effect has a result of its own
    """Perform an effect that needs no waiting."""
    match effect:
        case Now():
            return clock.now()
        case NewKey():
            return chance.new_key()
        case Share():
            return chance.share()
        case _:
            raise TypeError(f"{type(effect).__name__} has to be waited for")
