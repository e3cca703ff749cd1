"""Request smuggling through real proxies that keep their connections to the server and share them among all clients."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.proxies.smuggling import PLAIN, cases
from tests.support import callers, proof
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.http import Answer, parse_answers
from tests.support.pending import Pending
from tests.support.proxy import Proxy
from tests.support.raw import head
from tests.support.reverse_proxies import FORBIDDEN, PROXY_KINDS, ReverseProxy, front
from tests.support.server import ServerProcess

ANSWER_SECONDS_MAX = 0.3
"""How long the attacker waits for an answer. Many a trick only makes the proxy wait for the rest of a body."""


def hidden_in(name: str) -> tuple[bytes, bytes]:
    """A whole request for a name that the proxy forbids, and the beginning of one, which would swallow another's."""
    path = f"/locks/{name}/acquire"
    complete = head("POST", path, *PLAIN, "Content-Length: 2") + b"{}"
    return complete, head("POST", path, *PLAIN, "Content-Length: 2", "X-Odd: a").removesuffix(b"\r\n\r\n")


def pieces(data: bytes, way: int) -> list[bytes]:
    """The bytes whole, and in other ways cut at places drawn by a seed."""
    if not way:
        return [data]
    chance = random.Random(way)
    cuts = sorted(chance.sample(range(1, len(data)), chance.randrange(1, 6)))
    return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


class Others:
    """Another user, with a connection that lasts and with new ones."""

    def __init__(self, before: ReverseProxy) -> None:
        self._before = before
        self._persistent = before.api(callers.BOB)
        self._seen: set[str | None] = set()

    def are_served_their_own(self) -> None:
        """Each answer is for the name that was asked about, has all that it should, and comes once."""
        fresh = self._before.api(callers.BOB)
        for api in (self._persistent, fresh, self._persistent, self._persistent):
            mine = unique("mine")
            self._is(mine, api.status(mine))
        fresh.close()

    def _is(self, mine: str, answer: Answer) -> None:
        assert (answer.status, answer.json().get("name")) == (200, mine), f"asked about {mine}: {answer}"
        assert answer.request_id not in self._seen, f"came twice: {answer}"
        self._seen.add(answer.request_id)


@pytest.fixture(scope="module")
def others(before: ReverseProxy) -> Others:
    """Another user of the same proxy."""
    return Others(before)


def attack(before: ReverseProxy, others: Others, data: bytes, way: int) -> list[Answer]:
    """Send it, and let the others ask while the connection is open and after it is closed. Returns its answers."""
    first, *rest = pieces(data, way)
    with Pending(before.host, before.port, first) as attacker:
        for piece in rest:
            try:
                attacker.send(piece)
            except OSError:
                break
        attacker.is_answered(ANSWER_SECONDS_MAX)
        others.are_served_their_own()
        attacker.is_answered(0)
        answers = parse_answers(bytes(attacker._received), closed=False)
    others.are_served_their_own()
    return answers


@pytest.mark.parametrize("trick", list(cases(b"")))
def test_nothing_is_smuggled(
    before: ReverseProxy, others: Others, alice: Api, trick: str, record_property: Callable[[str, object], None]
) -> None:
    """What is hidden in a request is never done, and nobody gets an answer that is not their own."""
    ways = proof.count("proxies: ways to cut a request")
    for way in range(ways):
        name = unique(FORBIDDEN)
        for hidden in hidden_in(name):
            for answer in attack(before, others, cases(hidden)[trick], way):
                assert answer.status < 500 or answer.status in {501, 502, 505}, answer
            assert alice.status(name).json()["status"] == "free", f"{trick}: it was smuggled past the proxy"
    record_property("count: smuggled requests, through nginx and HAProxy", 2 * ways)


def test_proxy_forbids_what_it_sees(before: ReverseProxy, alice: Api) -> None:
    """The rule that the tricks would get around holds: a plain request for such a name is refused by the proxy."""
    name = unique(FORBIDDEN)
    assert before.api(callers.ALICE).acquire(name).status == 403
    assert alice.status(name).json()["status"] == "free"
    assert alice.acquire(name).status == 200


# --- The tools of this file -------------------------------------------------------------------------------------------


class LeavesBodies(Proxy):
    """A server as it must not be: it answers when it has a head, and takes the body for the next one."""

    def __init__(self, server: ServerProcess) -> None:
        self.heads: list[bytes] = []
        super().__init__(server)

    def _pass_on(self, client: socket.socket) -> None:
        data = b""
        with client, contextlib.suppress(OSError):
            client.settimeout(5)
            while more := client.recv(1 << 16):
                data += more
                while b"\r\n\r\n" in data:
                    asked, _, data = data.partition(b"\r\n\r\n")
                    self.heads.append(asked)
                    name = asked.split(b" ")[1].rpartition(b"/")[2]
                    body = b'{"name": "%b"}' % name
                    answer = b"HTTP/1.1 200 OK\r\nX-Request-Id: %d\r\nContent-Length: %d\r\n\r\n%b"
                    client.sendall(answer % (len(self.heads), len(body), body))


# As the guide has it, HAProxy lends a connection only to clients that have been served before, which is rare here.
@pytest.mark.parametrize("kind", [kind for kind in PROXY_KINDS if kind != "haproxy"])
def test_smuggling_would_be_seen(kind: str, server: ServerProcess, tmp_path: Path) -> None:
    """A server that leaves bodies behind runs what is hidden in one, and gives others answers that are not theirs."""
    name = unique(FORBIDDEN)
    complete, truncated = hidden_in(name)
    with LeavesBodies(server) as bad, front(kind, tmp_path, (bad.host, bad.port)) as before:
        Others(before).are_served_their_own()
        with pytest.raises(AssertionError, match="asked about mine"):
            attack(before, Others(before), cases(truncated)["a wrong token and a body"], 0)
        with contextlib.suppress(AssertionError):
            attack(before, Others(before), cases(complete)["a wrong token and a body"], 0)
        assert any(f"/locks/{name}/acquire".encode() in asked.partition(b"\r\n")[0] for asked in bad.heads)
