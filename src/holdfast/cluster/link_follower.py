"""The follower's end of a link: requests go out with a number, responses come back with it. One link, for one leader.

    no leader, or we lead ──► wait
    another leads ──► connect, prove ──► open ──► until the link is lost, or another leader term is known
                          └─ it failed: retry soon, logged once

A number is used once on a link, so a late response never answers another request. Unanswered requests are bounded by
the connections of clients, each of which asks one thing at a time; unsent data by `UNSENT_BYTES_MAX`. When the link is
over, all unanswered requests go back to the forwarder (`request_queue` says what may be sent again).

A link is kept while no leader is known: the store may be away, and the leader well. It ends as soon as another term is
known: the old leader may be stopped, and would never answer.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from holdfast.cluster import link_frames
from holdfast.cluster.node import Node
from holdfast.cluster.request_queue import PendingRequest
from holdfast.engine.build import Leadership
from holdfast.http.manager import ConnectionManager
from holdfast.http.messages import Request
from holdfast.neterrors import trouble

BACKOFF_MS = 100  # How long nothing is sent to a leader that refused.
TICK_SECONDS = 1
LOCALHOST = "localhost"
CONNECT_SECONDS = 2
RETRY_SECONDS = 0.1  # How soon an unreachable leader is tried again.
FORWARDED_HEADERS = tuple(  # The header fields that are read at the leader.
    b"authorization content-type idempotency-key host origin cookie accept last-event-id holdfast-will-retry"
    b" sec-fetch-dest sec-fetch-mode sec-fetch-site x-holdfast-page".split()
)

log = logging.getLogger("holdfast.server.nodes")


class LinkListener(Protocol):
    """What a link reports to (`forwarder`)."""

    def answered(self, link: FollowerLink, pending: PendingRequest, answer: link_frames.ResponseFrame) -> None: ...

    def note_caller(self, request: Request, principal: str | None) -> None: ...

    def stream_started(self, pending: PendingRequest, stream_started: link_frames.StreamStart) -> None: ...

    def link_opened(self, link: FollowerLink, epoch: int) -> None: ...

    def link_lost(self, link: FollowerLink, unanswered: Sequence[PendingRequest]) -> None: ...

    def link_serves(self, link: FollowerLink, *, serves: bool) -> None: ...

    def hand_over_soon(self) -> None: ...


class FollowerLink(link_frames.FramedProtocol):
    def __init__(self, manager: ConnectionManager, handshake: link_frames.Handshake, listener: LinkListener) -> None:
        super().__init__(manager, link_frames.Decoder(link_frames.ToFollower, link_frames.HELLO_BYTES_MAX))
        self._handshake: link_frames.Handshake | None = handshake
        self._listener = listener
        self.opened: asyncio.Future[None] = self.loop.create_future()  # Done when the leader takes requests, or failed.
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self._number = 0
        self._request_bytes_max = 0
        self._unanswered: dict[int, PendingRequest] = {}
        self._backoff_until_ms = 0
        self.serves = True
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._handshake is not None:
            self.transport.write(link_frames.PREFIX + link_frames.framed(self._handshake.hello()))
        self._timer = self.loop.call_later(TICK_SECONDS, self._on_timer)

    def _on_timer(self) -> None:
        # Before it is open only the handshake is sent, and `connect` has a limit of its own: it cancels `opened`.
        opened = self.opened
        if opened.done() and not opened.cancelled() and opened.exception() is None:
            self.tick()
        if not self.is_over:
            self._timer = self.loop.call_later(TICK_SECONDS, self._on_timer)

    def lost(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fail_opening(ConnectionError("the leader ended the connection before the link was open"))
        unanswered, self._unanswered = list(self._unanswered.values()), {}
        if not self.closed.done():
            self.closed.set_result(None)
        self._listener.link_lost(self, unanswered)

    def log_end(self, why: str, bug: Exception | None = None) -> None:
        """Log why the link ends. Before it is open, `connect` raises it instead."""
        if bug is not None or self.opened.done():
            super().log_end(why, bug)
        else:
            self._fail_opening(link_frames.HandshakeError(why))

    def _fail_opening(self, error: Exception) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # Perhaps nobody waits for it any more.

    def resume_writing(self) -> None:
        super().resume_writing()
        self._listener.hand_over_soon()

    # What goes out.

    def has_capacity(self) -> bool:
        if self.is_writing_paused or self.is_over:
            return False
        return self._backoff_until_ms == 0 or self.manager.now_ms() >= self._backoff_until_ms

    def back_off(self) -> None:
        """Send nothing for a moment: the leader refuses."""
        self._backoff_until_ms = self.manager.now_ms() + BACKOFF_MS

    def send_request(self, pending: PendingRequest, client: str, scheme: str, now_ms: int) -> bool:
        """Send a request. False: it is larger than the leader takes, and was not sent."""
        request = pending.request
        headers = request.headers
        self._number = number = pending.number = self._number + 1
        data = link_frames.framed(
            link_frames.RequestFrame(
                number,
                request.method,
                request.path,
                request.query,
                {name: headers[name] for name in FORWARDED_HEADERS if name in headers},
                request.body,
                client,
                scheme,
                now_ms - pending.received_ms,
                request.request_id,
                pending.inbox is not None,
            )
        )
        if len(data) > self._request_bytes_max:
            return False
        self._unanswered[number] = pending
        self.send_data(data)
        return True

    def drop(self, pending: PendingRequest) -> None:
        if self._unanswered.get(pending.number) is pending:
            del self._unanswered[pending.number]
            self.send(link_frames.CancelFrame(pending.number))

    def acknowledge(self, pending: PendingRequest, size: int) -> None:
        if size and self._unanswered.get(pending.number) is pending:
            self.send(link_frames.WindowUpdate(pending.number, size))

    # What comes in.

    def receive(self, frame: link_frames.ToLeader | link_frames.ToFollower) -> None:
        if isinstance(frame, link_frames.ResponseFrame):
            pending = self._unanswered.pop(frame.number, None)
            if pending is not None:
                self._listener.answered(self, pending, frame)
        elif isinstance(frame, link_frames.StreamStart | link_frames.StreamData | link_frames.StreamEnd):
            self._receive_stream(frame)
        elif isinstance(frame, link_frames.CallerFrame):
            waits = self._unanswered.get(frame.number)
            if waits is not None:
                self._listener.note_caller(waits.request, frame.principal)
        elif isinstance(frame, link_frames.Greeting) and self._handshake is not None:
            self.send(self._handshake.answer(frame))
            self._handshake = None
            self.decoder.bytes_max = link_frames.ANSWER_BYTES_MAX
        elif isinstance(frame, link_frames.Welcome) and self._handshake is None and not self.opened.done():
            self._request_bytes_max = frame.request_bytes_max
            self.opened.set_result(None)
        elif not isinstance(frame, link_frames.Ping):
            raise link_frames.BadFrameError(f"unexpected frame in this state: {type(frame).__name__}")
        elif frame.serves is not None:
            self._listener.link_serves(self, serves=frame.serves)

    def _receive_stream(self, frame: link_frames.StreamStart | link_frames.StreamData | link_frames.StreamEnd) -> None:
        pending = self._unanswered.get(frame.number)
        if pending is None or pending.inbox is None:
            return
        if isinstance(frame, link_frames.StreamEnd):
            del self._unanswered[frame.number]
        elif isinstance(frame, link_frames.StreamStart):
            self._listener.stream_started(pending, frame)
        pending.inbox.put_nowait(frame)


class Security:
    def __init__(self, ca_file: Path | None = None, *, insecure: bool = False) -> None:
        """`ca_file` has the trusted authorities; None: the system's. `insecure` needs no TLS."""
        self._ca_file = ca_file
        self._insecure = insecure
        self._context: ssl.SSLContext | None = None

    def of(self, scheme: str, host: str) -> ssl.SSLContext | None:
        """Return the context of a link; None if it may go without. Raises `HandshakeError` if it may not."""
        if scheme == "https":
            if self._context is None:
                self._context = ssl.create_default_context(cafile=self._ca_file)
            return self._context
        if not (self._insecure or is_loopback(host)):
            raise link_frames.HandshakeError(
                f"http://{host} is another machine, and access tokens would go there in the clear: let the nodes"
                " advertise https, or set link_insecure if the network is yours alone"
            )
        return None


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == LOCALHOST


