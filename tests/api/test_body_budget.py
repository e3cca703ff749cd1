"""Large bodies that are not answered yet are bounded for each user, however many connections it has."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from holdfast.http import limits
from holdfast.http.limits import BodyBudget
from holdfast.http.messages import Request, request_from
from holdfast.wire.problems import Problem
from tests.load.crowd import rss_bytes
from tests.support import callers
from tests.support.api import Api
from tests.support.pending import payload
from tests.support.server import ServerProcess

MIB = 2**20
BODY_BYTES = 1_500_000


def _request() -> Request:
    return request_from(b"POST", b"/claims", b"", {}, b"")


def _refused(budget: BodyBudget, who: str, size: int) -> str:
    with pytest.raises(Problem) as problem:
        budget.take(object(), _request(), who, size)
    return problem.value.code


def test_each_user_has_a_bound_and_all_together() -> None:
    """The budget is a user's own; the last of what all may have is for those who have little."""
    budget = BodyBudget()
    for _ in range(32):
        budget.take("line", _request(), "ana", MIB)
    assert _refused(budget, "ana", MIB) == "quota_exceeded"
    for number in range(160):
        budget.take(number, _request(), f"user {number // 32}", MIB)
    assert budget.bytes == limits.ALL_BYTES_MAX - limits.SPARE_BYTES
    assert _refused(budget, "user 7", limits.LITTLE_BYTES + 1) == "overloaded"
    for number in range(16):
        budget.take(number, _request(), f"small {number}", limits.LITTLE_BYTES)
    assert _refused(budget, "one more", MIB) == "overloaded"


def test_answered_and_lost_bodies_are_freed() -> None:
    """A body is free once, by its answer or with its connection; a single one may be as large as its route takes."""
    budget, first, second = BodyBudget(), _request(), _request()
    budget.take("line", first, "ana", 2 * limits.USER_BYTES_MAX)
    budget.free(first)
    budget.free(first)
    budget.take("line", first, "ana", MIB)
    budget.take("line", second, "ana", MIB)
    budget.free(first)
    assert budget.bytes == MIB
    budget.drop("line")
    budget.drop("line")
    assert budget.bytes == 0 and not budget.reserved and not budget._by_connection and not budget._by_principal


def test_bodies_that_are_held_back_are_bounded_for_one_user(tmp_path: Path) -> None:
    """House rule 10: of bodies that lack their last byte one user may have 32 MiB, and nobody else is touched by it."""
    sent = payload("/claims", callers.ALICE, {"any": ["a" * BODY_BYTES]})[:-1]
    with (
        ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server,
        contextlib.ExitStack() as stack,
    ):
        bob = Api.of(server, callers.BOB)
        assert bob.acquired("first")
        before = rss_bytes(server.pid)
        problem: list[bytes] = []
        socks = [stack.enter_context(socket.socket()) for _ in range(60)]
        for sock in socks:
            sock.settimeout(20)
            sock.connect((server.host, server.port))
            with contextlib.suppress(ConnectionError):
                sock.sendall(sent)
        bob.acquired("meanwhile")
        for sock in socks:
            sock.settimeout(0.05)
            with contextlib.suppress(TimeoutError, ConnectionError):
                problem.append(sock.recv(65_536))
        assert rss_bytes(server.pid) - before < 60 * MIB
        assert len(problem) >= 60 - limits.USER_BYTES_MAX // BODY_BYTES
        assert all(answer.startswith(b"HTTP/1.1 429 ") and b"quota_exceeded" in answer for answer in problem)
        large = {"any": [f"{'x' * 60}/{number}" for number in range(500)], "ttl_seconds": 60}
        assert bob.post("/claims", large).status == 200
        for sock in socks:
            sock.close()
        assert Api.of(server, callers.ALICE).post("/claims", large).status == 200
