"""Decisions about leases: claim one name or several, renew, release, transfer, revoke, reopen (C1–C7, L1–L8, M1, M2).

The order of the checks is part of the API: the first that fails is reported.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from holdfast.core import outcomes, queue, values
from holdfast.core.commands import Acquire, ClaimAll, ClaimAny, Release, Renew, Reopen, Revoke, Transfer
from holdfast.core.deadlock import find_cycle, name_of_holder
from holdfast.core.decision import (
    Decision,
    accept,
    answered_by_done,
    end_by_transfer,
    end_of,
    recall,
    refuse,
    too_long,
    too_many_leases,
    why_no_grant,
    why_unusable,
)
from holdfast.core.events import Ended, Event, Granted, GrantedMany, Renewed, Reopened, Transferred
from holdfast.core.outcomes import Acquired, AcquiredMany, Extended, HandedOver, OpenAgain, Refusal, Released
from holdfast.core.state import EMPTY, State
from holdfast.core.usage import exceeded, weight_of_done
from holdfast.core.values import (
    OWNER_CHARS_MAX,
    REMEMBER_MS_MAX,
    TOKEN_MAX,
    Done,
    EndedLease,
    IdempotencyRecord,
    Instant,
    Lease,
    Limits,
    Slot,
    Terms,
    Ticket,
    holder_of_ticket,
    is_of_run,
    lease_from,
    may_touch,
)

RELEASED = Released()


def acquire(state: State, command: Acquire, now: Instant, limits: Limits) -> Decision:
    terms = command.terms
    if (refusal := bad_terms(terms, command.wait_ms, limits)) is not None:
        return refuse(refusal)
    if terms.key is not None and (memo := recall(state, terms, "acquire")) is not None:
        return _acquired_before(state, command, memo, now) if isinstance(memo, IdempotencyRecord) else refuse(memo)
    if command.ticket is not None:
        return queue.resume_ticket(state, command, command.ticket, now)
    slot = state.slots.get(command.name, EMPTY)
    lease, closed = slot.lease, False
    if slot is not EMPTY:
        # Only a name that was claimed before can be done or closed.
        if slot.done is not None and slot.done.until_ms > now.ms and not terms.redo:
            return refuse(outcomes.Finished(command.name, slot.done))
        closed = lease is None and slot.closed_until_ms > now.ms
        if closed and not command.wait_ms:
            return refuse(outcomes.Delayed(slot.closed_until_ms, slot.last_end))
    if command.as_session is not None and not may_touch(terms, terms.principal, command.as_session):
        return refuse(outcomes.SessionUnknown())
    if terms.session is not None and (lacking := why_unusable(state, terms.session, terms.principal)) is not None:
        return refuse(lacking)
    if lease is not None and _is_own(lease, command, limits):
        full = too_many_leases(state, terms, 1, limits, already=1) if _takes_up(lease, command) else None
        return _reacquire(state, command, slot, lease, now) if full is None else refuse(full)
    # From here on it is a new claim, whatever comes of it.
    if not command.name.isascii() and (unreadable := queue.unreadable_name(command.names)) is not None:
        return refuse(unreadable)
    may_be_full = terms.bound or state.index.lease_count.get(terms.principal, 0) >= limits.leases_per_principal_max
    if may_be_full and (full := too_many_leases(state, terms, 1, limits)) is not None:
        return refuse(full)
    if command.wait_ms and (lease is not None or closed):
        return queue.join(state, queue.ticket_for(command, state, now), command.wait_ms, now, limits)
    if lease is not None:
        return _held(state, command, lease, now)
    # The queue is not checked: no free name has an attached waiter that could be served (queue.py, W1).
    token = state.last_token + 1
    if token > TOKEN_MAX:
        return refuse(outcomes.TokensExhausted())
    lease = lease_from(terms, command.lease_id, token, now)
    events: tuple[Event, ...] = (Granted(command.name, lease, terms.fingerprint),)
    if state.index.queues and command.name in state.index.queues:
        events = (*queue.withdraw_own_ticket(state, queue.ticket_for(command, state, now)), *events)
    until_ms = state.until_of(lease) if terms.bound else lease.until_ms
    return Decision(events, Acquired(lease, until_ms, slot.last_end, slot.attempts + 1))


def held_by(state: State, name: str, lease: Lease, owner: str | None, *, named: bool = False) -> outcomes.Held:
    """Return who holds a name and how many wait for it, for a caller named `owner`. `named`: add the `holder`."""
    same_owner = owner is not None and owner == lease.owner
    holder = name_of_holder(state, lease) if named else None
    return outcomes.Held(lease, state.until_of(lease), same_owner, state.waiter_count(name), holder)


def _held(state: State, command: Acquire, lease: Lease, now: Instant) -> Decision:
    held = held_by(state, command.name, lease, command.terms.owner, named=command.interest)
    if not command.interest:
        return refuse(held)
    holder = holder_of_ticket(queue.ticket_for(command, state, now))
    cycle = find_cycle(state, holder, (command.name,), now.ms, interests=True)
    interest = (holder, command.name, command.terms.principal, now.ms, now.ms + values.INTEREST_MS)
    # If the search gave up, the answer is that the name is held, since the caller does not wait.
    answer = cycle if isinstance(cycle, outcomes.Deadlock) else held
    # A holder without a name can hold nothing else, and closes no cycle.
    return Decision((), answer, interest=None if holder[0] == "alone" else interest)


def bad_terms(terms: Terms, wait_ms: int, limits: Limits) -> Refusal | None:
    if not 0 < terms.ttl_ms <= limits.ttl_ms_max:
        return outcomes.BadTtl(limits.ttl_ms_max)
    if terms.metadata is not None and (wrong_field := too_long("metadata", terms.metadata, limits)) is not None:
        return wrong_field
    if terms.delay_ms and not 0 <= terms.delay_ms <= values.LOCK_DELAY_MS_MAX:
        return outcomes.BadField(f"lock_delay_seconds is 0 to {values.LOCK_DELAY_MS_MAX // 1000}")
    if terms.bound and terms.session is None:
        return outcomes.BadField("ephemeral needs a session_id: open one with POST /sessions")
    if terms.owner is not None and not 0 < len(terms.owner) <= OWNER_CHARS_MAX:
        return outcomes.BadField(f"owner has 1 to {OWNER_CHARS_MAX} characters")
    if terms.labels is not None and (wrong := values.bad_labels(terms.labels)) is not None:
        return outcomes.BadField(wrong)
    if wait_ms and not 0 <= wait_ms <= values.WAIT_MS_MAX:
        return outcomes.BadField(f"wait_seconds is 0 to {values.WAIT_MS_MAX // 1000}")
    return None


def _acquired_before(state: State, command: Acquire, memo: IdempotencyRecord, now: Instant) -> Decision:
    """Answer a retry: the same lease, the same ticket, or that it has ended. Never a new grant (C5)."""
    if (waiting := _waits_again(state, command, memo, now)) is not None:
        return waiting
    slot = state.slots.get(command.name, EMPTY)
    if (lease := slot.lease) is not None and lease.lease_id == memo.made:
        return accept(_acquired_again(state, slot, lease, reacquired=lease.key != command.terms.key))
    return refuse(not_current(state, command.name, memo.made, command.terms.principal))


def _waits_again(state: State, command: Acquire | ClaimAll, memo: IdempotencyRecord, now: Instant) -> Decision | None:
    if memo.kind == "left":
        return queue.resume_ticket(state, command, memo.made, now)
    ticket_id = state.index.ticket_by_lease_id.get(memo.made)
    return None if ticket_id is None else queue.resume_wait(state, state.tickets[ticket_id], command.wait_ms, now)


def _acquired_again(state: State, slot: Slot, lease: Lease, *, reacquired: bool = False) -> Acquired:
    return Acquired(lease, state.until_of(lease), slot.last_end, slot.attempts, reacquired)


def _is_own(lease: Lease, command: Acquire, limits: Limits) -> bool:
    """Return whether the caller may have this live lease back (C4)."""
    terms = command.terms
    if _takes_up(lease, command):
        return lease.principal == terms.principal and lease.owner == terms.owner
    if limits.reentrant == "holder":
        same_kind = lease.bound == terms.bound
        return same_kind and (lease.session == terms.session if lease.bound else lease.principal == terms.principal)
    if not command.resume:
        return False
    if lease.bound:
        return terms.bound and lease.session == terms.session and lease.owner == terms.owner
    # Without an owner's name the holder is that very lease alone, and no caller can prove to be it.
    return not terms.bound and lease.principal == terms.principal and lease.owner == terms.owner is not None


def _takes_up(lease: Lease, command: Acquire) -> bool:
    """Return whether a session asks for a transferred lease that its new owner has not taken up yet (L8a)."""
    return lease.offered and command.resume and command.terms.bound


def _reacquire(state: State, command: Acquire, slot: Slot, lease: Lease, now: Instant) -> Decision:
    terms = command.terms
    until_ms = max(lease.until_ms, now.ms + terms.ttl_ms)
    session = terms.session if _takes_up(lease, command) else None
    event = Renewed(
        command.name,
        lease.lease_id,
        terms.ttl_ms,
        until_ms,
        claim_key=terms.key,
        fingerprint=terms.fingerprint if terms.key is not None else "",
        session=session,
    )
    renewed = replace(lease, ttl_ms=terms.ttl_ms, until_ms=until_ms)
    events: tuple[Event, ...] = (event,)
    if session is not None:
        renewed = replace(renewed, session=session, bound=True)
        events = (*queue.withdraw_own_ticket(state, queue.ticket_for(command, state, now)), event)
    return Decision(events, _acquired_again(state, slot, renewed, reacquired=True))


def renew(state: State, command: Renew, now: Instant, limits: Limits) -> Decision:
    if command.ttl_ms is not None and not 0 < command.ttl_ms <= limits.ttl_ms_max:
        return refuse(outcomes.BadTtl(limits.ttl_ms_max))
    if command.note is not None and (wrong := too_long("note", command.note, limits)) is not None:
        return refuse(wrong)
    if command.metadata is not None and (wrong := too_long("metadata", command.metadata, limits)) is not None:
        return refuse(wrong)
    lease = _held_by_caller(state, command) if command.run is None else _held_by_run(state, command, limits)
    if not isinstance(lease, Lease):
        return refuse(lease)
    if command.key is not None and command.key == lease.renew_key:
        return accept(Extended(lease, state.until_of(lease)))
    ttl_ms = lease.ttl_ms if command.ttl_ms is None else command.ttl_ms
    until_ms = now.ms + ttl_ms
    if command.key is not None:
        # A retry may come late, after a longer renewal: it must not take time away (C5).
        until_ms = max(until_ms, lease.until_ms)
    event = Renewed(command.name, lease.lease_id, ttl_ms, until_ms, command.note, command.metadata, command.key)
    shown_ms = state.until_of(replace(lease, until_ms=until_ms)) if lease.bound else until_ms
    return Decision((event,), Extended(lease, shown_ms))


def release(state: State, command: Release, now: Instant, limits: Limits) -> Decision:
    if command.result is not None and (wrong := too_long("result", command.result, limits)) is not None:
        return refuse(wrong)
    if not 0 <= command.remember_ms <= REMEMBER_MS_MAX:
        return refuse(outcomes.BadField(f"remember_seconds is 0 to {REMEMBER_MS_MAX // 1000}"))
    if (memo := recall(state, command, "release")) is not None:
        return accept(RELEASED) if isinstance(memo, IdempotencyRecord) else refuse(memo)
    lease = _held_by_caller(state, command) if command.run is None else _held_by_run(state, command, limits)
    if not isinstance(lease, Lease):
        return refuse(lease)
    reason = "failed" if command.failed else None
    event = end_of(
        command.name, lease, "released", now.ms, command.principal, asked=command, reason=reason, well=reason is None
    )
    if command.done and command.remember_ms:
        whose = lease.principal if lease.owner is None else None
        done = Done(lease.owner, lease.token, command.result, now.wall_ms, now.ms + command.remember_ms, whose)
        return _finish(state, event, lease, done, limits)
    return Decision((event,), RELEASED)


def _finish(state: State, end: Ended, lease: Lease, done: Done, limits: Limits) -> Decision:
    name, renewed = end.name, state.index.done_usage
    account = renewed.account(lease.principal, lease.session).weight if lease.bound else None
    weight, principal = weight_of_done(name, done), renewed.principal_usage(lease.principal).weight
    if (limit := exceeded(limits.done_bytes_per_principal_max, weight, principal, account)) is not None:
        text = (
            "As much finished work as this token or session may have is remembered"
            f" (done_bytes_per_principal_max: {limit} bytes), and the lease is still held:"
            " release it without remember_seconds, with a shorter result, or when some of it is no longer remembered"
        )
        return refuse(outcomes.QuotaExceeded(text))
    finished = outcomes.Finished(name, done)
    those = (state.tickets[each] for each in state.index.queues.get(name, ()))
    answered = tuple(answered_by_done(ticket for ticket in those if not ticket.terms.redo))
    notices = tuple((each.ticket_id, finished) for each in answered)
    return Decision((replace(end, done=done, left=answered),), RELEASED, notices)


def transfer(state: State, command: Transfer, now: Instant, limits: Limits) -> Decision:
    if command.ttl_ms is not None and not 0 < command.ttl_ms <= limits.ttl_ms_max:
        return refuse(outcomes.BadTtl(limits.ttl_ms_max))
    if not 0 < len(command.to_owner) <= OWNER_CHARS_MAX:
        return refuse(outcomes.BadField(f"to_owner has 1 to {OWNER_CHARS_MAX} characters"))
    if command.reason is not None and not 0 < len(command.reason) <= values.REASON_CHARS_MAX:
        return refuse(outcomes.BadField(f"reason has 1 to {values.REASON_CHARS_MAX} characters"))
    if (memo := recall(state, command, "transfer")) is not None:
        return _transferred_before(state, command, memo) if isinstance(memo, IdempotencyRecord) else refuse(memo)
    if command.lease_id is None:  # an operator's
        lease: Lease | Refusal = state.lease_of(command.name) or outcomes.NotHeld()
    else:
        lease = _held_by_caller(state, command)
    if not isinstance(lease, Lease):
        return refuse(lease)
    if state.last_token >= TOKEN_MAX:
        return refuse(outcomes.TokensExhausted())
    new = _handed_over(state, command, lease, now)
    by, reason = command.principal, command.reason
    event = Transferred(command.name, lease.lease_id, new, by, command.key, command.fingerprint, reason)
    if command.lease_id is None:
        return Decision((event,), HandedOver())
    end = end_by_transfer(event, lease, now)
    attempts = state.slots[command.name].attempts
    return Decision((event,), Acquired(new, state.until_of(new), end, attempts))


def _handed_over(state: State, command: Transfer, lease: Lease, now: Instant) -> Lease:
    """Return the lease of the new owner. Only a session's own secret keeps it in the session (L8a)."""
    stays = command.as_session is not None
    ttl_ms = lease.ttl_ms if command.ttl_ms is None else command.ttl_ms
    # Without a ttl of its own a transfer is no heartbeat: the new owner has the time that is left.
    keeps_deadline = command.ttl_ms is None and not stays
    return replace(
        lease,
        lease_id=command.new_lease_id,
        token=state.last_token + 1,
        owner=command.to_owner,
        session=lease.session if stays else None,
        bound=lease.bound and stays,
        ttl_ms=ttl_ms,
        until_ms=state.until_of(lease) if keeps_deadline else now.ms + ttl_ms,
        note=None,
        granted_wall_ms=now.wall_ms,
        beat_wall_ms=now.wall_ms,
        # A key leads to a lease of the same principal. That of another operator is remembered by itself.
        key=command.key if command.principal == lease.principal else None,
        renew_key=None,
        offered=not stays,
    )


