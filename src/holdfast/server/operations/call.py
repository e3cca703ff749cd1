"""A call: one request after all of it was read, and the way to answer it. Knows nothing of rows and handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from holdfast.server.access.auth import Caller
from holdfast.server.doors.request import Request
from holdfast.server.render import Answered
from holdfast.wire.problems import Problem

Reply: TypeAlias = Callable[[int, bytes, tuple[tuple[bytes, bytes], ...]], None]
Envelope: TypeAlias = Callable[[Problem, Request], Answered]
"""Puts a problem into a reply."""


class Call(msgspec.Struct):
    """One request after all of it was read, on its way through a handler. It may be in a circle, so gc stays on."""

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


NOBODY = Caller("", frozenset())
"""The caller of an operation that does not ask who it is."""
