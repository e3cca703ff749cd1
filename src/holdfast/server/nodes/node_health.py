"""What a follower says of itself: whether it leads, whether it can pass requests on, how it is (N-34).

The paths are those of `handlers/health`, which answers them on the leader. A follower answers by itself: it is asked
whether it is of use, and must not ask another for that.

Anybody may ask. So it says in fixed words what is the case, and nothing of addresses and errors: those are in the log,
and `GET /nodes` has them for whoever has a token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.server.handlers.health import not_leader
from holdfast.server.render import encode
from holdfast.wire.replies import FOLLOWS, HealthReply, ReadyReply

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.server.http.messages import Request
    from holdfast.server.nodes.node import Node
    from holdfast.server.operations.call import Reply

NO_LINK = "this node follows, and has no link to the leader: its log says why"
REFUSES = "this node follows, and the leader refuses requests because the store does not answer it"
_OK, _NOT_READY = 200, 503


class FollowersHealth:
    """Answers for a node that follows."""

    def __init__(self, node: Node, storage: str) -> None:
        """`storage` is what kind of store it is, as the leader would say."""
        self._node = node
        self._storage = storage

    def answers(self) -> dict[bytes, Callable[[Request, Reply], Reply | None]]:
        """Return what answers each path."""
        return {b"/health/leader": self._leads, b"/readyz": self._ready, b"/health": self._health}

    def _leads(self, request: Request, reply: Reply) -> None:
        reply(request, *not_leader(self._words()))

    def _ready(self, request: Request, reply: Reply) -> None:
        is_of_use = self._is_of_use
        body = ReadyReply("ok" if is_of_use else "not_ready", self._words())
        reply(request, _OK if is_of_use else _NOT_READY, encode(body), ())

    def _health(self, request: Request, reply: Reply) -> None:
        is_of_use = self._is_of_use
        body = HealthReply("ok" if is_of_use else "unwell", self._storage, 0, self._words())
        reply(request, _OK if is_of_use else _NOT_READY, encode(body), ())

    @property
    def _is_of_use(self) -> bool:
        """Whether what is asked here would be answered by the leader, as far as is known."""
        return self._node.is_linked and self._node.is_served

    def _words(self) -> str:
        has_leader = self._node.leader() is not None
        if has_leader and self._is_of_use:
            return FOLLOWS
        if self._node.public_trouble is not None:
            return self._node.public_trouble
        if not has_leader:
            return "no node leads now"
        return REFUSES if self._node.is_linked else NO_LINK
