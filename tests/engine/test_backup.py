"""Backups of a running engine, and directories that are made of them: one instant, and nothing given out twice (C6)."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.events import Restored
from holdfast.core.evolve import event_fits
from holdfast.core.state import TABLES, Frozen, State, StateScalars
from holdfast.core.values import TOKEN_MAX
from holdfast.engine import backup as backups
from holdfast.engine.backup import BackupWriter, backup_of_directory
from holdfast.engine.engine import Engine
from holdfast.engine.recovery import TOKEN_GAP, TOKEN_GAP_PER_MS
from holdfast.engine.restore import Contents, read_backup, restore, start_after
from holdfast.journal.interface import HistoryQuery, JournalError, JournalLostError, JournalUnavailableError
from holdfast.journal.sqlite.archive import FILE as ARCHIVE
from holdfast.journal.sqlite.inspect import dump, inspect
from holdfast.journal.sqlite.journal import FILE, SqliteJournal
from holdfast.testing.clock import ManualClock
from tests.engine.harness import acquire, release, run, serving

KEY, KEY_FILE = b"k" * 32, "authority.key"


def journal_in(directory: Path) -> SqliteJournal:
    return SqliteJournal(directory, disk_reserve_bytes=0, witnesses=(KEY_FILE,))


async def granted(engine: Engine, name: str, **more: Any) -> Any:  # noqa: ANN401 - it is whatever was answered
    outcome, _ = await engine.ask(acquire(name, f"lease of {name}", **more))
    return outcome.lease


async def given_back(engine: Engine, name: str) -> None:
    await engine.ask(release(name, f"lease of {name}"))


async def saved(engine: Engine, file: Path) -> Contents:
    with file.open("wb") as opened:
        async for piece in backups.backup(engine, KEY, "test", BackupWriter()):
            opened.write(piece)
    return read_backup(file)


def put_back(file: Path, directory: Path, *, after_ms: int, beyond: int = 0) -> int:
    """Restore, so long after the backup was made, and return the last fencing token that counts as given out."""
    contents = read_backup(file)
    wall_ms = contents.about.wall_ms + after_ms
    start = start_after(contents, wall_ms, beyond)
    how: dict[str, Any] = {"key_file": KEY_FILE, "wall_ms": wall_ms, "version": "test"}
    restore(file, contents, start, directory, tell=lambda _reported: None, **how)
    return start.last_token


def made(tmp_path: Path, *, jobs: int = 3) -> Path:
    """A backup of an engine that has given out some leases, with more of them after the backup."""
    file = tmp_path / "it.backup"

    async def scene(clock: ManualClock) -> None:
        async with serving(journal_in(tmp_path / "lost"), clock) as engine:
            for number in range(jobs):
                await granted(engine, f"job-{number}", ttl_ms=60_000)
            await saved(engine, file)
            await granted(engine, "since")

    run(scene)
    return file


@pytest.mark.parametrize("archived", [0, 600, 1_200], ids=["nothing archived", "half of it", "all of it"])
def test_backup_shows_one_instant(archived: int, tmp_path: Path) -> None:
    """What is decided and archived while a backup is made is not in it, and nothing that was before is missing."""

    async def scene(clock: ManualClock) -> None:
        async with serving(journal_in(tmp_path / "data"), clock) as engine:
            for number in range(1_200):
                await granted(engine, f"job-{number}", owner="ana", metadata="x" * 100)
                if number + 1 == archived:
                    await engine.archive()
            await given_back(engine, "job-7")
            before = engine.state.freeze()
            pieces: list[bytes] = []
            async for piece in backups.backup(engine, KEY, "test", BackupWriter()):
                pieces.append(piece)
                await granted(engine, f"meanwhile-{len(pieces)}")
                await given_back(engine, f"job-{100 + len(pieces)}")
                if len(pieces) == 3:
                    await engine.archive()
            assert len(pieces) > 4, "it came in many pieces"
            (tmp_path / "file").write_bytes(b"".join(pieces))
            found = read_backup(tmp_path / "file")
            assert found.frozen == before
            assert found.totals.records == 1_202, "each grant, an end, and the start"
            assert (found.about.seq, found.totals.last_token, found.key) == (1_202, 1_200, KEY)

    run(scene)


def test_backup_works_while_archiving_fails(tmp_path: Path) -> None:
    """While nothing can be archived a backup is whole all the same, and restores to the same state."""
    file = tmp_path / "file"

    async def scene(clock: ManualClock) -> Frozen:
        async with serving(journal_in(tmp_path / "lost"), clock) as engine:
            await granted(engine, "before", ttl_ms=60_000)
            await engine.archive()

            async def gone(*_: object) -> None:
                raise JournalUnavailableError("archive: the archivist is gone")

            engine.journal.archive = gone  # type: ignore[method-assign, assignment]
            for number in range(300):
                await granted(engine, f"job-{number}", ttl_ms=60_000)
                if number % 2:
                    await given_back(engine, f"job-{number}")
            await engine.archive()
            await given_back(engine, "before")
            await saved(engine, file)
            return engine.state.freeze()

    want = run(scene)
    put_back(file, tmp_path / "data", after_ms=0)
    assert inspect(tmp_path / "data").problems == []

    async def after(clock: ManualClock) -> None:
        async with serving(journal_in(tmp_path / "data"), clock) as engine:
            got = engine.state.freeze()
            assert [getattr(got, table) for table in TABLES] == [getattr(want, table) for table in TABLES]
            assert got.scalars.now_ms == want.scalars.now_ms

    run(after)


def test_backup_yields_between_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much there is: nobody copies the state, no piece is large, and others have their turn between any two."""

    async def scene(clock: ManualClock) -> None:
        async with serving(journal_in(tmp_path / "data"), clock) as engine:
            await asyncio.gather(*(granted(engine, f"job-{number}", metadata="x" * 500) for number in range(5_000)))
            await engine.archive()
            await asyncio.gather(*(granted(engine, f"late-{number}", metadata="x" * 500) for number in range(2_000)))
            async with engine.journal.snapshot() as snapshot:
                tail = [len(records) async for records in snapshot.tail()]
            assert sum(tail) == 2_000 and max(tail) <= 256, "one batch has them all, and is read in slices"
            monkeypatch.setattr(State, "freeze", None)
            turns = 0

            async def take_turns() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            others = asyncio.create_task(take_turns())
            sizes, taken = [], []
            async for piece in backups.backup(engine, KEY, "test", BackupWriter()):
                sizes.append(len(piece))
                taken.append(turns)
            others.cancel()
            assert sum(sizes) > 5_000_000 and max(sizes) < 100_000
            assert all(later > earlier for earlier, later in pairwise(taken))

    run(scene)


