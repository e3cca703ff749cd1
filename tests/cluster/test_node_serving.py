"""Whole nodes in one process, on real sockets and a journal in memory: who answers what at which node (N-34)."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.api.auth.auth import StaticTokens
from holdfast.cluster import request_queue
from holdfast.cluster.election import ElectionLoop
from holdfast.config import Settings
from holdfast.engine.build import store_secret
from holdfast.errors import SettingsError
from holdfast.journal.interface import JournalUnavailableError, Leadership, Peer
from holdfast.server import cluster_node
from holdfast.server.cluster_node import ClusterNode
from holdfast.server.components import StartError, listen
from tests.cluster.linked_nodes import ANA, Caller, until
from tests.support.http import Answer
from tests.support.shared_journal import SharedMemoryJournal, SharedShelf

TOKENS = f"ana:{ANA}:read+claim+admin"


class AwayJournal(SharedMemoryJournal):
    """A journal whose store nobody reaches."""

    async def read_leadership(self) -> Leadership:
        raise JournalUnavailableError("read_leadership: no way there")


class NodeRun:
    """A node that serves."""

    def __init__(self, name: str, shelf: SharedShelf, directory: Path, tokens: str, **settings: Any) -> None:  # noqa: ANN401 - any setting
        self.settings = Settings(
            listen=settings.pop("listen", "127.0.0.1:0"),
            data=directory,
            store="postgresql://unused/unused",
            node_name=name,
            takeover_seconds=1,
            **settings,
        )
        self.said: list[str] = []
        self.journal: type[SharedMemoryJournal] = SharedMemoryJournal
        self._shelf = shelf
        self.listener = listen(self.settings)
        self.port: int = self.listener.getsockname()[1]
        static = StaticTokens.parse(tokens)
        try:
            self.cluster_node = ClusterNode(
                self.settings, static, None, self.listener, say=self.said.append, journals=self._journals
            )
        except StartError:
            self.listener.close()
            raise
        self.greeted = asyncio.Event()
        self.task = asyncio.ensure_future(self.cluster_node.run(self.listener, self.greeted.set))

    def _journals(self, me: Peer) -> Callable[[str], SharedMemoryJournal]:
        return lambda term: self.journal(self._shelf, me, term_id=term)

    @property
    def leads(self) -> bool:
        return self.cluster_node.node.term() is not None

    async def ask(self, method: str, path: str, body: object = None, **options: Any) -> Answer:  # noqa: ANN401 - passed on
        """Ask it, on a connection of its own."""
        caller = Caller(*await asyncio.open_connection("127.0.0.1", self.port))
        try:
            return await caller.ask(method, path, body, **options)
        finally:
            caller.close()

    async def stop(self) -> None:
        """Tell it to stop, as a signal would, and wait until it has."""
        self.cluster_node.server.stop()
        await self.task
        self.listener.close()


def read(path: str) -> str:
    """Read a token."""
    return Path(path).read_text(encoding="utf-8").strip()


@asynccontextmanager
async def cluster(directory: Path, *names: str, tokens: str = TOKENS, **settings: Any) -> AsyncIterator[list[NodeRun]]:  # noqa: ANN401 - any setting
    """Nodes on one shelf; the first leads, and the others have a link to it."""
    shelf = SharedShelf()
    nodes: list[NodeRun] = []
    try:
        for name in names:
            nodes.append(NodeRun(name, shelf, directory / name, tokens, **settings))
            await until(lambda: nodes[0].leads)
        for node in nodes[1:]:
            await until(lambda node=node: node.cluster_node.node.is_linked)  # type: ignore[misc] # a name of its own for each
        yield nodes
    finally:
        for node in nodes:
            await node.stop()


def test_every_node_reports_its_health(tmp_path: Path) -> None:
    """The leader alone answers 200 to /health/leader; a follower with a link is ready; all are alive (N-34)."""

    async def test() -> None:
        async with cluster(tmp_path, "a", "b") as (a, b):
            await until(lambda: (a.cluster_node.node.term().engine.confirmed_ms_ago() or 0) < 1_000)  # type: ignore[union-attr]
            seen = {
                path: [(await node.ask("GET", path, token=None)).status for node in (a, b)]
                for path in ("/health/leader", "/readyz", "/healthz", "/health")
            }
            assert seen == {
                "/health/leader": [200, 503],
                "/readyz": [200, 200],
                "/healthz": [200, 200],
                "/health": [200, 200],
            }
            reported = (await b.ask("GET", "/health/leader", token=None)).json()
            assert reported["status"] == "not_leader" and "this node follows" in reported["details"]

    asyncio.run(test())


def test_bug_in_the_election_loop_does_not_end_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever ends the watching of a node but a signal, it is logged and begun anew, and then it leads (N-6)."""
    monkeypatch.setattr(cluster_node, "AGAIN_SECONDS", 0.01)
    run = ElectionLoop.run
    failed: list[ElectionLoop] = []

    async def run_with_a_bug(election_loop: ElectionLoop) -> None:
        if not failed:
            failed.append(election_loop)
            raise RuntimeError("a bug")
        await run(election_loop)

    monkeypatch.setattr(ElectionLoop, "run", run_with_a_bug)

    async def test() -> None:
        async with cluster(tmp_path, "a") as (a,):
            assert failed and a.leads
        assert a.task.done(), "and a stop is a stop"

    asyncio.run(test())
    assert "it is begun anew" in caplog.text


