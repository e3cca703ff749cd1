"""Looks at the state that need more than one look-up. They change nothing."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.state import EMPTY
from holdfast.core.values import Slot, holder_of_lease

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.core.state import State
    from holdfast.core.values import Holder

LINKS_MAX = 100
WAITS_SHOWN = 100
"""How many waits of one holder are shown."""
WAITS_LOOKED_AT = 1_000
"""Of so many, since some may lie outside a caller's prefix."""


class Link(msgspec.Struct, frozen=True):
    """One link of the chain: a name, what is known of it, and the first of what its owner waits for itself."""

    name: str
    slot: Slot
    waits_for: tuple[str, ...]


class Chain(msgspec.Struct, frozen=True):
    """The chain of waits from a name to the owner everybody waits for. `circle`: it comes back to where it was."""

    links: tuple[Link, ...]
    circle: bool


def why(state: State, name: str, prefix: str = "") -> Chain:
    """Follow the waits: who holds the name, what that one waits for, who holds that, and so on.

    Names that do not start with `prefix` are not shown: the chain ends before them. Of a holder with very many waits
    the first are looked at.
    """
    links: list[Link] = []
    seen: set[Holder] = set()
    while True:
        slot = state.slots.get(name, EMPTY)
        if slot.lease is None:
            links.append(Link(name, slot, ()))
            return Chain(tuple(links), circle=False)
        holder = holder_of_lease(slot.lease)
        looked_at = islice(waits_of(state, holder), WAITS_LOOKED_AT)
        wanted = tuple(islice((each for each in looked_at if each.startswith(prefix)), WAITS_SHOWN))
        links.append(Link(name, slot, wanted))
        if not wanted or len(links) >= LINKS_MAX:
            return Chain(tuple(links), circle=False)
        if holder in seen:
            return Chain(tuple(links), circle=True)
        seen.add(holder)
        # Of several, the one that somebody holds: a free name is about to be its own.
        name = next((each for each in wanted if state.lease_of(each) is not None), wanted[0])


def waits_of(state: State, holder: Holder) -> Iterator[str]:
    """Yield what a holder stands in line for, where it is present."""
    for ticket_id in state.presence.tickets_by_holder.get(holder, ()):
        yield from state.tickets[ticket_id].names
