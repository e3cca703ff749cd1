"""One HTTP/1.1 connection.

Requests are parsed, queued in arrival order and answered one at a time. Responses leave in request order, never
interleave with a stream, and a client that stops reading stops being read (backpressure):

    socket ──► `_unread` ──► parser ──► `_queue` ──► handler ──► transport
                 │ reading pauses         │ bounded in number and bytes,
                 while there is any       then nothing more is parsed

`_advance` is the only consumer of `_unread` and `_queue`. It yields to other connections after `MAX_STEPS_PER_TICK`
steps, and while the connection's principal is throttled (`manager`).

When the client disconnects, `on_disconnect` removes its waiter. A half-closed connection still receives its responses,
but its waiters and streams are cancelled, because a crashed process looks the same. At the end we close our side and
discard input until the client closes too, or for `LINGER_SECONDS`: if we closed both sides immediately, the kernel
could discard the last response unread. The manager checks once a second that no state lasts longer than its limit:

    idle               idle_timeout_seconds        READ_BYTES_MIN of a response not read   idle_timeout_seconds
    request header     header_timeout_seconds      a response of ours                      `response_seconds_max`
    request body       body_timeout_seconds        the client's close, after ours          LINGER_SECONDS
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, TypeAlias

import msgspec

from holdfast.http.limits import SlowReaderTimer
from holdfast.http.manager import LONG_SECONDS, REFUSED_CONNECTIONS_MAX, ConnectionManager
from holdfast.http.messages import (
    BUG,
    CONTINUE,
    LARGE_BYTES,
    NO_CONTENT,
    NO_STORE,
    NOT_MODIFIED,
    ClientDisconnectedError,
    Fields,
    Request,
    ResponseWriter,
    StreamHandler,
    envelope,
    message,
    request_from,
    status_line,
    written,
)
from holdfast.http.parser import BODY, FEED_BYTES, HEAD, IDLE, RequestParser
from holdfast.http.tls import TlsHandshake
from holdfast.wire.problems import Problem

WRITE_BUFFER_BYTES_MAX = 16_384
PENDING_MAX, PENDING_BYTES_MAX = 8, 8_192  # Then parsing stops until the queue is empty. Streamed bodies do not count.
UNREAD_BYTES_MAX = 65_536  # Received after a waiting claim or a stream: only authenticated callers have one.
DISCARDED_BYTES_MAX = 65_536
MAX_STEPS_PER_TICK = 4  # Requests started, or pieces parsed, before other connections have their turn.
BODY_BYTES_MAX, LATER_BYTES = 65_536, 8_192  # A stream's buffered body; and from what size it waits in the run queue.
LINGER_SECONDS, SHUTDOWN_SECONDS = 2, 0.3  # The second for idle connections when the server stops.

_NOTHING = memoryview(b"")

log = logging.getLogger("holdfast.server")


NULL_TRANSPORT: Any = SimpleNamespace(
    is_closing=lambda: True,
    get_write_buffer_size=lambda: 0,
    can_write_eof=lambda: False,
    get_extra_info=lambda _name, default=None: default,
    write=lambda _data: None,
    close=lambda: None,
    abort=lambda: None,
)
"""The transport of a closed connection. A TLS transport refers to the protocol: if that referred to it after its end,
the cycle would keep all that was encrypted until the garbage collector runs."""


class FinalRefusal(msgspec.Struct, frozen=True):
    problem: Problem
    request: Request


class ResponseStream(ResponseWriter):
    """A queued response that a task of its own writes over time.

    A task has no turn in the manager's run queue, so the end of a large request body waits in that queue.
    """

    def __init__(self, connection: HttpConnection, manager: ConnectionManager, request: Request) -> None:
        self.connection = connection
        self.request = request
        self.loop = connection.loop
        self.disconnected = self.loop.create_future()
        self._manager = manager
        self._turn_done: asyncio.Future[None] | None = None  # Done when the end of a large body may be handed over.
        self._body = bytearray()
        self._body_bytes = 0
        self.body_is_complete = self.body_was_read = False
        self._is_gone = self._has_begun = self._is_complete = False
        self._body_changed = asyncio.Event()
        self._can_write: asyncio.Future[None] | None = None
        self._has_body, self._is_chunked = True, False
        self._left_bytes: int | None = None  # Missing of the announced length, if one was announced.

    # The connection's side.

    def feed_body(self, data: bytes) -> None:
        if not self._is_complete:
            self._body += data
            self._body_bytes += len(data)
            self._body_changed.set()

    def end_body(self) -> None:
        self.body_is_complete = True
        self._body_changed.set()

    def has_capacity(self) -> bool:
        return len(self._body) < BODY_BYTES_MAX

    def resume(self) -> None:
        if self._turn_done is not None and not self._turn_done.done():
            self._turn_done.set_result(None)

    def disconnect(self) -> None:
        self._is_gone = True
        self._body_changed.set()
        self._end()

    def _end(self) -> None:
        if not self.disconnected.done():
            self.disconnected.set_result(None)
        self.resume_writing()

    def resume_writing(self) -> None:
        if self._can_write is not None and not self._can_write.done():
            self._can_write.set_result(None)

    async def run(self, handler: StreamHandler) -> None:
        try:
            await handler(self.request, self)
        except ClientDisconnectedError:
            pass
        except Exception:
            log.exception("a bug while answering %s", self.request.request_id)
        if self._is_complete:
            return
        if self._has_begun:
            self.connection.abort()
        elif self._is_gone:
            self.connection.done(keep_alive=True)
        else:
            await self.respond(*envelope(Problem("internal_error", BUG), self.request))

    # The handler's side.

    async def read(self) -> bytes:
        """Return the next piece of the body; `body_was_read` is set with the last."""
        while not (self._is_gone or self._is_complete):
            if self.body_is_complete and self._body_bytes > LATER_BYTES and self._turn_done is None:
                self._turn_done = self.loop.create_future()
                self._manager.defer(self, throttled=self.connection.principal or "")
                await self._turn_done
            elif self._body or self.body_is_complete:
                data, self._body = bytes(self._body), bytearray()
                self.body_was_read = self.body_is_complete
                self.connection.resume_parsing()
                return data
            else:
                self._body_changed.clear()
                await self._body_changed.wait()
        raise ClientDisconnectedError

    async def read_body(self) -> bytes:
        if self.body_was_read:
            return self.request.body
        body, is_complete = bytearray(), False
        while not is_complete:
            body += await self.read()
            is_complete = self.body_was_read
        self.request.body = bytes(body)
        return self.request.body

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        if self._is_gone or self._is_complete:
            return
        if self._has_begun:
            raise RuntimeError("a response was started twice")
        self._has_begun = True
        if self.on_start is not None:
            self.on_start(status)
        request, connection = self.request, self.connection
        self._manager.body_budget.free(request)
        fields = [*headers, (b"x-request-id", request.request_id.encode())]
        names = {name.lower(): value for name, value in fields}
        if request.method == b"HEAD" or status in {NO_CONTENT, NOT_MODIFIED}:
            self._has_body = False
        elif b"content-length" in names:
            self._left_bytes = int(names[b"content-length"])
        elif request.is_old:
            request.keep_alive = False
        else:
            self._is_chunked = True
            fields.append((b"transfer-encoding", b"chunked"))
        if not request.keep_alive or connection.is_stopping:
            request.keep_alive = False
            fields.append((b"connection", b"close"))
        fields.extend(self._manager.common_fields)
        fields.extend(field for field in NO_STORE if field[0] not in names)
        connection.write(status_line(status) + written(fields) + b"\r\n")

    async def write(self, data: bytes) -> None:
        if self._is_gone or self._is_complete:
            return
        if not self._has_begun:
            raise RuntimeError("a body was sent before its response was started")
        if data and self._has_body:
            if self._left_bytes is not None:
                self._left_bytes -= len(data)
                if self._left_bytes < 0:
                    raise RuntimeError("a response is longer than was announced")
            self.connection.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)
        if self.connection.is_writing_paused:
            self._can_write = self.loop.create_future()
            await self._can_write

    def finish(self) -> None:
        if self._is_gone or self._is_complete:
            return
        if not self._has_begun:
            raise RuntimeError("a response was finished before it was started")
        if self._left_bytes:
            raise RuntimeError("a response is shorter than was announced")
        if self._is_chunked:
            self.connection.write(b"0\r\n\r\n")
        self._is_complete = True
        self._body.clear()
        self._body_changed.set()
        self._end()
        self.connection.done(keep_alive=self.request.keep_alive)


QueuedResponse: TypeAlias = Request | ResponseStream | FinalRefusal | bytes  # `bytes`: `100 Continue` as it is written.


class ResponseQueue(deque[QueuedResponse]):
    __slots__ = ("_bytes", "current")

    def __init__(self) -> None:
        super().__init__()
        self._bytes = 0
        self.current: Request | ResponseStream | None = None

    def open_stream(self) -> ResponseStream | None:
        last = self[-1] if self else self.current
        return last if isinstance(last, ResponseStream) and not last.body_is_complete else None

    def has_capacity(self) -> bool:
        if self.current is None and not self:
            self._bytes = 0
        stream = self.open_stream()
        if stream is not None:
            return stream.has_capacity()
        return len(self) < PENDING_MAX and self._bytes < PENDING_BYTES_MAX

    def count_parsed(self, size: int) -> None:
        if self.open_stream() is None:
            self._bytes += size

    def cancel(self) -> None:
        """Drop all entries, and notify handlers of those that were started. Decisions stand."""
        current, self.current = self.current, None
        entries = list(self)
        self.clear()
        for entry in entries:
            if isinstance(entry, ResponseStream):
                entry.disconnect()
            if not isinstance(entry, bytes):
                notify_disconnect(entry if isinstance(entry, Request) else entry.request)
        if isinstance(current, ResponseStream):
            current.disconnect()
        elif current is not None:
            notify_disconnect(current)


def notify_disconnect(request: Request) -> None:
    notify = request.on_disconnect or request.on_lost
    if notify is not None:
        notify()


class HttpConnection(asyncio.BufferedProtocol):
    principal: str | None
    _transport: asyncio.Transport
    _parser: RequestParser

    def __init__(self, manager: ConnectionManager, handshake: TlsHandshake | None = None) -> None:
        self._manager = manager
        self._handshake = handshake  # Counted in place of this connection until it is made.
        self.loop = asyncio.get_running_loop()
        self._unread = b""
        self._queue = ResponseQueue()
        self._rest = _NOTHING
        self.is_authenticated, self.principal = False, None
        self._since = manager.now_seconds  # When the current response started, the last was complete, or all was over.
        self._is_advancing = self._is_deferred = self._is_over = False
        self._is_half_closed = self.is_stopping = self._is_reading_paused = self.is_writing_paused = False
        self._timer, self._discarded_bytes = SlowReaderTimer(self._since), 0

    # asyncio's callbacks.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._handshake is not None:
            self._handshake.finish()
            self._handshake = None
        self._transport = transport  # type: ignore[assignment]
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES_MAX)
        peer = self.peer
        address = peer[0] if isinstance(peer, tuple) else ""
        self._parser = RequestParser(self, self._manager, self._manager.settings, address)
        beyond = self._manager.add(self)
        if beyond > REFUSED_CONNECTIONS_MAX or self._manager.is_stopping:
            self._transport.abort()
        elif beyond > 0:
            self._refuse_and_end(Problem("overloaded", "There are too many connections.", retry_after_ms=1_000))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's
        """Return the shared receive buffer. Its size bounds what one connection can make us keep unread."""
        return self._manager.buffer

    def buffer_updated(self, nbytes: int) -> None:
        parser, queue, manager = self._parser, self._queue, self._manager
        if parser.ended:
            self._discard(nbytes)
            return
        data = manager.buffer[:nbytes].tobytes()
        is_free = queue.current is None and not self._unread and not queue and not self.is_writing_paused
        if is_free and not (manager.throttled and manager.must_yield(self.principal or self)):
            request = parser.repeated(data)
            if request is not None and (request.method == b"POST" or not manager.is_streaming(request)):
                self._answer(request)
                return
            if nbytes <= FEED_BYTES:
                parser.feed(data)
                if queue:
                    self._advance()
                return
        self._unread += data
        self._advance()
        self._update_reading()

    def _discard(self, size: int) -> None:
        """Discard what follows the last request; but not without limit, which would take time from others."""
        self._discarded_bytes += size
        if self._discarded_bytes > DISCARDED_BYTES_MAX and not self._is_waiting() and not self._transport.is_closing():
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self._is_half_closed = True
        if isinstance(self._queue.current, Request):
            self._queue.current.is_half_closed = True
        self._parser.ended |= not self._unread
        if self._is_over or self._is_waiting() or not (self._queue.current or self._queue or self._unread):
            self._close()
        return self._transport.can_write_eof()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._manager.remove(self)
        self._cancel()
        self._parser.close()
        self._transport = NULL_TRANSPORT

    def pause_writing(self) -> None:
        self.is_writing_paused = True

    def resume_writing(self) -> None:
        self.is_writing_paused = False
        if isinstance(self._queue.current, ResponseStream):
            self._queue.current.resume_writing()
        elif self._rest:
            self._write_rest()
        else:
            self._advance()

    # The queue. The parser adds entries, `_advance` takes them.

    def enqueue(self, request: Request) -> None:
        self._queue.append(request)

    def enqueue_stream(self, request: Request) -> ResponseStream | None:
        if not self._manager.is_streaming(request):
            return None
        request.on_known = None if self.is_authenticated else self._authenticate
        stream = ResponseStream(self, self._manager, request)
        self._queue.append(stream)
        return stream

    def enqueue_continue(self) -> None:
        self._queue.append(CONTINUE)

    def body_limit(self, request: Request) -> int:
        request.on_known = None if self.is_authenticated else self._authenticate
        return self._manager.body_limit(self, request)

    def refuse(self, problem: Problem, request: Request | None) -> None:
        stream = self._queue.open_stream()
        if stream is not None:
            stream.disconnect()  # The rest of its body will never come.
        self._queue.append(FinalRefusal(problem, request or request_from(b"", b"", b"", {}, b"")))

    def _advance(self, *, has_turn: bool = False) -> None:
        """Parse received data and start queued responses, until it must wait or others have their turn."""
        if self._is_advancing or self._is_deferred:
            return
        queue, is_throttled = self._queue, self._manager.is_throttled(self.principal or self)
        self._is_advancing = True
        steps, may_start = 0, has_turn or not is_throttled
        while steps < MAX_STEPS_PER_TICK and not self._is_over and not self._transport.is_closing():
            if may_start and queue and queue.current is None and not self.is_writing_paused:
                self._start(queue.popleft())
                may_start = not is_throttled
            elif self._unread and queue.has_capacity():
                piece, self._unread = self._unread[:FEED_BYTES], self._unread[FEED_BYTES:]
                queue.count_parsed(len(piece))
                self._parser.feed(piece)
                if self._parser.ended:
                    self._unread = b""
            else:
                break
            steps += 1
        has_more = steps == MAX_STEPS_PER_TICK or (
            is_throttled and queue and queue.current is None and not self.is_writing_paused
        )
        self._is_deferred = bool(has_more) and not self._is_over and not self._transport.is_closing()
        self._is_advancing = False
        if self._is_deferred:
            throttled = (self.principal or "") if is_throttled else None
            self._manager.defer(self, throttled=throttled, key=self.principal or self)
        elif self._is_half_closed and not (self._is_over or queue.current or queue or self._unread):
            self._end()
        if self._unread or self._is_reading_paused:
            self._update_reading()

    def resume(self) -> None:
        self._is_deferred = False
        self._advance(has_turn=True)

    def _update_reading(self) -> None:
        # A paused transport never reports a disconnect, so keep reading while a claim waits or a stream is open.
        must_read = self._is_waiting() and self._queue.open_stream() is None
        if must_read and len(self._unread) > UNREAD_BYTES_MAX:
            self._unread = b""
            text = "Too much was sent behind a request that waits in line, or a stream: send it after the answer."
            self._refuse_and_end(Problem("invalid_input", text))
        must_pause = bool(self._unread) and not must_read
        if must_pause == self._is_reading_paused or self._transport.is_closing():
            return
        self._is_reading_paused = must_pause
        if must_pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
            self._parser.since = self._manager.now_seconds

    def _start(self, entry: QueuedResponse) -> None:
        """Start the next response. Most are complete before this returns, or after the next commit."""
        if isinstance(entry, Request):
            self._answer(entry)
        elif isinstance(entry, ResponseStream):
            self._queue.current, self._since = entry, self._manager.now_seconds
            if self._is_half_closed:
                self._close()
            else:
                tasks = self._manager.tasks
                task = self.loop.create_task(entry.run(self._manager.handler.stream))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        elif isinstance(entry, bytes):
            self.write(entry)
        else:
            self._queue.current = entry.request
            entry.request.keep_alive = False
            self._manager.handler.refuse(entry.problem, entry.request, self._reply)

    # Responses.

    def _answer(self, request: Request) -> None:
        manager, read_seconds = self._manager, self._manager.read_seconds
        self._queue.current, self._since = request, manager.now_seconds
        if not self.is_authenticated:
            request.on_known = self._authenticate
        began = read_seconds()
        manager.handle(request, self._reply)
        if (took_seconds := read_seconds() - began) >= LONG_SECONDS:
            manager.charge(self.principal or self, took_seconds)
        if self._is_half_closed and self._is_waiting():
            self._close()

    def _authenticate(self, principal: str) -> None:
        if not self.is_authenticated:
            self.principal, self.is_authenticated = self._manager.admit(self.peer, principal), True

    def _is_waiting(self) -> bool:
        """Tell whether a stream is open or a claim waits in line: then the end of sending counts as a disconnect."""
        current = self._queue.current
        return isinstance(current, ResponseStream) or (current is not None and current.on_disconnect is not None)

    def _reply(self, request: Request, status: int, body: bytes, headers: Fields) -> None:
        queue, manager = self._queue, self._manager
        if queue.current is not request or self._rest:
            return
        if manager.body_budget.reserved:
            manager.body_budget.free(request)
        keep_alive = request.keep_alive and not self.is_stopping
        data = message(request, status, body, headers, manager.prefix, keep_alive)
        self._timer.written_bytes += len(data)
        self._transport.write(data)
        if len(body) > LARGE_BYTES and request.method != b"HEAD":
            manager.charge_response(self.principal or self, len(body))
            request.keep_alive, request.on_disconnect = keep_alive, None
            self._rest = memoryview(body)
            self._write_rest()
        elif keep_alive and not queue and not self._unread and not self._is_half_closed:
            # As `done`, which would find nothing to do: nearly every response ends here.
            queue.current, self._since = None, manager.now_seconds
        else:
            self.done(keep_alive=keep_alive)

    def _write_rest(self) -> None:
        while self._rest and not self.is_writing_paused and not self._transport.is_closing():
            # Copied, and no empty view at the end: each view, and so the transport's, would keep the whole body.
            piece = bytes(self._rest[:WRITE_BUFFER_BYTES_MAX])
            self._rest = self._rest[WRITE_BUFFER_BYTES_MAX:] or _NOTHING
            self.write(piece)
        self._manager.write_budget.note(self, self._queue.current, self._rest)
        if not self._rest and isinstance(self._queue.current, Request):
            self.done(keep_alive=self._queue.current.keep_alive)

    def write(self, data: bytes) -> None:
        self._timer.written_bytes += len(data)
        self._transport.write(data)

    def done(self, *, keep_alive: bool) -> None:
        """Called when the current response is complete: start the next, or end the connection."""
        self._queue.current, self._since = None, self._manager.now_seconds
        if not keep_alive or self.is_stopping:
            self._end()
        elif self._queue or self._unread or self._is_half_closed:
            self._advance()

    @property
    def peer(self) -> Any:  # noqa: ANN401 - as sockets have it
        return self._transport.get_extra_info("peername")

    @property
    def scheme(self) -> str:
        return "http" if self._transport.get_extra_info("sslcontext") is None else "https"

    def resume_parsing(self) -> None:
        if self._unread:
            self._advance()

    # The end.

    def shutdown(self) -> None:
        self.is_stopping = True
        if self._queue.current is None:
            self._close()
            self.loop.call_later(SHUTDOWN_SECONDS, self._transport.abort)  # TLS would wait for the client's goodbye.

    def _end(self) -> None:
        self._since = self._manager.now_seconds
        self._cancel()
        self._update_reading()
        if self._is_half_closed or not self._transport.can_write_eof():
            self._transport.close()
        elif not self._transport.is_closing():
            self._transport.write_eof()

    def _close(self) -> None:
        self._cancel()
        self._transport.close()

    def _cancel(self) -> None:
        self._is_over = True
        self._parser.end()
        self._unread, self._rest = b"", _NOTHING
        self._manager.free_budgets(self)
        self._queue.cancel()

    def abort(self) -> None:
        self._transport.abort()

    # Time.

    def check_time(self) -> None:
        settings, now = self._manager.settings, self._manager.now_seconds
        buffered_bytes = self._transport.get_write_buffer_size()
        is_unanswered = isinstance(self._queue.current, Request)
        if self._timer.slow_seconds(buffered_bytes, now) > settings.idle_timeout_seconds:
            self._transport.abort()
        elif self._is_over:
            if buffered_bytes == 0 and now - self._since > LINGER_SECONDS:
                self._transport.abort()
        elif is_unanswered and not self._rest and now - self._since > self._manager.response_seconds_max:
            self._transport.abort()
        else:
            self._check_client(now)

    def _check_client(self, now: int) -> None:
        settings, parser, queue = self._manager.settings, self._parser, self._queue
        if parser.ended or self._is_reading_paused:
            return
        passed = now - parser.since
        if parser.phase == IDLE:
            if not (queue.current or queue) and min(passed, now - self._since) > settings.idle_timeout_seconds:
                self._end()
        elif parser.phase == HEAD and passed > settings.header_timeout_seconds:
            self._refuse_late("head of a request", settings.header_timeout_seconds)
        elif parser.phase == BODY and passed > settings.body_timeout_seconds:
            self._refuse_late("body of a request", settings.body_timeout_seconds)

    def _refuse_late(self, what: str, seconds: int) -> None:
        self._refuse_and_end(Problem("invalid_input", f"The {what} takes at most {seconds} s to arrive.", status=408))

    def _refuse_and_end(self, problem: Problem) -> None:
        self._parser.ended = True
        self.refuse(problem, None)
        self._advance()
