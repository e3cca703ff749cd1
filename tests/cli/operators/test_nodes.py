"""`holdfast nodes`: who leads and who follows, of a server on a directory and of a store that nodes share."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable, Mapping

import msgspec

from holdfast import __version__
from holdfast.api.handlers.health import SILENT_MS, reply_of
from holdfast.cli.operators import nodes
from holdfast.journal.interface import Leadership, Peer
from tests.support import callers
from tests.support.api import Api
from tests.support.server import ServerProcess

Run = Callable[..., subprocess.CompletedProcess[str]]

LEADERSHIP = Leadership(
    authority="a1",
    epoch=7,
    term_id="t",
    heartbeat=12,
    is_held=True,
    node="node2",
    process="p2",
    url="https://node2:7420",
    last_seq=9,
    now_ms=5_000,
    since_wall_ms=1_700_000_000_000,
    format=1,
    version="1.0",
)


def peer(name: str, seen_ms_ago: int = 100) -> Peer:
    return Peer(
        node=f"node{name}",
        process=f"p{name}",
        url=f"https://node{name}:7420",
        version="1.0",
        format_max=1,
        tokens="",
        seen_ms_ago=seen_ms_ago,
    )


class _Odd:
    """Something that is no Holdfast server, and answers all the same."""

    url = "http://odd"
    status = 503
    headers: Mapping[str, str] = {}

    def ask(self, path: str, seconds: float) -> _Odd:
        return self

    def json(self) -> object:
        return {"details": {"reason": "maintenance"}}


def test_details_that_are_no_text_are_not_shown() -> None:
    """What a load balancer says of itself is no row of a table; its status is."""
    assert nodes._row_of(_Odd())["details"] == "it answers 503"  # type: ignore[arg-type]


def test_a_server_on_a_directory_is_the_one_node(holdfast: Run, server: ServerProcess) -> None:
    """Without a shared store there is one node, which leads since it started."""
    done = holdfast("nodes", "--json", HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.READER)
    assert done.returncode == 0, done.stderr
    reply = json.loads(done.stdout)
    assert (reply["leader"], reply["epoch"], reply["authority"]) == (socket.gethostname(), 1, None)
    assert [(each["role"], each["version"]) for each in reply["nodes"]] == [("leader", __version__)]
    done = holdfast("nodes", HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.READER)
    assert f"{socket.gethostname()} leads since " in done.stdout and ", epoch 1\n" in done.stdout


def test_nodes_need_the_scope_read(holdfast: Run, server: ServerProcess) -> None:
    """Who leads is told to those who may read, and to nobody else."""
    assert Api.of(server, None).get("/nodes").status == 401
    assert Api.of(server, callers.READER).get("/nodes").status == 200
    done = holdfast("nodes", HOLDFAST_URL=server.url, HOLDFAST_TOKEN="hold_wrong-0123456789abcdef")
    assert done.returncode == 77, done.stderr


def test_nodes_list_the_leader_first_and_silent_nodes(holdfast: Run) -> None:
    """The leadership says who leads; the others are followers while they are heard of, and silent afterwards."""
    reply = reply_of(LEADERSHIP, [peer("3", SILENT_MS), peer("1"), peer("2", 300)])
    shown = [(each.name, each.role, each.seen_ms_ago) for each in reply.nodes]
    assert shown == [("node2", "leader", 300), ("node1", "follower", 100), ("node3", "silent", SILENT_MS)]
    assert (reply.leader, reply.epoch, reply.since) == ("node2", 7, "2023-11-14T22:13:20.000Z")


def test_released_leadership_has_no_leader() -> None:
    """Nobody leads once the leadership was given back, and the one that had it is a node as all others."""
    reply = reply_of(msgspec.structs.replace(LEADERSHIP, is_held=False), [peer("2")])
    assert (reply.leader, reply.since) == (None, None)
    assert [(each.name, each.role) for each in reply.nodes] == [("node2", "follower")]


def test_leader_without_a_report_is_shown() -> None:
    """Who has the leadership is a node also before it told the store of itself."""
    assert [(each.name, each.role) for each in reply_of(LEADERSHIP, []).nodes] == [("node2", "leader")]


def test_two_processes_of_one_name_are_both_shown() -> None:
    """Another process with the leader's name is a node of its own; one that is silent is the leader's of before."""
    twin = msgspec.structs.replace(peer("2"), process="twin")
    assert [(each.name, each.role) for each in reply_of(LEADERSHIP, [twin]).nodes] == [
        ("node2", "leader"),
        ("node2", "follower"),
    ]
    former = msgspec.structs.replace(twin, seen_ms_ago=SILENT_MS)
    assert [(each.name, each.role) for each in reply_of(LEADERSHIP, [former]).nodes] == [("node2", "leader")]
