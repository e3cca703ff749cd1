"""Several at once: the first free name of a list, or every name of a list in one record (M1, M2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.core import line, refusals
from holdfast.core.answers import Acquired, AcquiredMany
from holdfast.core.claims import bad_terms, held_by
from holdfast.core.decision import Decision, accept, recall, refuse
from holdfast.core.events import GrantedMany
from holdfast.core.quotas import too_many_leases
from holdfast.core.rights import may_touch
from holdfast.core.sessions import why_unusable
from holdfast.core.state import EMPTY
from holdfast.core.values import LABELS_OF_ALL_BYTES_MAX, TOKEN_MAX, EndedLease, Memo, Ticket

if TYPE_CHECKING:
    from holdfast.core.commands import ClaimAll, ClaimAny
    from holdfast.core.refusals import Refusal
    from holdfast.core.state import State
    from holdfast.core.values import Limits, Moment, Terms

RETRY_MS_MIN = 250


def claim_any(state: State, command: ClaimAny, now: Moment, limits: Limits) -> Decision:
    """Grant the first free name, in the caller's order. It does not wait: the refusal says when to ask again."""
    refusal = _bad(command.names, command.terms, 0, limits)
    if refusal is not None:
        return refuse(refusal)
    memo = recall(state, command.terms, "acquire")
    if memo is not None:
        return _any_before(state, command, memo) if isinstance(memo, Memo) else refuse(memo)
    lacking = _lacking(state, command, limits, 1)
    if lacking is not None:
        return refuse(lacking)
    busy: list[tuple[str, refusals.Held | refusals.Delayed]] = []
    finished: refusals.Finished | None = None
    for name in command.names:
        obstacle = _obstacle(state, name, command.terms, now.ms)
        if obstacle is None:
            return _grant_all(state, Ticket("", (name,), (command.lease_id,), command.terms), now)
        if isinstance(obstacle, refusals.Finished):
            finished = finished or obstacle
        else:
            busy.append((name, obstacle))
    if not busy and finished is not None:
        return refuse(finished)
    return refuse(refusals.AllHeld(tuple(busy), _retry_after(busy, now.ms)))


def claim_all(state: State, command: ClaimAll, now: Moment, limits: Limits) -> Decision:
    """Grant every name or none. With a wait it holds nothing while it waits, so two callers cannot block each other."""
    refusal = _bad(command.names, command.terms, command.wait_ms, limits) or _bulky(command.names, command.terms)
    if refusal is not None:
        return refuse(refusal)
    memo = recall(state, command.terms, "acquire")
    if memo is not None:
        return _all_before(state, command, memo, now) if isinstance(memo, Memo) else refuse(memo)
    if command.ticket is not None:
        return line.return_to(state, command, command.ticket, now)
    lacking = _lacking(state, command, limits, len(command.names))
    if lacking is not None:
        return refuse(lacking)
    busy: list[tuple[str, refusals.Held | refusals.Delayed]] = []
    for name in command.names:
        obstacle = _obstacle(state, name, command.terms, now.ms)
        if isinstance(obstacle, refusals.Finished):
            return refuse(obstacle)
        if obstacle is not None:
            busy.append((name, obstacle))
    ticket = line.ticket_for(command, state, now)
    if not busy:
        return _grant_all(state, ticket, now)
    if command.wait_ms:
        return line.join(state, ticket, command.wait_ms, now, limits)
    return refuse(refusals.AllHeld(tuple(busy), _retry_after(busy, now.ms)))


def _bad(names: tuple[str, ...], terms: Terms, wait_ms: int, limits: Limits) -> Refusal | None:
    if not 0 < len(names) <= limits.names_per_call_max:
        return refusals.BadField(f"a call names 1 to {limits.names_per_call_max} jobs (names_per_call_max)")
    if len(set(names)) != len(names):
        return refusals.BadField("a job stands twice in the list")
    return bad_terms(terms, wait_ms, limits)


def _bulky(names: tuple[str, ...], terms: Terms) -> Refusal | None:
    """Refuse labels that the names would multiply to megabytes, in a record and wherever the leases are shown."""
    if terms.labels is None:
        return None
    size = len(msgspec.json.encode(terms.labels)) * len(names)
    if size <= LABELS_OF_ALL_BYTES_MAX:
        return None
    return refusals.BadField(
        f"{len(names)} jobs with these labels come to {size} bytes of labels as JSON,"
        f" at most {LABELS_OF_ALL_BYTES_MAX} are taken: name fewer jobs in a call, or give fewer labels"
    )


