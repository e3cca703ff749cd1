"""Names that no other run uses, and a raw request with the name left open: what wrk and our own generator share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

NAME_PREFIX_CHARS = 8
NAME_CHARS = NAME_PREFIX_CHARS + 12

try:
    import uvloop

    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
except ImportError:
    new_loop = None


@dataclass(frozen=True)
class Names:
    """Where the names of one run start. A run owns its prefix, so two runs never meet in a name."""

    prefix: str
    user_first: int = 0
    leases_per_user: int = 100

    def __post_init__(self) -> None:
        if len(self.prefix) != NAME_PREFIX_CHARS:
            raise ValueError(f"the prefix {self.prefix!r} must have {NAME_PREFIX_CHARS} characters")

    def name(self, number: int) -> str:
        return f"{self.prefix}{number:012d}"

    def user(self, number: int) -> str:
        return f"{self.user_first + number // self.leases_per_user:06d}"


@dataclass(frozen=True)
class Target:
    """One HTTP system: where it listens, the raw acquire, and the text that only a grant contains."""

    port: int
    template: str
    marker: str


def raw_post(port: int, path: str, body: str, headers: dict[str, str]) -> str:
    """A raw POST with `{name}` left open. Names have one length, so its Content-Length never changes."""
    length = len(body.replace("{name}", "x" * NAME_CHARS).encode())
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        *(f"{key}: {value}" for key, value in headers.items()),
        "Content-Type: application/json",
        f"Content-Length: {length}",
    ]
    return "\r\n".join(lines) + "\r\n\r\n" + body
