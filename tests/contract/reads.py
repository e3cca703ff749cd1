"""What a journal promises to those who look back: which record was the last by a time, who held what, all at once."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec.structs import replace

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
    grants_of,
    is_history,
)
from holdfast.core.values import Lease
from holdfast.journal.interface import Held, HeldQuery, Retention, Values
from tests.contract.tools import (
    WALL_MS,
    archived,
    check_in,
    drawing,
    expect,
    filled,
    grant,
    held_pages,
    pages,
    read,
    renewal,
    reopened,
    slot_tables,
    tables_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.journal.interface import Journal, Snapshot
    from tests.contract.tools import Check, JournalFactory, Tables

CHECKS: list[Check] = []
_check = check_in(CHECKS)


# Which record was the last by a time.


@_check
async def _last_by_finds_the_last_record(make: JournalFactory) -> None:
    """The last record by a wall time is the last in the journal's order, however the wall clock was set."""
    rng = drawing(5)
    walls_ms, wall_ms = list[int](), WALL_MS
    for _ in range(4_000):
        # It runs, and now and then it is set back or forward, a little or by hours.
        wall_ms += rng.choice((-3_600_000, -5_000, 5_000, 3_600_000)) if rng.randrange(500) == 0 else rng.randint(0, 9)
        walls_ms.append(wall_ms)
    records = [
        grant(seq, wall_ms=wall_ms) if seq % 4 else Record(seq, seq, wall_ms, Renewed("job", "lease", 1, 1))
        for seq, wall_ms in enumerate(walls_ms, 1)
    ]
    history = [record for record in records if is_history(record.event)]
    journal = await filled(make, [records[start : start + 100] for start in range(0, 4_000, 100)])
    edges_ms = [min(walls_ms) - 1, min(walls_ms), max(walls_ms), max(walls_ms) + 1]
    for upto in (0, 1_100, 4_000):
        await archived(journal, upto)
        for asked_ms in (*edges_ms, *(rng.choice(walls_ms) + rng.randint(-1, 1) for _ in range(9))):
            expected = max((record.seq for record in history if record.wall_ms <= asked_ms), default=0)
            expect(await journal.last_by(asked_ms), expected, f"the last by {asked_ms} with {upto} archived")
    journal = await reopened(journal, make)
    expect(await journal.last_by(max(walls_ms)), history[-1].seq, "the last of all after a restart")
    await journal.close()


@_check
async def _last_by_is_zero_before_all_records(make: JournalFactory) -> None:
    """By a time before all that is kept there was no record, nor in an empty journal; what is dropped is not found."""
    retention = Retention(records_max=3)
    journal = await filled(make, [], retention)
    expect(await journal.last_by(WALL_MS), 0, "the last of an empty journal")
    await journal.append([grant(seq) for seq in range(1, 11)])
    expect(await journal.last_by(WALL_MS), 0, "the last before the first")
    expect(await journal.last_by(WALL_MS + 4), 4, "the last while all is kept")
    await archived(journal, 10)
    expect([await journal.last_by(WALL_MS + seq) for seq in (4, 7, 8, 10)], [0, 0, 8, 10], "the last of what is kept")
    await journal.close()


# Who held what.


