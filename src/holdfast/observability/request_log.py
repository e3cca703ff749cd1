"""Observers of requests: the request log, and traces.

Observers wrap the handler of a server, so each request is observed once, on the node and connection where it arrived:
also requests refused before they are read, forwarded requests, streams (until their response ends), and clients that
disconnect before the response.

The request log has one line per request, when it is answered, without query, headers and body, where secrets may be:

    GET /locks/deploy 200 3 ms req_5f…
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from holdfast.observability.logs import shown_path

if TYPE_CHECKING:
    from holdfast.engine.clock import Clock
    from holdfast.http.manager import Handler, Reply
    from holdfast.http.messages import Fields, Request, ResponseWriter
    from holdfast.http.proxies import Proxies
    from holdfast.wire.problems import Problem

# Called when a request ends: its status, or None if the client disconnected before; the principal, if known.
OnEnd: TypeAlias = Callable[[int | None, str | None], None]
_METHOD_CHARS_MAX = 16

log = logging.getLogger("holdfast.requests")


class Observer(Protocol):
    def begin(self, request: Request, route: str) -> OnEnd:
        """Called when a request arrives. `route` is its path in the table of operations; empty if there is none."""

    def close(self) -> None:
        """Called after the last request."""


class RequestLog:
    def __init__(self, clock: Clock, proxies: Proxies) -> None:
        self._read_ms = clock.monotonic_ms
        self._proxies = proxies

    def begin(self, request: Request, route: str) -> OnEnd:
        return partial(self._end, request, route, self._read_ms())

    def close(self) -> None:
        """Do nothing: every line is queued already."""

    def _end(self, request: Request, route: str, began_ms: int, status: int | None, principal: str | None) -> None:
        method = request.method[:_METHOD_CHARS_MAX].decode("latin-1")
        path, took_ms = shown_path(request.path), self._read_ms() - began_ms
        fields = {
            "method": method,
            "path": path,
            "route": route or None,
            "status": status,
            "ms": took_ms,
            "request_id": request.request_id,
            "principal": principal,
            "client": str(self._proxies.client_of(request) or "") or None,
        }
        outcome = "the client left" if status is None else status
        text = "%s %s %s %d ms %s"
        log.info(text, method, path, outcome, took_ms, request.request_id, extra={"fields": fields})


class _ObservedRequest(msgspec.Struct):
    request: Request
    principal_of: Callable[[Request], str | None]
    on_end: list[OnEnd]  # Empty after the end.
    status: int | None = None
    principal: str | None = None

    def answer(self, status: int) -> None:
        """Note the status, and the principal before its token may end."""
        self.status, self.principal = status, self.principal_of(self.request)

    def end(self) -> None:
        on_end, self.on_end = self.on_end, []
        for callback in on_end:
            callback(self.status, self.principal)


class ObserverChain:
    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def wrap(self, handler: Handler) -> Handler:
        if not self._observers:
            return handler

        def begin(request: Request) -> _ObservedRequest:
            route = handler.route_of(request)
            return _ObservedRequest(
                request, handler.principal_of, [each.begin(request, route) for each in self._observers]
            )

        def handle(request: Request, reply: Reply) -> None:
            observed = begin(request)
            handler.handle(request, partial(_answered, observed, reply))
            if observed.on_end:
                # If the client disconnects, one of the two is called; the first, if the request waits in a queue.
                if request.on_disconnect is not None:
                    request.on_disconnect = partial(_on_disconnect, observed, request.on_disconnect)
                request.on_lost = partial(_on_disconnect, observed, request.on_lost)

        def refuse(problem: Problem, request: Request, reply: Reply) -> None:
            handler.refuse(problem, request, partial(_answered, begin(request), reply))

        async def stream(request: Request, response: ResponseWriter) -> None:
            observed = begin(request)
            response.on_start = observed.answer
            try:
                await handler.stream(request, response)
            finally:
                observed.end()

        return msgspec.structs.replace(handler, handle=handle, refuse=refuse, stream=stream)

    def close(self) -> None:
        for observer in self._observers:
            observer.close()


def _answered(  # noqa: PLR0917 - as a reply is called
    observed: _ObservedRequest, reply: Reply, request: Request, status: int, body: bytes, headers: Fields
) -> None:
    observed.answer(status)
    observed.end()
    reply(request, status, body, headers)


def _on_disconnect(observed: _ObservedRequest, notify: Callable[[], object] | None) -> None:
    observed.end()
    if notify is not None:
        notify()
