"""What is pruned in PostgreSQL is what a journal in memory prunes, and who held what stays as exact."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from holdfast.core.events import (
    Ended,
    Event,
    Granted,
    GrantedMany,
    Record,
    Renewed,
    SessionEnded,
    TokenEnded,
    Transferred,
)
from holdfast.journal.interface import Journal, Retention
from tests.contract.tools import WALL_MS, archived, followed, grant, held_pages, pages
from tests.journal.postgres.archive_store import SchemaStore, play
from tests.support import proof
from tests.support.memory_journal import MemoryJournal

HOUR_MS = 3_600_000
RETENTIONS = {
    "records": Retention(records_max=25),
    "bytes": Retention(bytes_max=4_000),
    "time": Retention(wall_ms=HOUR_MS),
    "all of them": Retention(records_max=40, bytes_max=5_000, wall_ms=2 * HOUR_MS),
    "none at all": Retention(records_max=0),
}


class Jobs:
    """Draws records that fit each other: who holds what, by whom, and a wall clock that is set back now and then."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._held: dict[str, str] = {}
        self._names = [f"job/{number}" for number in range(9)]
        self.wall_ms = WALL_MS
        self.seq = 0

    def batch(self) -> list[Record]:
        """Draw some records."""
        return [self._record() for _ in range(self._chance.randint(1, 12))]

    def _record(self) -> Record:
        self.seq += 1
        self.wall_ms += self._chance.choice([0, 1_000, 60_000, 60_000, -90_000])
        return Record(self.seq, self.seq, self.wall_ms, self._event())

    def _event(self) -> Event:
        free = [name for name in self._names if name not in self._held]
        taken = list(self._held)
        draws: list[Callable[[], Event]] = []
        if free:
            draws += [lambda: self._grant(self._chance.choice(free))] * 3
            draws.append(lambda: GrantedMany(tuple(map(self._grant, self._some(free)))))
        if taken:
            draws += [lambda: self._end(self._chance.choice(taken))] * 3
            draws.append(lambda: Renewed(self._chance.choice(taken), "lease", 1, 1))
            draws.append(lambda: self._transfer(self._chance.choice(taken)))
            draws.append(lambda: TokenEnded("eva", "op", (self._end_session(self._some(taken)),)))
            draws.append(lambda: self._end_session(self._some(taken)))
        return self._chance.choice(draws)()

    def _some(self, names: list[str]) -> list[str]:
        return self._chance.sample(names, self._chance.randint(1, min(3, len(names))))

    def _grant(self, name: str) -> Granted:
        self._held[name] = self._chance.choice(["ana", "ben", "eva"])
        metadata = "m" * self._chance.choice([0, 0, 300])
        event = grant(self.seq, name, principal=self._held[name], metadata=metadata).event
        assert isinstance(event, Granted)
        return event

    def _end(self, name: str) -> Ended:
        return Ended(name, f"{name} at {self.seq}", self.seq, "released", True, principal=self._held.pop(name))

    def _transfer(self, name: str) -> Transferred:
        return Transferred(name, "before", self._grant(name).lease, "op")

    def _end_session(self, names: list[str]) -> SessionEnded:
        return SessionEnded(f"s-{self.seq}", "deleted", tuple(map(self._end, names)), principal="ana")


async def content_of(journal: Journal, last_seq: int) -> dict[str, object]:
    """Return all that a journal tells of what was."""
    begins = journal.history_begins_after
    return {
        "begins after": begins,
        "history": await pages(journal, 7),
        "followed": await followed(journal, 7),
        "names": {f"job/{number}": await pages(journal, 7, name=f"job/{number}") for number in range(9)},
        "held": {seq: await held_pages(journal, seq, 4) for seq in range(begins, last_seq + 1, 3)},
    }


@pytest.mark.parametrize("retained", RETENTIONS)
def test_pruning_matches_the_memory_journal(retained: str) -> None:
    """Of every history the same is left as in memory, and who held what is told alike: by number, size and time."""
    retention, jobs = RETENTIONS[retained], Jobs(7)

    async def scene(store: SchemaStore) -> None:
        journal, model = store.journal(retention=retention), MemoryJournal(retention)
        await journal.open()
        await model.open()
        for number in range(proof.count("nodes: steps of the archive that prune")):
            batch = jobs.batch()
            for each in (journal, model):
                await each.append(batch)
                if number % 3 != 1:
                    await archived(each, jobs.seq, jobs.wall_ms)
            assert await content_of(journal, jobs.seq) == await content_of(model, jobs.seq)
            for wall_ms in range(WALL_MS, jobs.wall_ms, HOUR_MS // 3):
                assert await journal.last_by(wall_ms) == await model.last_by(wall_ms)
        await journal.close()
        left = await store.rows("history", "share", "stretch", "entry", "segment", "living", "grant_kept")
        check_sums(left)

    play(scene)


def check_sums(rows: dict[str, list[tuple[object, ...]]]) -> None:
    """What is kept beside the history fits it, and nothing is kept that nothing needs."""
    sums: dict[object, list[int]] = {}
    for _, _, principal, weight, _ in rows["history"]:
        records, size_bytes = sums.get(principal, [0, 0])
        sums[principal] = [records + 1, size_bytes + int(str(weight))]
    assert {who: [records, size_bytes] for who, records, size_bytes in rows["share"]} == sums
    seqs = {row[0] for row in rows["history"]}
    retained = {row[0] for row in rows["grant_kept"]}
    assert not seqs & retained
    entries = {row[2] for row in rows["entry"]}
    assert entries <= seqs | retained
    assert retained <= entries
    assert {row[0] for row in rows["segment"]} >= {row[0] for row in rows["entry"]}
    living = {(row[0], row[1]) for row in rows["living"]}
    assert living == {(name, seq) for _, name, seq, until, _ in rows["entry"] if until == 2**62}
