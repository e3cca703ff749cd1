"""Which request goes to which operation, and what becomes of it. `finding` knows paths and methods."""

from __future__ import annotations

import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING

from holdfast.server.api import BUG
from holdfast.server.operations.finding import Finder
from holdfast.server.operations.reading import reader_for
from holdfast.server.operations.sizes import SMALL_BODY_BYTES, size_of
from holdfast.server.render import envelope
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from holdfast.server.api import Api
    from holdfast.server.doors.request import Request
    from holdfast.server.operations.call import Envelope, Reply
    from holdfast.server.operations.operation import Operation

log = logging.getLogger("holdfast.server")


class Route:
    """An operation with all that was made ready for it when the server started."""

    __slots__ = ("body_bytes_max", "handler", "is_stream", "operation", "read")

    def __init__(self, api: Api, operation: Operation) -> None:
        self.operation = operation
        self.read = reader_for(api, operation)
        self.handler = operation.handler
        self.is_stream = operation.is_stream
        self.body_bytes_max = size_of(operation, api.settings).bytes_max


class Routes(Finder[Route]):
    """The operations of one server. Both doors call `handle`; streams are the ASGI door's."""

    def __init__(self, api: Api, operations: tuple[Operation, ...]) -> None:
        super().__init__(api.settings, operations, partial(Route, api))
        self.api = api

    def handle(self, request: Request, reply: Reply) -> None:
        """Answer a request; `reply` is called once, now or later, never twice."""
        try:
            if request.host not in self._passed_hosts:
                self.check_host(request)
            route, segment = self.find(request.method, request.path)
            if route.is_stream:
                raise self.no_route(request.path)
            read, handler = route.read, route.handler
            handler(self.api, read(request, segment, reply))
        except Problem as problem:
            self.refuse(problem, request, reply)
        except Exception:
            log.exception("a bug while answering %s", request.request_id)
            reply(request, *envelope(Problem("internal_error", BUG), request))

    def body_limit(self, request: Request) -> int:
        """Return how many bytes the body of this request may have, of which only the head is known so far.

        A door asks as soon as it knows that there will be more than `SMALL_BODY_BYTES`, and before it keeps any more of
        it: raises why nothing beyond that is taken from this sender. The body need not be read on then.
        """
        self.check_host(request)
        route, _ = self.find(request.method, request.path)
        if route.body_bytes_max > SMALL_BODY_BYTES:
            self.api.admit(request, route.operation.scope or "", route.operation.own_scope)
        return route.body_bytes_max

    def refuse(self, problem: Problem, request: Request, reply: Reply) -> None:
        """Refuse a request in the words of its route; if the refusal rests on the state, not before that is durable."""
        words: Envelope = envelope
        with contextlib.suppress(Problem):
            words = self.find(request.method, request.path)[0].operation.refusal
        self.api.refuse(problem, words, request, reply)
