"""What only the SQLite journal promises: how the file is held, what is refused, how small its slices are."""

import asyncio
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.journal.codec import encode_batch
from holdfast.journal.interface import Changes, HistoryQuery, JournalDamagedError, JournalError, Retention
from holdfast.journal.sqlite import tail, watermark
from holdfast.journal.sqlite.archive import FILE as ARCHIVE
from holdfast.journal.sqlite.archive import LOCK
from holdfast.journal.sqlite.compactor import ChildCompactor, LocalCompactor
from holdfast.journal.sqlite.journal import FILE, RESERVE_FILE, SqliteJournal
from tests.journal.archive_samples import archive
from tests.journal.power_vfs import Disk, Image
from tests.journal.records import WALL_MS, grants
from tests.journal.runner import found_in, run
from tests.support import proof

FLIPS = proof.count("journal: bytes changed")


def fill(directory: Path) -> None:
    """Leave a closed journal: an archive up to record 6, then two batches up to record 10."""

    async def scene(journal: SqliteJournal) -> None:
        await journal.append(grants(1, 3))
        await journal.append(grants(4, 6))
        await journal.archive(6, b"head", [Changes("rows", new=[(b"one", b"1" * 300), (b"two", b"2" * 300)])], WALL_MS)
        await journal.append(grants(7, 8))
        await journal.append(grants(9, 10))

    run(scene, directory)


def change(directory: Path, statement: str, values: tuple[object, ...] = (), file: str = FILE) -> None:
    """Change a file behind the journal's back."""
    with closing(apsw.Connection(str(directory / file))) as db:
        db.execute(statement, values).fetchall()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def bytes_of(directory: Path) -> dict[str, bytes]:
    """All that the files hold. SQLite may have made a WAL that is empty."""
    return {path.name: data for path in directory.iterdir() if (data := path.read_bytes())}


# How the file is held.


def test_pragmas_hold_after_open(tmp_path: Path) -> None:
    """The file is locked whole, commits go to a WAL, and each is synced (I5, I9)."""

    async def scene(journal: SqliteJournal) -> None:
        await journal.append(grants(1, 1))
        await journal.open()
        db = journal._require_open("test").db
        pragmas = ("locking_mode", "journal_mode", "synchronous", "fullfsync", "checkpoint_fullfsync")
        assert [db.execute(f"PRAGMA {pragma}").get for pragma in pragmas] == ["exclusive", "wal", 2, 1, 1]

    run(scene, tmp_path)


def test_ignored_pragma_is_refused(tmp_path: Path) -> None:
    """A file system that cannot keep a WAL is refused at the start, not found out at the first power cut (I5)."""

    class NoWal(apsw.Connection):
        def execute(self, statements: str, *args: Any, **options: Any) -> apsw.Cursor:  # noqa: ANN401 - passed on as they are
            return super().execute(statements.replace("journal_mode=wal", "journal_mode=truncate"), *args, **options)

    with pytest.raises(JournalError, match="did not take journal_mode=wal"):
        asyncio.run(SqliteJournal(tmp_path, disk_reserve_bytes=0, connect=NoWal).open())


