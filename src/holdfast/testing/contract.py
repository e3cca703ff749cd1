"""What every journal promises, as checks that anyone can run on theirs. Needs no test framework.

A check gets a *place*: a function that gives another journal on the same records each time it is called, as another
process would have one. So a journal of yours is checked by

    check_journal(lambda: partial(MyJournal, new_empty_directory()))

where `MyJournal(directory, keeping=…)` makes a journal. With pytest, let each of `CHECKS` be a case of its own.

A journal that several nodes share keeps those promises and some more: `SHARED_CHECKS`, on a `SharedPlace`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.testing import _contract_history, _contract_looking, _contract_writing
from holdfast.testing._contract_shared import SHARED_CHECKS, Fate, SharedCheck, SharedPlace
from holdfast.testing._contract_tools import (
    WALL_MS,
    BrokenPromiseError,
    Check,
    JournalPlace,
    sample_events,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "BrokenPromiseError",
    "CHECKS",
    "Check",
    "Fate",
    "JournalPlace",
    "Place",
    "SHARED_CHECKS",
    "SharedCheck",
    "SharedPlace",
    "WALL_MS",
    "check_journal",
    "check_shared_journal",
    "run_check",
    "run_shared_check",
    "sample_events",
]

CHECKS: list[Check] = [*_contract_writing.CHECKS, *_contract_history.CHECKS, *_contract_looking.CHECKS]
"""All of them, in the order they are best read."""
Place = JournalPlace
"""Its name in 0.1.0."""


def check_journal(make: Callable[[], JournalPlace]) -> list[str]:
    """Run every check, each on a new empty place, and return the names. Raises `BrokenPromiseError` at the first."""
    for check in CHECKS:
        asyncio.run(run_check(check, make()))
    return [check.name for check in CHECKS]


def check_shared_journal(make: Callable[[], SharedPlace]) -> list[str]:
    """Run what only a shared journal promises, each on a new empty place, and return the names. Raises as that one."""
    for check in SHARED_CHECKS:
        asyncio.run(run_shared_check(check, make()))
    return [check.name for check in SHARED_CHECKS]


async def run_check(check: Check, place: JournalPlace) -> None:
    """Run one check. Whatever goes wrong is told together with the promise."""
    try:
        await check.run(place)
    except Exception as error:
        raise BrokenPromiseError(f"{check.name}: {check.promise} Instead: {error!r}") from error


async def run_shared_check(check: SharedCheck, place: SharedPlace) -> None:
    """Run one check of a shared journal. Whatever goes wrong is told together with the promise."""
    try:
        await check.run(place)
    except Exception as error:
        raise BrokenPromiseError(f"{check.name}: {check.promise} Instead: {error!r}") from error
