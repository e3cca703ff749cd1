"""The context of a request: what was decoded of it, its caller, and the way to answer it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, get_args

import msgspec

from holdfast.api.auth.auth import Caller
from holdfast.api.rendering import problem
from holdfast.core.outcomes import Acquired, Refusal
from holdfast.core.values import Instant
from holdfast.engine.waiters import after_wait
from holdfast.http.messages import Request, ResponseParts
from holdfast.wire.problems import Problem

Reply: TypeAlias = Callable[[Request, int, bytes, tuple[tuple[bytes, bytes], ...]], None]  # One per connection.
Envelope: TypeAlias = Callable[[Problem, Request], ResponseParts]  # A problem as a reply.


_REFUSALS = frozenset(get_args(Refusal))


class RequestContext(msgspec.Struct):
    """One decoded request on its way through a handler. The engine calls it back, so no function is made for each."""

    refusal: Envelope
    request: Request
    reply: Reply
    item: str  # The name or the id in the path; empty if the path has none.
    query: Any  # The query's fields, or what `read_query` made of them.
    body: Any
    caller: Caller
    api: Any  # The `ApiService`, which imports this module.
    key: str | None = None
    fingerprint: str = ""  # Of the content, if the operation compares it; empty without a key.
    waited_ms: int = 0  # How long it waited in the queue before its outcome came.
    renderers: Mapping[type, Any] = {}  # By the type of the outcome. Set when a command is submitted.

    def answer(self, answered: ResponseParts) -> None:
        self.reply(self.request, *answered)

    def on_decided(self, outcome: Any, now: Instant) -> None:  # noqa: ANN401 - any outcome
        """Answer with what was decided; an outcome not in `renderers` is a refusal. Count what leaves no record."""
        renderers, api = self.renderers, self.api
        kind = type(outcome)
        render = renderers.get(kind)
        if render is None:
            outcome, self.waited_ms = after_wait(outcome)
            kind = type(outcome)
            render = renderers.get(kind)
        if kind is Acquired:
            api.counters.reacquires += outcome.reacquired
        elif kind in _REFUSALS:
            api.counters.refusals += 1
            if render is not None:
                api.counters.refusal_replies[kind] = api.counters.refusal_replies.get(kind, 0) + 1
        try:
            answered = api.refusal_of(self, outcome) if render is None else render(api, self, outcome, now)
        except Exception as error:  # noqa: BLE001 - It is decided: without an answer the connection waits for ever.
            answered = api.internal_error(self, error)
        reply, (status, body, headers) = self.reply, answered  # In two steps: a star-call is slower.
        reply(self.request, status, body, headers)

    def on_read(self, outcome: object, _now: Instant) -> None:
        if type(outcome) is tuple:
            reply, (status, body, headers) = self.reply, outcome
            reply(self.request, status, body, headers)
        else:
            why = problem(outcome)
            self.api.counters.refuse(why.code)
            self.answer(self.refusal(why, self.request))


ANONYMOUS = Caller("", frozenset())  # The caller of an operation that does not ask who it is.
