"""Many requests on one connection: answered in order, whatever follows them, and nobody else has to wait for it."""

from __future__ import annotations

import json
import random
import socket

import pytest

from tests.http.conversation import Conversation
from tests.http.histories import request
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique, wait_until
from tests.support.pending import waiters
from tests.support.server import ServerProcess

SHORT = {
    b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n": 200,
    b"GET /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n": 404,
    b"PUT /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n": 405,
}
ROUNDS_MAX = 20


def acquire(name: str, *fields: str, body: dict[str, object] | None = None, token: str = callers.ALICE) -> bytes:
    return request("POST", f"/locks/{name}/acquire", *fields, body=json.dumps(body or {}).encode(), token=token)


def thousand(seed: int) -> tuple[bytes, list[int]]:
    """A thousand requests, and their statuses."""
    chosen = random.Random(seed).choices(list(SHORT), k=1_000)
    return b"".join(chosen), [SHORT[one] for one in chosen]


@pytest.mark.usefixtures("quiet")
def test_thousand_requests_in_one_piece(server: ServerProcess) -> None:
    """A thousand requests that arrive at once are all answered, in order, and nothing is logged for it."""
    payload, wanted = thousand(1)
    with Conversation(server) as talk:
        talk.send(payload)
        assert [said.status for said in talk.read_answers(1_000)] == wanted


@pytest.mark.usefixtures("quiet")
def test_thousand_claims_in_one_piece(server: ServerProcess, alice: Api, name: str) -> None:
    """So are a thousand claims, each durable before its answer; all of them hold, in the order of asking."""
    with Conversation(server) as talk:
        talk.send(*(acquire(f"{name}/{number:03}") for number in range(1_000)))
        bodies = [json.loads(said.body) for said in talk.read_answers(1_000)]
    assert [body["status"] for body in bodies] == ["acquired"] * 1_000
    tokens = [body["fencing_token"] for body in bodies]
    assert tokens == sorted(set(tokens))
    assert len(alice.locks(prefix=f"{name}/", limit=2_000).json()["locks"]) == 1_000


def test_others_are_answered_between(server: ServerProcess) -> None:
    """While a thousand requests of one connection are answered, another's is answered before the last of them."""
    payload, wanted = thousand(2)
    ping = request("GET", "/health")
    with Conversation(server) as other:
        other.send(ping).read_answers(1)
        for _ in range(ROUNDS_MAX):
            with Conversation(server, receive_bytes=1 << 22) as talk:
                other.received = b""
                talk.send(payload)
                other.send(ping).read_answers(1)
                talk.read_now()
                was_first = len(talk.complete()) < 1_000
                assert [said.status for said in talk.read_answers(1_000)] == wanted
            if was_first:
                return
    raise AssertionError(f"in {ROUNDS_MAX} rounds the other one always had to wait for all thousand")


TRAILING = {
    "a byte": b"x",
    "a nul": b"\x00",
    "noise": bytes(range(128, 256)) * 4,
    "a greeting of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
    "a line without a colon": b"GET /health HTTP/1.1\r\nHost: a\r\nnonsense\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "no version": b"GET /health\r\n\r\n",
    "two lengths": request("POST", "/sessions", "Content-Length: 9", body=b"{}"),
    "length and chunks": request("POST", "/sessions", "Content-Length: 2", "Transfer-Encoding: chunked", body=b""),
    "a bad chunk": request("POST", "/sessions", "Transfer-Encoding: chunked", body=b"") + b"zz\r\n",
    "another version": b"GET /health HTTP/3.0\r\nHost: a\r\n\r\n",
}


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("before", [0, 1, 20])
@pytest.mark.parametrize("kind", TRAILING)
def test_decided_request_is_answered_whatever_follows(
    server: ServerProcess, alice: Api, name: str, kind: str, before: int
) -> None:
    """A claim is answered as granted although noise came right behind it; then the noise is refused."""
    names = [f"{name}/{number}" for number in range(before + 1)]
    with Conversation(server) as talk:
        # The first one alone: the headers of the others are then known, byte for byte.
        talk.send(acquire(names[0])).read_answers(1)
        talk.send(*map(acquire, names[1:]), TRAILING[kind], acquire(f"{name}/behind"))
        answers = talk.read_to_the_end()
    assert [said.status for said in answers] == [200] * (before + 1) + [answers[-1].status]
    assert 400 <= answers[-1].status < 600 and answers[-1].closes
    for said in answers[:-1]:
        assert json.loads(said.body)["status"] == "acquired"
    assert sorted(row["name"] for row in alice.locks(prefix=f"{name}/").json()["locks"]) == sorted(names)


