"""GET /ui/waits: who waits for whom, drawn and as nested lists, and the circular waits refused in the last day.

    ┌──────────┐  schema   ┌──────────┐  deploy   ┌──────────┐
    │   cem    │ ◄──────── │   ben    │ ◄──────── │   ana    │
    └──────────┘           └──────────┘           └──────────┘
    waits for nobody       waits for cem          waits for ben

A node is an owner that holds what others want, or wants it. An edge leads from the waiter to the holder, with the
name. A node's column is the length of the longest chain from it to an owner who waits for nobody: an operator looks
there first. An edge that closes a circle counts in no chain and is marked. Inside a column, a node is near those it
waits for.

Of many queues the longest are shown, with all that their holders wait for themselves. Names are looked at a slice at a
time, `LOOKED_AT_MAX` of them at most. Of a long queue the first are shown, and those who hold what others want; the
rest is one box with a number. A reader that is confined to a prefix sees the queues for names within it, and nothing
else.
"""

from __future__ import annotations

from heapq import nlargest
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.deadlock import waits_of
from holdfast.core.values import holder_of_lease, holder_of_ticket
from holdfast.server.handlers import paging
from holdfast.server.pages import site
from holdfast.server.pages.history import shown_owner
from holdfast.server.render import HIDDEN, masked
from holdfast.wire.holders import shown_as

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from holdfast.core.state import State
    from holdfast.core.values import Holder, Moment
    from holdfast.server.api import Api
    from holdfast.server.operations.call import Call
    from holdfast.server.pages.recent import Entry
    from holdfast.server.render import Answered

# The drawing, and the same as lists.


BOX_WIDTH, BOX_HEIGHT = 200, 44
COLUMN_GAP, ROW_GAP = 120, 14
MARGIN = 8
NESTED_MAX = 200
"""How many items the nested lists have at most: somebody who stands in many lines stands in many lists."""
NESTED_DEEP_MAX = 30


class Knot(msgspec.Struct, frozen=True):
    """Somebody who holds or waits. `crowd` stands for so many who wait and hold nothing that anybody wants."""

    key: str
    label: str
    crowd: int = 0


class Edge(msgspec.Struct, frozen=True):
    """Who waits for which name that who holds: keys of two knots."""

    waiter: str
    name: str
    holder: str


class Box(msgspec.Struct, frozen=True):
    """A knot with its place."""

    knot: Knot
    x: int
    y: int
    width: int = BOX_WIDTH
    height: int = BOX_HEIGHT


class Arrow(msgspec.Struct, frozen=True):
    """Edges between the same two knots as one arrow. `path` is its curve; its names stand at `x`, `y`."""

    names: tuple[str, ...]
    path: str
    x: int
    y: int
    closes_circle: bool


class Drawing(msgspec.Struct, frozen=True):
    """All that stands in the drawing."""

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    width: int
    height: int


class Item(msgspec.Struct, frozen=True):
    """One place in the nested lists: a knot, for which name of the one above it waits, and who waits for it."""

    knot: Knot
    name: str | None
    below: tuple[Item, ...]
    is_above: bool = False
    """It stands higher up with all that belongs to it, or is part of a circle: what is below it is not said again."""
    left_out: int = 0
    """How many below it are not said."""


def draw(knots: Iterable[Knot], edges: Sequence[Edge]) -> Drawing:
    """Return where everything stands."""
    by_key = {knot.key: knot for knot in knots}
    waits_for = _waits_for(by_key, edges)
    depth, circles = _depths(by_key, waits_for)
    columns: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for key in by_key:
        columns[depth[key]].append(key)
    row: dict[str, int] = {}
    boxes: dict[str, Box] = {}
    for number, column in enumerate(columns):
        column.sort(key=lambda key: _middle(key, waits_for, row))
        for place, key in enumerate(column):
            row[key] = place
            x = MARGIN + number * (BOX_WIDTH + COLUMN_GAP)
            boxes[key] = Box(by_key[key], x, MARGIN + place * (BOX_HEIGHT + ROW_GAP))
    width = 2 * MARGIN + len(columns) * (BOX_WIDTH + COLUMN_GAP) - (COLUMN_GAP if columns else 0)
    rows = max(map(len, columns), default=0)
    height = 2 * MARGIN + rows * (BOX_HEIGHT + ROW_GAP) - (ROW_GAP if rows else 0)
    arrows = tuple(_arrows(waits_for, boxes, circles))
    return Drawing(tuple(boxes.values()), arrows, width, height)