async def connect(url: str, link: FollowerLink, security: Security) -> None:
    """Open a link to a leader. Raises `OSError` or `HandshakeError`."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    context = security.of(parts.scheme, host)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    # In the clear, localhost is not resolved: the resolver could return another machine.
    addresses = ("127.0.0.1", "::1") if host == LOCALHOST and context is None else (host,)
    name = None if context is None else host
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            for address in addresses:
                try:
                    await link.loop.create_connection(lambda: link, address, port, ssl=context, server_hostname=name)
                    break
                except OSError:
                    if address == addresses[-1]:
                        raise
            await link.opened
    except BaseException:
        link.end(at_once=True)
        raise


class LinkClient:
    def __init__(
        self,
        node: Node,
        listener: LinkListener,
        manager: ConnectionManager,
        new_secret: Callable[[int], bytes],
        security: Security | None = None,
    ) -> None:
        self._node = node
        self._listener = listener
        self._manager = manager
        self._new_secret = new_secret
        self._security = security or Security()
        self._reported_failure: object = None  # The failure that was logged last.

    async def run(self) -> None:
        while True:
            leadership = self._node.leader()
            if leadership is None or self._node.term() is not None:
                self._listener.hand_over_soon()
                await self._wait_for_change()
            else:
                await self._follow(leadership)

    async def _follow(self, leadership: Leadership) -> None:
        credentials = link_frames.TermCredentials(
            leadership.authority, leadership.epoch, leadership.term_id, self._node.key
        )
        link = FollowerLink(
            self._manager, link_frames.Handshake(credentials, self._new_secret(link_frames.NONCE_BYTES)), self._listener
        )
        opening = asyncio.ensure_future(connect(leadership.url, link, self._security))
        try:
            while not opening.done() and self._is_for(leadership):
                await self._wait_for_change(opening)
            if not opening.done():
                return
            if not self._is_open(opening, leadership):
                await self._wait_for_change()
                return
            if self._reported_failure is not None:
                self._reported_failure = None
                log.warning("the leader %s at %s is reached again", leadership.node, leadership.url)
            self._listener.link_opened(link, leadership.epoch)
            while not link.is_over and self._is_for(leadership):
                await self._wait_for_change(link.closed)
        finally:
            opening.cancel()
            link.end(at_once=True)

    def _is_open(self, opening: asyncio.Future[None], leadership: Leadership) -> bool:
        """Tell whether a link is open, and log each reason why not once."""
        error = opening.exception()
        if error is None:
            return True
        if not isinstance(error, OSError | link_frames.HandshakeError | ValueError):
            raise error
        reason = str(error) or "it does not answer"
        if isinstance(error, ssl.SSLError):
            reason = ": ".join(trouble(error))
        if self._reported_failure != (leadership.url, reason):
            self._reported_failure = leadership.url, reason
            log.warning("the leader %s at %s cannot be reached: %s", leadership.node, leadership.url, reason)
        return False

    def _is_for(self, leadership: Leadership) -> bool:
        if self._node.term() is not None:
            return False
        leader = self._node.leader()
        return leader is None or (leader.epoch, leader.term_id) == (leadership.epoch, leadership.term_id)

    async def _wait_for_change(self, other: asyncio.Future[None] | None = None) -> None:
        """Wait until the leader changes or something else is done; at most `RETRY_SECONDS`."""
        changed = asyncio.ensure_future(self._node.wait_for_change())
        both: set[asyncio.Future[None]] = {changed} if other is None else {changed, other}
        try:
            await asyncio.wait(both, timeout=RETRY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
