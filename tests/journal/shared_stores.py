"""Places of journals that several nodes share: one in memory, one in PostgreSQL with a way to it that can be broken."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from holdfast.journal.codec import FORMAT
from holdfast.journal.interface import Peer, Retention
from holdfast.journal.postgres.connection import addresses
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.leadership import NewAuthority, RollbackDetector
from tests.cluster.proxy import Fate, TcpProxy, pass_all
from tests.contract import suite as contract
from tests.support import postgres
from tests.support.checks import wait_until
from tests.support.shared_journal import SharedMemoryJournal, SharedShelf

FATES = {"before": Fate.BEFORE, "after": Fate.AFTER, "late": Fate.LATE}
KEY = b"k" * 32


def make_peer(node: str, *, format_max: int = FORMAT) -> Peer:
    """A node, in a process of its own."""
    url = f"http://{node}:7420"
    return Peer(node=node, process=uuid.uuid4().hex, url=url, version="0", format_max=format_max, tokens="")


class MemoryStore:
    """A shelf, and nodes on it."""

    def __init__(self, kind: Callable[..., SharedMemoryJournal] = SharedMemoryJournal) -> None:
        self.shelf = SharedShelf()
        self._kind = kind
        self._numbers = count(1)

    def __call__(self, *, retention: Retention) -> SharedMemoryJournal:
        peer = make_peer(f"node{next(self._numbers)}")
        return self._kind(self.shelf, peer, term_id=uuid.uuid4().hex, retention=retention)

    def lose_answer(self, fate: contract.Fate) -> None:
        """A shelf answers in the call itself."""

    async def deliver_all(self) -> None:
        """So nothing is on its way."""

    async def lose_records(self, after_seq: int) -> None:
        self.shelf.batches = [batch for batch in self.shelf.batches if batch[0] <= after_seq]


class PostgresStore:
    """A schema of a real PostgreSQL, and nodes that reach it through a proxy."""

    def __init__(self, server: postgres.Postgres | None = None, *, user: str | None = None, **options: object) -> None:
        """With `user`, nodes are that role, which owns nothing else and may do nothing else."""
        self.server = server or postgres.shared()
        self.schema = postgres.new_schema()
        self.proxy = TcpProxy(self.server.host, self.server.port)
        self.options = options
        self._user = user
        self._numbers = count(1)
        self.fail_over: Callable[[], None] = lambda: None
        """What a test does to the database in the middle of it."""
        self._due: list[Fate] = []
        self._may_be_cut: list[bytes] = []
        self._term_ids: list[bytes] = []
        self._processes: list[bytes] = []

    @property
    def url(self) -> str:
        url = self.server.url_of("postgres", self.proxy.port)
        return url.replace("postgres@", f"{self._user}@") if self._user else url

    def make_role(self) -> None:
        """Make the role and its schema, if the nodes have one of their own."""
        if self._user:
            self.sql(f"CREATE ROLE {self._user} LOGIN; CREATE SCHEMA {{s}} AUTHORIZATION {self._user}")

    def drop_role(self) -> None:
        if self._user:
            self.sql(f"DROP ROLE {self._user}")

    def __call__(self, *, retention: Retention | None = None, **options: object) -> PostgresJournal:
        peer = make_peer(f"node{next(self._numbers)}")
        return self.node(peer, retention=retention or Retention(), **options)

    def node(self, peer: Peer, **options: object) -> PostgresJournal:
        """The journal of one node."""
        term_id = uuid.uuid4().hex
        self._term_ids.append(term_id.encode())
        self._processes.append(peer.process.encode())
        given: dict[str, Any] = {
            "term_id": term_id,
            "schema": self.schema,
            "rollback_detector": RollbackDetector(),
            "new_authority": NewAuthority(uuid.uuid4().hex, KEY, 0),
            **self.options,
            **options,
        }
        kind: type[PostgresJournal] = given.pop("kind", PostgresJournal)
        return kind(self.url, peer, **given)

    def at(self, url: str, **options: Any) -> PostgresJournal:  # noqa: ANN401 - Passed on as they are.
        """The journal of one more node, which reaches the store another way."""
        made = self(**options)
        made._servers._addresses = addresses(url)
        return made

    def sql(self, statement: str) -> str:
        """Run a statement as the owner, not through the proxy; `{s}` stands for the schema."""
        return self.server.sql(statement.replace("{s}", self.schema))

    def lose_answer(self, fate: contract.Fate) -> None:
        # A node that is made later also names its tenure, in a read after it took the seat: that must not be cut.
        self._may_be_cut = list(self._term_ids)
        self._due.append(FATES[fate])
        self.proxy.draw = self._draw

    def _draw(self, piece: bytes) -> Fate:
        """Break the way under the next write of a leader: one that names a term, and no process."""
        is_write = any(term_id in piece for term_id in self._may_be_cut)
        if self._due and is_write and not any(process in piece for process in self._processes):
            return self._due.pop(0)
        return Fate.PASS

    async def deliver_all(self) -> None:
        assert not self._due, f"nothing met the fates {self._due}"
        await asyncio.to_thread(wait_until, lambda: self.proxy.connections == 0)

    async def lose_records(self, after_seq: int) -> None:
        await asyncio.to_thread(
            self.sql,
            f"DELETE FROM {{s}}.batch WHERE last_seq > {after_seq}; UPDATE {{s}}.seat SET last_seq = {after_seq}",
        )


@contextmanager
def postgres_store(
    server: postgres.Postgres | None = None, *, user: str | None = None, **options: object
) -> Iterator[PostgresStore]:
    """A store of its own for one test."""
    store = PostgresStore(server, user=user, **options)
    store.make_role()
    try:
        with store.proxy:
            yield store
    finally:
        store.proxy.draw = pass_all
        store.sql("DROP SCHEMA IF EXISTS {s} CASCADE")
        store.drop_role()
