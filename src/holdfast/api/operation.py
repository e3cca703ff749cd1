"""What an operation is: one row of the table."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeAlias

import msgspec

from holdfast.api.context import Envelope, Reply, RequestContext
from holdfast.api.service import ApiService
from holdfast.http.messages import Request, envelope

Handler: TypeAlias = (
    "Callable[[ApiService, RequestContext], Any]"  # A stream's handler returns the stream instead of answering.
)
Reader: TypeAlias = (
    "Callable[[Request, bytes, Reply], RequestContext]"  # Of a request and its path segment; may raise a problem.
)


class Key(Enum):
    IGNORED = "Doing it twice is the same as doing it once."
    ALONE = "A retry is known by its key."
    WITH_CONTENT = "A retry is known by its key, and another request must not use it: its content is compared (C5)."


class Operation(msgspec.Struct, frozen=True):
    method: str
    path: str
    handler: Handler
    summary: str
    scope: str | None = None  # What a bearer token needs for it. None: no bearer token is asked for.
    own_scope: str = ""  # What a claim's secret needs, for that claim's names. Empty: no such secret may ask.
    body: type[Any] | None = None
    body_may_be_empty: bool = False  # Without a body, every field of it is absent.
    replies: dict[int, Any] = {}  # A message, a media type, or None (empty or `null`); several without a tag: a tuple.
    problems: tuple[str, ...] = ()  # Codes beyond those that `dashboard/documents.py` derives from the rest of the row.
    query: dict[str, str] = {}
    headers: dict[str, str] = {}

    in_documents: bool = True  # Part of the API, and so of `/docs` and of the OpenAPI document: pages are not.
    any_host: bool = False  # Answers to any `Host`: a health check may not know the server's name.
    is_local: bool = (
        False  # Every node answers it itself: the handler uses the context alone, not even the `ApiService`.
    )

    # What is done on the way to the handler. `decoding.token_reader` has the order.

    reader: Callable[[ApiService, Operation], Reader] | None = (
        None  # None: `decoding.token_reader` with a scope, else `nothing`.
    )
    ignores_query: bool = False
    read_query: Callable[[dict[str, str]], Any] | None = None
    check_body: Callable[[Any], None] | None = None  # Raises what is wrong without regard to the state.
    key: Key = Key.IGNORED
    check_session: Callable[[RequestContext], None] | None = None  # Raises unless a session's secret may ask this (S3).

    # What is done with the outcome.

    refusal: Envelope = envelope
    is_stream: bool = False
