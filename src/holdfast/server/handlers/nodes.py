"""GET /nodes: who leads, since when, and which nodes are there.

A store that nodes share knows them all, so the answer is the store's. On a directory there is one node: this one.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Literal, cast

from holdfast import __version__
from holdfast.server.render import encode
from holdfast.server.times import rfc3339
from holdfast.wire.replies import NodeReply, NodesReply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.core.state import State
    from holdfast.core.values import Moment
    from holdfast.engine.build import Peer, Seat, SharedJournal
    from holdfast.server.api import Api
    from holdfast.server.operations.call import Call
    from holdfast.server.render import Answered

SILENT_MS = 10_000
"""A node that was not heard of for so long is said to be silent: it stopped, or cannot reach the store."""
_OK = 200


def nodes(api: Api, call: Call) -> None:
    """GET /nodes."""

    async def look() -> Answered:
        return _OK, encode(await found(api)), ()

    api.answer_later(call, look)


async def found(api: Api) -> NodesReply:
    """Return who leads and who is there."""
    journal = api.engine.journal
    if not journal.is_shared:
        return await _found_alone(api)
    shared = cast("SharedJournal", journal)
    return reply_of(await shared.look(), await shared.peers())


def reply_of(seat: Seat, peers: Sequence[Peer]) -> NodesReply:
    """Say who has the seat and who told the store of itself: the leader first, then the others by name."""
    leader = seat.node if seat.is_held else None
    others = sorted((peer for peer in peers if not _is_leader(peer, seat)), key=lambda peer: peer.node)
    shown = [_shown(peer) for peer in others]
    if leader is not None:
        # Whoever writes under the seat is heard of by that, before and between its own reports.
        seen_ms_ago = min((peer.seen_ms_ago for peer in peers if peer.process == seat.process), default=0)
        shown.insert(0, NodeReply(leader, seat.url, "leader", seat.version, seen_ms_ago))
    since = rfc3339(seat.since_wall_ms) if seat.is_held else None
    return NodesReply(leader, seat.epoch, since, seat.authority, shown)


def _is_leader(peer: Peer, seat: Seat) -> bool:
    """Tell whether it is the one that has the seat. Another process of the same name, heard of just now, is not."""
    return seat.is_held and peer.node == seat.node and (peer.process == seat.process or peer.seen_ms_ago >= SILENT_MS)


def _shown(peer: Peer) -> NodeReply:
    role: Literal["follower", "silent"] = "silent" if peer.seen_ms_ago >= SILENT_MS else "follower"
    return NodeReply(peer.node, peer.url, role, peer.version, peer.seen_ms_ago)


async def _found_alone(api: Api) -> NodesReply:
    """Return the one node that a directory has: it leads since it started."""
    name = socket.gethostname()
    up_ms = api.engine.clock.monotonic_ms() - api.started_ms

    def view(state: State, now: Moment) -> NodesReply:
        me = NodeReply(name, api.settings.public_url, "leader", __version__, 0)
        return NodesReply(name, state.epoch, rfc3339(now.wall_ms - up_ms), None, [me])

    return await api.engine.look(view)
