"""How a record changes the state, and whether it fits the state it is applied to.

Nothing else changes what is durable. `evolve` trusts decisions; recovery checks each record with `event_fits` first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappush
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.core import events
from holdfast.core.decision import end_by_transfer
from holdfast.core.state import EMPTY, State
from holdfast.core.values import (
    EndedLease,
    EndedSession,
    IdempotencyRecord,
    Instant,
    LastEnd,
    Lease,
    Slot,
    UsedKey,
    holder_of_lease,
)

if TYPE_CHECKING:
    from holdfast.core.values import AccessToken, Remembered, Ticket


def record_key(
    state: State, principal: str, key: str, memo: IdempotencyRecord, at_ms: int, *, session: str | None = None
) -> None:
    """Remember what a key made that nothing else remembers; charged to a session if it was spent in one."""
    state.memos.put((principal, key), memo)
    remember(state, f"{principal} {key}", UsedKey(principal, key, at_ms, session))


def remember(state: State, entry_id: str, entry: Remembered) -> None:
    """Add to the retry memory, as the newest of its account."""
    if entry_id in state.remembered:
        state.index.forget(entry_id, state.remembered.pop(entry_id))
    state.remembered.put(entry_id, entry)
    state.index.remember(entry_id, entry)


def expire_done(state: State, name: str) -> None:
    """Forget that a name is done; it keeps its position among the free ones."""
    slot = state.slots[name]
    if slot.done is not None:
        expired = replace(slot, done=None)
        state.slots.put(name, expired)
        state.index.expire_done(name, expired)


def _forgotten(state: State, event: events.Forgotten, _record: events.Record) -> None:
    for entry_id in list(islice(state.remembered, event.remembered)):
        _forget(state, entry_id)


def _usage_evicted(state: State, event: events.UsageEvicted, _record: events.Record) -> None:
    for principal, session, number in event.remembered:
        for entry_id in list(islice(state.index.retry_usage.account(principal, session).items, number)):
            _forget(state, entry_id)
    for principal, session, examined in event.names:
        for name in list(islice(state.index.free_usage.account(principal, session).items, examined)):
            slot = state.slots.pop(name)
            state.index.drop_free(name, slot)
            if not may_go(state, name, slot, state.now_ms):
                # Moved to the end in both, so that all others are checked before it.
                state.slots.put(name, slot)
                state.index.add_free(name, slot)


def _done_expired(state: State, event: events.DoneExpired, _record: events.Record) -> None:
    for name in event.names:
        expire_done(state, name)


def may_go(state: State, name: str, slot: Slot, now_ms: int) -> bool:
    """Return whether a free name may be forgotten: no queue, open (I14) and not known as done (L5)."""
    is_open = slot.closed_until_ms <= now_ms and (slot.done is None or slot.done.until_ms <= now_ms)
    return is_open and name not in state.index.queues


def _forget(state: State, entry_id: str) -> None:
    entry = state.remembered.pop(entry_id)
    state.index.forget(entry_id, entry)
    match entry:
        case EndedLease(principal=principal, key=key, end=end, end_key=end_key):
            _forget_claim(state, principal, key)
            _forget_memos(state, principal if end.by is None else end.by, end_key)  # maybe an operator's
        case EndedSession(principal=principal, key=key, end_key=end_key):
            _forget_memos(state, principal, key, end_key)
        case UsedKey(principal=principal, key=key):
            _forget_memos(state, principal, key)


def _forget_claim(state: State, principal: str, key: str | None) -> None:
    """Forget a key with the last of the leases it made: until then a retry must not make new ones (C5)."""
    memo = None if key is None else state.memos.get((principal, key))
    if key is None or memo is None:
        return
    if memo.leases > 1:
        # The ids would outlive what is remembered of them, and would be charged to no principal.
        state.memos.put((principal, key), replace(memo, leases=memo.leases - 1, lease_ids=()))
    else:
        state.memos.pop((principal, key))


def _forget_memos(state: State, principal: str, *keys: str | None) -> None:
    for key in keys:
        if key is not None:
            state.memos.pop((principal, key), None)


def _granted(state: State, event: events.Granted, _record: events.Record) -> None:
    name, lease = event.name, event.lease
    before = state.slots.get(name, EMPTY)
    if before is not EMPTY:
        state.index.drop_free(name, before)
    state.slots.put(name, Slot(lease, 0, before.last_end, before.attempts + 1))
    state.last_token = lease.token
    state.index.held.add(name)
    _begin(state, name, lease)
    if lease.key is not None:
        state.memos.put((lease.principal, lease.key), IdempotencyRecord("acquire", lease.lease_id, event.fingerprint))
    if event.ticket_id is not None:
        _leave(state, event.ticket_id)


def _granted_many(state: State, event: events.GrantedMany, record: events.Record) -> None:
    for grant in event.grants:
        _granted(state, grant, record)
    first = event.grants[0]
    if first.lease.key is not None:
        lease_ids = tuple(grant.lease.lease_id for grant in event.grants)
        memo = IdempotencyRecord("acquire", first.lease.lease_id, first.fingerprint, len(event.grants), lease_ids)
        state.memos.put((first.lease.principal, first.lease.key), memo)
    if event.ticket_id is not None:
        _leave(state, event.ticket_id)


def _begin(state: State, name: str, lease: Lease) -> None:
    timers, connected = state.timers, state.connected
    state.index.add_lease(name, lease, state.sessions)
    heappush(timers.lease_deadlines.heap, (lease.until_ms, lease.token, name))
    if name in connected.queues:
        timers.names_with_new_holder.append(name)
        state.update_open(name)
    if connected.interests:
        connected.drop_interest(holder_of_lease(lease), name)


def _finish(state: State, name: str, lease: Lease) -> None:
    state.index.drop_lease(name, lease)
    if name in state.connected.queues:
        state.update_open(name)
    if state.connected.interests:
        # A holder that gives anything back may be out of every cycle; it asks again if it still wants something (D3).
        state.connected.drop_interest(holder_of_lease(lease))


def _joined(state: State, event: events.Joined, _record: events.Record) -> None:
    ticket = event.ticket
    state.tickets.put(ticket.ticket_id, ticket)
    state.index.add_ticket(ticket)
    state.connected.detached_since[ticket.ticket_id] = state.now_ms
    _bind_key_to_ticket(state, ticket)


def _bind_key_to_ticket(state: State, ticket: Ticket) -> None:
    """Bind the key of the request that has a ticket to it, also if it was used before."""
    terms = ticket.terms
    if terms.key is not None:
        entry_id = f"{terms.principal} {terms.key}"
        if (spent := state.remembered.pop(entry_id, None)) is not None:
            state.index.forget(entry_id, spent)
        state.memos.put(
            (terms.principal, terms.key), IdempotencyRecord("acquire", ticket.lease_ids[0], terms.fingerprint)
        )


def _ticket_reassigned(state: State, event: events.TicketReassigned, record: events.Record) -> None:
    known = state.tickets[event.ticket_id]
    ticket = replace(known, terms=event.terms)
    state.tickets.put(ticket.ticket_id, ticket)
    if known.terms.key is not None:
        # A key leads to a lease only if its own request has the ticket: one lease, one claimer (C3).
        state.memos.pop((known.terms.principal, known.terms.key), None)
        _record_key_of_ticket(state, known, record)
    _bind_key_to_ticket(state, ticket)


def _left(state: State, event: events.Left, record: events.Record) -> None:
    ticket = state.tickets[event.ticket_id]
    _leave(state, event.ticket_id)
    if event.is_remembered:
        _record_key_of_ticket(state, ticket, record)


def _record_key_of_ticket(state: State, ticket: Ticket, record: events.Record) -> None:
    terms = ticket.terms
    if terms.key is not None:
        session = terms.session if terms.bound else None
        memo = IdempotencyRecord("left", ticket.ticket_id, terms.fingerprint)
        record_key(state, terms.principal, terms.key, memo, record.at_ms, session=session)


def _leave(state: State, ticket_id: str) -> None:
    ticket = state.tickets.pop(ticket_id)
    terms = ticket.terms
    state.connected.detach(ticket, state.index.join_number[ticket_id])
    state.connected.detached_since.pop(ticket_id, None)
    state.index.drop_ticket(ticket)
    if len(ticket.names) == 1:
        state.add_candidate(ticket.names[0])  # to the next that wants this name alone
    # A ticket that was granted has handed its key over to the lease; any other leaves nothing (C5).
    if terms.key is not None:
        lease = state.lease_of(ticket.names[0])
        if lease is None or lease.lease_id != ticket.lease_ids[0]:
            state.memos.pop((terms.principal, terms.key), None)


def _renewed(state: State, event: events.Renewed, record: events.Record) -> None:
    slot = state.slots[event.name]
    if (before := slot.lease) is None:
        return
    lease = replace(
        before,
        ttl_ms=event.ttl_ms,
        until_ms=event.until_ms,
        note=before.note if event.note is None else event.note,
        metadata=before.metadata if event.metadata is None else event.metadata,
        beat_wall_ms=record.wall_ms,
        renew_key=before.renew_key if event.key is None else event.key,
        offered=False,
    )
    if event.session is not None:
        lease = replace(lease, session=event.session, bound=True)
        state.index.drop_lease(event.name, before)
        _begin(state, event.name, lease)
    if event.until_ms < before.until_ms:
        # A later deadline keeps its entry, which is checked when it is reached; only an earlier one needs its own.
        heappush(state.timers.lease_deadlines.heap, (event.until_ms, lease.token, event.name))
        state.timers.compact_lease_deadlines(state.slots, len(state.index.held))
    state.slots.put(event.name, Slot(lease, slot.closed_until_ms, slot.last_end, slot.attempts, slot.done))
    if event.claim_key is not None:
        memo = IdempotencyRecord("acquire", lease.lease_id, event.fingerprint)
        session = lease.session if lease.bound else None
        record_key(state, lease.principal, event.claim_key, memo, record.at_ms, session=session)


def _ended(state: State, event: events.Ended, record: events.Record) -> None:
    slot = state.slots.pop(event.name)
    if (lease := slot.lease) is None:
        return
    end = LastEnd(
        event.how,
        event.token,
        lease.owner,
        lease.note,
        record.at_ms,
        record.wall_ms,
        event.by,
        event.reason,
        lease.delay_ms,
        event.whose,
    )
    # Popped and put back, so that the names nobody holds stand in the order in which they ended.
    attempts = 0 if event.well else slot.attempts
    session = lease.session if lease.bound else None
    free = Slot(None, event.closed_until_ms, end, attempts, event.done, event.principal, session)
    state.slots.put(event.name, free)
    state.index.add_free(event.name, free)
    if event.done is not None:
        heappush(state.timers.done_deadlines.heap, (event.done.until_ms, event.name))
        state.timers.compact_done_deadlines(state.slots, state.index.done_count)
    if event.closed_until_ms:
        state.index.closed_until_ms = max(state.index.closed_until_ms, event.closed_until_ms)
        heappush(state.timers.opening_deadlines, (event.closed_until_ms, event.name))
    state.index.held.remove(event.name)
    _finish(state, event.name, lease)
    # An operator's key is the operator's: whose lease it ended cannot let it be forgotten.
    by_other = event.by is not None and event.by != lease.principal
    end_key = None if by_other else event.key
    ended = EndedLease(event.name, lease.principal, lease.session, end, lease.key, end_key, lease.bound)
    remember(state, lease.lease_id, ended)
    if event.key is not None and event.by is not None:
        memo = IdempotencyRecord("revoke" if event.how == "revoked" else "release", lease.lease_id, event.fingerprint)
        if by_other:
            record_key(state, event.by, event.key, memo, record.at_ms)
        else:
            state.memos.put((event.by, event.key), memo)
    for each in event.left:
        _leave(state, each.ticket_id)
    state.timers.compact_lease_deadlines(state.slots, len(state.index.held))


def _transferred(state: State, event: events.Transferred, record: events.Record) -> None:
    slot = state.slots[event.name]
    old, new = slot.lease, event.lease
    if old is None:
        return
    end = end_by_transfer(event, old, Instant(record.at_ms, record.wall_ms))
    _finish(state, event.name, old)
    remember(state, old.lease_id, EndedLease(event.name, old.principal, old.session, end, old.key, None, old.bound))
    state.slots.put(event.name, Slot(new, 0, end, slot.attempts))
    state.last_token = new.token
    _begin(state, event.name, new)
    if event.key is not None:
        memo = IdempotencyRecord("transfer", new.lease_id, event.fingerprint)
        if event.by == new.principal:
            state.memos.put((event.by, event.key), memo)
        else:
            # An operator's key is the operator's: the lease of another principal cannot let it be forgotten.
            record_key(state, event.by, event.key, memo, record.at_ms)
    state.timers.compact_lease_deadlines(state.slots, len(state.index.held))


def _reopened(state: State, event: events.Reopened, record: events.Record) -> None:
    expire_done(state, event.name)
    if event.key is not None:
        record_key(state, event.by, event.key, IdempotencyRecord("reopen", event.name, event.fingerprint), record.at_ms)


def _session_opened(state: State, event: events.SessionOpened, _record: events.Record) -> None:
    session = event.session
    state.sessions.put(session.session_id, session)
    state.index.add_session(session)
    heappush(state.timers.session_deadlines.heap, (session.until_ms, session.session_id))
    if session.key is not None:
        state.memos.put(
            (session.principal, session.key), IdempotencyRecord("session", session.session_id, event.fingerprint)
        )


def _session_extended(
    state: State, event: events.SessionExtended | events.SessionRenewed, record: events.Record
) -> None:
    session = state.sessions[event.session_id]
    state.sessions.put(event.session_id, replace(session, until_ms=event.until_ms))
    if isinstance(event, events.SessionRenewed):
        for renewed in event.leases:
            _renewed(state, renewed, record)


def _session_ended(state: State, event: events.SessionEnded, record: events.Record) -> None:
    for ended in event.leases:
        _ended(state, ended, record)
    for each in event.left:
        _left(state, each, record)
    session = state.sessions.pop(event.session_id)
    state.index.drop_session(session)
    ended_session = EndedSession(session.principal, event.how, record.at_ms, record.wall_ms, session.key, event.key)
    remember(state, event.session_id, ended_session)
    if event.key is not None:
        state.memos.put(
            (session.principal, event.key), IdempotencyRecord("end_session", event.session_id, event.fingerprint)
        )
    state.timers.compact_session_deadlines(state.sessions)


def _add_token(state: State, token: AccessToken) -> None:
    state.tokens.put(token.name, token)
    state.index.add_token(token)


def _drop_token(state: State, name: str) -> None:
    state.index.drop_token(state.tokens.pop(name))
    state.last_used.pop(name, None)


def _token_created(state: State, event: events.TokenCreated, record: events.Record) -> None:
    token = event.token
    _add_token(state, token)
    if event.key is not None:
        record_key(
            state, token.made_by, event.key, IdempotencyRecord("token", token.name, event.fingerprint), record.at_ms
        )


def _token_revoked(state: State, event: events.TokenRevoked, record: events.Record) -> None:
    _drop_token(state, event.name)
    if event.key is not None:
        record_key(
            state, event.by, event.key, IdempotencyRecord("revoke_token", event.name, event.fingerprint), record.at_ms
        )


def _token_ended(state: State, event: events.TokenEnded, record: events.Record) -> None:
    _drop_token(state, event.name)
    for each in event.sessions:
        _session_ended(state, each, record)
    for entry_id in event.left:
        _left(state, entry_id, record)
    if event.successor is not None:
        _add_token(state, event.successor)
    if event.key is not None:
        kind = "revoke_token" if event.successor is None else "rotate_token"
        record_key(state, event.by, event.key, IdempotencyRecord(kind, event.name, event.fingerprint), record.at_ms)


def _tokens_used(state: State, event: events.TokensUsed, _record: events.Record) -> None:
    for name, wall_ms in event.uses:
        if wall_ms:
            state.last_used.put(name, wall_ms)
        else:
            state.last_used.pop(name, None)


def _opened(state: State, event: events.Opened, _record: events.Record) -> None:
    state.epoch = event.epoch


def _restored(state: State, event: events.Restored, record: events.Record) -> None:
    state.last_token = event.last_token
    if event.backup_seq == record.seq - 1:
        # The numbers did not jump: those from here on may have been given to records that are lost.
        state.restores += 1
        state.restored_seq = record.seq


CHANGES: dict[type, Callable[[State, Any, events.Record], None]] = {
    events.Granted: _granted,
    events.Renewed: _renewed,
    events.Ended: _ended,
    events.GrantedMany: _granted_many,
    events.Joined: _joined,
    events.TicketReassigned: _ticket_reassigned,
    events.Left: _left,
    events.Transferred: _transferred,
    events.Reopened: _reopened,
    events.SessionOpened: _session_opened,
    events.SessionExtended: _session_extended,
    events.SessionRenewed: _session_extended,
    events.SessionEnded: _session_ended,
    events.TokenCreated: _token_created,
    events.TokenRevoked: _token_revoked,
    events.TokenEnded: _token_ended,
    events.TokensUsed: _tokens_used,
    events.Forgotten: _forgotten,
    events.UsageEvicted: _usage_evicted,
    events.DoneExpired: _done_expired,
    events.TimePassed: lambda _state, _event, _record: None,
    events.Opened: _opened,
    events.Restored: _restored,
}


def evolve(state: State, record: events.Record) -> None:
    event = record.event
    state.seq = record.seq
    state.now_ms = record.at_ms
    CHANGES[type(event)](state, event, record)


def event_fits(state: State, event: events.Event) -> bool:
    """Return whether the event fits the state: a journal that does not fit its own past is damaged."""
    match event:
        case events.Granted():
            free = state.lease_of(event.name) is None and event.lease.token > state.last_token
            return free and (event.ticket_id is None or event.ticket_id in state.tickets)
        case events.GrantedMany():
            tokens = [state.last_token, *(grant.lease.token for grant in event.grants)]
            free = all(state.lease_of(grant.name) is None for grant in event.grants)
            rising = all(one < other for one, other in pairwise(tokens))
            return free and rising and (event.ticket_id is None or event.ticket_id in state.tickets)
        case events.Transferred():
            return event.lease.token > state.last_token and _is_held(state, event.name, event.old_lease_id)
        case events.Renewed():
            known = event.session is None or event.session in state.sessions
            return known and _is_held(state, event.name, event.lease_id)
        case events.Ended():
            return _is_held(state, event.name, event.lease_id) and _all_fit(state, event.left)
        case events.Joined():
            return event.ticket.ticket_id not in state.tickets
        case events.Left() | events.TicketReassigned():
            return event.ticket_id in state.tickets
        case events.Reopened():
            return event.name in state.slots
        case events.SessionExtended():
            return event.session_id in state.sessions
        case events.SessionRenewed():
            return event.session_id in state.sessions and _all_fit(state, event.leases)
        case events.SessionEnded():
            return event.session_id in state.sessions and _all_fit(state, (*event.leases, *event.left))
        case events.TokenRevoked():
            return event.name in state.tokens
        case events.TokenEnded():
            return event.name in state.tokens and _all_fit(state, (*event.sessions, *event.left))
        case events.Restored():
            return event.last_token > state.last_token
        case events.DoneExpired():
            return all(name in state.slots for name in event.names)
        case _:
            return True


def _is_held(state: State, name: str, lease_id: str) -> bool:
    lease = state.lease_of(name)
    return lease is not None and lease.lease_id == lease_id


def _all_fit(state: State, parts: Iterable[events.Event]) -> bool:
    return all(event_fits(state, part) for part in parts)
