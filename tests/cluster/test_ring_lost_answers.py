"""Appends over a way that loses answers, and delivers copies late: each batch is there once, and in order.

What is told to have failed never is there. A journal that only looks, instead of sending the same again, is caught by
this ring (N-7, N-8).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

from holdfast.core.events import Record
from holdfast.journal.interface import JournalError, JournalUnavailableError, OutcomeUnknownError
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.writer import Batch, FencedWriter
from tests.cluster.journals import address_of, journal_at, stored, through
from tests.cluster.proxy import Fate, TcpProxy, at_random
from tests.journal.records import grants
from tests.support import proof
from tests.support.postgres import new_schema, shared_url

APPENDS = proof.count("nodes: appends with lost answers")
SHARE = 0.08
"""Of the pieces that are lost."""
BYTES_MIN = 60
"""Whatever is sent of an append or a confirm is larger; most of what makes a connection is not."""


class Outcome(NamedTuple):
    """What an appender was told."""

    done: list[tuple[int, int]]
    failed: list[list[Record]]
    end: JournalError | None


async def write(journal: PostgresJournal, appends: int, chance: random.Random) -> Outcome:
    """Append, and confirm now and then. A batch that failed is followed by another one with the same numbers."""
    done: list[tuple[int, int]] = []
    failed: list[list[Record]] = []
    seq = 0
    try:
        for number in range(appends):
            # Each is of another size, so that it is told apart from another batch with the same numbers.
            batch = grants(seq + 1, seq + chance.choice([1, 1, 3]), size=100 + number)
            try:
                await journal.append(batch)
            except JournalUnavailableError:
                failed.append(batch)
                continue
            seq = batch[-1].seq
            done.append((batch[0].seq, seq))
            if chance.random() < 0.2:
                await journal.confirm(seq)
    except JournalError as error:
        return Outcome(done, failed, error)
    return Outcome(done, failed, None)


def play(appends: int, seed: int) -> tuple[Outcome, list[str], TcpProxy]:
    """Write through a way that breaks, and judge what is in the store afterwards."""
    chance, schema, url = random.Random(seed), new_schema(), shared_url()

    async def run(proxy: TcpProxy) -> Outcome:
        journal = journal_at(through(url, proxy.port), schema, "writer")
        await journal.open()
        proxy.draw = at_random(random.Random(chance.random()), SHARE, bytes_min=BYTES_MIN)
        outcome = await write(journal, appends, chance)
        proxy.draw = lambda _: Fate.PASS
        await journal.close()
        return outcome

    with TcpProxy(*address_of(url), seed=seed) as proxy:
        outcome = asyncio.run(run(proxy))
    found = stored(url, schema)
    complaints = found.complaints()
    there = [(batch.first_seq, batch.last_seq) for batch in found.tail]
    if there[: len(outcome.done)] != outcome.done:
        complaints.append("what was acknowledged is not what is there")
    if len(there) > len(outcome.done) + isinstance(outcome.end, OutcomeUnknownError):
        complaints.append(f"more is there than was acknowledged: {there[len(outcome.done) :]}")
    bodies = [batch.records for batch in found.tail]
    complaints += [f"record {batch[0].seq} failed, and is there" for batch in outcome.failed if batch in bodies]
    return outcome, complaints, proxy


def test_each_batch_is_there_once(record_property: Callable[[str, object], None]) -> None:
    """I5, I6, I8, N-7: whatever is cut, before, after or delivered late, each batch is there once and in order."""
    seed = random.SystemRandom().getrandbits(32)
    outcome, complaints, proxy = play(APPENDS, seed)
    assert not complaints, f"seed {seed}: {complaints[:5]}"
    assert outcome.end is None and len(outcome.done) == APPENDS, f"seed {seed}: {outcome.end}, {outcome.failed[:1]}"
    lost = sum(proxy.fates[fate] for fate in (Fate.BEFORE, Fate.LATE, Fate.AFTER))
    assert lost > APPENDS * SHARE / 4
    record_property("count: appends with lost answers", APPENDS)
    record_property("count: answers lost on the way to the store", lost)


def test_reading_instead_of_resending_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that believes "not there" after a lost answer is caught by this ring: a late copy comes after it."""

    async def believe(self: FencedWriter, batch: Batch) -> None:
        last_seq = await self._ask(await self._connected(), batch.at_ms)
        if last_seq != batch.last:
            raise JournalUnavailableError("append: it is not there")

    monkeypatch.setattr(FencedWriter, "_resolve", believe)
    for seed in range(20):
        outcome, complaints, _ = play(150, seed)
        if complaints or outcome.end is not None:
            return
    pytest.fail("nobody noticed")
