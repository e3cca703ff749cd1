"""Who asks much stands behind: what one user asks at once on many connections delays another by one request of it."""

import contextlib
import signal
import socket
from pathlib import Path

from tests.support import callers
from tests.support.api import Api
from tests.support.http import parse_answers
from tests.support.pending import payload
from tests.support.server import ServerProcess

SESSIONS = 20
NAMES = 1_000


def test_a_small_request_does_not_wait_for_twenty_large_ones(tmp_path: Path) -> None:
    """One user ends twenty sessions of a thousand claims each, and then another claims, while the server is stopped.

    The numbers of their records tell the order of decisions: the other's comes behind few of the twenty.
    """
    settings = {"leases_per_principal_max": 100_000}
    with (
        ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server,
        contextlib.ExitStack() as stack,
    ):
        bob = Api.of(server, callers.BOB)
        sessions = [bob.post("/sessions", {"ttl_seconds": 600}).json()["session_id"] for _ in range(SESSIONS)]
        for number, session in enumerate(sessions):
            names = [f"bob/{number}/{name}" for name in range(NAMES)]
            body = {"all": names, "ephemeral": True, "session_id": session, "ttl_seconds": 600}
            assert bob.post("/claims", body).status == 200
        lines = [(socket.create_connection((server.host, server.port), 60), callers.BOB) for _ in sessions]
        lines.append((socket.create_connection((server.host, server.port), 60), callers.ALICE))
        for sock, token in lines:
            stack.enter_context(sock)
            sock.sendall(payload("/locks/nobodys", token, None, method="GET"))
            assert sock.recv(65_536)
        server.process.send_signal(signal.SIGSTOP)
        for (sock, token), session in zip(lines, sessions, strict=False):
            sock.sendall(payload(f"/sessions/{session}", token, None, method="DELETE"))
        lines[-1][0].sendall(payload("/locks/alice/acquire", callers.ALICE, {}))
        server.process.send_signal(signal.SIGCONT)
        assert [parse_answers(sock.recv(65_536), closed=False)[0].status for sock, _ in lines] == [204] * SESSIONS + [
            200
        ]
        ended = [bob.history(f"bob/{number}/0").json()["history"][0]["seq"] for number in range(SESSIONS)]
        claimed = bob.history("alice").json()["history"][0]["seq"]
        assert sum(seq < claimed for seq in ended) <= SESSIONS // 4
