"""What a journal promises to its one writer: appending, opening, compacting, and how it says that it is well."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast.core.events import Record
from holdfast.journal.base import JournalLockedError, JournalUnavailableError, Keeping
from holdfast.testing._contract_tools import (
    WALL_MS,
    check_in,
    expect,
    expect_refusal,
    filled,
    grant,
    names,
    pages,
    read,
    renewal,
    reopened,
    sample_events,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.testing._contract_tools import Check, JournalPlace

CHECKS: list[Check] = []
_check = check_in(CHECKS)


# Appending and opening.


@_check
async def _new_journal_is_empty(place: JournalPlace) -> None:
    """A new place has no snapshot and no records, and its first tenure has a number of at least 1."""
    journal = place(keeping=Keeping())
    recovered = await journal.open()
    expect((list(recovered.snapshot), list(recovered.records)), ([], []), "what was found")
    expect(recovered.epoch >= 1, True, "the first epoch is at least 1")
    await journal.close()


@_check
async def _records_come_back_equal_and_in_order(place: JournalPlace) -> None:
    """What was appended is there after a restart: every kind, equal, in order, none missing, none twice (I5)."""
    events = sample_events()
    records = [Record(seq, seq * 2, WALL_MS + seq, event) for seq, event in enumerate(events * 3, 1)]
    cuts = [0, 1, 3, 4, 11, 12, len(records)]
    journal = await filled(place, [records[start:end] for start, end in pairwise(cuts)])
    expect(await read(journal), ([], records), "the records before the restart")
    journal = await reopened(journal, place)
    expect(await read(journal), ([], records), "the records after the restart")
    await journal.close()


@_check
async def _refused_batch_leaves_nothing(place: JournalPlace) -> None:
    """A batch that does not follow the last record is refused whole, and the right one is taken afterwards (I6)."""
    journal = await filled(place, [[grant(1), grant(2)]])
    for first in (4, 2, 1):
        refused = journal.append([grant(first), grant(first + 1)])
        await expect_refusal(refused, JournalUnavailableError, f"a batch that begins with {first} after record 2")
    await journal.append([])
    await journal.append([grant(3)])
    journal = await reopened(journal, place)
    expect(await read(journal), ([], [grant(1), grant(2), grant(3)]), "the records")
    await journal.close()


@_check
async def _seat_has_one_holder(place: JournalPlace) -> None:
    """While one has the journal open another is refused, and the first does not notice; afterwards the seat is free."""
    first = await filled(place, [[grant(1)]])
    second = place(keeping=Keeping())
    await expect_refusal(second.open(), JournalLockedError, "the second opener")
    await expect_refusal(second.append([grant(2)]), JournalUnavailableError, "an append without the seat")
    await first.append([grant(2)])
    await first.close()
    expect(await read(second), ([], [grant(1), grant(2)]), "what the second finds")
    await expect_refusal(first.open(), JournalLockedError, "the first, once the second has the seat")
    await second.close()


@_check
async def _closed_journal_takes_nothing(place: JournalPlace) -> None:
    """Before `open` and after `close` nothing can be appended, and that is known: it did not happen."""
    journal = place(keeping=Keeping())
    await expect_refusal(journal.append([grant(1)]), JournalUnavailableError, "an append before open")
    await journal.open()
    await journal.close()
    await journal.close()
    await expect_refusal(journal.append([grant(1)]), JournalUnavailableError, "an append after close")
    expect(await read(journal), ([], []), "the records")
    await journal.close()


@_check
async def _epoch_rises_with_every_tenure(place: JournalPlace) -> None:
    """Every taking of the seat has a higher number; opening again with the seat in hand does not change it."""
    epochs: list[int] = []
    for _ in range(3):
        journal = place(keeping=Keeping())
        epochs.append((await journal.open()).epoch)
        expect((await journal.open()).epoch, epochs[-1], "the epoch of the same tenure")
        await journal.close()
    expect(epochs, sorted(set(epochs)), "the epochs")


@_check
async def _holder_reads_anew(place: JournalPlace) -> None:
    """Whoever has the seat may open again, gets the snapshot and the records as they now are, and goes on writing."""
    journal = await filled(place, [[grant(1)], [grant(2)]])
    await journal.compact(1, [b"one"], WALL_MS)
    expect(await read(journal), ([b"one"], [grant(2)]), "what is read anew")
    await journal.append([grant(3)])
    expect(await read(journal), ([b"one"], [grant(2), grant(3)]), "what is read once more")
    await journal.close()


@_check
async def _bytes_appended_are_counted(place: JournalPlace) -> None:
    """The bytes of what a start would replay are known: each append adds its own, and a refused one adds none."""
    journal = await filled(place, [])
    begun = journal.appended_bytes
    await journal.append([grant(1)])
    small = journal.appended_bytes - begun
    metadata = "m" * 5000
    await journal.append([grant(2, metadata=metadata)])
    large = journal.appended_bytes - begun - small
    expect(0 < small < len(metadata) < large, True, f"{small} and {large} bytes for a small record and a large one")
    await expect_refusal(journal.append([grant(9)]), JournalUnavailableError, "a batch that does not follow")
    expect(journal.appended_bytes, begun + small + large, "the bytes after a refusal")
    journal = await reopened(journal, place)
    expect(journal.appended_bytes, small + large, "the bytes that are found")
    await journal.compact(2, [b"all"], WALL_MS)
    journal = await reopened(journal, place)
    expect(journal.appended_bytes, 0, "the bytes that are found after a snapshot")
    await journal.close()


# Compaction.


@_check
async def _snapshot_stands_for_records(place: JournalPlace) -> None:
    """After a compaction the parts come back in order, then only the records after it; the next replaces it."""
    journal = await filled(place, [[grant(1), renewal(2)], [grant(3)], [grant(4)]])
    parts = [bytes([number]) * (number * 700) for number in range(12)]
    await journal.compact(3, iter(parts), WALL_MS)
    journal = await reopened(journal, place)
    expect(await read(journal), (parts, [grant(4)]), "what is found after the first compaction")
    await journal.append([grant(5)])
    await journal.compact(5, [b"all"], WALL_MS)
    journal = await reopened(journal, place)
    expect(await read(journal), ([b"all"], []), "what is found after the second compaction")
    await journal.append([grant(6)])
    expect(await read(journal), ([b"all"], [grant(6)]), "what is found after one more record")
    await journal.close()


@_check
async def _appends_go_on_during_compaction(place: JournalPlace) -> None:
    """Records appended while a compaction runs come after its snapshot, none lost and none twice."""
    journal = await filled(place, [[grant(seq, name)] for seq, name in enumerate(names(40), 1)])
    compaction = asyncio.create_task(journal.compact(40, [b"part"] * 20, WALL_MS))
    expected: list[Record] = []
    while not compaction.done() or not expected:
        expected.append(grant(41 + len(expected)))
        await journal.append(expected[-1:])
        await asyncio.sleep(0)
    await compaction
    expect(await read(journal), ([b"part"] * 20, expected), "what the holder reads")
    journal = await reopened(journal, place)
    expect(await read(journal), ([b"part"] * 20, expected), "what is found after a restart")
    await journal.close()


@_check
async def _compaction_cut_short_does_not_count(place: JournalPlace) -> None:
    """A compaction that ends in the middle leaves the snapshot before it counting, and can be done over (I5)."""
    journal = await filled(place, [[grant(1)], [grant(2)], [grant(3)]])
    await journal.compact(1, [b"old"], WALL_MS)

    def breaking() -> Iterator[bytes]:
        yield from [b"new", b"new"]
        raise ZeroDivisionError

    await expect_refusal(journal.compact(3, breaking(), WALL_MS), ZeroDivisionError, "a snapshot that breaks")
    expect(await read(journal), ([b"old"], [grant(2), grant(3)]), "what the holder reads after the break")
    cancelled = asyncio.create_task(journal.compact(2, [b"newer"] * 50, WALL_MS))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if cancelled.cancel():
        await asyncio.wait([cancelled])
        journal = await reopened(journal, place)
        expect(await read(journal), ([b"old"], [grant(2), grant(3)]), "what is found after a cancelled one")
    for upto, tail in ((2, [grant(3)]), (3, [])):
        await journal.compact(upto, [b"done", b"over"], WALL_MS)
        journal = await reopened(journal, place)
        expect(await read(journal), ([b"done", b"over"], tail), "what is found once it was done over")
    expect(await pages(journal, 2), [grant(3), grant(2), grant(1)], "the history")
    await journal.close()


@_check
async def _snapshot_is_never_ahead(place: JournalPlace) -> None:
    """A snapshot of more than is durable, or of half a batch, is refused; one of no more than the last is left out."""
    journal = await filled(place, [[grant(1), grant(2)], [grant(3)]])
    for upto in (1, 4, 99):
        await expect_refusal(journal.compact(upto, [b"x"], WALL_MS), JournalUnavailableError, f"a snapshot of {upto}")
    expect(await read(journal), ([], [grant(1), grant(2), grant(3)]), "what is read after the refusals")
    await journal.compact(3, [b"three"], WALL_MS)
    for upto in (2, 3):
        await journal.compact(upto, [b"other"], WALL_MS)
    journal = await reopened(journal, place)
    expect(await read(journal), ([b"three"], []), "what is found")
    await journal.append([grant(4)])
    await journal.close()


# Health.


@_check
async def _health_tells(place: JournalPlace) -> None:
    """Health says whether claims are taken, how large the store is and how it is, without waiting."""
    journal = await filled(place, [[grant(1)]])
    health = journal.health()
    expect((health.takes_claims, health.text), (True, "ok"), "health")
    expect(journal.takes_claims, True, "takes_claims")
    expect(health.size_bytes > 0 and bool(health.storage), True, f"{health} has a size and a kind of storage")
    await journal.close()
