"""The leader's end of links: requests that other nodes forward are answered as if their clients had connected here.

    accepted ──► ProtocolDetector, unauthenticated ──┬─► HttpConnection    anything but the prefix of a link
                                                     └─► LeaderLink        the prefix
                                    │ LinkedStream: StreamStart, StreamData …, StreamEnd ──► follower's client
                                    └────────────────── WindowUpdate, CancelFrame ◄──────────────────┘

The protocol detector tells by its first bytes what a connection is. It buffers only the prefix and has the time limits
of an HTTP connection. With TLS it comes after the handshake, and sees decrypted data.

A link is for one leader term and ends with it. Until it has proved itself (`link_frames`) it is an unauthenticated
connection: it can be evicted, may send little, and has a few seconds. Beyond `UNAUTHENTICATED_MAX` of them the server
closes the oldest that does not even know the term, or else the oldest.

**One hop.** The routes of this term answer a request, and never forward it again. If the term is over, the response is
503 `not_leader`: it was not decided here (N-30).

**Callers.** `peer` of a request is the client's address, so wrong tokens count by that. The node that the client called
has checked `Host`. Long requests are charged to the principal, or by address to an unauthenticated one; while it is
throttled, its requests wait in the run queue (decision 0042).

**Each read is stamped anew (T1a),** so a request that lay in a link is never decided with a time before it was read.

**Streams.** The leader may be `WINDOW_BYTES` ahead of what the client took. So a client that does not read makes
neither side buffer more, and delays nothing else on the link.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from ipaddress import ip_address

import msgspec

from holdfast.cluster import link_frames
from holdfast.cluster.node import LeaderTerm, Node
from holdfast.cluster.request_queue import TokenCache
from holdfast.config import Settings
from holdfast.http.connection import LATER_BYTES, NULL_TRANSPORT, HttpConnection
from holdfast.http.manager import LONG_SECONDS, ConnectionManager
from holdfast.http.messages import SMALL_BODY_BYTES, Request, ResponseWriter, StreamHandler, cookie_credential, envelope
from holdfast.http.tls import TlsHandshake
from holdfast.wire.problems import Problem

UNAUTHENTICATED_MAX = 32
HANDSHAKE_TICKS_MAX = 3
UNANSWERED_MAX = 100_000  # Unanswered requests of one link: more than a node has connections.
LARGE_ANSWER_BYTES = 65_536
ANSWER_BYTES_MAX = link_frames.ANSWER_BYTES_MAX - link_frames.REQUEST_SPARE_BYTES
# Unsent in one link, before large responses to reads are refused. Decisions never are: `overloaded` says "not made".
ANSWERS_BYTES_MAX = 8 * 2**20
RETRY_MS = 200
WINDOW_BYTES, PIECE_BYTES_MAX = 65_536, 16_384
LINES_MAX, LINES_SECONDS, LINE_CHARS_MAX = 20, 60, 160  # Log lines of unauthenticated peers in a minute.
_SAFE = frozenset({b"GET", b"HEAD"})

log = logging.getLogger("holdfast.server.nodes")


class LinkedRequest(Request):
    number: int = 0
    principal: str | None = None


class LinkServer:
    def __init__(
        self, node: Node, settings: Settings, new_secret: Callable[[int], bytes], *, insecure: bool = False
    ) -> None:
        """`insecure` accepts links from other machines without TLS. `new_secret` makes random bytes."""
        self.node = node
        self.request_bytes_max = (
            settings.body_bytes_max + 2 * settings.header_bytes_max + link_frames.REQUEST_SPARE_BYTES
        )
        self.new_secret = new_secret
        self._insecure = insecure
        self._unauthenticated: dict[LeaderLink, None] = {}  # Oldest first.
        self._open: set[LeaderLink] = set()
        self._lines = 0
        self.token_cache = TokenCache()  # Only for whom to charge.

    def begin(self, manager: ConnectionManager, transport: asyncio.Transport, early: bytes) -> None:
        """Accept a link; `early` is what followed the prefix."""
        end = LeaderLink(self, manager)
        transport.set_protocol(end)
        end.connection_made(transport)
        if self._is_in_clear(transport):
            end.log_end("it comes from another machine without TLS")
            end.abort()
            return
        self._unauthenticated[end] = None
        if early:
            end.data_received(early)
        if len(self._unauthenticated) > UNAUTHENTICATED_MAX:
            unidentified = (each for each in self._unauthenticated if not each.is_greeted)
            next(unidentified, next(iter(self._unauthenticated))).abort()

    def _is_in_clear(self, transport: asyncio.Transport) -> bool:
        if self._insecure or transport.get_extra_info("sslcontext") is not None:
            return False
        peer = transport.get_extra_info("peername")
        return not isinstance(peer, tuple) or not ip_address(peer[0].partition("%")[0]).is_loopback

    def on_authenticated(self, end: LeaderLink) -> None:
        self._unauthenticated.pop(end, None)
        self._open.add(end)
        self.node.links = len(self._open)

    def remove(self, end: LeaderLink) -> None:
        self._unauthenticated.pop(end, None)
        self._open.discard(end)
        self.node.links = len(self._open)

    def end_all(self) -> None:
        """End all links, for the term is over: each as soon as its requests are answered."""
        for end in [*self._unauthenticated, *self._open]:
            end.shutdown()

    def warn(self, text: str, bug: Exception | None = None) -> None:
        """Log what an unauthenticated peer caused: `LINES_MAX` lines in a minute, then how many more there were."""
        if not self._lines:
            asyncio.get_running_loop().call_later(LINES_SECONDS, self._end_minute)
        self._lines += 1
        if self._lines <= LINES_MAX:
            log.warning("%s", text[:LINE_CHARS_MAX], exc_info=bug)

    def _end_minute(self) -> None:
        dropped, self._lines = self._lines - LINES_MAX, 0
        if dropped > 0:
            log.warning("%d more connections that said that they are links were refused in the last minute", dropped)


class LeaderLink(link_frames.FramedProtocol):
    principal: str | None = None
    has_backpressure = True

    def __init__(self, server: LinkServer, manager: ConnectionManager) -> None:
        super().__init__(manager, link_frames.Decoder(link_frames.ToLeader, link_frames.HELLO_BYTES_MAX))
        self._server = server
        self.is_authenticated = False
        self._term: LeaderTerm | None = None
        self._handshake: link_frames.Handshake | None = None
        self._is_stopping = False
        self._ticks = 0
        self._last_number = 0
        self._unanswered: dict[int, LinkedRequest] = {}  # Unanswered requests, by number.
        self._streams: dict[int, LinkedStream] = {}
        self._handling: LinkedRequest | None = None

    # What the manager asks of a connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.manager.add(self)

    def abort(self) -> None:
        self.end(at_once=True)

    def shutdown(self) -> None:
        """End it when all requests are answered: the term is over, or the server stops."""
        self._is_stopping = True
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._is_stopping and not self._unanswered:
            self.end()

    def log_end(self, why: str, bug: Exception | None = None) -> None:
        if self.is_authenticated:
            super().log_end(why, bug)
        else:
            self._server.warn(f"a link from {self.peer} is refused: {why}", bug)

    def check_time(self) -> None:
        self._ticks += 1
        if not self.is_authenticated:
            if self._ticks > HANDSHAKE_TICKS_MAX:
                self.abort()
            return
        if not self._is_current():
            self.shutdown()
        self.tick()

    def ping(self) -> link_frames.Ping:
        """Say whether we serve: a follower without requests learns it this way."""
        return link_frames.Ping(self._is_current() and self._server.node.serves)

    def resume_writing(self) -> None:
        super().resume_writing()
        for stream in list(self._streams.values()):
            stream.wake()

    def lost(self) -> None:
        self.manager.remove(self)
        self.manager.free_budgets(self)
        self._server.remove(self)
        unanswered, self._unanswered = self._unanswered, {}
        streams, self._streams = self._streams, {}
        for request in unanswered.values():
            _notify_gone(request)
        for stream in streams.values():
            stream.leave()

    @property
    def is_greeted(self) -> bool:
        """Whether it knows our term, as unauthenticated peers do not."""
        return self._handshake is not None

    def _is_current(self) -> bool:
        return self._term is not None and self._server.node.term() is self._term

    # What comes in.

    def receive(self, frame: link_frames.ToLeader | link_frames.ToFollower) -> None:
        if not self.is_authenticated:
            self._receive_handshake(frame)
        elif type(frame) is link_frames.RequestFrame:
            self._receive_request(frame)
        elif isinstance(frame, link_frames.WindowUpdate):
            stream = self._streams.get(frame.number)
            if stream is not None:
                stream.more(frame.size)
        elif isinstance(frame, link_frames.CancelFrame):
            self._drop(frame.number)
        elif not isinstance(frame, link_frames.Ping):
            raise link_frames.BadFrameError(f"unexpected frame in this state: {type(frame).__name__}")

    def _receive_handshake(self, frame: link_frames.ToLeader | link_frames.ToFollower) -> None:
        server = self._server
        if isinstance(frame, link_frames.Hello) and self._handshake is None:
            self._term = server.node.term()
            if self._term is None:
                # For a moment around every takeover, and while no node can lead. The other node logs it.
                self.end()
                return
            leadership = self._term.leadership
            credentials = link_frames.TermCredentials(
                leadership.authority, leadership.epoch, leadership.term_id, server.node.key
            )
            self._handshake = link_frames.Handshake(credentials, server.new_secret(link_frames.NONCE_BYTES))
            self.send(self._handshake.greet(frame))
        elif isinstance(frame, link_frames.Proof) and self._handshake is not None:
            self._handshake.check(frame)
            self.is_authenticated = True
            self.decoder.bytes_max = server.request_bytes_max
            server.on_authenticated(self)
            self.send(link_frames.Welcome(server.request_bytes_max))
        else:
            raise link_frames.BadFrameError(f"unexpected frame before the proof: {type(frame).__name__}")

    def _receive_request(self, frame: link_frames.RequestFrame) -> None:
        if frame.number <= self._last_number:
            raise link_frames.BadFrameError(f"the number {frame.number} was used before")
        self._last_number = frame.number
        header = frame.headers.get
        authorization = header(b"authorization")
        if authorization is None and b"cookie" in frame.headers:
            authorization = cookie_credential(frame.headers)
        request = LinkedRequest(
            frame.method,
            frame.path,
            frame.query,
            frame.headers,
            frame.body,
            frame.client,
            None,
            authorization,
            header(b"content-type"),
            header(b"idempotency-key"),
            frame.request_id,
            held_ms=frame.held_ms,
            scheme=frame.scheme,
            number=frame.number,
        )
        is_one_too_many = len(self._unanswered) >= UNANSWERED_MAX
        self._unanswered[frame.number] = request
        if is_one_too_many:
            text = "Too many requests of the node that you asked are unanswered: ask again."
            self._refuse(request, "overloaded", text)
            return
        if frame.is_streaming:
            self._streams[frame.number] = LinkedStream(self, frame.number, request)
        manager = self.manager
        principal = self._server.token_cache.principals.get(authorization)
        if principal is not None and len(frame.body) > SMALL_BODY_BYTES:
            try:
                manager.body_budget.take(self, request, principal, len(frame.body))
            except Problem as problem:
                # Not with 429: another copy of it may have been decided.
                self._refuse(request, "overloaded", problem.details)
                return
        if (manager.throttled and manager.must_yield(principal or (frame.client,))) or (
            frame.is_streaming and len(frame.body) > LATER_BYTES
        ):
            manager.defer(_DeferredRequest(self, request, self.loop), throttled=principal or "")
        else:
            self.begin(request)

    def begin(self, request: LinkedRequest) -> None:
        if request.number not in self._unanswered:
            return
        term = self._term
        if term is None or self._is_stopping or self._server.node.term() is not term:
            self._refuse(request, "not_leader", "This node does not lead any more: ask again.")
        elif request.number in self._streams:
            self._run(self._streams[request.number], request, term)
        else:
            self._handle(request, term)

    def _handle(self, request: LinkedRequest, term: LeaderTerm) -> None:
        manager = self.manager
        self._handling, request.on_known = request, self._on_caller
        began = manager.read_seconds()
        term.routes.handle(request, self._reply)
        if (took_seconds := manager.read_seconds() - began) >= LONG_SECONDS:
            manager.charge(request.principal or (request.peer,), took_seconds)
        if request.on_disconnect is not None and request.principal is not None and request.number in self._unanswered:
            self.send(link_frames.CallerFrame(request.number, request.principal))

    def _on_caller(self, principal: str) -> None:
        """Called with the principal of the request that is being handled; no other is, until `handle` returns."""
        if self._handling is not None:
            self._note_caller(self._handling, principal)

    def _note_caller(self, request: LinkedRequest, principal: str) -> None:
        request.principal = principal
        if self._streams and request.number in self._streams:
            self._streams[request.number].principal = principal
        token_cache = self._server.token_cache
        if token_cache.principals.get(request.authorization) != principal:
            token_cache.note(request.authorization, principal)

    def _run(self, stream: LinkedStream, request: LinkedRequest, term: LeaderTerm) -> None:
        request.on_known = partial(self._note_caller, request)
        # It is read in the next turn, and not kept.
        self.manager.body_budget.free(request)
        task = self.loop.create_task(stream.run(term.routes.stream))
        self.manager.tasks.add(task)
        task.add_done_callback(partial(self._on_stream_done, request.number))

    def _on_stream_done(self, number: int, task: asyncio.Task[None]) -> None:
        self.manager.tasks.discard(task)
        self._unanswered.pop(number, None)
        self._streams.pop(number, None)
        self._end_if_done()

    def _drop(self, number: int) -> None:
        request = self._unanswered.pop(number, None)
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.leave()
        elif request is not None:
            _notify_gone(request)
        if request is not None:
            self.manager.body_budget.free(request)
        self._end_if_done()

    # What goes out.

    def _reply(self, request: Request, status: int, body: bytes, headers: link_frames.Fields) -> None:
        if not isinstance(request, LinkedRequest) or self._unanswered.pop(request.number, None) is None:
            return
        # It may be in a reference cycle with its waiter.
        request.on_disconnect = None
        if self.manager.body_budget.reserved:
            self.manager.body_budget.free(request)
        if len(body) > LATER_BYTES:
            self.manager.charge_response(request.principal or (request.peer,), len(body))
        is_large = len(body) > LARGE_ANSWER_BYTES and request.method in _SAFE
        if is_large and (self.unsent_bytes > ANSWERS_BYTES_MAX or len(body) > ANSWER_BYTES_MAX):
            text = "Too many large answers are on their way to the node that you asked: ask again."
            status, body, headers = envelope(Problem("overloaded", text, retry_after_ms=RETRY_MS), request)
        self.send(link_frames.ResponseFrame(request.number, status, body, headers, request.principal))
        if self._is_stopping:
            self._end_if_done()

    def _refuse(self, request: LinkedRequest, code: str, text: str) -> None:
        stream = self._streams.pop(request.number, None)
        if stream is not None:
            stream.leave()
        self._reply(request, *envelope(Problem(code, text, retry_after_ms=RETRY_MS), request))


class _DeferredRequest(msgspec.Struct, eq=False):
    end: LeaderLink
    request: LinkedRequest
    loop: asyncio.AbstractEventLoop

    def resume(self) -> None:
        self.end.begin(self.request)


def _notify_gone(request: LinkedRequest) -> None:
    if request.on_disconnect is not None:
        request.on_disconnect()


class LinkedStream(ResponseWriter):
    def __init__(self, link: LeaderLink, number: int, request: Request) -> None:
        self._link = link
        self._number = number
        self.request = request
        self.disconnected = asyncio.get_running_loop().create_future()
        self._credit_bytes = WINDOW_BYTES
        self._is_gone = self._is_over = False
        self._changed = asyncio.Event()  # More credit, the link takes more, or the client is gone.
        self.principal: str | None = None

    # The link's side.

    def more(self, size: int) -> None:
        self._credit_bytes = min(self._credit_bytes + max(size, 0), WINDOW_BYTES)
        self._changed.set()

    def wake(self) -> None:
        self._changed.set()

    def leave(self) -> None:
        self._is_gone = True
        self._changed.set()
        if not self.disconnected.done():
            self.disconnected.set_result(None)

    async def run(self, handler: StreamHandler) -> None:
        try:
            await handler(self.request, self)
        except Exception:
            log.exception("a bug while answering %s", self.request.request_id)
        if not self._is_over and not self._is_gone:
            self._link.send(link_frames.StreamEnd(self._number, is_complete=False))

    # The handler's side.

    async def read_body(self) -> bytes:
        return self.request.body

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Send the status and the header. The follower adds the request id, which is the same there."""
        if not (self._is_gone or self._is_over):
            self._link.send(link_frames.StreamStart(self._number, status, tuple(headers), self.principal))

    async def write(self, data: bytes) -> None:
        if self._is_over:
            return
        for start in range(0, len(data), PIECE_BYTES_MAX):
            while not self._is_gone and (self._credit_bytes <= 0 or self._link.is_writing_paused):
                self._changed.clear()
                await self._changed.wait()
            if self._is_gone:
                return
            piece = data[start : start + PIECE_BYTES_MAX]
            self._credit_bytes -= len(piece)
            self._link.send(link_frames.StreamData(self._number, piece))

    def finish(self) -> None:
        if not (self._is_gone or self._is_over):
            self._is_over = True
            self._link.send(link_frames.StreamEnd(self._number, is_complete=True))


