"""What every journal promises, as checks that anyone can run on theirs. Needs no test framework.

A check gets a *place*: a function that gives another journal on the same records each time it is called, as another
process would have one. So a journal of yours is checked by

    check_journal(lambda: partial(MyJournal, new_empty_directory()))

where `MyJournal(directory, keeping=…)` makes a journal. With pytest, let each of `CHECKS` be a case of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, get_args, get_type_hints

import msgspec

from holdfast.core.events import Ended, Event, Granted, Record, Renewed, SessionEnded, is_history
from holdfast.core.values import Lease
from holdfast.journal.base import (
    HistoryQuery,
    Journal,
    JournalLockedError,
    JournalUnavailableError,
    Keeping,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WALL_MS = 1_700_000_000_000
DAY_MS = 86_400_000


class BrokenPromiseError(AssertionError):
    """A journal did not keep a promise. The text says which, and what it did instead."""


class Place(Protocol):
    """Somewhere records are kept."""

    def __call__(self, *, keeping: Keeping) -> Journal:
        """Return another journal on the same records."""
        ...


class Check(msgspec.Struct, frozen=True):
    """One promise and how it is checked."""

    name: str
    promise: str
    run: Callable[[Place], Awaitable[None]]


CHECKS: list[Check] = []
"""All of them, in the order they are best read."""


def check_journal(make: Callable[[], Place]) -> list[str]:
    """Run every check, each on a new empty place, and return the names. Raises `BrokenPromiseError` at the first."""
    for check in CHECKS:
        asyncio.run(run_check(check, make()))
    return [check.name for check in CHECKS]


async def run_check(check: Check, place: Place) -> None:
    """Run one check. Whatever goes wrong is told together with the promise."""
    try:
        await check.run(place)
    except Exception as error:
        raise BrokenPromiseError(f"{check.name}: {check.promise} Instead: {error!r}") from error


def sample_events() -> list[Event]:
    """Return one event of every kind, every field of it filled."""
    return [_sample(kind, 1) for kind in get_args(Event)]


def _sample(kind: Any, number: int) -> Any:  # noqa: ANN401
    """Make a value of a type: a text that is not only ASCII, a number, a struct of such, or two of them."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind)
        return kind(
            **{field: _sample(hints[field], place) for place, field in enumerate(kind.__struct_fields__, number)}
        )
    match get_args(kind):
        case (item, rest) if rest is Ellipsis:
            return (_sample(item, number), _sample(item, number + 1))
        case (optional, _):
            return _sample(optional, number)
        case _:
            return f"té/{number}" if kind is str else kind(number)


# What the checks are made of.


def _check(run: Callable[[Place], Awaitable[None]]) -> Callable[[Place], Awaitable[None]]:
    CHECKS.append(Check(run.__name__.removeprefix("_"), str(run.__doc__), run))
    return run


def _expect(actual: object, expected: object, what: str) -> None:
    if actual != expected:
        raise BrokenPromiseError(f"{what}: {actual!r} instead of {expected!r}")


async def _expect_refusal(asked: Awaitable[object], error: type[Exception], what: str) -> None:
    try:
        await asked
    except error:
        return
    raise BrokenPromiseError(f"{what} was not refused with {error.__name__}")


def _grant(seq: int, name: str = "job", wall_ms: int | None = None) -> Record:
    wall_ms = WALL_MS + seq if wall_ms is None else wall_ms
    lease = Lease(f"lease-{seq}", seq, "ci", None, None, False, 1000, seq + 1000, 0, None, None, wall_ms, wall_ms)
    return Record(seq, seq, wall_ms, Granted(name, lease))


def _renewal(seq: int, name: str = "job") -> Record:
    return Record(seq, seq, WALL_MS + seq, Renewed(name, f"lease-{seq}", 1000, seq + 1000))


def _names(count: int) -> list[str]:
    return [f"job/{number % count}" for number in range(count)]


async def _filled(place: Place, batches: Sequence[Sequence[Record]], keeping: Keeping | None = None) -> Journal:
    journal = place(keeping=keeping or Keeping())
    list((await journal.open()).records)
    for batch in batches:
        await journal.append(batch)
    return journal


async def _read(journal: Journal) -> tuple[list[bytes], list[Record]]:
    recovered = await journal.open()
    return list(recovered.snapshot), list(recovered.records)


