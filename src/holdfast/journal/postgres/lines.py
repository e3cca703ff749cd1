"""Connections to the store: which server they are at, and those that read beside the one that writes.

One connection writes. All others are beside it (`Side`), and always at the server of the first (N-2): an old primary
that nobody told of its successor still answers whoever only reads.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from holdfast.journal.base import JournalUnavailableError
from holdfast.journal.postgres import demands
from holdfast.journal.postgres.addresses import addresses
from holdfast.journal.postgres.driver import CannotConnectError, Line, LostError, RefusedError, SilentError, connect
from holdfast.journal.postgres.statements import statements

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from holdfast.journal.postgres.addresses import Address
    from holdfast.journal.postgres.demands import Server
    from holdfast.journal.postgres.driver import Row

CONNECT_SECONDS = 2.0
"""For each server."""
ANSWER_SECONDS = 5.0
"""How long whoever reads waits for an answer."""


class Servers:
    """The servers of a URL. One of them takes writes: the one that did last is tried first.

    One that said nothing at all is tried last from then on. So whoever gives up before all were tried, and tries again,
    gets to each of them, however many say nothing.
    """

    def __init__(self, url: str, schema: str, application: str) -> None:
        self.schema = schema
        self._sql = statements(schema)
        self._addresses = addresses(url)
        self._application = application

    @property
    def seat(self) -> str:
        """The full name of the seat's table."""
        return f"{self.schema}.seat"

    @property
    def where(self) -> str:
        """The server that is tried first, for people."""
        return self._addresses[0].where

    async def connect(self) -> tuple[Line, Server]:
        """Connect to the first server that takes writes and promises enough. Raises `JournalUnavailableError`."""
        errors: list[JournalUnavailableError] = []
        for address in list(self._addresses):
            try:
                line = await connect(
                    address.url, address.where, self._sql, application=self._application, seconds=CONNECT_SECONDS
                )
            except CannotConnectError as error:
                if isinstance(error, SilentError):
                    self._put(address, len(self._addresses))
                errors.append(error)
                continue
            try:
                server = await demands.ask(line, self.seat)
            except JournalUnavailableError as error:
                line.drop()
                errors.append(error)
                continue
            except BaseException:
                line.drop()
                raise
            self._put(address, 0)
            return line, server
        if len(errors) == 1:
            raise errors[0]
        raise CannotConnectError("; ".join(error.problem for error in errors))

    def _put(self, address: Address, place: int) -> None:
        self._addresses.remove(address)
        self._addresses.insert(place, address)


class Side:
    """A connection that does not write under the seat by itself: made when it is needed, and anew after it was lost."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._line: Line | None = None
        self._lock = asyncio.Lock()
        self.must_be: Server | None = None
        """The server that the tenure is at. None: any that takes writes."""
        self.server: Server | None = None
        """The one that it is connected to, or was last."""

    async def rows(self, name: str, *values: object, seconds: float | None = ANSWER_SECONDS) -> Sequence[Row]:
        """Return the rows of a named statement.

        Raises `JournalUnavailableError`: as `RefusedError` if PostgreSQL said no, with why.
        """
        async with self._lock:
            line = await self._connected()
            return await line.ask(name, *values, seconds=seconds)

    async def one(self, name: str, *values: object, seconds: float | None = ANSWER_SECONDS) -> Row | None:
        """Return the first row of a named statement."""
        rows = await self.rows(name, *values, seconds=seconds)
        return rows[0] if rows else None

    @asynccontextmanager
    async def instant(self) -> AsyncIterator[Side]:
        """Let all that is read in the block, on this connection alone, be as of one instant. It locks nothing."""
        await self.rows("begin_instant")
        try:
            yield self
        finally:
            self.drop()

    def another(self) -> Side:
        """Return one more connection to the server of this one: made when it is needed."""
        side = Side(self._servers)
        side.must_be = self.must_be
        return side

    async def alone(self) -> Line:
        """Return the connection itself, connected: for whoever makes the tables, while nobody else asks."""
        async with self._lock:
            return await self._connected()

    async def _connected(self) -> Line:
        line = self._line
        if line is not None and line.is_open and (self.must_be is None or self.must_be is self.server):
            return line
        self.drop()
        line, server = await self._servers.connect()
        if self.must_be is not None:
            if not server.is_same(self.must_be):
                line.drop()
                raise CannotConnectError(f"{line.where} is not the server that this tenure is at")
            server = self.must_be
        self._line, self.server = line, server
        return line

    def drop(self) -> None:
        """Close the socket."""
        if self._line is not None:
            self._line.drop()
            self._line = None

    async def close(self) -> None:
        """Take leave."""
        line, self._line = self._line, None
        if line is not None:
            await line.close()


__all__ = ["CannotConnectError", "Line", "LostError", "RefusedError", "Servers", "Side"]
