"""Connections to PostgreSQL: the only module that knows asyncpg. A statement is answered, refused, or lost.

A sent statement is never cancelled: PostgreSQL would stop waiting for its replicas and commit all the same (N-10). So
asyncpg's time limits, which send a cancel request, are not used, and no task of asyncpg's is cancelled. A caller that
stops waiting closes the socket, and asks on another connection.

After connecting, a server is asked for its guarantees: a pooler may have ignored our settings (N-24). One connection
writes. All others (`PgClient`) go to its server (N-2): an old primary, unaware of its successor, still answers reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, quote, urlunsplit

import asyncpg
import msgspec

from holdfast.config.addresses import ESCAPES, is_torn, split_url
from holdfast.journal.interface import JournalUnavailableError
from holdfast.journal.sql import load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

log = logging.getLogger("holdfast.journal")

SCHEMES = ("postgresql", "postgres")
PORT = "5432"


class Address(NamedTuple):
    url: str  # May contain a password: never shown.
    where: str  # Host and port, for people.


def addresses(url: str) -> list[Address]:
    """Return the servers of a URL, in its order. Raises `ValueError`, without the URL in its text."""
    if is_torn(url):
        raise ValueError(f"the URL of the store cannot be read: {ESCAPES}")
    parts = split_url(url)
    if parts.scheme not in SCHEMES:
        raise ValueError("the URL of the store does not begin with postgresql://")
    user, at, hosts = parts.netloc.rpartition("@")
    fields = parse_qs(parts.query, keep_blank_values=True)
    by_field = [host for value in fields.pop("host", []) for host in value.split(",") if host]
    ports = [port for value in fields.pop("port", []) for port in value.split(",")]
    fields.pop("target_session_attrs", None)
    if by_field and hosts:
        raise ValueError("the URL of the store names hosts twice: before the path, and as host=")
    query = [f"{name}={quote(value)}" for name, values in fields.items() for value in values]
    if hosts:
        return [
            Address(
                urlunsplit((parts.scheme, f"{user}{at}{host}", parts.path, "&".join(query), "")),
                host if ":" in host.rpartition("]")[2] else f"{host}:{PORT}",
            )
            for host in hosts.split(",")
        ]
    found = []
    for number, host in enumerate(by_field or ["localhost"]):
        port = ports[min(number, len(ports) - 1)] if ports else PORT
        all_fields = "&".join([*query, f"host={quote(host, safe='')}", f"port={quote(port)}"])
        url = urlunsplit((parts.scheme, f"{user}{at}", parts.path or "/", all_fields, ""))
        found.append(Address(url, f"{host}:{port}"))
    return found


Row = Any  # The values of one row, by position or name.

CLOSE_SECONDS = 1.0
SESSION = {  # The settings of our sessions. `WANTED` says which are asked back.
    "synchronous_commit": "on",
    # A statement that is cancelled while it waits for a replica is committed all the same (N-10).
    "statement_timeout": "0",
    "lock_timeout": "0",
    # Only the creation of the schema has a transaction open between two messages, which must not last.
    "idle_in_transaction_session_timeout": "2000",
    # An append after a takeover must find no row. Under `repeatable read` it would get an error (N-8).
    "default_transaction_isolation": "read committed",
    # The server closes the connection of a leader that is gone silently.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}  # asyncpg sets none (N-25).
_LOST = (
    OSError,
    TimeoutError,
    EOFError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    # Not an answer of the server, though asyncpg presents it as one.
    asyncpg.PostgresConnectionError,
)
_ERRORS = (*_LOST, asyncpg.PostgresError)


class LostError(JournalUnavailableError):
    """A statement was sent, and its answer was lost: it may or may not have been applied."""


class RefusedError(JournalUnavailableError):
    """PostgreSQL answered a statement with an error."""

    def __init__(self, text: str, sqlstate: str) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate  # Five characters; the first two are the error's class.


class CannotConnectError(JournalUnavailableError):
    """Nothing was sent."""


class SilentError(CannotConnectError):
    """The server did not answer in time: the next try would take as long."""


class PgConnection:
    """One connection, for one statement at a time."""

    def __init__(self, db: asyncpg.Connection, sql: Mapping[str, str], where: str) -> None:
        self._db = db
        self._sql = sql
        self._prepared: dict[str, Any] = {}
        self._warning = ""
        self.where = where
        db.add_log_listener(self._on_log_message)

    @property
    def is_open(self) -> bool:
        return not self._db.is_closed()

    @property
    def pid(self) -> int:
        return int(self._db.get_server_pid())

    async def ask(self, name: str, *values: object, seconds: float | None) -> Sequence[Row]:
        """Run a named statement and return its rows. Raises `LostError` or `RefusedError`.

        After `seconds`, or if the caller is cancelled, the socket is closed.
        """
        self._warning = ""
        task = asyncio.ensure_future(self._fetch(name, values))
        try:
            await asyncio.wait((task,), timeout=seconds)
        finally:
            if not task.done():
                task.add_done_callback(_ignore_error)
                self.drop()
        if not task.done():
            raise LostError(f"{name}: {self.where} did not answer within {seconds:g} s")
        try:
            rows = task.result()
        except _ERRORS as error:
            raise self._error_of(name, error) from error
        if self._warning:
            # "canceling wait for synchronous replication": done here, and perhaps on no replica.
            self.drop()
            raise LostError(f"{name}: {self.where} warned: {self._warning}")
        return rows

    async def script(self, name: str) -> None:
        try:
            await self._db.execute(self._sql[name])
        except _ERRORS as error:
            raise self._error_of(name, error) from error

    def _error_of(self, name: str, error: Exception) -> JournalUnavailableError:
        if isinstance(error, _LOST):
            self.drop()
            return LostError(f"{name}: the connection to {self.where} was lost: {_words(error)}")
        # A prepared statement may not fit the tables any more.
        self._prepared.pop(name, None)
        return RefusedError(f"{name}: {self.where} refused it: {error}", getattr(error, "sqlstate", None) or "")

    async def _fetch(self, name: str, values: Sequence[object]) -> Sequence[Row]:
        statement = self._prepared.get(name)
        if statement is None:
            statement = self._prepared[name] = await self._db.prepare(self._sql[name])
        rows: Sequence[Row] = await statement.fetch(*values)
        return rows

    def _on_log_message(self, _: object, message: asyncpg.PostgresLogMessage) -> None:
        # `severity` is in the language of the server.
        if (message.severity_en or message.severity) == "WARNING":
            self._warning = str(message)
            log.warning("PostgreSQL at %s warns: %s", self.where, message)

    def drop(self) -> None:
        """Close the socket without sending anything."""
        self._prepared.clear()
        with contextlib.suppress(Exception):
            self._db.terminate()

    async def close(self) -> None:
        self._prepared.clear()
        with contextlib.suppress(Exception):
            await self._db.close(timeout=CLOSE_SECONDS)


async def connect(address: Address, sql: Mapping[str, str], *, application: str, seconds: float) -> PgConnection:
    """Connect to one server that takes writes. Raises `CannotConnectError`, without the URL in its text."""
    url, where = address
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
        # asyncpg leaves an unretrieved error behind if it is cancelled while it connects.
        connecting.add_done_callback(_terminate)
        raise
    except TimeoutError:
        raise SilentError(f"PostgreSQL at {where} did not answer within {seconds:g} s") from None
    except asyncpg.ClientConfigurationError:
        raise CannotConnectError(f"PostgreSQL at {where} cannot be asked: its URL is not understood") from None
    except asyncpg.TargetServerAttributeNotMatched:
        raise CannotConnectError(f"PostgreSQL at {where} is a standby: it takes no writes") from None
    except _ERRORS as error:
        raise CannotConnectError(f"PostgreSQL at {where} cannot be asked: {_words(error)}") from error
    _enable_keepalive(db)
    return PgConnection(db, sql, where)


def _words(error: Exception) -> str:
    if isinstance(error, asyncpg.InternalClientError):
        return "it ended while it was in use"
    if isinstance(error, ConnectionError) and "connection_lost" in str(error):
        return "it was ended before anybody was let in"
    return str(error) or type(error).__name__


def _enable_keepalive(db: asyncpg.Connection) -> None:
    found = db._transport.get_extra_info("socket")  # noqa: SLF001 - asyncpg offers no other way
    if found is None or found.family == socket.AF_UNIX:
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        if hasattr(socket, option):
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _terminate(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().terminate()


def _ignore_error(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()


SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def statements(schema: str) -> dict[str, str]:
    """Return the statements for a schema. Raises `ValueError` for a name that could be anything else."""
    if not SCHEMA_NAME.fullmatch(schema):
        raise ValueError(f"{schema!r} is no name for a schema: 1 to 63 of a-z, 0-9 and _, no digit first")
    both = {**load("postgres.sql"), **load("postgres_archive.sql"), **load("postgres_operating.sql")}
    # One script makes all of the archive: its tables, then its functions.
    both["create_archive"] = ";".join(sql for name, sql in both.items() if name.startswith("create_archive"))
    return {name: sql.replace("{s}", schema) for name, sql in both.items()}


ASK_SECONDS = 3.0
SERVER_VERSION_MIN = 130000
DIRECTLY = "Connect to PostgreSQL directly, not through a pooler: it drops what our sessions set"


class ServerIdentity(msgspec.Struct, frozen=True):
    """These identify a store; one of them differs after it was replaced by another (N-22)."""

    system_id: int  # Of the cluster, made by initdb.
    timeline: int  # Rises when a standby is promoted, and after a restore to a point in time.
    database_oid: int
    table_oid: int  # Of the leadership; a restore into the same cluster changes it. 0: there is no leadership yet.


def identity_of(row: Row) -> ServerIdentity:
    return ServerIdentity(row["system_id"], row["timeline"], row["database_oid"], row["table_oid"])


class Server(msgspec.Struct, frozen=True, kw_only=True):
    identity: ServerIdentity
    started: str  # Start time: sessions with the same identity and start time are at one server.
    has_standby: bool  # Whether a commit waits for a synchronous standby.
    is_pooled: bool  # Whether a pooler moves statements between sessions.
    version: int
    settings: dict[str, str]

    def is_same(self, other: Server) -> bool:
        return (self.identity.system_id, self.identity.timeline, self.started) == (
            other.identity.system_id,
            other.identity.timeline,
            other.started,
        )


async def ask_server(connection: PgConnection, table: str) -> Server:
    """Identify a server. Raises `JournalUnavailableError` for one whose guarantees are too weak."""
    rows = await connection.ask("ask_server", table, seconds=ASK_SECONDS)
    pids = {connection.pid, int(rows[0]["pid"])}
    row = dict((await connection.ask("ask_server", table, seconds=ASK_SECONDS))[0])
    settings = {name: str(row[name]) for name in WANTED}
    refuse_if_weak(connection.where, settings, version=int(row["version"]), is_standby=bool(row["is_standby"]))
    is_pooled = len({*pids, int(row["pid"])}) > 1
    if is_pooled:
        log.warning("%s is behind a pooler: nothing is promised. %s", connection.where, DIRECTLY)
    return Server(
        identity=identity_of(row),
        started=row["started"],
        has_standby=bool(row["synchronous_standby_names"]),
        is_pooled=is_pooled,
        version=row["version"],
        settings=settings,
    )


ON_THE_SERVER = "Set it to on in postgresql.conf"
WANTED: dict[str, tuple[frozenset[str], str]] = {  # The allowed values, and what to do otherwise.
    "synchronous_commit": (frozenset({"on", "remote_apply"}), DIRECTLY),
    "fsync": (frozenset({"on"}), ON_THE_SERVER),
    "full_page_writes": (frozenset({"on"}), ON_THE_SERVER),
    "default_transaction_isolation": (frozenset({"read committed"}), DIRECTLY),
    "statement_timeout": (frozenset({"0"}), DIRECTLY),
    "lock_timeout": (frozenset({"0"}), DIRECTLY),
    "idle_in_transaction_session_timeout": (frozenset({"2s"}), DIRECTLY),
}


def refuse_if_weak(where: str, settings: dict[str, str], *, version: int, is_standby: bool) -> None:
    """Raise if the server could lose what it acknowledged."""
    if is_standby:
        raise JournalUnavailableError(f"PostgreSQL at {where} is a standby: it takes no writes")
    if version < SERVER_VERSION_MIN:
        least = SERVER_VERSION_MIN // 10000
        raise JournalUnavailableError(
            f"PostgreSQL at {where} is version {version // 10000}; {least} or newer is needed"
        )
    for name, (wanted, way) in WANTED.items():
        if settings[name] not in wanted:
            raise JournalUnavailableError(
                f"PostgreSQL at {where} has {name} = {settings[name]!r}, and Holdfast needs {min(wanted)!r}", way
            )


CONNECT_SECONDS = 2.0  # For each server.
ANSWER_SECONDS = 5.0  # The default time limit of a read.


class Servers:
    """The servers of a URL, one of which takes writes. The one that was reached last is tried first.

    A silent one is tried last from then on, so a caller that gives up early, and tries again, gets to each of them.
    """

    def __init__(self, url: str, schema: str, application: str) -> None:
        self.schema = schema
        # The leader term's server: each `PgClient` connects to it. None: any that takes writes.
        self.must_be: Server | None = None
        self._sql = statements(schema)
        self._addresses = addresses(url)
        self._application = application

    @property
    def where(self) -> str:
        return self._addresses[0].where

    def move(self, server: Server) -> None:
        """Let every `PgClient` connect to the server of the leader term."""
        if self.must_be is None or not self.must_be.is_same(server):
            self.must_be = server

    async def connect(self) -> tuple[PgConnection, Server]:
        """Connect to the first server that takes writes and is durable. Raises `JournalUnavailableError`."""
        errors: list[JournalUnavailableError] = []
        for address in list(self._addresses):
            try:
                connection = await connect(address, self._sql, application=self._application, seconds=CONNECT_SECONDS)
                try:
                    server = await ask_server(connection, f"{self.schema}.seat")
                except BaseException:
                    connection.drop()
                    raise
            except JournalUnavailableError as error:
                if isinstance(error, SilentError):
                    self._put(address, len(self._addresses))
                errors.append(error)
                continue
            self._put(address, 0)
            return connection, server
        if len(errors) == 1:
            raise errors[0]
        raise CannotConnectError("; ".join(error.problem for error in errors))

    def _put(self, address: Address, index: int) -> None:
        self._addresses.remove(address)
        self._addresses.insert(index, address)


class PgClient:
    """A connection that does not write as the leader: made when it is needed, and again after it was lost."""

    server: Server  # The current one, or the last.

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._connection: PgConnection | None = None
        self._lock = asyncio.Lock()

    async def rows(self, name: str, *values: object, seconds: float | None = ANSWER_SECONDS) -> Sequence[Row]:
        """Run a named statement. Raises `JournalUnavailableError`: as `RefusedError` if PostgreSQL refused it."""
        async with self._lock:
            connection = await self._connected()
            return await connection.ask(name, *values, seconds=seconds)

    async def one(self, name: str, *values: object) -> Row | None:
        rows = await self.rows(name, *values)
        return rows[0] if rows else None

    @asynccontextmanager
    async def instant(self) -> AsyncIterator[PgConnection]:
        """Give the connection in a transaction whose reads see one instant. It locks nothing, and is never replaced."""
        connection = await self.exclusive()
        try:
            await connection.ask("begin_instant", seconds=ANSWER_SECONDS)
            yield connection
        except BaseException:
            self.drop()
            raise
        await connection.ask("commit", seconds=ANSWER_SECONDS)

    async def exclusive(self) -> PgConnection:
        """Return the connection itself, connected, while nothing else uses it."""
        async with self._lock:
            return await self._connected()

    async def _connected(self) -> PgConnection:
        connection, must_be = self._connection, self._servers.must_be
        if connection is not None and connection.is_open and (must_be is None or must_be is self.server):
            return connection
        self.drop()
        connection, server = await self._servers.connect()
        # It may have changed meanwhile.
        must_be = self._servers.must_be
        if must_be is not None:
            if not server.is_same(must_be):
                connection.drop()
                raise CannotConnectError(f"{connection.where} is not the server that this tenure is at")
            server = must_be
        self._connection, self.server = connection, server
        return connection

    def drop(self) -> None:
        if self._connection is not None:
            self._connection.drop()
            self._connection = None

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
