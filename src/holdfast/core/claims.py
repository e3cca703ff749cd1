"""Claiming, keeping and giving back a name: C1–C7, L1–L4, L6. The order of the checks is part of the wire's promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.core import refusals
from holdfast.core.answers import Acquired, Extended, Released
from holdfast.core.decision import Decision, accept, end_of, recall, refuse
from holdfast.core.events import Granted, Renewed
from holdfast.core.sessions import missing
from holdfast.core.state import EMPTY
from holdfast.core.values import LOCK_DELAY_MS_MAX, OWNER_CHARS_MAX, TOKEN_MAX, EndedLease, Lease, Memo

if TYPE_CHECKING:
    from holdfast.core.commands import Acquire, Release, Renew
    from holdfast.core.refusals import Refusal
    from holdfast.core.state import State
    from holdfast.core.values import Limits, Moment, Slot


def acquire(state: State, command: Acquire, now: Moment, limits: Limits) -> Decision:
    """Grant the name, give the caller its own lease back, or refuse with all it needs to know."""
    refusal = _bad_acquire(command, limits)
    if refusal is not None:
        return refuse(refusal)
    memo = recall(state, command, "acquire")
    if memo is not None:
        return _acquired_before(state, command, memo) if isinstance(memo, Memo) else refuse(memo)
    slot = state.slots.get(command.name, EMPTY)
    lease = slot.lease
    if lease is None and slot.closed_until_ms > now.ms:
        return refuse(refusals.Delayed(slot.closed_until_ms, slot.last_end))
    if command.via is not None and (command.session != command.via or not command.bound):
        # A session's secret claims for that session alone (S3).
        return refuse(refusals.SessionUnknown())
    if command.session is not None:
        lacking = missing(state, command.session, command.principal)
        if lacking is not None:
            return refuse(lacking)
    if lease is not None and _is_own(lease, command, limits):
        return _reacquire(state, command, slot, lease, now)
    if state.leases_of.get(command.principal, 0) >= limits.leases_per_principal_max:
        return refuse(refusals.TooManyLeases(limits.leases_per_principal_max))
    if lease is not None:
        same_owner = command.owner is not None and command.owner == lease.owner
        return refuse(refusals.Held(lease, state.until_of(lease), same_owner))
    return _grant(state, command, slot, now)


def _bad_acquire(command: Acquire, limits: Limits) -> Refusal | None:
    if not 0 < command.ttl_ms <= limits.ttl_ms_max:
        return refusals.BadTtl(limits.ttl_ms_max)
    if command.metadata is not None and len(command.metadata) > limits.metadata_chars_max:
        return refusals.BadField(f"metadata has at most {limits.metadata_chars_max} characters")
    if not 0 <= command.delay_ms <= LOCK_DELAY_MS_MAX:
        return refusals.BadField(f"lock_delay_seconds is 0 to {LOCK_DELAY_MS_MAX // 1000}")
    if command.bound and command.session is None:
        return refusals.BadField("ephemeral needs a session_id: open one with POST /sessions")
    if command.owner is not None and not 0 < len(command.owner) <= OWNER_CHARS_MAX:
        return refusals.BadField(f"owner has 1 to {OWNER_CHARS_MAX} characters")
    return None


def _acquired_before(state: State, command: Acquire, memo: Memo) -> Decision:
    """Answer a retry: the same lease, or that it has ended. Never a new grant (C5)."""
    slot = state.slots.get(command.name, EMPTY)
    lease = slot.lease
    if lease is not None and lease.lease_id == memo.made:
        reacquired = lease.key != command.key
        return accept(Acquired(lease, state.until_of(lease), slot.last_end, slot.attempts, reacquired))
    return refuse(_not_current(state, command.name, memo.made, command.principal))


def _is_own(lease: Lease, command: Acquire, limits: Limits) -> bool:
    """Tell whether the caller may have this live lease back (C4)."""
    if limits.reentrant == "holder":
        same_kind = lease.bound == command.bound
        return same_kind and (lease.session == command.session if lease.bound else lease.principal == command.principal)
    if not command.resume:
        return False
    if lease.bound:
        return command.bound and lease.session == command.session and lease.owner == command.owner
    # Without an owner's name the holder is that very lease alone, and nobody can prove to be it.
    return not command.bound and lease.principal == command.principal and lease.owner == command.owner is not None


def _reacquire(state: State, command: Acquire, slot: Slot, lease: Lease, now: Moment) -> Decision:
    until_ms = max(lease.until_ms, now.ms + command.ttl_ms)
    event = Renewed(
        command.name,
        lease.lease_id,
        command.ttl_ms,
        until_ms,
        claim_key=command.key,
        fingerprint=command.fingerprint if command.key is not None else "",
    )
    kept = replace(lease, ttl_ms=command.ttl_ms, until_ms=until_ms)
    answer = Acquired(kept, state.until_of(kept), slot.last_end, slot.attempts, reacquired=True)
    return Decision((event,), answer)


def _grant(state: State, command: Acquire, slot: Slot, now: Moment) -> Decision:
    token = state.last_token + 1
    if token > TOKEN_MAX:
        return refuse(refusals.TokensExhausted())
    lease = Lease(
        command.lease_id,
        token,
        command.principal,
        command.owner,
        command.session,
        command.bound,
        command.ttl_ms,
        now.ms + command.ttl_ms,
        command.delay_ms,
        command.metadata,
        None,
        now.wall_ms,
        now.wall_ms,
        command.key,
    )
    event = Granted(command.name, lease, command.fingerprint)
    return Decision((event,), Acquired(lease, state.until_of(lease), slot.last_end, slot.attempts + 1))


def renew(state: State, command: Renew, now: Moment, limits: Limits) -> Decision:
    """Move the deadline to now + ttl, which may be earlier, and leave a note."""
    if command.ttl_ms is not None and not 0 < command.ttl_ms <= limits.ttl_ms_max:
        return refuse(refusals.BadTtl(limits.ttl_ms_max))
    for field, text in (("note", command.note), ("metadata", command.metadata)):
        if text is not None and len(text) > limits.metadata_chars_max:
            return refuse(refusals.BadField(f"{field} has at most {limits.metadata_chars_max} characters"))
    lease = _held_by_caller(state, command)
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
    kept = replace(lease, ttl_ms=ttl_ms, until_ms=until_ms)
    return Decision((event,), Extended(kept, state.until_of(kept)))


def release(state: State, command: Release, now: Moment) -> Decision:
    """End the lease by its holder's wish."""
    memo = recall(state, command, "release")
    if memo is not None:
        return accept(Released()) if isinstance(memo, Memo) else refuse(memo)
    lease = _held_by_caller(state, command)
    if not isinstance(lease, Lease):
        return refuse(lease)
    event = replace(
        end_of(command.name, lease, "released", now.ms, by=command.principal, well=not command.failed),
        reason="failed" if command.failed else None,
        key=command.key,
        fingerprint=command.fingerprint,
    )
    return Decision((event,), Released())


