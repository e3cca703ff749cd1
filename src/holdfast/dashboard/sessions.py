"""GET /ui/sessions and GET /ui/sessions/{id}: sessions, what they hold, and what they wait for.

`handlers.sessions.may_see` decides who sees what, as in the API. A list has the sessions of one access token, the
newest first, so its length is bounded by a token's limit. An operator chooses the token.
"""

from __future__ import annotations

from heapq import nlargest, nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.api.handlers import paging
from holdfast.api.handlers.sessions import may_see
from holdfast.core.values import EndedSession, Instant, Session
from holdfast.dashboard import site
from holdfast.dashboard.rows import row_of
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from holdfast.api.context import RequestContext
    from holdfast.api.service import ApiService
    from holdfast.core.state import State
    from holdfast.http.messages import ResponseParts

SHOWN = 100
OWNERS_SHOWN = 50
OWNERS_SCANNED_MAX = 1_000
LIST_QUERY = {"token": "Whose sessions.", "from": "The first to show, counted from the newest."}
ONE_QUERY = {"after": "Only names after this one: the next page."}


class SessionRow(msgspec.Struct, frozen=True):
    session: Session
    until_ms: int  # Wall time.
    holds: int
    waits: int


def run_of(session: Session, state: State, now: Instant) -> SessionRow:
    held = state.index.names_by_session.get(session.session_id, ())
    waits = state.index.tickets_by_session.get(session.session_id, ())
    return SessionRow(session, now.wall_ms + session.until_ms - now.ms, len(held), len(waits))


def sessions(api: ApiService, context: RequestContext) -> None:
    caller = context.caller
    start = context.query.get("from", "")
    first = int(start) if start.isdecimal() and start.isascii() and len(start) <= len(str(paging.LIMIT_MAX)) else 0

    def view(state: State, now: Instant) -> tuple[dict[str, Any], Instant]:
        owned = state.index.sessions_by_principal
        scanned = islice(owned, OWNERS_SCANNED_MAX if "admin" in caller.scopes else 0)
        counts = [(each, len(owned[each])) for each in scanned if may_see(api, caller, each)]
        owners = nlargest(OWNERS_SHOWN, counts, key=lambda each: each[1])
        # The default is the caller's own token; for an operator without sessions, the token with most.
        unasked = owners[0][0] if owners and caller.principal not in owned else caller.principal
        whose = context.query.get("token", "").strip() or unasked
        own = owned.get(whose, {}) if may_see(api, caller, whose) else {}
        # A session's secret knows that session alone (S3).
        ids = own if caller.session is None else [each for each in own if each == caller.session]
        runs = [run_of(state.sessions[each], state, now) for each in islice(reversed(ids), first, first + SHOWN)]
        return {"owners": owners, "whose": whose, "runs": runs, "total": len(ids)}, now

    async def respond() -> ResponseParts:
        seq = api.engine.state.seq
        found, now = await api.engine.query(view)
        return await site.page(
            api, context, now, "sessions.html", "sessions", seq=seq, first=first, shown=SHOWN, **found
        )

    api.answer_slowly(context, respond)


def session(api: ApiService, context: RequestContext) -> None:
    caller, session_id, after = context.caller, context.item, context.query.get("after", "")
    if caller.session not in {None, session_id}:
        raise _unknown()

    def view(state: State, now: Instant) -> tuple[dict[str, Any] | None, Instant]:
        found, ended = state.sessions.get(session_id), state.remembered.get(session_id)
        if found is not None and may_see(api, caller, found.principal):
            parts = _parts_of(session_id, state, now, caller.prefix or "", after)
            return {"run": run_of(found, state, now), **parts}, now
        if isinstance(ended, EndedSession) and may_see(api, caller, ended.principal):
            return {"run": None, "ended": ended}, now
        return None, now

    async def respond() -> ResponseParts:
        seq = api.engine.state.seq
        found, now = await api.engine.query(view)
        if found is None:
            return context.refusal(_unknown(), context.request)
        return await site.page(api, context, now, "session.html", "sessions", seq=seq, id=session_id, **found)

    api.answer_slowly(context, respond)


def _unknown() -> Problem:
    """The same for unknown sessions and those of others: a job's page may link to them."""
    text = "There is no such session of your access token. Those of others are shown to operators (the scope admin)."
    return Problem("not_found", text, label="Session not found")


def _parts_of(session_id: str, state: State, now: Instant, prefix: str, after: str) -> dict[str, Any]:
    """Return what a session holds, in the order of names, and what it waits for, within `prefix`."""
    held = state.index.names_by_session.get(session_id, {})
    seen = [name for name in held if name.startswith(prefix)]
    names = nsmallest(SHOWN + 1, (name for name in seen if name > after))
    rows = [row_of(name, lease, state, now) for name in names[:SHOWN] if (lease := state.lease_of(name)) is not None]
    tickets = state.index.tickets_by_session.get(session_id, {})
    waiting = [
        (state.tickets[ticket_id], ticket_id in state.connected.attached) for ticket_id in islice(tickets, SHOWN)
    ]
    return {
        "rows": rows,
        "next_after": names[SHOWN - 1] if len(names) > SHOWN else None,
        "hidden": len(held) - len(seen),
        "waits": [
            (ticket, [each for each in ticket.names if each.startswith(prefix)], is_connected)
            for ticket, is_connected in waiting
        ],
        "waits_left_out": len(tickets) - len(waiting),
        "shown": SHOWN,
    }
