"""What an operation is: one row of the table."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeAlias

import msgspec

from holdfast.server.api import Api
from holdfast.server.http.messages import Request
from holdfast.server.operations.call import Call, Envelope, Reply
from holdfast.server.render import envelope

Handler: TypeAlias = "Callable[[Api, Call], Any]"
"""Answers a call, now or later. The handler of a stream returns the stream instead."""
Reader: TypeAlias = "Callable[[Request, bytes, Reply], Call]"
"""Makes a call of a request, the segment of the path that it is about, and the way to answer; or raises the problem."""


class Key(Enum):
    IGNORED = "Doing it twice is the same as doing it once."
    ALONE = "A retry is known by its key."
    WITH_CONTENT = "A retry is known by its key, and another request must not use it: its content is compared (C5)."


class Operation(msgspec.Struct, frozen=True):
    method: str
    path: str
    handler: Handler
    summary: str
    scope: str | None = None
    """What a bearer token needs for it. None: no bearer token is asked for."""
    own_scope: str = ""
    """What a claim's secret needs for it, of names of that claim alone. Empty: no such secret may ask."""
    body: type[Any] | None = None
    body_may_be_empty: bool = False
    """Whether no body at all stands for one in which every field is absent."""
    replies: dict[int, Any] = {}
    """By status: a message, a media type, or None for an empty or `null` body. Several that have no tag are a tuple."""
    problems: tuple[str, ...] = ()
    """The codes that do not follow from the rest of the row; `pages/documents.py` adds those."""
    query: dict[str, str] = {}
    headers: dict[str, str] = {}

    in_documents: bool = True
    """Whether it is part of the API, and so of `/docs` and of the OpenAPI document: pages are not."""
    any_host: bool = False
    """Whether it answers to any name in `Host`: those who look after the server's health may not know its own."""
    is_local: bool = False
    """Whether every node answers it by itself: its handler looks at nothing but the call, not even at the `Api`."""

    # What is done on the way to the handler. `decoding.by_token` has the order.

    reader: Callable[[Api, Operation], Reader] | None = None
    """Makes the function that reads a request. None: `decoding.by_token` if a scope is needed, else nothing is read."""
    passes_over_query: bool = False
    read_query: Callable[[dict[str, str]], Any] | None = None
    check_body: Callable[[Any], None] | None = None
    """Raises what is wrong with a body of the right type, as far as that can be seen without the state."""
    key: Key = Key.IGNORED
    check_session: Callable[[Call], None] | None = None
    """Raises unless the session whose secret was used may ask this (S3). Not called for a bearer token."""

    # What is done with the outcome.

    refusal: Envelope = envelope
    is_stream: bool = False