def test_restored_state_equals_the_backup(tmp_path: Path) -> None:
    """All is as it was but the counters: leases with the time they had left, keys, sessions, tokens, history (T2)."""
    file = made(tmp_path)
    last_token = put_back(file, tmp_path / "data", after_ms=600_000)
    want = read_backup(file).frozen

    async def scene(clock: ManualClock) -> None:
        async with serving(journal_in(tmp_path / "data"), clock) as engine:
            got = engine.state.freeze()
            assert got.slots == want.slots and got.memos == want.memos and got.tokens == want.tokens
            assert engine.state.now_ms == want.scalars.now_ms, "time stood still"
            assert engine.state.lease_of("since") is None, "what came after the backup is not known"
            assert engine.state.last_token == last_token
            assert (await granted(engine, "next")).token == last_token + 1

    run(scene)
    assert inspect(tmp_path / "data", (KEY_FILE,)).problems == []
    records = [record["event"] for record in dump(tmp_path / "data")]
    assert records == ["opened", "granted", "granted", "granted", "restored", "opened", "granted"]


def test_restore_advances_both_counters_by_the_token_gap(tmp_path: Path) -> None:
    """Nobody knows what was given out since the backup: both counters go on 2^32 later, and more with the time."""
    file = made(tmp_path)
    contents = read_backup(file)
    scalars, made_ms = contents.frozen.scalars, contents.about.wall_ms
    assert scalars.last_token == 3
    for passed_ms in (0, 1, 86_400_000):
        start = start_after(contents, made_ms + passed_ms)
        assert start.last_token == 3 + TOKEN_GAP + TOKEN_GAP_PER_MS * passed_ms
        assert start.seq == scalars.seq + TOKEN_GAP + TOKEN_GAP_PER_MS * passed_ms
    assert start_after(contents, made_ms - 5_000).last_token == 3 + TOKEN_GAP, (
        "a clock that is behind takes nothing away"
    )
    assert start_after(contents, made_ms, beyond=10**12).last_token == 10**12
    assert start_after(contents, made_ms, beyond=1).last_token == 3 + TOKEN_GAP