def test_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SQLite that can damage a WAL is refused with what to install."""
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(JournalError, match=r"3\.51\.2 can damage a WAL: install apsw 3\.51\.3"):
        asyncio.run(SqliteJournal(tmp_path).open())
    assert list(tmp_path.iterdir()) == []


def test_files_are_private(tmp_path: Path) -> None:
    """Only the server's own user can read what it keeps: the directory has mode 0700, the files 0600."""
    directory = tmp_path / "some" / "where"
    previous = os.umask(0o022)
    try:

        async def scene(journal: SqliteJournal) -> None:
            await journal.append(grants(1, 1))
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
            archive = {ARCHIVE + suffix: 0o600 for suffix in ("", "-wal", "-shm")}
            journal_files = {FILE: 0o600, FILE + "-wal": 0o600, RESERVE_FILE: 0o600, watermark.FILE: 0o600}
            assert modes == {**journal_files, **archive, LOCK: 0o600}

        run(scene, directory, disk_reserve_bytes=4096)
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(previous)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_new_directory_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new directory is synced into its parent, and that into its own: a power cut cannot take all of it away (I5)."""
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink()))
    fill(tmp_path / "a" / "b")
    assert synced[:2] in ([tmp_path, tmp_path / "a"], [tmp_path / "a", tmp_path])
    synced.clear()
    fill(tmp_path / "a" / "c")
    assert synced[0] == tmp_path / "a" and tmp_path not in synced


# What is refused.


def spoil_header(directory: Path) -> None:
    (directory / FILE).write_bytes(b"not a database at all" * 400)


def spoil_pages(directory: Path) -> None:
    data = bytearray((directory / FILE).read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    (directory / FILE).write_bytes(data)


def flip_batch(directory: Path) -> None:
    body = bytearray(encode_batch(grants(9, 10)))
    body[20] ^= 1
    change(directory, "UPDATE batch SET body = ? WHERE first_seq = 9", (bytes(body),))


def shorten_batch(directory: Path) -> None:
    change(directory, "UPDATE batch SET body = ? WHERE first_seq = 9", (encode_batch(grants(9, 9)),))


def spoil_archive(directory: Path) -> None:
    data = bytearray((directory / ARCHIVE).read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    (directory / ARCHIVE).write_bytes(data)


def in_archive(statement: str) -> Callable[[Path], None]:
    """Change the archive."""
    return lambda directory: change(directory, statement, file=ARCHIVE)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "not a database": (spoil_header, "is damaged"),
    "broken pages": (spoil_pages, "is damaged|malformed"),
    "a changed batch": (flip_batch, "in the batch that begins with record 9, a record's checksum does not match"),
    "a short batch": (shorten_batch, "the batch of records 9 to 10 has 1"),
    "a gap": (lambda d: change(d, "DELETE FROM batch WHERE first_seq = 7"), "record 9 stands where 7 should"),
    "an archive with broken pages": (spoil_archive, "is damaged|malformed"),
    "a changed value": (
        in_archive("UPDATE state SET value = x'00' WHERE key = x'6f6e65'"),
        "a value of the table rows is not the one that was written",
    ),
    "a changed key": (
        in_archive("UPDATE state SET key = x'00' WHERE key = x'6f6e65'"),
        "a value of the table rows is not the one that was written",
    ),
    "a missing value": (in_archive("DELETE FROM state WHERE key = x'6f6e65'"), "the values are not those that were"),
    "no value": (in_archive("DELETE FROM state"), "the values are not those that were written"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_refused_and_unchanged(damage: str, tmp_path: Path) -> None:
    """What cannot be what was written is refused with what to do, and not a byte of it is changed (I5)."""
    spoil, text = DAMAGES[damage]
    fill(tmp_path)
    spoil(tmp_path)
    before = bytes_of(tmp_path)
    with pytest.raises(JournalDamagedError, match=text) as refusal:
        found_in(tmp_path)
    assert str(tmp_path) in str(refusal.value) and "backup" in str(refusal.value)
    assert bytes_of(tmp_path) == before


def test_no_changed_byte_of_the_file_becomes_a_wrong_state(tmp_path: Path) -> None:
    """Wherever a byte of the file changed, the journal is refused or is exactly the one that was written (I5)."""
    fill(tmp_path)
    truth = found_in(tmp_path)
    files = {str(tmp_path / name): (tmp_path / name).read_bytes() for name in (FILE, ARCHIVE)}
    seed = int(os.environ.get("HOLDFAST_SEED", "1"))
    chance = random.Random(seed)
    refused = 0
    for _ in range(FLIPS):
        changed = chance.choice(list(files))
        offset = chance.randrange(len(files[changed]))
        disk = Disk({name: Image(content) for name, content in files.items()})
        disk.files[changed].view[offset] ^= chance.randrange(1, 256)
        try:
            found = found_in(tmp_path, disk.connect, alone=True)
        except JournalError:
            refused += 1
        else:
            assert found == truth, f"byte {offset} of {changed}; again with HOLDFAST_SEED={seed}"
        finally:
            disk.unplug()
    assert refused > FLIPS // 20


def test_damage_in_the_wal_is_unchanged(tmp_path: Path) -> None:
    """Also what a crashed server left in the WAL is not moved while something in it cannot be read."""
    crashed = tmp_path / "crashed"

    async def scene(journal: SqliteJournal) -> None:
        await journal.append(grants(1, 2))
        journal._require_open("test").db.execute("UPDATE batch SET body = x'0102'")
        shutil.copytree(tmp_path / "data", crashed)

    run(scene, tmp_path / "data")
    before = bytes_of(crashed)
    assert before[FILE + "-wal"]
    with pytest.raises(JournalDamagedError, match="record 1, a frame is cut short"):
        found_in(crashed)
    assert bytes_of(crashed) == before


def test_wrong_number_inside_a_batch_is_refused(tmp_path: Path) -> None:
    """Numbers are checked record by record too: a batch whose records are not its own stops the replay (I5)."""
    fill(tmp_path)
    change(tmp_path, "UPDATE batch SET body = ? WHERE first_seq = 9", (encode_batch(grants(10, 11)),))
    with pytest.raises(JournalDamagedError, match="record 10 stands where 9 should"):
        found_in(tmp_path)


def test_refusal_leaves_the_journal_unlocked(tmp_path: Path) -> None:
    """Whoever was refused does not keep the file locked: it can be repaired and opened while the refusal is in hand."""
    fill(tmp_path)
    flip_batch(tmp_path)
    with pytest.raises(JournalDamagedError) as refusal:
        found_in(tmp_path)
    change(tmp_path, "UPDATE batch SET body = ? WHERE first_seq = 9", (encode_batch(grants(9, 10)),))
    assert found_in(tmp_path)[1] == [7, 8, 9, 10]
    assert refusal.value is not None


def test_other_schema_is_refused(tmp_path: Path) -> None:
    """A journal or an archive of a newer version is refused with both numbers and is not changed."""
    fill(tmp_path)
    change(tmp_path, "UPDATE meta SET value = 2 WHERE key = 'schema'", file=ARCHIVE)
    before = bytes_of(tmp_path)
    with pytest.raises(JournalError, match=r"archive\.sqlite3 has schema 2; this version knows 1"):
        found_in(tmp_path)
    assert bytes_of(tmp_path) == before
    change(tmp_path, "UPDATE meta SET value = 2 WHERE key = 'schema'")
    before = bytes_of(tmp_path)
    with pytest.raises(JournalError, match=r"journal\.sqlite3 has schema 2; this version knows 1"):
        found_in(tmp_path)
    assert bytes_of(tmp_path) == before


def test_foreign_database_is_refused(tmp_path: Path) -> None:
    """A database of another program is refused and not changed, not even into a WAL."""
    with closing(apsw.Connection(str(tmp_path / FILE))) as db:
        db.execute("CREATE TABLE meta (key, value)")
    before = bytes_of(tmp_path)
    with pytest.raises(JournalError, match="database of another program"):
        found_in(tmp_path)
    assert bytes_of(tmp_path) == before


def test_file_in_the_way_is_reported(tmp_path: Path) -> None:
    """A directory that cannot be made is an error of the journal that names it."""
    (tmp_path / "data").write_text("in the way")
    with pytest.raises(JournalError, match=r"data is not a directory; name one"):
        found_in(tmp_path / "data")


def test_read_only_file_is_reported(tmp_path: Path) -> None:
    """A journal that can only be read is refused at the start, not at the first claim."""
    fill(tmp_path)

    def read_only(path: str) -> apsw.Connection:
        return apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)

    with pytest.raises(JournalError, match=r"cannot be opened.*Check that the directory is writable"):
        asyncio.run(SqliteJournal(tmp_path, disk_reserve_bytes=0, connect=read_only).open())
    assert found_in(tmp_path)[1] == [7, 8, 9, 10]


# How small the slices are.


def record_commits(journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Note, for every commit to the journal, how many rows changed and how many bytes went to the WAL."""
    store, seen = journal._require_open("test"), list[tuple[int, int]]()
    wal, commit = store.path.with_name(FILE + "-wal"), store.commit
    # The WAL begins anew, so that it grows with every commit.
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def recording(operation: str, work: Callable[[], object]) -> None:
        rows, size_bytes = store.db.total_changes(), wal.stat().st_size
        commit(operation, work)
        seen.append((store.db.total_changes() - rows, wal.stat().st_size - size_bytes))

    monkeypatch.setattr(store, "commit", recording)
    return seen


