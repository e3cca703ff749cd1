"""GET /locks/{name}/history: who owned it, when, and how that ended. Newest first, bounded and paged.

A search has a budget, and a page a size. Over either it answers with what it found and where to go on.
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
_NUMBER = re.compile(r"[0-9]{1,16}")


def check_limit(query: dict[str, str]) -> dict[str, str]:
    """Check how many records are wanted; the rest of the query is looked at after the caller is known."""
    if (_number(query.setdefault("limit", str(LIMIT)), "limit") or 0) > LIMIT_MAX:
        raise Problem("invalid_input", f"limit is 1 to {LIMIT_MAX}.")
    return query


def history(api: Api, call: Call) -> None:
    """GET /locks/{name}/history."""
    query: dict[str, str] = call.query
    wanted = HistoryQuery(
        name=call.item,
        before_seq=_number(query.get("before"), "before"),
        since_wall_ms=_time(query.get("since"), "since"),
        until_wall_ms=_time(query.get("until"), "until"),
        owner=query.get("owner"),
        limit=int(query["limit"]),
    )

    async def look() -> Answered:
        page = await api.engine.history(wanted)
        found, next_before = _shown(page, wanted)
        return 200, encode(HistoryReply(found, next_before)), ()

    task = api.answer_later(call, look)

    def stop() -> None:
        task.cancel()

    # A search may take a while, and whoever hung up does not want it.
    call.request.on_disconnect = stop


def _shown(page: HistoryPage, query: HistoryQuery) -> tuple[list[Any], int | None]:
    """Return what the records say of the name, newest first and as JSON, and where the next page begins.

    A record is never cut in two; one that says much, as of all in a line, ends the page.
    """
    found: list[Any] = []
    size = 0
    for number, record in enumerate(page.records, 1):
        said = list(changes(record, lambda name: name == query.name))
        items = [Raw(encode(change)) for change in reversed(said) if query.owner in {None, change.owner}]
        found += items
        size += sum(map(len, items))
        if len(found) >= query.limit or number == query.limit or size >= PAGE_BYTES:
            return found, record.seq
    return found, page.next_before


def _number(text: str | None, field: str) -> int | None:
    if text is None:
        return None
    if not _NUMBER.fullmatch(text) or int(text) == 0:
        raise Problem("invalid_input", f"{field} is a whole number from 1.")
    return int(text)


def _time(text: str | None, field: str) -> int | None:
    """Read an RFC 3339 time; without an offset it is UTC."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError:
        raise Problem("invalid_input", f"{field} is a time like 2026-01-31T02:14:00Z.") from None
    return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)
