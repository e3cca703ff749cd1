"""A store with a synchronous standby that went away: what no replica has is never acknowledged (N-9, N-10).

PostgreSQL commits a statement whose wait for its replica is cancelled, by whomever, and answers it as if all was well,
with a warning beside it. So we cancel nothing, a session with a time limit of the server's is refused, and a warning
counts as a lost answer. A journal that does not hear the warning is caught here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from holdfast.journal.interface import JournalError, JournalUnavailableError, OutcomeUnknownError
from holdfast.journal.postgres import connection
from holdfast.journal.postgres.connection import PgConnection
from tests.cluster.journals import journal_at
from tests.journal.records import grants
from tests.support.checks import wait_until
from tests.support.postgres import Postgres, new_schema, running, shared_url, standby_of

CANCEL = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Postgres, Postgres]]:
    """A server, and a standby that each commit waits for."""
    with running("primary") as primary, standby_of(primary, "replica") as standby:
        primary.configure(synchronous_standby_names="'replica'")
        primary.reload()
        yield primary, standby


async def write_without_replica(primary: Postgres, standby: Postgres, *, cancels: bool) -> JournalError | None:
    """Write one batch with the standby there, and one without it. None: the second one was acknowledged."""
    wait_until(lambda: primary.sql("SELECT sync_state FROM pg_stat_replication") == "sync")
    journal = journal_at(primary.url, new_schema(), "writer", append_ms=700, resolve_ms=1_000)
    await journal.open()
    await journal.append(grants(1, 2))
    standby.stop("immediate")
    try:
        writing = asyncio.ensure_future(journal.append(grants(3, 4)))
        if cancels:
            await asyncio.to_thread(wait_until, lambda: primary.sql(CANCEL) != "0", every_seconds=0.02)
        await writing
    except JournalError as error:
        return error
    finally:
        # Whatever it still has on its way waits until the standby is back.
        standby.start()
        await journal.close()
    return None


@pytest.mark.parametrize("cancels", [False, True])
def test_append_waits_for_its_replica(pair: tuple[Postgres, Postgres], cancels: bool) -> None:
    """I5, N-9, N-10: without its synchronous standby a batch is not acknowledged, also if its wait is cancelled."""
    error = asyncio.run(write_without_replica(*pair, cancels=cancels))
    assert isinstance(error, OutcomeUnknownError), error


def test_ignored_warning_is_caught(pair: tuple[Postgres, Postgres], monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that passes over the warning of a cancelled wait is caught: it acknowledges what no replica has."""
    monkeypatch.setattr(PgConnection, "_on_log_message", lambda *_: None)
    assert asyncio.run(write_without_replica(*pair, cancels=True)) is None


def test_time_limit_of_the_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """N-10, N-24: a session with a `statement_timeout` is refused when it is asked back, before anything is written."""
    monkeypatch.setitem(connection.SESSION, "statement_timeout", "300")
    journal = journal_at(shared_url(), new_schema(), "writer")
    with pytest.raises(JournalUnavailableError, match="statement_timeout"):
        asyncio.run(journal.open())