class _Play:
    """Records that fit each other, drawn at random, and who holds what after each of them, by the rule."""

    def __init__(self, seed: int, names: int, first_seq: int = 1) -> None:
        self.rng = drawing(seed)
        self.names = [f"job/{number}" for number in range(names)]
        self.records: list[Record] = []
        self.holding: dict[str, tuple[Lease, int]] = {}
        self.after: list[dict[str, tuple[Lease, int]]] = [{}]
        """Who holds what after each record; the first is before all of them."""
        self._seq = first_seq - 1

    def go_on(self, count: int) -> list[Record]:
        """Draw so many records more."""
        begun = len(self.records)
        for _ in range(count):
            self._seq += 1
            self.records.append(Record(self._seq, self._seq, WALL_MS + self._seq, self._draw()))
            self.after.append(dict(self.holding))
        return self.records[begun:]

    def held_at(self, seq: int) -> list[Held]:
        """Return what is expected of `held`."""
        return [Held(name, lease, granted) for name, (lease, granted) in sorted(self.after[seq].items())]

    def _draw(self) -> Event:
        free = [name for name in self.names if name not in self.holding]
        taken = list(self.holding)
        draws: list[Callable[[], Event]] = []
        if free:
            draws += [lambda: self._grant(self.rng.choice(free))] * 3
            draws.append(lambda: GrantedMany(tuple(map(self._grant, self._some(free)))))
        if taken:
            draws += [lambda: self._end(self.rng.choice(taken))] * 2
            draws.append(lambda: Renewed(self.rng.choice(taken), "lease", 1_000, self._seq + 1_000))
            draws.append(lambda: self._transfer(self.rng.choice(taken)))
            draws.append(lambda: self._end_session(self._some(taken)))
            draws.append(lambda: self._end_token(self._some(taken)))
        return self.rng.choice(draws)()

    def _some(self, names: list[str]) -> list[str]:
        return self.rng.sample(names, self.rng.randint(1, min(4, len(names))))

    def _grant(self, name: str) -> Granted:
        lease = self._lease(name)
        self.holding[name] = (lease, self._seq)
        return Granted(name, lease)

    def _lease(self, name: str) -> Lease:
        made = _lease_of(grant(self._seq, name, principal=self.rng.choice(("ana", "ben"))))
        return replace(made, lease_id=f"{name} at {self._seq}")

    def _end(self, name: str) -> Ended:
        lease, _ = self.holding.pop(name)
        return Ended(name, lease.lease_id, lease.token, "released", True, principal=lease.principal)

    def _transfer(self, name: str) -> Transferred:
        ended = self._end(name)
        lease = self._lease(name)
        self.holding[name] = (lease, self._seq)
        return Transferred(name, ended.lease_id, lease, "ana")

    def _end_session(self, names: list[str]) -> SessionEnded:
        return SessionEnded(f"s-{self._seq}", "deleted", tuple(map(self._end, names)), principal="ana")

    def _end_token(self, names: list[str]) -> TokenEnded:
        return TokenEnded("ana", "op", tuple(self._end_session([name]) for name in names))


