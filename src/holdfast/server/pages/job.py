"""GET /ui/jobs/{name}: one job's page, and what its forms do. Every name has one, also a free or unknown one.

    state ──► job_of: owner, queue, why ──┐
    state ──► offers_for: what can be done├─► job.html        POST …/revoke | reopen | transfer ──► back to it
    journal ──► history ──────────────────┘

Each look is bounded, however long a queue is and however many waits hang together. What the API hides is not here
either: a name outside of the reader's prefix, a lease id, a ticket. History is read first and the state then, so the
state may be a little newer: the lease that it knows counts.

**Forms.** A form says which lease its reader saw, by the fencing token. If another one lives by then, nothing is done
and the page is shown again: a page that is an hour old would end another's lease. A form also has a key of its own, so
that one that is sent twice has one effect. Nothing is awaited between the look at the lease and the decision.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.answers import HandedOver, OpenAgain, Released
from holdfast.core.commands import Reopen, Revoke, Transfer
from holdfast.core.deadlock import why
from holdfast.core.state import EMPTY
from holdfast.core.values import OWNER_CHARS_MAX, REASON_CHARS_MAX
from holdfast.engine.build import HistoryQuery
from holdfast.engine.ids import new_uuid
from holdfast.server.operations.decoding import fingerprint, read_uuid
from holdfast.server.pages import site
from holdfast.server.pages.history import draw, happened, page_of, shown_owner, story_of
from holdfast.server.pages.rows import Field, Row, fields_of, row_of, sign_of, span_text
from holdfast.server.render import nameless_holder
from holdfast.wire.holders import shown_as

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.core.values import Done, LastEnd, Lease, Moment, Slot
    from holdfast.server.access.auth import Caller
    from holdfast.server.api import Api, Show
    from holdfast.server.operations.call import Call
    from holdfast.server.render import Answered

# What the page shows.


LINE_SHOWN = 100
"""How many of a line stand on one page."""
LINKS_SHOWN = 12
"""How many boxes of a chain are shown; of the rest only how many there are."""
WAITS_SHOWN = 3
"""How many of an owner's other waits a box names."""


class Place(msgspec.Struct, frozen=True):
    """One waiter in the queue."""

    number: int
    owner: str
    since_ms: int
    is_there: bool
    """Whether a request of it is open now. A waiter that is away keeps its place for a minute, and blocks nobody."""
    names: int
    """How many names it wants at once."""


class Line(msgspec.Struct, frozen=True):
    """A part of the queue, and the length of all of it."""

    total: int
    there: int
    places: tuple[Place, ...]
    first: int
    """The number of the first place that is shown."""

    @property
    def next_first(self) -> int | None:
        """Where the next part begins, if there is one."""
        behind = self.first + len(self.places)
        return behind if self.places and behind <= self.total else None

    @property
    def previous_first(self) -> int | None:
        """Where the part before begins, if there is one."""
        return None if self.first <= 1 else max(1, self.first - LINE_SHOWN)


class Box(msgspec.Struct, frozen=True):
    """One link of the chain of waits."""

    name: str
    status: str
    """`held`, `free`, `closed` or `done`."""
    owner: str = ""
    sign: str = ""
    """The sign of life of who holds it."""
    row: Row | None = None
    """Only if it is held."""
    waits_for: tuple[str, ...] = ()
    waits_left_out: int = 0


class Chain(msgspec.Struct, frozen=True):
    """Why a name cannot be had."""

    boxes: tuple[Box, ...]
    left_out: int
    is_circle: bool


class Ended(msgspec.Struct, frozen=True):
    """How the last lease ended."""

    how: str
    owner: str
    token: int
    at_ms: int
    by: str | None
    reason: str | None
    note: str | None


class Finished(msgspec.Struct, frozen=True):
    """Finished work that is remembered."""

    owner: str
    token: int
    at_ms: int
    until_ms: int
    """Wall time, as all here."""
    result: tuple[Field, ...]


class Job(msgspec.Struct, frozen=True):
    """All that is known of a name now."""

    name: str
    status: str
    """`held`, `done`, `closed`, `free`, or `unknown` for a name that the state does not know."""
    now_ms: int
    line: Line
    chain: Chain
    attempts: int
    row: Row | None = None
    """Only if it is held, as the four below."""
    sign: str = ""
    fields: tuple[Field, ...] = ()
    delay_ms: int = 0
    is_bound: bool = False
    ended: Ended | None = None
    done: Finished | None = None
    opens_ms: int | None = None
    """When a name opens that its last lease keeps closed."""


