"""The fast lane: requests are answered from the parser's callbacks, without an ASGI scope and a task for each.

It is a subclass of uvicorn's httptools protocol. One object is one connection. uvicorn owns the socket and the parser;
the lane decides what becomes of the bytes. What it cannot do, streams, it leaves to its parent, which runs the ASGI
door for them. It is an accelerator and never a second implementation: both doors end in `operations.routes`.

What the sender is doing is the *phase*. It counts for the time limits alone:

              first byte                head complete              body complete
      IDLE ───────────────► HEAD ─────────────────────────► BODY ─────────────────────► IDLE
       │ idle_timeout        │ header_timeout, header_bytes   │ body_timeout, body_bytes
       ▼                     ▼                                ▼
      close                 refuse: 408, 431                 refuse: 408, 413

*Refused* is the end: a problem is written, our side is closed, and what still comes in is thrown away for two seconds.
If we closed at once, the kernel would drop the refusal before the sender has read it.

What we owe is apart from the phase, because a sender may send the next request before it has its answer:

      complete request ──► is an answer owed, or does a stream run?
                              no  ──► `_answer`: routes.handle(request, reply), now `_owes_answer`
                              yes ──► `_pipelined`, at most 32, then reading pauses
      reply            ──► `_write` ──► the next of `_pipelined`, or a stream that waited behind the answer

So answers leave in the order of their requests, and never into a stream that has begun. `reply` may come at once (a
malformed request), after the commit (nearly always), or much later (a claim that waits in line). If the connection is
lost before that, `on_disconnect` of the request tells the engine that nobody waits any more.

Most clients repeat the same headers on a connection, byte for byte. The lane remembers those of the last request, if
they say nothing that changes how a request is read. When the same bytes stand behind a plain request line and the rest
is as long as they announce, the parser is not needed (`_answer_repeated`). Anything else is the parser's.

Time is counted in whole seconds by one `sweep` over all connections, not by a timer for each.
"""

from __future__ import annotations

import contextlib
import re
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.server.doors.message import message
from holdfast.server.doors.request import Request
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    import asyncio

    from uvicorn._types import ASGI3Application
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from holdfast.server.api import Api
    from holdfast.server.operations.routes import Routes

PIPELINED_MAX = 32
IDLE, HEAD, BODY = range(3)
"""What the sender is doing: nothing, sending a head, sending a body."""
LINGER_SECONDS = 2
"""How long what follows a refusal is read and thrown away: closing at once would take the refusal back."""

_SINGLE = frozenset({b"authorization", b"content-length", b"content-type", b"host", b"idempotency-key"})
_NOT_REPEATABLE = frozenset({b"connection", b"expect", b"transfer-encoding", b"upgrade"})
_STREAMS = (b"/watch", b"/events")
_PLAIN_LINE = re.compile(rb"(POST|GET) (/[A-Za-z0-9/._~%:-]*) HTTP/1\.1\r\n")