def test_dropping_goes_in_small_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the tail is, no transaction of the journal drops more than a slice of rows or pages."""
    seen: list[tuple[int, int]] = []

    async def scene(journal: SqliteJournal) -> None:
        seq = 0
        for size in (*[1] * 300, 64, 64, 3_000):
            await journal.append(grants(seq + 1, seq + size))
            seq += size
        seen.extend(recorded := record_commits(journal, monkeypatch))
        await archive(journal, 0, seq)
        seen.extend(recorded)
        assert journal.tail_bytes == 0

    run(scene, tmp_path)
    assert len(seen) >= 3
    assert max(rows for rows, _ in seen) <= tail.SLICE_ROWS + 1
    assert max(size_bytes for _, size_bytes in seen) <= 256 * 4_200


@pytest.mark.parametrize("compactor", [LocalCompactor, ChildCompactor])
def test_archive_yields_between_pieces(
    compactor: type[LocalCompactor | ChildCompactor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two pieces that the archive is given, and any two that are dropped, the loop turns."""
    given: list[int] = []
    turns: list[int] = []

    async def scene(journal: SqliteJournal) -> None:
        for first in range(1, 2_000, 20):
            await journal.append(grants(first, first + 19, size=500))
        recorded = record_commits(journal, monkeypatch)

        def pieces() -> Iterator[Changes]:
            for number in range(50):
                given.append(number)
                yield Changes("rows", new=[(b"%d" % number, b"x")])

        step = asyncio.create_task(journal.archive(2_000, b"head", pieces(), WALL_MS))
        while not step.done():
            before = len(recorded), len(given)
            await asyncio.sleep(0)
            turns.append(max(len(recorded) - before[0], len(given) - before[1]))
        await step

    run(scene, tmp_path, compactor=compactor())
    assert sum(turns) > 50 and max(turns) <= 1


