"""The follower's end of a link to the leader: requests go out with a number, answers come back with it.

A link is for one tenure. A number is used once, and an answer is for the request that has its number on this link: so
nothing that comes late can answer another request. How many wait for answers is bounded by the connections of clients,
each of which asks one thing at a time; how much is written and not taken, by `UNSENT_BYTES_MAX`.

When the link is over, for whatever reason, all that it did not answer is handed back to its owner, which knows what may
be sent again (`pending`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from ipaddress import ip_address
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from holdfast.server.nodes.link.framed import Framed
from holdfast.server.nodes.link.frames import (
    ANSWER_BYTES_MAX,
    HELLO_BYTES_MAX,
    PREFIX,
    Answered,
    Asked,
    BadFrameError,
    Begun,
    Decoder,
    Gone,
    Greeting,
    More,
    Over,
    Piece,
    Ping,
    Recognised,
    ToFollower,
    Welcome,
    framed,
)
from holdfast.server.nodes.link.handshake import FollowersHandshake, HandshakeError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from holdfast.server.http.manager import ConnectionManager
    from holdfast.server.nodes.link.frames import ToLeader
    from holdfast.server.nodes.pending import Pending

REST_MS = 100
"""For how long nothing is asked of a leader that refused."""
TICK_SECONDS = 1
LOCALHOST = "localhost"
CONNECT_SECONDS = 2
KEPT = (
    b"authorization",
    b"content-type",
    b"idempotency-key",
    b"host",
    b"origin",
    b"cookie",
    b"accept",
    b"last-event-id",
    b"holdfast-comes-back",
    b"sec-fetch-dest",
    b"sec-fetch-mode",
    b"sec-fetch-site",
    b"x-holdfast-page",
)
"""The fields of a head that go over the link: all that anybody looks at, there or in time to come."""

log = logging.getLogger("holdfast.server.nodes")


class Owner(Protocol):
    """Whose link it is."""

    def answered(self, link: Link, pending: Pending, answer: Answered) -> None:
        """Take the whole answer to a request."""

    def recognised(self, pending: Pending, principal: str) -> None:
        """Know who asks, of a request that waits in line."""

    def begun(self, pending: Pending, begun: Begun) -> None:
        """Know that an answer in pieces has begun."""

    def link_lost(self, link: Link, unanswered: Sequence[Pending]) -> None:
        """Know that the link is over, and what it did not answer."""

    def link_has_room(self, link: Link) -> None:
        """Know that more may be asked again."""

    def link_serves(self, link: Link, *, serves: bool) -> None:
        """Know that the leader answers what it is asked, or that it refuses."""


class Link(Framed):
    """The follower's end of one link."""

    def __init__(self, manager: ConnectionManager, handshake: FollowersHandshake, owner: Owner) -> None:
        super().__init__(manager, Decoder(ToFollower, HELLO_BYTES_MAX))
        self._handshake: FollowersHandshake | None = handshake
        self._owner = owner
        self.opened: asyncio.Future[None] = self.loop.create_future()
        """Done when the leader takes requests; fails if that never comes."""
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self._number = 0
        self._asked_bytes_max = 0
        """The largest frame with a request that the leader takes."""
        self._unanswered: dict[int, Pending] = {}
        self._rests_until_ms = 0
        self.serves = True
        """Whether the leader answers what it is asked, as far as it has said."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        super().connection_made(transport)
        if self._handshake is not None:
            self.transport.write(PREFIX + framed(self._handshake.hello()))
        self._timer = self.loop.call_later(TICK_SECONDS, self._ring)

    def _ring(self) -> None:
        # Before that nothing but the handshake is said, and `connect` has a limit of its own: it cancels `opened`.
        opened = self.opened
        if opened.done() and not opened.cancelled() and opened.exception() is None:
            self.tick()
        if not self.is_over:
            self._timer = self.loop.call_later(TICK_SECONDS, self._ring)

    def lost(self) -> None:
        """Hand back what was not answered."""
        if self._timer is not None:
            self._timer.cancel()
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("the leader ended the connection before the link was open"))
            # Nobody may be waiting for it any more.
            self.opened.exception()
        unanswered, self._unanswered = list(self._unanswered.values()), {}
        if not self.closed.done():
            self.closed.set_result(None)
        self._owner.link_lost(self, unanswered)

    def complain(self, why: str) -> None:
        """Say why it ends: before it is open to whoever opens it, who says the same thing once."""
        if self.opened.done():
            super().complain(why)
        else:
            self.opened.set_exception(HandshakeError(why))
            self.opened.exception()

    def resume_writing(self) -> None:
        """Know that what is written is taken again."""
        super().resume_writing()
        self._owner.link_has_room(self)

    # What goes out.

    def has_room(self) -> bool:
        """Tell whether a request may be handed over now."""
        if self.writing_pauses or self.is_over:
            return False
        return self._rests_until_ms == 0 or self.manager.now_ms() >= self._rests_until_ms

    def rest(self) -> None:
        """Ask nothing for a moment: the leader refuses."""
        self._rests_until_ms = self.manager.now_ms() + REST_MS

    def ask(self, pending: Pending, client: str, now_ms: int) -> bool:
        """Hand over a request. False: it is larger than the leader takes, and nothing of it was sent."""
        request = pending.request
        headers = request.headers
        self._number = number = pending.number = self._number + 1
        data = framed(
            Asked(
                number,
                request.method,
                request.path,
                request.query,
                {name: headers[name] for name in KEPT if name in headers},
                request.body,
                client,
                pending.scheme,
                now_ms - pending.received_ms,
                request.request_id,
                pending.inbox is not None,
            )
        )
        if len(data) > self._asked_bytes_max:
            return False
        self._unanswered[number] = pending
        self.send_data(data)
        return True

    def drop(self, pending: Pending) -> None:
        """Tell the leader that nobody waits for this one any more."""
        if self._unanswered.get(pending.number) is pending:
            del self._unanswered[pending.number]
            self.send(Gone(pending.number))

    def took(self, pending: Pending, size: int) -> None:
        """Tell the leader that so much of a stream was taken."""
        if size and self._unanswered.get(pending.number) is pending:
            self.send(More(pending.number, size))

    # What comes in.

    def take(self, frame: ToLeader | ToFollower) -> None:
        """Take a frame."""
        if isinstance(frame, Answered):
            pending = self._unanswered.pop(frame.number, None)
            if pending is not None:
                self._owner.answered(self, pending, frame)
        elif isinstance(frame, Begun | Piece | Over):
            self._take_in_pieces(frame)
        elif isinstance(frame, Recognised):
            waits = self._unanswered.get(frame.number)
            if waits is not None:
                self._owner.recognised(waits, frame.principal)
        elif isinstance(frame, Greeting) and self._handshake is not None:
            self.send(self._handshake.answer(frame))
            self._handshake = None
            self.decoder.bytes_max = ANSWER_BYTES_MAX
        elif isinstance(frame, Welcome) and self._handshake is None and not self.opened.done():
            self._asked_bytes_max = frame.asked_bytes_max
            self.opened.set_result(None)
        elif not isinstance(frame, Ping):
            raise BadFrameError(f"{type(frame).__name__} is not said now")
        elif frame.serves is not None:
            self._owner.link_serves(self, serves=frame.serves)

    def _take_in_pieces(self, frame: Begun | Piece | Over) -> None:
        pending = self._unanswered.get(frame.number)
        if pending is None or pending.inbox is None:
            return
        if isinstance(frame, Over):
            del self._unanswered[frame.number]
        elif isinstance(frame, Begun):
            self._owner.begun(pending, frame)
        pending.inbox.put(frame)


class Security:
    """How a follower makes sure that nobody listens on the way to the leader, and who it is at the other end."""

    def __init__(self, ca_file: Path | None = None, *, insecure: bool = False) -> None:
        """`ca_file` has the authorities whose certificates are believed; None: those of the system.

        `insecure` lets a link go to another machine without TLS.
        """
        self._ca_file = ca_file
        self._insecure = insecure
        self._context: ssl.SSLContext | None = None

    def of(self, scheme: str, host: str) -> ssl.SSLContext | None:
        """Return what the link is secured with; None if it may go without. Raises `HandshakeError` if it may not."""
        if scheme == "https":
            if self._context is None:
                self._context = ssl.create_default_context(cafile=self._ca_file)
            return self._context
        if not (self._insecure or is_loopback(host)):
            raise HandshakeError(
                f"http://{host} is another machine, and access tokens would go there in the clear: let the nodes"
                " advertise https, or set link_insecure if the network is yours alone"
            )
        return None

    def must_stay_here(self, scheme: str) -> bool:
        """Tell whether a link may go to addresses of this machine alone."""
        return scheme != "https" and not self._insecure


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine itself."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == LOCALHOST


async def connect(url: str, link: Link, security: Security) -> None:
    """Open a link to a leader, or raise why not: an `OSError` or a `HandshakeError`."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    context = security.of(parts.scheme, host)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            if host == LOCALHOST and security.must_stay_here(parts.scheme):
                await _connect_here(link, port)
            else:
                await link.loop.create_connection(
                    lambda: link, host, port, ssl=context, server_hostname=None if context is None else host
                )
            await link.opened
    except BaseException:
        link.end(at_once=True)
        raise


async def _connect_here(link: Link, port: int) -> None:
    """Connect to this machine by its address: what a name stands for is for others to say, who may say another's."""
    found = await link.loop.getaddrinfo(LOCALHOST, port, type=socket.SOCK_STREAM)
    own = [str(name[0]) for *_, name in found if is_loopback(str(name[0]))]
    trouble: Exception = HandshakeError("localhost is another machine here: let the nodes advertise an address")
    for address in own:
        try:
            await link.loop.create_connection(lambda: link, address, port)
        except OSError as error:
            trouble = error
        else:
            return
    raise trouble
