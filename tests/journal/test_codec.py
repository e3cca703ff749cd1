"""What was written is read back, or nothing is: damage never becomes a wrong record, nor an old journal unreadable."""

import asyncio
import base64
import json
import struct
import types
import zlib
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import apsw
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.events import Ended, Event, Record, is_history
from holdfast.core.state import State
from holdfast.engine import snapshot
from holdfast.journal.base import HistoryQuery, JournalDamagedError
from holdfast.journal.codec import FORMAT, count_records, decode_batch, encode_batch, seal, unseal
from holdfast.journal.inspect import as_json, dump, inspect
from holdfast.journal.sqlite import FILE, SqliteJournal
from tests.contract.suite import sample_events
from tests.journal.golden.make import COMPACTED, GOLDEN, SNAPSHOT_UPTO, sample_records
from tests.support import proof

EXAMPLES = proof.count("journal: examples of records")
NUMBERS = sorted(int(path.stem.removeprefix("records-")) for path in GOLDEN.glob("records-*.jsonl"))


def values_of(kind: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401 — a type or a union of them
    """Values of a type, as its annotations say."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind)
        return st.builds(kind, **{field: values_of(hints[field]) for field in kind.__struct_fields__})
    if get_origin(kind) is tuple and Ellipsis not in get_args(kind):
        return st.tuples(*(values_of(item) for item in get_args(kind)))
    if get_origin(kind) is tuple:
        return st.lists(values_of(get_args(kind)[0]), max_size=3).map(tuple)
    if get_origin(kind) is dict:
        return st.dictionaries(*(values_of(item) for item in get_args(kind)), max_size=3)
    if isinstance(kind, types.UnionType):
        return st.one_of([values_of(item) for item in get_args(kind)])
    plain: dict[Any, st.SearchStrategy[Any]] = {
        str: st.text(max_size=20),
        int: st.integers(-(2**63), 2**63 - 1),
        bool: st.booleans(),
        types.NoneType: st.none(),
    }
    return plain[kind]


RECORDS = values_of(Record)


def golden_lines(number: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (GOLDEN / f"records-{number}.jsonl").read_text("utf-8").splitlines()]


def same_where_golden_speaks(golden: Any, now: Any) -> bool:  # noqa: ANN401 — whatever JSON can say
    """Tell whether everything the golden record says is still said; what was added since may stand beside it."""
    match golden:
        case dict():
            return golden.keys() <= now.keys() and all(
                same_where_golden_speaks(golden[key], now[key]) for key in golden
            )
        case list():
            return len(golden) == len(now) and all(map(same_where_golden_speaks, golden, now))
        case _:
            return type(golden) is type(now) and golden == now


def read_or_refused(data: bytes) -> list[Record] | None:
    try:
        return list(decode_batch(data))
    except JournalDamagedError:
        return None


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(RECORDS, max_size=5))
def test_records_are_read_back_equal(records: list[Record]) -> None:
    """A batch of any records comes back equal, in order, and can be counted without being read (I5)."""
    data = encode_batch(records)
    assert list(decode_batch(data)) == records
    assert count_records(data) == len(records)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(RECORDS, min_size=1, max_size=3), st.data())
def test_changed_byte_is_refused(records: list[Record], data: st.DataObject) -> None:
    """A byte that changed, wherever it is, is found: nothing wrong is ever read (I5)."""
    whole = bytearray(encode_batch(records))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(JournalDamagedError):
        list(decode_batch(bytes(whole)))
    with pytest.raises(JournalDamagedError):
        count_records(bytes(whole))


@pytest.mark.parametrize("record", sample_records(), ids=lambda record: type(record.event).__name__)
def test_every_changed_byte_of_a_record_is_refused(record: Record) -> None:
    """In a record of every kind, every single bit that flips and every byte that becomes 0 or 255 is found (I5)."""
    whole = encode_batch([record])
    for place, byte in enumerate(whole):
        for changed in {0, 255, *(byte ^ 1 << bit for bit in range(8))} - {byte}:
            damaged = whole[:place] + bytes([changed]) + whole[place + 1 :]
            assert read_or_refused(damaged) is None, f"byte {place}: {byte} became {changed}"


@pytest.mark.parametrize("record", sample_records(), ids=lambda record: type(record.event).__name__)
def test_cut_record_is_refused(record: Record) -> None:
    """A record that ends early or goes on too long is found; a cut between two records is left to the numbering."""
    whole = encode_batch([record])
    assert all(read_or_refused(whole[:end]) is None for end in range(1, len(whole)))
    assert all(read_or_refused(whole + whole[:end]) is None for end in range(1, len(whole)))
    assert all(read_or_refused(whole + bytes(end)) is None for end in range(1, 64))
    assert read_or_refused(whole + whole) == [record, record]


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    """Bytes that nobody wrote are no records; they are refused, and nothing else is raised."""
    assert read_or_refused(noise) in (None, [])
    assert read_or_refused(seal(noise)) is None


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.binary(max_size=200), st.data())
def test_part_of_snapshot_is_sealed(body: bytes, data: st.DataObject) -> None:
    """A part of a snapshot comes back equal, and a changed byte or a missing end of it is found (I5)."""
    whole = bytearray(seal(body))
    assert unseal(bytes(whole)) == body
    with pytest.raises(JournalDamagedError):
        unseal(bytes(whole[: data.draw(st.integers(0, len(whole) - 1))]))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(JournalDamagedError):
        unseal(bytes(whole))


def test_newer_format_is_refused() -> None:
    """A frame of a format this version does not know is refused, and the text says both numbers."""
    body = msgspec.msgpack.encode(sample_records()[0])
    for version in (0, FORMAT + 1, 255):
        frame = struct.pack("<BII", version, len(body), zlib.crc32(body)) + body
        with pytest.raises(JournalDamagedError, match=f"format {version}; this version reads formats 1 to {FORMAT}"):
            list(decode_batch(frame))


def test_unknown_event_is_refused() -> None:
    """A record of a kind this version does not know checks out but is refused: skipping it would be a wrong state."""
    frame = seal(msgspec.msgpack.encode([1, 1, 1, ["no_such_event"]]))
    with pytest.raises(JournalDamagedError, match="cannot be read"):
        list(decode_batch(frame))


def test_added_field_has_its_default_in_old_records() -> None:
    """A record that was written before a field was added is read with the field's default."""
    short = [7, 70, 700, ["ended", "job", "lease-1", 3, "released", True]]
    expected = Record(7, 70, 700, Ended("job", "lease-1", 3, "released", True))
    long = [*short[:3], ["ended", *msgspec.structs.astuple(expected.event), "from the future"]]
    assert list(decode_batch(seal(msgspec.msgpack.encode(short)))) == [expected]
    assert list(decode_batch(seal(msgspec.msgpack.encode(long)))) == [expected]


@pytest.mark.parametrize("number", NUMBERS)
def test_golden_records_replay(number: int) -> None:
    """Every record that a version ever wrote is still read, and says what it said then."""
    lines = golden_lines(number)
    data = b"".join(bytes.fromhex(line["frame"]) for line in lines)
    now = [json.loads(json.dumps(as_json(record))) for record in decode_batch(data)]
    assert same_where_golden_speaks([line["record"] for line in lines], now)


def test_golden_records_have_every_event() -> None:
    """Every kind of record is in a golden journal. Once one was added: `python -m tests.journal.golden.make`."""
    tags = {line["record"]["event"] for number in NUMBERS for line in golden_lines(number)}
    assert {str(kind.__struct_config__.tag) for kind in get_args(Event)} <= tags


def give_empty_snapshot(journal: Path) -> None:
    """Let the snapshot of a golden journal be one of an empty state: it has two parts that no state is in."""
    parts = [seal(part) for part in snapshot.encode(State().freeze())]
    db = apsw.Connection(str(journal))
    db.execute("DELETE FROM snapshot_part").fetchall()
    db.executemany(
        "INSERT INTO snapshot_part VALUES (?, ?, ?)", [(SNAPSHOT_UPTO, *numbered) for numbered in enumerate(parts)]
    )
    scalars = {"parts": len(parts), "checksum": zlib.crc32(b"".join(parts))}
    db.executemany("UPDATE meta SET value = ?2 WHERE key = ?1", list(scalars.items()))
    db.close()


@pytest.mark.parametrize("number", NUMBERS)
def test_golden_journal_opens(number: int, tmp_path: Path) -> None:
    """Every journal file that a version ever wrote still opens: its records and its history are there."""
    golden = [line["record"] for line in golden_lines(number)]
    packed = (GOLDEN / f"journal-{number}.txt").read_text("ascii")
    (tmp_path / FILE).write_bytes(zlib.decompress(base64.b64decode(packed)))
    upto = SNAPSHOT_UPTO if number in COMPACTED else 0
    if upto:
        give_empty_snapshot(tmp_path / FILE)
    assert inspect(tmp_path).problems == ()

    async def scene() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        journal = SqliteJournal(tmp_path, ballast_bytes=0)
        recovered = await journal.open()
        tail = list(recovered.records)
        history = (await journal.history(HistoryQuery())).records
        await journal.close()
        return [as_json(record) for record in tail], [as_json(record) for record in history]

    tail, history = json.loads(json.dumps(asyncio.run(scene())))
    assert same_where_golden_speaks(golden[upto:], tail)
    kept = {str(event.__struct_config__.tag) for event in sample_events() if is_history(event)}
    assert same_where_golden_speaks([record for record in golden[::-1] if record["event"] in kept], history)
    dumped = [record for record in golden if record["event"] in kept or record["seq"] > upto]
    assert same_where_golden_speaks(dumped, json.loads(json.dumps(list(dump(tmp_path)))))
