"""How many bytes of large answers are kept for callers that do not take them: bounded for each principal, and for all.

A large body is kept whole until its last piece is taken. One connection keeps one of them, but a user may have
thousands of connections. So each body is counted against whoever asked for it:

    ana       conn 7 ── conn 9 ── conn 12      over USER_BYTES_MAX: conn 7 is broken off, the eldest
    ben       conn 8
    strangers conn 3                           all of them share STRANGERS_BYTES_MAX

If all together have more than `ALL_BYTES_MAX`, the eldest of whoever has most is broken off. Whoever reads is not
concerned: a body that the kernel takes at once is not counted at all. Small answers are bounded for each connection.

One that takes next to nothing of what is written to it is not waited for: `Uptake` tells since when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from holdfast.server.doors.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable

USER_BYTES_MAX = 32 * 2**20
STRANGERS_BYTES_MAX = 16 * 2**20
ALL_BYTES_MAX = 256 * 2**20
TAKEN_BYTES_MIN = 1_024
"""Of what is written to a connection; less than this is too little."""


class Breakable(Protocol):
    """A connection that can be broken off."""

    def abort(self) -> None:
        """Break it off."""


class _Account:
    """What is kept for one principal: the size of each connection's body, eldest first, and their sum."""

    __slots__ = ("bodies", "bytes")

    def __init__(self) -> None:
        self.bodies: dict[Breakable, int] = {}
        self.bytes = 0


class Untaken:
    """Counts the large bodies that are kept, and breaks connections off where there are too many."""

    def __init__(self, principal_of: Callable[[Request], str | None]) -> None:
        self._principal_of = principal_of
        self._accounts: dict[str | None, _Account] = {}
        """By principal; None are strangers."""
        self._owners: dict[Breakable, str | None] = {}
        self.bytes = 0
        """Of all together."""

    def note(self, connection: Breakable, debt: object, rest: memoryview) -> None:
        """Know what is still to be written of a body after as much as is taken was written. Called for each piece."""
        if not rest:
            self.drop(connection)
        elif connection not in self._owners:
            who = self._principal_of(debt) if isinstance(debt, Request) else None
            self._keep(connection, who, memoryview(rest.obj).nbytes)

    def _keep(self, connection: Breakable, who: str | None, size: int) -> None:
        account = self._accounts.setdefault(who, _Account())
        self._owners[connection] = who
        account.bodies[connection] = size
        account.bytes += size
        self.bytes += size
        most = STRANGERS_BYTES_MAX if who is None else USER_BYTES_MAX
        while account.bytes > most:
            self._break_off_eldest(account)
        while self.bytes > ALL_BYTES_MAX:
            # A look at everybody for whom something is kept: only when many users do not read at once.
            self._break_off_eldest(max(self._accounts.values(), key=lambda each: each.bytes))

    def _break_off_eldest(self, account: _Account) -> None:
        eldest = next(iter(account.bodies))
        self.drop(eldest)
        eldest.abort()

    def drop(self, connection: Breakable) -> None:
        """Know that nothing is kept for a connection any more, if something was."""
        if connection not in self._owners:
            return
        who = self._owners.pop(connection)
        account = self._accounts[who]
        size = account.bodies.pop(connection)
        account.bytes -= size
        self.bytes -= size
        if not account.bodies:
            del self._accounts[who]


class Uptake:
    """What was written to one connection, and since when too little of it was taken."""

    __slots__ = ("_since", "_taken_bytes", "written_bytes")

    def __init__(self, now_seconds: int) -> None:
        self.written_bytes = self._taken_bytes = 0
        self._since = now_seconds

    def seconds_without(self, unsent_bytes: int, now_seconds: int) -> int:
        """Return for how long too little was taken of what was written, of which `unsent_bytes` are still here."""
        taken_bytes = self.written_bytes - unsent_bytes
        if unsent_bytes == 0 or taken_bytes - self._taken_bytes >= TAKEN_BYTES_MIN:
            self._taken_bytes, self._since = taken_bytes, now_seconds
        return now_seconds - self._since