def _transferred_before(state: State, command: Transfer, memo: IdempotencyRecord) -> Decision:
    if command.lease_id is None:
        return accept(HandedOver())
    slot = state.slots.get(command.name, EMPTY)
    if slot.lease is not None and slot.lease.lease_id == memo.made:
        return accept(_acquired_again(state, slot, slot.lease))
    return refuse(not_current(state, command.name, memo.made, command.principal))


def revoke(state: State, command: Revoke, now: Instant) -> Decision:
    if not 0 < len(command.reason) <= values.REASON_CHARS_MAX:
        return refuse(outcomes.BadField(f"reason has 1 to {values.REASON_CHARS_MAX} characters"))
    if (memo := recall(state, command, "revoke")) is not None:
        return accept(RELEASED) if isinstance(memo, IdempotencyRecord) else refuse(memo)
    if (lease := state.lease_of(command.name)) is None:
        return refuse(outcomes.NotHeld())
    event = end_of(command.name, lease, "revoked", now.ms, command.principal, asked=command, reason=command.reason)
    return Decision((event,), RELEASED)


def reopen(state: State, command: Reopen, now: Instant) -> Decision:
    if command.reason is not None and len(command.reason) > values.REASON_CHARS_MAX:
        return refuse(outcomes.BadField(f"reason has at most {values.REASON_CHARS_MAX} characters"))
    if (memo := recall(state, command, "reopen")) is not None:
        return accept(OpenAgain()) if isinstance(memo, IdempotencyRecord) else refuse(memo)
    if (done := state.slots.get(command.name, EMPTY).done) is None or done.until_ms <= now.ms:
        return refuse(outcomes.NotDone())
    event = Reopened(command.name, command.principal, command.reason, command.key, command.fingerprint)
    return Decision((event,), OpenAgain())


