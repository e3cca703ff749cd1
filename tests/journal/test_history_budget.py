"""A search in the history costs a bounded amount, whatever the journal holds; its pages together miss nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from holdfast.core.events import Granted, GrantedMany, Record
from holdfast.core.values import Lease
from holdfast.journal.codec import decode_batch, encode_batch
from holdfast.journal.interface import HistoryQuery
from holdfast.journal.sqlite import tail
from holdfast.journal.sqlite.journal import SqliteJournal
from tests.journal.records import WALL_MS
from tests.journal.runner import run

RECORDS = 60
NAMES = 500


def _many(seq: int) -> Record:
    """A record that grants many names, one of them `wanted`."""
    names = ["wanted", *(f"job/{seq}/{number:04}" for number in range(NAMES))]
    lease = Lease(f"lease-{seq}", seq, "ci", "ana", None, False, 1, 1, 0, None, None, 1, 1)
    return Record(seq, seq, WALL_MS + seq, GrantedMany(tuple(Granted(name, lease) for name in names)))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the records that were made from bytes, in order."""
    made: list[int] = []
    decode = decode_batch

    def count(data: bytes, holding: Sequence[bytes] = ()) -> Iterator[Record]:
        for record in decode(data, holding):
            made.append(record.seq)
            yield record

    for module in (tail,):
        monkeypatch.setattr(module, "decode_batch", count)
    return made


@pytest.mark.parametrize("compacted", [0, RECORDS // 2, RECORDS])
def test_a_search_makes_a_bounded_number_of_records(tmp_path: Path, decoded: list[int], compacted: int) -> None:
    """A page ends when enough was decoded, in the tail and in the table; pages together have each record once."""
    pages: list[list[int]] = []
    costs: list[int] = []

    async def scene(journal: SqliteJournal) -> None:
        for seq in range(1, RECORDS + 1):
            await journal.append([_many(seq)])
        if compacted:
            await journal.archive(compacted, b"head", [], WALL_MS)
        for owner, found in (("ana", list(range(RECORDS, 0, -1))), ("job", [])):
            pages.clear()
            before: int | None = None
            while not pages or before is not None:
                decoded.clear()
                page = await journal.history(HistoryQuery(name="wanted", owner=owner, before_seq=before, limit=1_000))
                pages.append([record.seq for record in page.records])
                costs.append(len(decoded))
                before = page.next_before
            assert [seq for page in pages for seq in page] == found
            assert len(pages) > 1

    run(scene, tmp_path)
    size = len(encode_batch([_many(1)]))
    assert max(costs) <= tail.DECODED_BYTES_MAX // size + 1 + tail.SLICE_BYTES // size + 1


@pytest.mark.parametrize("compacted", [0, RECORDS])
def test_search_decodes_only_batches_with_the_owner(tmp_path: Path, decoded: list[int], compacted: int) -> None:
    """A search for an owner whose name stands in no record decodes none: neither in the tail nor in the table."""

    async def scene(journal: SqliteJournal) -> None:
        for seq in range(1, RECORDS + 1):
            await journal.append([_many(seq)])
        if compacted:
            await journal.archive(compacted, b"head", [], WALL_MS)
        decoded.clear()
        page = await journal.history(HistoryQuery(name="wanted", owner="nobody", limit=1_000))
        assert (page.records, decoded) == ([], [])

    run(scene, tmp_path)


def test_other_records_of_a_batch_are_not_made(tmp_path: Path, decoded: list[int]) -> None:
    """Of a batch of many records only those are decoded in which the name stands."""

    async def scene(journal: SqliteJournal) -> None:
        lease = Lease("id", 1, "ci", "ana", None, False, 1, 1, 0, None, None, 1, 1)
        await journal.append([Record(seq, seq, WALL_MS, Granted(f"job/{seq:03}/", lease)) for seq in range(1, 201)])
        page = await journal.history(HistoryQuery(name="job/007/"))
        assert [record.seq for record in page.records] == [7]

    run(scene, tmp_path)
    assert decoded == [7]
