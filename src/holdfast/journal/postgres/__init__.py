"""A journal that several nodes share: in a schema of a PostgreSQL that others run. It needs the extra `postgres`.

| module | holds |
|---|---|
| `journal` | the journal: keeps the seam, and puts the parts together |
| `seat` | every write under the seat, and what becomes of one whose answer was lost |
| `taking` | looking at the seat, and taking it |
| `lines`, `addresses` | the two connections, and what is known of the server at the other end |
| `driver` | asyncpg: the only module that knows it. Connecting, one statement at a time, never a cancelled one |
| `passwords` | why the driver knew no password although there is a file that may have it |
| `demands` | what a server must promise us, asked back after connecting |
| `schema`, `statements` | making the tables, and refusing those that we cannot read |
| `knowledge` | what this process knows of the store, over all its tenures: by it a store that went back is found out |
| `sealing` | the authority's key under a secret of the operator's |
| `operating` | what operators ask of a store and do to it |
| `archive…`, `looking…`, `whole…` | what is no longer in the tail |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.extras import how_to_install
from holdfast.journal.base import JournalError

if TYPE_CHECKING:
    from holdfast.journal.postgres.journal import PostgresJournal


def journal_class() -> type[PostgresJournal]:
    """Return the journal's class. Raises `JournalError` if the driver is not installed.

    It is imported here and not above: who keeps its records in a directory needs no driver.
    """
    try:
        from holdfast.journal.postgres.journal import PostgresJournal  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise JournalError("a store in PostgreSQL needs asyncpg", how_to_install("server,postgres")) from error
    return PostgresJournal
