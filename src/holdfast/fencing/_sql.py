"""A fence in a table of your own database: raised inside your transaction, so that check and write commit together.

Why it is correct under concurrency, using only statements that SQLite, PostgreSQL and MySQL share:

- `UPDATE … WHERE token <= :token` compares, raises and locks the row in one step. A second owner's UPDATE waits for the
  first one's commit and compares again: PostgreSQL re-checks the condition at READ COMMITTED and fails the transaction
  at higher levels, InnoDB reads the newest row, SQLite has one writer.
- A missing row is inserted. Concurrent inserts conflict on the primary key: the second waits, gets an integrity error,
  rolls back to a savepoint (PostgreSQL allows nothing else after an error) and starts over with the UPDATE.
- The SELECT only explains. Tokens never decrease, so a greater one in any snapshot is proof; if it shows neither a
  greater token nor a way forward, the transaction's snapshot is too old, and it is refused.

Only `create` commits.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.resources import files
from typing import Any, Literal, Protocol, cast, get_args

from holdfast.errors import CannotFence
from holdfast.fencing._memory import checked_resource, checked_token, stale

ParamStyle = Literal["qmark", "numeric", "named", "format", "pyformat"]

_NAMED = re.compile(r"^-- name: (\w+)\n(?:--[^\n]*\n)*(.*?)(?=^-- name: |\Z)", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?")
_PARAMETER = re.compile(r":([a-z]+)")
_LIBPQ_IDLE = 0
_ATTEMPTS = 2  # Once more after another transaction inserted the row; rows are never removed, so that is enough.


class Connection(Protocol):
    """What is needed of a DB-API 2.0 connection."""

    def cursor(self) -> Any: ...  # noqa: ANN401 - every driver has a class of its own
    def commit(self) -> object: ...
    def rollback(self) -> object: ...


class SqlFence:
    """One table of fences, for any DB-API 2.0 driver. It holds no connection and may be shared by threads."""

    def __init__(self, table: str = "holdfast_fence", *, paramstyle: ParamStyle | None = None) -> None:
        """Name the table, and the driver's `paramstyle` where it cannot be seen from the connection."""
        if not _TABLE.fullmatch(table):
            raise ValueError(f"not a table's name: {table!r}; use letters, digits and _, after at most one schema")
        if paramstyle is not None and paramstyle not in get_args(ParamStyle):
            raise ValueError(f"not a paramstyle: {paramstyle!r}; PEP 249 knows {', '.join(get_args(ParamStyle))}")
        self.table = table
        self._paramstyle = paramstyle
        text = files("holdfast.fencing").joinpath("fence.sql").read_text(encoding="utf-8")
        self._sql = {name: " ".join(sql.split()).replace("{table}", table) for name, sql in _NAMED.findall(text)}

    def create(self, connection: Connection) -> None:
        """Make the table unless it is there, and commit. A database without `IF NOT EXISTS` needs it made by hand."""
        self._run(connection, "create").close()
        connection.commit()

    def check(self, connection: Connection, resource: str, token: int) -> None:
        """Raise the fence to `token` in the caller's transaction, or raise `StaleToken`.

        No other owner passes this fence until the transaction ends. A refusal ends a transaction that it began itself.
        """
        checked_resource(resource)
        checked_token(token)
        idle = _is_idle(connection)
        if idle is not False and _is_autocommit(connection):
            raise CannotFence(
                f"the connection commits every statement by itself, so nothing ties the write to the fence of "
                f"{resource}: begin a transaction first, or turn autocommit off"
            )
        try:
            self._pass(connection, resource, token)
        except BaseException:
            if idle:
                connection.rollback()  # SQLite would keep the whole file locked for a writer that has been refused.
            raise

    @contextmanager
    def guard(self, connection: Connection, resource: str, token: int) -> Iterator[None]:
        """Do as `check` does, then run the block. It neither commits nor rolls back what the block does."""
        self.check(connection, resource, token)
        yield

    def _pass(self, connection: Connection, resource: str, token: int) -> None:
        for _ in range(_ATTEMPTS):
            cursor = self._run(connection, "pass", resource=resource, token=token)
            rows = cursor.rowcount
            cursor.close()
            if rows not in {0, 1}:
                raise CannotFence(f"the driver does not say how many rows it changed ({rows}): use one that does")
            if rows:
                return
            current = self._read_fence(connection, resource)
            if current is not None and current > token:
                raise stale(resource, token, current)
            if current is None and self._add(connection, resource, token):
                return
        raise CannotFence(
            f"the fence of {resource} changed after this transaction began: roll back and run the transaction again, "
            "with the fence as its first statement"
        )

    def _read_fence(self, connection: Connection, resource: str) -> int | None:
        cursor = self._run(connection, "look", resource=resource)
        row = cursor.fetchone()
        cursor.close()
        if row is None:
            return None
        return int(next(iter(row.values())) if isinstance(row, Mapping) else row[0])

    def _add(self, connection: Connection, resource: str, token: int) -> bool:
        self._run(connection, "mark").close()
        try:
            self._run(connection, "add", resource=resource, token=token).close()
        except Exception as error:
            with suppress(Exception):  # If the rollback fails, the caller needs to see the first error.
                self._run(connection, "go_back").close()
                self._run(connection, "unmark").close()
                # PEP 249 names the class, but not where drivers keep it. Some raise another: then the row tells.
                is_there = any(kind.__name__ == "IntegrityError" for kind in type(error).__mro__)
                if is_there or self._read_fence(connection, resource) is not None:
                    return False
            raise
        self._run(connection, "unmark").close()
        return True

    def _run(self, connection: Connection, statement: str, **values: str | int) -> Any:  # noqa: ANN401 - a cursor
        cursor = connection.cursor()
        try:
            if values:
                cursor.execute(*_bound(self._sql[statement], values, self._paramstyle or _paramstyle_of(connection)))
            else:
                cursor.execute(self._sql[statement])
        except BaseException:
            with suppress(Exception):
                cursor.close()  # The caller needs to see the first error.
            raise
        return cursor


