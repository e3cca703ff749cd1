"""What a connection can make the server keep, and what it must not take for granted from one request to the next."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from tests.http.conversation import Conversation, has_read_all, logged, memory_mib, pour
from tests.http.histories import request
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique, wait_until
from tests.support.http import Connection
from tests.support.pending import waiters
from tests.support.raw import head
from tests.support.server import ServerProcess

CONNECTIONS = 400
LINE = b"GET /locks/zz HTTP/1.1\r\n"


# A head seen before.


@pytest.mark.parametrize("cut", [True, False], ids=["cut", "whole"])
def test_value_like_a_request_is_not_cached(server: ServerProcess, *, cut: bool) -> None:
    """A field's value that looks like a request line, at the beginning of what is read, is no head to be repeated."""
    start = LINE + f"Authorization: Bearer {callers.ALICE}\r\nX-A: ".encode()
    hidden = LINE + b"Host: localhost\r\n\r\n"
    with Conversation(server) as talk:
        if cut:
            talk.send(start)
            # Each piece is read by itself only if the first was read before the second came.
            wait_until(lambda: has_read_all(server))
            talk.send(hidden)
        else:
            filler = b"p" * (1_024 - len(start) - 7)
            talk.send(start + filler + b"\r\nX-B: " + hidden)
        assert [said.status for said in talk.read_answers(1)] == [200]
        talk.send(hidden)
        assert [said.status for said in talk.read_answers(2)] == [200, 401]


def test_content_length_may_have_leading_zeros(server: ServerProcess, name: str) -> None:
    """A length with thousands of zeros before it is a length: no bug is logged, and the body is read."""
    body = b"{}"
    length = "0" * 4_400 + str(len(body))
    fields = ("Host: localhost", f"Authorization: Bearer {callers.ALICE}", "Content-Type: application/json")
    before = logged(server)
    with Conversation(server) as talk:
        talk.send(head("POST", f"/locks/{name}/acquire", *fields, f"Content-Length: {length}") + body)
        talk.send(request("GET", f"/locks/{name}"))
        assert [said.status for said in talk.read_answers(2)] == [200, 200]
    assert logged(server) == before


# Memory.


def _grown_mib(server: ServerProcess, payload: bytes, *, reads: bool = False) -> tuple[float, float]:
    """How much the server's memory grew with so many connections that sent this, and after they left."""
    before = memory_mib(server)
    with contextlib.ExitStack() as stack:
        talks = [stack.enter_context(Conversation(server)) for _ in range(CONNECTIONS)]
        for talk in talks:
            talk.send(payload)
            if reads:
                talk.read_answers(1)
        wait_until(lambda: has_read_all(server))
        during = memory_mib(server)
    wait_until(lambda: Api.of(server, None).get("/healthz").status == 200)
    return during - before, memory_mib(server) - before


def test_header_of_many_fields_is_not_buffered(fresh: ServerProcess) -> None:
    """A head that never ends is refused as soon as it has too many fields, however short they are."""
    during, after = _grown_mib(fresh, LINE + b"ab:\r\n" * 3_190)
    assert during < 40 and after < 40, (during, after)


def test_large_body_is_freed_after_its_response(fresh: ServerProcess) -> None:
    """A connection that idles after its answer keeps nothing of the body that was answered."""
    body = b'{"all":["' + b"x" * 1_000_000 + b'"]}'
    during, _ = _grown_mib(fresh, request("POST", "/claims", body=body), reads=True)
    assert during < 80, during


# Who gives way.


