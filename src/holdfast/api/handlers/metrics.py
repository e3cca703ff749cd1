"""GET /metrics: who may read it. Every node answers with its own numbers.

The first two ways need neither the store nor a leader, so monitoring works without them:

    metrics_open = true      anybody
    a token of the settings  by its digest, if it may `read`
    any other token          as for every other route; a follower asks the leader
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.api.auth.secrets import digest
from holdfast.api.decoding import anonymous_reader, token_reader
from holdfast.observability.metrics import CONTENT_TYPE, Meter

if TYPE_CHECKING:
    from holdfast.api.auth.auth import StaticTokens
    from holdfast.api.context import Reply, RequestContext
    from holdfast.api.operation import Operation, Reader
    from holdfast.api.service import ApiService
    from holdfast.http.messages import Request

SCOPE = "read"
_OK = 200
_BEARER = b"Bearer "
_HEADERS = ((b"content-type", CONTENT_TYPE),)


def metrics(api: ApiService, context: RequestContext) -> None:
    if context.request.rests_on_state:
        api.read(context, lambda _state, _now: (_OK, api.meter.text.now(), _HEADERS))
    else:
        context.answer((_OK, api.meter.text.now(), _HEADERS))


def reader(api: ApiService, operation: Operation) -> Reader:
    """Return the reader of requests. It looks the caller up in the state only if the settings do not decide."""
    for_anonymous, for_authenticated = anonymous_reader(api, operation), token_reader(api, operation)
    is_open, static = api.settings.metrics_open, api.auth.static

    def read(request: Request, segment: bytes, reply: Reply) -> RequestContext:
        may_read = is_open or is_static_reader(request, static)
        return (for_anonymous if may_read else for_authenticated)(request, segment, reply)

    return read


def is_static_reader(request: Request, static: StaticTokens) -> bool:
    sent = request.authorization
    if sent is None or not sent.startswith(_BEARER) or len(sent) > len(_BEARER) + static.chars_max:
        return False
    caller = static.callers.get(digest(sent[len(_BEARER) :].decode("latin-1")))
    return caller is not None and SCOPE in caller.scopes


class FollowerMetrics:
    def __init__(self, meter: Meter, static: StaticTokens) -> None:
        self._meter = meter
        self._static = static

    def answer(self, request: Request, reply: Reply) -> Reply | None:
        """Answer on a follower, or return the reply to call once the leader has authenticated the caller."""
        if self._meter.sources.settings.metrics_open or is_static_reader(request, self._static):
            reply(request, _OK, self._meter.text.now(), _HEADERS)
            return None

        def relay(request: Request, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> None:
            is_authorized = status == _OK
            reply(
                request,
                status,
                self._meter.text.now() if is_authorized else body,
                _HEADERS if is_authorized else headers,
            )

        return relay
