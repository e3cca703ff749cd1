"""A node: a follower until the seat is free or silent, the leader for one tenure, then a follower again.

Whoever forwards asks `leader()` and `tenure()`, and waits for `wait_for_change()` when neither is there:

    tenure() is not None    we lead and serve: its routes and its door answer
    leader() is not None    another leads: its `url`, `epoch`, `tenure` and `authority` are in it
    neither                 nobody leads, or we do not know who
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.build import Peer, Seat
    from holdfast.server.nodes.tenure import Tenure


class Node:
    """Who leads, as this node knows it."""

    def __init__(self, me: Peer) -> None:
        self.me = me
        self.key = b""
        """The authority's key, by which nodes prove themselves to each other. Known whenever there is a leader."""
        self.links = 0
        """How many links of followers are open here. Whoever accepts them counts."""
        self.is_linked = False
        """Whether this node has an open link to the leader. Whoever opens it says so."""
        self._leader: Seat | None = None
        self._tenure: Tenure | None = None
        self._changed = asyncio.Event()

    def leader(self) -> Seat | None:
        """Return the seat of another node that leads: whom to pass requests on to. None: nobody, or it is us."""
        return self._leader

    def tenure(self) -> Tenure | None:
        """Return our tenure, if we lead and serve."""
        return self._tenure

    async def wait_for_change(self) -> None:
        """Wait until somebody else leads than now, or nobody."""
        await self._changed.wait()

    def _now(self, leader: Seat | None, tenure: Tenure | None) -> None:
        """Know who leads from now on, and tell all who wait for it."""
        self._leader, self._tenure = leader, tenure
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
