"""The named statements of the store, with the name of its schema put in: the one thing that is built."""

from __future__ import annotations

import re

from holdfast.journal.sql import load

SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def statements(schema: str) -> dict[str, str]:
    """Return the statements for a schema. Raises `ValueError` for a name that could be anything else."""
    if not SCHEMA_NAME.fullmatch(schema):
        raise ValueError(f"{schema!r} is no name for a schema: 1 to 63 of a-z, 0-9 and _, no digit first")
    both = {**load("postgres.sql"), **load("postgres_archive.sql"), **load("postgres_operating.sql")}
    # One script makes all of the archive: its tables, then its functions.
    both["create_archive"] = ";".join(sql for name, sql in both.items() if name.startswith("create_archive"))
    return {name: sql.replace("{s}", schema) for name, sql in both.items()}
