"""A look back follows every kind of record, and other tasks run meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.events import Event, Record, Renewed, ends_of, grants_of, is_history
from holdfast.journal import search
from holdfast.journal.codec import encode_batch
from holdfast.journal.interface import JournalDamagedError, JournalTooNewError
from holdfast.journal.search import Latest, follow, last_by_in
from tests.contract.tools import grant, sample_events
from tests.journal.records import framed

RECORDS = [Record(seq, seq, 1_000 + seq, event) for seq, event in enumerate(sample_events(), 1)]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record.event).__name__)
def test_texts_match_every_kind_of_record(record: Record) -> None:
    """The names that a record gave away or took are those of `grants_of` and `ends_of`."""
    latest: Latest = {}
    asyncio.run(follow(encode_batch([record]), record.seq, latest))
    granted = [name for name, _ in grants_of(record.event)]
    assert list(latest) == list(dict.fromkeys(granted or ends_of(record.event)))
    for said in latest.values():
        assert (said is not None) is bool(granted)
        assert said is None or said in [(record.seq, lease) for _, lease in grants_of(record.event)]


def test_the_last_by_a_time_has_history_value() -> None:
    """In a batch of every kind of record, renewals and their like are no last record."""
    data = encode_batch(RECORDS)
    for wall_ms in range(999, 1_002 + len(RECORDS)):
        expected = max((each.seq for each in RECORDS if each.wall_ms <= wall_ms and is_history(each.event)), default=0)
        assert asyncio.run(last_by_in(data, wall_ms)) == expected


def test_follow_applies_changes_up_to_a_record() -> None:
    """Records behind the one that is asked for say nothing."""
    data = encode_batch([grant(1, "a"), grant(2, "b"), grant(3, "a")])
    for upto, expected in ((0, {}), (1, {"a": 1}), (2, {"a": 1, "b": 2}), (3, {"a": 3, "b": 2})):
        latest: Latest = {}
        asyncio.run(follow(data, upto, latest))
        assert {name: said and said[0] for name, said in latest.items()} == expected


def test_large_batch_yields_to_other_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of very many records does not hold the loop until its end."""
    monkeypatch.setattr(search, "AT_ONCE", 10)
    events: list[Event] = [grant(1).event, Renewed("job", "lease", 1, 1)]
    data = encode_batch([Record(seq, seq, seq, events[seq % 2]) for seq in range(1, 101)])

    async def turns_during(look: str) -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        await (follow(data, 100, {}) if look == "follow" else last_by_in(data, 0))
        counting.cancel()
        return turns

    for look in ("follow", "last_by"):
        assert asyncio.run(turns_during(look)) >= 9


def test_unreadable_batch_is_refused() -> None:
    """A wrong byte and an unknown kind of record are told as such, as by whoever reads records whole."""
    data = bytearray(encode_batch([grant(1)]))
    data[-1] ^= 1
    with pytest.raises(JournalDamagedError):
        asyncio.run(follow(bytes(data), 1, {}))
    unknown = framed(b"\x94\x01\x01\x01\x92\xa7unknown\x01")
    for look in (follow(unknown, 1, {}), last_by_in(unknown, 1)):
        with pytest.raises(JournalTooNewError):
            asyncio.run(look)
