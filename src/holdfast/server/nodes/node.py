"""Who leads, as one node knows it. Whoever passes requests on asks this, and `node_life` finds it out.

tenure() is not None    we lead and serve: its routes answer
leader() is not None    another leads: its `url`, `epoch`, `tenure` and `authority` are in it
neither                 nobody leads, or we do not know who: `why_nobody()` says what is known
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
        self.is_served = True
        """Whether the leader at the other end answers what it is asked, as far as it has said."""
        self.hurry = asyncio.Event()
        """Set when the next look at the store should come at once."""
        self.trouble: str | None = None
        """Why it cannot be found out who leads, or why this node could not lead; None if neither is so."""
        self.public_trouble: str | None = None
        """The same in fixed words, without addresses and errors: anybody may hear them."""
        self._leader: Seat | None = None
        self._tenure: Tenure | None = None
        self._changed = asyncio.Event()

    def leader(self) -> Seat | None:
        """Return the seat of another node that leads: whom to pass requests on to. None: nobody, or it is us."""
        return self._leader

    def tenure(self) -> Tenure | None:
        """Return our tenure, if we lead and serve."""
        return self._tenure

    @property
    def serves(self) -> bool:
        """Whether we lead and answer what is asked: not while the store is silent (N-19)."""
        return self._tenure is not None and self._tenure.engine.serves

    async def wait_for_change(self) -> None:
        """Wait until somebody else leads than now, or nobody."""
        await self._changed.wait()

    def look_soon(self) -> None:
        """Let the store be looked at soon: who leads may have changed. A link that is lost is a reason to say so."""
        self.hurry.set()

    def why_nobody(self) -> str:
        """Say why no node is known to lead."""
        return self.trouble or "no node leads now"

    def tell(self, leader: Seat | None, tenure: Tenure | None) -> None:
        """Know who leads from now on, and wake all who wait for it. Another beat is no change."""
        if tenure is self._tenure and _is_same(leader, self._leader):
            return
        self._leader, self._tenure = leader, tenure
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _is_same(one: Seat | None, other: Seat | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.epoch, one.tenure, one.url) == (other.epoch, other.tenure, other.url)