def nest(knots: Iterable[Knot], edges: Sequence[Edge]) -> tuple[Item, ...]:
    """Return the same as lists: first those who wait for nobody, and below each who waits for it."""
    by_key = {knot.key: knot for knot in knots}
    waiters: dict[str, list[Edge]] = {}
    for edge in edges:
        waiters.setdefault(edge.holder, []).append(edge)
    waits = {edge.waiter for edge in edges}
    said: set[str] = set()
    room = NESTED_MAX

    def item(key: str, name: str | None, deep: int = 0) -> Item:
        nonlocal room
        room -= 1
        if key in said:
            return Item(by_key[key], name, (), is_above=key in waiters)
        said.add(key)
        below: list[Item] = []
        those = waiters.get(key, [])
        for edge in those:
            if room <= 0 or deep >= NESTED_DEEP_MAX:
                break
            below.append(item(edge.waiter, edge.name, deep + 1))
        return Item(by_key[key], name, tuple(below), left_out=len(those) - len(below))

    found = [item(key, None) for key in by_key if key not in waits]
    # Whoever is left stands in a circle, or behind one: nobody there waits for nobody.
    found += [item(key, None) for key in by_key if key not in said and room > 0]
    return tuple(found)


def _waits_for(by_key: Mapping[str, Knot], edges: Iterable[Edge]) -> dict[str, dict[str, list[str]]]:
    """Return by waiter and holder the names between them."""
    found: dict[str, dict[str, list[str]]] = {key: {} for key in by_key}
    for edge in edges:
        found[edge.waiter].setdefault(edge.holder, []).append(edge.name)
    return found


def _depths(
    by_key: Mapping[str, Knot], waits_for: Mapping[str, Mapping[str, list[str]]]
) -> tuple[dict[str, int], set[tuple[str, str]]]:
    """Return the column of each knot, and the edges that lead back into a chain that they are part of.

    Depth first, and without recursion: a chain may be as long as there are knots.
    """
    depth: dict[str, int] = {}
    circles: set[tuple[str, str]] = set()
    for start in by_key:
        if start in depth:
            continue
        chain: dict[str, list[str]] = {start: list(waits_for[start])}
        while chain:
            key = next(reversed(chain))
            ahead = chain[key]
            if ahead:
                following = ahead.pop(0)
                if following in chain:
                    circles.add((key, following))
                elif following not in depth:
                    chain[following] = list(waits_for[following])
                continue
            those = [depth[each] for each in waits_for[key] if (key, each) not in circles]
            depth[key] = 1 + max(those, default=-1)
            del chain[key]
    return depth, circles


def _middle(key: str, waits_for: Mapping[str, Mapping[str, list[str]]], row: Mapping[str, int]) -> float:
    rows = [row[each] for each in waits_for[key] if each in row]
    return sum(rows) / len(rows) if rows else 0.0


def _arrows(
    waits_for: Mapping[str, Mapping[str, list[str]]], boxes: Mapping[str, Box], circles: set[tuple[str, str]]
) -> Iterable[Arrow]:
    for waiter, those in waits_for.items():
        for holder, names in those.items():
            a, b = boxes[waiter], boxes[holder]
            from_x, from_y = a.x, a.y + a.height // 2
            to_x, to_y = b.x + b.width, b.y + b.height // 2
            bend = COLUMN_GAP // 2
            path = f"M{from_x} {from_y}C{from_x - bend} {from_y} {to_x + bend} {to_y} {to_x} {to_y}"
            # The name stands in the gap before its waiter: elsewhere boxes may be in the way.
            yield Arrow(tuple(names), path, from_x - COLUMN_GAP + 4, from_y - 6, (waiter, holder) in circles)


# The state as a graph.


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


# The page.


def waits(api: Api, call: Call) -> None:
    """GET /ui/waits."""
    prefix = call.caller.prefix
    longest = Longest(prefix)

    def view(state: State, now: Moment) -> tuple[Tangle, Moment]:
        return tangle_of(state, longest.names, prefix), now

    async def look() -> Answered:
        seq = api.engine.state.seq
        await paging.in_slices(api.engine, longest.take_slice)
        tangle, now = await api.engine.look(view)
        return await site.large_page(
            api,
            call,
            now,
            "waits.html",
            "waits",
            seq=seq,
            drawing=draw(tangle.knots, tangle.edges),
            nested=nest(tangle.knots, tangle.edges),
            lines=longest.found,
            lines_shown=len(longest.names),
            left_out=longest.left_out,
            circles=circles_for(api.circles.newest_first(api.engine.clock.monotonic_ms()), prefix),
            circles_since_ms=api.circles.since_wall_ms,
        )

    api.answer_later(call, look)
