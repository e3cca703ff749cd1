"""A journal that several nodes share: the one in memory keeps the promise, and broken ones are found out."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import pytest

from holdfast.core.events import Record
from holdfast.journal.codec import encode_batch
from holdfast.journal.interface import Changes, JournalUnavailableError, OutcomeUnknownError, Recovered, Retention
from tests.contract.suite import (
    CHECKS,
    SHARED_CHECKS,
    Check,
    ContractError,
    Fate,
    SharedCheck,
    check_shared_journal,
    run_check,
    run_shared_check,
)
from tests.journal.shared_stores import MemoryStore
from tests.support.memory_journal import MemoryJournal, Shelf
from tests.support.shared_journal import SharedMemoryJournal

LATE_SECONDS = 0.02


class OverALossyNetwork(SharedMemoryJournal):
    """Its answers can be lost. What is not there is sent again, under the number that it must have."""

    fate: Fate | None = None
    on_their_way = 0

    async def append(self, batch: Sequence[Record]) -> None:
        fate, self.fate = self.fate, None
        if fate == "late":
            self.send_late(batch)
        if fate == "after":
            await super().append(batch)
        if fate is None or not self.is_there(batch):
            await super().append(batch)

    def is_there(self, batch: Sequence[Record]) -> bool:
        """The question, after an answer was lost."""
        self._require_open("append")
        return self._shared.last_seq == batch[-1].seq

    def send_late(self, batch: Sequence[Record]) -> None:
        self.on_their_way += 1
        asyncio.get_running_loop().call_later(LATE_SECONDS, self._arrive, list(batch))

    def _arrive(self, batch: Sequence[Record]) -> None:
        self.on_their_way -= 1
        self.arrive(batch)

    def arrive(self, batch: Sequence[Record]) -> None:
        """A late copy comes to the shelf, which judges it as any other."""
        if self._is_ours() and self._shared.last_seq == batch[0].seq - 1:
            self._shared.batches.append((batch[-1].seq, encode_batch(batch)))


class LossyStore(MemoryStore):
    """Loses the answers of whichever journal appends next."""

    def __init__(self, kind: Callable[..., OverALossyNetwork]) -> None:
        super().__init__(kind)
        self._made: list[OverALossyNetwork] = []

    def __call__(self, *, retention: Retention) -> SharedMemoryJournal:
        made = super().__call__(retention=retention)
        assert isinstance(made, OverALossyNetwork)
        self._made.append(made)
        return made

    def lose_answer(self, fate: Fate) -> None:
        for each in self._made:
            each.fate = fate

    async def deliver_all(self) -> None:
        await asyncio.sleep(2 * LATE_SECONDS)
        assert not any(each.on_their_way for each in self._made)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_shared_memory_passes_the_contract(check: Check) -> None:
    """The journal in memory that several nodes share keeps what every journal promises (I5, I6, I9)."""
    asyncio.run(run_check(check, MemoryStore()))


@pytest.mark.parametrize("check", SHARED_CHECKS, ids=lambda check: check.name)
def test_shared_memory_passes_the_shared_contract(check: SharedCheck) -> None:
    """The journal in memory that several nodes share keeps what only those promise (N-1 to N-12, N-21)."""
    asyncio.run(run_shared_check(check, MemoryStore()))


def test_lossy_network_is_survived() -> None:
    """A journal that sends the same batch again keeps every promise over a way that loses answers (N-7)."""
    names = check_shared_journal(lambda: LossyStore(OverALossyNetwork))
    assert names == [check.name for check in SHARED_CHECKS] and len(set(names)) == len(names) >= 12
    assert len({check.promise for check in SHARED_CHECKS}) == len(SHARED_CHECKS)


class HasNoFence(SharedMemoryJournal):
    def _is_ours(self) -> bool:
        return self._epoch is not None


class DeposesTheLiving(SharedMemoryJournal):
    async def open(self) -> Recovered:
        if self._seen is not None:
            self._seen = self._shared.leadership
        return await super().open()


class AcquiresWithoutDeposing(SharedMemoryJournal):
    async def open(self) -> Recovered:
        if self._epoch is None:
            self._seen = self._shared.leadership
        return await super().open()


class ForgetsTheTime(SharedMemoryJournal):
    async def confirm(self, now_ms: int) -> None:
        await super().confirm(0)


class NeverSendsHeartbeats(SharedMemoryJournal):
    async def confirm(self, now_ms: int) -> None:
        heartbeat = self._shared.leadership.heartbeat
        await super().confirm(now_ms)
        self._shared.change_leadership(heartbeat=heartbeat)


class SeesNoLoss(SharedMemoryJournal):
    def _know(self, operation: str) -> None:
        pass


class HasItsOwnKey(SharedMemoryJournal):
    async def key(self) -> bytes:
        return self._term_id.encode()


class ArchivesToTheEnd(SharedMemoryJournal):
    """It asks for the leadership when it begins, and not again when what it brings begins to count."""

    async def archive(self, upto: int, head: bytes, changes: Iterable[Changes], wall_ms: int) -> None:
        self._require_open("archive")
        self._was_checked = True
        try:
            await super().archive(upto, head, changes, wall_ms)
        finally:
            self._was_checked = False

    _was_checked = False

    def _require_open(self, operation: str) -> Shelf:
        return self._shared if self._was_checked and operation == "archive" else super()._require_open(operation)


class ReadsInsteadOfSending(OverALossyNetwork):
    async def append(self, batch: Sequence[Record]) -> None:
        fate = self.fate
        await super().append(batch) if fate != "late" else self._look(batch)

    def _look(self, batch: Sequence[Record]) -> None:
        self.fate = None
        self.send_late(batch)
        if not self.is_there(batch):
            raise JournalUnavailableError("append: the batch is not there")


class SendsWithoutANumber(OverALossyNetwork):
    """A late copy is taken whatever came before it."""

    def arrive(self, batch: Sequence[Record]) -> None:
        self._shared.batches.append((batch[-1].seq, encode_batch(batch)))


class GivesUp(OverALossyNetwork):
    async def append(self, batch: Sequence[Record]) -> None:
        fate, self.fate = self.fate, None
        await super().append(batch)
        if fate is not None:
            raise OutcomeUnknownError("append: the answer was lost")


class NeverReleasesLeadership(SharedMemoryJournal):
    async def close(self) -> None:
        await MemoryJournal.close(self)


@pytest.mark.parametrize(
    "broken",
    [
        HasNoFence,
        DeposesTheLiving,
        AcquiresWithoutDeposing,
        ForgetsTheTime,
        NeverSendsHeartbeats,
        SeesNoLoss,
        HasItsOwnKey,
        ArchivesToTheEnd,
        NeverReleasesLeadership,
    ],
)
def test_suite_finds_broken_shared_journals(broken: Callable[..., SharedMemoryJournal]) -> None:
    """Each of these journals breaks one promise of those that several nodes rest on, and is found out."""
    with pytest.raises(ContractError):
        check_shared_journal(partial(MemoryStore, broken))


@pytest.mark.parametrize("broken", [ReadsInsteadOfSending, SendsWithoutANumber, GivesUp])
def test_suite_finds_guessed_outcomes(broken: Callable[..., OverALossyNetwork]) -> None:
    """Who judges a lost answer by a look, sends without a number, or gives up at once, is found out (N-7, N-8)."""
    with pytest.raises(ContractError):
        check_shared_journal(lambda: LossyStore(broken))
