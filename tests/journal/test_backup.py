"""The file of a backup: read as it was written, and never taken for whole when it is not."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.api.auth import secrets
from holdfast.core.events import is_history
from holdfast.journal.backup import (
    FORMAT,
    HEAD,
    KEY,
    KEY_BYTES,
    MAGIC,
    RECORDS,
    ROWS,
    TAIL,
    About,
    BackupReader,
    BackupWriter,
    _framed,
    frames,
    values_in,
)
from holdfast.journal.codec import decode_batch
from holdfast.journal.interface import HistoryPart, JournalDamagedError, JournalTooNewError, TailPart, Values
from tests.journal.records import grants, sample_records

ABOUT = About(version="1.2.3", seq=21, wall_ms=1_750_000_000_000)
TAIL_RECORDS = grants(22, 25)
SAMPLES = [record for record in sample_records() if is_history(record.event)]
KEY_OF_OURS = b"k" * 32
SOME = Values("slots", [(b"job", b"value"), (b"another", b"")])
OTHERS = Values("memos", [(b"\x92\xa1a\xa1b", b"\xff")])


def written(about: About = ABOUT) -> bytes:
    writer = BackupWriter()
    pieces = [writer.begin(about, KEY_OF_OURS)]
    for part in (TailPart(TAIL_RECORDS), SOME, OTHERS, HistoryPart(SAMPLES)):
        pieces += writer.put(part)
    return b"".join([*pieces, *writer.end()])


def test_backup_is_read_as_it_was_written() -> None:
    """Every frame comes back in its order, whatever pieces the bytes come in, and the end says how much there was."""
    data = written()
    for size in (1, 7, len(data)):
        reader = BackupReader("it")
        got = [frame for offset in range(0, len(data), size) for frame in reader.feed(data[offset : offset + size])]
        reader.close()
        assert [kind for kind, _ in got] == [HEAD, KEY, TAIL, ROWS, ROWS, RECORDS, b"E"]
        assert got[1][1] == KEY_OF_OURS
        assert [values_in(body) for kind, body in got if kind == ROWS] == [SOME, OTHERS]
        assert reader.about == ABOUT
        assert reader.totals is not None
        assert (reader.totals.parts, reader.totals.records) == (2, 3 + len(SAMPLES))
        assert reader.totals.last_token == 25
        assert list(decode_batch(got[2][1])) == TAIL_RECORDS
        assert list(decode_batch(got[5][1])) == SAMPLES


def test_truncated_backup_is_incomplete() -> None:
    """However little is missing at the end, it is refused: a copy that broke off is never taken for a backup."""
    data = written()
    for size in range(len(data)):
        with pytest.raises(JournalDamagedError):
            list(frames([data[:size]], "it"))


def test_changed_byte_is_found() -> None:
    """A byte that is another one, anywhere, is found."""
    data = written()
    for offset in range(0, len(data), 3):
        changed = bytearray(data)
        changed[offset] ^= 0x10
        with pytest.raises(JournalDamagedError):
            list(frames([bytes(changed)], "it"))


def test_missing_and_extra_frames_are_refused() -> None:
    """A frame that is missing, or anything behind the end, is found: each frame is whole by itself, the file is not."""
    data = written()
    writer = BackupWriter()
    writer.begin(ABOUT, KEY_OF_OURS)
    (part,) = writer.put(SOME)
    assert data.count(part) == 1
    for wrong in (data.replace(part, b""), data.replace(part, part + part), data + b"\n", data + data):
        with pytest.raises(JournalDamagedError, match="is not a whole backup"):
            list(frames([wrong], "it"))


@pytest.mark.parametrize("keys", [[], [b""], [b"k" * 5_000_000], [b"k" * 32] * 2], ids=["none", "empty", "long", "two"])
def test_backup_without_its_key_is_incomplete(keys: list[bytes]) -> None:
    """What no server could start on is refused, though every checksum is right: nothing is restored from it."""
    writer = BackupWriter()
    head = MAGIC + _framed(HEAD, msgspec.json.encode(ABOUT))
    data = writer._said(head + b"".join(_framed(KEY, key) for key in keys)) + b"".join(
        [*writer.put(SOME), *writer.end()]
    )
    with pytest.raises(JournalDamagedError, match=r"is not a whole backup: it has .* key"):
        list(frames([data], "it"))
    assert KEY_BYTES == secrets.KEY_BYTES


@pytest.mark.parametrize("data", [b"", b"hold", b"SQLite format 3\0" * 100, MAGIC[:-1]])
def test_other_file_is_no_backup(data: bytes) -> None:
    """A file of something else is said to be none."""
    with pytest.raises(JournalDamagedError, match="it is not a backup of Holdfast"):
        list(frames([data], "it"))


def test_newer_backup_error_names_the_version() -> None:
    """The file of a newer version is refused with the version that can read it."""
    newer = written(About(format=FORMAT + 1, version="9.0.0", seq=1, wall_ms=1))
    with pytest.raises(JournalTooNewError, match=r"Restore it with Holdfast 9\.0\.0 or later"):
        list(frames([newer], "it"))
