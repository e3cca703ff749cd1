"""The journal that fails on demand does what its script says, and nothing else."""

import asyncio
from functools import partial

import pytest

from holdfast.journal.interface import Journal, JournalUnavailableError, OutcomeUnknownError, Retention
from tests.contract.suite import check_journal
from tests.journal.records import grants
from tests.support.flaky_journal import FlakyJournal
from tests.support.memory_journal import MemoryJournal, Shelf


def around(shelf: Shelf, *, retention: Retention) -> Journal:
    return FlakyJournal(MemoryJournal(retention, shelf))


def test_empty_script_fails_nothing() -> None:
    """A journal around another keeps every promise that the other keeps."""
    assert check_journal(lambda: partial(around, Shelf()))


def test_script_is_followed() -> None:
    """Each append meets the next fate: what failed is not there, what is unknown is as the script says."""

    async def scene() -> None:
        flaky = FlakyJournal(MemoryJournal(), ["ok", "unavailable", "unknown", "unknown_kept"])
        await flaky.open()
        await flaky.append(grants(1, 1))
        with pytest.raises(JournalUnavailableError):
            await flaky.append(grants(2, 2))
        with pytest.raises(OutcomeUnknownError):
            await flaky.append(grants(2, 2))
        with pytest.raises(OutcomeUnknownError):
            await flaky.append(grants(2, 3))
        await flaky.append(grants(4, 4))
        assert list((await flaky.open()).records) == grants(1, 4)
        assert flaky.appends == 5

    asyncio.run(scene())


def test_slow_append_waits_to_be_released() -> None:
    """A slow append is neither done nor failed until the test lets it go on."""

    async def scene() -> None:
        flaky = FlakyJournal(MemoryJournal(), ["slow"])
        await flaky.open()
        append = asyncio.create_task(flaky.append(grants(1, 1)))
        await flaky.is_waiting.wait()
        assert list((await flaky.open()).records) == [] and not append.done()
        flaky.release()
        await append
        assert list((await flaky.open()).records) == grants(1, 1)
        assert not flaky.is_waiting.is_set()

    asyncio.run(scene())


def test_takes_claims_is_that_of_the_inner_journal() -> None:
    """Whether claims are taken is asked and told through."""
    inside = MemoryJournal()
    flaky = FlakyJournal(inside)
    flaky.takes_claims = False
    assert not inside.takes_claims and not flaky.takes_claims and not flaky.health().takes_claims