def test_connection_of_a_waiter_is_not_evicted(tmp_path: Path) -> None:
    """One whose very first request on a connection waits in line is known already: strangers do not take its place."""
    settings = {"connections_max": 10}
    with (
        ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server,
        contextlib.ExitStack() as stack,
    ):
        name = unique()
        owner = stack.enter_context(Connection(server.host, server.port))
        path = f"/locks/{name}/acquire"
        assert owner.request("POST", path, {"owner": "ana"}, token=callers.ALICE).status == 200
        waiter = stack.enter_context(Conversation(server))
        waiter.send(request("POST", path, body=b'{"owner": "ben", "wait_seconds": 40}', token=callers.BOB))
        alice = Api.of(server, callers.ALICE)
        wait_until(lambda: waiters(alice, name) == 1)
        for _ in range(40):
            stack.enter_context(socket.create_connection((server.host, server.port), timeout=10))
        late = stack.enter_context(Connection(server.host, server.port))
        assert late.request("GET", f"/locks/{name}", token=callers.ALICE).json()["waiting"] == 1


def test_connection_with_a_large_body_is_not_evicted(tmp_path: Path) -> None:
    """One whose large body is taken because of its token is known, before the body is complete."""
    settings = {"connections_max": 10}
    with (
        ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server,
        contextlib.ExitStack() as stack,
    ):
        name = unique()
        body = b'{"metadata": "%b"}' % (b"\\u0041" * 1_000) + b" " * 20_000
        complete = request("POST", f"/locks/{name}/acquire", body=body)
        sender = stack.enter_context(Conversation(server)).send(complete[:-9_000])
        wait_until(lambda: has_read_all(server))
        for _ in range(40):
            stack.enter_context(socket.create_connection((server.host, server.port), timeout=10))
        late = stack.enter_context(Connection(server.host, server.port))
        assert late.request("GET", "/locks", token=callers.ALICE).status == 200
        assert [said.status for said in sender.send(complete[-9_000:]).read_answers(1)] == [200]


# Those who are gone.


@pytest.mark.parametrize("trailing_bytes", [1_000, 20_000, 200_000])
@pytest.mark.parametrize("how", ["half-closed", "closed"])
def test_waiter_with_pipelined_input_is_removed_on_disconnect(
    server: ServerProcess, alice: Api, name: str, how: str, trailing_bytes: int
) -> None:
    """However much was sent behind a claim that waits, the server hears that its caller is gone."""
    alice.acquired(name)
    with Conversation(server) as talk:
        trailing = request("GET", f"/locks/{name}") * (trailing_bytes // 100)
        wait = request("POST", f"/locks/{name}/acquire", body=b'{"owner": "ben", "wait_seconds": 40}')
        talk.send(wait, trailing)
        wait_until(lambda: waiters(alice, name) == 1)
        if how == "half-closed":
            talk.half_close()
        else:
            talk.close()
        wait_until(lambda: waiters(alice, name) == 0)


def test_excess_input_after_a_wait_is_refused_after_its_response(server: ServerProcess, alice: Api, name: str) -> None:
    """What is too much behind a claim that waits is refused in its turn, and the connection ends."""
    lease = alice.acquired(name)
    with Conversation(server) as talk:
        wait = request("POST", f"/locks/{name}/acquire", body=b'{"owner": "ben", "wait_seconds": 40}')
        talk.send(wait, request("POST", f"/locks/{name}-behind/acquire", body=b"{}") * 1_000)
        wait_until(lambda: waiters(alice, name) == 1)
        alice.release(name, lease["lease_id"])
        answers = talk.read_to_the_end()
    assert answers[0].status == 200 and answers[-1].status == 400 and answers[-1].closes


# What is read before it is known who asks.


def test_query_has_few_fields(alice: Api) -> None:
    """A query of thousands of fields is refused unread, and a long one is not read for somebody who is not known."""
    assert alice.get("/locks?" + "%25=%25&" * 1_000, token=None).status == 401
    assert alice.get("/locks?" + "a=&" * 600).status == 400


# What is thrown away.


def test_input_after_a_refusal_is_bounded(server: ServerProcess) -> None:
    """A caller that was refused and goes on sending is not read for ever: soon it can send no more."""
    with Conversation(server) as talk:
        talk.send(head("POST", "/claims", "Host: localhost", "Content-Length: 2000000000"))
        sent, how = pour(talk, b"x" * 65_536, bytes_max=256 << 20)
    assert how != "taken", sent
