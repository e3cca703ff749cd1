"""Nodes in one process, on one shelf in memory and a clock that is moved: ten minutes of a cluster take no time.

Watchers, engines, tenures and their logs are the real ones. What a node knows is asked of its `Node`, and what the
store knows of the shelf.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.api.auth.auth import StaticTokens
from holdfast.cluster.election import ElectionLoop
from holdfast.cluster.node import LeaderTerm, Node, begin_term
from holdfast.config import Settings
from holdfast.core.values import Limits
from holdfast.engine.engine import Engine
from holdfast.journal.interface import Leadership, Peer, Recovered, SharedJournal
from holdfast.server.components import OPERATIONS
from tests.support.shared_journal import SharedMemoryJournal, SharedShelf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.api.service import ApiService
    from holdfast.core.events import Record
    from holdfast.testing.clock import ManualClock

TOKEN = "ana-has-this-token"
STEP_SECONDS = 0.01


class StoreConnection:
    """How one node reaches the store: it can be cut, stopped, or answer with an error."""

    def __init__(self) -> None:
        self.is_stopped = False
        """Nothing is answered until `go_on`: as if the process were stopped, or the network."""
        self.read_error: Exception | None = None
        self.open_error: Exception | None = None
        self._again = asyncio.Event()

    async def answer(self) -> None:
        """Wait while nothing is answered."""
        while self.is_stopped:
            self._again.clear()
            await self._again.wait()

    def go_on(self) -> None:
        """Let everything be answered that waits."""
        self.is_stopped = False
        self._again.set()


class InterruptibleJournal(SharedMemoryJournal):
    """A journal behind wires."""

    def __init__(self, shelf: SharedShelf, peer: Peer, store: StoreConnection, *, term_id: str, wall_ms: int) -> None:
        super().__init__(shelf, peer, term_id=term_id, wall_ms=wall_ms)
        self._store = store

    async def read_leadership(self) -> Leadership:
        await self._store.answer()
        if self._store.read_error is not None:
            raise self._store.read_error
        return await super().read_leadership()

    async def open(self) -> Recovered:
        await self._store.answer()
        if self._store.open_error is not None:
            raise self._store.open_error
        return await super().open()

    async def append(self, batch: Sequence[Record]) -> None:
        await self._store.answer()
        await super().append(batch)

    async def confirm(self, now_ms: int) -> None:
        await self._store.answer()
        await super().confirm(now_ms)

    async def report(self, peer: Peer) -> None:
        await self._store.answer()
        await super().report(peer)


class LivingNode:
    """One node."""

    def __init__(self, name: str, process: str, shelf: SharedShelf, clock: ManualClock) -> None:
        self.peer = Peer(node=name, process=process, url=f"http://{name}:7420", version="test", format_max=9, tokens="")
        self.store = StoreConnection()
        self.prepared: list[int] = []
        """The epochs of the tenures that were prepared here."""
        self.node = Node(self.peer)
        self.node.links = 1  # As if another had a link to it: else a leader that nobody asks gives up (N-37).
        settings = Settings(data=Path("unused"))
        static = StaticTokens.parse(f"ana:{TOKEN}:read+claim+admin")

        async def begin(journal: SharedJournal, leadership: Leadership) -> LeaderTerm:
            engine = Engine(journal, Limits(), clock=clock, version="test")
            return await begin_term(leadership, engine, settings, static, OPERATIONS, self._prepare)

        self.election = ElectionLoop(
            self.node,
            journals=lambda term_id: InterruptibleJournal(
                shelf, self.peer, self.store, term_id=term_id, wall_ms=clock.wall_ms()
            ),
            start_term=begin,
            clock=clock,
            takeover_ms=2_000,
            jitter_ms=lambda: 50,
        )
        self.task = asyncio.ensure_future(self.election.run())

    @property
    def leads(self) -> bool:
        return self.node.term() is not None

    @property
    def follows(self) -> str | None:
        """The name of the node that this one follows."""
        leader = self.node.leader()
        return None if leader is None else leader.node

    @property
    def engine(self) -> Engine:
        """That of the tenure."""
        term_id = self.node.term()
        assert term_id is not None
        return term_id.engine

    def freeze(self) -> None:
        """Stop it as SIGSTOP would, for the store: nothing it sends arrives, and it hears nothing."""
        self.store.is_stopped = True

    def thaw(self) -> None:
        self.store.go_on()

    async def stop(self) -> None:
        """Tell it to stop, and wait until it has."""
        self.election.stop()
        await self.task

    async def _prepare(self, api: ApiService) -> None:
        self.prepared.append(api.engine.state.epoch)


class SimulatedCluster:
    """Nodes on one shelf."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.shelf = SharedShelf()
        self.nodes: list[LivingNode] = []

    def start(self, name: str, process: str | None = None) -> LivingNode:
        node = LivingNode(name, process or f"process of {name}", self.shelf, self.clock)
        self.nodes.append(node)
        return node

    async def until(self, happens: Callable[[], bool], seconds: float = 30) -> float:
        """Let time pass until something is so; return how many seconds it took."""
        began_ms = self.clock.monotonic_ms()
        while not happens():
            assert self.clock.monotonic_ms() - began_ms < seconds * 1000, "it does not happen"
            await asyncio.sleep(STEP_SECONDS)
        return (self.clock.monotonic_ms() - began_ms) / 1000

    async def end(self) -> None:
        """Stop every node that lives."""
        for node in self.nodes:
            node.thaw()
            node.election.stop()
        await asyncio.gather(*(node.task for node in self.nodes))
