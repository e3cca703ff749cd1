"""A call: one request after all of it was read, and the way to answer it. Knows nothing of rows and handlers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import msgspec

from holdfast.core.values import Moment
from holdfast.server.access.auth import Caller
from holdfast.server.doors.request import Request
from holdfast.server.render import Answered, problem
from holdfast.wire.problems import Problem

Reply: TypeAlias = Callable[[Request, int, bytes, tuple[tuple[bytes, bytes], ...]], None]
"""Answers a request: a connection has one for all of its requests, and none is made for each."""
Envelope: TypeAlias = Callable[[Problem, Request], Answered]
"""Puts a problem into a reply."""


class Tells(Protocol):
    """Tells outcomes: the `Api`."""

    def tell(self, call: Call, outcome: object, now: Moment, shows: Mapping[type, Any]) -> None:
        """Answer a call with what was decided."""


class Call(msgspec.Struct):
    """One request after all of it was read, on its way through a handler. It may be in a circle, so gc stays on.

    It is what the engine calls back, by `decided` or `seen`: no function is made for each request.
    """

    refusal: Envelope
    request: Request
    reply: Reply
    item: str
    """The name or the id in the path; empty if the path has none."""
    query: Any
    """The query's fields, or what `read_query` made of them."""
    body: Any
    caller: Caller
    key: str | None = None
    fingerprint: str = ""
    """Of the content, if the operation compares it; empty without a key."""
    waited_ms: int = 0
    """How long it stood in line before its outcome came."""

    teller: Tells | None = None
    """Who tells what is decided. Set when a command of it is submitted, as the next."""
    shows: Mapping[type, Any] | None = None
    """How each kind of outcome is shown."""

    def answer(self, answered: Answered) -> None:
        """Answer it."""
        self.reply(self.request, *answered)

    def decided(self, outcome: object, now: Moment) -> None:
        """Answer it with what was decided."""
        # `submit` set both.
        self.teller.tell(self, outcome, now, self.shows)  # type: ignore[union-attr,arg-type]

    def seen(self, outcome: object, _now: Moment) -> None:
        """Answer it with what a look at the state found, or with the reason why nobody could look."""
        if type(outcome) is tuple:
            self.reply(self.request, *outcome)
        else:
            self.answer(self.refusal(problem(outcome), self.request))


NOBODY = Caller("", frozenset())
"""The caller of an operation that does not ask who it is."""
