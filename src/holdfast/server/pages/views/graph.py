"""Who waits for whom, as a drawing and as nested lists. Plain functions of knots and edges.

    ┌──────────┐  schema   ┌──────────┐  deploy   ┌──────────┐
    │   cem    │ ◄──────── │   ben    │ ◄──────── │   ana    │
    └──────────┘           └──────────┘           └──────────┘
    waits for nobody       waits for cem          waits for ben

A knot is somebody who holds what others want, or who wants it. An edge leads from who waits to who holds, and says the
name. Whoever everybody waits for stands on the left: that is where an operator looks first. A knot's column is the
length of the longest chain from it to somebody who waits for nobody; an edge that would go round in a circle counts in
no chain and is marked. Inside a column, a knot stands near those it waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