def _held_by_caller(state: State, command: Renew | Release) -> Lease | Refusal:
    """Return the live lease if the caller has proved that it is its own (L3, S3), else why not."""
    lease = state.lease_of(command.name)
    if lease is None:
        return _gone(state, command)
    if lease.bound and lease.principal != command.principal:
        return refusals.SessionUnknown()
    if lease.lease_id != command.lease_id:
        return _not_current(state, command.name, command.lease_id, command.principal)
    if command.via is not None:
        return lease if lease.bound and lease.session == command.via else refusals.NotCurrent(succeeded=True)
    return lease if lease.principal == command.principal else refusals.NotCurrent(succeeded=True)


def _gone(state: State, command: Renew | Release) -> Refusal:
    """Nobody holds the name: say what became of the caller's lease, and that it was the session if it was."""
    refusal = _not_current(state, command.name, command.lease_id, command.principal)
    ended = refusal.ended
    if ended is not None and ended.end.how == "session_ended" and ended.session is not None:
        lacking = missing(state, ended.session, command.principal)
        if isinstance(lacking, refusals.SessionLapsed):
            return lacking
    return refusal


def _not_current(state: State, name: str, lease_id: str, principal: str) -> refusals.NotCurrent:
    """Say that the lease id does not own the name, and what is remembered of it to the one whose lease it was."""
    ended = state.remembered.get(lease_id)
    if not isinstance(ended, EndedLease) or ended.name != name or ended.principal != principal:
        ended = None
    return refusals.NotCurrent(state.lease_of(name) is not None, ended)