def _held_by_run(state: State, command: Renew | Release, limits: Limits) -> Lease | Refusal:
    """Return the live lease if it is the run's own (S3), else that nobody holds the name, or who does."""
    if (lease := state.lease_of(command.name)) is None:
        return outcomes.NotHeld()
    if may_touch(lease, command.principal, command.as_session) and is_of_run(
        lease, command.as_session, command.run, limits
    ):
        return lease
    return held_by(state, command.name, lease, command.run, named=True)


def _held_by_caller(state: State, command: Renew | Release | Transfer) -> Lease | Refusal:
    """Return the live lease if the caller has proved that it is its own (L3, S3), else why not."""
    if (lease := state.lease_of(command.name)) is None:
        return _why_not_held(state, command)
    if lease.lease_id != command.lease_id:
        refusal = not_current(state, command.name, command.lease_id, command.principal)
        # A caller hears what became of its own lease, whoever holds the name by now (L7).
        foreign = lease.bound and lease.principal != command.principal and refusal.ended is None
        return outcomes.SessionUnknown() if foreign else refusal
    if may_touch(lease, command.principal, command.as_session):
        return lease
    if lease.bound and lease.principal != command.principal:
        return outcomes.SessionUnknown()
    return outcomes.NotCurrent(succeeded=True)


