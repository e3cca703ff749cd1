"""How much one page of the history has, in bytes and in entries, whatever the records in it say."""

from __future__ import annotations

import json
from typing import Any

from holdfast.api.handlers.history import history_reply
from holdfast.api.handlers.paging import PAGE_BYTES
from holdfast.api.rendering import encode
from holdfast.core.events import Ended, Left, Record
from holdfast.core.values import Done
from holdfast.engine.build import HistoryPage, HistoryQuery

LABELS = {f"k{number:09}" * 6: "v" * 120 for number in range(14)}
WAITERS = 2_000


def _record(seq: int) -> Record:
    """The end of a lease with a long line, as it was written by those who repeated names and labels."""
    left = tuple(Left(f"t-{number}", "done", ("job",), f"o-{number}", LABELS) for number in range(WAITERS))
    return Record(seq, 0, 0, Ended("job", "l", 1, "released", True, done=Done("ana", 1, None, 0, 9), left=left))


def test_a_page_is_bounded_in_bytes_inside_a_record() -> None:
    """A record of megabytes is told page by page: none is much larger than a page, and none says anything twice."""
    records = [_record(8), _record(5)]
    entries: list[tuple[int, str | None]] = []
    before: int | None = None
    offset = pages = 0
    while pages == 0 or before is not None:
        before_seq = before + 1 if before is not None and offset else before
        query = HistoryQuery(name="job", before_seq=before_seq, limit=1_000)
        found = [record for record in records if before_seq is None or record.seq < before_seq]
        reply: Any = history_reply(HistoryPage(found, None), query, offset)
        assert len(encode(reply)) < PAGE_BYTES + 10_000
        entries += [(int(seq), owner) for seq, owner in map(_who, reply.history)]
        before, offset = reply.next_before, reply.next_offset or 0
        pages += 1
    line = [f"o-{number}" for number in reversed(range(WAITERS))]
    assert entries == [(seq, owner) for seq in (8, 5) for owner in (*line, None)]
    assert pages > 5


def test_a_small_limit_makes_a_small_page() -> None:
    """One record is asked for and 100 of its entries are told, not all 2,001."""
    reply = history_reply(HistoryPage([_record(8)], None), HistoryQuery(name="job", limit=1), 0)
    assert (len(reply.history), reply.next_before, reply.next_offset) == (100, 8, 100)


def _who(item: bytes) -> tuple[int, str | None]:
    said = json.loads(bytes(item))
    return said["seq"], said["owner"]