@pytest.mark.usefixtures("quiet")
def test_nothing_is_sent_after_a_close(server: ServerProcess, alice: Api, name: str) -> None:
    """What follows a request with `Connection: close` is neither answered nor done."""
    with Conversation(server) as talk:
        talk.send(acquire(f"{name}/1", "Connection: close"), acquire(f"{name}/2") * 50)
        answers = talk.read_to_the_end()
    assert [said.status for said in answers] == [200] and answers[0].closes
    assert [row["name"] for row in alice.locks(prefix=f"{name}/").json()["locks"]] == [f"{name}/1"]


def test_late_reader_sees_the_close(server: ServerProcess) -> None:
    """An answer that closes the connection is there for one who sent more behind it, and reads only afterwards."""
    with Conversation(server) as talk:
        talk.send(request("GET", "/health", "Connection: close"))
        wait_until(lambda: talk.sock.recv(1, socket.MSG_PEEK))
        for _ in range(20):
            talk.send(request("GET", "/health"))
        assert [said.status for said in talk.read_to_the_end()] == [200]


# The end of sending.


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("count", [1, 2, 40, 300])
def test_half_closed_connections_get_their_answers(server: ServerProcess, name: str, count: int) -> None:
    """Whatever was complete when the sender said that it sends no more is answered; then the connection ends."""
    with Conversation(server) as talk:
        talk.send(*(acquire(f"{name}/{number}") for number in range(count))).half_close()
        answers = talk.read_to_the_end()
        wait_until(lambda: not talk.is_open_at_server())
    assert [json.loads(said.body)["status"] for said in answers] == ["acquired"] * count


def test_half_of_a_request_is_not_applied(server: ServerProcess, alice: Api, name: str) -> None:
    """What was not complete at the end of sending does not happen; what was complete before it is answered."""
    complete = acquire(f"{name}/2", body={"metadata": "x"})
    for cut in (1, 20, complete.index(b"\r\n\r\n"), len(complete) - 1):
        with Conversation(server) as talk:
            talk.send(acquire(f"{name}/{cut}/1"), complete[:cut]).half_close()
            answers = talk.read_to_the_end()
        assert json.loads(answers[0].body)["status"] == "acquired"
        assert all(said.status in (400, 408) for said in answers[1:]) and len(answers) <= 2
    assert alice.status(f"{name}/2").json()["status"] == "free"


def test_waiter_leaves_the_queue_with_its_connection(server: ServerProcess, alice: Api, name: str) -> None:
    """The end of sending ends a wait in line: nobody would hear of the grant."""
    alice.acquired(name)
    with Conversation(server) as talk:
        talk.send(acquire(name, body={"wait_seconds": 40}, token=callers.BOB))
        wait_until(lambda: waiters(alice, name) == 1)
        talk.half_close()
        wait_until(lambda: waiters(alice, name) == 0)
        wait_until(lambda: not talk.is_open_at_server())


# 100 Continue.


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("wait_seconds", [0, 0.3])
def test_continue_comes_in_its_turn(server: ServerProcess, alice: Api, name: str, wait_seconds: float) -> None:
    """`100 Continue` comes behind the answers that are owed before it, and the request goes on with its body."""
    alice.acquired(name)
    slow = acquire(name, body={"wait_seconds": wait_seconds} if wait_seconds else {}, token=callers.BOB)
    expecting = acquire(f"{name}/2", "Expect: 100-continue")
    with Conversation(server) as talk:
        talk.send(slow, slow, expecting[:-2])
        data = talk.read_until(lambda data: b"100 Continue\r\n\r\n" in data)
        assert data.endswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert [said.status for said in talk.answers()] == [200, 200, 100]
        talk.send(b"{}").read_until(lambda data: b"acquired" in data)
        assert [said.status for said in talk.answers()] == [200, 200, 100, 200]


def test_no_continue_for_a_body_that_is_too_large(server: ServerProcess) -> None:
    """Who asks whether to send a body that is too large is told no at once, behind the answers owed before."""
    expecting = request("POST", f"/locks/{unique()}/acquire", "Expect: 100-continue", "Content-Length: 99999999")
    with Conversation(server) as talk:
        talk.send(request("GET", "/health"), expecting)
        assert [said.status for said in talk.read_to_the_end()] in ([200, 413], [200, 417])