def _why_not_held(state: State, command: Renew | Release | Transfer) -> Refusal:
    """Return what became of the caller's lease, and that its session lapsed if it did."""
    refusal = not_current(state, command.name, command.lease_id, command.principal)
    ended = refusal.ended
    if ended is not None and ended.end.how == "session_ended" and ended.session is not None:
        lacking = why_unusable(state, ended.session, command.principal)
        if isinstance(lacking, outcomes.SessionLapsed):
            return lacking
    return refusal


def not_current(state: State, name: str, lease_id: str | None, principal: str) -> outcomes.NotCurrent:
    ended = None if lease_id is None else state.remembered.get(lease_id)
    if not isinstance(ended, EndedLease) or ended.name != name or ended.principal != principal:
        ended = None
    return outcomes.NotCurrent(state.lease_of(name) is not None, ended)


RETRY_MS_MIN = 250


def claim_any(state: State, command: ClaimAny, now: Instant, limits: Limits) -> Decision:
    """Grant the first free name, in the caller's order. It does not wait."""
    if (refusal := _bad(command.names, command.terms, 0, limits)) is not None:
        return refuse(refusal)
    if (memo := recall(state, command.terms, "acquire")) is not None:
        return _any_before(state, command, memo) if isinstance(memo, IdempotencyRecord) else refuse(memo)
    if (lacking := _lacking(state, command, limits, 1)) is not None:
        return refuse(lacking)
    busy: list[tuple[str, outcomes.Held | outcomes.Delayed]] = []
    finished: outcomes.Finished | None = None
    for name in command.names:
        if (obstacle := _obstacle(state, name, command.terms, now.ms)) is None:
            return _grant_all(state, Ticket("", (name,), (command.lease_id,), command.terms), now)
        if isinstance(obstacle, outcomes.Finished):
            finished = finished or obstacle
        else:
            busy.append((name, obstacle))
    if not busy and finished is not None:
        return refuse(finished)
    return refuse(outcomes.AllHeld(tuple(busy), _retry_after(busy, now.ms)))