def test_bug_in_a_background_task_does_not_leave_an_old_term_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever replaces the handler of connections, and fails at it, does so when it is begun anew (N-18)."""
    monkeypatch.setattr(cluster_node, "AGAIN_SECONDS", 0.01)

    async def test() -> None:
        async with cluster(tmp_path, "a") as (a,):
            term, end_all = a.cluster_node.node.term(), a.cluster_node._links.end_all
            failed: list[int] = []

            def end_all_with_a_bug() -> None:
                if not failed:
                    failed.append(1)
                    raise RuntimeError("a bug")
                end_all()

            await until(lambda: term is not None and a.cluster_node._manager.handle == term.routes.handle)
            a.cluster_node._links.end_all = end_all_with_a_bug  # type: ignore[method-assign] # A bug.
            a.cluster_node.node.set_leader(None, None)
            await until(lambda: a.cluster_node._manager.handle == a.cluster_node._forwarder.handle)
            assert failed

    asyncio.run(test())


def test_replies_name_the_node_and_the_epoch(tmp_path: Path) -> None:
    """Whoever answers says its own name, and under which epoch it was decided (N-34)."""

    async def test() -> None:
        async with cluster(tmp_path, "a", "b") as (a, b):
            for node, name in ((a, "a"), (b, "b")):
                answer = await node.ask("POST", f"/locks/{name}/acquire", {"ttl_seconds": 60})
                assert answer.status == 200
                assert (answer.headers["Holdfast-Node"], answer.headers["Holdfast-Epoch"]) == (name, "1")

    asyncio.run(test())


def test_stopped_leader_hands_over(tmp_path: Path) -> None:
    """A leader that is told to stop ends well, and the other leads under the next epoch with all that was granted."""

    async def test() -> None:
        async with cluster(tmp_path, "a", "b") as (a, b):
            granted = await a.ask("POST", "/locks/job/acquire", {"ttl_seconds": 60})
            await a.stop()
            answer = await b.ask("GET", "/locks/job")
            assert answer.json()["fencing_token"] == granted.json()["fencing_token"]
            assert answer.headers["Holdfast-Epoch"] == "2" and b.leads

    asyncio.run(test())


def test_request_at_a_stopping_node_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that was told to stop refuses whoever goes on asking it, and ends without waiting for a leader."""
    monkeypatch.setattr(request_queue, "HELD_MS_MAX", 3_600_000)

    async def test() -> None:
        async with cluster(tmp_path, "a", "b", stop_timeout_seconds=3_600) as (a, b):
            callers = [Caller(*await asyncio.open_connection("127.0.0.1", a.port)) for _ in range(8)]
            for caller in callers:
                assert (await caller.ask("GET", "/locks/job")).status == 200
            request_task = [asyncio.create_task(answers_until_closed(caller)) for caller in callers]
            await a.stop()
            last = [answer.status for answers in request_task for answer in (await answers)[-1:]]
            assert set(last) <= {200, 503}
            await until(lambda: b.leads)

    asyncio.run(test())


async def answers_until_closed(caller: Caller) -> list[Answer]:
    """Ask on one connection until the other side closes it; return all answers."""
    answers: list[Answer] = []
    with contextlib.suppress(AssertionError, ConnectionError):  # It was closed.
        while True:
            answers.append(await caller.ask("GET", "/locks/job"))
    caller.close()
    return answers