async def _reopened(journal: Journal, place: Place, keeping: Keeping | None = None) -> Journal:
    await journal.close()
    return await _filled(place, [], keeping)


async def _pages(journal: Journal, limit: int, **query: object) -> list[Record]:
    """Page through history as a caller would: each page goes on before the last number of the one before."""
    found: list[Record] = []
    before: int | None = None
    while page := await journal.history(HistoryQuery(**{"limit": limit, "before_seq": before, **query})):  # type: ignore[arg-type]
        if len(page) > limit:
            raise BrokenPromiseError(f"history gave {len(page)} records for a limit of {limit}")
        found.extend(page)
        before = page[-1].seq
    return found


async def _followed(journal: Journal, limit: int, after_seq: int = 0) -> list[Record]:
    """Follow a journal as a reader would: each page goes on after the last number of the one before."""
    found: list[Record] = []
    while page := await journal.follow(found[-1].seq if found else after_seq, limit):
        if len(page) > limit:
            raise BrokenPromiseError(f"following gave {len(page)} records for a limit of {limit}")
        found.extend(page)
    return found


def _newest_first(records: Sequence[Record]) -> list[Record]:
    return [record for record in reversed(records) if is_history(record.event)]


# Appending and opening.


@_check
async def _new_journal_is_empty(place: Place) -> None:
    """A new place has no snapshot and no records, and its first tenure has a number of at least 1."""
    journal = place(keeping=Keeping())
    recovered = await journal.open()
    _expect((list(recovered.snapshot), list(recovered.records)), ([], []), "what was found")
    _expect(recovered.epoch >= 1, True, "the first epoch is at least 1")
    await journal.close()


@_check
async def _records_come_back_equal_and_in_order(place: Place) -> None:
    """What was appended is there after a restart: every kind, equal, in order, none missing, none twice (I5)."""
    events = sample_events()
    records = [Record(seq, seq * 2, WALL_MS + seq, event) for seq, event in enumerate(events * 3, 1)]
    cuts = [0, 1, 3, 4, 11, 12, len(records)]
    journal = await _filled(place, [records[start:end] for start, end in pairwise(cuts)])
    _expect(await _read(journal), ([], records), "the records before the restart")
    journal = await _reopened(journal, place)
    _expect(await _read(journal), ([], records), "the records after the restart")
    await journal.close()


@_check
async def _refused_batch_leaves_nothing(place: Place) -> None:
    """A batch that does not follow the last record is refused whole, and the right one is taken afterwards (I6)."""
    journal = await _filled(place, [[_grant(1), _grant(2)]])
    for first in (4, 2, 1):
        refused = journal.append([_grant(first), _grant(first + 1)])
        await _expect_refusal(refused, JournalUnavailableError, f"a batch that begins with {first} after record 2")
    await journal.append([])
    await journal.append([_grant(3)])
    journal = await _reopened(journal, place)
    _expect(await _read(journal), ([], [_grant(1), _grant(2), _grant(3)]), "the records")
    await journal.close()


@_check
async def _seat_has_one_holder(place: Place) -> None:
    """While one has the journal open another is refused, and the first does not notice; afterwards the seat is free."""
    first = await _filled(place, [[_grant(1)]])
    second = place(keeping=Keeping())
    await _expect_refusal(second.open(), JournalLockedError, "the second opener")
    await _expect_refusal(second.append([_grant(2)]), JournalUnavailableError, "an append without the seat")
    await first.append([_grant(2)])
    await first.close()
    _expect(await _read(second), ([], [_grant(1), _grant(2)]), "what the second finds")
    await _expect_refusal(first.open(), JournalLockedError, "the first, once the second has the seat")
    await second.close()


@_check
async def _closed_journal_takes_nothing(place: Place) -> None:
    """Before `open` and after `close` nothing can be appended, and that is known: it did not happen."""
    journal = place(keeping=Keeping())
    await _expect_refusal(journal.append([_grant(1)]), JournalUnavailableError, "an append before open")
    await journal.open()
    await journal.close()
    await journal.close()
    await _expect_refusal(journal.append([_grant(1)]), JournalUnavailableError, "an append after close")
    _expect(await _read(journal), ([], []), "the records")
    await journal.close()


