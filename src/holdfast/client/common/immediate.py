"""The effects that need no waiting: every driver performs them alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.client import chance, clock
from holdfast.client.flows.effects import Effect, NewKey, Now, Share

IMMEDIATE: Mapping[type, Callable[[], Any]] = {Now: clock.now, NewKey: chance.new_key, Share: chance.share}
"""What performs each of them."""


def perform_immediate(effect: Effect) -> Any:  # noqa: ANN401 - each effect has a result of its own
    """Perform an effect that needs no waiting."""
    act = IMMEDIATE.get(type(effect))
    if act is None:
        raise TypeError(f"{type(effect).__name__} has to be waited for")
    return act()
