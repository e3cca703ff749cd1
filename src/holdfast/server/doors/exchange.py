"""A request that is answered in pieces by an ASGI application, as one thing in the lane's queue.

The application gets the body as it comes and writes its answer as it likes; order and bounds are the lane's. Of the
body `BODY_BYTES_MAX` are kept at most: then nothing more is read from the connection until the application has taken
it. What it writes waits while the other side does not take it.

A task has no turn in the lanes' backlog, and many could be ready at once. So the end of a large body, which makes work,
stands there: of all connections one is handed over between two looks at the sockets.

An answer without a length goes out in chunks, and to HTTP/1.0 until the connection closes. One that the application
does not complete breaks the connection off: a caller must not take a part for the whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from urllib.parse import unquote

from holdfast.server.api import BUG
from holdfast.server.doors.message import NEVER_KEPT, status_line, written
from holdfast.server.render import envelope
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from holdfast.server.doors.request import Request

Scope: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
"""An ASGI application, as both doors know it."""

BODY_BYTES_MAX = 65_536
LARGE_BYTES = 8_192
"""From here on a body stands behind the others: to read so much takes a fraction of a millisecond."""
REQUEST = "holdfast.request"
"""Where the scope has the request as the lane read it, for our own ASGI door."""

log = logging.getLogger("holdfast.server")

_NO_CONTENT, _NOT_MODIFIED = 204, 304


class Connection(Protocol):
    """What an exchange needs of the connection that it is on."""

    loop: asyncio.AbstractEventLoop
    peer: Any
    """The address at the other end."""
    is_stopping: bool
    writing_pauses: bool
    """Whether to wait before more is written."""

    known_as: str | None
    """Whose connection it is; None of a stranger's."""

    @property
    def said_always(self) -> tuple[tuple[bytes, bytes], ...]:
        """The header fields that every answer has: the date, and what else this server says."""

    @property
    def scheme(self) -> str:
        """How the connection is secured."""

    def run(self, exchange: Exchange) -> None:
        """Let an exchange run as a task of its own."""

    def go_on(self) -> None:
        """Read on: there is room for more of the body."""

    def write(self, data: bytes) -> None:
        """Write."""

    def done(self, *, keep_alive: bool) -> None:
        """Know that the answer is complete."""

    def abort(self) -> None:
        """Break the connection off."""


class PutBehind(Protocol):
    """Lets something go on when those that have waited longer have had their turn (`Lanes.put_behind`)."""

    def __call__(self, behind: Exchange, *, debtor: str) -> None:
        """Put it behind."""