def _lacking(state: State, command: ClaimAny | ClaimAll, limits: Limits, wanted: int) -> Refusal | None:
    unreadable = line.unreadable_name(command.names)
    if unreadable is not None:
        return unreadable
    terms = command.terms
    if not may_touch(terms, terms.principal, command.as_session):
        return refusals.SessionUnknown()
    if terms.session is not None:
        lacking = why_unusable(state, terms.session, terms.principal)
        if lacking is not None:
            return lacking
    full = too_many_leases(state, terms, wanted, limits)
    if full is not None:
        return full
    if state.last_token + wanted > TOKEN_MAX:
        return refusals.TokensExhausted()
    return None


def _obstacle(
    state: State, name: str, terms: Terms, now_ms: int
) -> refusals.Held | refusals.Delayed | refusals.Finished | None:
    slot = state.slots.get(name, EMPTY)
    if slot.done is not None and slot.done.until_ms > now_ms and not terms.redo:
        return refusals.Finished(name, slot.done)
    if slot.lease is not None:
        return held_by(state, name, slot.lease, terms.owner)
    if slot.closed_until_ms > now_ms:
        return refusals.Delayed(slot.closed_until_ms, slot.last_end)
    return None


def _grant_all(state: State, ticket: Ticket, now: Moment) -> Decision:
    grants, claims = line.grant_each(state, ticket, now)
    given_up = line.no_more_need(state, ticket) if ticket.names[0] in state.index.lines else ()
    event = grants[0] if len(grants) == 1 else GrantedMany(grants)
    return Decision((*given_up, event), AcquiredMany(claims))


def _any_before(state: State, command: ClaimAny, memo: Memo) -> Decision:
    """Answer a retry of a claim of any: the lease it made, or that it has ended."""
    for name in command.names:
        slot = state.slots.get(name, EMPTY)
        if slot.lease is not None and slot.lease.lease_id == memo.made:
            claim = Acquired(slot.lease, state.until_of(slot.lease), slot.last_end, slot.attempts)
            return accept(AcquiredMany(((name, claim),)))
    ended = state.remembered.get(memo.made)
    if isinstance(ended, EndedLease) and ended.principal == command.terms.principal:
        return refuse(refusals.NotCurrent(state.lease_of(ended.name) is not None, ended))
    return refuse(refusals.NotCurrent(succeeded=False))


def _all_before(state: State, command: ClaimAll, memo: Memo, now: Moment) -> Decision:
    """Answer a retry of a claim of all: every lease it made, its place in line, or the one that has ended."""
    if memo.kind == "left":
        return line.return_to(state, command, memo.made, now)
    if memo.made in state.index.ticket_by_lease_id:
        ticket = state.tickets[state.index.ticket_by_lease_id[memo.made]]
        return line.come_back(state, ticket, command.wait_ms, now)
    claims: list[tuple[str, Acquired]] = []
    for name in command.names:
        slot = state.slots.get(name, EMPTY)
        lease = slot.lease
        if lease is None or lease.key != command.terms.key or lease.principal != command.terms.principal:
            return refuse(refusals.NotCurrent(lease is not None, _ended_before(state, name, memo)))
        claims.append((name, Acquired(lease, state.until_of(lease), slot.last_end, slot.attempts)))
    return accept(AcquiredMany(tuple(claims)))


def _ended_before(state: State, name: str, memo: Memo) -> EndedLease | None:
    """Return the end of the lease that a claim of all made for a name. Its place may have had another order.

    A memo of a record of 0.1.0, or of a claim of all of one name, knows the id of the first lease only.
    """
    for lease_id in memo.lease_ids or (memo.made,):
        ended = state.remembered.get(lease_id)
        if isinstance(ended, EndedLease) and ended.name == name:
            return ended
    return None


def _retry_after(busy: list[tuple[str, refusals.Held | refusals.Delayed]], now_ms: int) -> int:
    return max(RETRY_MS_MIN, min((obstacle.until_ms for _, obstacle in busy), default=now_ms) - now_ms)
