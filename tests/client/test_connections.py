"""The connections of the client for threads: which are kept, which are thrown away, and the ways through a proxy."""

from __future__ import annotations

import gc
import os
import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.client.config import Target
from holdfast.client.effects import Open, Send
from holdfast.client.sync_transport import Connection, HttpTransport, _DeadlineReader
from holdfast.errors import ServerError, Unreachable
from tests.client.peer import Peer
from tests.client.transports import TRANSPORTS, EitherTransport
from tests.support import callers
from tests.support.checks import at_once, wait_until
from tests.support.reverse_proxies import NAME


@contextmanager
def to(url: str) -> Iterator[HttpTransport]:
    with closing(HttpTransport(Target(url, "test", None, "test"), environment={})) as transport:
        yield transport


@contextmanager
def listening(
    talk: Callable[[socket.socket, int], object], host: str = "127.0.0.1", context: ssl.SSLContext | None = None
) -> Iterator[str]:
    """A server whose every connection is handed to `talk` with its number, in a thread; what to call it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family)

    def accept() -> None:
        number = 0
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            number += 1
            threading.Thread(target=serve, args=(sock, number), daemon=True).start()

    def serve(sock: socket.socket, number: int) -> None:
        with suppress(OSError), sock if context is None else context.wrap_socket(sock, server_side=True) as spoken:
            talk(spoken, number)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        name = f"[{host}]" if ":" in host else host
        yield f"http{'s' if context else ''}://{name}:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def read_request(sock: socket.socket) -> bytes:
    """The path of the next request, which has no body; nothing at the end."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = sock.recv(65_536)
        if not part:
            return b""
        data += part
    return data.split(b" ")[1]