def _bound(sql: str, values: Mapping[str, str | int], style: ParamStyle) -> tuple[str, object]:
    names = _PARAMETER.findall(sql)
    if style in {"named", "pyformat"}:
        return (sql if style == "named" else _PARAMETER.sub(r"%(\1)s", sql)), values
    if style == "numeric":
        names = list(dict.fromkeys(names))
        sql = _PARAMETER.sub(lambda found: f":{names.index(found[1]) + 1}", sql)
    return _PARAMETER.sub("?" if style == "qmark" else "%s", sql), tuple(values[name] for name in names)


def _paramstyle_of(connection: Connection) -> ParamStyle:
    """Look it up in the module that defines the connection's class or a base class of it."""
    for kind in type(connection).__mro__:
        parts = kind.__module__.split(".")
        for length in range(len(parts), 0, -1):
            style = getattr(sys.modules.get(".".join(parts[:length])), "paramstyle", None)
            if style in get_args(ParamStyle):
                return cast("ParamStyle", style)
    raise CannotFence(
        f"{type(connection).__module__} does not say how it writes parameters: pass paramstyle= to SqlFence, "
        f"one of {', '.join(get_args(ParamStyle))}"
    )


def _is_idle(connection: Connection) -> bool | None:
    """Whether no transaction is open; None where the driver does not say."""
    in_transaction = getattr(connection, "in_transaction", None)  # sqlite3, mysql.connector
    if isinstance(in_transaction, bool):
        return not in_transaction
    status = getattr(getattr(connection, "info", None), "transaction_status", None)  # psycopg, psycopg2
    if isinstance(status, int):
        return int(status) == _LIBPQ_IDLE
    return None


def _is_autocommit(connection: Connection) -> bool:
    """Whether a statement would commit by itself, as far as the driver says."""
    autocommit = getattr(connection, "autocommit", None)
    if callable(autocommit):  # In PyMySQL and mysqlclient it is a setter with a separate getter.
        autocommit = getattr(connection, "get_autocommit", bool)()
    if autocommit is True:
        return True
    # sqlite3 in its legacy mode, the default, commits by itself if its isolation_level is None.
    is_sqlite3 = any(kind.__module__.partition(".")[0] == "sqlite3" for kind in type(connection).__mro__)
    return autocommit is not False and getattr(connection, "isolation_level", "") is None and is_sqlite3
