"""Who waits for whom: read from the state, and drawn; and the circles that were refused. All of it bounded."""

from __future__ import annotations

import sys
from itertools import pairwise

import pytest

from holdfast.api.service import ENTRIES_MAX, PER_PRINCIPAL_MAX, RETENTION_MS, Entry, RecentEvents
from holdfast.dashboard.waits import (
    NAMES_MAX,
    QUEUES_SHOWN,
    WAITERS_SHOWN,
    Edge,
    GraphNode,
    cycles_for,
    draw,
    longest_queues,
    wait_graph_of,
)
from tests.core.bare_core import Core
from tests.support.steps import count_steps


def found(core: Core, prefix: str = "") -> tuple[set[str], set[tuple[str, str, str]]]:
    """Labels, and edges by label."""
    names, _, _ = longest_queues(core.state, prefix)
    graph_nodes, edges = wait_graph_of(core.state, names, prefix)
    label = {node.key: node.label for node in graph_nodes}
    return set(label.values()), {(label[edge.waiter], edge.name, label[edge.holder]) for edge in edges}


# From the state.


def test_wait_graph_has_entire_chain() -> None:
    """Who waits, for which name, and who holds it: up to the one who waits for nobody."""
    core = Core()
    core.hold("docs", owner="ana")
    core.hold("deploy", owner="ben")
    core.hold("schema", owner="cem")
    core.want("deploy", "ana")
    core.want("schema", "ben")
    assert found(core) == (
        {"ana", "ben", "cem"},
        {("ana", "deploy", "ben"), ("ben", "schema", "cem")},
    )


def test_wait_graph_omits_disconnected_waiters() -> None:
    """A place whose request is gone for the moment is no edge."""
    core = Core()
    core.hold("deploy", owner="ben")
    core.want("deploy", "ana")
    core.state.detach("t-ana-deploy", 0)
    assert found(core) == (set(), set())


def test_a_prefix_hides_all_else() -> None:
    """A confined reader sees the lines for names within its prefix, and neither name nor owner of any other."""
    core = Core()
    core.hold("web/a", owner="ana")
    core.hold("web/b", owner="ben")
    core.hold("db/x", owner="secret-owner")
    core.want("web/b", "ana")
    core.want("db/x", "ben")
    core.want("db/x", "other-secret")
    assert found(core, "web/") == ({"ana", "ben"}, {("ana", "web/b", "ben")})
    assert ("ben", "db/x", "secret-owner") in found(core)[1]


def test_wait_graph_shortens_long_queue() -> None:
    """Of many who hold nothing, the first are shown and the others counted; one who is waited for is always shown."""
    core = Core()
    core.hold("deploy", owner="ben")
    for number in range(30):
        core.want("deploy", f"w{number}")
    core.hold("docs", owner="w20")
    core.want("docs", "ana")
    labels, edges = found(core)
    assert f"{30 - WAITERS_SHOWN - 1} more" in labels
    assert ("w20", "deploy", "ben") in edges
    assert len(labels) == 1 + WAITERS_SHOWN + 1 + 1 + 1


def test_wait_graph_cost_is_bounded_by_its_size() -> None:
    """However many names have queues and however long these are, a graph takes a bounded number of steps."""
    core = Core()
    for number in range(400):
        core.hold(f"n{number}", owner=f"h{number}")
        core.want(f"n{number}", f"w{number}")
    for number in range(600):
        core.want("n7", f"x{number}")
    names, lines, left_out = longest_queues(core.state, "")
    assert len(names) == QUEUES_SHOWN and names[0] == "n7" and (lines, left_out) == (400, 0)
    assert count_steps(lambda: wait_graph_of(core.state, names, "")) < 200 * NAMES_MAX


# Drawn.


def graph_nodes(*keys: str) -> tuple[GraphNode, ...]:
    return tuple(GraphNode(key, key) for key in keys)


def test_wait_graph_places_holders_left_of_waiters() -> None:
    """The column of a knot is the length of its longest chain; arrows lead to the left."""
    edges = [Edge("ana", "deploy", "ben"), Edge("ben", "schema", "cem"), Edge("dan", "schema", "cem")]
    drawn = draw(graph_nodes("ana", "ben", "cem", "dan"), edges)
    x = {box.node.key: box.x for box in drawn.boxes}
    assert x["cem"] < x["ben"] == x["dan"] < x["ana"]
    assert not any(arrow.closes_cycle for arrow in drawn.arrows)
    assert all(box.x + box.width <= drawn.width and box.y + box.height <= drawn.height for box in drawn.boxes)


def test_no_two_boxes_overlap() -> None:
    """Every box has a place of its own."""
    edges = [Edge(f"w{number}", "x", f"h{number % 3}") for number in range(20)]
    drawn = draw(graph_nodes("h0", "h1", "h2", *(f"w{number}" for number in range(20))), edges)
    assert len({(box.x, box.y) for box in drawn.boxes}) == 23