def test_failed_step_leaves_no_rows(tmp_path: Path) -> None:
    """A step that breaks off changes nothing; one that is over leaves no batch that it stands for in the tail."""

    def rows(journal: SqliteJournal) -> list[int]:
        tail, archive = journal._require_open("test").db, journal._compactor.reader.store.db
        counts = [tail.execute("SELECT count(*) FROM batch").get]
        return counts + [archive.execute(f"SELECT count(*) FROM {table}").get for table in ("state", "history", "name")]

    async def scene(journal: SqliteJournal) -> None:
        await journal.append(grants(1, 5))
        await journal.append(grants(6, 8))

        def breaking() -> Iterator[Changes]:
            yield Changes("rows", new=[(b"left", b"over")])
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await journal.archive(8, b"head", breaking(), WALL_MS)
        assert rows(journal) == [2, 0, 0, 0]
        await journal.archive(5, b"head", [Changes("rows", new=[(b"a", b"1")])], WALL_MS)
        assert rows(journal) == [1, 2, 4, 4]
        await journal.archive(8, b"head", [Changes("rows", new=[(b"b", b"2")])], WALL_MS + 10**12)
        # Of what is too old the newest is kept, and the grants whose leases live: by them it is known who held what.
        assert rows(journal)[:3] == [0, 3, 1]

    run(scene, tmp_path, retention=Retention(wall_ms=1000))


def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    """A crash after a step counted and before the rest was dropped leaves rows that mean nothing and then go."""
    fill(tmp_path)
    change(tmp_path, "INSERT INTO batch VALUES (1, 3, ?)", (encode_batch(grants(1, 3)),))
    assert found_in(tmp_path)[1] == [7, 8, 9, 10]

    async def scene(journal: SqliteJournal) -> None:
        expected = [r.seq for r in reversed(grants(1, 10)) if r.seq % 3]
        assert [record.seq for record in (await journal.history(HistoryQuery())).records] == expected
        await journal.archive(6, b"not written", [], WALL_MS)
        assert journal._require_open("test").db.execute("SELECT count(*) FROM batch").get == 2

    run(scene, tmp_path)
