"""A request as the operations see it, whichever door it came through: bytes, and nothing interpreted yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from holdfast.engine.ids import new_request_id
from holdfast.server.access.cookies import shown_in
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

_SINGLE = frozenset({b"authorization", b"content-length", b"content-type", b"host", b"idempotency-key"})
"""The fields that we read, or a proxy does. Two could be read in two ways."""


def fold(fields: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return a head's fields by their lower-case names, as both doors read them.

    One that stands several times is a list, unless it may stand only once: then the request is refused.
    """
    folded = dict(fields)
    if len(folded) == len(fields):
        return folded
    folded.clear()
    for name, value in fields:
        if name not in folded:
            folded[name] = value
        elif name in _SINGLE:
            raise Problem("invalid_input", f"The header {name.decode('latin-1')} stands twice: send it once.")
        else:
            folded[name] += b", " + value
    return folded


class Request(msgspec.Struct, eq=False):
    """One request: bytes as they came. `request_id` is always ours. `request_from` makes it of a head's fields.

    A struct, because one is made for each request: it is filled without a step of Python for each attribute. It may be
    in a circle, so gc stays on.
    """

    method: bytes
    path: bytes
    query: bytes
    headers: dict[bytes, bytes]
    """By lower-case names; only a few are looked at."""
    body: bytes
    peer: str
    """The address at the other end of the connection, which may be a proxy's; empty if it has none."""
    host: bytes | None
    authorization: bytes | None
    """What shows who asks: the field of that name, or where there is none the page's cookie (`access.cookies`)."""
    content_type: bytes | None
    key: bytes | None
    """The idempotency key. This and those above are what the head says."""
    request_id: str
    keep_alive: bool = True
    """Whether the connection goes on behind it. Set by the door, as the next."""
    is_old: bool = False
    """Whether it is of HTTP/1.0."""
    is_known: bool = False
    """Whether whoever asks was found out and let in."""
    rests_on_state: bool = False
    """Whether the state was looked at: a refusal must then wait until what it rests on is durable."""
    on_disconnect: Callable[[], None] | None = None
    """To be called by the door if the caller disconnects before it is answered; set while it waits in line."""
    on_lost: Callable[[], None] | None = None
    """To be called by the door if the connection is lost before it is answered, and `on_disconnect` is not set.

    Unlike that one it says nothing of somebody who closes only the sending side: who does that gets an answer.
    """
    on_known: Callable[[str], None] | None = None
    """To be called with the principal of whoever asks; raises if it has too many connections. Set by the door."""
    held_ms: int = 0
    """How long ago another node received it, if it was passed on. It is taken off what a claim waits in line."""
    scheme: str = ""
    """`http` or `https`, as the node that passed it on knows it; empty if it came here."""


def request_from(  # noqa: PLR0917 - as the parts of a request come
    method: bytes, path: bytes, query: bytes, headers: dict[bytes, bytes], body: bytes, peer: str = ""
) -> Request:
    """Return a request with what its head says."""
    said = headers.get
    host, authorization, content_type = said(b"host"), said(b"authorization"), said(b"content-type")
    key = said(b"idempotency-key")
    if authorization is None and b"cookie" in headers:
        authorization = shown_in(headers)
    request_id = new_request_id()
    return Request(method, path, query, headers, body, peer, host, authorization, content_type, key, request_id)
