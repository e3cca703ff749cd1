"""Recovery: after any restart the state is what was acknowledged, bit for bit, and no token is given twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.commands import (
    Acquire,
    CreateToken,
    EndSession,
    KeepSession,
    OpenSession,
    Release,
    Renew,
    RevokeToken,
)
from holdfast.core.events import Ended, Granted, Opened, Record, Renewed, SessionEnded
from holdfast.core.evolve import evolve
from holdfast.core.outcomes import Acquired, Released
from holdfast.core.values import Limits, Terms
from holdfast.engine.archiver import ArchivePolicy
from holdfast.engine.engine import Engine
from holdfast.engine.waiters import Unavailable
from holdfast.journal.interface import JournalDamagedError
from holdfast.journal.sqlite.journal import SqliteJournal
from tests.engine.harness import (
    FateJournal,
    acquire,
    history,
    many_cases,
    picture,
    release,
    renew,
    run,
    serving,
    tail,
    turns,
)
from tests.support.commands import altered
from tests.support.memory_journal import MemoryJournal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.core.commands import Command
    from holdfast.core.values import Instant
    from holdfast.testing.clock import ManualClock

# Small on purpose: memories are forgotten, quotas met and keys dropped within a few steps.
SMALL = Limits(
    leases_per_principal_max=4,
    retry_memory_ms=2_000,
    retry_bytes_max=4_000,
    ended_bytes_max=900,
    session_ttl_ms_max=12_000,
)

names = st.sampled_from(["a", "b", "c", "d/e", "f"])
people = st.sampled_from(["ana", "ben"])
keys = st.sampled_from([None, None, "k1", "k2"])
sessions = st.sampled_from(["s1", "s2"])
ids = st.integers(1, 40).map(lambda number: f"id-{number}")

commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(
        acquire,
        names,
        ids,
        principal=people,
        ttl_ms=st.sampled_from([500, 3_000, 60_000]),
        delay_ms=st.sampled_from([0, 0, 1_000]),
        owner=st.sampled_from([None, "x"]),
        resume=st.booleans(),
        key=keys,
    ),
    st.builds(acquire, names, ids, principal=people, session=sessions, bound=st.booleans()),
    st.builds(renew, names, ids, principal=people, ttl_ms=st.sampled_from([None, 300, 9_000]), note=keys, key=keys),
    st.builds(release, names, ids, principal=people, failed=st.booleans(), key=keys),
    st.builds(OpenSession, principal=people, session_id=sessions, ttl_ms=st.just(10_000), key=keys),
    st.builds(KeepSession, principal=people, session_id=sessions),
    st.builds(EndSession, principal=people, session_id=sessions, key=keys),
    st.builds(CreateToken, principal=people, name=names, digest=ids, scopes=st.just(("read",)), key=keys),
    st.builds(RevokeToken, principal=people, name=names, key=keys),
)
waits = st.sampled_from([1, 100, 250, 700, 2_500, 11_000])
"""Milliseconds; the loop's timer ends what falls due meanwhile."""


class _Ids:
    """Makes ids fresh where a command would make something, as the engine's callers do."""

    def __init__(self) -> None:
        self._count = 0
        self._sessions: dict[str, str] = {}

    def freshen(self, command: Command, known: list[tuple[str, str]]) -> Command:
        """Give what is made an id never used; let a renewal or release speak of a lease that was once granted."""
        self._count += 1
        match command:
            case Acquire(terms=Terms(session=session)):
                own = self._sessions.get(session or "", session)
                return altered(command, lease_id=f"lease-{self._count}", session=own)
            case OpenSession(session_id=session_id):
                self._sessions[session_id] = f"session-{self._count}"
                return altered(command, session_id=self._sessions[session_id])
            case KeepSession(session_id=session_id) | EndSession(session_id=session_id):
                return altered(command, session_id=self._sessions.get(session_id, session_id))
            case Renew(lease_id=wanted) | Release(lease_id=wanted) if known:
                name, lease_id = known[-1 - int(wanted.removeprefix("id-")) % min(len(known), 4)]
                return altered(command, name=name, lease_id=lease_id)
            case _:
                return command


