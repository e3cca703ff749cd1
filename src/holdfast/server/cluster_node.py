"""A node of a cluster, from start to stop: its election loop, its link to the leader, and its current HTTP handler.

    election loop ──► node: who leads ──┬─► handler: the routes of our term, or the forwarder
                                        └─► link client: one link to the leader, for as long as it leads

It serves immediately, as a follower: requests wait a little until a leader is known. Only a signal ends the process, no
failure of the store or of a leader term. A leader that is asked to stop gives up the leadership before it closes its
connections, so another node leads meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from holdfast import __version__
from holdfast.api.auth.auth import StaticTokens
from holdfast.api.auth.secrets import AuthorityKey
from holdfast.api.handlers.metrics import FollowerMetrics
from holdfast.api.mounts import Mount, MountTable
from holdfast.api.service import ApiService
from holdfast.cluster.election import ElectionLoop
from holdfast.cluster.forwarder import Forwarder
from holdfast.cluster.link_follower import LinkClient, Security
from holdfast.cluster.link_leader import LinkServer, ProtocolDetector
from holdfast.cluster.node import FollowerHealth, LeaderTerm, Node, begin_term
from holdfast.cluster.watcher import JITTER_MS
from holdfast.config import Settings, parse_address
from holdfast.engine.build import FORMAT, Leadership, Peer, SharedJournal, shared_journals
from holdfast.engine.clock import SystemClock
from holdfast.engine.engine import Engine
from holdfast.engine.ids import drawn, new_secret
from holdfast.errors import SettingsError
from holdfast.extras import how_to_install
from holdfast.http.manager import ConnectionManager, Handler
from holdfast.http.proxies import Proxies
from holdfast.http.server import HttpServer, url_of
from holdfast.http.tls import Certificate
from holdfast.observability.logs import dropped_lines
from holdfast.observability.metrics import Meter, NodeRole
from holdfast.server.components import (
    EX_USAGE,
    OPERATIONS,
    StartError,
    archiving_of,
    limits_of,
    observers_of,
    retention_of,
)
from holdfast.server.first_access_token import FIRST_TOKEN, first_token, warn_of_hidden
from holdfast.wire.replies import SHARED

EXTRA = "postgres"
AGAIN_SECONDS = 1.0  # Between a bug in a background task and its restart.

log = logging.getLogger("holdfast.node")


class ClusterNode:
    """One node: the service of a server that has no data directory."""

    def __init__(
        self,
        settings: Settings,
        static: StaticTokens,
        tls: Certificate | None,
        listener: socket.socket,
        *,
        say: Callable[[str], None],
        journals: Callable[[Peer], Callable[[str], SharedJournal]] | None = None,
        mounts: Mapping[str, Mount] | None = None,
    ) -> None:
        """`say` prints to the operator. `journals` makes those of this node; None: as the settings say."""
        self.ended = asyncio.Event()  # Never set: another leader term may always come.
        self._settings = settings
        self._static = static
        self._say = say
        self._url = url_of(listener, tls)
        self._clock = clock = SystemClock()
        proxies = Proxies(settings.trusted_proxies)
        me = peer_of(settings, listener, tls)
        self.node = Node(me)
        self._meter = Meter(settings, clock)
        local = FollowerHealth(self.node, SHARED).handlers()
        local |= {b"/metrics": FollowerMetrics(self._meter, static).answer}
        counters = self._meter.sources.counters
        self._forwarder = Forwarder(self.node, settings, OPERATIONS, clock, proxies, local=local, counters=counters)
        self._election = ElectionLoop(
            self.node,
            journals=_journals_of(settings, me, clock) if journals is None else journals(me),
            start_term=self._begin,
            clock=clock,
            takeover_ms=settings.takeover_seconds * 1000,
            jitter_ms=lambda: drawn(JITTER_MS + 1),
            on_key=self._on_key,
        )
        self._links = LinkServer(self.node, settings, new_secret, insecure=settings.link_insecure)
        self._observers = observers_of(settings, clock, proxies, me.node)
        mounting = MountTable(mounts or {}, settings, proxies)
        self._manager = ConnectionManager(
            self._forwarder.handler(),
            settings,
            clock,
            proxies,
            wrap=lambda handler: self._observers.wrap(mounting.wrap(handler)),
        )
        self.server = HttpServer(
            self, self._manager, tls, lambda manager, handshake: ProtocolDetector(manager, self._links, handshake)
        )
        sources = self._meter.sources
        sources.role = self._role
        sources.connections = lambda: len(self._manager.connections)
        sources.lines_dropped = dropped_lines
        security = Security(settings.link_ca_file, insecure=settings.link_insecure)
        self._link_client = LinkClient(self.node, self._forwarder, self._manager, new_secret, security)
        self._election_task: asyncio.Task[None] | None = None

    async def _begin(self, journal: SharedJournal, leadership: Leadership) -> LeaderTerm:
        settings = self._settings
        engine = Engine(
            journal,
            limits_of(settings),
            clock=self._clock,
            version=__version__,
            archive_policy=archiving_of(settings),
            metrics=self._meter.sources.measures,
        )
        return await begin_term(leadership, engine, settings, self._static, OPERATIONS, self._prepare, self._meter)

    async def run(self, listener: socket.socket, greet: Callable[[], None]) -> None:
        background = [
            asyncio.create_task(_run_forever(self._link_client.run)),
            asyncio.create_task(_run_forever(self._update_handler)),
        ]
        self._election_task = asyncio.create_task(
            _run_forever(self._election.run, unless=lambda: self._election.is_stop_requested)
        )
        self._meter.start()
        try:
            await self.server.run(listener, greet)
        finally:
            self._meter.stop()
            self._election.stop()
            await asyncio.wait({self._election_task})
            for task in background:
                task.cancel()
            await asyncio.wait(background)
            self._observers.close()

    # What a server asks of it.

    def tick(self) -> None:
        term = self.node.term()
        if term is not None:
            term.api.tick()
        else:
            self._meter.tick()

    async def end_waits(self) -> None:
        """Give up the leadership: all waiters are answered, and another node can lead while connections are closed."""
        self._election.stop()
        self._forwarder.end()
        if self._election_task is not None:
            # It may have to resolve its last write. Connections are not kept for that.
            await asyncio.wait({self._election_task}, timeout=self._settings.stop_timeout_seconds)
        self._links.end_all()

    def _role(self) -> NodeRole:
        term, leader = self.node.term(), self.node.leader()
        leadership = leader if term is None else term.leadership
        epoch = None if leadership is None else leadership.epoch
        return NodeRole(term is not None, epoch, self.node.is_linked, self.node.links)

    # Who answers.

    async def _update_handler(self) -> None:
        # After a restart of this task the current handler is unknown.
        answering: LeaderTerm | str | None = "unknown"
        while True:
            term = self.node.term()
            if term is not answering:
                answering = term
                # A link to us is for one term.
                self._links.end_all()
                self._manager.set_handler(self._forwarder.handler() if term is None else self._handler_of(term))
            await self.node.wait_for_change()

    def _handler_of(self, term: LeaderTerm) -> Handler:
        name, epoch = self.node.me.node.encode(), b"%d" % term.leadership.epoch
        return term.routes.handler(((b"holdfast-node", name), (b"holdfast-epoch", epoch)))

    # What a leader term begins with.

    async def _prepare(self, api: ApiService) -> None:
        try:
            path = await first_token(api, self._url, self._settings)
        except StartError as error:
            log.error("%s", error)  # noqa: TRY400 - it says what to do
            path = None
        if path is not None:
            self._say(f"The first access token, {FIRST_TOKEN!r} with all scopes, is in {path}")
        warn_of_hidden(api)

    def _on_key(self, key: bytes) -> None:
        """Report a digest of the static tokens, by which nodes are compared (N-34)."""
        known = sorted((c.principal, c.digest, *sorted(c.scopes)) for c in self._static.callers.values())
        digest = AuthorityKey(key).mac("static tokens", msgspec.json.encode(known).decode()).hex()[:16]
        self.node.me = msgspec.structs.replace(self.node.me, tokens=digest)


async def _run_forever(run: Callable[[], Awaitable[None]], *, unless: Callable[[], bool] = lambda: False) -> None:
    """Run what should never end, and restart it if it ends by a bug, unless it was told to stop."""
    while True:
        try:
            await run()
        except Exception:
            log.exception("a bug in a node's life, or beside it; it is begun anew")
        if unless():
            return
        await asyncio.sleep(AGAIN_SECONDS)


def peer_of(settings: Settings, listener: socket.socket, tls: Certificate | None) -> Peer:
    host, _ = parse_address(settings.listen)
    port = listener.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    machine = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:80]
    return Peer(
        node=settings.node_name or f"{machine}:{port}",
        process=new_secret(16).hex(),
        url=settings.advertise or f"{'http' if tls is None else 'https'}://{shown}:{port}",
        version=__version__,
        format_max=FORMAT,
        tokens="",
    )


def _journals_of(settings: Settings, me: Peer, clock: SystemClock) -> Callable[[str], SharedJournal]:
    try:
        return shared_journals(settings, me, clock, retention_of(settings))
    except ModuleNotFoundError as error:
        text = f"PostgreSQL needs a part of Holdfast that is not installed ({error.name}): {how_to_install(EXTRA)}"
        raise StartError(text, EX_USAGE) from error
    except SettingsError as error:
        raise StartError(str(error), EX_USAGE) from error
