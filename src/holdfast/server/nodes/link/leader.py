"""The leader's end of links: requests that other nodes pass on are answered here as if their clients had asked here.

A link is for one tenure and ends with it. One that comes in is a stranger's connection like any other until it has
proved itself (`handshake`): it gives way when connections run out, may say little, and has a few seconds. Only
`UNPROVED_MAX` are in that state at once; then one gives way, the eldest of those that do not even know the tenure.

**One hop.** A request is handed to the routes of this tenure and never passed on again. If the tenure is over, the
answer is 503 `not_leader`: it was not decided here (N-30).

**Who asks.** `peer` of a request is the client's address, so wrong tokens count by that. Names in `Host` were checked
by the node that the client called, which knows what it is called.

**Who asks much stands behind**, over a link as anywhere else (decision 0042): what takes long is charged to the
principal, and while it is throttled its requests wait in the run queue. One who is not known is charged by address.

**Each read is stamped anew (T1a).** A decision has the time of its own turn, and a turn ends with its millisecond. So a
request that lay in a link is never decided with a time before it was read.
"""

from __future__ import annotations

from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING

from holdfast.server.access.cookies import shown_in
from holdfast.server.http.connection import LATER_BYTES
from holdfast.server.http.manager import LONG_SECONDS
from holdfast.server.http.messages import SMALL_BODY_BYTES, Request
from holdfast.server.nodes.link.fewlines import FewLines
from holdfast.server.nodes.link.framed import Framed
from holdfast.server.nodes.link.frames import (
    ANSWER_BYTES_MAX,
    ASKED_SPARE_BYTES,
    HELLO_BYTES_MAX,
    NONCE_BYTES,
    Answered,
    Asked,
    BadFrameError,
    Decoder,
    Gone,
    Hello,
    More,
    Ping,
    Proof,
    Recognised,
    ToLeader,
    Welcome,
)
from holdfast.server.nodes.link.handshake import Bond, LeadersHandshake
from holdfast.server.nodes.link.streams import LeadersStream
from holdfast.server.render import envelope
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from holdfast.server.http.manager import ConnectionManager
    from holdfast.server.nodes.link.frames import Fields, ToFollower
    from holdfast.server.nodes.node import Node
    from holdfast.server.nodes.tenure import Tenure
    from holdfast.settings import Settings

UNPROVED_MAX = 32
HANDSHAKE_TICKS_MAX = 3
ASKED_MAX = 100_000
"""How many requests of one link may be unanswered: more than a node has connections."""
LARGE_ANSWER_BYTES = 65_536
ANSWERS_BYTES_MAX = 8 * 2**20
"""How much may wait in one link before large answers to looks are refused: those can be asked for again.

What was decided is never refused: `overloaded` would say that it was not done.
"""
_SAFE = frozenset({b"GET", b"HEAD"})
BEARERS_MAX, BEARER_BYTES_MAX = 4_096, 512
RETRY_MS = 200


class Linked(Request):
    """A request that came over a link."""

    number: int = 0
    principal: str | None = None
    """Who asks, once that is known."""