async def _play_on(journal: Journal, play: _Play, count: int) -> list[int]:
    """Append so many records more, in batches of any size; return where the batches end."""
    records = play.go_on(count)
    cuts = [0, *sorted(play.rng.sample(range(1, count), count // 4)), count]
    for first, last in pairwise(cuts):
        await journal.append(records[first:last])
    return [records[cut - 1].seq for cut in cuts[1:]]


@_check
async def _held_is_exact_at_every_record(make: JournalFactory) -> None:
    """Who held what at any record is what a replay up to it gives: in the tail, in the archive, and across."""
    play = _Play(7, names=12)
    journal = await filled(make, [])
    ends: list[int] = []
    for rounds in range(1, 6):
        ends += await _play_on(journal, play, 40)
        for upto in sorted(play.rng.sample(ends[-8:], 2)):
            await archived(journal, upto)
            for seq in range(len(play.records) + 2):
                expected = play.held_at(min(seq, len(play.records)))
                expect(await held_pages(journal, seq), expected, f"who held what at {seq} with {upto} archived")
        if rounds % 2:
            journal = await reopened(journal, make)
    expect(await held_pages(journal, 60), play.held_at(60), "who held what at 60 after a restart")
    await journal.close()


@_check
async def _held_comes_in_pages(make: JournalFactory) -> None:
    """Names come in their order, a page at a time; a prefix is meant letter by letter, and so is where to go on."""
    names = [
        "a",
        "a%",
        "a%b",
        "a*b",
        "a-b",
        "a[b]",
        "a_b",
        "ab",
        "a\u00e4",
        "a\u00fcb",
        "a\U0001f512",
        "b",
        "A",
        "ä",
        "zz",
    ]
    journal = await filled(make, [[grant(seq, name)] for seq, name in enumerate(names, 1)])
    seqs = {name: seq for seq, name in enumerate(names, 1)}
    for upto in (0, 7, len(names)):
        await archived(journal, upto)
        for prefix in ("", "a", "a%", "a_", "a*", "a[", "aä", "ab", "abc", "A", "ä", "z"):
            expected = sorted(name for name in names if name.startswith(prefix))
            for limit in (1, 4, 100):
                found = await held_pages(journal, 99, limit, prefix)
                expect([held.name for held in found], expected, f"{prefix!r} by {limit} with {upto} archived")
                expect([held.granted_seq for held in found], [seqs[name] for name in expected], "their records")
        page = await journal.held(HeldQuery(seq=99, after="a_b", limit=2))
        expect([held.name for held in page.held], ["ab", "aä"], "what comes after a name")
        page = await journal.held(HeldQuery(seq=99, after="a_c", prefix="a_", limit=2))
        expect((page.held, page.next_after), ([], None), "what comes after all with the prefix")
    await journal.close()


@_check
async def _held_outlives_the_history_of_its_grant(make: JournalFactory) -> None:
    """A lease that is older than the kept history is known while it lives, and until its end is forgotten."""
    retention = Retention(records_max=6)
    old = grant(1, "old")
    over = Record(3, 3, WALL_MS + 3, Transferred("over", "lease-2", _lease_of(grant(3)), "ci"))
    journal = await filled(make, [[old, grant(2, "over"), over]], retention)
    await _flood(journal, 4, 23)
    lives = Held("over", _lease_of(over), 3)
    for _ in range(2):
        expect(journal.history_begins_after in range(3, 23), True, f"{journal.history_begins_after} is right")
        expect(await pages(journal, 9, name="old"), [], "the history of the old name")
        for seq in range(journal.history_begins_after, 24):
            expected = [Held("old", _lease_of(old), 1), lives]
            expect(await held_pages(journal, seq, prefix="o"), expected, f"who held the old names at {seq}")
        journal = await reopened(journal, make, retention)
    end = Record(24, 24, WALL_MS + 24, Ended("old", "lease-1", 1, "released", True, principal="ci"))
    await journal.append([end])
    for upto in (23, 24):
        await archived(journal, upto)
        expect(await pages(journal, 9, name="old"), [end], "the history of the old name after its end")
        for seq, ended in ((23, [Held("old", _lease_of(old), 1)]), (24, [])):
            expect(await held_pages(journal, seq, prefix="o"), [*ended, lives], f"who held the old names at {seq}")
    await _flood(journal, 25, 44)
    await journal.append([grant(45, "old")])
    await archived(journal, 45)
    expected = [Held("old", _lease_of(grant(45)), 45), lives]
    expect(await held_pages(journal, 45, prefix="o"), expected, "who holds the old names, one of them anew")
    expect(await held_pages(journal, 44, prefix="o"), [lives], "who held them before")
    await journal.close()


@_check
async def _newest_record_outlives_its_age(make: JournalFactory) -> None:
    """However old it is, the newest record is kept: by it a later moment is found, and who held what then."""
    retention = Retention(wall_ms=1_000)
    journal = await filled(make, [[grant(1, "old"), grant(2, "new")], [renewal(3)]], retention)
    later_ms = WALL_MS + 10**10
    for _ in range(2):
        await archived(journal, 3, later_ms)
        expect([record.seq for record in await pages(journal, 9)], [2], "what is left of the history")
        expect((journal.history_begins_after, await journal.last_by(later_ms - 1)), (1, 2), "the last by then")
        held = [each.name for each in await held_pages(journal, 2)]
        expect(held, ["new", "old"], "who held what since then")
        journal = await reopened(journal, make, retention)
    await journal.close()


@_check
async def _held_filters_by_owner_session_and_labels(make: JournalFactory) -> None:
    """A look finds what one owner or session held, or what had all these labels, on pages that lead on to the end."""
    records = []
    for seq in range(1, 41):
        lease = replace(
            _lease_of(grant(seq)),
            owner=None if seq % 4 == 0 else f"owner-{seq % 4}",
            session=f"session-{seq % 3}",
            labels=None if seq % 5 == 0 else {"team": "web", "shard": str(seq % 5)},
        )
        records.append(Record(seq, seq, WALL_MS + seq, Granted(f"job/{seq:02d}", lease)))
    journal = await filled(make, [records[start : start + 8] for start in range(0, 40, 8)])
    wanted: list[tuple[dict[str, object], Callable[[Lease], bool]]] = [
        ({"owner": "owner-1"}, lambda lease: lease.owner == "owner-1"),
        ({"session": "session-2"}, lambda lease: lease.session == "session-2"),
        ({"labels": frozenset({("team", "web")})}, lambda lease: lease.labels is not None),
        (
            {"labels": frozenset({("team", "web"), ("shard", "3")}), "owner": "owner-3"},
            lambda lease: lease.owner == "owner-3" and lease.labels == {"team": "web", "shard": "3"},
        ),
        ({"owner": "nobody"}, lambda _: False),
    ]
    for upto in (0, 16, 40):
        await archived(journal, upto)
        for fields, is_wanted in wanted:
            expected = [f"job/{each.seq:02d}" for each in records if is_wanted(_lease_of(each))]
            for limit in (1, 7, 100):
                found = await held_pages(journal, 40, limit, **fields)  # type: ignore[arg-type] # fields of a query
                expect([each.name for each in found], expected, f"{fields} by {limit} with {upto} archived")
    await journal.close()


async def _flood(journal: Journal, first: int, last: int) -> None:
    """Let so many other claims push everything before them out of the history."""
    await journal.append([grant(seq, f"flood/{seq}") for seq in range(first, last + 1)])
    await archived(journal, last)


def _lease_of(record: Record) -> Lease:
    ((_, lease),) = grants_of(record.event)
    return lease


# All at once.


@_check
async def _snapshot_is_one_instant(make: JournalFactory) -> None:
    """A look at all shows one instant, though appends, archiving and pruning go on while it is read."""
    retention = Retention(records_max=12)
    batches = [[grant(seq), renewal(seq + 1)] for seq in range(1, 41, 2)]
    journal = await filled(make, batches, retention)
    await archived(journal, 10)
    history = [batch[0] for batch in batches[:5]]
    async with journal.snapshot() as snapshot:
        expect(snapshot.last_seq, 40, "the last number")
        await journal.append([grant(41)])
        going_on = asyncio.create_task(archived(journal, 41, count=20))
        expected = (slot_tables(10), [record for batch in batches[5:] for record in batch], history)
        expect(await _all_of(snapshot), expected, "what was there at that instant")
        await going_on
    both: Tables = {**slot_tables(41, count=20), "slots": slot_tables(10)["slots"] + slot_tables(41, count=20)["slots"]}
    retained = [grant(seq) for seq in range(19, 42, 2)]
    async with journal.snapshot() as snapshot:
        expect(await _all_of(snapshot), (both, [], retained), "what is there afterwards")
    await journal.append([grant(42)])
    journal = await reopened(journal, make, retention)
    async with journal.snapshot() as snapshot:
        expect(snapshot.last_seq, 42, "the last number after a restart")
        expect(await _all_of(snapshot), (both, [grant(42)], retained), "what is there after a restart")
    await journal.close()


@_check
async def _snapshot_of_an_empty_journal(make: JournalFactory) -> None:
    """A look at a journal of which nothing is archived shows its records, and no values."""
    journal = await filled(make, [])
    async with journal.snapshot() as snapshot:
        expect((snapshot.last_seq, await _all_of(snapshot)), (0, ({}, [], [])), "what an empty journal has")
    await journal.append([grant(1), renewal(2)])
    async with journal.snapshot() as snapshot:
        expect((snapshot.last_seq, await _all_of(snapshot)), (2, ({}, [grant(1), renewal(2)], [])), "what is there")
    expect(await read(journal), ({}, [grant(1), renewal(2)]), "what the holder reads afterwards")
    await journal.close()


async def _all_of(snapshot: Snapshot) -> tuple[Tables, list[Record], list[Record]]:
    """Read all there is, in the order that is asked for; let the loop go round between two pieces."""
    tail, history, values = list[Record](), list[Record](), list[Values]()
    async for batch in snapshot.tail():
        tail.extend(batch)
        await asyncio.sleep(0)
    async for each in snapshot.values():
        values.append(each)
        await asyncio.sleep(0)
    async for batch in snapshot.history():
        history.extend(batch)
        await asyncio.sleep(0)
    return tables_of(values), tail, history
