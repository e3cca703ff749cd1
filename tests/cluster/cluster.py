"""Three real nodes on one real PostgreSQL, each reached and reaching over ways that a test can break.

```text
 clients ──► node a ──(store way)──► PostgreSQL
               ▲
 other nodes ──┘ (link way: the address that it advertises)
```

The law of this file: whatever is started here is ended here; a node that was killed is started again on its own
address, under its own name; and a fault is undone by whoever made it. The clients and the judges are in
`roaming_clients.py`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from tests.cluster.journals import Stored, address_of, stored, through
from tests.cluster.proxy import TcpProxy
from tests.support.checks import wait_until
from tests.support.http import Answer
from tests.support.postgres import new_schema
from tests.support.server import ServerProcess

NODES = 3
LEADER_SECONDS_MAX = 20.0
ASK_SECONDS_MAX = 2.0
SETTINGS: dict[str, object] = {"snapshot_records": 1_000_000, "snapshot_mib": 1_000}
"""Nothing is archived, so that the whole journal is there to be judged."""


class Member:
    """One node: its process, and the two ways that can be broken."""

    def __init__(self, name: str, folder: Path, store: str, arguments: dict[str, Any]) -> None:
        self.name = name
        is_direct = arguments.pop("is_direct")
        self.store_way = TcpProxy(*(("127.0.0.1", 0) if is_direct else address_of(store)))
        self.link_way = TcpProxy("127.0.0.1", 0)
        self._folder = folder / name
        self._listen = arguments.pop("listen", "127.0.0.1:0")
        self._arguments = arguments
        self._settings = {
            "store": store if is_direct else through(store, self.store_way.port),
            "advertise": f"http://127.0.0.1:{self.link_way.port}",
            "node_name": name,
            **arguments.pop("settings"),
        }
        self._server: ServerProcess | None = None

    @property
    def server(self) -> ServerProcess:
        """Its process; a node that never was started has none."""
        assert self._server is not None
        return self._server

    @property
    def address(self) -> tuple[str, int]:
        """Where clients reach it."""
        return self.server.host, self.server.port

    def start(self) -> None:
        """Start it; the first time on any free port, then always on the same."""
        listen = self._listen if self._server is None else f"{self._server.host}:{self._server.port}"
        self._server = ServerProcess.start(
            self._folder / "data", **{**self._arguments, "settings": self._settings, "listen": listen}
        )
        self.link_way.target = self.address

    def ask(self, path: str) -> tuple[int, Any]:
        """Ask it something that needs no token. Status 0: it does not answer."""
        connection = http.client.HTTPConnection(*self.address, timeout=ASK_SECONDS_MAX)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            return answer.status, json.loads(body) if body.startswith(b"{") else body.decode()
        except (OSError, http.client.HTTPException):
            return 0, None
        finally:
            connection.close()

    def is_leader(self) -> bool:
        """Does it say that it leads, and has just proven it?"""
        return self.server.is_running() and self.ask("/health/leader")[0] == 200

    def is_ready(self) -> bool:
        """Does it lead, or have a link to the leader?"""
        return self.server.is_running() and self.ask("/readyz")[0] == 200

    def signal(self, number: signal.Signals) -> None:
        self.server._signal(number)

    def restore(self) -> None:
        """Undo every fault of its ways, wake it, and start it again if it has ended."""
        self.store_way.restore()
        self.link_way.restore()
        if self.server.is_running():
            self.server.resume()
        else:
            self.start()

    def close(self) -> None:
        if self._server is not None:
            self._server.resume()
            self._server.kill()
        self.store_way.close()
        self.link_way.close()


class Cluster:
    """Some nodes on one store, in a schema of their own."""

    def __init__(
        self,
        folder: Path,
        store: str,
        *,
        tokens: str,
        nodes: int = NODES,
        settings: Mapping[str, object] | None = None,
        each: Sequence[Mapping[str, Any]] = (),
        is_direct: bool = False,
    ) -> None:
        """`each` has what the nodes do not share, as `ServerProcess.start` takes it: a `wrapper`, `settings`, `listen`.

        `is_direct`: nodes reach the store as its URL says, which may name several servers, and not over a way of ours.
        """
        self.store = store
        self.schema = new_schema()
        common = {**SETTINGS, **(settings or {}), "store_schema": self.schema}
        self.members = []
        for index in range(nodes):
            own = dict(each[index]) if index < len(each) else {}
            own["settings"] = {**common, **own.get("settings", {})}
            arguments = {"is_direct": is_direct, "tokens": tokens, **own}
            self.members.append(Member(f"node-{'abcdefgh'[index]}", folder, store, arguments))

    def __enter__(self) -> Self:
        try:
            for member in self.members:
                member.start()
            self.leader()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for member in self.members:
                with contextlib.suppress(AssertionError):
                    error.add_note(f"--- {member.name} said, at the end:\n{member.server.log[-3_000:]}")
        self.close()

    def close(self) -> None:
        for member in self.members:
            member.close()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where clients reach the nodes."""
        return [member.address for member in self.members]

    def leader(self, *, but: Member | None = None) -> Member:
        """Wait until a node leads, another than the one that is named, and return it."""
        return wait_until(lambda: self._leader(but), seconds_max=LEADER_SECONDS_MAX, every_seconds=0.02)

    def _leader(self, but: Member | None) -> Member | Literal[False]:
        for one in self.members:
            if one is not but and one.is_leader():
                return one
        return False

    def followers(self, leader: Member) -> list[Member]:
        """Every node but the leader."""
        return [member for member in self.members if member is not leader]

    def all_ready(self) -> None:
        """Wait until each node leads or has a link to the leader."""
        for member in self.members:
            wait_until(member.is_ready, seconds_max=LEADER_SECONDS_MAX)

    def stop(self) -> None:
        """Stop all in good order, the leader last."""
        leader = self.leader()
        for member in [*self.followers(leader), leader]:
            code = member.server.terminate()
            assert code == 0, f"{member.name} ended with {code}:\n{member.server.log}"

    def journal(self) -> Stored:
        """What the store has, looked at past the nodes, and in order."""
        found = stored(self.store, self.schema)
        assert not found.complaints(), found.complaints()[:5]
        return found


def insist(ask: Callable[[], Answer]) -> Answer:
    """Ask until a node has an answer, with a key: on a busy machine a leader may be silent for a moment."""

    def answered() -> Answer | Literal[False]:
        answer = ask()
        return answer if answer.status != 503 else False

    return wait_until(answered, seconds_max=LEADER_SECONDS_MAX)


def rest(seconds: float) -> None:
    """Let the nodes work for a while: for how long is drawn, and nothing is waited for."""
    time.sleep(seconds)
