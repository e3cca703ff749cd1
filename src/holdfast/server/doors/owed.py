"""What a connection owes, in the order in which it was asked for, and how much may wait there.

      an answer      a complete request, to be handed to the routes
      an exchange    a request that is answered in pieces, by the ASGI door: a stream, a mounted application
      a word         `100 Continue`, as it is written
      a refusal      the last word on this connection

What waits is kept, heads and bodies, so nothing more is read once `OWED_MAX` wait or `AHEAD_BYTES_MAX` were read for
them. It is read on when all of it is answered. The body of an exchange is not counted: it has a bound of its own.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

import msgspec

from holdfast.server.doors.exchange import Exchange
from holdfast.server.doors.request import Request
from holdfast.wire.problems import Problem

OWED_MAX = 8
AHEAD_BYTES_MAX = 8_192


class Refusal(msgspec.Struct, frozen=True):
    """The last word on a connection, and the request that it is about."""

    problem: Problem
    request: Request


Debt: TypeAlias = Request | Exchange | Refusal | bytes


class Owed(deque[Debt]):
    """The queue of one connection: what waits behind `current`."""

    __slots__ = ("_ahead_bytes", "current")

    def __init__(self) -> None:
        super().__init__()
        self._ahead_bytes = 0
        self.current: Request | Exchange | None = None
        """What is being answered."""

    def open_exchange(self) -> Exchange | None:
        """Return the exchange of whose body more may still come."""
        last = self[-1] if self else self.current
        return last if isinstance(last, Exchange) and not last.body_is_complete else None

    def has_room(self) -> bool:
        """Tell whether more may be read: it would be kept until it is its turn."""
        if self.current is None and not self:
            self._ahead_bytes = 0
        exchange = self.open_exchange()
        if exchange is not None:
            return exchange.has_room()
        return len(self) < OWED_MAX and self._ahead_bytes < AHEAD_BYTES_MAX

    def is_unanswered(self) -> bool:
        """Tell whether an answer of our own routes is awaited."""
        return isinstance(self.current, Request)

    def count_read(self, size: int) -> None:
        """Count what is read next, if it may have to be kept."""
        if self.open_exchange() is None:
            self._ahead_bytes += size

    def forget(self) -> None:
        """Forget what was not begun, and tell what was begun that nobody waits for it. What was decided stays so."""
        current, self.current = self.current, None
        debts = list(self)
        self.clear()
        for debt in debts:
            if isinstance(debt, Exchange):
                debt.disconnect()
            if not isinstance(debt, bytes):
                tell_lost(debt if isinstance(debt, Request) else debt.request)
        if isinstance(current, Exchange):
            current.disconnect()
        elif current is not None:
            tell_lost(current)


def tell_lost(request: Request) -> None:
    """Tell whoever must know it that nobody waits for an answer."""
    tell = request.on_disconnect or request.on_lost
    if tell is not None:
        tell()
