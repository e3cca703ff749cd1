"""Our server as one of several nodes on a PostgreSQL: pressed at the leader, and through a follower.

Both have the same store and the same two nodes. Which one is pressed is all the difference.
"""

from __future__ import annotations

import importlib.util
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING

from benchmarks.systems.base import Tools, ask
from benchmarks.systems.holdfast import Holdfast
from benchmarks.systems.postgres import Postgres
from benchmarks.systems.process import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.systems.process import Child

_OK = 200


class _Node(Holdfast):
    """One node. The first one that is started leads."""

    def __init__(self, tools: Tools, name: str) -> None:
        super().__init__(tools)
        self._settings = {**self._settings, "node_name": name}

    def join(self, store: str) -> None:
        """Be one of the nodes on a store."""
        self._settings = {**self._settings, "store": store}


class OnPostgres(_Node):
    """The leader of two nodes."""

    key = "store"
    title = "Holdfast on PostgreSQL, its leader"
    how_to_get = "apt install postgresql; make install"
    health_path = "/health/leader"

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools, "pressed")

    def missing(self) -> str | None:
        if importlib.util.find_spec("asyncpg") is None:
            return "no asyncpg"
        return super().missing() or Postgres(self.tools).missing()

    @contextmanager
    def running(self, folder: Path) -> Iterator[Child]:
        """Start a PostgreSQL, then both nodes; the one that is to be pressed is the child."""
        store, other = Postgres(self.tools), _Node(self.tools, "other")
        with ExitStack() as stack:
            stack.enter_context(store.running(folder / "store"))
            for node in (self, other):
                node.join(store.url)
            first, second = self._in_order(other)
            first_child = stack.enter_context(_started(first, folder))
            second_child = stack.enter_context(_started(second, folder))
            yield first_child if first is self else second_child

    def _in_order(self, other: _Node) -> tuple[_Node, _Node]:
        """Return both nodes as they are started: the first one leads."""
        return self, other


class ThroughFollower(OnPostgres):
    """The other one of two nodes, which passes everything on to the leader."""

    key = "follower"
    title = "Holdfast on PostgreSQL, through a follower"
    health_path = "/readyz"

    def _in_order(self, other: _Node) -> tuple[_Node, _Node]:
        return other, self

    def _prepare(self) -> None:
        if ask(self.port, "GET", "/health/leader")[0] == _OK:
            raise StartError("the node that is to be pressed leads")


def _started(node: _Node, folder: Path) -> AbstractContextManager[Child]:
    return Holdfast.running(node, folder / ("pressed" if isinstance(node, OnPostgres) else "other"))
