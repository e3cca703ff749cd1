"""The leader as one node knows it, our own leader term, and the health endpoints of a follower.

term() is not None      we lead and serve: its routes answer
leader() is not None    another leads: its `url`, `epoch`, `term` and `authority` are in it
neither                 no leader, or none is known: `trouble` says why

`election` finds the leader. A term is a journal, an engine and all that answers from it, made together and thrown away
together (N-18).
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import msgspec

from holdfast.api.auth.auth import Auth, StaticTokens
from holdfast.api.auth.secrets import AuthorityKey
from holdfast.api.context import Reply
from holdfast.api.handlers.health import not_leader
from holdfast.api.operation import Operation
from holdfast.api.rendering import encode
from holdfast.api.router import Routes
from holdfast.api.service import ApiService
from holdfast.config import Settings
from holdfast.engine.build import Leadership, Peer
from holdfast.engine.engine import Engine
from holdfast.http.messages import Request
from holdfast.observability.event_log import EventLog
from holdfast.observability.metrics import Meter
from holdfast.wire.replies import FOLLOWS, HealthReply, ReadyReply

NO_LINK = "this node follows, and has no link to the leader: its log says why"
REFUSES = "this node follows, and the leader refuses requests because the store does not answer it"
_OK, _NOT_READY = 200, 503


class Node:
    def __init__(self, me: Peer) -> None:
        self.me = me
        self.key = b""  # The authority's, by which nodes prove themselves. Known whenever there is a leader.
        self.links = 0
        self.is_linked = False  # Whether this node has an open link to the leader.
        self.is_served = True  # Whether the leader answers requests, as far as it has said.
        self.wake_up = asyncio.Event()
        self.trouble: str | None = None  # Fixed words, seen unauthenticated: why no leader is known, or we cannot lead.
        self._leader: Leadership | None = None
        self._term: LeaderTerm | None = None
        self._changed = asyncio.Event()

    def leader(self) -> Leadership | None:
        return self._leader

    def term(self) -> LeaderTerm | None:
        return self._term

    @property
    def serves(self) -> bool:
        """Whether we lead and answer requests: not while the store is silent (N-19)."""
        return self._term is not None and self._term.engine.is_serving

    async def wait_for_change(self) -> None:
        await self._changed.wait()

    def poll_soon(self) -> None:
        self.wake_up.set()

    def set_leader(self, leader: Leadership | None, term: LeaderTerm | None) -> None:
        """Set the leader and wake all who wait for a change. A heartbeat alone is not a change."""
        if term is self._term and _identity_of(leader) == _identity_of(self._leader):
            return
        self._leader, self._term = leader, term
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _identity_of(leadership: Leadership | None) -> tuple[int, str, str] | None:
    return None if leadership is None else (leadership.epoch, leadership.term_id, leadership.url)


class FollowerHealth(msgspec.Struct, eq=False):
    """The health endpoints of a follower (N-34), as `handlers/health` answers them on the leader.

    Callers are unauthenticated: responses have fixed words. Addresses and errors are in the log, and in `GET /nodes`.
    """

    node: Node
    storage: str  # The kind of store, as the leader would say.

    def handlers(self) -> dict[bytes, Callable[[Request, Reply], Reply | None]]:
        return {b"/health/leader": self._leads, b"/readyz": self._ready, b"/health": self._health}

    def _leads(self, request: Request, reply: Reply) -> None:
        reply(request, *not_leader(self._detail()))

    def _ready(self, request: Request, reply: Reply) -> None:
        body = ReadyReply("ok" if self._is_ready else "not_ready", self._detail())
        reply(request, _OK if self._is_ready else _NOT_READY, encode(body), ())

    def _health(self, request: Request, reply: Reply) -> None:
        body = HealthReply("ok" if self._is_ready else "unwell", self.storage, 0, self._detail())
        reply(request, _OK if self._is_ready else _NOT_READY, encode(body), ())

    @property
    def _is_ready(self) -> bool:
        return self.node.is_linked and self.node.is_served

    def _detail(self) -> str:
        has_leader = self.node.leader() is not None
        if has_leader and self._is_ready:
            return FOLLOWS
        if self.node.trouble is not None:
            return self.node.trouble
        if not has_leader:
            return "no node leads now"
        return REFUSES if self.node.is_linked else NO_LINK


class CountedRoutes(Routes):
    """Routes that count their requests: a leader without requests may be unreachable (N-37)."""

    requests = 0

    def handle(self, request: Request, reply: Reply) -> None:
        self.requests += 1
        super().handle(request, reply)


class LeaderTerm(msgspec.Struct, eq=False):
    leadership: Leadership  # As we took it.
    engine: Engine
    api: ApiService
    routes: CountedRoutes
    events: EventLog | None = None

    async def end(self) -> None:
        try:
            self.api.meter.sources.stop_serving(self.engine)
            self.engine.feed.close()
            self.engine.end_waits()
            self.api.end()
        finally:
            await self.engine.stop()
            if self.events is not None:
                self.events.end()
            gc.unfreeze()


async def begin_term(  # noqa: PLR0917 - the parts of a term
    leadership: Leadership,
    engine: Engine,
    settings: Settings,
    static: StaticTokens,
    operations: tuple[Operation, ...],
    prepare: Callable[[ApiService], Awaitable[None]],
    meter: Meter | None = None,
) -> LeaderTerm:
    """Acquire the leadership and get ready to serve. Raises as `Journal.open` does; then nothing of it is left."""
    await engine.start()
    try:
        if engine.key is None:
            raise RuntimeError("the store gave no key of its authority")
        api = ApiService(engine, Auth(static, AuthorityKey(engine.key)), settings, meter)
        await prepare(api)
        routes = CountedRoutes(api, operations)
    except BaseException:
        await engine.stop()
        raise
    # What was loaded stays for the whole term: the garbage collector need not visit it.
    gc.freeze()
    events = EventLog(engine) if settings.log_events else None
    return LeaderTerm(msgspec.structs.replace(leadership, epoch=engine.state.epoch), engine, api, routes, events)
