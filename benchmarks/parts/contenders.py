"""What a Python user may pick to claim a job and give it back: ours, the same by hand, and others by their own clients.

Each makes a pair of claim and release of one name, from one thread, over one kept connection. All but `filelock` have
synced what they granted before they answer.
"""

from __future__ import annotations

import asyncio
import http.client
import importlib
import importlib.util
import json
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, ClassVar

import aiohttp

import holdfast
from benchmarks.load.http import new_loop
from benchmarks.parts.bare import BareSocket
from benchmarks.systems.etcd import Etcd
from benchmarks.systems.holdfast import TOKEN, Holdfast
from benchmarks.systems.postgres import Postgres, statement
from benchmarks.systems.redis import Redis
from benchmarks.systems.zookeeper import ZooKeeper

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from benchmarks.systems.base import Server

OWNER = "bench"
NAME = "bench-pair"
TTL_SECONDS = 60


class Contender(ABC):
    """One way to claim and release. Opened once, then asked for pairs in turns."""

    key: ClassVar[str]
    title: ClassVar[str]
    server: ClassVar[type[Server] | None]
    module: ClassVar[str] = ""
    """The package it needs beside ours."""

    def __init__(self, stack: ExitStack, servers: Mapping[str, Server], folder: Path) -> None:
        self.stack = stack
        self.folder = folder
        self.port = servers[self.server.key].port if self.server else 0
        self.servers = servers
        self.open()

    @abstractmethod
    def open(self) -> None:
        """Connect; what is opened goes onto the stack."""

    @abstractmethod
    def pair(self) -> None:
        """Claim the name and give it back."""

    def turn(self, pairs: int) -> list[float]:
        """Make so many pairs; return how long each took, in ms."""
        seen = []
        for _ in range(pairs):
            began = time.perf_counter()
            self.pair()
            seen.append((time.perf_counter() - began) * 1_000)
        return seen

    @classmethod
    def missing(cls) -> str | None:
        """Say what is not there, or None."""
        if cls.module and importlib.util.find_spec(cls.module) is None:
            return f"no Python package `{cls.module}`; `make bench` installs it"
        return None

    @classmethod
    def package(cls) -> Any:  # noqa: ANN401 - a module that is not there when types are checked
        return importlib.import_module(cls.module)


class OurClient(Contender):
    key, title, server = "holdfast", "`Holdfast`", Holdfast

    def open(self) -> None:
        url = f"http://127.0.0.1:{self.port}"
        self._client = self.stack.enter_context(holdfast.Holdfast(url, token=TOKEN, owner=OWNER))

    def pair(self) -> None:
        with self._client.claim(NAME, ttl=TTL_SECONDS):
            pass


class Bare(Contender):
    key, title, server = "bare", "a bare socket to Holdfast", Holdfast

    def open(self) -> None:
        self._bare = self.stack.enter_context(closing(BareSocket(self.port, f"Bearer {TOKEN}", OWNER)))

    def pair(self) -> None:
        self._bare.release("bare", self._bare.acquire("bare"))


class ByHttpClient(Contender):
    key, title, server = "http.client", "`http.client` to Holdfast", Holdfast

    def open(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        self._connection = self.stack.enter_context(closing(connection))
        self._headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}

    def pair(self) -> None:
        lease = self._ask("/locks/by-hand/acquire", {"ttl_seconds": TTL_SECONDS, "owner": OWNER})["lease_id"]
        self._ask("/locks/by-hand/release", {"lease_id": lease})

    def _ask(self, path: str, body: object) -> Any:  # noqa: ANN401 - JSON
        self._connection.request("POST", path, json.dumps(body), self._headers)
        return json.loads(self._connection.getresponse().read())


