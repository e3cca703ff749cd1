"""Health, readiness, counters, and the nodes: operations for people and machines that look after the server.

A store that nodes share knows all nodes, so `GET /nodes` asks it. With a data directory there is one node: this one.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Literal, cast

from holdfast import __version__
from holdfast.api.context import RequestContext
from holdfast.api.rendering import encode, rfc3339
from holdfast.api.service import ApiService
from holdfast.core.state import State
from holdfast.core.values import Instant
from holdfast.engine.build import Leadership, Peer, SharedJournal
from holdfast.http.messages import ResponseParts
from holdfast.wire.replies import LEADS, HealthReply, NodeReply, NodesReply, ReadyReply, StatusReply

CONFIRMED_MS_MAX = 1_000
REFUSED = "the store refuses writes: the log says why"


def health(api: ApiService, context: RequestContext) -> None:
    store = api.engine.journal.health()
    serving = api.engine.tick() is not None
    well = serving and store.takes_claims
    details = store.text if serving else api.engine.why_not_serving()
    body = HealthReply("ok" if well else "unwell", store.storage, store.size_bytes, details, store.free_bytes)
    context.answer((200 if well else 503, encode(body), ()))


def alive(_api: ApiService, context: RequestContext) -> None:
    context.answer((200, encode(ReadyReply("ok", "alive")), ()))


def ready(api: ApiService, context: RequestContext) -> None:
    if api.engine.tick() is None:
        context.answer((503, encode(ReadyReply("not_ready", api.engine.why_not_serving())), ()))
    elif not api.engine.journal.takes_claims and not (store := api.engine.journal.health()).takes_claims:
        context.answer((503, encode(ReadyReply("not_ready", store.text)), ()))
    elif api.engine.is_refused:
        context.answer((503, encode(ReadyReply("not_ready", REFUSED)), ()))
    else:
        context.answer((200, encode(ReadyReply("ok", "the journal takes writes")), ()))


def leader(api: ApiService, context: RequestContext) -> None:
    """GET /health/leader: this node leads, and knows it: of a shared store that is a second old at most (N-34)."""
    engine = api.engine
    if engine.tick() is None:
        context.answer(not_leader(engine.why_not_serving()))
    elif engine.journal.is_shared and ((ago_ms := engine.confirmed_ms_ago()) is None or ago_ms > CONFIRMED_MS_MAX):
        context.answer(not_leader("the store has not confirmed that for a second"))
    elif engine.is_refused:
        context.answer(not_leader(f"{LEADS}, and {REFUSED}"))
    else:
        context.answer((200, encode(ReadyReply("ok", f"{LEADS}, epoch {engine.state.epoch}")), ()))


def not_leader(why: str) -> ResponseParts:
    return 503, encode(ReadyReply("not_leader", why)), ()


def status(api: ApiService, context: RequestContext) -> None:
    uptime = (api.engine.clock.monotonic_ms() - api.started_ms) // 1000

    def view(state: State, now: Instant) -> ResponseParts:
        counters = StatusReply(
            "ok",
            uptime,
            len(state.index.held),
            len(state.tokens) + len(api.auth.static.callers),
            api.engine.feed.tally.grants + api.counters.reacquires,
            api.engine.feed.tally.releases,
            __version__,
            rfc3339(now.wall_ms),
            api.settings.resource_lock_timeout,
            api.counters.refusals,
        )
        return 200, encode(counters), ()

    api.read(context, view)


SILENT_MS = 10_000  # A silent node was not heard of for so long: it stopped, or cannot reach the store.


def nodes(api: ApiService, context: RequestContext) -> None:
    async def respond() -> ResponseParts:
        return 200, encode(await read_nodes(api)), ()

    api.answer_slowly(context, respond)


async def read_nodes(api: ApiService) -> NodesReply:
    journal = api.engine.journal
    if not journal.is_shared:
        return await _read_single_node(api)
    shared = cast("SharedJournal", journal)
    return reply_of(await shared.read_leadership(), await shared.peers())


def reply_of(leadership: Leadership, peers: Sequence[Peer]) -> NodesReply:
    leader = leadership.node if leadership.is_held else None
    others = sorted((peer for peer in peers if not _is_leader(peer, leadership)), key=lambda peer: peer.node)
    shown = [_node_reply(peer) for peer in others]
    if leader is not None:
        # Whoever writes under the seat is heard of by that, before and between its own reports.
        seen_ms_ago = min((peer.seen_ms_ago for peer in peers if peer.process == leadership.process), default=0)
        shown.insert(0, NodeReply(leader, leadership.url, "leader", leadership.version, seen_ms_ago))
    since = rfc3339(leadership.since_wall_ms) if leadership.is_held else None
    return NodesReply(leader, leadership.epoch, since, leadership.authority, shown)


def _is_leader(peer: Peer, leadership: Leadership) -> bool:
    """Tell whether it is the one that has the seat. Another process of the same name, heard of just now, is not."""
    return (
        leadership.is_held
        and peer.node == leadership.node
        and (peer.process == leadership.process or peer.seen_ms_ago >= SILENT_MS)
    )


def _node_reply(peer: Peer) -> NodeReply:
    role: Literal["follower", "silent"] = "silent" if peer.seen_ms_ago >= SILENT_MS else "follower"
    return NodeReply(peer.node, peer.url, role, peer.version, peer.seen_ms_ago)


async def _read_single_node(api: ApiService) -> NodesReply:
    name = socket.gethostname()
    up_ms = api.engine.clock.monotonic_ms() - api.started_ms

    def view(state: State, now: Instant) -> NodesReply:
        me = NodeReply(name, api.settings.public_url, "leader", __version__, 0)
        return NodesReply(name, state.epoch, rfc3339(now.wall_ms - up_ms), None, [me])

    return await api.engine.query(view)
