"""Answers in pieces over a link: the leader's end runs the door, the follower's end hands the pieces to its client.

    leader: door ──► LeadersStream ──► Begun, Piece …, Over ──► Relay ──► follower's client
                          ▲                                       │
                          └──────────── More, Gone ◄──────────────┘

The leader may be `WINDOW_BYTES` ahead of what the client took. So one who does not read makes nobody keep more than
that, on either side, and holds up nobody else on the link.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

import msgspec

from holdfast.server.doors.exchange import REQUEST, Application
from holdfast.server.nodes.link.frames import Begun, Over, Piece

if TYPE_CHECKING:
    from holdfast.server.doors.exchange import Scope
    from holdfast.server.doors.request import Request
    from holdfast.server.nodes.link.frames import Fields, ToFollower

WINDOW_BYTES = 65_536
PIECE_BYTES_MAX = 16_384

log = logging.getLogger("holdfast.server.nodes")


class Sends(Protocol):
    """The link, as a stream sees it."""

    writing_pauses: bool

    def send(self, frame: ToFollower) -> None:
        """Send a frame."""


class LeadersStream:
    """One stream at the leader: an exchange of the ASGI door whose client is at another node."""

    def __init__(self, link: Sends, number: int, request: Request, scheme: str) -> None:
        self._link = link
        self._number = number
        self._request = request
        self._scheme = scheme
        self._credit_bytes = WINDOW_BYTES
        self._body_was_taken = False
        self._is_gone = self._is_over = False
        self._news = asyncio.Event()
        """Set when there is more credit, the link takes more, or nobody waits any more."""
        self._gone = asyncio.Event()
        self.principal: str | None = None

    # The link's side.

    def more(self, size: int) -> None:
        """Know that so much was taken."""
        self._credit_bytes = min(self._credit_bytes + max(size, 0), WINDOW_BYTES)
        self._news.set()

    def go_on(self) -> None:
        """Know that the link takes more."""
        self._news.set()

    def leave(self) -> None:
        """Know that nobody waits for it any more."""
        self._is_gone = True
        self._gone.set()
        self._news.set()

    async def run(self, door: Application) -> None:
        """Let the door answer."""
        try:
            await door(self._scope(), self._receive, self._send)
        except Exception:
            log.exception("a bug while answering %s", self._request.request_id)
        if not self._is_over and not self._is_gone:
            self._link.send(Over(self._number, is_whole=False))

    # The door's side.

    def _scope(self) -> Scope:
        request = self._request
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method.decode("latin-1"),
            "scheme": self._scheme,
            "path": unquote(request.path.decode("latin-1")),
            "raw_path": request.path,
            "query_string": request.query,
            "root_path": "",
            "headers": list(request.headers.items()),
            "client": (request.peer, 0),
            "server": None,
            "state": {},
            "extensions": {REQUEST: request},
        }

    async def _receive(self) -> dict[str, Any]:
        if not self._body_was_taken:
            self._body_was_taken = True
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if self._is_gone or self._is_over:
            return
        if message["type"] == "http.response.start":
            headers = tuple((name, value) for name, value in message.get("headers", ()))
            self._link.send(Begun(self._number, message["status"], headers, self.principal))
            return
        body = message.get("body", b"")
        for start in range(0, len(body), PIECE_BYTES_MAX):
            if not await self._has_credit():
                return
            piece = body[start : start + PIECE_BYTES_MAX]
            self._credit_bytes -= len(piece)
            self._link.send(Piece(self._number, piece))
        if not message.get("more_body", False):
            self._is_over = True
            self._link.send(Over(self._number, is_whole=True))

    async def _has_credit(self) -> bool:
        """Wait until more may be sent. False: nobody waits for it any more."""
        while not self._is_gone and (self._credit_bytes <= 0 or self._link.writing_pauses):
            self._news.clear()
            await self._news.wait()
        return not self._is_gone


class Here(msgspec.Struct, frozen=True):
    """Nobody else is to be asked: this node leads now, and this is its door."""

    door: Application


class Inbox:
    """The pieces of one stream at the follower, until its client takes them: at most a window of them."""

    def __init__(self) -> None:
        self._pieces: deque[Begun | Piece | Over | Here] = deque()
        self._news = asyncio.Event()

    def put(self, piece: Begun | Piece | Over | Here) -> None:
        """Take what came."""
        self._pieces.append(piece)
        self._news.set()

    def put_whole(self, status: int, body: bytes, headers: Fields) -> None:
        """Take a whole answer."""
        for piece in (Begun(0, status, headers, None), Piece(0, body), Over(0, is_whole=True)):
            self.put(piece)

    def put_cut(self) -> None:
        """Know that nothing more comes, and that it was not the whole."""
        self.put(Over(0, is_whole=False))

    async def next(self) -> Begun | Piece | Over | Here:
        """Wait for the next."""
        while not self._pieces:
            self._news.clear()
            await self._news.wait()
        return self._pieces.popleft()