class LinkServer:
    """All links to this node."""

    def __init__(
        self, node: Node, settings: Settings, new_secret: Callable[[int], bytes], *, insecure: bool = False
    ) -> None:
        """`insecure` lets links come from other machines without TLS. `new_secret` makes random bytes."""
        self.node = node
        self.asked_bytes_max = settings.body_bytes_max + 2 * settings.header_bytes_max + ASKED_SPARE_BYTES
        self.new_secret = new_secret
        self._insecure = insecure
        self._unproved: dict[LinkEnd, None] = {}
        """The eldest first."""
        self._open: set[LinkEnd] = set()
        self.lines = FewLines()

    def begin(self, manager: ConnectionManager, transport: asyncio.Transport, early: bytes) -> None:
        """Take a connection that said that it is a link, and what it said behind that."""
        end = LinkEnd(self, manager)
        transport.set_protocol(end)
        end.connection_made(transport)
        if self._is_in_clear(transport):
            end.complain("it comes from another machine without TLS")
            end.abort()
            return
        self._unproved[end] = None
        if early:
            end.data_received(early)
        if len(self._unproved) > UNPROVED_MAX:
            strangers = (each for each in self._unproved if not each.is_greeted)
            next(strangers, next(iter(self._unproved))).abort()

    def _is_in_clear(self, transport: asyncio.Transport) -> bool:
        if self._insecure or transport.get_extra_info("sslcontext") is not None:
            return False
        peer = transport.get_extra_info("peername")
        return not isinstance(peer, tuple) or not ip_address(peer[0].partition("%")[0]).is_loopback

    def proved(self, end: LinkEnd) -> None:
        """Know that one is a node of ours."""
        self._unproved.pop(end, None)
        self._open.add(end)
        self.node.links = len(self._open)

    def remove(self, end: LinkEnd) -> None:
        """Know that one is over."""
        self._unproved.pop(end, None)
        self._open.discard(end)
        self.node.links = len(self._open)

    def end_all(self) -> None:
        """End all links, for the tenure is over: each as soon as all that was asked over it is answered."""
        for end in [*self._unproved, *self._open]:
            end.shutdown()


