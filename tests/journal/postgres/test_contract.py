"""The journal in PostgreSQL keeps the promise of all journals, and that of those which several nodes share."""

import asyncio

import pytest

from tests.contract.suite import CHECKS, SHARED_CHECKS, Check, SharedCheck, run_check, run_shared_check
from tests.journal.shared_stores import postgres_store


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_postgres_passes_the_contract(check: Check) -> None:
    """The journal in PostgreSQL keeps every promise that the others keep (I5, I6, I9)."""
    with postgres_store() as store:
        asyncio.run(run_check(check, store))


@pytest.mark.parametrize("check", SHARED_CHECKS, ids=lambda check: check.name)
def test_postgres_passes_the_shared_contract(check: SharedCheck) -> None:
    """The journal in PostgreSQL keeps every promise of a journal that several nodes share (N-1 to N-12, N-21)."""
    with postgres_store() as store:
        asyncio.run(run_shared_check(check, store))
