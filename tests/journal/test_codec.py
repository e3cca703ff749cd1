"""What was written is read back, or nothing is: damage never becomes a wrong record, nor an old journal unreadable."""

import struct
import types
import zlib
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.events import Ended, Record
from holdfast.journal.codec import FORMAT, count_records, decode_batch, encode_batch
from holdfast.journal.interface import JournalDamagedError
from tests.journal.records import framed, sample_records
from tests.support import proof

EXAMPLES = proof.count("journal: examples of records")


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
    encoded = bytearray(encode_batch(records))
    offset = data.draw(st.integers(0, len(encoded) - 1))
    encoded[offset] ^= data.draw(st.integers(1, 255))
    with pytest.raises(JournalDamagedError):
        list(decode_batch(bytes(encoded)))
    with pytest.raises(JournalDamagedError):
        count_records(bytes(encoded))


@pytest.mark.parametrize("record", sample_records(), ids=lambda record: type(record.event).__name__)
def test_every_changed_byte_of_a_record_is_refused(record: Record) -> None:
    """In a record of every kind, every single bit that flips and every byte that becomes 0 or 255 is found (I5)."""
    encoded = encode_batch([record])
    for offset, byte in enumerate(encoded):
        for changed in {0, 255, *(byte ^ 1 << bit for bit in range(8))} - {byte}:
            damaged = encoded[:offset] + bytes([changed]) + encoded[offset + 1 :]
            assert read_or_refused(damaged) is None, f"byte {offset}: {byte} became {changed}"


@pytest.mark.parametrize("record", sample_records(), ids=lambda record: type(record.event).__name__)
def test_cut_record_is_refused(record: Record) -> None:
    """A record that ends early or goes on too long is found; a cut between two records is left to the numbering."""
    encoded = encode_batch([record])
    assert all(read_or_refused(encoded[:end]) is None for end in range(1, len(encoded)))
    assert all(read_or_refused(encoded + encoded[:end]) is None for end in range(1, len(encoded)))
    assert all(read_or_refused(encoded + bytes(end)) is None for end in range(1, 64))
    assert read_or_refused(encoded + encoded) == [record, record]


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    """Bytes that nobody wrote are no records; they are refused, and nothing else is raised."""
    assert read_or_refused(noise) in (None, [])
    assert read_or_refused(framed(noise)) is None


def test_newer_format_is_refused() -> None:
    """A frame of a format this version does not know is refused, and the text says both numbers."""
    body = msgspec.msgpack.encode(sample_records()[0])
    for version in (0, FORMAT + 1, 255):
        frame = struct.pack("<BII", version, len(body), zlib.crc32(body)) + body
        with pytest.raises(JournalDamagedError, match=f"format {version}; this version reads formats 1 to {FORMAT}"):
            list(decode_batch(frame))


def test_unknown_event_is_refused() -> None:
    """A record of a kind this version does not know checks out but is refused: skipping it would be a wrong state."""
    frame = framed(msgspec.msgpack.encode([1, 1, 1, ["no_such_event"]]))
    with pytest.raises(JournalDamagedError, match="cannot be read"):
        list(decode_batch(frame))


def test_added_field_has_its_default_in_old_records() -> None:
    """A record that was written before a field was added is read with the field's default."""
    short = [7, 70, 700, ["ended", "job", "lease-1", 3, "released", True]]
    expected = Record(7, 70, 700, Ended("job", "lease-1", 3, "released", True))
    long = [*short[:3], ["ended", *msgspec.structs.astuple(expected.event), "from the future"]]
    assert list(decode_batch(framed(msgspec.msgpack.encode(short)))) == [expected]
    assert list(decode_batch(framed(msgspec.msgpack.encode(long)))) == [expected]
