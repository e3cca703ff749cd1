"""Crowds of TLS connections that never become clients: what they cost in memory, and how long they delay a client.

Delays are processor time of the server between a request and its response, so other work on the machine does not count.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.http.conversation import Conversation
from tests.http.histories import request
from tests.load.crowd import raise_file_limit, rss_bytes
from tests.support import callers
from tests.support.checks import wait_until
from tests.support.server import ServerProcess, serving

CONNECTIONS = 3_000
MEMORY_MIB_MAX = 60
HELLOS = 300
DELAY_MS_MAX = 60
STALLED = 600
MIB = 2**20

Record = Callable[[str, object], None]


@pytest.fixture
def tls(pem: Path) -> ssl.SSLContext:
    """What a client needs to trust the server."""
    return ssl.create_default_context(cafile=str(pem))


@pytest.fixture
def server(tmp_path: Path, pem: Path) -> Iterator[ServerProcess]:
    """A server that waits long enough for all of a crowd."""
    raise_file_limit()
    settings = {"tls_cert": pem, "header_timeout_seconds": 120, "connections_max": CONNECTIONS + 100}
    with serving(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as process:
        yield process


def _client_hello(tls: ssl.SSLContext) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = tls.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def _crowd(server: ServerProcess, stack: contextlib.ExitStack, sent: list[bytes]) -> None:
    """Open connections that send this and nothing more."""
    for data in sent:
        sock = stack.enter_context(socket.create_connection((server.host, server.port), timeout=60))
        sock.sendall(data)


def _cpu_ms(server: ServerProcess) -> float:
    """Return the processor time of the server's main thread."""
    text = Path(f"/proc/{server.pid}/task/{server.pid}/schedstat").read_text(encoding="ascii")
    return int(text.split()[0]) / 1e6


def _is_idle(server: ServerProcess) -> bool:
    before = _cpu_ms(server)
    time.sleep(0.3)
    return _cpu_ms(server) - before < 20


@pytest.mark.parametrize("kind", ["silent", "half a hello"])
def test_connections_before_their_handshake_take_little_memory(
    server: ServerProcess, tls: ssl.SSLContext, record_property: Record, kind: str
) -> None:
    """3,000 connections that send nothing, or half a ClientHello, take at most 60 MB, and a client is served."""
    asked = request("GET", "/locks")
    hello = b"" if kind == "silent" else _client_hello(tls)[:-1]
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Conversation(server, tls=tls))
        client.send(asked).read_answers(1)
        before = rss_bytes(server.pid)
        _crowd(server, stack, [hello] * CONNECTIONS)
        wait_until(lambda: _is_idle(server))
        mib = (rss_bytes(server.pid) - before) / MIB
        assert client.send(asked).read_answers(2)[-1].status == 200
        with Conversation(server, tls=tls) as late:
            assert late.send(asked).read_answers(1)[0].status == 200
    record_property(f"MiB of {CONNECTIONS} TLS connections: {kind}", round(mib, 1))
    assert mib < MEMORY_MIB_MAX


def test_client_hellos_delay_a_client_little(
    server: ServerProcess, tls: ssl.SSLContext, record_property: Record
) -> None:
    """300 clients say hello at the same time: the request of another is answered after at most 60 ms."""
    asked, hellos, delays = request("GET", "/locks"), [_client_hello(tls) for _ in range(HELLOS)], []
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Conversation(server, tls=tls))
        answers = 1
        client.send(asked).read_answers(answers)
        for _ in range(5):
            with contextlib.ExitStack() as crowd:
                server.pause()
                _crowd(server, crowd, hellos)
                for is_first in (True, False, False, False):
                    # The first is received together with the hellos, the others while handshakes are under way.
                    before = _cpu_ms(server)
                    client.send(asked)
                    if is_first:
                        server.resume()
                    answers += 1
                    assert client.read_answers(answers)[-1].status == 200
                    delays.append(_cpu_ms(server) - before)
            wait_until(lambda: _is_idle(server))
    record_property(f"ms that {HELLOS} ClientHellos delay a client", [round(each, 1) for each in delays])
    assert max(delays) < DELAY_MS_MAX


def test_stalled_handshakes_do_not_block_clients(
    server: ServerProcess, tls: ssl.SSLContext, record_property: Record
) -> None:
    """600 clients say hello and never answer: others still connect, and no more handshakes are kept than allowed."""
    asked, hellos = request("GET", "/locks"), [_client_hello(tls) for _ in range(STALLED)]
    with contextlib.ExitStack() as stack:
        before = rss_bytes(server.pid)
        _crowd(server, stack, hellos)
        began = time.monotonic()
        with Conversation(server, tls=tls) as client:
            assert client.send(asked).read_answers(1)[0].status == 200
        record_property("seconds until a client is served behind stalled handshakes", time.monotonic() - began)
        wait_until(lambda: _is_idle(server))
        mib = (rss_bytes(server.pid) - before) / MIB
    record_property(f"MiB of {STALLED} stalled handshakes", round(mib, 1))
    assert mib < MEMORY_MIB_MAX
