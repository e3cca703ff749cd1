"""One connection to PostgreSQL: the only module that knows asyncpg. A statement is answered, refused, or lost.

A statement that was sent is never cancelled. PostgreSQL would stop waiting for its replicas and commit all the same,
and nobody could tell (N-10). So asyncpg's own time limits are not used, for they send a cancel request, and no task of
asyncpg's is ever cancelled. Whoever waits no longer closes the socket, and finds out on another connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING, Any

import asyncpg

from holdfast.journal.base import JournalUnavailableError
from holdfast.journal.postgres.passwords import why_none

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Row = Any
"""The values of one row: it can be unpacked, and asked by number or by name."""

CLOSE_SECONDS = 1.0
SESSION = {
    "synchronous_commit": "on",
    # A statement that the server itself cancels while it waits for a replica is committed all the same (N-10).
    "statement_timeout": "0",
    "lock_timeout": "0",
    # Only makers of the schema have a transaction open between two messages. One that was stopped there must not last.
    "idle_in_transaction_session_timeout": "2000",
    # An append behind a takeover must find no row. Under `repeatable read` it would find an error (N-8).
    "default_transaction_isolation": "read committed",
    # The server lets go of a leader that is gone without a word.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}
"""What every session of ours sets. `demands` asks back what matters."""
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
"""On our side of the socket: asyncpg sets none of it (N-25)."""
_LOST = (
    OSError,
    TimeoutError,
    EOFError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    # No answer of the server, though asyncpg tells it as one: the connection ended.
    asyncpg.PostgresConnectionError,
)
_NOT_LET_IN = (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InterfaceError)
"""A wrong password, or none. The second is what asyncpg says by itself where it was asked for one."""

log = logging.getLogger("holdfast.journal")


class LostError(JournalUnavailableError):
    """A statement was sent, and its answer will never come here: whether it was done, this connection cannot tell."""


class RefusedError(JournalUnavailableError):
    """PostgreSQL answered a statement with an error."""

    def __init__(self, text: str, sqlstate: str) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate
        """Five characters; the first two are the class of the error."""


class CannotConnectError(JournalUnavailableError):
    """There is no connection, so nothing was sent."""


class SilentError(CannotConnectError):
    """There is none, and nobody said why within the time for it: the next try would take as long."""


class Line:
    """One connection. It does one statement at a time."""

    def __init__(self, db: asyncpg.Connection, sql: Mapping[str, str], where: str) -> None:
        self._db = db
        self._sql = sql
        self._prepared: dict[str, Any] = {}
        self._warning = ""
        self.where = where
        """The server's address, for people."""
        db.add_log_listener(self._hear)

    @property
    def is_open(self) -> bool:
        """Whether it can be used, as far as is known here."""
        return not self._db.is_closed()

    @property
    def pid(self) -> int:
        """The number of the server's process at the other end, as it was told when connecting."""
        return int(self._db.get_server_pid())

    async def ask(self, name: str, *values: object, seconds: float | None) -> Sequence[Row]:
        """Run a named statement and return its rows. Raises `LostError` or `RefusedError`.

        `seconds` is how long an answer is waited for; then, or if whoever asks is cancelled, the socket is closed.
        """
        self._warning = ""
        task = asyncio.ensure_future(self._fetch(name, values))
        try:
            await asyncio.wait((task,), timeout=seconds)
        finally:
            if not task.done():
                task.add_done_callback(_look_away)
                self.drop()
        if not task.done():
            raise LostError(f"{name}: {self.where} did not answer within {seconds:g} s")
        try:
            rows = task.result()
        except _LOST as error:
            self.drop()
            raise LostError(f"{name}: the connection to {self.where} was lost: {_words(error)}") from error
        except asyncpg.PostgresError as error:
            # What was prepared may not fit the tables any more.
            self._prepared.pop(name, None)
            raise RefusedError(f"{name}: {self.where} refused it: {error}", error.sqlstate or "") from error
        if self._warning:
            # "canceling wait for synchronous replication": done here, and perhaps on no replica.
            self.drop()
            raise LostError(f"{name}: {self.where} warned: {self._warning}")
        return rows

    async def script(self, name: str) -> None:
        """Run a named script: several statements, in one transaction."""
        try:
            await self._db.execute(self._sql[name])
        except _LOST as error:
            self.drop()
            raise LostError(f"{name}: the connection to {self.where} was lost: {_words(error)}") from error
        except asyncpg.PostgresError as error:
            raise RefusedError(f"{name}: {self.where} refused it: {error}", error.sqlstate or "") from error

    async def _fetch(self, name: str, values: Sequence[object]) -> Sequence[Row]:
        statement = self._prepared.get(name)
        if statement is None:
            statement = self._prepared[name] = await self._db.prepare(self._sql[name])
        rows: Sequence[Row] = await statement.fetch(*values)
        return rows

    def _hear(self, _: object, message: asyncpg.PostgresLogMessage) -> None:
        # The other field is in the language of the server. The English one is there since PostgreSQL 9.6.
        if (message.severity_en or message.severity) == "WARNING":
            self._warning = str(message)
            log.warning("PostgreSQL at %s warns: %s", self.where, message)

    def drop(self) -> None:
        """Close the socket, and send nothing."""
        self._prepared.clear()
        with contextlib.suppress(Exception):
            self._db.terminate()

    async def close(self) -> None:
        """Take leave of the server, if it listens."""
        self._prepared.clear()
        with contextlib.suppress(Exception):
            await self._db.close(timeout=CLOSE_SECONDS)


