"""What one connection to PostgreSQL makes of what the server says beside its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import asyncpg
import pytest

from holdfast.journal.postgres.connection import LostError, PgConnection, RefusedError

MESSAGE = {"C": "01000", "M": "synchrone Replikation wird nicht mehr erwartet"}


class FakeDriver:
    """A connection of asyncpg's kind, whose server says something before it answers with no rows."""

    def __init__(self, fields: dict[str, str]) -> None:
        self._message = asyncpg.PostgresLogMessage.new({**MESSAGE, **fields})
        self._listeners: list[Callable[[object, object], None]] = []
        self.add_log_listener = self._listeners.append

    async def prepare(self, _sql: str) -> FakeDriver:
        return self

    async def fetch(self) -> Sequence[object]:
        for listener in self._listeners:
            listener(self, self._message)
        return []

    def terminate(self) -> None:
        """Nothing is there to be closed."""


def asked(fields: dict[str, str]) -> Sequence[Any]:
    """Ask such a server."""
    line = PgConnection(cast("asyncpg.Connection", FakeDriver(fields)), {"append": "SELECT"}, "a server")
    return asyncio.run(line.ask("append", seconds=None))


@pytest.mark.parametrize(
    "fields", [{"S": "WARNING"}, {"S": "WARNUNG", "V": "WARNING"}, {"S": "WARNING", "V": "WARNING"}]
)
def test_warning_in_any_language_is_a_lost_answer(fields: dict[str, str]) -> None:
    """A warning makes an answer a lost one, whatever language the server speaks (N-10)."""
    with pytest.raises(LostError, match="warned"):
        asked(fields)


@pytest.mark.parametrize("fields", [{"S": "NOTICE"}, {"S": "HINWEIS", "V": "NOTICE"}])
def test_notice_changes_nothing(fields: dict[str, str]) -> None:
    """What is not a warning is none in another language either."""
    assert asked(fields) == []


class FailingDriver(FakeDriver):
    """One whose connection ends while it is asked, as asyncpg tells it."""

    def __init__(self, error: Exception) -> None:
        super().__init__({"S": "NOTICE"})
        self._error = error

    async def fetch(self) -> Sequence[object]:
        raise self._error


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
        asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"),
        ConnectionResetError("reset"),
    ],
)
def test_connection_that_ends_is_no_refusal(error: Exception) -> None:
    """Nobody refused what was under way when the connection ended, and of asyncpg's insides nothing is said."""
    line = PgConnection(cast("asyncpg.Connection", FailingDriver(error)), {"append": "SELECT"}, "a server")
    with pytest.raises(LostError, match="the connection to a server was lost") as caught:
        asyncio.run(line.ask("append", seconds=None))
    assert not isinstance(caught.value, RefusedError)
    assert "refused" not in str(caught.value) and "state 12" not in str(caught.value)
