"""Keeps a follower's link to whoever leads: one link, for one tenure, opened anew when either is over.

    nobody leads, or we do ──► wait
    another leads ──► connect, prove ──► open ──► until the link is lost, or another tenure is known
                          └─ it failed: again soon, and said once

A link is not ended because nobody is known to lead: the store may be away, and the leader well. It is ended as soon as
another tenure is known: the old leader may be stopped, and would never answer.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING, Protocol

from holdfast.server.nodes.link.follower import Link, Owner, Security, connect
from holdfast.server.nodes.link.frames import NONCE_BYTES
from holdfast.server.nodes.link.handshake import Bond, FollowersHandshake, HandshakeError
from holdfast.tlswords import trouble

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.build import Seat
    from holdfast.server.http.manager import ConnectionManager
    from holdfast.server.nodes.node import Node

LOOK_SECONDS = 0.1
"""How soon a leader is called again that could not be reached, and how often it is looked who leads."""

log = logging.getLogger("holdfast.server.nodes")


class PassesOn(Owner, Protocol):
    """Who passes requests on over the link."""

    def link_opened(self, link: Link, epoch: int) -> None:
        """Know that requests can be passed on."""

    def hand_over_soon(self) -> None:
        """Look whether somebody can answer what is held."""


class Linking:
    """Keeps the link of one node."""

    def __init__(
        self,
        node: Node,
        passes_on: PassesOn,
        manager: ConnectionManager,
        new_secret: Callable[[int], bytes],
        security: Security | None = None,
    ) -> None:
        """`new_secret` makes random bytes."""
        self._node = node
        self._passes_on = passes_on
        self._manager = manager
        self._new_secret = new_secret
        self._security = security or Security()
        self._told: object = None
        """Which failure to reach a leader was logged last."""

    async def run(self) -> None:
        """Keep a link to whoever leads. Ends only when it is cancelled."""
        while True:
            seat = self._node.leader()
            if seat is None or self._node.tenure() is not None:
                self._passes_on.hand_over_soon()
                await self._change()
            else:
                await self._follow(seat)

    async def _follow(self, seat: Seat) -> None:
        """Have a link for one tenure, until that or the link is over."""
        bond = Bond(seat.authority, seat.epoch, seat.tenure, self._node.key)
        link = Link(self._manager, FollowersHandshake(bond, self._new_secret(NONCE_BYTES)), self._passes_on)
        opening = asyncio.ensure_future(connect(seat.url, link, self._security))
        try:
            while not opening.done() and self._is_for(seat):
                await self._change(opening)
            if not opening.done():
                return
            if not self._is_open(opening, seat):
                await self._change()
                return
            if self._told is not None:
                self._told = None
                log.warning("the leader %s at %s is reached again", seat.node, seat.url)
            self._passes_on.link_opened(link, seat.epoch)
            while not link.is_over and self._is_for(seat):
                await self._change(link.closed)
        finally:
            opening.cancel()
            link.end(at_once=True)

    def _is_open(self, opening: asyncio.Future[None], seat: Seat) -> bool:
        """Tell whether a link is open, and log why not: once for each reason."""
        error = opening.exception()
        if error is None:
            return True
        if not isinstance(error, OSError | HandshakeError | ValueError):
            raise error
        reason = str(error) or "it does not answer"
        if isinstance(error, ssl.SSLError):
            reason = ": ".join(trouble(error))
        if self._told != (seat.url, reason):
            self._told = seat.url, reason
            log.warning("the leader %s at %s cannot be reached: %s", seat.node, seat.url, reason)
        return False

    def _is_for(self, seat: Seat) -> bool:
        """Tell whether a link for this tenure is still of use: nobody else is known to lead."""
        if self._node.tenure() is not None:
            return False
        leader = self._node.leader()
        return leader is None or (leader.epoch, leader.tenure) == (seat.epoch, seat.tenure)

    async def _change(self, other: asyncio.Future[None] | None = None) -> None:
        """Wait until somebody else may lead, or something else is done; and not for long."""
        changed = asyncio.ensure_future(self._node.wait_for_change())
        both: set[asyncio.Future[None]] = {changed} if other is None else {changed, other}
        try:
            await asyncio.wait(both, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
