"""GET /metrics: who may read it, and who answers on a node that follows.

Every node answers for itself: numbers of one process are of no use under the name of another. Whoever may read is known
in one of three ways, and the first two need neither the store nor a leader, so monitoring goes on while those are away:

    metrics_open = true      anybody
    a token of the settings  by its digest, if it may `read`
    any other token          as for every other route. A follower asks the leader, and answers with its own numbers
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from holdfast.server.access.secrets import digest
from holdfast.server.observability.metrics import CONTENT_TYPE
from holdfast.server.operations.decoding import by_token, nothing

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.core.values import Moment
    from holdfast.server.access.auth import StaticTokens
    from holdfast.server.api import Api
    from holdfast.server.http.messages import Request
    from holdfast.server.observability.metrics import Meter
    from holdfast.server.operations.call import Call, Reply
    from holdfast.server.operations.operation import Operation, Reader
    from holdfast.server.render import Answered

SCOPE = "read"
_OK = 200
_BEARER = b"Bearer "
_HEADERS = ((b"content-type", CONTENT_TYPE),)


def metrics(api: Api, call: Call) -> None:
    """GET /metrics."""

    def view(_state: State, _now: Moment) -> Answered:
        return _OK, api.meter.text.now(), _HEADERS

    if call.request.rests_on_state:
        api.read(call, view)
    else:
        call.answer((_OK, api.meter.text.now(), _HEADERS))


def reader(api: Api, operation: Operation) -> Reader:
    """Read a request for the numbers: who asks is looked up in the state only where nothing else tells."""
    for_anybody, for_known = nothing(api, operation), by_token(api, operation)
    is_open, static = api.settings.metrics_open, api.auth.static

    def read(request: Request, segment: bytes, reply: Reply) -> Call:
        may_read = is_open or is_static_reader(request, static)
        return (for_anybody if may_read else for_known)(request, segment, reply)

    return read


def is_static_reader(request: Request, static: StaticTokens) -> bool:
    """Tell whether a request has a token of the settings that may read."""
    sent = request.authorization
    if sent is None or not sent.startswith(_BEARER) or len(sent) > len(_BEARER) + static.chars_max:
        return False
    caller = static.callers.get(digest(sent[len(_BEARER) :].decode("latin-1")))
    return caller is not None and SCOPE in caller.scopes


class FollowersMetrics:
    """Answers for a node that follows."""

    def __init__(self, meter: Meter, static: StaticTokens) -> None:
        self._meter = meter
        self._static = static
        self._is_open = meter.sources.settings.metrics_open

    def answer(self, request: Request, reply: Reply) -> Reply | None:
        """Answer, or return what answers in our place once the leader has let the caller in."""
        if self._is_open or is_static_reader(request, self._static):
            reply(request, _OK, self._meter.text.now(), _HEADERS)
            return None
        return partial(self._reply, reply)

    def _reply(
        self, reply: Reply, request: Request, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...]
    ) -> None:
        """Answer with our own numbers whoever the leader has told its own."""
        if status == _OK:
            body, headers = self._meter.text.now(), _HEADERS
        reply(request, status, body, headers)