class LinkEnd(Framed):
    """The leader's end of one link."""

    principal: str | None = None

    def __init__(self, server: LinkServer, manager: ConnectionManager) -> None:
        super().__init__(manager, Decoder(ToLeader, HELLO_BYTES_MAX))
        self._server = server
        self.is_authenticated = False
        """Whether it has proved itself."""
        self._tenure: Tenure | None = None
        self._handshake: LeadersHandshake | None = None
        self._is_stopping = False
        self._ticks = 0
        self._last_number = 0
        self._asked: dict[int, Linked] = {}
        """By number: what is not answered yet."""
        self._streams: dict[int, LeadersStream] = {}
        self._handling: Linked | None = None
        self._principals: dict[bytes | None, str] = {}
        """Whose each bearer token is, as it was last time. Only for whom to charge."""

    # What the manager asks of a connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, in the place of the one that it was."""
        super().connection_made(transport)
        self.manager.add(self)

    def abort(self) -> None:
        """Break it off."""
        self.end(at_once=True)

    def shutdown(self) -> None:
        """End it when all that was asked is answered: the tenure is over, or the server stops."""
        self._is_stopping = True
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._is_stopping and not self._asked:
            self.end()

    def complain(self, why: str) -> None:
        """Say why it ends; of strangers in a few lines."""
        if self.is_authenticated:
            super().complain(why)
        else:
            self._server.lines.warn(f"a link from {self.peer} is refused: {why}", self.manager.now_ms())

    def complain_of_bug(self, bug: Exception) -> None:
        """Say what nobody expected; a stranger that found it can bring it about again and again."""
        if self.is_authenticated:
            super().complain_of_bug(bug)
        else:
            text = f"a bug ended a link from {self.peer} that had proved nothing"
            self._server.lines.warn(text, self.manager.now_ms(), bug)

    def check_time(self) -> None:
        """Called every second."""
        self._server.lines.look(self.manager.now_ms())
        self._ticks += 1
        if not self.is_authenticated:
            if self._ticks > HANDSHAKE_TICKS_MAX:
                self.abort()
            return
        if not self._is_current():
            self.shutdown()
        self.tick()

    def ping(self) -> Ping:
        """Say whether we serve, too: a follower that nobody asks knows it then."""
        return Ping(self._is_current() and self._server.node.serves)

    @property
    def must_not_read(self) -> bool:
        """While answers are not taken, nothing more is asked."""
        return self.writing_pauses

    def resume_writing(self) -> None:
        """Know that what is written is taken again."""
        super().resume_writing()
        for stream in list(self._streams.values()):
            stream.go_on()

    def lost(self) -> None:
        """Know that it is over: all who wait over it are gone."""
        self.manager.remove(self)
        self.manager.free_budgets(self)
        self._server.remove(self)
        asked, self._asked = self._asked, {}
        streams, self._streams = self._streams, {}
        for request in asked.values():
            _tell_gone(request)
        for stream in streams.values():
            stream.leave()

    @property
    def is_greeted(self) -> bool:
        """Whether it knows what the link is for: our tenure, which strangers do not know."""
        return self._handshake is not None

    def _is_current(self) -> bool:
        return self._tenure is not None and self._server.node.tenure() is self._tenure

    # What comes in.

    def take(self, frame: ToLeader | ToFollower) -> None:
        """Take a frame."""
        if not self.is_authenticated:
            self._take_unproved(frame)
        elif type(frame) is Asked:
            self._ask(frame)
        elif isinstance(frame, More):
            stream = self._streams.get(frame.number)
            if stream is not None:
                stream.more(frame.size)
        elif isinstance(frame, Gone):
            self._drop(frame.number)
        elif not isinstance(frame, Ping):
            raise BadFrameError(f"{type(frame).__name__} is not said now")

    def _take_unproved(self, frame: ToLeader | ToFollower) -> None:
        server = self._server
        if isinstance(frame, Hello) and self._handshake is None:
            self._tenure = server.node.tenure()
            if self._tenure is None:
                # So it is for a moment around every takeover, and while nobody can lead. The other node says it.
                self.end()
                return
            seat = self._tenure.seat
            bond = Bond(seat.authority, seat.epoch, seat.tenure, server.node.key)
            self._handshake = LeadersHandshake(bond, server.new_secret(NONCE_BYTES))
            self.send(self._handshake.greet(frame))
        elif isinstance(frame, Proof) and self._handshake is not None:
            self._handshake.check(frame)
            self.is_authenticated = True
            self.decoder.bytes_max = server.asked_bytes_max
            server.proved(self)
            self.send(Welcome(server.asked_bytes_max))
        else:
            raise BadFrameError(f"{type(frame).__name__} is not said before the proof")

    def _ask(self, frame: Asked) -> None:
        if frame.number <= self._last_number:
            raise BadFrameError(f"the number {frame.number} was used before")
        self._last_number = frame.number
        said = frame.headers.get
        authorization = said(b"authorization")
        if authorization is None and b"cookie" in frame.headers:
            authorization = shown_in(frame.headers)
        request = Linked(
            frame.method,
            frame.path,
            frame.query,
            frame.headers,
            frame.body,
            frame.client,
            None,
            authorization,
            said(b"content-type"),
            said(b"idempotency-key"),
            frame.request_id,
            held_ms=frame.held_ms,
            scheme=frame.scheme,
            number=frame.number,
        )
        is_one_too_many = len(self._asked) >= ASKED_MAX
        self._asked[frame.number] = request
        if is_one_too_many:
            self._refuse(
                request, "overloaded", "Too many requests of the node that you asked are unanswered: ask again."
            )
            return
        if frame.in_pieces:
            self._streams[frame.number] = LeadersStream(self, frame.number, request)
        manager = self.manager
        who = self._principals.get(request.authorization)
        if who is not None and len(frame.body) > SMALL_BODY_BYTES and not self._may_keep(request, who):
            return
        if (manager.throttled and manager.must_yield(who or (frame.client,))) or (
            frame.in_pieces and len(frame.body) > LATER_BYTES
        ):
            manager.defer(_Later(self, request), throttled=who or "")
        else:
            self.begin(request)

    def _may_keep(self, request: Linked, who: str) -> bool:
        """Count a large body, or refuse it. Not with 429: another copy of it may have been decided."""
        try:
            self.manager.body_budget.take(self, request, who, len(request.body))
        except Problem as problem:
            self._refuse(request, "overloaded", problem.details)
            return False
        return True

    def begin(self, request: Linked) -> None:
        """Let a request be answered."""
        if request.number not in self._asked:
            return
        tenure = self._tenure
        if tenure is None or self._is_stopping or self._server.node.tenure() is not tenure:
            self._refuse(request, "not_leader", "This node does not lead any more: ask again.")
        elif request.number in self._streams:
            self._run(self._streams[request.number], request, tenure)
        else:
            self._handle(request, tenure)

    def _handle(self, request: Linked, tenure: Tenure) -> None:
        manager = self.manager
        self._handling, request.on_known = request, self._knows
        began = manager.read_seconds()
        tenure.routes.handle(request, self._reply)
        if (took_seconds := manager.read_seconds() - began) >= LONG_SECONDS:
            manager.charge(request.principal or (request.peer,), took_seconds)
        if request.on_disconnect is not None and request.principal is not None and request.number in self._asked:
            self.send(Recognised(request.number, request.principal))

    def _knows(self, principal: str) -> None:
        """Know who asks what is handled now: nothing else is, until that returns."""
        if self._handling is not None:
            self._recognise(self._handling, principal)

    def _recognise(self, request: Linked, principal: str) -> None:
        request.principal = principal
        if self._streams and request.number in self._streams:
            self._streams[request.number].principal = principal
        bearer = request.authorization
        if bearer is not None and self._principals.get(bearer) != principal and len(bearer) <= BEARER_BYTES_MAX:
            if len(self._principals) >= BEARERS_MAX:
                self._principals.clear()
            self._principals[bearer] = principal

    def _run(self, stream: LeadersStream, request: Linked, tenure: Tenure) -> None:
        request.on_known = partial(self._recognise, request)
        # It is read in the next turn, and not kept.
        self.manager.body_budget.free(request)
        task = self.loop.create_task(stream.run(tenure.routes.stream))
        self.manager.tasks.add(task)
        task.add_done_callback(partial(self._ran, request.number))

    def _ran(self, number: int, task: asyncio.Task[None]) -> None:
        self.manager.tasks.discard(task)
        self._asked.pop(number, None)
        self._streams.pop(number, None)
        self._end_if_done()

    def _drop(self, number: int) -> None:
        """Know that nobody waits for this one."""
        request = self._asked.pop(number, None)
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.leave()
        elif request is not None:
            _tell_gone(request)
        if request is not None:
            self.manager.body_budget.free(request)
        self._end_if_done()

    # What goes out.

    def _reply(self, request: Request, status: int, body: bytes, headers: Fields) -> None:
        """Answer, unless nobody waits for it any more."""
        if not isinstance(request, Linked) or self._asked.pop(request.number, None) is None:
            return
        # It may be in a circle with the place that it waited at.
        request.on_disconnect = None
        if self.manager.body_budget.kept:
            self.manager.body_budget.free(request)
        if len(body) > LATER_BYTES:
            self.manager.charge_response(request.principal or (request.peer,), len(body))
        if (
            len(body) > LARGE_ANSWER_BYTES
            and request.method in _SAFE
            and (self.unsent_bytes > ANSWERS_BYTES_MAX or len(body) > ANSWER_BYTES_MAX - ASKED_SPARE_BYTES)
        ):
            text = "Too many large answers are on their way to the node that you asked: ask again."
            status, body, headers = envelope(Problem("overloaded", text, retry_after_ms=RETRY_MS), request)
        self.send(Answered(request.number, status, body, headers, request.principal))
        if self._is_stopping:
            self._end_if_done()

    def _refuse(self, request: Linked, code: str, text: str) -> None:
        stream = self._streams.pop(request.number, None)
        if stream is not None:
            stream.leave()
        self._reply(request, *envelope(Problem(code, text, retry_after_ms=RETRY_MS), request))


class _Later:
    """A request of a link in the run queue."""

    __slots__ = ("_end", "_request", "loop")

    def __init__(self, end: LinkEnd, request: Linked) -> None:
        self._end = end
        self._request = request
        self.loop = end.loop

    def resume(self) -> None:
        """Begin it: all others have had their turn."""
        self._end.begin(self._request)


def _tell_gone(request: Linked) -> None:
    if request.on_disconnect is not None:
        request.on_disconnect()