@_check
async def _epoch_rises_with_every_tenure(place: Place) -> None:
    """Every taking of the seat has a higher number; opening again with the seat in hand does not change it."""
    epochs: list[int] = []
    for _ in range(3):
        journal = place(keeping=Keeping())
        epochs.append((await journal.open()).epoch)
        _expect((await journal.open()).epoch, epochs[-1], "the epoch of the same tenure")
        await journal.close()
    _expect(epochs, sorted(set(epochs)), "the epochs")


@_check
async def _holder_reads_anew(place: Place) -> None:
    """Whoever has the seat may open again, gets the snapshot and the records as they now are, and goes on writing."""
    journal = await _filled(place, [[_grant(1)], [_grant(2)]])
    await journal.compact(1, [b"one"], WALL_MS)
    _expect(await _read(journal), ([b"one"], [_grant(2)]), "what is read anew")
    await journal.append([_grant(3)])
    _expect(await _read(journal), ([b"one"], [_grant(2), _grant(3)]), "what is read once more")
    await journal.close()


# Compaction.


@_check
async def _snapshot_stands_for_records(place: Place) -> None:
    """After a compaction the parts come back in order, then only the records after it; the next replaces it."""
    journal = await _filled(place, [[_grant(1), _renewal(2)], [_grant(3)], [_grant(4)]])
    parts = [bytes([number]) * (number * 700) for number in range(12)]
    await journal.compact(3, iter(parts), WALL_MS)
    journal = await _reopened(journal, place)
    _expect(await _read(journal), (parts, [_grant(4)]), "what is found after the first compaction")
    await journal.append([_grant(5)])
    await journal.compact(5, [b"all"], WALL_MS)
    journal = await _reopened(journal, place)
    _expect(await _read(journal), ([b"all"], []), "what is found after the second compaction")
    await journal.append([_grant(6)])
    _expect(await _read(journal), ([b"all"], [_grant(6)]), "what is found after one more record")
    await journal.close()


@_check
async def _appends_go_on_during_compaction(place: Place) -> None:
    """Records appended while a compaction runs come after its snapshot, none lost and none twice."""
    journal = await _filled(place, [[_grant(seq, name)] for seq, name in enumerate(_names(40), 1)])
    compaction = asyncio.create_task(journal.compact(40, [b"part"] * 20, WALL_MS))
    expected: list[Record] = []
    while not compaction.done() or not expected:
        expected.append(_grant(41 + len(expected)))
        await journal.append(expected[-1:])
        await asyncio.sleep(0)
    await compaction
    _expect(await _read(journal), ([b"part"] * 20, expected), "what the holder reads")
    journal = await _reopened(journal, place)
    _expect(await _read(journal), ([b"part"] * 20, expected), "what is found after a restart")
    await journal.close()


@_check
async def _compaction_cut_short_does_not_count(place: Place) -> None:
    """A compaction that ends in the middle leaves the snapshot before it counting, and can be done over (I5)."""
    journal = await _filled(place, [[_grant(1)], [_grant(2)], [_grant(3)]])
    await journal.compact(1, [b"old"], WALL_MS)

    def breaking() -> Iterator[bytes]:
        yield from [b"new", b"new"]
        raise ZeroDivisionError

    await _expect_refusal(journal.compact(3, breaking(), WALL_MS), ZeroDivisionError, "a snapshot that breaks")
    _expect(await _read(journal), ([b"old"], [_grant(2), _grant(3)]), "what the holder reads after the break")
    cancelled = asyncio.create_task(journal.compact(2, [b"newer"] * 50, WALL_MS))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if cancelled.cancel():
        await asyncio.wait([cancelled])
        journal = await _reopened(journal, place)
        _expect(await _read(journal), ([b"old"], [_grant(2), _grant(3)]), "what is found after a cancelled one")
    for upto, tail in ((2, [_grant(3)]), (3, [])):
        await journal.compact(upto, [b"done", b"over"], WALL_MS)
        journal = await _reopened(journal, place)
        _expect(await _read(journal), ([b"done", b"over"], tail), "what is found once it was done over")
    _expect(await _pages(journal, 2), [_grant(3), _grant(2), _grant(1)], "the history")
    await journal.close()


