"""GET /ui/jobs/{name}: the page of one job, and its forms. Free and unknown names have a page too.

    state ──► view_of: owner, queue, why ─┬─► job.html        POST …/revoke | reopen | transfer ──► back to it
    journal ──► history ──────────────────┘

The work is bounded for any queue and any wait graph. No lease id and no ticket is shown. History is read before the
state, so the state may be newer: its lease counts.

**Forms.** A form carries the fencing token of the lease that its reader saw. If the name has another lease by then, the
handler shows the page again and does nothing. Each form has an idempotency key, so sending it twice has one effect.
Nothing is awaited between the check of the lease and the decision.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.api.decoding import fingerprint, read_uuid
from holdfast.core.commands import Reopen, Revoke, Transfer
from holdfast.core.deadlock import why
from holdfast.core.outcomes import HandedOver, OpenAgain, Released
from holdfast.core.state import EMPTY, State
from holdfast.core.values import OWNER_CHARS_MAX, REASON_CHARS_MAX, Done, Instant, Lease
from holdfast.dashboard import site
from holdfast.dashboard.history import draw, history_row, job_history_of, timeline_of
from holdfast.dashboard.rows import FreeJob, JobRow, free_job_of, row_of
from holdfast.engine.build import HistoryQuery
from holdfast.engine.ids import new_uuid

if TYPE_CHECKING:
    from holdfast.api.context import RequestContext
    from holdfast.api.service import ApiService, Renderer
    from holdfast.http.messages import ResponseParts

WAITERS_SHOWN = 100
LINKS_SHOWN = 12  # Of a chain; the rest is only counted.


def view_of(state: State, now: Instant, name: str, prefix: str | None, first_waiter: int = 1) -> dict[str, Any]:
    """Return what `job.html` shows of the state."""

    def known_of(name: str) -> tuple[str, JobRow | None, FreeJob]:
        lease = state.lease_of(name)
        row = None if lease is None else row_of(name, lease, state, now)
        return state_of(state, now, name), row, free_job_of(name, state, now)

    queue = state.index.queues.get(name, {})
    first = min(max(first_waiter, 1), max(len(queue), 1))
    present = state.connected.queues.get(name)
    chain = why(state, name, prefix or "")
    shown = islice(queue, first - 1, first - 1 + WAITERS_SHOWN)
    its_state, row, gone = known_of(name)
    return {
        "name": name,
        "state": its_state,
        "slot": state.slots.get(name, EMPTY),
        "row": row,
        "gone": gone,
        "wall_ahead_ms": now.wall_ms - now.ms,
        "queue_total": len(queue),
        "queue_connected": state.waiter_count(name),
        "first_position": first,
        "queue_shown": WAITERS_SHOWN,
        "waiters": [(state.tickets[ticket_id], ticket_id in state.connected.attached) for ticket_id in shown],
        "next": state.tickets[next(iter(present))[1]] if present else None,
        "chain": [(link, *known_of(link.name)) for link in chain.links[:LINKS_SHOWN]],
        "chain_left_out": max(0, len(chain.links) - LINKS_SHOWN),
        "is_cycle": chain.is_cycle,
    }


def state_of(state: State, now: Instant, name: str) -> str:
    """Return `held`, `done`, `closed`, `free`, or `unknown` for a name that the state does not know."""
    slot = state.slots.get(name, EMPTY)
    if slot.lease is not None:
        return "held"
    if slot.done is not None and slot.done.until_ms > now.ms:
        return "done"
    if slot.closed_until_ms > now.ms:
        return "closed"
    return "unknown" if slot is EMPTY and name not in state.index.queues else "free"


RECORDS = 100
QUERY = dict.fromkeys(("name", "before", "offset", "queue", "did"), "")
_NUMBER = re.compile(r"[0-9]{1,16}")


class RejectedForm(msgspec.Struct, frozen=True):
    """A rejected form, shown again with the problem."""

    verb: str
    problem: str
    status: int
    reason: str = ""
    to_owner: str = ""


def by_query(api: ApiService, context: RequestContext) -> None:
    """GET /ui/jobs?name=…: the same, also for the name `.`; without a name, a redirect to the list."""
    name = context.query.get("name", "").strip()
    if not name:
        context.answer(site.redirect("/"))
        return
    api.name_for(name, context.caller)
    context.item = name
    show(api, context)


def show(api: ApiService, context: RequestContext, rejected: RejectedForm | None = None) -> None:
    name, query = context.item, context.query
    before, offset = _number(query.get("before")), _number(query.get("offset")) or 0
    wanted = HistoryQuery(name=name, before_seq=before + 1 if before is not None and offset else before, limit=RECORDS)

    def view(state: State, now: Instant) -> tuple[dict[str, Any], Lease | None, Instant]:
        shown = view_of(state, now, name, context.caller.prefix, _number(query.get("queue")) or 1)
        return shown, state.lease_of(name), now

    async def respond() -> ResponseParts:
        seq = api.engine.state.seq
        history = job_history_of(await api.engine.history(wanted), name, offset=offset, before=before)
        shown, lease, now = await api.engine.query(view)
        is_newest = before is None
        return await site.page(
            api,
            context,
            now,
            "job.html",
            "jobs",
            200 if rejected is None else rejected.status,
            seq=seq,
            rejected=rejected,
            did=query.get("did", ""),
            key=new_uuid(),
            path=site.path_of(name),
            drawing=draw(timeline_of(history, lease, is_newest=is_newest), now.wall_ms, is_newest=is_newest),
            history_rows=[history_row(record, each) for record, each in history.events],
            is_newest=is_newest,
            next_before=history.next_before,
            next_offset=history.next_offset,
            **shown,
        )

    api.answer_slowly(context, respond)


def _number(text: str | None) -> int | None:
    """Return a number of the query; anything else is ignored, like unknown fields."""
    return int(text) or None if text is not None and _NUMBER.fullmatch(text) else None


_CONFLICT, _UNPROCESSABLE = 409, 422
_CHANGED = "Nothing was done: this job has changed since you looked. What is so now stands below."
_SENT = "Nothing was done: this form was sent before, with other words. What came of that stands below."
_NO_REASON = f"Nothing was done: say why, in 1 to {REASON_CHARS_MAX} characters."
_NO_OWNER = f"Nothing was done: name the new owner, in 1 to {OWNER_CHARS_MAX} characters."


def revoke(api: ApiService, context: RequestContext) -> None:
    fields = _checked(api, context, "revoke", api.engine.state.lease_of(context.item))
    if fields is not None:
        api.submit(context, Revoke(**fields), {Released: _shows("revoked")})


def reopen(api: ApiService, context: RequestContext) -> None:
    fields = _checked(api, context, "reopen", api.engine.state.slots.get(context.item, EMPTY).done)
    if fields is not None:
        api.submit(context, Reopen(**fields), {OpenAgain: _shows("reopened")})


def transfer(api: ApiService, context: RequestContext) -> None:
    to_owner = _field(context, "to_owner")
    fields = _checked(api, context, "transfer", api.engine.state.lease_of(context.item), to_owner)
    if fields is not None and not 0 < len(to_owner) <= OWNER_CHARS_MAX:
        show(api, context, RejectedForm("transfer", _NO_OWNER, _UNPROCESSABLE, fields["reason"], to_owner))
    elif fields is not None:
        # Without a lease id, as an operator: the page does not know it.
        command = Transfer(**fields, lease_id=None, new_lease_id=new_uuid(), to_owner=to_owner)
        api.submit(context, command, {HandedOver: _shows("transferred")})


def _checked(
    api: ApiService, context: RequestContext, verb: str, about: Lease | Done | None, *parts: str
) -> dict[str, Any] | None:
    """Return the fields that all commands have, or show the page again if the form has no reason or another lease.

    A form that was sent before passes, if it is the same: its key gives it the first answer.
    """
    principal, reason, key = context.caller.principal, _field(context, "reason"), _key(context)
    content_hash = fingerprint(context.request, context.item, (verb, *parts, reason))
    sent = api.engine.state.memos.get((principal, key))
    token = None if about is None else about.token
    if not 0 < len(reason) <= REASON_CHARS_MAX:
        problem, status = _NO_REASON, _UNPROCESSABLE
    elif sent is not None and sent.fingerprint != content_hash:
        problem, status = _SENT, _CONFLICT
    elif sent is None and str(token) != context.body.get("token"):
        problem, status = _CHANGED, _CONFLICT
    else:
        return {"name": context.item, "principal": principal, "reason": reason, "key": key, "fingerprint": content_hash}
    show(api, context, RejectedForm(verb, problem, status, reason, _field(context, "to_owner")))
    return None


def _field(context: RequestContext, name: str) -> str:
    text: str = context.body.get(name, "")
    return text.strip()


def _key(context: RequestContext) -> str:
    """Return the key of a form, with a prefix that keeps it apart from the API's keys."""
    return f"page {read_uuid(context.body.get('key', ''), 'key')}"


def _shows(did: str) -> Renderer:
    def shown(_api: ApiService, context: RequestContext, _outcome: object, _now: Instant) -> ResponseParts:
        path = site.path_of(context.item)
        return site.redirect(f"{path}{'&' if '?' in path else '?'}did={did}")

    return shown
