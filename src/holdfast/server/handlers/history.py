"""GET /locks/{name}/history: who owned it, when, and how that ended. Newest first, bounded and paged.

A search has a budget, and a page a size. Over either it answers with what it found and where to go on. One record can
say more of a name than fits: finished work answers everybody in line. Then the next page goes on inside that record.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from holdfast.engine.build import HistoryQuery
from holdfast.server.handlers.paging import PAGE_BYTES
from holdfast.server.render import encode
from holdfast.server.streams.happenings import changes
from holdfast.wire.problems import Problem
from holdfast.wire.replies import HistoryReply

if TYPE_CHECKING:
    from holdfast.engine.build import HistoryPage
    from holdfast.server.api import Api
    from holdfast.server.operations.call import Call
    from holdfast.server.render import Answered

LIMIT = 100
LIMIT_MAX = 1_000
WHOLE = 100
"""So many changes of one record stand on one page, however small its limit is."""
_NUMBER = re.compile(r"[0-9]{1,16}")


def check_limit(query: dict[str, str]) -> dict[str, str]:
    """Check how many records are wanted; the rest of the query is looked at after the caller is known."""
    if (_number(query.setdefault("limit", str(LIMIT)), "limit") or 0) > LIMIT_MAX:
        raise Problem("invalid_input", f"limit is 1 to {LIMIT_MAX}.")
    return query


def history(api: Api, call: Call) -> None:
    """GET /locks/{name}/history."""
    query: dict[str, str] = call.query
    before, offset = _number(query.get("before"), "before"), _number(query.get("offset"), "offset") or 0
    if offset and before is None:
        raise Problem("invalid_input", "offset goes with before: both are of the page before.")
    wanted = HistoryQuery(
        name=call.item,
        # With an offset the record of that number itself is not yet told whole.
        before_seq=before + 1 if before is not None and offset else before,
        since_wall_ms=time_of(query.get("since"), "since"),
        until_wall_ms=time_of(query.get("until"), "until"),
        owner=query.get("owner"),
        limit=int(query["limit"]),
    )

    async def look() -> Answered:
        page = await api.engine.history(wanted)
        return 200, encode(shown(page, wanted, offset)), ()

    api.answer_later(call, look)


def shown(page: HistoryPage, query: HistoryQuery, offset: int) -> HistoryReply:
    """Return what the records say of the name, newest first and as JSON, and where the next page begins.

    `offset` is how much of the first record was told before. A record that says no more than `WHOLE` is never cut.
    """
    found: list[Any] = []
    size = 0
    for number, record in enumerate(page.records, 1):
        said = [
            change for change in changes(record, lambda name: name == query.name) if query.owner in {None, change.owner}
        ]
        said.reverse()
        first = offset if number == 1 and query.before_seq == record.seq + 1 else 0
        for told, change in enumerate(said[first:], first + 1):
            item = Raw(encode(change))
            found.append(item)
            size += len(item)
            if told < len(said) and (size >= PAGE_BYTES or len(found) >= max(query.limit, WHOLE)):
                return HistoryReply(found, record.seq, told)
        if len(found) >= query.limit or number == query.limit or size >= PAGE_BYTES:
            return HistoryReply(found, record.seq)
    return HistoryReply(found, page.next_before)


def _number(text: str | None, field: str) -> int | None:
    if text is None:
        return None
    if not _NUMBER.fullmatch(text) or int(text) == 0:
        raise Problem("invalid_input", f"{field} is a whole number from 1.")
    return int(text)


def time_of(text: str | None, field: str) -> int | None:
    """Read an RFC 3339 time; without an offset it is UTC."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.replace(" ", "+"))
        return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise Problem("invalid_input", f"{field} is a time like 2026-01-31T02:14:00Z.") from None
