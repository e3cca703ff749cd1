"""GET /ui/sessions and GET /ui/sessions/{id}: sessions, what they hold, and what they wait for.

Who sees what is `handlers.sessions.may_see`, as in the API. A list is of one access token's sessions, the newest
first, so that it is no longer than one token may make it; an operator chooses whose.
"""

from __future__ import annotations

from heapq import nlargest, nsmallest
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.values import EndedSession
from holdfast.server.handlers import paging
from holdfast.server.handlers.sessions import may_see
from holdfast.server.pages import site
from holdfast.server.pages.rows import Field, Row, fields_of, row_of, sign_of
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.core.values import Moment, Session
    from holdfast.server.access.auth import Caller
    from holdfast.server.api import Api
    from holdfast.server.operations.call import Call
    from holdfast.server.render import Answered

SHOWN = 100
"""How many sessions, names or places stand on one page."""
OWNERS_SHOWN = 50
OWNERS_LOOKED_AT_MAX = 10_000
LIST_QUERY = {"token": "Whose sessions.", "from": "The first to show, counted from the newest."}
ONE_QUERY = {"after": "Only names after this one: the next page."}


class Run(msgspec.Struct, frozen=True):
    """One session."""

    session_id: str
    name: str | None
    principal: str
    opened_ms: int
    until_ms: int
    """Wall time."""
    ttl_ms: int
    holds: int
    waits: int
    fields: tuple[Field, ...]


class Waits(msgspec.Struct, frozen=True):
    """One place in a line that ends with a session."""

    names: tuple[str, ...]
    hidden: int
    """How many names of it lie outside of the reader's prefix."""
    since_ms: int
    is_there: bool


class One(msgspec.Struct, frozen=True):
    """One session with what it has."""

    run: Run | None
    ended: EndedSession | None
    rows: tuple[Row, ...] = ()
    next_after: str | None = None
    hidden: int = 0
    """How many names that it holds lie outside of the reader's prefix."""
    waits: tuple[Waits, ...] = ()
    waits_left_out: int = 0


def run_of(session: Session, state: State, now: Moment) -> Run:
    """Show a session."""
    held = state.index.names_by_session.get(session.session_id, ())
    waits = state.index.tickets_by_session.get(session.session_id, ())
    return Run(
        session.session_id,
        session.name,
        session.principal,
        session.opened_wall_ms,
        now.wall_ms + session.until_ms - now.ms,
        session.ttl_ms,
        len(held),
        len(waits),
        fields_of(session.metadata),
    )


# The list.


class Owners:
    """Counts the sessions of each access token that the reader may see, a slice at a time."""

    def __init__(self, api: Api, caller: Caller) -> None:
        self._api, self._caller = api, caller
        self._left: list[str] | None = None
        self.counts: dict[str, int] = {}

    def take_slice(self, state: State, _now: Moment) -> bool:
        """Count some, and tell whether all are counted."""
        owned = state.index.sessions_by_principal
        if self._left is None:
            self._left = list(islice(owned, OWNERS_LOOKED_AT_MAX)) if "admin" in self._caller.scopes else []
        some, self._left = self._left[: paging.SLICE_NAMES], self._left[paging.SLICE_NAMES :]
        for principal in some:
            if principal in owned and may_see(self._api, self._caller, principal):
                self.counts[principal] = len(owned[principal])
        return not self._left

    @property
    def most(self) -> list[tuple[str, int]]:
        """Those with the most sessions."""
        return nlargest(OWNERS_SHOWN, self.counts.items(), key=lambda each: each[1])


