"""Runs a node that breaks one rule of several nodes on purpose: what a ring cannot catch it does not prove.

Put before the command of a server: `python -P mutants.py NAME python -m holdfast serve …`. What is changed is changed
in that process alone.
"""

from __future__ import annotations

import asyncio
import sys

from holdfast.cluster import watcher
from holdfast.journal.interface import JournalError
from holdfast.journal.postgres.journal import PostgresJournal


def no_barrier() -> None:
    """N-15: answers without records leave at once, and the seat is proven afterwards."""
    confirm = PostgresJournal.confirm
    proving: set[asyncio.Task[None]] = set()

    async def prove(journal: PostgresJournal, now_ms: int) -> None:
        try:
            await confirm(journal, now_ms)
        except JournalError as error:
            print(f"the mutant answered, and then found: {error}", flush=True)

    async def answer_first(self: PostgresJournal, now_ms: int) -> None:
        task = asyncio.create_task(prove(self, now_ms))
        proving.add(task)
        task.add_done_callback(proving.discard)

    PostgresJournal.confirm = answer_first  # type: ignore[method-assign] # That is the mutant.


def trusted_silence() -> None:
    """N-13: the time for which a follower was stopped itself counts as the leader's silence."""
    watcher.COUNTED_MS_MAX = 3_600_000


MUTANTS = {"no-barrier": no_barrier, "believed-silence": trusted_silence}


def wrapper(mutant: str) -> list[str]:
    """What to put before a server's command."""
    assert mutant in MUTANTS, mutant
    return [sys.executable, "-P", __file__, mutant]


if __name__ == "__main__":
    MUTANTS[sys.argv[1]]()
    from holdfast.cli.main import main

    sys.argv = ["holdfast", *sys.argv[sys.argv.index("serve") :]]
    main()
