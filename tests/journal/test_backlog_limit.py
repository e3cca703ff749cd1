"""What waits for the archive is bounded for all together, and for each principal by half of that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from holdfast.core.commands import OpenSession
from holdfast.core.values import Limits
from holdfast.engine.archiver import RETRY_MS_MAX, ArchivePolicy
from holdfast.journal.interface import JournalUnavailableError
from holdfast.journal.sqlite.compactor import LocalCompactor
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.journal.sqlite.tail import LARGE_BYTES
from tests.contract.tools import WALL_MS, grant
from tests.engine.harness import Asked, acquire, release, renew, run, serving, turns
from tests.journal.runner import takes_claims

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from holdfast.core.commands import Acquire
    from holdfast.engine.engine import Engine
    from holdfast.journal.interface import Changes
    from holdfast.journal.sqlite.archive_writer import Commit
    from holdfast.journal.sqlite.compactor import Feed
    from holdfast.testing.clock import ManualClock

BYTES_MAX = 10 * LARGE_BYTES
LARGE = "x" * (LARGE_BYTES + 1)
ROOMY = Limits(metadata_chars_max=len(LARGE))


class Failing(LocalCompactor):
    """An compactor that can write nothing, for as long as it is said."""

    is_failing = True

    async def step(self, commit: Commit, changes: Iterable[Changes], feed: Feed) -> None:
        if self.is_failing:
            raise JournalUnavailableError("archive: it cannot be written")
        await super().step(commit, changes, feed)


def opened(directory: Path, compactor: LocalCompactor) -> SqliteJournal:
    return SqliteJournal(directory, disk_reserve_bytes=0, tail_bytes_max=BYTES_MAX, compactor=compactor)


def large(number: int, principal: str) -> Acquire:
    """A claim whose record is large."""
    claim = acquire(f"{principal}/large/{number}", principal=principal)
    return msgspec.structs.replace(claim, terms=msgspec.structs.replace(claim.terms, metadata=LARGE))


async def flood(engine: Engine, principal: str, most: int) -> int:
    """Claim large until it is refused; return how often it was not."""
    for number in range(most):
        outcome, _ = await engine.ask(large(number, principal))
        if type(outcome).__name__ != "Acquired":
            return number
    return most


def test_principal_has_at_most_half_of_the_backlog(tmp_path: Path) -> None:
    """Who has more than half of `tail_mib_max` to archive is refused new claims, and nobody else is.

    Renewals and releases of all go on. A restart changes nothing of it. It opens by itself once that is archived.
    """

    async def test(clock: ManualClock) -> None:
        compactor = Failing()
        journal = opened(tmp_path, compactor)
        async with serving(
            journal, clock, limits=ROOMY, archive_policy=ArchivePolicy(size_bytes=BYTES_MAX // 2)
        ) as engine:
            await engine.ask(acquire("ana/job", principal="ana"))
            await engine.ask(acquire("ben/job", principal="ben"))
            assert await flood(engine, "ana", 20) == 5
            asked = Asked(engine)
            session = OpenSession(principal="ana", session_id="s-1", ttl_ms=10_000)
            asked.submit("ana claims", acquire("ana/other", principal="ana"))
            asked.submit("ana opens", session)
            asked.submit("ben claims", acquire("ben/other", principal="ben"))
            for who in ("ana", "ben"):
                asked.submit(f"{who} renews", renew(f"{who}/job", principal=who))
                asked.submit(f"{who} releases", release(f"{who}/job", principal=who))
            await turns()
            assert asked.kinds == ["Unavailable"] * 2 + ["Acquired"] + ["Extended", "Released"] * 2
            assert "new claims of ana are refused until that is archived" in asked["ana claims"].text
            assert "It opens again by itself" in asked["ana claims"].text
            health = journal.health()
            assert health.takes_claims and "is refused new claims: 1" in health.text and "ana" not in health.text
            assert await flood(engine, "ben", 20) == 5, "and then both halves are full"
            assert not journal.health().takes_claims and journal.why_no_claims("cho") == journal.health().text
        journal = opened(tmp_path, compactor)
        async with serving(
            journal, clock, limits=ROOMY, archive_policy=ArchivePolicy(size_bytes=BYTES_MAX // 2)
        ) as engine:
            assert journal.why_no_claims("ana") is not None
            compactor.is_failing = False
            await asyncio.sleep(RETRY_MS_MAX / 1000 + 1)
            await turns(100)
            assert takes_claims(journal) and journal.health().text == "ok"
            assert type((await engine.ask(large(99, "ana")))[0]).__name__ == "Acquired"

    run(test)


@pytest.mark.parametrize("is_reopened", [False, True])
def test_parts_are_counted_until_they_are_archived(tmp_path: Path, *, is_reopened: bool) -> None:
    """A record of a batch counts for its own principal, a small batch for nobody, and what is archived no more."""

    def refused(journal: SqliteJournal) -> list[str]:
        return [who for who in ("ana", "ben", "cho") if journal.why_no_claims(who) is not None]

    async def again(journal: SqliteJournal) -> SqliteJournal:
        if is_reopened:
            await journal.close()
            journal = opened(tmp_path, LocalCompactor())
            await journal.open()
        return journal

    async def scene() -> None:
        journal = opened(tmp_path, LocalCompactor())
        await journal.open()
        last = 400
        for seq in range(1, last + 1):
            await journal.append([grant(seq, "small", principal="cho", metadata="x" * 1_000)])
        journal = await again(journal)
        assert BYTES_MAX // 2 < journal.tail_bytes < BYTES_MAX
        assert takes_claims(journal) and refused(journal) == []
        await journal.archive(last, b"head", [], WALL_MS)
        for first in range(last + 1, last + 6, 2):
            both = [grant(first, "a", principal="ana", metadata=LARGE * 2), grant(first + 1, "b", principal="ben")]
            await journal.append(both)
        journal = await again(journal)
        assert not takes_claims(journal) and refused(journal) == ["ana"]
        await journal.archive(last + 2, b"head", [], WALL_MS)
        assert takes_claims(journal) and refused(journal) == []
        await journal.close()

    asyncio.run(scene())