def sessions(api: Api, call: Call) -> None:
    """GET /ui/sessions."""
    caller = call.caller
    asked = call.query.get("token", "").strip()
    start = call.query.get("from", "")
    first = int(start) if start.isdecimal() and start.isascii() and len(start) <= len(str(paging.LIMIT_MAX)) else 0
    owners = Owners(api, caller)

    def view(state: State, now: Moment) -> tuple[list[Run], int, str, Moment]:
        whose = asked or _whose(caller, owners)
        if not may_see(api, caller, whose):
            return [], 0, whose, now
        own = state.index.sessions_by_principal.get(whose, {})
        ids = list(islice(reversed(own), first, first + SHOWN))
        if caller.session is not None:
            # A session's secret knows that session alone (S3).
            ids = [each for each in own if each == caller.session]
        total = len(own) if caller.session is None else len(ids)
        return [run_of(state.sessions[each], state, now) for each in ids], total, whose, now

    async def look() -> Answered:
        seq = api.engine.state.seq
        await paging.in_slices(api.engine, owners.take_slice)
        runs, total, whose, now = await api.engine.look(view)
        return await site.large_page(
            api,
            call,
            now,
            "sessions.html",
            "sessions",
            seq=seq,
            runs=runs,
            total=total,
            whose=whose,
            owners=owners.most,
            first=first,
            shown=SHOWN,
        )

    api.answer_later(call, look)


def _whose(caller: Caller, owners: Owners) -> str:
    """Return whose sessions are shown unasked: one's own, or, for an operator without any, those of who has most."""
    if caller.principal in owners.counts or not owners.counts:
        return caller.principal
    return owners.most[0][0]


# One of them.


def session(api: Api, call: Call) -> None:
    """GET /ui/sessions/{id}."""
    caller, session_id, after = call.caller, call.item, call.query.get("after", "")
    if caller.session not in {None, session_id}:
        raise _unknown()

    def view(state: State, now: Moment) -> tuple[One, Moment]:
        found, ended = state.sessions.get(session_id), state.remembered.get(session_id)
        if found is not None and may_see(api, caller, found.principal):
            return one_of(found, state, now, caller.prefix, after), now
        if isinstance(ended, EndedSession) and may_see(api, caller, ended.principal):
            return One(None, ended), now
        return One(None, None), now

    async def look() -> Answered:
        seq = api.engine.state.seq
        found, now = await api.engine.look(view)
        if found.run is None and found.ended is None:
            return call.refusal(_unknown(), call.request)
        return await site.large_page(
            api, call, now, "session.html", "sessions", seq=seq, id=session_id, found=found, sign_of=sign_of
        )

    api.answer_later(call, look)


def _unknown() -> Problem:
    """Return the same for a session that is not there, and for one of somebody else: a job's page may lead to it."""
    said = "There is no such session of your access token. Those of others are shown to operators (the scope admin)."
    return Problem("not_found", said, label="Session not found")


def one_of(session: Session, state: State, now: Moment, prefix: str | None, after: str = "") -> One:
    """Show a session with what it holds, in the order of names, and with its places in lines."""
    held = state.index.names_by_session.get(session.session_id, {})
    seen = [name for name in held if name.startswith(prefix or "")]
    names = nsmallest(SHOWN + 1, (name for name in seen if name > after))
    rows = [row_of(name, lease, state, now) for name in names[:SHOWN] if (lease := state.lease_of(name)) is not None]
    tickets = state.index.tickets_by_session.get(session.session_id, {})
    waits = [_waits(ticket_id, state, prefix or "") for ticket_id in islice(tickets, SHOWN)]
    return One(
        run_of(session, state, now),
        None,
        tuple(rows),
        names[SHOWN - 1] if len(names) > SHOWN else None,
        len(held) - len(seen),
        tuple(waits),
        len(tickets) - len(waits),
    )


def _waits(ticket_id: str, state: State, prefix: str) -> Waits:
    ticket = state.tickets[ticket_id]
    seen = tuple(name for name in ticket.names if name.startswith(prefix))
    is_there = ticket_id in state.presence.present
    return Waits(seen[:SHOWN], len(ticket.names) - len(seen), ticket.joined_wall_ms, is_there)