@_check
async def _snapshot_is_never_ahead(place: Place) -> None:
    """A snapshot of more than is durable, or of half a batch, is refused; one of no more than the last is left out."""
    journal = await _filled(place, [[_grant(1), _grant(2)], [_grant(3)]])
    for upto in (1, 4, 99):
        await _expect_refusal(journal.compact(upto, [b"x"], WALL_MS), JournalUnavailableError, f"a snapshot of {upto}")
    _expect(await _read(journal), ([], [_grant(1), _grant(2), _grant(3)]), "what is read after the refusals")
    await journal.compact(3, [b"three"], WALL_MS)
    for upto in (2, 3):
        await journal.compact(upto, [b"other"], WALL_MS)
    journal = await _reopened(journal, place)
    _expect(await _read(journal), ([b"three"], []), "what is found")
    await journal.append([_grant(4)])
    await journal.close()


# History.


@_check
async def _history_is_found_by_name(place: Place) -> None:
    """History of a name is newest first, in pages of any size, before and after compaction, none missing or twice."""
    records = [_grant(seq, f"job/{seq % 3}") for seq in range(1, 31)]
    journal = await _filled(place, [records[:10], records[10:20], records[20:]])
    for upto in (0, 10, 20, 30):
        await journal.compact(upto, [b"x"], WALL_MS)
        for name in ("job/0", "job/1", "job/2", "job", "job/"):
            mine = [record for record in _newest_first(records) if getattr(record.event, "name", "") == name]
            for limit in (1, 3, 100):
                _expect(await _pages(journal, limit, name=name), mine, f"history of {name} at {upto} by {limit}")
        _expect(await _pages(journal, 7), _newest_first(records), f"history of all names at {upto}")
    journal = await _reopened(journal, place)
    _expect(await _pages(journal, 7), _newest_first(records), "history after a restart")
    await journal.close()


@_check
async def _history_is_found_by_time(place: Place) -> None:
    """History is found by wall time, both ends included, also where the wall clock went backwards."""
    walls_ms = [WALL_MS + offset for offset in (10, 20, 30, 15, 25, 40)]
    records = [_grant(seq, "job", wall_ms) for seq, wall_ms in enumerate(walls_ms, 1)]
    journal = await _filled(place, [records[:3], records[3:]])
    for upto in (0, 3, 6):
        await journal.compact(upto, [b"x"], WALL_MS)
        for since, until in ((None, None), (15, None), (None, 25), (15, 25), (41, None), (None, 9), (20, 20)):
            since_wall_ms = None if since is None else WALL_MS + since
            until_wall_ms = None if until is None else WALL_MS + until
            expected = [r for r in reversed(records) if (since or 0) <= r.wall_ms - WALL_MS <= (until or 99)]
            for name in (None, "job"):
                found = await _pages(journal, 2, name=name, since_wall_ms=since_wall_ms, until_wall_ms=until_wall_ms)
                _expect(found, expected, f"history from {since} to {until} at {upto}")
    await journal.close()


@_check
async def _session_end_is_history_of_each_name(place: Place) -> None:
    """The end of a session is found under every name that it freed, and once among all names."""
    freed = tuple(Ended(name, f"lease-{name}", 1, "session_ended", False) for name in ("job/ä", "job/b"))
    end = Record(1, 1, WALL_MS, SessionEnded("s-1", "deleted", freed))
    journal = await _filled(place, [[end]])
    for upto in (0, 1):
        await journal.compact(upto, [b"x"], WALL_MS)
        for name, expected in (("job/ä", [end]), ("job/b", [end]), ("job/c", []), (None, [end])):
            _expect(list(await journal.history(HistoryQuery(name=name))), expected, f"history of {name} at {upto}")
    await journal.close()


@_check
async def _renewals_are_forgotten(place: Place) -> None:
    """What has no history value is gone after the next snapshot; all else is still there."""
    records = [Record(seq, seq, WALL_MS + seq, event) for seq, event in enumerate(sample_events(), 1)]
    journal = await _filled(place, [records])
    await journal.compact(len(records), [b"x"], WALL_MS)
    journal = await _reopened(journal, place)
    _expect(await _pages(journal, 3), _newest_first(records), "the history")
    await journal.close()


@_check
async def _history_holds_still_during_compaction(place: Place) -> None:
    """Paging through history while it moves from the tail finds every record once."""
    records = [_grant(seq, name) for seq, name in enumerate(_names(60), 1)]
    journal = await _filled(place, [[record] for record in records])
    compaction = asyncio.create_task(journal.compact(60, [b"x"] * 3, WALL_MS))
    while not compaction.done():
        _expect(await _pages(journal, 4), _newest_first(records), "history of all names")
        await asyncio.sleep(0)
    await compaction
    _expect(await _pages(journal, 4), _newest_first(records), "history afterwards")
    await journal.close()


