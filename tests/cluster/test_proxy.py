"""The way that tests break is looked at itself: what it loses it loses, and what it passes on is whole."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.cluster.proxy import RESET_AT_CLOSE, Fate, TcpProxy
from tests.support.checks import wait_until


class Echo:
    """Sends back what it gets, and remembers it; at `!` it hangs up without a word, as one that was killed."""

    def __init__(self) -> None:
        self.received = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                self.received += data
                if data == b"!":
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
                    return
                client.sendall(data)


@pytest.fixture
def echo() -> Iterator[Echo]:
    """A server that sends everything back."""
    server = Echo()
    yield server
    server.close()


def ask(proxy: TcpProxy, data: bytes) -> bytes:
    """What comes back of it until the end, or until all of it came back."""
    # A way that is cut may end the connection before it is quite there.
    with contextlib.suppress(ConnectionError), socket.create_connection((proxy.host, proxy.port), timeout=10) as client:
        client.sendall(data)
        return read(client, len(data))
    return b""


def read(client: socket.socket, count: int) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionError):
        while len(found) < count and (more := client.recv(1 << 16)):
            found += more
    return found


def test_proxy_forwards_everything(echo: Echo) -> None:
    """Without a fault a megabyte arrives, and comes back, as it was sent, and no connection is left."""
    data = bytes(range(256)) * 4_096
    with TcpProxy(echo.host, echo.port) as proxy:
        with socket.create_connection((proxy.host, proxy.port), timeout=10) as client:
            sender = threading.Thread(target=client.sendall, args=(data,), daemon=True)
            sender.start()
            assert read(client, len(data)) == data
            sender.join()
        wait_until(lambda: proxy.connections == 0)
    assert echo.received == data


@pytest.mark.parametrize(("fate", "arrives"), [(Fate.BEFORE, False), (Fate.LATE, True), (Fate.AFTER, True)])
def test_client_receives_nothing_after_a_cut(echo: Echo, fate: Fate, arrives: bool) -> None:
    """Before, late, after: the client hears nothing, and the server has all of it or nothing."""
    with TcpProxy(echo.host, echo.port, draw=lambda piece: fate if piece == b"cut" else Fate.PASS) as proxy:
        assert ask(proxy, b"cut") == b""
        if arrives:
            wait_until(lambda: echo.received == b"cut")
        wait_until(lambda: proxy.connections == 0)
        assert ask(proxy, b"next") == b"next"
        assert proxy.fates[fate] == 1
    assert echo.received == (b"cutnext" if arrives else b"next")


def test_server_disconnect_reaches_the_client(echo: Echo) -> None:
    """A server that is killed ends the connection of its client at once, not when that one is tired of waiting."""
    with TcpProxy(echo.host, echo.port) as proxy:
        assert ask(proxy, b"!") == b""
        wait_until(lambda: proxy.connections == 0)


def test_cut_way_is_mended(echo: Echo) -> None:
    """While the way is cut there is neither an old connection nor a new one; afterwards there are again."""
    with TcpProxy(echo.host, echo.port) as proxy:
        with socket.create_connection((proxy.host, proxy.port), timeout=10) as old:
            old.sendall(b"a")
            assert read(old, 1) == b"a"
            proxy.cut()
            assert read(old, 1) == b""
            assert ask(proxy, b"b") == b""
        proxy.restore()
        assert ask(proxy, b"c") == b"c"
    assert echo.received == b"ac"


def test_held_bytes_arrive_late(echo: Echo) -> None:
    """While the way holds nothing passes, on old and new connections; then all of it does, also of one that left."""
    with TcpProxy(echo.host, echo.port) as proxy, socket.create_connection((proxy.host, proxy.port)) as old:
        old.sendall(b"a")
        assert read(old, 1) == b"a"
        proxy.hold()
        old.settimeout(0.2)
        old.sendall(b"b")
        with pytest.raises(TimeoutError):
            old.recv(1)
        with socket.create_connection((proxy.host, proxy.port)) as gone:
            gone.sendall(b"c")
        assert echo.received == b"a"
        proxy.restore()
        old.settimeout(10)
        assert read(old, 1) == b"b"
        wait_until(lambda: sorted(echo.received) == sorted(b"abc"))