def claim_all(state: State, command: ClaimAll, now: Instant, limits: Limits) -> Decision:
    """Grant every name or none. While it waits it holds nothing, so two callers cannot block each other."""
    refusal = _bad(command.names, command.terms, command.wait_ms, limits) or _bulky(command.names, command.terms)
    if refusal is not None:
        return refuse(refusal)
    if (memo := recall(state, command.terms, "acquire")) is not None:
        return _all_before(state, command, memo, now) if isinstance(memo, IdempotencyRecord) else refuse(memo)
    if command.ticket is not None:
        return queue.resume_ticket(state, command, command.ticket, now)
    if (lacking := _lacking(state, command, limits, len(command.names))) is not None:
        return refuse(lacking)
    busy: list[tuple[str, outcomes.Held | outcomes.Delayed]] = []
    for name in command.names:
        obstacle = _obstacle(state, name, command.terms, now.ms)
        if isinstance(obstacle, outcomes.Finished):
            return refuse(obstacle)
        if obstacle is not None:
            busy.append((name, obstacle))
    ticket = queue.ticket_for(command, state, now)
    if not busy:
        return _grant_all(state, ticket, now)
    if command.wait_ms:
        return queue.join(state, ticket, command.wait_ms, now, limits)
    return refuse(outcomes.AllHeld(tuple(busy), _retry_after(busy, now.ms)))