@_check
async def _history_is_kept_for_so_long(place: Place) -> None:
    """A compaction drops what is older than is kept, and nothing that is younger."""
    keeping = Keeping(wall_ms=30 * DAY_MS)
    records = [_grant(seq, f"job/{seq}", WALL_MS + seq * DAY_MS) for seq in range(1, 41)]
    journal = await _filled(place, [records], keeping)
    await journal.compact(40, [b"x"], WALL_MS + 35 * DAY_MS)
    _expect(await _pages(journal, 9), _newest_first(records[4:]), "what is left after 35 days")
    await journal.compact(40, [b"x"], WALL_MS + 60 * DAY_MS)
    _expect(await _pages(journal, 9), _newest_first(records[29:]), "what is left after 60 days")
    _expect(await _pages(journal, 9, name="job/29"), [], "what is left of a name that is too old")
    journal = await _reopened(journal, place, keeping)
    _expect(await _pages(journal, 9), _newest_first(records[29:]), "what is left after a restart")
    await journal.close()


@_check
async def _history_is_kept_to_a_number(place: Place) -> None:
    """A compaction drops the oldest beyond the number that is kept."""
    keeping = Keeping(records_max=12)
    journal = await _filled(place, [], keeping)
    records: list[Record] = []
    for _ in range(4):
        batch = [_grant(seq, f"job/{seq}") for seq in range(len(records) + 1, len(records) + 8)]
        records.extend(batch)
        await journal.append(batch)
        await journal.compact(len(records), [b"x"], WALL_MS)
        _expect(await _pages(journal, 5), _newest_first(records[-12:]), f"what is left of {len(records)}")
    _expect(await _pages(journal, 5, name="job/1"), [], "what is left of the oldest name")
    await journal.close()


@_check
async def _followers_hear_everything_once(place: Place) -> None:
    """From any number on, all that has history value comes oldest first, before, during and after compaction (I16)."""
    records = [_grant(seq, name) if seq % 3 else _renewal(seq) for seq, name in enumerate(_names(60), 1)]
    history = [record for record in records if is_history(record.event)]
    journal = await _filled(place, [records[start : start + 4] for start in range(0, 60, 4)])
    for upto in (0, 20, 60):
        compaction = asyncio.create_task(journal.compact(upto, [b"x"] * 3, WALL_MS))
        is_over = False
        while not is_over:
            is_over = compaction.done()
            _expect(await _followed(journal, 7), history, f"what is followed at {upto}")
            await asyncio.sleep(0)
        await compaction
        for after in (1, 19, 20, 21, 59, 60, 99):
            expected = [record for record in history if record.seq > after]
            _expect(await _followed(journal, 5, after), expected, f"what comes after {after} at {upto}")
    journal = await _reopened(journal, place)
    _expect(await _followed(journal, 100), history, "what is followed after a restart")
    await journal.close()


@_check
async def _a_gap_is_known(place: Place) -> None:
    """The number up to which history was dropped is known, also after a restart: what follows it is all there (I16)."""
    keeping = Keeping(records_max=12)
    journal = await _filled(place, [[_grant(seq, f"job/{seq}") for seq in range(1, 31)]], keeping)
    _expect(journal.history_begins_after, 0, "where history begins while nothing was dropped")
    await journal.compact(30, [b"x"], WALL_MS)
    for _ in range(2):
        _expect(journal.history_begins_after, 18, "where history begins")
        _expect([record.seq for record in await _followed(journal, 5)], list(range(19, 31)), "what is followed")
        journal = await _reopened(journal, place, keeping)
    await journal.close()


@_check
async def _health_tells(place: Place) -> None:
    """Health says whether claims are taken, how large the store is and how it is, without waiting."""
    journal = await _filled(place, [[_grant(1)]])
    health = journal.health()
    _expect((health.takes_claims, health.text), (True, "ok"), "health")
    _expect(journal.takes_claims, True, "takes_claims")
    _expect(health.size_bytes > 0 and bool(health.storage), True, f"{health} has a size and a kind of storage")
    await journal.close()
