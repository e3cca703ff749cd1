"""The log of requests: one line for each, when it is answered.

    GET /locks/deploy 200 3 ms req_5f…

Never the query, the headers or the body: secrets live there. The route says what was asked without the name in it.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from holdfast.server.logs.lines import shown_path

if TYPE_CHECKING:
    from holdfast.engine.clock import Clock
    from holdfast.server.access.proxies import Proxies
    from holdfast.server.doors.request import Request
    from holdfast.server.logs.observed import Ended

METHOD_CHARS_MAX = 16

log = logging.getLogger("holdfast.requests")


class RequestLog:
    """Writes the lines."""

    def __init__(self, clock: Clock, proxies: Proxies) -> None:
        self._read_ms = clock.monotonic_ms
        self._proxies = proxies

    def begin(self, request: Request, route: str) -> Ended:
        """Know when it came."""
        return partial(self._end, request, route, self._read_ms())

    def close(self) -> None:
        """Nothing is left to do."""

    def _end(self, request: Request, route: str, began_ms: int, status: int | None, principal: str | None) -> None:
        method = request.method[:METHOD_CHARS_MAX].decode("latin-1")
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
        said = "the client left" if status is None else status
        text = "%s %s %s %d ms %s"
        log.info(text, method, path, said, took_ms, request.request_id, extra={"fields": fields})
