"""A request as the operations see it, whichever door it came through: bytes, and nothing interpreted yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.ids import new_request_id
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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


class Request:
    """One request: bytes as they came. `request_id` is always ours."""

    __slots__ = (
        "authorization",
        "body",
        "content_type",
        "headers",
        "is_known",
        "is_old",
        "keep_alive",
        "key",
        "method",
        "on_disconnect",
        "on_known",
        "path",
        "peer",
        "query",
        "request_id",
        "rests_on_state",
    )

    def __init__(  # noqa: PLR0917 - made for every request: keywords cost
        self,
        method: bytes,
        path: bytes,
        query: bytes,
        headers: dict[bytes, bytes],
        body: bytes,
        peer: str = "",
    ) -> None:
        """`headers` has lower-case names; only a few are looked at."""
        self.method = method
        self.path = path
        self.query = query
        self.authorization = headers.get(b"authorization")
        self.content_type = headers.get(b"content-type")
        self.key = headers.get(b"idempotency-key")
        self.headers = headers
        self.body = body
        self.peer = peer
        """The address at the other end of the connection, which may be a proxy's; empty if it has none."""
        self.on_disconnect: Callable[[], None] | None = None
        """To be called by the door if the caller disconnects before it is answered; set while it waits in line."""
        self.keep_alive = True
        """Whether the connection goes on behind it. Set by the door, as the next."""
        self.is_old = False
        """Whether it is of HTTP/1.0."""
        self.is_known = False
        """Whether whoever asks was found out and let in."""
        self.on_known: Callable[[str], None] | None = None
        """To be called with the principal of whoever asks; raises if it has too many connections. Set by the door."""
        self.rests_on_state = False
        """Whether the state was looked at: a refusal must then wait until what it rests on is durable."""
        self.request_id = new_request_id()
