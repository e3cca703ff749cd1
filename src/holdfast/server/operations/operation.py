"""What an operation is: one row of the table, and the call that its handler gets."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from holdfast.server.access.auth import Caller
from holdfast.server.doors.request import Request
from holdfast.server.render import Answered, envelope

if TYPE_CHECKING:
    from holdfast.core.values import Moment
    from holdfast.server.api import Api
    from holdfast.wire.problems import Problem

Reply: TypeAlias = Callable[[int, bytes, tuple[tuple[bytes, bytes], ...]], None]
Handler: TypeAlias = "Callable[[Api, Call], Any]"
"""Answers a call, now or later. The handler of a stream returns the stream instead."""
Reader: TypeAlias = "Callable[[Request, bytes, Reply], Call]"
"""Makes a call of a request, the segment of the path that it is about, and the way to answer; or raises the problem."""
Show: TypeAlias = "Callable[[Api, Call, Any, Moment], Answered]"
"""Puts an outcome of one type into a reply."""


class Key(Enum):
    """What is made of the header Idempotency-Key."""

    IGNORED = "Doing it twice is the same as doing it once."
    ALONE = "A retry is known by its key."
    WITH_CONTENT = "A retry is known by its key, and another request must not use it: its content is compared (C5)."


class Operation(msgspec.Struct, frozen=True):
    """A method on a path: what it takes, who may ask for it, who answers, and what it may answer."""

    method: str
    path: str
    handler: Handler
    summary: str
    scope: str | None = None
    """What a bearer token needs for it. None: no bearer token is asked for."""
    body: type[Any] | None = None
    replies: dict[int, Any] = {}
    """By status: a message, a media type, or None for an empty or `null` body."""
    problems: tuple[str, ...] = ()
    query: dict[str, str] = {}
    """The known fields and what they are for."""

    # What is done on the way to the handler. `reading.by_token` has the order.

    reader: Callable[[Api, Operation], Reader] | None = None
    """Makes the function that reads a request. None: `reading.by_token` if a scope is needed, else nothing is read."""
    passes_over_query: bool = False
    """Whether the query may hold anything."""
    read_query: Callable[[dict[str, str]], Any] | None = None
    """Makes what the handler gets of the query's fields."""
    check_body: Callable[[Any], None] | None = None
    """Raises what is wrong with a body of the right type, as far as that can be seen without the state."""
    key: Key = Key.IGNORED
    check_after_key: Callable[[Any], None] | None = None
    """As `check_body`, for a check that comes after that of the key."""
    check_session: Callable[[Call], None] | None = None
    """Raises unless the session whose secret was used may ask this (S3). Not called for a bearer token."""

    # What is done with the outcome.

    refusal: Callable[[Problem, Request], Answered] = envelope
    """Puts a problem into a reply."""
    is_stream: bool = False
    """Whether the handler returns a stream. Only the ASGI door has those."""


class Call(msgspec.Struct):
    """One request after all of it was read, on its way through a handler. It may be in a circle, so gc stays on."""

    operation: Operation
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


NOBODY = Caller("", frozenset())
"""The caller of an operation that does not ask who it is."""
