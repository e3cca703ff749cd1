"""Making the tables, and reading the seat. The tables are made once, in one transaction, by who first finds none (N-6).

Nothing else changes them: statements that change tables lock everybody out, also with "if not exists".
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from holdfast.journal.base import JournalDamagedError, JournalTooNewError, Seat
from holdfast.journal.codec import FORMAT
from holdfast.journal.postgres.driver import RefusedError
from holdfast.journal.postgres.sealing import seal

if TYPE_CHECKING:
    from holdfast.journal.postgres.demands import Marks
    from holdfast.journal.postgres.driver import Line, Row
    from holdfast.journal.postgres.lines import Side

SCHEMA_VERSION = 1
"""Of the tables. Another number: they look otherwise."""
NOT_THERE = frozenset({"42P01", "3F000"})
"""What PostgreSQL says if the table, or its schema, is not there."""
CREATE_SECONDS = 30.0
UPGRADE = "Start that version"


class Fresh(msgspec.Struct, frozen=True):
    """What a new authority is made of. Both are drawn by whoever makes it."""

    authority: str
    key: bytes
    wall_ms: int


def is_missing(error: RefusedError) -> bool:
    """Tell whether a statement was refused because there are no tables."""
    return error.sqlstate in NOT_THERE


async def create(side: Side, schema: str, fresh: Fresh, secret: bytes | None, marks: Marks) -> None:
    """Make schema, tables, seat, authority and key in one transaction; nothing if another was first."""
    line = await side.alone()
    try:
        async with asyncio.timeout(CREATE_SECONDS):
            await _create(line, schema, fresh, secret, marks)
    except BaseException:
        # It ends the transaction: nothing of it happened, or all of it.
        side.drop()
        raise


async def _create(line: Line, schema: str, fresh: Fresh, secret: bytes | None, marks: Marks) -> None:
    async def ask(name: str, *values: object) -> list[Row]:
        return list(await line.ask(name, *values, seconds=None))

    await ask("begin")
    await ask("lock_creation")
    if not (await ask("has_seat", schema))[0][0]:
        if not (await ask("has_schema", schema))[0][0]:
            await ask("create_schema")
        await line.script("create")
        await line.script("create_archive")
        await ask("write_authority", fresh.authority, seal(fresh.key, secret), fresh.wall_ms, SCHEMA_VERSION)
        places = (marks.system_id, marks.timeline, marks.database_oid, f"{schema}.seat")
        await ask("write_seat", fresh.authority, FORMAT, *places)
    await ask("commit")


def refuse_unless_readable(where: str, row: Row | None) -> Row:
    """Return what `read_seat` found. Raises if it is not whole, or not for this version."""
    if row is None:
        raise JournalDamagedError(f"{where}: there are tables, and no seat or no authority in them")
    version = row["schema_version"]
    if version != SCHEMA_VERSION:
        raise JournalTooNewError(
            f"{where} has tables of version {version}, and this version of Holdfast knows {SCHEMA_VERSION}", UPGRADE
        )
    if row["made_as"] != row["authority"]:
        raise JournalDamagedError(f"{where}: the seat is of another authority than the key")
    if row["format"] > FORMAT:
        raise JournalTooNewError(
            f"{where} has records of format {row['format']}, and this version of Holdfast reads up to {FORMAT}", UPGRADE
        )
    return row


def seat_of(row: Row, *, is_behind: bool = False) -> Seat:
    """Make the seat of what `read_seat` found."""
    return Seat(
        authority=row["authority"],
        epoch=row["epoch"],
        tenure=row["tenure"],
        beat=row["beat"],
        is_held=row["held"],
        node=row["node"],
        process=row["process"],
        url=row["url"],
        last_seq=row["last_seq"],
        now_ms=row["now_ms"],
        since_wall_ms=row["since_wall_ms"],
        format=row["format"],
        version=row["version"],
        jumps=row["jumps"],
        wants_jump=row["wants_jump"],
        is_behind=is_behind,
    )