class ProtocolDetector(asyncio.BufferedProtocol):
    __slots__ = ("_handshake", "_links", "_manager", "_seen", "_since", "_transport", "loop")

    principal: str | None = None
    is_authenticated = False

    def __init__(self, manager: ConnectionManager, links: LinkServer, handshake: TlsHandshake | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self._manager = manager
        self._links = links
        self._handshake = handshake
        self._transport: asyncio.Transport = NULL_TRANSPORT
        self._seen = b""
        self._since = manager.now_seconds

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count it. One too many becomes an HTTP connection immediately, which says so."""
        if self._handshake is not None:
            self._handshake.finish()
            self._handshake = None
        self._transport = transport  # type: ignore[assignment]
        if self._manager.is_stopping:
            self._transport.abort()
        elif self._manager.add(self) > 0:
            self._become_http(b"")

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's
        return self._manager.buffer

    def buffer_updated(self, nbytes: int) -> None:
        seen = self._seen + self._manager.buffer[:nbytes].tobytes()
        if seen.startswith(link_frames.PREFIX):
            self._manager.remove(self)
            self._links.begin(self._manager, self._transport, seen[len(link_frames.PREFIX) :])
        elif link_frames.PREFIX.startswith(seen):
            self._seen = seen
        else:
            self._become_http(seen)

    def eof_received(self) -> bool | None:
        return self._become_http(self._seen).eof_received()

    def _become_http(self, data: bytes) -> HttpConnection:
        self._manager.remove(self)
        connection = HttpConnection(self._manager)
        self._transport.set_protocol(connection)
        connection.connection_made(self._transport)
        size_max = len(self._manager.buffer)
        for start in range(0, len(data), size_max):
            piece = data[start : start + size_max]
            connection.get_buffer(len(piece))[: len(piece)] = piece
            connection.buffer_updated(len(piece))
        return connection

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._manager.remove(self)
        self._transport = NULL_TRANSPORT

    # What the manager asks of a connection.

    def abort(self) -> None:
        self._transport.abort()

    def shutdown(self) -> None:
        self._transport.close()

    def resume(self) -> None:
        """It is never in the run queue."""

    def check_time(self) -> None:
        """Close it if it sends nothing for too long: a partial prefix counts as a request header."""
        settings = self._manager.settings
        seconds = settings.header_timeout_seconds if self._seen else settings.idle_timeout_seconds
        if self._manager.now_seconds - self._since > seconds:
            self._transport.abort()