def test_same_backup_restored_twice_gives_no_token_twice(tmp_path: Path) -> None:
    """What the first restore gave out in its time is less than the second begins with (C6)."""
    file = made(tmp_path)
    first = put_back(file, tmp_path / "first", after_ms=60_000)
    given: list[int] = []

    async def scene(clock: ManualClock) -> None:
        async with serving(journal_in(tmp_path / "first"), clock) as engine:
            given.extend([(await granted(engine, f"again-{number}")).token for number in range(900)])

    run(scene)
    assert first < min(given)
    assert put_back(file, tmp_path / "second", after_ms=61_000) > max(given)


def test_restore_without_tokens_left_is_refused(tmp_path: Path) -> None:
    """No restore begins where no token is left, and the text says what can be done."""
    contents = read_backup(made(tmp_path))
    made_ms = contents.about.wall_ms
    with pytest.raises(JournalError, match=rf"{TOKEN_MAX} is the last") as refusal:
        start_after(contents, made_ms, beyond=TOKEN_MAX)
    assert "Check that the clock of this machine is right" in str(refusal.value)
    with pytest.raises(JournalError):
        start_after(contents, made_ms + TOKEN_MAX // TOKEN_GAP_PER_MS)


def test_restored_directory_is_backed_up_and_restored_again(tmp_path: Path) -> None:
    """A backup of a stopped server's directory says the same as one over HTTP, and jumps add up."""
    first = put_back(made(tmp_path), tmp_path / "data", after_ms=1_000)
    pieces = backup_of_directory(tmp_path / "data", KEY, "test", 1_760_000_000_000, BackupWriter())
    (tmp_path / "again").write_bytes(b"".join(pieces))
    found = read_backup(tmp_path / "again")
    assert found.totals.last_token == found.frozen.scalars.last_token == first
    assert found.totals.records == 5, "the start, three grants, the restore"
    assert put_back(tmp_path / "again", tmp_path / "data-2", after_ms=0) == first + TOKEN_GAP
    events = [record for record in dump(tmp_path / "data-2") if record["event"] == "restored"]
    assert [event["last_token"] for event in events] == [first, first + TOKEN_GAP]


@pytest.mark.parametrize("what", [FILE, ARCHIVE, "notes.txt", "journal.mark"])
def test_directory_in_use_is_left_alone(what: str, tmp_path: Path) -> None:
    """Nothing is written over what is there, and the text says what to do."""
    file = made(tmp_path)
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / what).write_bytes(b"mine")
    with pytest.raises(JournalError, match=rf"is not empty: there is {what}"):
        put_back(file, data, after_ms=0)
    assert [path.name for path in data.iterdir()] == [what]
    assert (data / what).read_bytes() == b"mine"


def test_directory_with_lost_and_found_counts_as_empty(tmp_path: Path) -> None:
    """A file system of its own for the data has `lost+found` in it, and is empty all the same."""
    file = made(tmp_path)
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / "lost+found").mkdir()
    put_back(file, tmp_path / "data", after_ms=0)
    assert inspect(tmp_path / "data").problems == []


def test_restore_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """A disk that is full half way, or Ctrl-C: neither the directory nor anything in it stays."""
    file = made(tmp_path)
    contents = read_backup(file)

    def fail(_reported: int) -> None:
        raise OSError(28, "No space left on device")

    how: dict[str, Any] = {"key_file": KEY_FILE, "wall_ms": contents.about.wall_ms, "version": "test"}
    start = start_after(contents, contents.about.wall_ms)
    with pytest.raises(OSError, match="No space left"):
        restore(file, contents, start, tmp_path / "new", tell=fail, **how)
    assert not (tmp_path / "new").exists()
    (tmp_path / "there").mkdir(mode=0o700)
    with pytest.raises(OSError, match="No space left"):
        restore(file, contents, start, tmp_path / "there", tell=fail, **how)
    assert list((tmp_path / "there").iterdir()) == []


def _killed(file: Path, data: Path) -> None:
    contents = read_backup(file)
    how: dict[str, Any] = {"key_file": KEY_FILE, "wall_ms": contents.about.wall_ms, "version": "test"}
    restore(file, contents, start_after(contents, 0), data, tell=lambda _reported: os._exit(9), **how)