class Exchange:
    """One request and its answer. The lane calls `put`, `end_body`, `begin` and what ends it; the rest is ASGI's."""

    def __init__(
        self, connection: Connection, request: Request, put_behind: PutBehind, free_body: Callable[[Request], None]
    ) -> None:
        """`free_body` is told that the body was read and is kept no more: it is, when the answer begins."""
        self._connection = connection
        self.request = request
        self.loop = connection.loop
        self._put_behind = put_behind
        self._free_body = free_body
        self._turn: asyncio.Future[None] | None = None
        """When the end of a large body may be handed over."""
        self._body = bytearray()
        self._size_bytes = 0
        """Of all of the body that came."""
        self.body_is_complete = False
        self._body_was_taken = False
        self._is_gone = False
        """Whether nobody is there any more, or the rest of the body will never come."""
        self._news = asyncio.Event()
        """Set when `receive` has something to say."""
        self._can_write: asyncio.Future[None] | None = None
        self._has_begun = False
        self._is_complete = False
        self._has_body = True
        self._is_chunked = False
        self._left_bytes: int | None = None
        """What is missing of the announced length; None if none was announced."""

    # The lane's side.

    def put(self, body: bytes) -> None:
        """Take a piece of the body; after the answer it is of no use."""
        if not self._is_complete:
            self._body += body
            self._size_bytes += len(body)
            self._news.set()

    def work_on(self) -> None:
        """Hand the end of a large body over: all others have had their turn."""
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    def end_body(self) -> None:
        """Know that the body is complete."""
        self.body_is_complete = True
        self._news.set()

    def has_room(self) -> bool:
        """Tell whether more of the body may come."""
        return len(self._body) < BODY_BYTES_MAX

    def begin(self) -> None:
        """Let the application answer."""
        self._connection.run(self)

    def disconnect(self) -> None:
        """Know that nobody is there any more, or the rest of the body will never come."""
        self._is_gone = True
        self._news.set()
        self.resume_writing()

    def resume_writing(self) -> None:
        """Write again: the other side took what was there."""
        if self._can_write is not None and not self._can_write.done():
            self._can_write.set_result(None)

    async def run(self, application: Application) -> None:
        """Let the application answer, and tell the lane when it is done."""
        try:
            await application(self._scope(), self._receive, self._send)
        except Exception:
            log.exception("a bug while answering %s", self.request.request_id)
        if self._is_complete:
            return
        if not self._has_begun and not self._is_gone:
            await self._fail()
        elif self._has_begun:
            self._connection.abort()
        else:
            self._connection.done(keep_alive=True)

    async def _fail(self) -> None:
        status, body, headers = envelope(Problem("internal_error", BUG), self.request)
        fields = [*headers, (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": fields})
        await self._send({"type": "http.response.body", "body": body})

    # The application's side.

    def _scope(self) -> Scope:
        request, connection = self.request, self._connection
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.0" if self.request.is_old else "1.1",
            "method": request.method.decode("ascii"),
            "scheme": connection.scheme,
            "path": unquote(request.path.decode("latin-1")),
            "raw_path": request.path,
            "query_string": request.query,
            "root_path": "",
            "headers": list(request.headers.items()),
            "client": connection.peer[:2] if isinstance(connection.peer, tuple) else None,
            "server": None,
            "state": {},
            "extensions": {REQUEST: request},
        }

    async def _receive(self) -> dict[str, Any]:
        while not (self._is_gone or self._is_complete):
            if self.body_is_complete and self._size_bytes > LARGE_BYTES and self._turn is None:
                self._turn = self.loop.create_future()
                self._put_behind(self, debtor=self._connection.known_as or "")
                await self._turn
            elif not self._body_was_taken and (self._body or self.body_is_complete):
                body, self._body = bytes(self._body), bytearray()
                self._body_was_taken = self.body_is_complete
                self._connection.go_on()
                return {"type": "http.request", "body": body, "more_body": not self._body_was_taken}
            else:
                self._news.clear()
                await self._news.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        """Write a part of the answer, and wait until there is room for more; nothing if nobody is there."""
        if self._is_gone or self._is_complete:
            return
        if message["type"] == "http.response.start":
            self._start(message["status"], list(message.get("headers", ())))
        elif message["type"] == "http.response.body":
            self._write(message.get("body", b""))
            if not message.get("more_body", False):
                self._finish()
            elif self._connection.writing_pauses:
                self._can_write = self._connection.loop.create_future()
                await self._can_write

    def _start(self, status: int, fields: list[tuple[bytes, bytes]]) -> None:
        """Write the head."""
        if self._has_begun:
            raise RuntimeError("an answer was begun twice")
        self._has_begun = True
        self._free_body(self.request)
        names = {name.lower(): value for name, value in fields}
        if self.request.method == b"HEAD" or status in {_NO_CONTENT, _NOT_MODIFIED}:
            self._has_body = False
        elif b"content-length" in names:
            self._left_bytes = int(names[b"content-length"])
        elif self.request.is_old:
            self.request.keep_alive = False
        else:
            self._is_chunked = True
            fields.append((b"transfer-encoding", b"chunked"))
        if not self.request.keep_alive or self._connection.is_stopping:
            self.request.keep_alive = False
            fields.append((b"connection", b"close"))
        fields.extend(self._connection.said_always)
        fields.extend(field for field in NEVER_KEPT if field[0] not in names)
        self._connection.write(status_line(status) + written(fields) + b"\r\n")

    def _write(self, body: bytes) -> None:
        if not self._has_begun:
            raise RuntimeError("a body was sent before its answer was begun")
        if not body or not self._has_body:
            return
        if self._left_bytes is not None:
            self._left_bytes -= len(body)
            if self._left_bytes < 0:
                raise RuntimeError("an answer is longer than was announced")
        self._connection.write(b"%x\r\n%b\r\n" % (len(body), body) if self._is_chunked else body)

    def _finish(self) -> None:
        if self._left_bytes:
            raise RuntimeError("an answer is shorter than was announced")
        if self._is_chunked:
            self._connection.write(b"0\r\n\r\n")
        self._is_complete = True
        self._body.clear()
        self._news.set()
        self._connection.done(keep_alive=self.request.keep_alive)
