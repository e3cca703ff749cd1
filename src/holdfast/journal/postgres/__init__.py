"""A journal that several nodes share: in a schema of a PostgreSQL that others run. It needs the extra `postgres`.

| module | holds |
|---|---|
| `journal` | the journal: keeps the seam, and puts the parts together |
| `connection` | asyncpg, which only this module knows; which server it is, and what it must promise |
| `leadership` | the tables; looking at the seat, and taking it; a store that went back; the sealed key |
| `writer` | every write under the seat, and what becomes of one whose answer was lost |
| `archive` | what stands for the records that are gone from the tail: its steps, pruning, reading all of it |
| `history` | looks back over tail and archive; a snapshot of both |
| `admin` | what operators ask of a store and do to it; filling an empty one |
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