def job_of(state: State, now: Moment, name: str, prefix: str | None, line_from: int = 1) -> Job:
    """Return what the state knows of a name, also of an unknown one."""
    slot = state.slots.get(name, EMPTY)
    lease = slot.lease
    line = line_of(state, name, line_from)
    chain = chain_of(state, now, name, prefix)
    ended = None if slot.last_end is None else _ended(slot.last_end)
    if lease is None:
        done = _finished(slot.done, now)
        is_closed = done is None and slot.closed_until_ms > now.ms
        opens_ms = now.wall_ms + slot.closed_until_ms - now.ms if is_closed else None
        status = _status(state, name, slot, is_done=done is not None, is_closed=is_closed)
        return Job(name, status, now.wall_ms, line, chain, slot.attempts, ended=ended, done=done, opens_ms=opens_ms)
    row = row_of(name, lease, state, now)
    sign = sign_of(row, now.wall_ms)
    fields = fields_of(lease.metadata)
    delay_ms, is_bound = lease.delay_ms, lease.bound
    return Job(
        name, "held", now.wall_ms, line, chain, slot.attempts, row, sign, fields, delay_ms, is_bound, ended=ended
    )


def _status(state: State, name: str, slot: Slot, *, is_done: bool, is_closed: bool) -> str:
    if is_done:
        return "done"
    if is_closed:
        return "closed"
    return "unknown" if slot is EMPTY and name not in state.index.lines else "free"


def line_of(state: State, name: str, first: int = 1) -> Line:
    """Return a part of the line for a name, in the order of joining."""
    tickets = state.index.lines.get(name, {})
    total = len(tickets)
    first = min(max(first, 1), max(total, 1))
    places: list[Place] = []
    for number, ticket_id in enumerate(islice(tickets, first - 1, first - 1 + LINE_SHOWN), first):
        ticket = state.tickets[ticket_id]
        owner = shown_owner(ticket.terms.owner, ticket.terms.principal)
        is_there = ticket_id in state.presence.present
        places.append(Place(number, owner, ticket.joined_wall_ms, is_there, len(ticket.names)))
    return Line(total, state.waiting_at(name), tuple(places), first)


def chain_of(state: State, now: Moment, name: str, prefix: str | None) -> Chain:
    """Return why a name cannot be had, as `GET /locks/{name}/why` tells it, in fewer boxes."""
    chain = why(state, name, prefix or "")
    boxes: list[Box] = []
    for link in chain.links[:LINKS_SHOWN]:
        lease = link.slot.lease
        if lease is None:
            done = link.slot.done
            is_done = done is not None and done.until_ms > now.ms
            is_closed = link.slot.closed_until_ms > now.ms
            owner = shown_owner(done.owner, done.whose) if done is not None and is_done else ""
            boxes.append(Box(link.name, "done" if is_done else "closed" if is_closed else "free", owner))
        else:
            boxes.append(_held_box(link.name, lease, link.waits_for, state, now))
    return Chain(tuple(boxes), len(chain.links) - len(boxes), chain.circle)


def _held_box(name: str, lease: Lease, waits_for: tuple[str, ...], state: State, now: Moment) -> Box:
    row = row_of(name, lease, state, now)
    return Box(
        name,
        "held",
        row.owner,
        sign_of(row, now.wall_ms),
        row,
        waits_for[:WAITS_SHOWN],
        len(waits_for) - len(waits_for[:WAITS_SHOWN]),
    )


def _ended(end: LastEnd) -> Ended:
    owner = shown_as(nameless_holder(end)) if end.owner is None else end.owner
    how = "failed" if end.how == "released" and end.reason == "failed" else end.how
    reason = None if how == "failed" else end.reason
    return Ended(how, owner, end.token, end.wall_ms, end.by, reason, end.note)


def _finished(done: Done | None, now: Moment) -> Finished | None:
    if done is None or done.until_ms <= now.ms:
        return None
    until_ms = now.wall_ms + done.until_ms - now.ms
    return Finished(shown_owner(done.owner, done.whose), done.token, done.wall_ms, until_ms, fields_of(done.result))


# What can be done, and what will happen then.


REVOKE, REOPEN, TRANSFER = "revoke", "reopen", "transfer"


class Sentence(msgspec.Struct, frozen=True):
    """A sentence about an owner. The owner is a part of its own, because it may be written in any direction."""

    before: str
    who: str = ""
    after: str = ""

    def __str__(self) -> str:
        return f"{self.before}{self.who}{self.after}"