@many_cases
@given(
    st.lists(
        st.one_of(commands, commands, commands, waits, st.sampled_from(["crash", "restart", "archive"])), max_size=60
    )
)
def test_recovered_state_equals_live_state(steps: list[Command | int | str]) -> None:
    """After any commands, waits, crashes and archives, replay gives the same durable state, bit for bit (I15)."""

    async def test(clock: ManualClock) -> None:
        journal, fresh = MemoryJournal(), _Ids()
        engine = _engine(journal, clock)
        await engine.start()
        known: list[tuple[str, str]] = []
        for step in [*steps, "crash"]:
            match step:
                case int():
                    await asyncio.sleep(step / 1000)
                case "archive":
                    await engine.archive()
                    assert engine._archiver._refused is None, "the changes did not fit"
                case "crash" | "restart":
                    await turns()
                    live, after = engine.state, journal.fork()
                    if step == "restart":
                        await engine.stop()
                        after = journal
                    engine = _engine(after, clock)
                    clock.advance(1_000_000)
                    await engine.start()
                    evolve(live, (await tail(after))[-1])
                    assert picture(engine.state) == picture(live)
                    journal = after
                case str():
                    raise AssertionError(step)
                case _:
                    answer, _ = await engine.ask(fresh.freshen(step, known))
                    if isinstance(answer, Acquired):
                        known.append((_name_of(step), answer.lease.lease_id))
        await engine.stop()

    run(test)


def _engine(journal: Any, clock: ManualClock) -> Engine:  # noqa: ANN401 - Any journal will do.
    return Engine(journal, SMALL, clock=clock, version="test", archive_policy=ArchivePolicy(records=40))


def _name_of(command: object) -> str:
    return getattr(command, "name", "")


FATES = ["refused", "lost", "kept"]


class _Witness:
    """Remembers what was acknowledged and what was said not to have happened."""

    def __init__(self) -> None:
        self.granted: dict[str, int] = {}
        self.released: set[str] = set()
        self.denied: set[str] = set()
        self.known: list[tuple[str, str]] = []

    def reply_to(self, command: Command) -> Callable[[Any, Instant], None]:
        return lambda outcome, _: self.note(command, outcome)

    def note(self, command: Command, outcome: object) -> None:
        match outcome:
            case Acquired(lease=lease) if isinstance(command, Acquire):
                if lease.lease_id not in self.granted:
                    # In the order of their answers, tokens only rise, whatever happened in between (C6, I2).
                    assert lease.token > max(self.granted.values(), default=0)
                    self.granted[lease.lease_id] = lease.token
                    self.known.append((command.name, lease.lease_id))
                assert self.granted[lease.lease_id] == lease.token
            case Released() if isinstance(command, Release) and command.key is None:
                self.released.add(command.lease_id)
            case Unavailable() if isinstance(command, Acquire):
                self.denied.add(command.lease_id)
            case _:
                pass

    async def check(self, journal: MemoryJournal) -> None:
        """Compare with what is durable."""
        written: dict[str, int] = {}
        ended: set[str] = set()
        for event in await history(journal):
            match event:
                case Granted(lease=lease):
                    assert lease.token > max(written.values(), default=0)
                    written[lease.lease_id] = lease.token
                case Ended(lease_id=lease_id):
                    ended.add(lease_id)
                case SessionEnded(leases=leases):
                    ended.update(end.lease_id for end in leases)
                case _:
                    pass
        assert self.granted.items() <= written.items()
        assert self.released <= ended
        assert not self.denied & written.keys()


@many_cases
@given(
    st.lists(
        st.one_of(
            st.lists(commands, min_size=1, max_size=4),
            waits,
            st.sampled_from(["crash", "archive", *FATES, *FATES]),
        )
    ),
    st.booleans(),
)
def test_acknowledged_changes_survive_recovery(steps: list[list[Command] | int | str], is_at_once: bool) -> None:
    """Whatever becomes of appends, every acknowledged change is durable, no denied one is, no token comes twice.

    I5, I6, C6: with several commands a turn, refused and unknown appends, crashes between decision and append, in
    journals that append at once and in those that wait.
    """

    async def test(clock: ManualClock) -> None:
        journal, fresh, witness = FateJournal(is_at_once=is_at_once), _Ids(), _Witness()
        engine = _engine(journal, clock)
        await engine.start()
        for step in [*steps, "crash"]:
            match step:
                case int():
                    await asyncio.sleep(step / 1000)
                case "archive":
                    await engine.archive()
                case "crash":
                    # What was decided in this very turn and not yet written is gone with the process.
                    engine.submit(fresh.freshen(acquire("a"), []), lambda *_: None)
                    journal, dead = journal.after_crash(), engine
                    await dead.stop()
                    await witness.check(journal.inner)
                    engine = _engine(journal, clock)
                    await engine.start()
                case str():
                    journal.fates.append(step)
                case _:
                    for command in step:
                        asked = fresh.freshen(command, witness.known)
                        engine.submit(asked, witness.reply_to(asked))
                    await turns()
        await engine.stop()
        await witness.check(journal.inner)

    run(test)