async def connect(url: str, where: str, sql: Mapping[str, str], *, application: str, seconds: float) -> Line:
    """Connect to one server that takes writes. Raises `CannotConnectError`, whose text never has what the URL has."""
    connecting = asyncio.ensure_future(
        asyncpg.connect(
            url,
            timeout=seconds,
            target_session_attrs="read-write",
            server_settings={"application_name": application[:63], **SESSION},
        )
    )
    try:
        db = await asyncio.shield(connecting)
    except asyncio.CancelledError:
        # asyncpg leaves an error behind that nobody hears if it is cancelled while it connects.
        connecting.add_done_callback(_hang_up)
        raise
    except TimeoutError:
        raise SilentError(f"PostgreSQL at {where} did not answer within {seconds:g} s") from None
    except asyncpg.ClientConfigurationError:
        raise CannotConnectError(f"PostgreSQL at {where} cannot be asked: its URL is not understood") from None
    except asyncpg.TargetServerAttributeNotMatched:
        raise CannotConnectError(f"PostgreSQL at {where} is a standby: it takes no writes") from None
    except (asyncpg.PostgresError, *_LOST) as error:
        why = why_none(url) if isinstance(error, _NOT_LET_IN) else ""
        text = f"PostgreSQL at {where} cannot be asked: {_words(error)}"
        raise CannotConnectError(f"{text}; {why}" if why else text) from error
    _keep_alive(db)
    return Line(db, sql, where)


def _words(error: Exception) -> str:
    """Say what went wrong. What asyncpg says of its own insides helps nobody."""
    if isinstance(error, asyncpg.InternalClientError):
        return "it ended while it was in use"
    if isinstance(error, ConnectionError) and "connection_lost" in str(error):
        return "it was ended before anybody was let in"
    return str(error) or type(error).__name__


def _keep_alive(db: asyncpg.Connection) -> None:
    """Let this machine find out that the server is gone, also while nothing is sent."""
    found = db._transport.get_extra_info("socket")  # noqa: SLF001 - asyncpg offers no other way to it.
    if found is None or found.family == socket.AF_UNIX:
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        if hasattr(socket, option):
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _hang_up(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().terminate()


def _look_away(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()