class _Asynchronous(Contender):
    """A coroutine makes all pairs of a turn, so that the loop is not left in between."""

    server = Holdfast

    def open(self) -> None:
        self._runner = self.stack.enter_context(asyncio.Runner(loop_factory=new_loop))
        self._url = f"http://127.0.0.1:{self.port}"
        self._runner.run(self.connect())
        self.stack.callback(lambda: self._runner.run(self.close()))

    @abstractmethod
    async def connect(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def make(self) -> None: ...

    def pair(self) -> None:
        self._runner.run(self.make())

    def turn(self, pairs: int) -> list[float]:
        return self._runner.run(self._pairs(pairs))

    async def _pairs(self, pairs: int) -> list[float]:
        seen = []
        for _ in range(pairs):
            began = time.perf_counter()
            await self.make()
            seen.append((time.perf_counter() - began) * 1_000)
        return seen


class OurAsyncClient(_Asynchronous):
    key, title = "async", "`AsyncHoldfast`"

    async def connect(self) -> None:
        self._client = holdfast.AsyncHoldfast(self._url, token=TOKEN, owner=OWNER)
        await self._client.__aenter__()

    async def close(self) -> None:
        await self._client.__aexit__(None, None, None)

    async def make(self) -> None:
        async with self._client.claim("async", ttl=TTL_SECONDS):
            pass


class ByAiohttp(_Asynchronous):
    key, title = "aiohttp", "aiohttp to Holdfast"

    async def connect(self) -> None:
        self._session = aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"})

    async def close(self) -> None:
        await self._session.close()

    async def make(self) -> None:
        claim = {"ttl_seconds": TTL_SECONDS, "owner": OWNER}
        async with self._session.post(f"{self._url}/locks/aiohttp/acquire", json=claim) as answer:
            lease = (await answer.json())["lease_id"]
        async with self._session.post(f"{self._url}/locks/aiohttp/release", json={"lease_id": lease}) as answer:
            await answer.json()


class RedisLock(Contender):
    key, title, server, module = "redis-py", "redis-py `Lock`, Redis with `appendfsync always`", Redis, "redis"

    def open(self) -> None:
        self._redis = self.stack.enter_context(closing(self.package().Redis(port=self.port)))

    def pair(self) -> None:
        lock = self._redis.lock(NAME, timeout=TTL_SECONDS)
        if not lock.acquire(blocking=False):
            raise OSError("the lock is held")
        lock.release()


class KazooLock(Contender):
    key, title, server, module = "kazoo", "kazoo `Lock`, ZooKeeper", ZooKeeper, "kazoo"

    def open(self) -> None:
        client = importlib.import_module("kazoo.client").KazooClient(hosts=f"127.0.0.1:{self.port}")
        client.start(timeout=30)
        self.stack.callback(client.close)
        self.stack.callback(client.stop)
        self._client = client

    def pair(self) -> None:
        lock = self._client.Lock(f"/{NAME}", OWNER)
        if not lock.acquire(blocking=False):
            raise OSError("the lock is held")
        lock.release()


class EtcdLock(Contender):
    key, title, server, module = "etcd3gw", "etcd3gw `Lock`, etcd", Etcd, "etcd3gw"

    def open(self) -> None:
        self._client = self.package().client(host="127.0.0.1", port=self.port)

    def pair(self) -> None:
        lock = self._client.lock(NAME, ttl=TTL_SECONDS)
        if not lock.acquire():
            raise OSError("the lock is held")
        lock.release()


class PostgresByHand(Contender):
    key, title, server, module = "psycopg", "a row in PostgreSQL by hand, psycopg", Postgres, "psycopg"

    def open(self) -> None:
        server = self.servers[Postgres.key]
        if not isinstance(server, Postgres):
            raise TypeError("that is no PostgreSQL")
        self._connection = self.stack.enter_context(self.package().connect(server.address, autocommit=True))
        self._acquire, self._release = statement("acquire"), statement("release")

    def pair(self) -> None:
        names = {"name": NAME, "token": OWNER}
        if self._connection.execute(self._acquire, names).fetchone() is None:
            raise OSError("the lock is held")
        self._connection.execute(self._release, names)


class FileLocking(Contender):
    key, title, server, module = "filelock", "filelock: one machine, nothing is kept", None, "filelock"

    def open(self) -> None:
        self._lock = self.package().FileLock(self.folder / "filelock")

    def pair(self) -> None:
        with self._lock.acquire(timeout=0):
            pass


CONTENDERS: tuple[type[Contender], ...] = (
    OurClient,
    Bare,
    ByHttpClient,
    OurAsyncClient,
    ByAiohttp,
    RedisLock,
    KazooLock,
    EtcdLock,
    PostgresByHand,
    FileLocking,
)