class Lane(HttpToolsProtocol):
    """One connection."""

    api: Api
    routes: Routes
    """Both are set by `lane_for`."""
    now_seconds = 0
    """Counted by `sweep`: a clock of whole seconds, good enough for time limits."""
    date: ClassVar[tuple[object, bytes]] = (None, b"")
    """The Date header as uvicorn keeps it, and as it is written."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - uvicorn's own
        super().__init__(*args, **kwargs)
        settings = self.api.settings
        self._head_bytes_max = settings.header_bytes_max
        self._body_bytes_max = settings.body_bytes_max
        self._peer = ""
        self._phase = IDLE
        self._phase_since = self.now_seconds
        self._owes_answer = False
        """Whether a request was handed to the routes and not answered yet."""
        self._answering: Request | None = None
        """The request that an answer is owed to, or was last."""
        self._head_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._fields: dict[bytes, bytes] = {}
        self._is_stream_request = False
        self._refused = False
        self._stopping = False
        self._pipelined: deque[tuple[Request, bool]] = deque()
        self._keep_alive = True
        self._last_data = b""
        self._unsent_bytes = 0
        """What a stream had not yet taken when it was last looked at."""
        self._repeatable_head = b""
        """The headers of the last request, as they came: the same bytes again need no second parse. Empty: none."""
        self._repeatable_fields: dict[bytes, bytes] = {}

    # The connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, unless there are too many."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._phase_since = self.now_seconds
        self._peer = self.client[0] if self.client else ""
        if len(self.connections) > self.api.settings.connections_max:
            self._refuse(Problem("overloaded", "The server has too many connections: try again.", retry_after_ms=1_000))

    def data_received(self, data: bytes) -> None:
        """Feed the parser. A head that does not end in time or size is refused here."""
        if self._refused or (
            self._repeatable_head and self._phase == IDLE and not self._owes_answer and self._answer_repeated(data)
        ):
            return
        if self._phase == IDLE:
            self._phase, self._phase_since = HEAD, self.now_seconds
        if self._phase == HEAD:
            self._head_bytes += len(data)
        self._last_data = data
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError as error:
            self._refuse(Problem("invalid_input", f"This is not HTTP/1.1: {error}."))
            return
        if self._phase == HEAD and self._head_bytes > self._head_bytes_max:
            self._refuse_head()

    def _answer_repeated(self, data: bytes) -> bool:
        """Answer a request whose headers are, byte for byte, those the parser accepted just before on this connection.

        Only the line before them and the body differ then, so only the line is read, and only in its plainest form;
        the length that those headers announce is the length the body must have. Anything else is the parser's.
        """
        line = _PLAIN_LINE.match(data)
        if line is None or line.end() > self._head_bytes_max or not data.startswith(self._repeatable_head, line.end()):
            return False
        start = line.end() + len(self._repeatable_head)
        fields = self._repeatable_fields
        if len(data) - start != int(fields.get(b"content-length", 0)):
            return False
        method, path = line.groups()
        if path.endswith(_STREAMS):
            return False
        self._answer(Request(method, path, b"", fields, data[start:], self._peer), keep_alive=True)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what was not yet begun; what was decided stays decided."""
        self._pipelined.clear()
        self._refused = True
        if self._owes_answer and self._answering is not None and self._answering.on_disconnect is not None:
            self._answering.on_disconnect()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Stop after the answers that are owed."""
        self._stopping = True
        if not self._owes_answer and not self._pipelined and not self._stream_runs():
            self.transport.close()
        elif self._stream_runs():
            super().shutdown()

    def check_time(self) -> None:
        """End a connection that takes too long for what it is doing."""
        passed = self.now_seconds - self._phase_since
        settings = self.api.settings
        if self._refused:
            if passed > LINGER_SECONDS:
                self.transport.close()
        elif self._stream_runs():
            self._check_reader(passed)
        elif self._owes_answer:
            return
        elif self._phase == IDLE and passed > settings.idle_timeout_seconds:
            self._hang_up()
        elif self._phase == HEAD and passed > settings.header_timeout_seconds:
            text = f"The head of a request takes at most {settings.header_timeout_seconds} s."
            self._refuse(Problem("invalid_input", text, status=408))
        elif self._phase == BODY and passed > settings.body_timeout_seconds:
            text = f"The body of a request takes at most {settings.body_timeout_seconds} s."
            self._refuse(Problem("invalid_input", text, status=408))

    def _check_reader(self, passed: int) -> None:
        """End a stream whose reader takes nothing of what is ready for it: it would be kept for it forever."""
        unsent_bytes = self.transport.get_write_buffer_size()
        if not unsent_bytes or unsent_bytes != self._unsent_bytes:
            self._unsent_bytes, self._phase_since = unsent_bytes, self.now_seconds
        elif passed > self.api.settings.idle_timeout_seconds:
            self.transport.abort()

    def _hang_up(self) -> None:
        """Close; what the other side does not read must not keep the connection open."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    # The parser's callbacks.

    def on_message_begin(self) -> None:
        """Begin a request."""
        self.url = b""
        self._phase, self._phase_since = HEAD, self.now_seconds
        self._fields = {}
        self._body = []
        self._body_bytes = 0
        self._is_stream_request = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. One that we read may stand only once: two could be read in two ways."""
        name = name.lower()
        fields = self._fields
        if name in fields and name in _SINGLE:
            text = f"The header {name.decode('latin-1')} stands twice: send it once."
            self._refuse(Problem("invalid_input", text))
        fields[name] = value

    def on_headers_complete(self) -> None:
        """Choose the lane; refuse a head or an announced body that is too large."""
        if self._refused:
            return
        fields = self._fields
        if b"host" not in fields and self.parser.get_http_version() == "1.1":
            self._refuse(Problem("invalid_input", "Send a Host header."))
            return
        if self._head_bytes > self._head_bytes_max:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in fields.items())
            if size > self._head_bytes_max:
                self._refuse_head()
                return
        self._head_bytes = 0
        announced = fields.get(b"content-length")
        if announced is not None and int(announced) > self._body_bytes_max:
            self._refuse_body()
            return
        self._phase = BODY
        self._keep_alive = self.parser.should_keep_alive()
        if self.url.partition(b"?")[0].endswith(_STREAMS) and self._is_stream_route(self.parser.get_method()):
            self._is_stream_request = True
            self._start_stream()
        elif b"expect" in fields and fields[b"expect"].lower() == b"100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        if self._is_stream_request:
            super().on_body(body)
            return
        self._body_bytes += len(body)
        if self._body_bytes > self._body_bytes_max:
            self._refuse_body()
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """Answer the request, or put it behind the one before."""
        if self._refused:
            return
        if self._is_stream_request:
            super().on_message_complete()
            return
        path, _, query = self.url.partition(b"?")
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        request = Request(self.parser.get_method(), path, query, self._fields, body, self._peer)
        self._remember_head(body)
        self._phase, self._phase_since = IDLE, self.now_seconds
        if self._owes_answer or self._pipelined or self._stream_runs():
            self._pipelined.append((request, self._keep_alive))
            if len(self._pipelined) >= PIPELINED_MAX:
                self.flow.pause_reading()
            return
        self._answer(request, keep_alive=self._keep_alive)

    def _remember_head(self, body: bytes) -> None:
        """Keep the headers if the whole request came in one piece and says nothing that changes how it is read."""
        self._repeatable_head = b""
        data = self._last_data
        line = _PLAIN_LINE.match(data)
        if line is None or not self._keep_alive or not _NOT_REPEATABLE.isdisjoint(self._fields):
            return
        end = data.find(b"\r\n\r\n", line.end() - 2) + 4
        if end - 4 >= 0 and data[end:] == body and len(body) == int(self._fields.get(b"content-length", 0)):
            self._repeatable_head = data[line.end() : end]
            self._repeatable_fields = self._fields

    # Answers.

    def _answer(self, request: Request, *, keep_alive: bool) -> None:
        self._owes_answer = True
        self._answering = request

        def reply(status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> None:
            self._write(request, status, body, headers, keep_alive=keep_alive)

        self.routes.handle(request, reply)

    def _write(
        self,
        request: Request,
        status: int,
        body: bytes,
        headers: tuple[tuple[bytes, bytes], ...],
        *,
        keep_alive: bool,
    ) -> None:
        transport = self.transport
        if transport.is_closing():
            return
        keep_alive = keep_alive and not self._stopping
        dated = self._dated()
        transport.write(message(request, status, body, headers, dated, keep_alive=keep_alive))
        self._owes_answer = False
        self._phase_since = self.now_seconds
        if not keep_alive:
            transport.close()
        elif self._pipelined:
            self._next()
        elif self.pipeline:
            cycle, app = self.pipeline.pop()
            super()._start_asgi_task(cycle, app)

    def _dated(self) -> bytes:
        """Return the Date header; uvicorn makes a new one each second."""
        kept = self.server_state.default_headers
        if self.date[0] is not kept:
            type(self).date = (kept, b"".join(b"%b: %b\r\n" % header for header in kept))
        return self.date[1]

    def _next(self) -> None:
        request, keep_alive = self._pipelined.popleft()
        if len(self._pipelined) < PIPELINED_MAX // 2:
            self.flow.resume_reading()
        self._answer(request, keep_alive=keep_alive)

    # Refusals of the connection itself.

    def _refuse_head(self) -> None:
        text = f"The head of a request has at most {self._head_bytes_max} bytes."
        self._refuse(Problem("invalid_input", text, status=431))

    def _refuse_body(self) -> None:
        self._refuse(Problem("invalid_input", f"A body has at most {self._body_bytes_max} bytes.", status=413))

    def _refuse(self, problem: Problem) -> None:
        """Answer with a problem and end the connection: what follows on it cannot be trusted to be a request."""
        if self._refused or self.transport.is_closing():
            return
        self._refused, self._phase_since = True, self.now_seconds
        request = Request(b"", b"", b"", {}, b"")
        body = problem.body(request.request_id)
        self.transport.write(message(request, problem.status, body, problem.headers(), self._dated(), keep_alive=False))
        if self.transport.can_write_eof():
            self.transport.write_eof()

    # Streams: the parent answers them, through the ASGI door.

    def _is_stream_route(self, method: bytes) -> bool:
        with contextlib.suppress(Problem):
            return self.routes.find(method, self.url.partition(b"?")[0])[0].is_stream
        return False

    def _start_stream(self) -> None:
        # What follows on this connection comes behind the stream: it must not be answered into it.
        self._repeatable_head = b""
        url = self.url
        super().on_message_begin()
        self.url = url
        self.headers.extend(self._fields.items())
        super().on_headers_complete()
        self._phase = IDLE

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if self._owes_answer or self._pipelined:
            self.pipeline.appendleft((cycle, app))
        else:
            super()._start_asgi_task(cycle, app)

    def _stream_runs(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def on_response_complete(self) -> None:
        """Go on with what was sent behind a stream."""
        super().on_response_complete()
        self._unset_keepalive_if_required()
        self._phase_since = self.now_seconds
        if self._pipelined and not self.transport.is_closing():
            self._next()


def lane_for(routes: Routes) -> type[Lane]:
    """Return the protocol class of one server."""
    return type("Lane", (Lane,), {"api": routes.api, "routes": routes})


def sweep(lane: type[Lane], connections: set[Any]) -> None:
    """Count a second and look at every connection's time."""
    lane.now_seconds += 1
    for connection in list(connections):
        if isinstance(connection, Lane):
            connection.check_time()
