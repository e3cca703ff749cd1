"""GET /?at=…: who held what at a moment, as a page; and GET /ui/marks: where leases ended badly, for the slider.

The page shows the state as of one record, so that its next pages, a reload and a shared link agree. Heartbeats, notes
and deadlines of that time are not in the history (`handlers/history.py`).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from holdfast.api.handlers.history import (
    AsOf,
    AsOfQuery,
    history_start,
    number_of,
    require_history,
    resolve_as_of,
    time_of,
)
from holdfast.api.rendering import encode, rfc3339
from holdfast.core.events import Ended, Record, events_by_name
from holdfast.dashboard import site
from holdfast.dashboard.history import history_row, owner_of
from holdfast.dashboard.jobs import Search, prefix_for, read_search
from holdfast.dashboard.rows import DAY_MS, JobRow
from holdfast.durations import milliseconds
from holdfast.engine.build import Held, HeldQuery, HistoryQuery
from holdfast.http.messages import ResponseParts
from holdfast.wire.problems import Problem
from holdfast.wire.replies import TimelineMarker, TimelineMarkersReply

if TYPE_CHECKING:
    from holdfast.api.context import RequestContext
    from holdfast.api.service import ApiService
    from holdfast.core.values import Instant
    from holdfast.engine.engine import Engine

PAGE_ROWS = 100
NAMES_PER_QUERY = 1_000  # Names per query if the search needs more than names.
QUERIES_MAX = 10  # Queries per page: then it ends with what it found, and a link to the next.
MARKERS_MAX = 500
_AGO = " ago"
_TIMES = "A moment is a time like 2026-01-31T02:14:00Z, a time of day like 02:14 (UTC), or how long ago, like 2h ago."
_CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?")


def show(api: ApiService, context: RequestContext) -> None:
    query: dict[str, str] = context.query
    search = read_search(query.get("q", ""))
    prefix = prefix_for(context.caller, search)

    async def respond() -> ResponseParts:
        engine = api.engine
        now: Instant = await engine.query(lambda _state, now: now)
        rows: list[JobRow] = []
        as_of: AsOf | None = None
        problem: Problem | None = None
        next_after: str | None = None
        try:
            as_of = await resolve_as_of(engine, read_moment(query, now.wall_ms))
            if prefix is not None:
                rows, next_after = await _rows(engine, as_of, prefix, search, query.get("after"))
        except Problem as refused:
            problem = refused
        at_ms = now.wall_ms if as_of is None or as_of.wall_ms is None else as_of.wall_ms
        record = 0 if as_of is None else as_of.record
        as_of_query = {"at": rfc3339(at_ms), "record": str(record)}
        return await site.page(
            api,
            context,
            now,
            "moment.html",
            "jobs",
            200 if problem is None else problem.status,
            rows=rows,
            at_ms=at_ms,
            record=record,
            problem=problem,
            begins_ms=await history_start(engine),
            onward=None if next_after is None else _address(query, **as_of_query, after=next_after),
            to_now=_address(query),
            q=query.get("q", ""),
            sort=query.get("sort", ""),
            is_first="after" not in query,
            moment_at="" if problem is not None else rfc3339(at_ms),
        )

    api.answer_slowly(context, respond)


def read_moment(query: dict[str, str], now_ms: int) -> AsOfQuery:
    """Parse the moment. A time of day alone is the most recent one, in UTC."""
    text, record = query.get("at", ""), query.get("record")
    ago_ms = milliseconds(text.removesuffix(_AGO)) if text.endswith(_AGO) else None
    if _CLOCK.fullmatch(text):
        at_ms: int | None = _last_past(text, now_ms)
    elif ago_ms is not None:
        at_ms = max(0, now_ms - ago_ms)
    else:
        try:
            at_ms = time_of(text, "at")
        except Problem:
            raise Problem("invalid_input", _TIMES) from None
    return AsOfQuery(at_ms, None if record is None else number_of(record))


def _last_past(clock: str, now_ms: int) -> int:
    hour, minute, second = (int(part) for part in f"{clock}:00".split(":")[:3])
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    at = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
    return int((at if at <= now else at - timedelta(milliseconds=DAY_MS)).timestamp() * 1000)


async def _rows(
    engine: Engine, as_of: AsOf, prefix: str, search: Search, after: str | None
) -> tuple[list[JobRow], str | None]:
    """Return the rows of a page, and the name to continue after. Raises if the history was dropped meanwhile."""
    found: list[JobRow] = []
    labels = frozenset((key, value) for key, value in search.labels if value is not None)
    limit = PAGE_ROWS if search.is_prefix_only else NAMES_PER_QUERY
    for _ in range(QUERIES_MAX):
        query = HeldQuery(seq=as_of.record, after=after, prefix=prefix, labels=labels, limit=limit)
        page = await engine.journal.held(query)
        fitting = [row for row in map(past_row, page.held) if search.matches(row)]
        space = PAGE_ROWS - len(found)
        found += fitting[:space]
        after = found[-1].name if len(fitting) > space else page.next_after
        if after is None or len(fitting) > space:
            break
    await require_history(engine, as_of.record)
    return found, after


def past_row(held: Held) -> JobRow:
    """Return the row of a name that was held, with the lease as it was granted."""
    lease = held.lease
    since = lease.granted_wall_ms
    return JobRow(
        held.name,
        owner_of(lease),
        lease.token,
        since,
        since,
        since + lease.ttl_ms,
        lease.ttl_ms,
        unnamed=lease.owner is None,
        labels=lease.labels or {},
        session=lease.session or "",
        bound=lease.bound,
    )


def _address(query: dict[str, str], **more: str) -> str:
    fields = {field: query[field] for field in ("q", "sort") if query.get(field)} | more
    return "/?" + urlencode(fields) if fields else "/"


def markers(api: ApiService, context: RequestContext) -> None:
    before = context.query.get("before")
    wanted = HistoryQuery(
        badly=True, before_seq=None if before is None else number_of(before, "before"), limit=MARKERS_MAX
    )
    prefix = context.caller.prefix or ""

    async def respond() -> ResponseParts:
        engine = api.engine
        now = await engine.query(lambda _state, now: now)
        page = await engine.journal.history(wanted)
        found = [marker for record in page.records if (marker := marker_of(record, prefix)) is not None]
        begins_ms = await history_start(engine)
        begins = None if begins_ms is None else rfc3339(begins_ms)
        return 200, encode(TimelineMarkersReply(found, page.next_before, begins, rfc3339(now.wall_ms))), ()

    api.answer_slowly(context, respond)


def marker_of(record: Record, prefix: str) -> TimelineMarker | None:
    """Return the mark of a record that ended leases badly; None if none of their names has the prefix."""
    changes = events_by_name(record.event)
    ended = [(name, change) for name, change in changes if isinstance(change, Ended) and name.startswith(prefix)]
    if not ended:
        return None
    name, change = ended[0]
    row = history_row(record, change)
    return TimelineMarker(record.seq, rfc3339(record.wall_ms), row.event, name, row.owner, len(ended) - 1)
