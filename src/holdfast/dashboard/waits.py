"""GET /ui/waits: the wait graph, drawn and as a table, and the deadlocks refused in the last day.

    ┌──────────┐  schema   ┌──────────┐  deploy   ┌──────────┐
    │   cem    │ ◄──────── │   ben    │ ◄──────── │   ana    │
    └──────────┘           └──────────┘           └──────────┘
    waits for nobody       waits for cem          waits for ben

A node's column is the length of its longest chain of waits, so owners who wait for nobody are on the left. An edge that
closes a cycle counts in no chain and is marked. In a column, a node is near those it waits for.

Of many queues the longest are shown, with everything that their holders wait for. Of a long queue the first waiters are
shown, and those who hold what others want; the rest is one box with a number. A reader confined to a prefix sees only
the queues for names within it.
"""

from __future__ import annotations

from heapq import nlargest
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from holdfast.api.rendering import HIDDEN, masked
from holdfast.core.deadlock import waits_of
from holdfast.core.values import Holder, Instant, holder_of_lease, holder_of_ticket
from holdfast.dashboard import site
from holdfast.dashboard.history import owner_of
from holdfast.http.messages import ResponseParts
from holdfast.wire.replies import shown_as

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.api.context import RequestContext
    from holdfast.api.service import ApiService, Entry
    from holdfast.core.state import State

    WaitsFor = dict[str, dict[str, list[str]]]  # By waiter and holder the names between them.


BOX_WIDTH, BOX_HEIGHT = 200, 44
COLUMN_GAP, ROW_GAP = 120, 14
MARGIN = 8


class GraphNode(msgspec.Struct, frozen=True):
    """A holder or waiter."""

    key: str
    label: str
    crowd: int = 0  # For the rest of a queue: the number of its waiters.


class Edge(msgspec.Struct, frozen=True):
    waiter: str  # The key of a node, as is `holder`.
    name: str
    holder: str


class Box(msgspec.Struct, frozen=True):
    node: GraphNode
    x: int
    y: int
    width: int = BOX_WIDTH
    height: int = BOX_HEIGHT


class Arrow(msgspec.Struct, frozen=True):
    """All edges between the same two nodes."""

    names: list[str]
    path: str
    x: int  # Of the names.
    y: int
    closes_cycle: bool


class GraphDrawing(msgspec.Struct, frozen=True):
    boxes: list[Box]
    arrows: list[Arrow]
    width: int
    height: int


def draw(nodes: Iterable[GraphNode], edges: Sequence[Edge]) -> GraphDrawing:
    by_key = {node.key: node for node in nodes}
    waits_for: WaitsFor = {key: {} for key in by_key}
    for edge in edges:
        waits_for[edge.waiter].setdefault(edge.holder, []).append(edge.name)
    depth, cycles = _depths(waits_for)
    columns: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for key in by_key:
        columns[depth[key]].append(key)
    row: dict[str, int] = {}
    boxes: dict[str, Box] = {}

    def middle(key: str) -> float:
        rows = [row[each] for each in waits_for[key] if each in row]
        return sum(rows) / len(rows) if rows else 0.0

    for number, column in enumerate(columns):
        column.sort(key=middle)
        for index, key in enumerate(column):
            row[key] = index
            x = MARGIN + number * (BOX_WIDTH + COLUMN_GAP)
            boxes[key] = Box(by_key[key], x, MARGIN + index * (BOX_HEIGHT + ROW_GAP))
    arrows = [
        _arrow(boxes[waiter], boxes[holder], names, closes_cycle=(waiter, holder) in cycles)
        for waiter, those in waits_for.items()
        for holder, names in those.items()
    ]
    width = max((box.x + box.width for box in boxes.values()), default=MARGIN) + MARGIN
    height = max((box.y + box.height for box in boxes.values()), default=MARGIN) + MARGIN
    return GraphDrawing(list(boxes.values()), arrows, width, height)


def _depths(waits_for: WaitsFor) -> tuple[dict[str, int], set[tuple[str, str]]]:
    """Return the column of each node, and the edges that close a cycle."""
    depth: dict[str, int] = {}
    cycles: set[tuple[str, str]] = set()
    chain: set[str] = set()

    def visit(key: str) -> None:
        # Recurses as deep as a chain is long: at most `NAMES_MAX` holders and a waiter.
        chain.add(key)
        for holder in waits_for[key]:
            if holder in chain:
                cycles.add((key, holder))
            elif holder not in depth:
                visit(holder)
        chain.remove(key)
        depth[key] = 1 + max((depth[each] for each in waits_for[key] if (key, each) not in cycles), default=-1)

    for key in waits_for:
        if key not in depth:
            visit(key)
    return depth, cycles


def _arrow(waiter: Box, holder: Box, names: list[str], *, closes_cycle: bool) -> Arrow:
    from_x, from_y = waiter.x, waiter.y + BOX_HEIGHT // 2
    to_x, to_y = holder.x + BOX_WIDTH, holder.y + BOX_HEIGHT // 2
    bend = COLUMN_GAP // 2
    path = f"M{from_x} {from_y}C{from_x - bend} {from_y} {to_x + bend} {to_y} {to_x} {to_y}"
    # The names are in the gap before the waiter: elsewhere boxes may cover them.
    return Arrow(names, path, from_x - COLUMN_GAP + 4, from_y - 6, closes_cycle)


