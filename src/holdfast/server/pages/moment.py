"""GET /?at=…: who held what at a moment, as a page; and GET /ui/marks: where things ended badly, for the slider.

The page is made whole on the server. Nothing on it moves, and nothing can be done on it. It stays at one record: its
other pages, a reload and a link that is passed on show the same. What the history does not keep is not on it
(`handlers/history.py`).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from holdfast.core.events import Ended
from holdfast.durations import milliseconds
from holdfast.engine.build import HeldQuery, HistoryQuery
from holdfast.server.handlers.history import Asked, begins_at, find, number_of, refuse_unless_kept, time_of
from holdfast.server.pages import site
from holdfast.server.pages.jobs import Span, list_address
from holdfast.server.pages.rows import DAY_MS, Row
from holdfast.server.pages.search import read_search, read_sort
from holdfast.server.render import encode
from holdfast.server.streams.happenings import concerned
from holdfast.server.times import rfc3339
from holdfast.wire.holders import shown_as
from holdfast.wire.problems import Problem
from holdfast.wire.replies import Mark, MarksReply

if TYPE_CHECKING:
    from holdfast.core.events import Record
    from holdfast.engine.build import Held
    from holdfast.engine.engine import Engine
    from holdfast.server.api import Api
    from holdfast.server.handlers.history import Then
    from holdfast.server.operations.call import Call
    from holdfast.server.pages.search import Search
    from holdfast.server.render import Answered

PAGE_ROWS = 100
LOOKED_AT_ONCE = 1_000
"""How many names are looked at together for what is searched among them."""
LOOKS_MAX = 10
"""After so many looks a page ends with what it found, and leads on."""
MARKS = 500
_AGO = " ago"
_TIMES = "A moment is a time like 2026-01-31T02:14:00Z, a time of day like 02:14 (UTC), or how long ago, like 2h ago."
_CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?")


def show(api: Api, call: Call) -> None:
    """GET / with a moment."""
    query: dict[str, str] = call.query
    search = read_search(query.get("q", ""))
    span = Span(call.caller, search)
    # The past is shown by name. The order of the list is kept for the way back to now.
    kind, is_reversed = read_sort(query.get("sort", "name"))
    sort = f"-{kind}" if is_reversed else kind

    async def look() -> Answered:
        engine = api.engine
        now = await engine.look(lambda _state, now: now)
        rows: list[Row] = []
        then: Then | None = None
        problem: Problem | None = None
        next_after: str | None = None
        try:
            then = await find(engine, read_moment(query, now.wall_ms))
            if not span.is_outside:
                rows, next_after = await _rows(engine, then, span.prefix, search, query.get("after"))
        except Problem as refused:
            problem = refused
        begins_ms = await begins_at(engine)
        at_ms = now.wall_ms if then is None or then.wall_ms is None else then.wall_ms
        onward = None
        if then is not None and next_after is not None:
            onward = _address(query, at=rfc3339(at_ms), record=str(then.record), after=next_after)
        return site.page(
            api,
            call,
            now,
            "moment.html",
            "jobs",
            200 if problem is None else problem.status,
            rows=rows,
            at_ms=at_ms,
            record=0 if then is None else then.record,
            problem=problem,
            begins_ms=begins_ms,
            onward=onward,
            q=query.get("q", ""),
            is_first="after" not in query,
            sort=sort,
            address=partial(list_address, q=query.get("q", "")),
            moment_at="" if problem is not None else rfc3339(at_ms),
        )

    api.answer_later(call, look)


def read_moment(query: dict[str, str], now_ms: int) -> Asked:
    """Read the moment in an address. A time of day alone is the last one past, in UTC: who reads it is not known."""
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
    return Asked(at_ms, None if record is None else number_of(record))


def _last_past(clock: str, now_ms: int) -> int:
    hour, minute, second = (int(part) for part in f"{clock}:00".split(":")[:3])
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    at = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
    return int((at if at <= now else at - timedelta(milliseconds=DAY_MS)).timestamp() * 1000)


async def _rows(
    engine: Engine, then: Then, prefix: str, search: Search, after: str | None
) -> tuple[list[Row], str | None]:
    """Return the rows of a page, and the name to go on after. Raises if the history of then was dropped meanwhile."""
    found, after = await _found(engine, then, prefix, search, after)
    await refuse_unless_kept(engine, then.record)
    return found, after


async def _found(
    engine: Engine, then: Then, prefix: str, search: Search, after: str | None
) -> tuple[list[Row], str | None]:
    found: list[Row] = []
    labels = frozenset((key, value) for key, value in search.labels if value is not None)
    limit = PAGE_ROWS if search.is_of_names_alone else LOOKED_AT_ONCE
    for _ in range(LOOKS_MAX):
        page = await engine.journal.held(
            HeldQuery(seq=then.record, after=after, prefix=prefix, labels=labels, limit=limit)
        )
        for held in page.held:
            row = row_then(held)
            if search.fits(row):
                if len(found) == PAGE_ROWS:
                    return found, after
                found.append(row)
            after = held.name
        after = page.next_after
        if after is None:
            break
    return found, after


def row_then(held: Held) -> Row:
    """Show a name that was held, by the lease as it was granted."""
    lease = held.lease
    since = lease.granted_wall_ms
    owner = shown_as(lease.principal) if lease.owner is None else lease.owner
    return Row(
        held.name,
        owner,
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
    kept = {field: query[field] for field in ("q", "sort") if query.get(field)}
    return "/?" + urlencode(kept | more)


# Marks.


def marks(api: Api, call: Call) -> None:
    """GET /ui/marks."""
    before = call.query.get("before")
    wanted = HistoryQuery(badly=True, before_seq=None if before is None else number_of(before, "before"), limit=MARKS)
    prefix = call.caller.prefix or ""

    async def look() -> Answered:
        engine = api.engine
        now = await engine.look(lambda _state, now: now)
        page = await engine.journal.history(wanted)
        found = [mark for record in page.records if (mark := mark_of(record, prefix)) is not None]
        begins_ms = await begins_at(engine)
        begins = None if begins_ms is None else rfc3339(begins_ms)
        return 200, encode(MarksReply(found, page.next_before, begins, rfc3339(now.wall_ms))), ()

    api.answer_later(call, look)


def mark_of(record: Record, prefix: str) -> Mark | None:
    """Say what ended badly in a record, of names that begin so; None if nothing of it concerns them."""
    ended = [
        (name, told) for name, told in concerned(record.event) if isinstance(told, Ended) and name.startswith(prefix)
    ]
    if not ended:
        return None
    name, told = ended[0]
    owner = shown_as(told.principal) if told.owner is None else told.owner
    how = "failed" if told.how == "released" else told.how
    return Mark(record.seq, rfc3339(record.wall_ms), how, name, owner, len(ended) - 1)