class Offer(msgspec.Struct, frozen=True):
    """Something that can be done now."""

    verb: str
    title: str
    button: str
    happens: tuple[Sentence, ...]
    """What will happen, to whom, and when."""
    token: int = 0
    """The fencing token of the lease that it is about: another one is not touched."""


class Offers(msgspec.Struct, frozen=True):
    """What can be done, and what cannot and why."""

    offers: tuple[Offer, ...]
    missing: tuple[str, ...]

    def of(self, verb: str) -> Offer | None:
        """Return the offer of that verb."""
        return next((offer for offer in self.offers if offer.verb == verb), None)


def offers_for(state: State, now: Moment, name: str, caller: Caller) -> Offers:
    """Return what this caller can do to this name now."""
    slot = state.slots.get(name, EMPTY)
    offers: list[Offer] = []
    missing: list[str] = []
    if slot.lease is not None:
        if "admin" in caller.scopes:
            offers.append(_revocation(state, now, name, slot.lease))
            offers.append(_transfer(state, now, name, slot.lease))
        else:
            missing.append("Ending this lease, or handing it over, needs an access token with the scope admin.")
    elif slot.done is not None and slot.done.until_ms > now.ms:
        if "admin" in caller.scopes:
            who = shown_owner(slot.done.owner, slot.done.whose)
            offers.append(Offer(REOPEN, "Reopen this job", "Reopen", _of_reopening(who), slot.done.token))
        else:
            missing.append("Reopening this job needs an access token with the scope admin.")
    return Offers(tuple(offers), tuple(missing))


def _revocation(state: State, now: Moment, name: str, lease: Lease) -> Offer:
    refused = f" is refused wherever fencing token {lease.token} is checked."
    happens = [
        Sentence("", _holder(lease), f" loses this job at once, and what it writes from then on{refused}"),
        _when_told(lease, now),
    ]
    if lease.bound:
        happens.append(Sentence("Its session goes on, and so does all else that it holds."))
    return Offer(REVOKE, "End this lease", "End the lease", (*happens, _who_is_next(state, name, lease)), lease.token)


def _transfer(state: State, now: Moment, name: str, lease: Lease) -> Offer:
    waiting = len(state.index.lines.get(name, ()))
    begins = f"the new owner begins, under a greater fencing token than {lease.token}. At no moment is the job free."
    happens = [
        Sentence("", _holder(lease), f" stops being the owner at once, and {begins}"),
        _when_told(lease, now),
        Sentence(
            "The new owner takes it up by claiming it under that name with resume, by the same access token as now."
            f" If it is not taken up within {span_text(state.until_of(lease) - now.ms)}, it expires."
        ),
    ]
    if lease.bound:
        happens.append(Sentence("The end of the session that holds it now does not end it any more."))
    if waiting:
        stand, go = ("One stands", "goes") if waiting == 1 else (f"{waiting} stand", "go")
        happens.append(Sentence(f"{stand} in line and {go} on waiting."))
    return Offer(TRANSFER, "Hand it to another owner", "Hand over", tuple(happens), lease.token)


def _of_reopening(who: str) -> tuple[Sentence, ...]:
    return (
        Sentence("Nobody remembers any more that ", who, " finished it: whoever claims it next does it again."),
        Sentence("Nobody is told. Those who were answered that it is done have gone."),
    )


def _holder(lease: Lease) -> str:
    return shown_as(lease.principal, lease.metadata) if lease.owner is None else lease.owner


def _when_told(lease: Lease, now: Moment) -> Sentence:
    ago, ttl = span_text(now.wall_ms - lease.beat_wall_ms), span_text(lease.ttl_ms)
    return Sentence(
        "It is told with your reason: at once if it listens for that, else with its next heartbeat. The last one came"
        f" {ago} ago, and without one its lease would end after {ttl}."
    )


def _who_is_next(state: State, name: str, lease: Lease) -> Sentence:
    line = state.presence.lines.get(name)
    closed = f"The job stays closed for {span_text(lease.delay_ms)} then" if lease.delay_ms else ""
    if not line:
        behind = (
            " Those in line are away: the first who comes back in time has it." if name in state.index.lines else ""
        )
        free = f"{closed}. Nobody waits for it." if closed else "Nobody waits for it: it is free then."
        return Sentence(f"{free}{behind}")
    _, ticket_id = next(iter(line))
    ticket = state.tickets[ticket_id]
    who = shown_owner(ticket.terms.owner, ticket.terms.principal)
    others = ", if all else is free that it wants with it" if len(ticket.names) > 1 else ""
    if closed:
        return Sentence(f"{closed}; then ", who, f" has it{others}.")
    return Sentence("", who, f", the first in line, has it at once{others}.")


