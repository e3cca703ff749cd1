"""Streams over a link: a handler at the leader writes, and the follower passes the pieces on to its client.

    leader: handler ──► LeadersStream ──► Begun, Piece …, Over ──► relay ──► follower's client
                             ▲                                       │
                             └──────────── More, Gone ◄──────────────┘

The leader may be `WINDOW_BYTES` ahead of what the client took. A client that does not read therefore makes neither side
buffer more than that, and delays nothing else on the link.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast.server.http.messages import ResponseWriter, StreamHandler
from holdfast.server.nodes.link.frames import Begun, Over, Piece

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.server.http.messages import Request
    from holdfast.server.nodes.link.frames import Fields, ToFollower

WINDOW_BYTES = 65_536
PIECE_BYTES_MAX = 16_384

log = logging.getLogger("holdfast.server.nodes")


class Sends(Protocol):
    """The link, as a stream sees it."""

    writing_pauses: bool

    def send(self, frame: ToFollower) -> None:
        """Send a frame."""


class LeadersStream(ResponseWriter):
    """One stream at the leader, whose client is at another node."""

    def __init__(self, link: Sends, number: int, request: Request) -> None:
        self._link = link
        self._number = number
        self.request = request
        self.disconnected = asyncio.get_running_loop().create_future()
        self._credit_bytes = WINDOW_BYTES
        self._is_gone = self._is_over = False
        self._news = asyncio.Event()
        """Set when there is more credit, the link takes more, or the client is gone."""
        self.principal: str | None = None

    # The link's side.

    def more(self, size: int) -> None:
        """Called when the client took so much."""
        self._credit_bytes = min(self._credit_bytes + max(size, 0), WINDOW_BYTES)
        self._news.set()

    def go_on(self) -> None:
        """Called when the link takes more."""
        self._news.set()

    def leave(self) -> None:
        """Called when the client is gone."""
        self._is_gone = True
        self._news.set()
        if not self.disconnected.done():
            self.disconnected.set_result(None)

    async def run(self, handler: StreamHandler) -> None:
        """Run the handler."""
        try:
            await handler(self.request, self)
        except Exception:
            log.exception("a bug while answering %s", self.request.request_id)
        if not self._is_over and not self._is_gone:
            self._link.send(Over(self._number, is_whole=False))

    # The handler's side.

    async def read_body(self) -> bytes:
        """Return the body: the follower has sent it with the request."""
        return self.request.body

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Send the status and the header. The follower adds the request id, which is the same there."""
        if not (self._is_gone or self._is_over):
            self._link.send(Begun(self._number, status, tuple(headers), self.principal))

    async def write(self, data: bytes) -> None:
        """Send a piece, as far as the client reads."""
        for start in range(0, len(data), PIECE_BYTES_MAX):
            if self._is_over or not await self._has_credit():
                return
            piece = data[start : start + PIECE_BYTES_MAX]
            self._credit_bytes -= len(piece)
            self._link.send(Piece(self._number, piece))

    def finish(self) -> None:
        """Complete the response."""
        if not (self._is_gone or self._is_over):
            self._is_over = True
            self._link.send(Over(self._number, is_whole=True))

    async def _has_credit(self) -> bool:
        """Wait until more may be sent. False: the client is gone."""
        while not self._is_gone and (self._credit_bytes <= 0 or self._link.writing_pauses):
            self._news.clear()
            await self._news.wait()
        return not self._is_gone


class Here(msgspec.Struct, frozen=True):
    """No other node is to be asked: this one leads now, and this is its handler."""

    handler: StreamHandler


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
