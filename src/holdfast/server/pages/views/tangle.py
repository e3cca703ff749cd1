"""Who waits for whom now, read from the state: the knots and edges of `graph`. Bounded, however much waits.

Of many lines the longest are shown, and with them all that their holders wait for themselves: what is stuck behind what
is the question. Names are looked at a slice at a time, `LOOKED_AT_MAX` of them at most. Of a long line the first are
shown, and those who hold what others want; the rest is one box with a number.

A reader that is confined to a prefix sees the lines for names within it, and nobody else.
"""

from __future__ import annotations

from heapq import nlargest
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.deadlock import waits_of
from holdfast.core.values import holder_of_lease, holder_of_ticket
from holdfast.server.pages.views.graph import Edge, Knot
from holdfast.server.pages.views.told import shown_owner
from holdfast.server.render import HIDDEN, masked
from holdfast.wire.holders import shown_as

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.core.state import State
    from holdfast.core.values import Holder, Moment
    from holdfast.server.pages.views.recent import Entry

LOOKED_AT_MAX = 10_000
SLICE_NAMES = 1_000
LINES_SHOWN = 24
NAMES_MAX = 48
"""With what the holders of those wait for themselves."""
WAITS_FOLLOWED = 10
"""Of one holder."""
PLACES_LOOKED_AT = 50
PLACES_SHOWN = 5
"""Of those who hold nothing that others want."""


class Longest:
    """Finds the longest lines, a slice at a time. A name whose line is gone meanwhile is passed over."""

    def __init__(self, prefix: str | None) -> None:
        self._prefix = prefix or ""
        self._names: list[str] | None = None
        self._place = 0
        self._best: list[tuple[int, str]] = []
        self.left_out = 0
        """How many names with a line were not looked at."""
        self.found = 0
        """How many lines there are within the prefix, of those that were looked at."""

    def take_slice(self, state: State, _now: Moment) -> bool:
        """Look at some names, and tell whether all were looked at that will be."""
        lines = state.presence.lines
        if self._names is None:
            self._names = list(islice(lines, LOOKED_AT_MAX))
            self.left_out = len(lines) - len(self._names)
        some = self._names[self._place : self._place + SLICE_NAMES]
        self._place += len(some)
        those = [(len(lines[name]), name) for name in some if name.startswith(self._prefix) and name in lines]
        self.found += len(those)
        self._best = nlargest(LINES_SHOWN, [*self._best, *those])
        return self._place >= len(self._names)

    @property
    def names(self) -> list[str]:
        """The names with the longest lines, the longest first."""
        return [name for _, name in self._best]


class Tangle(msgspec.Struct, frozen=True):
    """The graph of waits, as far as it is shown."""

    knots: tuple[Knot, ...]
    edges: tuple[Edge, ...]


def tangle_of(state: State, names: Iterable[str], prefix: str | None) -> Tangle:
    """Return who holds these names and who waits for them, with what those who hold them wait for."""
    shown = _with_what_holders_want(state, names, prefix or "")
    knots: dict[str, Knot] = {}
    edges: list[Edge] = []
    holders: dict[str, Holder | None] = {}
    for name in shown:
        lease = state.lease_of(name)
        holders[name] = None if lease is None else holder_of_lease(lease)
        if lease is None:
            knots[f"nobody {name}"] = Knot(f"nobody {name}", "(nobody: it opens soon)")
        else:
            label = shown_as(lease.principal, lease.metadata) if lease.owner is None else lease.owner
            knots.setdefault(_key(holder_of_lease(lease)), Knot(_key(holder_of_lease(lease)), label))
    wanted = set(holders.values())
    for name, holder in holders.items():
        _add_line(state, name, f"nobody {name}" if holder is None else _key(holder), wanted, knots, edges)
    return Tangle(tuple(knots.values()), tuple(edges))


def _with_what_holders_want(state: State, names: Iterable[str], prefix: str) -> list[str]:
    """Return these names and those that their holders wait for, and so on: up to whoever waits for nobody."""
    found = dict.fromkeys(name for name in names if name in state.presence.lines)
    ahead = list(found)
    while ahead and len(found) < NAMES_MAX:
        lease = state.lease_of(ahead.pop(0))
        if lease is None:
            continue
        for name in islice(waits_of(state, holder_of_lease(lease)), WAITS_FOLLOWED):
            if name not in found and name.startswith(prefix) and len(found) < NAMES_MAX:
                found[name] = None
                ahead.append(name)
    return list(found)


def _add_line(  # noqa: PLR0917 - what is looked at, then what is added to
    state: State, name: str, holder: str, wanted: set[Holder | None], knots: dict[str, Knot], edges: list[Edge]
) -> None:
    line = state.presence.lines.get(name)
    if line is None:
        return
    shown = idle = 0
    for _, ticket_id in islice(line, PLACES_LOOKED_AT):
        ticket = state.tickets[ticket_id]
        waiter = holder_of_ticket(ticket)
        if waiter not in wanted:
            idle += 1
            if idle > PLACES_SHOWN:
                continue
        key = _key(waiter)
        knots.setdefault(key, Knot(key, shown_owner(ticket.terms.owner, ticket.terms.principal)))
        edges.append(Edge(key, name, holder))
        shown += 1
    if len(line) > shown:
        crowd = f"crowd {name}"
        knots[crowd] = Knot(crowd, f"{len(line) - shown} more", len(line) - shown)
        edges.append(Edge(crowd, name, holder))


def _key(holder: Holder) -> str:
    return "\n".join((holder[0], holder[1], holder[2] or ""))


# Circles that were refused.


class Circle(msgspec.Struct, frozen=True):
    """A wait that was refused because it would never have ended."""

    path: tuple[str, ...]
    """Who asked, what it wanted, who held that, what that one wanted, and so on; it comes back to the first."""
    count: int
    first_ms: int
    last_ms: int


def circles_for(entries: Sequence[Entry[tuple[str, ...]]], prefix: str | None) -> tuple[Circle, ...]:
    """Return the circles that a reader may see, as it may see them. One without a name of its own is not shown."""
    found: list[Circle] = []
    for entry in entries:
        path = entry.what
        if prefix is not None:
            if not any(name.startswith(prefix) for name in path[1::2]):
                continue
            # Who asked holds the last name. Its own answer showed it to itself; another sees it only by that name.
            asked_by = path[0] if path[-1].startswith(prefix) else HIDDEN
            path = (asked_by, *masked(path, prefix)[1:])
        found.append(Circle(path, entry.count, entry.first_wall_ms, entry.last_wall_ms))
    return tuple(found)
