"""Where the agents write their results: a SQLite file that refuses whoever has lost its job.

Every write has the fencing token of the claim it was made under. The fence lets a token pass if no greater one was seen
for the job. All that passed is kept, so that the proof can look for what should not have.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from holdfast.fencing import SqlFence

FENCE = SqlFence()


@dataclass(frozen=True)
class Write:
    """One result that was taken."""

    job: str
    token: int
    agent: str
    result: str


class Ledger:
    """The file. Each call opens it anew, as agents on several machines would a database."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self) -> None:
        with closing(sqlite3.connect(self.path)) as connection:
            FENCE.create(connection)
            with connection:
                connection.execute("CREATE TABLE result (job TEXT, token INTEGER, agent TEXT, result TEXT)")

    def write(self, write: Write) -> None:
        """Keep a result; `StaleToken` if somebody with a later claim has written."""
        with (
            closing(sqlite3.connect(self.path)) as connection,
            connection,
            FENCE.guard(connection, write.job, write.token),
        ):
            row = (write.job, write.token, write.agent, write.result)
            connection.execute("INSERT INTO result VALUES (?, ?, ?, ?)", row)

    def read(self) -> list[Write]:
        with closing(sqlite3.connect(self.path)) as connection:
            return [Write(*row) for row in connection.execute("SELECT * FROM result ORDER BY rowid")]
