"""What a journal promises to its one writer: appending, opening, archiving, and how it says that it is well."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast.core.events import Record
from holdfast.journal.interface import HEAD, Changes, JournalLockedError, JournalUnavailableError, Retention
from tests.contract.tools import (
    WALL_MS,
    archived,
    check_in,
    drawing,
    expect,
    expect_refusal,
    filled,
    grant,
    head_at,
    names,
    pages,
    read,
    renewal,
    reopened,
    sample_events,
    slot_changes,
    slot_tables,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from random import Random

    from tests.contract.tools import Check, JournalFactory, Rows, Tables

TABLES = ("slots", "memos", "tickets")

CHECKS: list[Check] = []
_check = check_in(CHECKS)


# Appending and opening.


@_check
async def _new_journal_is_empty(make: JournalFactory) -> None:
    """A new place has nothing archived and no records, and its first term has a number of at least 1."""
    journal = make(retention=Retention())
    recovered = await journal.open()
    expect((list(recovered.values), list(recovered.records)), ([], []), "what was found")
    expect(recovered.epoch >= 1, True, "the first epoch is at least 1")
    await journal.close()


@_check
async def _records_come_back_equal_and_in_order(make: JournalFactory) -> None:
    """What was appended is there after a restart: every kind, equal, in order, none missing, none twice (I5)."""
    events = sample_events()
    records = [Record(seq, seq * 2, WALL_MS + seq, event) for seq, event in enumerate(events * 3, 1)]
    cuts = [0, 1, 3, 4, 11, 12, len(records)]
    journal = await filled(make, [records[start:end] for start, end in pairwise(cuts)])
    expect(await read(journal), ({}, records), "the records before the restart")
    journal = await reopened(journal, make)
    expect(await read(journal), ({}, records), "the records after the restart")
    await journal.close()


@_check
async def _refused_batch_leaves_nothing(make: JournalFactory) -> None:
    """A batch that does not follow the last record is refused whole, and the right one is taken afterwards (I6)."""
    journal = await filled(make, [[grant(1), grant(2)]])
    for first in (4, 2, 1):
        refused = journal.append([grant(first), grant(first + 1)])
        await expect_refusal(refused, JournalUnavailableError, f"a batch that begins with {first} after record 2")
    await journal.append([])
    await journal.append([grant(3)])
    journal = await reopened(journal, make)
    expect(await read(journal), ({}, [grant(1), grant(2), grant(3)]), "the records")
    await journal.close()


@_check
async def _journal_has_one_writer(make: JournalFactory) -> None:
    """While one has the journal open, another is refused, and the first does not notice; later the journal is free."""
    first = await filled(make, [[grant(1)]])
    second = make(retention=Retention())
    await expect_refusal(second.open(), JournalLockedError, "the second opener")
    await expect_refusal(second.append([grant(2)]), JournalUnavailableError, "an append without the seat")
    await first.append([grant(2)])
    await first.close()
    expect(await read(second), ({}, [grant(1), grant(2)]), "what the second finds")
    await expect_refusal(first.open(), JournalLockedError, "the first, once the second has the seat")
    await second.close()


@_check
async def _closed_journal_refuses_appends(make: JournalFactory) -> None:
    """Before `open` and after `close` nothing can be appended, and that is known: it did not happen."""
    journal = make(retention=Retention())
    await expect_refusal(journal.append([grant(1)]), JournalUnavailableError, "an append before open")
    await journal.open()
    await journal.close()
    await journal.close()
    await expect_refusal(journal.append([grant(1)]), JournalUnavailableError, "an append after close")
    expect(await read(journal), ({}, []), "the records")
    await journal.close()


@_check
async def _epoch_rises_with_every_open(make: JournalFactory) -> None:
    """The epoch rises with every open by another writer; opening again as the writer does not change it."""
    epochs: list[int] = []
    for _ in range(3):
        journal = make(retention=Retention())
        epochs.append((await journal.open()).epoch)
        expect((await journal.open()).epoch, epochs[-1], "the epoch of the same tenure")
        await journal.close()
    expect(epochs, sorted(set(epochs)), "the epochs")


@_check
async def _writer_can_open_again(make: JournalFactory) -> None:
    """The writer may open again, gets the archived state and the records, and goes on writing."""
    journal = await filled(make, [[grant(1)], [grant(2)]])
    await archived(journal, 1)
    expect(await read(journal), (slot_tables(1), [grant(2)]), "what is read anew")
    await journal.append([grant(3)])
    expect(await read(journal), (slot_tables(1), [grant(2), grant(3)]), "what is read once more")
    await journal.close()


@_check
async def _bytes_of_the_tail_are_known(make: JournalFactory) -> None:
    """The bytes that a start would replay are known: an append adds its own, a refused one none, an archive takes."""
    journal = await filled(make, [])
    expect(journal.tail_bytes, 0, "the bytes of an empty journal")
    await journal.append([grant(1)])
    small = journal.tail_bytes
    metadata = "m" * 5000
    await journal.append([grant(2, metadata=metadata)])
    large = journal.tail_bytes - small
    expect(0 < small < len(metadata) < large, True, f"{small} and {large} bytes for a small record and a large one")
    await expect_refusal(journal.append([grant(9)]), JournalUnavailableError, "a batch that does not follow")
    await expect_refusal(archived(journal, 9), JournalUnavailableError, "an archive of what is not there")
    expect(journal.tail_bytes, small + large, "the bytes after the refusals")
    journal = await reopened(journal, make)
    expect(journal.tail_bytes, small + large, "the bytes that are found")
    await archived(journal, 1)
    expect(journal.tail_bytes, large, "the bytes that are not archived")
    journal = await reopened(journal, make)
    expect(journal.tail_bytes, large, "the bytes that are found after the archive")
    await archived(journal, 2)
    expect(journal.tail_bytes, 0, "the bytes when all is archived")
    await journal.close()


# Archiving.


@_check
async def _archive_replaces_records(make: JournalFactory) -> None:
    """What is archived comes back, the head first, then only the records after it; the next adds to it."""
    journal = await filled(make, [[grant(1), renewal(2)], [grant(3)], [grant(4)]])
    await archived(journal, 3, count=12)
    expect(await read(journal), (slot_tables(3, count=12), [grant(4)]), "what the holder reads")
    journal = await reopened(journal, make)
    expect(await read(journal), (slot_tables(3, count=12), [grant(4)]), "what is found after the first time")
    await journal.append([grant(5)])
    await archived(journal, 5, count=12)
    journal = await reopened(journal, make)
    expect(await read(journal), (slot_tables(3, 5, count=12), []), "what is found after the second time")
    await journal.append([grant(6)])
    expect(await read(journal), (slot_tables(3, 5, count=12), [grant(6)]), "what is found after one more record")
    await journal.close()


@_check
async def _values_keep_their_order(make: JournalFactory) -> None:
    """A changed value keeps its place, a new one comes behind all others, also if it is gone in the same step."""
    rng = drawing(12)
    tables: Tables = {}
    journal = await filled(make, [])
    for seq in range(1, 25):
        changes = [each for table in TABLES for each in _drawn_changes(rng, table, tables.get(table, []))]
        await journal.append([grant(seq)])
        await journal.archive(seq, head_at(seq), iter(changes), WALL_MS)
        tables = {table: rows for table in TABLES if (rows := _changed(tables.get(table, []), table, changes))}
        expected = {HEAD: [(b"", head_at(seq))], **tables}
        expect((await read(journal))[0], expected, f"the values after {seq} steps")
        if seq % 5 == 0:
            journal = await reopened(journal, make)
            expect((await read(journal))[0], expected, f"the values that are found after {seq} steps")
    await journal.close()


def _drawn_changes(rng: Random, table: str, rows: Rows) -> list[Changes]:
    """Draw what may happen to a table between two archives, in pieces."""
    keys = [key for key, _ in rows]
    gone = rng.sample(keys, rng.randint(0, len(keys) // 2))
    stay = [key for key in keys if key not in gone]
    changed = [(key, rng.randbytes(rng.randint(0, 40))) for key in rng.sample(stay, rng.randint(0, len(stay)))]
    fresh = [b"", b"\x00", b"\xff\xfe", *(b"k%d" % number for number in range(40))]
    may_be_new = [key for key in fresh if key not in stay]
    chosen = rng.sample(may_be_new, rng.randint(0, min(9, len(may_be_new))))
    new = [(key, rng.randbytes(rng.randint(0, 3_000))) for key in chosen]
    pieces = [*(Changes(table, gone=[key]) for key in gone[1:]), Changes(table, gone=gone[:1], changed=changed[:2])]
    pieces += [Changes(table, changed=changed[2:], new=new[:3]), *(Changes(table, new=[row]) for row in new[3:])]
    return pieces


def _slot_rows(*numbers: tuple[int, int]) -> Rows:
    return [row for upto, count in numbers for each in slot_changes(upto, count) for row in each.new]


def _changed(rows: Rows, table: str, changes: Iterable[Changes]) -> Rows:
    """Return what the rows of a table come to, by the rule."""
    found = dict(rows)
    for each in changes:
        if each.table == table:
            for key in each.gone:
                del found[key]
            found.update(each.changed)
            found.update(each.new)
    return list(found.items())


@_check
async def _appends_go_on_while_it_archives(make: JournalFactory) -> None:
    """Records appended while the journal archives come after what is archived, none lost and none twice."""
    journal = await filled(make, [[grant(seq, name)] for seq, name in enumerate(names(40), 1)])
    archiving = asyncio.create_task(archived(journal, 40, count=20))
    expected: list[Record] = []
    while not archiving.done() or not expected:
        expected.append(grant(41 + len(expected)))
        await journal.append(expected[-1:])
        await asyncio.sleep(0)
    await archiving
    expect(await read(journal), (slot_tables(40, count=20), expected), "what the holder reads")
    journal = await reopened(journal, make)
    expect(await read(journal), (slot_tables(40, count=20), expected), "what is found after a restart")
    await journal.close()


@_check
async def _failed_archive_changes_nothing(make: JournalFactory) -> None:
    """An archive that breaks, or does not fit, leaves the one before counting, and can be given again (I5)."""
    journal = await filled(make, [[grant(1)], [grant(2)], [grant(3)]])
    await archived(journal, 1)

    def breaking() -> Iterator[Changes]:
        yield from slot_changes(3, 2)
        raise ZeroDivisionError

    key = b"1/0"
    misfits = [
        Changes("slots", gone=[b"unknown"]),
        Changes("slots", changed=[(b"unknown", b"value")]),
        Changes("slots", new=[(key, b"value")]),
        Changes("memos", gone=[key]),
    ]
    broken = journal.archive(3, b"head", breaking(), WALL_MS)
    await expect_refusal(broken, ZeroDivisionError, "an archive that breaks")
    for misfit in misfits:
        refused = journal.archive(3, b"head", [*slot_changes(3, 2), misfit], WALL_MS)
        await expect_refusal(refused, JournalUnavailableError, f"{misfit} after only {key!r} was archived")
        expect(await read(journal), (slot_tables(1), [grant(2), grant(3)]), "what the holder reads afterwards")
        expect(await pages(journal, 2), [grant(3), grant(2), grant(1)], "the history afterwards")
    for upto, tail in ((2, [grant(3)]), (3, [])):
        await archived(journal, upto, count=2)
        journal = await reopened(journal, make)
        expected = {
            HEAD: [(b"", head_at(upto))],
            "slots": _slot_rows((1, 1), *((seq, 2) for seq in range(2, upto + 1))),
        }
        expect(await read(journal), (expected, tail), "what is found once it was given again")
    expect(await pages(journal, 2), [grant(3), grant(2), grant(1)], "the history")
    await journal.close()


@_check
async def _cancelled_archive_is_atomic(make: JournalFactory) -> None:
    """An archive whose task is cancelled counts whole or not at all, also for the history, and appends go on (I5)."""
    journal = await filled(make, [[grant(1)]])
    await archived(journal, 1)
    upto, expected, tail = 1, slot_tables(1), list[Record]()
    for steps in (0, 1, 2, 3, 5, 8, 13, 40):
        upto += 1
        tail.append(grant(upto))
        await journal.append(tail[-1:])
        cancelled = asyncio.create_task(archived(journal, upto, count=20))
        for _ in range(steps):
            await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        complete = {HEAD: [(b"", head_at(upto))], "slots": [*expected["slots"], *_slot_rows((upto, 20))]}
        journal = await reopened(journal, make)
        found = await read(journal)
        if found == (complete, []):
            expected, tail = complete, []
        expect(found, (expected, tail), f"what is found after an archive that was given up after {steps} steps")
        expect([record.seq for record in await pages(journal, 5)], list(range(upto, 0, -1)), "the history")
    await journal.close()


@_check
async def _archive_is_never_ahead(make: JournalFactory) -> None:
    """An archive of more than is durable, or of half a batch, is refused; one of no more than the last is left out."""
    journal = await filled(make, [[grant(1), grant(2)], [grant(3)]])
    for upto in (1, 4, 99):
        await expect_refusal(archived(journal, upto), JournalUnavailableError, f"an archive of {upto}")
    expect(await read(journal), ({}, [grant(1), grant(2), grant(3)]), "what is read after the refusals")
    await archived(journal, 3)
    for upto in (2, 3):
        await archived(journal, upto)
    journal = await reopened(journal, make)
    expect(await read(journal), (slot_tables(3), []), "what is found")
    await journal.append([grant(4)])
    await journal.close()


# Health.


@_check
async def _health_reports_the_store(make: JournalFactory) -> None:
    """Health says whether claims are taken, how large the store is and how it is, without waiting."""
    journal = await filled(make, [[grant(1)]])
    health = journal.health()
    expect((health.takes_claims, health.text), (True, "ok"), "health")
    expect(journal.takes_claims, True, "takes_claims")
    expect(journal.why_no_claims("ci"), None, "why claims are refused while they are taken")
    expect(health.size_bytes > 0 and bool(health.storage), True, f"{health} has a size and a kind of storage")
    await journal.close()
