"""The contract of every journal, as checks.

A check gets a *place*: a function that returns another journal on the same records each time it is called, as another
process would open one. `CHECKS` are for every journal; a journal that several nodes share also passes `SHARED_CHECKS`,
on a `SharedStore`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.contract import history, reads, writes
from tests.contract.shared import SHARED_CHECKS, Fate, SharedCheck, SharedStore
from tests.contract.tools import (
    WALL_MS,
    Check,
    ContractError,
    JournalFactory,
    sample_events,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "ContractError",
    "CHECKS",
    "Check",
    "Fate",
    "JournalFactory",
    "SHARED_CHECKS",
    "SharedCheck",
    "SharedStore",
    "WALL_MS",
    "check_journal",
    "check_shared_journal",
    "run_check",
    "run_shared_check",
    "sample_events",
]

CHECKS: list[Check] = [*writes.CHECKS, *history.CHECKS, *reads.CHECKS]
"""All of them, in the order they are best read."""


def check_journal(make: Callable[[], JournalFactory]) -> list[str]:
    """Run every check, each on a new empty place, and return the names. Raises `ContractError` at the first."""
    for check in CHECKS:
        asyncio.run(run_check(check, make()))
    return [check.name for check in CHECKS]


def check_shared_journal(make: Callable[[], SharedStore]) -> list[str]:
    """Run what only a shared journal promises, each on a new empty place, and return the names. Raises as that one."""
    for check in SHARED_CHECKS:
        asyncio.run(run_shared_check(check, make()))
    return [check.name for check in SHARED_CHECKS]


async def run_check(check: Check, make: JournalFactory) -> None:
    """Run one check. Whatever goes wrong is told together with the promise."""
    try:
        await check.run(make)
    except Exception as error:
        raise ContractError(f"{check.name}: {check.promise} Instead: {error!r}") from error


async def run_shared_check(check: SharedCheck, make: SharedStore) -> None:
    """Run one check of a shared journal. Whatever goes wrong is told together with the promise."""
    try:
        await check.run(make)
    except Exception as error:
        raise ContractError(f"{check.name}: {check.promise} Instead: {error!r}") from error