def test_fencing_tokens_always_rise() -> None:
    """The fencing token outlives release, expiry, restart, crash and archive: it only ever rises (C6)."""

    async def test(clock: ManualClock) -> None:
        journal, tokens = MemoryJournal(), []
        for number in range(12):
            async with serving(journal, clock, limits=SMALL) as engine:
                answer, _ = await engine.ask(acquire("job", f"id-{number}", ttl_ms=500))
                tokens.append(answer.lease.token)
                if number % 3 == 0:
                    await engine.ask(release("job", f"id-{number}"))
                else:
                    await asyncio.sleep(1)
                if number % 2:
                    await engine.archive()
                if number % 4 == 1:
                    journal = journal.fork()
        assert tokens == list(range(1, 13))

    run(test)


def test_restart_writes_an_opened_record() -> None:
    """Every start writes a record of its tenure, at the time at which the last one ended (T2)."""

    async def test(clock: ManualClock) -> None:
        journal = MemoryJournal()
        for _ in range(3):
            async with serving(journal, clock):
                pass
            clock.advance(3_600_000)
        records = await tail(journal)
        assert [record.event for record in records] == [Opened(epoch, "test") for epoch in (1, 2, 3)]
        assert {record.at_ms for record in records} == {0}

    run(test)


@pytest.mark.parametrize(
    "record",
    [
        Record(3, 0, 0, Opened(1, "twice")),
        Record(5, 0, 0, Opened(1, "a gap before")),
        Record(4, -1, 0, Opened(1, "before its time")),
        Record(4, 0, 0, Renewed("nobody's", "id", 1, 1)),
    ],
)
def test_a_journal_that_does_not_fit_is_refused(record: Record) -> None:
    """Nothing is served from a journal whose records do not follow from each other: the start says so (I15)."""

    class Damaged(MemoryJournal):
        async def open(self) -> Any:  # noqa: ANN401 - The base says what it is.
            recovered = await super().open()
            return type(recovered)(recovered.epoch, recovered.values, iter([*recovered.records, record]))

    async def test(clock: ManualClock) -> None:
        good = MemoryJournal()
        async with serving(good, clock) as engine:
            await engine.ask(acquire("a"))
            await engine.ask(acquire("b"))
        engine = Engine(Damaged(shelf=good._shelf), Limits(), clock=clock, version="test")
        with pytest.raises(JournalDamagedError):
            await engine.start()
        async with serving(good, clock) as engine:
            assert len(engine.state.index.held) == 2

    run(test)


def test_recovery_from_disk(tmp_path: Path) -> None:
    """On a real disk too, the recovered state is the live one bit for bit, with and without an archive (I5, I15)."""

    async def test(clock: ManualClock) -> None:
        live = None
        for round_ in range(3):
            journal = SqliteJournal(tmp_path, disk_reserve_bytes=0)
            async with serving(journal, clock) as engine:
                if live is not None:
                    last = Record(live.seq + 1, live.now_ms, 0, Opened(engine.state.epoch, "test"))
                    evolve(live, last)
                    assert picture(engine.state) == picture(live)
                for number in range(600):
                    engine.submit(acquire(f"job/{number}", f"{round_}-{number}", key=f"{number}"), lambda *_: None)
                await turns()
                if round_ == 1:
                    await engine.archive()
                for number in range(0, 600, 2):
                    await engine.ask(release(f"job/{number}", f"{round_}-{number}"))
                await asyncio.sleep(7)
                assert engine.failed is None
                live = engine.state

    run(test)
