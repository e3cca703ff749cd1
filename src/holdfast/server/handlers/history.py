"""GET /locks/{name}/history: who owned it, when, and how that ended. Newest first, bounded and paged."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from holdfast.engine.build import HistoryQuery
from holdfast.server.render import encode
from holdfast.server.streams.happenings import changes
from holdfast.wire.problems import Problem
from holdfast.wire.replies import HistoryReply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.core.events import Record
    from holdfast.server.api import Api
    from holdfast.server.operations.call import Call
    from holdfast.server.render import Answered
    from holdfast.wire.replies import HappenedReply

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
        records = await api.engine.history(wanted)
        found, more = _page(records, wanted)
        return 200, encode(HistoryReply(found, more)), ()

    api.answer_later(call, look)


def _page(records: Sequence[Record], query: HistoryQuery) -> tuple[list[HappenedReply], int | None]:
    """Return what the records say of the name, newest first, and where the next page begins.

    A record is never cut in two; one that says much, as of all in a line, ends the page.
    """
    found: list[HappenedReply] = []
    for number, record in enumerate(records, 1):
        said = list(changes(record, lambda name: name == query.name))
        found.extend(change for change in reversed(said) if query.owner in {None, change.owner})
        if len(found) >= query.limit or number == query.limit:
            return found, record.seq
    return found, None


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