SCANNED_NAMES_MAX = 5_000  # Names with a queue: about a millisecond.
QUEUES_SHOWN = 24
NAMES_MAX = 48  # With what their holders wait for. Bounds the recursion of `_depths`.
WAITS_FOLLOWED = 10  # Of one holder.
WAITERS_SCANNED = 50
WAITERS_SHOWN = 5  # Of those who hold nothing that others want.


def longest_queues(state: State, prefix: str) -> tuple[list[str], int, int]:
    """Return the names with the longest queues, and how many queues were found and skipped."""
    queues = state.connected.queues
    found = [(len(queues[name]), name) for name in islice(queues, SCANNED_NAMES_MAX) if name.startswith(prefix)]
    return [name for _, name in nlargest(QUEUES_SHOWN, found)], len(found), max(0, len(queues) - SCANNED_NAMES_MAX)


def wait_graph_of(state: State, names: Iterable[str], prefix: str) -> tuple[list[GraphNode], list[Edge]]:
    """Return the wait graph around these names."""
    nodes: dict[str, GraphNode] = {}
    edges: list[Edge] = []
    holders: dict[str, Holder | None] = {}
    for name in _with_what_holders_want(state, names, prefix):
        lease = state.lease_of(name)
        holders[name] = holder = None if lease is None else holder_of_lease(lease)
        if lease is None or holder is None:
            nodes[f"nobody {name}"] = GraphNode(f"nobody {name}", "(nobody: it opens soon)")
        else:
            label = shown_as(lease.principal, lease.metadata) if lease.owner is None else lease.owner
            nodes.setdefault(_key(holder), GraphNode(_key(holder), label))
    wanted = set(holders.values())
    for name, holder in holders.items():
        _add_queue(state, name, f"nobody {name}" if holder is None else _key(holder), wanted, nodes, edges)
    return list(nodes.values()), edges


def _with_what_holders_want(state: State, names: Iterable[str], prefix: str) -> list[str]:
    """Return these names, those that their holders wait for, and so on, up to `NAMES_MAX`."""
    found = dict.fromkeys(names)
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


def _add_queue(  # noqa: PLR0917 - what is looked at, then what is added to
    state: State, name: str, holder: str, wanted: set[Holder | None], nodes: dict[str, GraphNode], edges: list[Edge]
) -> None:
    queue = state.connected.queues.get(name)
    if queue is None:
        return
    shown = idle = 0
    for _, ticket_id in islice(queue, WAITERS_SCANNED):
        ticket = state.tickets[ticket_id]
        waiter = holder_of_ticket(ticket)
        if waiter not in wanted:
            idle += 1
            if idle > WAITERS_SHOWN:
                continue
        key = _key(waiter)
        nodes.setdefault(key, GraphNode(key, owner_of(ticket.terms)))
        edges.append(Edge(key, name, holder))
        shown += 1
    if len(queue) > shown:
        crowd = f"crowd {name}"
        nodes[crowd] = GraphNode(crowd, f"{len(queue) - shown} more", len(queue) - shown)
        edges.append(Edge(crowd, name, holder))


def _key(holder: Holder) -> str:
    return "\n".join((holder[0], holder[1], holder[2] or ""))


def cycles_for(entries: Iterable[Entry[tuple[str, ...]]], prefix: str) -> list[tuple[tuple[str, ...], object]]:
    """Return the refused cycles that a reader may see, with their paths masked for it (see `masked`)."""
    found: list[tuple[tuple[str, ...], object]] = []
    for entry in entries:
        path = entry.what
        if prefix:
            if not any(name.startswith(prefix) for name in path[1::2]):
                continue
            # The requester holds the last name, so readers who may not see that name do not see the requester.
            path = (path[0] if path[-1].startswith(prefix) else HIDDEN, *masked(path, prefix)[1:])
        found.append((path, entry))
    return found


def waits(api: ApiService, context: RequestContext) -> None:
    prefix = context.caller.prefix or ""

    def view(state: State, now: Instant) -> tuple[list[str], int, int, list[GraphNode], list[Edge], Instant]:
        longest = longest_queues(state, prefix)
        return *longest, *wait_graph_of(state, longest[0], prefix), now

    async def respond() -> ResponseParts:
        seq = api.engine.state.seq
        names, queues, left_out, nodes, edges, now = await api.engine.query(view)
        label = {node.key: node.label for node in nodes}
        return await site.page(
            api,
            context,
            now,
            "waits.html",
            "waits",
            seq=seq,
            drawing=draw(nodes, edges),
            edges=[(label[edge.waiter], edge.name, label[edge.holder]) for edge in edges],
            queues=queues,
            queues_shown=len(names),
            left_out=left_out,
            cycles=cycles_for(api.refused_deadlocks.newest_first(api.engine.clock.monotonic_ms()), prefix),
            cycles_since_ms=api.refused_deadlocks.since_wall_ms,
        )

    api.answer_slowly(context, respond)