# The page.


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
            drawing=draw(story, now.wall_ms, is_newest=is_newest),
            happened=[happened(record, each) for record, each in told.told],
            is_newest=is_newest,
            next_before=told.next_before,
            next_offset=told.next_offset,
        )

    api.answer_later(call, look)


def _number(text: str | None) -> int | None:
    """Return a number of the address; what is none is passed over, as all that a page does not know."""
    return int(text) or None if text is not None and _NUMBER.fullmatch(text) else None


# Its forms.


_CONFLICT, _UNPROCESSABLE = 409, 422
_CHANGED = "Nothing was done: this job has changed since you looked. What is so now stands below."
_SENT = "Nothing was done: this form was sent before, with other words. What came of that stands below."
_NO_REASON = f"Nothing was done: say why, in 1 to {REASON_CHARS_MAX} characters."
_NO_OWNER = f"Nothing was done: name the new owner, in 1 to {OWNER_CHARS_MAX} characters."


def revoke(api: Api, call: Call) -> None:
    """POST /ui/jobs/{name}/revoke."""
    reason = _reason(call)
    lease = api.engine.state.lease_of(call.item)
    mark = fingerprint(call.request, call.item, (REVOKE, reason))
    if _is_wrong(api, call, REVOKE, mark, token=None if lease is None else lease.token):
        return
    principal, key = call.caller.principal, _key(call)
    command = Revoke(name=call.item, principal=principal, reason=reason, key=key, fingerprint=mark)
    api.submit(call, command, {Released: _shows("revoked")})


def reopen(api: Api, call: Call) -> None:
    """POST /ui/jobs/{name}/reopen."""
    reason = _reason(call)
    done = api.engine.state.slots.get(call.item, EMPTY).done
    mark = fingerprint(call.request, call.item, (REOPEN, reason))
    if _is_wrong(api, call, REOPEN, mark, token=None if done is None else done.token):
        return
    principal, key = call.caller.principal, _key(call)
    command = Reopen(name=call.item, principal=principal, reason=reason, key=key, fingerprint=mark)
    api.submit(call, command, {OpenAgain: _shows("reopened")})


def transfer(api: Api, call: Call) -> None:
    """POST /ui/jobs/{name}/transfer, as an operator: the page knows no lease id, so it proves no claim."""
    reason, to_owner = _reason(call), call.body.get("to_owner", "").strip()
    lease = api.engine.state.lease_of(call.item)
    mark = fingerprint(call.request, call.item, (TRANSFER, to_owner, reason))
    if _is_wrong(api, call, TRANSFER, mark, token=None if lease is None else lease.token):
        return
    if not 0 < len(to_owner) <= OWNER_CHARS_MAX:
        show(api, call, Tried(TRANSFER, _NO_OWNER, _UNPROCESSABLE, reason, to_owner))
        return
    command = Transfer(
        name=call.item,
        principal=call.caller.principal,
        lease_id=None,
        new_lease_id=new_uuid(),
        to_owner=to_owner,
        key=_key(call),
        fingerprint=mark,
        reason=reason,
    )
    api.submit(call, command, {HandedOver: _shows("transferred")})


def _is_wrong(api: Api, call: Call, verb: str, mark: str, *, token: int | None) -> bool:
    """Show the page again, and tell so, if the form cannot be meant: without a reason, or for another lease.

    One that was sent before is decided: its key knows what became of it, if the rest of it is the same.
    """
    reason = _reason(call)
    sent = api.engine.state.memos.get((call.caller.principal, _key(call)))
    if not 0 < len(reason) <= REASON_CHARS_MAX:
        problem, status = _NO_REASON, _UNPROCESSABLE
    elif sent is not None and sent.fingerprint != mark:
        problem, status = _SENT, _CONFLICT
    elif sent is None and str(token) != call.body.get("token"):
        problem, status = _CHANGED, _CONFLICT
    else:
        return False
    show(api, call, Tried(verb, problem, status, reason, call.body.get("to_owner", "").strip()))
    return True


def _reason(call: Call) -> str:
    reason: str = call.body.get("reason", "").strip()
    return reason


def _key(call: Call) -> str:
    """Return the key of a form. It is the page's own: no program's can be the same."""
    return f"page {read_uuid(call.body.get('key', ''), 'key')}"


def _shows(did: str) -> Show:
    """Lead back to the job's page, which says what was done. To load that again does nothing."""

    def shown(_api: Api, call: Call, _outcome: object, _now: Moment) -> Answered:
        path = site.path_of(call.item)
        return site.redirect(f"{path}{'&' if '?' in path else '?'}did={did}")

    return shown