def _bad(names: tuple[str, ...], terms: Terms, wait_ms: int, limits: Limits) -> Refusal | None:
    if not 0 < len(names) <= limits.names_per_call_max:
        return outcomes.BadField(f"a call names 1 to {limits.names_per_call_max} jobs (names_per_call_max)")
    if len(set(names)) != len(names):
        return outcomes.BadField("a job stands twice in the list")
    return bad_terms(terms, wait_ms, limits)


def _bulky(names: tuple[str, ...], terms: Terms) -> Refusal | None:
    if terms.labels is None:
        return None
    size = len(msgspec.json.encode(terms.labels)) * len(names)
    if size <= values.LABELS_OF_ALL_BYTES_MAX:
        return None
    return outcomes.BadField(
        f"{len(names)} jobs with these labels come to {size} bytes of labels as JSON,"
        f" at most {values.LABELS_OF_ALL_BYTES_MAX} are taken: name fewer jobs in a call, or give fewer labels"
    )


def _lacking(state: State, command: ClaimAny | ClaimAll, limits: Limits, wanted: int) -> Refusal | None:
    if (unreadable := queue.unreadable_name(command.names)) is not None:
        return unreadable
    terms = command.terms
    if not may_touch(terms, terms.principal, command.as_session):
        return outcomes.SessionUnknown()
    return why_no_grant(state, terms, command.names[:wanted], limits)


def _obstacle(
    state: State, name: str, terms: Terms, now_ms: int
) -> outcomes.Held | outcomes.Delayed | outcomes.Finished | None:
    slot = state.slots.get(name, EMPTY)
    if slot.done is not None and slot.done.until_ms > now_ms and not terms.redo:
        return outcomes.Finished(name, slot.done)
    if slot.lease is not None:
        return held_by(state, name, slot.lease, terms.owner)
    if slot.closed_until_ms > now_ms:
        return outcomes.Delayed(slot.closed_until_ms, slot.last_end)
    return None


def _grant_all(state: State, ticket: Ticket, now: Instant) -> Decision:
    grants, claims = queue.grant_each(state, ticket, now)
    given_up = queue.withdraw_own_ticket(state, ticket) if ticket.names[0] in state.index.queues else ()
    event = grants[0] if len(grants) == 1 else GrantedMany(grants)
    return Decision((*given_up, event), AcquiredMany(claims))


def _any_before(state: State, command: ClaimAny, memo: IdempotencyRecord) -> Decision:
    for name in command.names:
        slot = state.slots.get(name, EMPTY)
        if slot.lease is not None and slot.lease.lease_id == memo.made:
            return accept(AcquiredMany(((name, _acquired_again(state, slot, slot.lease)),)))
    ended = state.remembered.get(memo.made)
    if isinstance(ended, EndedLease) and ended.principal == command.terms.principal:
        return refuse(outcomes.NotCurrent(state.lease_of(ended.name) is not None, ended))
    return refuse(outcomes.NotCurrent(succeeded=False))


def _all_before(state: State, command: ClaimAll, memo: IdempotencyRecord, now: Instant) -> Decision:
    """Answer a retry: every lease it made, its ticket, or the one that has ended."""
    if (waiting := _waits_again(state, command, memo, now)) is not None:
        return waiting
    claims: list[tuple[str, Acquired]] = []
    for name in command.names:
        slot = state.slots.get(name, EMPTY)
        lease = slot.lease
        if lease is None or lease.key != command.terms.key or lease.principal != command.terms.principal:
            return refuse(outcomes.NotCurrent(lease is not None, _ended_before(state, name, memo)))
        claims.append((name, _acquired_again(state, slot, lease)))
    return accept(AcquiredMany(tuple(claims)))


def _ended_before(state: State, name: str, memo: IdempotencyRecord) -> EndedLease | None:
    """Find the ended lease by its name: the ticket of the claim may have had another order of names."""
    for lease_id in memo.lease_ids or (memo.made,):
        ended = state.remembered.get(lease_id)
        if isinstance(ended, EndedLease) and ended.name == name:
            return ended
    return None


def _retry_after(busy: list[tuple[str, outcomes.Held | outcomes.Delayed]], now_ms: int) -> int:
    return max(RETRY_MS_MIN, min((obstacle.until_ms for _, obstacle in busy), default=now_ms) - now_ms)
