"""Answers that nobody takes are bounded for each user, however many connections it has, and cost no other user."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.http import limits
from holdfast.http.limits import WriteBudget
from holdfast.http.messages import Request, request_from
from tests.load.crowd import rss_bytes
from tests.support import callers
from tests.support.api import Api
from tests.support.pending import payload
from tests.support.server import ServerProcess

CONNECTIONS = 44
PIPELINED = 4
"""Answers of 1 MiB on each connection: the kernel takes two or three of them, and one stays with the server."""
MIB = 2**20
LIST = "/locks?limit=10000"


def _opened(server: ServerProcess, stack: contextlib.ExitStack, token: str, number: int) -> socket.socket:
    """Open a connection that asks for long lists, and reads nothing."""
    sock = stack.enter_context(socket.socket())
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
    sock.settimeout(60)
    sock.connect((server.host, server.port))
    sock.sendall(payload(LIST, token, None, method="GET") * number)
    return sock


def _bytes_of(sock: socket.socket, most: int) -> int:
    """Read until there is that much, or the other side broke off. Return how much there was."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MIB)
    size = 0
    while size < most:
        try:
            piece = sock.recv(MIB)
        except ConnectionResetError:
            break
        if not piece:
            break
        size += len(piece)
    return size


def _await_quiet(server: ServerProcess) -> None:
    """Wait until the server answers no more: each answer is a line in its log."""
    lines = -1
    while lines != (lines := server.log.count("GET /locks 200")):
        time.sleep(0.5)


def _fill(alice: Api) -> int:
    """Let a list be long. Return the size of one answer."""
    names = [f"large/{number}" for number in range(400)]
    assert alice.claims(all=names, ttl_seconds=600, metadata="\x01" * 1_024).status == 200
    size = len(alice.get(LIST).body)
    assert size > MIB // 2
    return size


def test_unread_lists_are_bounded_for_one_user(tmp_path: Path) -> None:
    """House rule 10: on many connections no more than 32 MiB are kept for one user. Another's are not touched."""
    with (
        ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS, settings={"log_requests": True}) as server,
        contextlib.ExitStack() as stack,
    ):
        alice, bob = Api.of(server, callers.ALICE), Api.of(server, callers.BOB)
        size = _fill(alice)
        others = _opened(server, stack, callers.BOB, PIPELINED)
        unread = [_opened(server, stack, callers.ALICE, PIPELINED) for _ in range(CONNECTIONS)]
        _await_quiet(server)
        assert bob.acquired("bobs")["fencing_token"] > 0
        complete = [_bytes_of(sock, PIPELINED * size) >= PIPELINED * size for sock in unread]
        assert 0 < sum(complete) <= limits.USER_BYTES_MAX // size
        assert _bytes_of(others, PIPELINED * size) >= PIPELINED * size


def test_delivered_response_is_freed(tmp_path: Path) -> None:
    """A connection that stays open keeps nothing of the answers that went out on it."""
    with (
        ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server,
        contextlib.ExitStack() as stack,
    ):
        size = _fill(Api.of(server, callers.ALICE))
        before = rss_bytes(server.pid)
        for _ in range(80):
            assert _bytes_of(_opened(server, stack, callers.ALICE, 1), size) >= size
        assert rss_bytes(server.pid) - before < 40 * size


class Line:
    """A connection that only knows whether it was broken off."""

    def __init__(self) -> None:
        self.is_broken = False

    def abort(self) -> None:
        self.is_broken = True


def _request(who: str) -> Request:
    return request_from(b"GET", b"/locks", b"", {b"authorization": who.encode()}, b"")


def _principal(request: Request) -> str | None:
    return None if not request.authorization else request.authorization.decode()


def _keep(budget: WriteBudget, who: str, size: int = MIB) -> Any:  # noqa: ANN401 - a `Line`
    line: Any = Line()
    budget.note(line, _request(who), memoryview(bytes(size))[1:])
    return line


def test_oldest_response_of_same_principal_is_dropped() -> None:
    """The budget is a user's own, counted in whole bodies; strangers have one together, and a smaller one."""
    budget = WriteBudget(_principal)
    bens = _keep(budget, "ben")
    unauthenticated = [_keep(budget, "") for _ in range(20)]
    anas = [_keep(budget, "ana") for _ in range(40)]
    assert [line.is_broken for line in anas] == [True] * 8 + [False] * 32
    assert [line.is_broken for line in unauthenticated] == [True] * 4 + [False] * 16
    assert not bens.is_broken
    assert budget.bytes == (1 + 16 + 32) * MIB


def test_delivered_bytes_are_freed() -> None:
    """A body counts once, however often it is written on, until its last piece is taken or the connection is lost."""
    budget = WriteBudget(_principal)
    complete = memoryview(bytes(MIB))
    line: Any = Line()
    lost = _keep(budget, "ana")
    for taken in range(0, MIB, MIB // 8):
        budget.note(line, _request("ana"), complete[taken + 1 :])
        assert budget.bytes == 2 * MIB, "the rest is a view of the whole"
    budget.note(line, _request("ana"), complete[MIB:])
    budget.drop(lost)
    budget.drop(lost)
    assert budget.bytes == 0


def test_many_users_have_a_bound_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody with many tokens is bounded too: over the limit of all, whoever has most gives its eldest."""
    monkeypatch.setattr(limits, "ALL_BYTES_MAX", 8 * MIB)
    budget = WriteBudget(_principal)
    most = [_keep(budget, "ana") for _ in range(4)]
    others = [_keep(budget, f"user {number}") for number in range(6)]
    assert [line.is_broken for line in most] == [True, True, False, False]
    assert not any(line.is_broken for line in others)
    assert budget.bytes == 8 * MIB