def _killed_at_once(file: Path, data: Path) -> None:
    """Be killed when the first thing is written: before anything is sure to last."""
    os.fsync = lambda _file: os._exit(9)  # type: ignore[assignment]
    _killed(file, data)


def _killed_with_its_key(file: Path, data: Path) -> None:
    """Be killed when the key is written under a name of its own, and not yet in its place."""
    os.replace = os.rename = lambda *_: os._exit(9)
    _killed(file, data)


@pytest.mark.parametrize("killed", [_killed_at_once, _killed_with_its_key])
def test_restore_killed_in_its_first_step_leaves_a_marker(tmp_path: Path, killed: Callable[[Path, Path], None]) -> None:
    """A restore that is killed before its key is there leaves what a server refuses to begin anew on."""
    file, data = made(tmp_path), tmp_path / "data"
    data.mkdir(mode=0o700)
    process = multiprocessing.get_context("spawn").Process(target=killed, args=(file, data))
    process.start()
    process.join()
    assert process.exitcode == 9

    async def start(clock: ManualClock) -> None:
        async with serving(journal_in(data), clock):
            pass

    with pytest.raises(JournalLostError, match="a restore broke off there"):
        run(start)
    with pytest.raises(JournalError, match=r"A restore broke off there: remove \."):
        put_back(file, data, after_ms=0)


def test_killed_restore_is_not_served(tmp_path: Path) -> None:
    """No server begins anew on what a killed restore left, and the next restore says what to remove."""
    file, data = made(tmp_path), tmp_path / "data"
    process = multiprocessing.get_context("spawn").Process(target=_killed, args=(file, data))
    process.start()
    process.join()
    assert process.exitcode == 9

    async def start(clock: ManualClock) -> None:
        async with serving(journal_in(data), clock):
            pass

    with pytest.raises(JournalLostError, match="a restore broke off there"):
        run(start)
    with pytest.raises(JournalError, match=r"A restore broke off there: remove \.restoring, authority\.key"):
        put_back(file, data, after_ms=0)
    shutil.rmtree(data)
    put_back(file, data, after_ms=0)
    run(start)


def test_earlier_journal_is_refused_in_a_restored_directory(tmp_path: Path) -> None:
    """A restored journal is another one: the lost one, put back beside the new mark, would give its tokens again."""
    file = made(tmp_path)
    put_back(file, tmp_path / "data", after_ms=0)
    shutil.copy(tmp_path / "lost" / FILE, tmp_path / "data" / FILE)

    async def start(clock: ManualClock) -> None:
        async with serving(journal_in(tmp_path / "data"), clock):
            pass

    with pytest.raises(JournalLostError, match="is another journal"):
        run(start)


def test_restored_record_requires_a_rising_counter() -> None:
    """A record that lets the counter fall is damage, and not replayed."""
    state = State.thaw(Frozen(StateScalars(5, 0, 40, 1), {}, {}, {}, {}, {}, {}, {}))
    assert event_fits(state, Restored(41, 5, 0, "test"))
    assert not event_fits(state, Restored(40, 5, 0, "test"))


def test_restore_preserves_the_history_of_a_name(tmp_path: Path) -> None:
    """What is known of a name goes with it: who had it, and how that ended."""
    file = tmp_path / "file"

    async def before(clock: ManualClock) -> None:
        async with serving(journal_in(tmp_path / "lost"), clock) as engine:
            lease = await granted(engine, "job", owner="ana")
            await engine.ask(release("job", lease.lease_id))
            await engine.archive()
            await granted(engine, "job", owner="bea")
            await saved(engine, file)

    async def after(clock: ManualClock) -> None:
        async with serving(journal_in(tmp_path / "data"), clock) as engine:
            page = await engine.history(HistoryQuery(name="job"))
            kinds = [type(record.event).__name__ for record in page.records]
            assert kinds == ["Granted", "Ended", "Granted"]
            assert engine.journal.history_begins_after > TOKEN_GAP, "readers of before are told to look anew (I16)"
            await engine.archive()
            assert len((await engine.history(HistoryQuery(name="job"))).records) == 3

    run(before)
    put_back(file, tmp_path / "data", after_ms=0)
    run(after)
    assert inspect(tmp_path / "data").problems == []