def test_wait_graph_marks_cycle() -> None:
    """A circle does not end the drawing, and its closing edge is marked."""
    edges = [Edge("a", "x", "b"), Edge("b", "y", "c"), Edge("c", "z", "a"), Edge("d", "x", "b")]
    drawn = draw(graph_nodes("a", "b", "c", "d"), edges)
    assert [arrow.closes_cycle for arrow in drawn.arrows].count(True) == 1
    assert len(drawn.boxes) == 4


def test_several_names_between_two_are_one_arrow() -> None:
    """Who waits for two names of the same holder has one arrow with both."""
    drawn = draw(graph_nodes("a", "b"), [Edge("a", "x", "b"), Edge("a", "y", "b")])
    assert [arrow.names for arrow in drawn.arrows] == [["x", "y"]]


def test_a_long_chain_is_drawn() -> None:
    """The longest chain that is shown is drawn, each knot in a column of its own."""
    keys = [f"k{number}" for number in range(NAMES_MAX + 1)]
    edges = [Edge(one, "n", other) for one, other in pairwise(keys)]
    drawn = draw(graph_nodes(*keys), edges)
    assert len({box.x for box in drawn.boxes}) == NAMES_MAX + 1


def test_a_chain_in_the_state_is_cut_far_below_the_recursion_limit() -> None:
    """The layout recurses along a chain: of a longer one only `NAMES_MAX` names are drawn."""
    core = Core()
    for number in range(2 * NAMES_MAX):
        core.hold(f"n{number}", owner=f"h{number}")
        core.want(f"n{number}", f"h{number - 1}")
    drawn = draw(*wait_graph_of(core.state, ["n0"], ""))
    assert len({box.x for box in drawn.boxes}) == NAMES_MAX + 1
    assert sys.getrecursionlimit() > 10 * NAMES_MAX


# Circles that were refused, and all else that is kept for a day.


PATH = ("ana", "web/b", "ben", "db/x", "cem", "web/a")
"""Ana wants web/b, which ben holds, who wants db/x, which cem holds, who wants web/a, which ana holds."""


@pytest.mark.parametrize(
    ("prefix", "shown"),
    [
        ("", PATH),
        ("web/", ("ana", "web/b", "ben", "(hidden)", "(hidden)", "web/a")),
        ("db/", ("(hidden)", "(hidden)", "(hidden)", "db/x", "cem", "(hidden)")),
        ("else/", None),
    ],
)
def test_refused_deadlock_is_masked_by_prefix(prefix: str, shown: tuple[str, ...] | None) -> None:
    """A name outside of the prefix is hidden, and so is whoever holds it; a circle without any other is not shown."""
    cycles = cycles_for([Entry(PATH, "p", 1, 2, 2)], prefix)
    assert [path for path, _ in cycles] == ([] if shown is None else [shown])


def note(recent: RecentEvents[str], what: str, principal: str = "p", now_ms: int = 0) -> None:
    recent.note(what, principal, now_ms=now_ms, wall_ms=now_ms)


def entries_of(recent: RecentEvents[str], now_ms: int = 0) -> list[tuple[str, int]]:
    return [(entry.what, entry.count) for entry in recent.newest_first(now_ms)]


def test_the_same_again_is_counted() -> None:
    """What is said again is one entry, the newest, with a count."""
    recent: RecentEvents[str] = RecentEvents(0)
    for what in ("a", "b", "a", "a"):
        note(recent, what)
    assert entries_of(recent) == [("a", 3), ("b", 1)]


def test_a_day_later_it_is_forgotten() -> None:
    """What was last said more than a day ago is dropped."""
    recent: RecentEvents[str] = RecentEvents(0)
    note(recent, "old")
    note(recent, "new", now_ms=1_000)
    assert entries_of(recent, RETENTION_MS) == [("new", 1), ("old", 1)]
    assert entries_of(recent, RETENTION_MS + 1) == [("new", 1)]


def test_recent_events_are_limited_per_principal() -> None:
    """One principal has a share, and beyond the room for all the eldest of whoever has most goes."""
    recent: RecentEvents[str] = RecentEvents(0)
    note(recent, "mine", "quiet")
    for number in range(10 * ENTRIES_MAX):
        note(recent, f"loud {number}", "loud")
    assert len(entries_of(recent)) == 1 + PER_PRINCIPAL_MAX
    for number in range(10 * ENTRIES_MAX):
        note(recent, f"many {number}", f"loud {number % 20}")
    assert len(entries_of(recent)) == ENTRIES_MAX
    assert ("mine", 1) in entries_of(recent)
