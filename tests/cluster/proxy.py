"""A way to a server that a test can break, for any protocol over TCP: from a node to its store, or to another node.

The law of this file: bytes are passed on as they came and in order, until somebody breaks the way. There are two kinds
of breaking. A fate is drawn for each piece that the client sends, and ends that one connection:

```text
 BEFORE   client ──✂                      server      the server never had it
 LATE     client ──✂   … a little later ► server      the server has it after the client gave up: a late copy
 AFTER    client ──────────────────────► server      the server has done it, and its answer is lost
          client                      ✂─ server
```

And the whole way can be `cut` (connections are reset, new ones too), or `hold` everything: the connections stand and
nothing passes, as if a cable was pulled. What was sent meanwhile arrives once the way is mended, late.

Threads do the work, two for each connection, so a test of any kind can use it, and nothing here needs to be root.
"""

from __future__ import annotations

import contextlib
import enum
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeAlias

PIECE_BYTES_MAX = 1 << 16
CONNECT_SECONDS_MAX = 5.0
CLOSE_SECONDS_MAX = 5.0
LATE_SECONDS_MAX = 0.3
RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class Fate(enum.Enum):
    """What happens to one piece that a client sent."""

    PASS = "passed on"
    BEFORE = "cut before the server had it"
    LATE = "cut, and delivered late"
    AFTER = "cut after the server had it"


Draw: TypeAlias = Callable[[bytes], Fate]
"""Decides about a piece. It is called in many threads, one call at a time."""


def pass_all(_piece: bytes) -> Fate:
    """Break nothing."""
    return Fate.PASS


def at_random(chance: random.Random, share: float, *, bytes_min: int = 1) -> Draw:
    """Break so large a share of the pieces that have at least that size, each in one of the three ways."""

    def draw(piece: bytes) -> Fate:
        if len(piece) < bytes_min or chance.random() >= share:
            return Fate.PASS
        return chance.choice((Fate.BEFORE, Fate.LATE, Fate.AFTER))

    return draw


class TcpProxy:
    """Listens on a port of its own and passes everything on to `target`, which may be changed while it runs."""

    def __init__(self, host: str, port: int, *, draw: Draw = pass_all, seed: int = 0) -> None:
        self.target = host, port
        self.draw = draw
        self.delay_seconds = 0.0
        """How long each piece is kept, in both directions."""
        self.fates: Counter[Fate] = Counter()
        self._chance = random.Random(seed)
        self._deciding = threading.Lock()
        self._is_cut = False
        self._is_over = threading.Event()
        self._flows = threading.Event()
        self._flows.set()
        self._ways: set[_Way] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.host, self.port = self._listener.getsockname()[:2]
        self._acceptor = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._acceptor.start()

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self._ways)

    def cut(self) -> None:
        """Reset every connection, and every new one, until it is mended."""
        self._is_cut = True
        self._flows.set()
        self.reset()

    def reset(self) -> None:
        """Reset every connection that there is. New ones are let through."""
        for way in list(self._ways):
            way.break_off()

    def hold(self) -> None:
        """Let nothing pass in either direction, and close nothing."""
        self._flows.clear()

    def restore(self) -> None:
        """Let everything pass again, what was held back first."""
        self._is_cut = False
        self._flows.set()

    def close(self) -> None:
        """End it, with all its connections."""
        self._is_over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join(CLOSE_SECONDS_MAX)
        ways = list(self._ways)
        self.cut()
        for way in ways:
            way.join(CLOSE_SECONDS_MAX)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What the connections ask.

    def fate_of(self, piece: bytes) -> Fate:
        """Decide about a piece, and count it."""
        with self._deciding:
            fate = self.draw(piece)
            self.fates[fate] += 1
            return fate

    def late_seconds(self) -> float:
        """Draw how late a late piece is."""
        with self._deciding:
            return self._chance.random() * LATE_SECONDS_MAX

    def wait_to_pass(self) -> None:
        """Return once a piece may go on."""
        if self.delay_seconds:
            self._is_over.wait(self.delay_seconds)
        self._flows.wait()

    def rest(self, seconds: float) -> None:
        """Wait so long, or until it is all over."""
        self._is_over.wait(seconds)

    def forget(self, way: _Way) -> None:
        """Know that this connection is over."""
        self._ways.discard(way)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._is_cut or self._is_over.is_set():
                _reset(client)
                client.close()
                continue
            way = _Way(self, client)
            self._ways.add(way)
            way.start()


class _Way:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(self, proxy: TcpProxy, client: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server: socket.socket | None = None
        self._loses_answer = False
        self._is_broken = False
        self._thread = threading.Thread(target=self.run, name="proxy-way", daemon=True)
        self.start = self._thread.start
        self.join = self._thread.join

    def run(self) -> None:
        """Pass on until both sides have ended."""
        try:
            self._proxy.wait_to_pass()
            server = self._server = socket.create_connection(self._proxy.target, timeout=CONNECT_SECONDS_MAX)
            server.settimeout(None)
            if self._is_broken:
                return
            for one in (self._client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=self._pump_to_client, args=(server,), name="proxy-back", daemon=True)
            back.start()
            self._pump_to_server(server)
            back.join()
        except OSError:
            self.break_off()
        finally:
            self._client.close()
            if self._server is not None:
                self._server.close()
            self._proxy.forget(self)

    def break_off(self) -> None:
        """Reset both ends."""
        self._is_broken = True
        _reset(self._client)
        if self._server is not None:
            _reset(self._server)

    def _pump_to_server(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := self._client.recv(PIECE_BYTES_MAX):
                match self._proxy.fate_of(piece):
                    case Fate.BEFORE:
                        self.break_off()
                        return
                    case Fate.LATE:
                        _reset(self._client)
                        self._proxy.rest(self._proxy.late_seconds())
                        server.sendall(piece)
                        break
                    case Fate.AFTER:
                        self._loses_answer = True
                    case Fate.PASS:
                        pass
                self._proxy.wait_to_pass()
                server.sendall(piece)
            # A client that ended may still have its last piece under way, so the server hears of its end behind that.
            self._proxy.wait_to_pass()
            server.shutdown(socket.SHUT_WR)
            return
        self.break_off()

    def _pump_to_client(self, server: socket.socket) -> None:
        is_received = True
        while not self._is_broken:
            try:
                piece = server.recv(PIECE_BYTES_MAX)
            except OSError:
                # The server is gone without a word: so is this connection for its client.
                self.break_off()
                return
            if piece and self._loses_answer:
                self.break_off()
                return
            self._proxy.wait_to_pass()
            # A client may be gone. What it sent before still arrives, and the answers are read by nobody.
            if is_received:
                try:
                    self._client.sendall(piece) if piece else self._client.shutdown(socket.SHUT_WR)
                except OSError:
                    is_received = False
            if not piece:
                return


def _reset(end: socket.socket) -> None:
    """End a connection so that its other side hears of it at once, also while a thread reads from it."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