def test_first_token_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no token is, the first leader makes one for the user of its machine; no later one makes another."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    async def test() -> None:
        async with cluster(tmp_path, "a", "b", tokens="") as (a, b):
            (said,) = a.said
            token = read(said.rpartition(" is in ")[2])
            assert (await b.ask("POST", "/locks/job/acquire", {"ttl_seconds": 60}, token=token)).status == 200
            await a.stop()
            await until(lambda: b.leads)
            assert (await b.ask("GET", "/locks/job", token=token)).status == 200
            assert b.said == []

    asyncio.run(test())


def test_open_address_without_a_token_refuses_all_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On an address for others no token is made: the node leads, lets nobody in, and says what to do."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    async def test() -> None:
        open_to_all = {"listen": "0.0.0.0:0", "advertise": "http://127.0.0.1:1"}
        async with cluster(tmp_path, "a", tokens="", **open_to_all) as (a,):
            assert (await a.ask("GET", "/locks", token=ANA)).status == 401
            assert a.said == []

    asyncio.run(test())
    assert any("HOLDFAST_TOKENS" in record.message for record in caplog.records)
    assert not (tmp_path / "config").exists()


def test_node_without_a_store_is_alive_and_not_ready(tmp_path: Path) -> None:
    """A node that cannot reach its store serves at once: alive, not ready, and it says so; why, its log says (N-34)."""

    async def test() -> None:
        node = NodeRun("a", SharedShelf(), tmp_path, TOKENS)
        node.cluster_node._election._journal = AwayJournal(SharedShelf(), node.cluster_node.node.me, term_id="none")
        try:
            await node.greeted.wait()
            await until(lambda: node.cluster_node.node.trouble is not None)
            assert (await node.ask("GET", "/healthz", token=None)).status == 200
            ready = await node.ask("GET", "/readyz", token=None)
            assert ready.status == 503 and "the store cannot be reached" in ready.json()["details"]
            said = node.cluster_node._election._log.trouble or ""
            assert "no way there" not in ready.json()["details"] and "no way there" in said
        finally:
            await node.stop()

    asyncio.run(test())


def test_others_can_compare_static_tokens(tmp_path: Path) -> None:
    """Each node tells the store a digest of its static tokens: equal for equal ones, and for no others (N-34)."""

    async def test() -> None:
        shelf = SharedShelf()
        texts = [TOKENS, f"ben:another-long-token,{TOKENS}", f"{TOKENS},ben:another-long-token"]
        nodes = [NodeRun(name, shelf, tmp_path / name, tokens) for name, tokens in zip("abc", texts, strict=True)]
        try:
            await until(lambda: len(shelf.peers) == 3)
            reported = [shelf.peers[name].tokens for name in "abc"]
            assert reported[0] != reported[1] == reported[2] and all(reported)
        finally:
            for node in nodes:
                await node.stop()

    asyncio.run(test())


def test_two_nodes_of_one_machine_have_two_names(tmp_path: Path) -> None:
    """Without a name a node is called by its machine and its port, and is reached where it listens."""

    async def test() -> None:
        node = NodeRun("", SharedShelf(), tmp_path, TOKENS)
        try:
            await node.greeted.wait()
            me = node.cluster_node.node.me
            assert me.node.endswith(f":{node.port}") and me.url == f"http://127.0.0.1:{node.port}"
        finally:
            await node.stop()

    asyncio.run(test())


def test_store_secret_is_readable_by_the_owner_only(tmp_path: Path) -> None:
    """The file of the secret must be there, long enough, and for nobody else to read; without one there is none."""
    file = tmp_path / "secret"
    assert store_secret(None) is None
    with pytest.raises(SettingsError, match="cannot be used"):
        store_secret(file)
    with contextlib.suppress(FileExistsError):
        file.touch(mode=0o600)
    file.write_text("short\n")
    with pytest.raises(SettingsError, match="openssl rand"):
        store_secret(file)
    file.write_text("0123456789abcdef0123456789abcdef\n")
    assert store_secret(file) == b"0123456789abcdef0123456789abcdef"
    os.chmod(file, 0o644)  # noqa: PTH101 - as an operator would
    with pytest.raises(SettingsError, match="store_secret_file"):
        store_secret(file)