def said(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def echo(sock: socket.socket, number: int) -> None:
    """Answer each request with its path."""
    while path := read_request(sock):
        sock.sendall(said(path))


def test_sequential_requests_share_a_connection(peer: Peer) -> None:
    """Requests that follow each other, of whichever thread, go over one connection."""
    with to(peer.url) as transport:
        for _ in range(3):
            at_once([lambda: transport.send(Send("GET", "/a"))])
            transport.send(Send("POST", "/b", {"c": 1}))
    assert (peer.accepted, len(peer.asked)) == (1, 6)


def test_waiting_request_blocks_no_other(peer: Peer) -> None:
    """A request that waits for its answer keeps no other from being sent: that one has a connection of its own."""
    answered = threading.Event()

    def slow(sock: socket.socket, number: int) -> None:
        while path := read_request(sock):
            if path == b"/wait":
                answered.wait(20)
            sock.sendall(said(path))

    with listening(slow) as url, to(url) as transport:

        def ask_meanwhile() -> bytes:
            try:
                return transport.send(Send("GET", "/renew")).body
            finally:
                answered.set()

        bodies = at_once([lambda: transport.send(Send("GET", "/wait", answer_seconds=20)).body, ask_meanwhile])
    assert sorted(bodies) == [b"/renew", b"/wait"]


@pytest.mark.parametrize("pieces", [[b"HTTP/1.1 200 OK\r\n"], [said(b"x" * 100)[:60]]], ids=["head", "body"])
def test_dripping_answer_times_out(pieces: list[bytes]) -> None:
    """The time for an answer is for all of it: bytes that come one by one do not begin it anew."""
    stop = threading.Event()

    def drip(sock: socket.socket, number: int) -> None:
        read_request(sock)
        sock.sendall(pieces[0])
        while not stop.wait(0.02):
            sock.sendall(b"x")

    with listening(drip) as url, to(url) as transport:
        try:
            with pytest.raises(Unreachable, match="did not come in time"):
                transport.send(Send("GET", "/a", answer_seconds=0.3))
        finally:
            stop.set()


def test_closed_connection_is_not_reused(peer: Peer) -> None:
    """A kept connection on which the server has hung up is dropped before a byte is sent; each request goes once."""
    seen: list[bytes] = []

    def once(sock: socket.socket, number: int) -> None:
        seen.append(read_request(sock))
        sock.sendall(said(b"%d" % number))

    with listening(once) as url, to(url) as transport:
        for number in range(1, 4):
            assert transport.send(Send("POST", f"/{number}")).body == b"%d" % number
            wait_until(lambda: not transport._idle[-1].is_quiet())
    assert seen == [b"/1", b"/2", b"/3"]


def test_sent_request_is_not_repeated() -> None:
    """When the server hangs up after it was asked, nobody knows what it did: `Unreachable`, and no second time."""
    seen: list[bytes] = []

    def hang_up(sock: socket.socket, number: int) -> None:
        seen.append(read_request(sock))

    with listening(hang_up) as url, to(url) as transport, pytest.raises(Unreachable):
        transport.send(Send("POST", "/once"))
    assert seen == [b"/once"]


READS = {"before": "receive", "head": "readinto", "body": "readinto"}
"""What waits for the bytes that are missing, by what has come before them."""


class Stop(BaseException):
    """An interrupt of a kind that nobody catches."""


@pytest.mark.parametrize("where", ["head", "body", "before"])
def test_no_answer_is_read_as_another(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an interrupt the connection is thrown away: the answer that was on its way is never that of the next."""
    cut = {"before": 0, "head": 20, "body": -2}[where]
    more = threading.Event()

    def halting(sock: socket.socket, number: int) -> None:
        while path := read_request(sock):
            answer = said(path)
            sock.sendall(answer[:cut] if number == 1 else answer)
            if number == 1:
                more.wait(20)
                sock.sendall(answer[cut:])

    def interrupted(*_: object) -> int:
        raise Stop

    with listening(halting) as url, to(url) as transport:
        with monkeypatch.context() as patch:
            patch.setattr(Connection if where == "before" else _DeadlineReader, READS[where], interrupted)
            with pytest.raises(Stop):
                transport.send(Send("GET", "/first"))
        more.set()
        assert not transport._idle
        assert [transport.send(Send("GET", f"/{number}")).body for number in range(3)] == [b"/0", b"/1", b"/2"]


def test_close_closes_connections_of_all_threads(peer: Peer) -> None:
    """Closing closes the connection of every thread, also of those that live; one in use is closed when it is done."""
    ended: list[int] = []
    gate = threading.Barrier(4)
    waiting, go = threading.Event(), threading.Event()

    def noting(sock: socket.socket, number: int) -> None:
        while path := read_request(sock):
            if path == b"/wait":
                waiting.set()
                go.wait(20)
            else:
                gate.wait(20)
            sock.sendall(said(path))
        ended.append(number)

    with listening(noting) as url, to(url) as transport:
        in_use = threading.Thread(target=transport.send, args=(Send("GET", "/wait", answer_seconds=20),))
        in_use.start()
        assert waiting.wait(20)
        at_once([lambda: transport.send(Send("GET", "/")) for _ in range(4)])
        assert len(transport._idle) == 4
        transport.close()
        wait_until(lambda: len(ended) == 4)
        go.set()
        in_use.join()
        wait_until(lambda: len(ended) == 5)


def test_idle_connections_are_limited(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many threads asked at once, so many connections are kept and no more; the oldest are closed."""
    monkeypatch.setattr("holdfast.client.sync_transport.CONNECTIONS_MAX", 2)
    gate = threading.Barrier(5)

    def together(sock: socket.socket, number: int) -> None:
        while path := read_request(sock):
            gate.wait(20)
            sock.sendall(said(path))

    with listening(together) as url, to(url) as transport:
        at_once([lambda: transport.send(Send("GET", "/")) for _ in range(5)])
        assert len(transport._idle) == 2


def test_another_thread_may_close_a_stream() -> None:
    """A stream that another thread closes is at its end for the one that reads."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"

    def stay(sock: socket.socket, number: int) -> None:
        read_request(sock)
        sock.sendall(head)
        read_request(sock)

    with listening(stay) as url, to(url) as transport:
        stream = transport.stream(Open("/events", {}, 20))
        assert stream.read() == b"abc"
        closer = threading.Timer(0, stream.close)
        closer.start()
        assert stream.read() == b""
        closer.join()
        assert stream.read() == b""


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_ipv6_host_is_reached(kind: str) -> None:
    """An address of IPv6 is understood, and stands in brackets in the request."""
    sent_requests: list[bytes] = []

    def keep(sock: socket.socket, number: int) -> None:
        sent_requests.append(sock.recv(65_536))
        sock.sendall(said(b"{}"))

    try:
        with listening(keep, "::1") as url:
            way = EitherTransport(kind, Target(url, "test", None, "test"), {})
            assert way.send("GET", "/things").body == b"{}"
            way.close()
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    assert b"\r\nhost: " + url.removeprefix("http://").encode() in sent_requests[0].lower()


@contextmanager
def tunnels(port: int, asked: list[str]) -> Iterator[str]:
    """A proxy that opens a tunnel to one port of this machine, whoever is asked for."""

    def tunnel(sock: socket.socket, number: int) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            request += sock.recv(65_536)
        asked.append(request.decode())
        if "refused" in asked[-1]:
            sock.sendall(b"HTTP/1.1 403 Not For You\r\nContent-Length: 0\r\n\r\n")
            return
        with socket.create_connection(("127.0.0.1", port)) as upstream:
            sock.sendall(b"HTTP/1.1 200 Go On\r\n\r\n")
            back = threading.Thread(target=_carry, args=(upstream, sock), daemon=True)
            back.start()
            _carry(sock, upstream)
            back.join()

    with listening(tunnel) as url:
        yield url


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    with suppress(OSError):
        socket.socket.shutdown(sink, socket.SHUT_RDWR)


def count(sock: socket.socket, number: int) -> None:
    """Answer each request with as many bytes as it had in its body."""
    rest = b""
    while True:
        while b"\r\n\r\n" not in rest:
            part = sock.recv(65_536)
            if not part:
                return
            rest += part
        head, _, rest = rest.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        while len(rest) < length:
            rest += sock.recv(65_536)
        sock.sendall(said(rest[:length]))
        rest = rest[length:]


def test_tls_through_a_tunnel(pem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that speaks TLS is reached through a tunnel: the proxy sees its name, and our password for the proxy."""
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    asked: list[str] = []
    with listening(count, context=context) as url:
        port = int(url.rpartition(":")[2])
        with tunnels(port, asked) as proxy:
            target = Target(f"https://{NAME}", "test", callers.ALICE, "test")
            environment = {"https_proxy": proxy.replace("//", "//ana:pw@")}
            with closing(HttpTransport(target, environment=environment)) as transport:
                for size in (1, 100, 200_000, 7):
                    assert transport.send(Send("POST", "/things", "x" * size)).body == b'"%s"' % (b"x" * size)
    assert asked == [f"CONNECT {NAME}:443 HTTP/1.1\r\nHost: {NAME}:443\r\nProxy-Authorization: Basic YW5hOnB3\r\n\r\n"]


def test_a_tunnel_that_is_refused() -> None:
    """A proxy that opens no tunnel is named, with what it said."""
    target = Target("https://refused.example.com", "test", callers.ALICE, "test")
    with (
        tunnels(0, []) as proxy,
        closing(HttpTransport(target, environment={"https_proxy": proxy})) as transport,
        pytest.raises(Unreachable, match=r"the proxy did not let us through \(403 Not For You\)"),
    ):
        transport.send(Send("GET", "/locks"))


def test_forked_process_has_its_own_connections(peer: Peer) -> None:
    """A forked process uses none of its parent's connections, and closes none of them for the parent."""
    with to(peer.url) as transport:
        transport.send(Send("GET", "/parent"))
        pid = os.fork()
        if pid == 0:
            try:
                transport.send(Send("GET", "/child"))
                transport.close()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        transport.send(Send("GET", "/parent"))
    assert (peer.accepted, [asked[1] for asked in peer.asked]) == (2, ["/parent", "/child", "/parent"])


def test_a_dropped_client_closes_its_connections(peer: Peer, nowhere: dict[str, str]) -> None:
    """A client that is dropped and not closed closes its connections at once, without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        client = Holdfast(peer.url, token=callers.ALICE, environment=nowhere)
        with pytest.raises(ServerError):
            client.server_status()
        (idle,) = client._transport._idle  # type: ignore[union-attr]
        watched = weakref.ref(idle)
        del client, idle
        assert watched() is None
    finally:
        gc.enable()
