"""GET /ui/jobs/{name}: one job's page. Its owner, its line, why it cannot be had, its timeline, what can be done to it.

Every name has a page: one that is free, done or was never claimed says so. What it shows costs a page of history, which
has a budget, and looks at the state that are bounded (`views.looks`). History is read first and the state then, so the
state may be a little newer: the lease that it knows counts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from holdfast.engine.build import HistoryQuery
from holdfast.engine.ids import new_uuid
from holdfast.server.pages import site
from holdfast.server.pages.views import timeline
from holdfast.server.pages.views.looks import job_of
from holdfast.server.pages.views.offers import offers_for
from holdfast.server.pages.views.told import happened, page_of, story_of

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.core.values import Lease, Moment
    from holdfast.server.api import Api
    from holdfast.server.operations.call import Call
    from holdfast.server.pages.views.looks import Job
    from holdfast.server.pages.views.offers import Offers
    from holdfast.server.render import Answered

RECORDS = 100
"""How many records of history one page shows at most."""
QUERY = {
    "name": "The job, where its name cannot stand in a path.",
    "before": "Only records before this number: the next page of history.",
    "offset": "How much of record `before` was told on the page before.",
    "line": "The first place in the line to show.",
    "did": "What was just done: for the sentence that says so.",
}
_NUMBER = re.compile(r"[0-9]{1,16}")
_OK = 200


class Tried(msgspec.Struct, frozen=True):
    """A form that was sent and not done, shown again with what is wrong."""

    verb: str
    problem: str
    status: int
    reason: str = ""
    to_owner: str = ""


def job(api: Api, call: Call) -> None:
    """GET /ui/jobs/{name}."""
    show(api, call)


def by_query(api: Api, call: Call) -> None:
    """GET /ui/jobs?name=…: the same. Without a name it leads to the list."""
    name = call.query.get("name", "").strip()
    if not name:
        call.answer(site.redirect("/"))
        return
    api.name_for(name, call.caller)
    call.item = name
    show(api, call)


def show(api: Api, call: Call, tried: Tried | None = None) -> None:
    """Answer with the page; after a form that was not done, with what was wrong with it."""
    name, query = call.item, call.query
    before, offset = _number(query.get("before")), _number(query.get("offset")) or 0
    line_from = _number(query.get("line")) or 1
    wanted = HistoryQuery(name=name, before_seq=before + 1 if before is not None and offset else before, limit=RECORDS)

    def view(state: State, now: Moment) -> tuple[Job, Offers, Lease | None, Moment]:
        found = job_of(state, now, name, call.caller.prefix, line_from)
        return found, offers_for(state, now, name, call.caller), state.lease_of(name), now

    async def look() -> Answered:
        seq = api.engine.state.seq
        told = page_of(await api.engine.history(wanted), name, offset=offset, before=before)
        found, offers, lease, now = await api.engine.look(view)
        is_newest = before is None
        story = story_of(told, lease, is_newest=is_newest)
        return await site.large_page(
            api,
            call,
            now,
            "job.html",
            "jobs",
            _OK if tried is None else tried.status,
            seq=seq,
            job=found,
            offers=offers,
            tried=tried,
            did=query.get("did", ""),
            key=new_uuid(),
            path=site.path_of(name),
            drawing=timeline.draw(story, now.wall_ms, is_newest=is_newest),
            happened=[happened(record, each) for record, each in told.told],
            is_newest=is_newest,
            next_before=told.next_before,
            next_offset=told.next_offset,
        )

    api.answer_later(call, look)


def _number(text: str | None) -> int | None:
    """Return a number of the address; what is none is passed over, as all that a page does not know."""
    return int(text) or None if text is not None and _NUMBER.fullmatch(text) else None
