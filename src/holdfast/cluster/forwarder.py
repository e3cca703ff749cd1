"""How a follower answers: it forwards requests to the leader over a link, and queues them while there is no link.

    connection ──► Forwarder ──► FollowerLink ══════════════► leader
                     │   ▲          │ lost, or `not_leader`
                     ▼   │          ▼
                  RequestQueue ◄────┘          5 s in all, then 503

It provides a `Handler` as the routes do (`ConnectionManager.set_handler`). The follower checks sizes, times,
connections, paths and names in `Host`; the leader authenticates and authorises. If this node itself begins to lead,
queued requests go to its own routes. `request_queue` says what may be sent again, and when a request fails with
`not_leader` or `outcome_unknown`. Queued requests are handed over a few at a time: a new leader that got thousands at
once would serve no other client meanwhile.

**Waiters.** If a request may be waiting in a queue (its body says so, in plain letters or in escapes that are not
decoded here), the leader is notified when its client closes its sending side. Other clients that close only that side
get their response, as at the leader. A lost connection is always reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from holdfast.api.auth.refusals import network_of
from holdfast.api.context import ANONYMOUS, Reply, RequestContext
from holdfast.api.operation import Key, Operation
from holdfast.api.router import RouteTable
from holdfast.cluster.link_follower import FollowerLink
from holdfast.cluster.link_frames import Fields, ResponseFrame, StreamData, StreamEnd, StreamStart
from holdfast.cluster.node import LeaderTerm, Node
from holdfast.cluster.request_queue import LargeBodies, PendingRequest, RequestQueue, TokenCache
from holdfast.config import Settings
from holdfast.engine.clock import Clock
from holdfast.http.manager import Handler
from holdfast.http.messages import (
    SMALL_BODY_BYTES,
    ClientDisconnectedError,
    Request,
    ResponseWriter,
    StreamHandler,
    envelope,
)
from holdfast.http.proxies import Proxies
from holdfast.observability.metrics import Counters
from holdfast.wire.problems import Problem

HANDED_OVER_PER_TICK = 64
CHECK_SECONDS = 0.1  # How often held requests are checked.
RETRY_MS = 200
NOT_LEADER = "This node follows, and there is no leader at the moment: ask again."
FULL = "The leader takes no more from this node at the moment, and too much waits here already: ask again."
UNKNOWN = (
    "The leader went away before it answered, so nobody here knows whether this was done. Ask again with the same"
    " Idempotency-Key, or look first."
)
_UNAVAILABLE, _UNAUTHORISED = 503, 401
_NOT_DONE = frozenset({_UNAVAILABLE, _UNAUTHORISED, 413})  # These are decided before the idempotency key is looked up.
_SAFE = frozenset({b"GET", b"HEAD"})
_BACKSLASH = ord("\\")
_EVENTS = b"text/event-stream"  # A stream of this type is never complete: its reader reconnects and resumes.

log = logging.getLogger("holdfast.server.nodes")


class Forwarder(RouteTable):
    def __init__(
        self,
        node: Node,
        settings: Settings,
        operations: tuple[Operation, ...],
        clock: Clock,
        proxies: Proxies,
        *,
        local: Mapping[bytes, Callable[[Request, Reply], Reply | None]] | None = None,
        counters: Counters | None = None,
    ) -> None:
        """`local` answers paths about this node. The reply that it returns is called once the leader answers."""
        super().__init__(settings, operations)
        self._node = node
        self._read_ms = clock.monotonic_ms
        self._proxies = proxies
        self._local = dict(local or {})
        self._counters = counters or Counters()
        self._scheme = "http" if settings.tls_cert is None else "https"
        self._link: FollowerLink | None = None
        self._epoch: int | None = None
        self._queue = RequestQueue(self._read_ms)
        self._handing_over = self._is_ticking = False
        self._token_cache = TokenCache()
        self._bodies = LargeBodies(settings.body_timeout_seconds)
        self._answering: tuple[Request, str | None] | None = None  # The current request and its principal.

    # What connections ask.

    def handler(self) -> Handler:
        headers = [(b"holdfast-node", self._node.me.node.encode("ascii", "replace"))]
        if self._epoch is not None:
            headers.append((b"holdfast-epoch", b"%d" % self._epoch))
        return Handler(
            handle=self.handle,
            refuse=self.refuse,
            is_streaming=self.is_streaming,
            stream=self.stream,
            body_limit=self.body_limit,
            check_host=self.check_host,
            principal_of=self._principal_of,
            route_of=self.route_of,
            headers=tuple(headers),
        )

    def handle(self, request: Request, reply: Reply) -> None:
        """Answer a request; calls `reply` once, now or later."""
        try:
            if request.host not in self._accepted_hosts:
                self.check_host(request)
            local = self._local.get(request.path)
            if local is not None and request.method in _SAFE:
                reply_later = local(request, reply)
                if reply_later is None:
                    return
                reply = reply_later
            row, _ = self.find(request.method, request.path)
            if row.is_stream:
                raise self.no_route(request.path)
        except Problem as problem:
            self.refuse(problem, request, reply)
            return
        if row.operation.is_local:
            # A document: its handler reads nothing.
            nothing: Any = None
            operation = row.operation
            operation.handler(
                nothing, RequestContext(operation.refusal, request, reply, "", None, None, ANONYMOUS, nothing)
            )
            return
        if self._bodies and request.request_id in self._bodies:
            reply = partial(self._free_and_reply, reply)
        may_repeat = request.method in _SAFE or (request.key is not None and row.operation.key is not Key.IGNORED)
        pending = PendingRequest(request, reply, None, self._read_ms(), may_repeat)
        request.on_lost = partial(self._drop_client, pending)
        self._send_or_hold(pending)

    def refuse(self, problem: Problem, request: Request, reply: Reply) -> None:
        self._bodies.free(request.request_id)
        self._counters.refuse(problem.code)
        reply(request, *self.refusal_renderer_of(request)(problem, request))

    def _free_and_reply(self, reply: Reply, request: Request, status: int, body: bytes, headers: Fields) -> None:
        self._bodies.free(request.request_id)
        reply(request, status, body, headers)

    def body_limit(self, request: Request) -> int:
        """Return the body size limit of a request, or raise if only a small body may be sent."""
        self.check_host(request)
        row, _ = self.find(request.method, request.path)
        if row.body_bytes_max > SMALL_BODY_BYTES and not self._token_cache.is_known_caller(request, self._proxies):
            announced = request.headers.get(b"content-length", b"")
            size = int(announced[-16:]) if announced.isdigit() else row.body_bytes_max
            size = min(size, row.body_bytes_max)
            network = network_of(self._proxies.client_of(request))
            self._bodies.take(request.request_id, network, size, self._read_ms())
            request.on_lost = partial(self._bodies.free, request.request_id)
        return row.body_bytes_max

    async def stream(self, request: Request, response: ResponseWriter) -> None:
        try:
            self.check_host(request)
            row, _ = self.find(request.method, request.path)
            if row.operation.body is not None:
                await response.read_body()
        except (ClientDisconnectedError, Problem) as error:
            self._bodies.free(request.request_id)
            if not isinstance(error, Problem):
                raise
            await response.respond(*envelope(error, request))
            return
        pending = PendingRequest(request, None, asyncio.Queue(), self._read_ms(), True)
        self._send_or_hold(pending)
        try:
            here = await self._relay(pending, response)
        finally:
            self._drop_client(pending)
        if here is not None:
            await here(request, response)

    async def _relay(self, pending: PendingRequest, response: ResponseWriter) -> StreamHandler | None:
        """Pass on the pieces until the end, or until the client leaves. Return the handler that is to answer instead.

        The connection of a cut stream is aborted, unless it is one of events: no client takes a part for the whole.
        """
        is_of_events = has_begun = False
        while pending.inbox is not None:
            coming = asyncio.ensure_future(pending.inbox.get())
            both: set[asyncio.Future[Any]] = {coming, response.disconnected}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                coming.cancel()
                return None
            frame = coming.result()
            if isinstance(frame, StreamStart):
                has_begun = True
                is_of_events = any(
                    name == b"content-type" and value.startswith(_EVENTS) for name, value in frame.headers
                )
                response.start(frame.status, frame.headers)
            elif isinstance(frame, StreamData):
                await response.write(frame.body)
                if self._link is not None:
                    self._link.acknowledge(pending, len(frame.body))
            elif isinstance(frame, StreamEnd):
                if frame.is_complete or (has_begun and is_of_events):
                    response.finish()
                return None
            elif isinstance(frame, tuple):
                await response.respond(*frame)
                return None
            else:
                return frame
        return None

    def _principal_of(self, request: Request) -> str | None:
        """Return the principal that the leader named with this response, or else the last time."""
        answering = self._answering
        if answering is not None and answering[0] is request:
            return answering[1]
        return self._token_cache.principals.get(request.authorization)

    # On its way.

    def _send_or_hold(self, pending: PendingRequest) -> None:
        request, link = pending.request, self._link
        if request.on_known is not None:
            # As it was last time. It grants nothing, and keeps a user's connection from being evicted.
            principal = self._token_cache.principals.get(request.authorization)
            if principal is not None:
                self.note_caller(request, principal)
        if link is not None and not self._queue.waiting and link.has_capacity():
            self._send(link, pending)
        else:
            self._hold(pending)

    def _send(self, link: FollowerLink, pending: PendingRequest) -> None:
        request = pending.request
        headers = request.headers
        client, scheme = request.peer, self._scheme
        if b"x-forwarded-for" in headers:
            client = str(self._proxies.client_of(request) or client)
        if b"x-forwarded-proto" in headers:
            scheme = self._proxies.scheme_of(request, scheme)
        body = request.body
        may_wait = b"wait" in body or _BACKSLASH in body
        request.on_disconnect = partial(self._drop_client, pending) if may_wait and pending.reply is not None else None
        if not link.send_request(pending, client, scheme, self._read_ms()):
            text = "The leader takes no request as large as this: its settings are others than those of this node."
            self._answer_problem(pending, Problem("invalid_input", text, status=413))

    def _hold(self, pending: PendingRequest) -> None:
        if pending.is_answered:
            return
        # Empty for users whose token was forgotten.
        principal = self._token_cache.principals.get(pending.request.authorization)
        pending.principal = principal or (
            "" if self._token_cache.is_known_caller(pending.request, self._proxies) else None
        )
        # A client that half-closed may have asked again elsewhere: a later copy could be granted after its refusal.
        if pending.request.is_half_closed or not self._queue.put(pending, is_leaderless=not self._has_leader()):
            self._give_up(pending)
            return
        if pending.reply is not None:
            pending.request.on_disconnect = partial(self._drop_client, pending)
        self._tick_soon()
        self.hand_over_soon()

    def _drop_client(self, pending: PendingRequest) -> None:
        pending.is_answered = True
        pending.request.on_disconnect = pending.request.on_lost = None
        if self._bodies:
            self._bodies.free(pending.request.request_id)
        self._queue.drop(pending)
        if self._link is not None:
            self._link.drop(pending)

    def _give_up(self, pending: PendingRequest) -> None:
        code, text = ("outcome_unknown", UNKNOWN) if pending.is_uncertain else ("not_leader", NOT_LEADER)
        if code == "not_leader" and self._has_leader():
            # A client that gets `not_leader` goes to another node, which has the same leader.
            code, text = "overloaded", FULL
        self._answer_problem(pending, Problem(code, text, retry_after_ms=RETRY_MS))

    def _has_leader(self) -> bool:
        return self._link is not None and self._link.serves

    def _answer_problem(self, pending: PendingRequest, problem: Problem) -> None:
        self._counters.refuse(problem.code)
        pending.answer(*self.refusal_renderer_of(pending.request)(problem, pending.request))

    def _reply_uncertain(self, reply: Reply, request: Request, status: int, body: bytes, headers: Fields) -> None:
        """Answer a request of which another copy may have been applied, though this one was not."""
        if status in _NOT_DONE:
            problem = Problem("outcome_unknown", UNKNOWN, retry_after_ms=RETRY_MS)
            status, body, headers = self.refusal_renderer_of(request)(problem, request)
        reply(request, status, body, headers)

    def hand_over_soon(self) -> None:
        if not self._handing_over:
            self._handing_over = True
            asyncio.get_running_loop().call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._handing_over = False
        for _ in range(HANDED_OVER_PER_TICK):
            term, link = self._node.term(), self._link
            if term is not None:
                self._queue.note_leader(responds=True)
            if not len(self._queue):
                return
            if term is not None:
                self._answer_here(self._queue.pop_first(), term)
            elif link is not None and link.has_capacity():
                self._send(link, self._queue.pop_first())
            else:
                return
        self.hand_over_soon()

    def _answer_here(self, pending: PendingRequest, term: LeaderTerm) -> None:
        request = pending.request
        request.on_disconnect = request.on_lost = None
        self._bodies.free(request.request_id)
        request.held_ms = self._read_ms() - pending.received_ms
        pending.is_answered = True
        if pending.inbox is not None:
            pending.inbox.put_nowait(term.routes.stream)
        elif pending.reply is not None:
            term.routes.handle(request, pending.reply)

    def _tick_soon(self) -> None:
        if not self._is_ticking:
            self._is_ticking = True
            asyncio.get_running_loop().call_later(CHECK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._is_ticking = False
        for pending in self._queue.pop_overdue():
            self._give_up(pending)
        if len(self._queue):
            self._tick_soon()
            self.hand_over_soon()

    def end(self) -> None:
        """Refuse all held requests, so that clients go to another node immediately."""
        self._queue.end()
        self._tick()

    # What the link reports.

    def answered(self, link: FollowerLink, pending: PendingRequest, answer: ResponseFrame) -> None:
        if answer.status == _UNAVAILABLE and b'"not_leader"' in answer.body:
            # This copy was not decided: the request waits as if it had not been sent.
            self.link_serves(link, serves=False)
            if link.has_capacity():
                link.back_off()
                self._node.poll_soon()
            self._hold(pending)
            return
        if not link.serves:
            self.link_serves(link, serves=True)
        if answer.principal is not None or answer.status == _UNAUTHORISED:
            self.note_caller(pending.request, answer.principal)
        self._answering = pending.request, answer.principal
        pending.answer(answer.status, answer.body, answer.headers)
        self._answering = None

    def stream_started(self, pending: PendingRequest, start: StreamStart) -> None:
        """Called when a streamed response has begun: it is never requested again."""
        pending.is_answered = True
        pending.request.body = b""
        self.note_caller(pending.request, start.principal)

    def note_caller(self, request: Request, principal: str | None) -> None:
        self._token_cache.note(request.authorization, principal)
        if principal is not None and request.on_known is not None:
            # One with too many connections stays a stranger here: the answer is decided, but it is evicted first.
            with contextlib.suppress(Problem):
                request.on_known(principal)

    def link_opened(self, link: FollowerLink, epoch: int) -> None:
        self._link = link
        self._node.is_linked = True
        self.link_serves(link, serves=link.serves)
        self._set_epoch(link, epoch)
        self.hand_over_soon()

    def _set_epoch(self, link: FollowerLink, epoch: int | None) -> None:
        self._epoch = epoch
        if self._node.term() is None:
            link.manager.set_handler(self.handler())

    def link_serves(self, link: FollowerLink, *, serves: bool) -> None:
        """Called when the leader answers requests, or refuses them: as if there were none."""
        link.serves = serves
        if link is self._link:
            self._node.is_served = serves
            self._queue.note_leader(responds=serves)

    def link_lost(self, link: FollowerLink, unanswered: Sequence[PendingRequest]) -> None:
        """Called when a link is over. Unanswered requests may or may not have been applied."""
        if link is self._link:
            self._link = None
            self._queue.note_leader(responds=False)
            self._node.is_linked = False
            self._node.poll_soon()
            self._set_epoch(link, None)
        for pending in unanswered:
            if pending.is_answered:
                if pending.inbox is not None:
                    pending.inbox.put_nowait(StreamEnd(0, is_complete=False))
                continue
            if pending.reply is not None and not pending.is_uncertain and pending.request.method not in _SAFE:
                pending.reply = partial(self._reply_uncertain, pending.reply)
            pending.is_uncertain = True
            if pending.may_repeat:
                self._hold(pending)
            else:
                self._give_up(pending)
