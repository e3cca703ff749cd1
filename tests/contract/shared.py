"""What a journal promises that several nodes share: who has the leadership, who is deposed, and what a lost answer
means.

The same checks run on every such journal. What has to be done to a store from outside is done by its place: an answer
that is lost on the way, and records that are lost by the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from holdfast.core.events import names_of
from holdfast.journal.interface import (
    DeposedError,
    JournalError,
    JournalLockedError,
    JournalLostError,
    JournalUnavailableError,
    Leadership,
    OutcomeUnknownError,
    Peer,
    Recovered,
    Retention,
    SharedJournal,
)
from tests.contract.tools import (
    ContractError,
    archived,
    expect,
    expect_refusal,
    grant,
    read,
    tables_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.core.events import Record

Fate = Literal["before", "after", "late"]
"""What becomes of a write whose answer is lost: the store never has it, it has done it, or it has it a little later."""
FATES: tuple[Fate, ...] = ("before", "after", "late")
MIB = 2**20
KEY_BYTES_MIN = 32


class SharedStore(Protocol):
    """A store, and several nodes that see it."""

    def __call__(self, *, retention: Retention) -> SharedJournal:
        """Return the journal of one more node: another name, another process, another term."""
        ...

    def lose_answer(self, fate: Fate) -> None:
        """Let the answer be lost of the next write of a journal that was made before.

        A store that answers in the call itself has none to lose.
        """
        ...

    async def deliver_all(self) -> None:
        """Return once nothing of what the journals sent is still on its way. All of them are closed."""
        ...

    async def lose_records(self, after_seq: int) -> None:
        """Let the store lose the records after a number, as a standby that lagged behind and was promoted."""
        ...


class SharedCheck(msgspec.Struct, frozen=True):
    """One promise and how it is checked."""

    name: str
    promise: str
    run: Callable[[SharedStore], Awaitable[None]]


SHARED_CHECKS: list[SharedCheck] = []


def _check(run: Callable[[SharedStore], Awaitable[None]]) -> Callable[[SharedStore], Awaitable[None]]:
    SHARED_CHECKS.append(SharedCheck(run.__name__.removeprefix("_"), str(run.__doc__), run))
    return run


async def _leader(store: SharedStore, *batches: Sequence[Record]) -> SharedJournal:
    """Return a journal that has the leadership, and these records."""
    journal = store(retention=Retention())
    list((await journal.open()).records)
    for batch in batches:
        await journal.append(batch)
    return journal


async def _successor(store: SharedStore, leadership: Leadership | None = None) -> tuple[SharedJournal, Recovered]:
    """Return another journal that took the leadership from whoever has it, as it was seen."""
    journal = store(retention=Retention())
    journal.depose(leadership or await journal.read_leadership())
    return journal, await journal.open()


async def _close(*journals: SharedJournal) -> None:
    for journal in journals:
        await journal.close()


@_check
async def _any_node_reads_the_leadership(store: SharedStore) -> None:
    """Any node sees who leads, its last record, and a heartbeat that rises with every append and confirm (N-1)."""
    watching = store(retention=Retention())
    empty = await watching.read_leadership()
    expect((empty.is_held, empty.last_seq), (False, 0), "the seat that nobody had")
    leader = await _leader(store)
    leaderships = [await watching.read_leadership()]
    await leader.append([grant(1), grant(2)])
    leaderships.append(await watching.read_leadership())
    await leader.confirm(7)
    leaderships.append(await watching.read_leadership())
    await leader.close()
    leaderships.append(await watching.read_leadership())
    heartbeats = [leadership.heartbeat for leadership in leaderships]
    expect(heartbeats, sorted(set(heartbeats)), "the beats, each higher than the one before")
    expect([leadership.is_held for leadership in leaderships], [True, True, True, False], "whether it is held")
    expect([leadership.last_seq for leadership in leaderships], [0, 2, 2, 2], "the last numbers")
    expect(
        {(leadership.epoch, leadership.term_id) for leadership in leaderships},
        {(1, leaderships[0].term_id)},
        "one tenure",
    )
    expect({leadership.authority for leadership in [empty, *leaderships]}, {empty.authority}, "one authority")
    await watching.close()


@_check
async def _held_leadership_is_not_acquired(store: SharedStore) -> None:
    """A killed node keeps the leadership until another deposes it by what was seen; then that is known (N-2)."""
    killed = await _leader(store, [grant(1)])
    other = store(retention=Retention())
    await expect_refusal(other.open(), JournalLockedError, "the seat of one who did not give it back")
    successor, recovered = await _successor(store)
    expect((recovered.epoch, recovered.was_closed), (2, False), "the epoch, and whether the seat was given back")
    expect(list(recovered.records), [grant(1)], "the records")
    await successor.close()
    expect((await other.open()).was_closed, True, "whether the next one found it given back")
    await _close(other, killed)


@_check
async def _deposed_node_writes_nothing(store: SharedStore) -> None:
    """A deposed node can neither append, confirm nor archive, and gets an error; nothing of it is stored (I9)."""
    first = await _leader(store, [grant(1)], [grant(2)])
    second, recovered = await _successor(store)
    expect([record.seq for record in recovered.records], [1, 2], "what the second finds")
    await expect_refusal(first.append([grant(3, "stale")]), DeposedError, "an append after the seat was lost")
    await expect_refusal(first.confirm(99_000), DeposedError, "a confirm after the seat was lost")
    await expect_refusal(archived(first, 2), DeposedError, "an archive after the seat was lost")
    await second.append([grant(3)])
    await expect_refusal(first.append([grant(3, "stale")]), DeposedError, "the same append again")
    expect(await read(second), ({}, [grant(1), grant(2), grant(3)]), "the records")
    await first.close()
    expect((await second.read_leadership()).is_held, True, "whether the seat is held after the first was closed")
    await second.append([grant(4)])
    await second.close()


@_check
async def _archive_of_a_deposed_node_does_not_count(store: SharedStore) -> None:
    """A new leader finds the final state: an archive step that still runs in a past term does not change it."""
    for steps in (0, 1, 2, 5, 20, 80):
        first = store(retention=Retention())
        first.depose(await first.read_leadership())
        before = len(list((await first.open()).records))
        seq = (await first.read_leadership()).last_seq
        await first.append([grant(seq + 1)])
        await first.append([grant(seq + 2)])
        archiving = asyncio.create_task(archived(first, seq + 2, count=30))
        for _ in range(steps):
            await asyncio.sleep(0)
        second, recovered = await _successor(store)
        found = tables_of(recovered.values), list(recovered.records)
        await asyncio.wait([archiving])
        error = archiving.exception()
        expect(error is None or isinstance(error, JournalUnavailableError | DeposedError), True, f"{error!r} is said")
        expect(await read(second), found, f"what is there later, taken after {steps} steps")
        expect(len(found[1]) in {0, before + 2}, True, f"a tail of {len(found[1])} records, all or none")
        await archived(second, seq + 2)
        expect((await read(second))[1], [], "the tail once the second archived it")
        await _close(second, first)


@_check
async def _live_leader_is_not_deposed(store: SharedStore) -> None:
    """A leadership is taken only as it was seen: if its leader wrote since, or another took it, it is not (N-2)."""
    leader = await _leader(store, [grant(1)])
    seen = await leader.read_leadership()
    await leader.confirm(5)
    late = store(retention=Retention())
    late.depose(seen)
    await expect_refusal(late.open(), JournalLockedError, "a seat whose leader confirmed since it was seen")
    await leader.append([grant(2)])
    seen = await leader.read_leadership()
    quick, _ = await _successor(store, seen)
    later = store(retention=Retention())
    later.depose(seen)
    await expect_refusal(later.open(), JournalLockedError, "a seat that another took since it was seen")
    await quick.append([grant(3)])
    await _close(quick, late, later, leader)


@_check
async def _lost_answer_is_resolved(store: SharedStore) -> None:
    """A write whose answer is lost is there once, whatever became of it on its way, and the term goes on (N-7)."""
    leader = await _leader(store, [grant(1)])
    seq = 1
    for fate in FATES * 2:
        store.lose_answer(fate)
        await leader.append([grant(seq + 1, fate), grant(seq + 2, fate)])
        await leader.append([grant(seq + 3)])
        seq += 3
    leadership = await leader.read_leadership()
    expect((leadership.epoch, leadership.last_seq), (1, seq), "the tenure and its last number")
    expect([record.seq for record in (await read(leader))[1]], list(range(1, seq + 1)), "the numbers")
    for fate in FATES:
        store.lose_answer(fate)
        await leader.confirm(seq)
    await leader.close()
    await store.deliver_all()
    _, records = await read(again := store(retention=Retention()))
    expect([record.seq for record in records], list(range(1, seq + 1)), "the numbers after a restart")
    await again.close()


@_check
async def _hurry_loses_nothing(store: SharedStore) -> None:
    """Whoever is in a hurry writes where the store answers, and what is said of a lost answer is so (N-12)."""
    expected = 0
    for fate in FATES:
        leader, recovered = await _successor(store)
        list(recovered.records)
        leader.hurry(5)
        await leader.append([grant(expected + 1, f"{fate}/answered")])
        store.lose_answer(fate)
        expected += 1
        said: int | None = 1
        try:
            await leader.append([grant(expected + 1, f"{fate}/lost")])
        except JournalUnavailableError:
            said = 0
        except OutcomeUnknownError:
            said = None
        await leader.close()
        await store.deliver_all()
        successor, recovered = await _successor(store)
        found = max((record.seq for record in recovered.records), default=0)
        await successor.close()
        if said is not None:
            expect(found, expected + said, f"the last record after {fate}")
        expected = found


@_check
async def _lost_answer_is_reported_truthfully(store: SharedStore) -> None:
    """If an answer is lost, and perhaps the leadership too, the reported outcome is true and final (N-12)."""
    expected: list[str] = []
    for number, fate in enumerate(FATES * 3):
        leader, recovered = await _successor(store)
        list(recovered.records)
        store.lose_answer(fate)
        successor = store(retention=Retention())
        successor.depose(await successor.read_leadership())
        name = f"{number}/{fate}"
        outcome, taken = await asyncio.gather(
            leader.append([grant(len(expected) + 1, name)]), successor.open(), return_exceptions=True
        )
        if isinstance(taken, JournalLockedError):
            # The append came first, so the leadership had changed since the look. The cut only hits the leader.
            successor.depose(await successor.read_leadership())
            taken = await successor.open()
        if isinstance(taken, BaseException):
            raise taken
        records = list(taken.records)
        is_there = len(records) > len(expected)
        match outcome:
            case None:
                expect(is_there, True, f"whether {name} is there, which was taken")
            case DeposedError() | JournalUnavailableError():
                expect(is_there, False, f"whether {name} is there, of which {outcome!r} was said")
            case OutcomeUnknownError():
                pass
            case _:
                raise ContractError(f"{outcome!r} was said of {name}")
        expected += [name, "next"] if is_there else ["next"]
        await successor.append([grant(len(expected), "next")])
        await expect_refusal(leader.append([grant(len(expected))]), JournalError, "an append of the first")
        await _close(successor, leader)
    await store.deliver_all()
    _, records = await read(again := store(retention=Retention()))
    expect([names_of(record.event) for record in records], [(name,) for name in expected], "the names, in order")
    await again.close()


@_check
async def _store_rollback_is_detected(store: SharedStore) -> None:
    """A store that lost what was durable is found out by the next write, and by whoever looks (N-21)."""
    leader = await _leader(store, [grant(1)], [grant(2)], [grant(3)])
    watching = store(retention=Retention())
    await watching.read_leadership()
    await store.lose_records(1)
    await expect_refusal(leader.confirm(1), JournalLostError, "a confirm after records were lost")
    await expect_refusal(leader.append([grant(4)]), JournalLostError, "an append after records were lost")
    await expect_refusal(watching.read_leadership(), JournalLostError, "a look by one who knew more")
    await _close(leader, watching)


@_check
async def _append_after_a_rollback_is_refused(store: SharedStore) -> None:
    """A batch that would follow records which the store lost is not taken: there would be a gap (N-21)."""
    leader = await _leader(store, [grant(1)], [grant(2)], [grant(3)])
    await store.lose_records(2)
    await expect_refusal(leader.append([grant(4)]), JournalLostError, "an append after records were lost")
    newcomer = store(retention=Retention())
    expect((await newcomer.read_leadership()).last_seq, 2, "what one who knew nothing sees")
    await _close(leader, newcomer)


@_check
async def _batch_of_four_mebibytes(store: SharedStore) -> None:
    """A batch of 4 MiB is taken as one, and is read back by the next term."""
    batch = [grant(seq, metadata="é" * (MIB // 4)) for seq in range(1, 9)]
    leader = await _leader(store, batch, [grant(9)])
    expect(leader.tail_bytes > 4 * MIB, True, f"{leader.tail_bytes} bytes in the tail")
    successor, recovered = await _successor(store)
    expect(list(recovered.records) == [*batch, grant(9)], True, "the records come back equal")
    await _close(successor, leader)


@_check
async def _time_goes_on_after_every_answer(store: SharedStore) -> None:
    """The next term goes on at the latest time that was confirmed, or that a record has, and never before (N-15)."""
    leader = await _leader(store, [grant(1)])
    await leader.confirm(40_000)
    await leader.confirm(20_000)
    expect((await leader.open()).now_ms, 40_000, "the time that is read anew")
    second, recovered = await _successor(store)
    expect(recovered.now_ms, 40_000, "the time that was confirmed")
    late = msgspec.structs.replace(grant(2), at_ms=50_000)
    await second.append([late])
    third, recovered = await _successor(store)
    expect(recovered.now_ms, 50_000, "the time of the last record")
    await third.close()
    fourth = store(retention=Retention())
    expect((await fourth.open()).now_ms, 50_000, "the time after the seat was given back")
    await _close(fourth, second, leader)


@_check
async def _follower_confirms_nothing(store: SharedStore) -> None:
    """Before `open` and after `close` nothing is confirmed: no answer may rest on it."""
    journal = store(retention=Retention())
    await expect_refusal(journal.confirm(1), JournalUnavailableError, "a confirm before open")
    await journal.open()
    await journal.confirm(1)
    await journal.close()
    await expect_refusal(journal.confirm(2), JournalUnavailableError, "a confirm after close")


@_check
async def _all_nodes_have_one_key(store: SharedStore) -> None:
    """Every node reads the same key, with and without the leadership: sessions must be good at all of them."""
    follower = store(retention=Retention())
    key = await follower.key()
    expect(len(key) >= KEY_BYTES_MIN, True, f"a key of {len(key)} bytes")
    leader = store(retention=Retention())
    recovered = await leader.open()
    expect((recovered.key, await leader.key()), (key, key), "the keys of the leader")
    await _close(leader, follower)


@_check
async def _nodes_know_of_each_other(store: SharedStore) -> None:
    """A node that reports is seen by all, once, with what it said last; no leadership is needed."""
    one, two = store(retention=Retention()), store(retention=Retention())
    await one.read_leadership()
    expect(list(await one.peers()), [], "the nodes before any told of itself")
    reported = [_peer("a", "1"), _peer("b", "1"), _peer("a", "2")]
    for peer in reported:
        await one.report(peer)
    found = [msgspec.structs.replace(peer, seen_ms_ago=0) for peer in await two.peers()]
    expect(sorted(found, key=lambda peer: peer.node), [reported[2], reported[1]], "the nodes")
    expect(found[0], reported[2], "the newest")
    await _close(one, two)


def _peer(node: str, version: str) -> Peer:
    return Peer(node=node, process=f"{node}-1", url=f"https://{node}:7420", version=version, format_max=4, tokens="t")
