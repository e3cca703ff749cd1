"""Decisions as replies: what the core answered, in the words of the wire. The one home of every refusal's text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core import refusals
from holdfast.engine.engine import Unavailable, Unknown
from holdfast.server.times import rfc3339
from holdfast.wire.messages import AcquiredReply, DelayedReply, HeldReply, LockReply, Previous, RenewedReply
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from holdfast.core.answers import Acquired, Extended
    from holdfast.core.state import State
    from holdfast.core.values import EndedLease, LastEnd, Lease, Moment
    from holdfast.server.secrets import AuthorityKey

_NOT_CURRENT_LIVE = 400
RETRY_LATER_MS = 1_000


def acquired(answer: Acquired, now: Moment) -> AcquiredReply:
    """Say that the caller owns the name."""
    lease = answer.lease
    left_ms = answer.until_ms - now.ms
    return AcquiredReply(
        lease.lease_id,
        lease.token,
        rfc3339(now.wall_ms + left_ms),
        left_ms // 2,
        lease.metadata,
        lease.owner,
        rfc3339(lease.granted_wall_ms),
        left_ms,
        0,
        answer.reacquired,
        None if answer.previous is None else previous(answer.previous),
        answer.attempts,
        lease.session,
    )


def held(answer: refusals.Held, now: Moment, key: AuthorityKey) -> HeldReply:
    """Say who owns the name; never the lease id (C2)."""
    lease = answer.lease
    left_ms = answer.until_ms - now.ms
    return HeldReply(
        holder_id(lease, key),
        rfc3339(now.wall_ms + left_ms),
        left_ms,
        lease.metadata,
        lease.owner,
        answer.same_owner,
        rfc3339(lease.granted_wall_ms),
        rfc3339(lease.beat_wall_ms),
        left_ms,
        lease.note,
        0,
    )


def delayed(answer: refusals.Delayed, now: Moment) -> DelayedReply:
    """Say when the name opens."""
    left_ms = answer.until_ms - now.ms
    seconds = 0 if answer.end is None else answer.end.delay_ms // 1000
    return DelayedReply(rfc3339(now.wall_ms + left_ms), seconds, left_ms)


def renewed(answer: Extended, now: Moment) -> RenewedReply:
    """Say until when the lease lives."""
    left_ms = answer.until_ms - now.ms
    return RenewedReply(answer.lease.lease_id, rfc3339(now.wall_ms + left_ms), left_ms // 2, left_ms)


def previous(end: LastEnd) -> Previous:
    """Say who was there before."""
    return Previous(end.owner, end.token, end.how, rfc3339(end.wall_ms), end.note)


def holder_id(lease: Lease, key: AuthorityKey) -> str:
    """Return the pseudonym of a holder: the session for what is bound to one, else the principal."""
    if lease.bound and lease.session is not None:
        return key.holder("session", lease.session)
    return key.holder("principal", lease.principal)


def lock(name: str, state: State, now: Moment, key: AuthorityKey) -> LockReply:
    """Say what is known of a name. Never fails: a name that nobody ever claimed is free."""
    slot = state.slots.get(name)
    lease = None if slot is None else slot.lease
    before = None if slot is None or slot.last_end is None else previous(slot.last_end)
    attempts = 0 if slot is None else slot.attempts
    if lease is None:
        free = LockReply(
            name,
            "free",
            None,
            state.last_token + 1,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            0,
            attempts,
            before,
        )
        if slot is not None and slot.closed_until_ms > now.ms:
            free.retry_after_ms = slot.closed_until_ms - now.ms
            free.available_at = rfc3339(now.wall_ms + free.retry_after_ms)
        return free
    left_ms = state.until_of(lease) - now.ms
    return LockReply(
        name,
        "held",
        holder_id(lease, key),
        lease.token,
        rfc3339(now.wall_ms + left_ms),
        lease.metadata,
        lease.owner,
        rfc3339(lease.granted_wall_ms),
        rfc3339(lease.beat_wall_ms),
        left_ms,
        lease.note,
        lease.session,
        0,
        attempts,
        before,
    )


def problem(outcome: object) -> Problem:
    """Put a refusal into the words of the wire."""
    match outcome:
        case refusals.NotCurrent():
            return _not_current(outcome)
        case refusals.BadTtl(max_ms=max_ms):
            return Problem("invalid_ttl", f"ttl_seconds is 1 to {max_ms // 1000}.")
        case refusals.BadField(text=text):
            return Problem("invalid_input", f"{text[:1].upper()}{text[1:]}.")
        case refusals.TooManyLeases(limit=limit):
            return Problem("lock_limit_exceeded", f"This token holds {limit} leases, the most it may: release some.")
        case refusals.TooManySessions(limit=limit):
            return Problem("quota_exceeded", f"This token has {limit} sessions, the most it may: end some.")
        case refusals.TooManyTokens(limit=limit):
            return Problem("quota_exceeded", f"There are {limit} tokens, the most there may be: revoke some.")
        case refusals.SessionUnknown():
            return Problem("not_found", "No such session of this token.", label="Session not found")
        case refusals.SessionLapsed():
            return Problem("session_expired", "The session missed its keepalive; all that was bound to it has ended.")
        case refusals.KeyConflict():
            return Problem("idempotency_conflict", "This Idempotency-Key was used for another request: take a new one.")
        case refusals.TokenExists():
            return Problem("conflict", "A token of that name exists: revoke it first, or take another name.")
        case refusals.TokenUnknown():
            return Problem("not_found", "No token has that name.")
        case refusals.TokensExhausted():
            return Problem("capacity_exceeded", "The fencing counter is at its end.")
        case Unavailable(text=text):
            return Problem(
                "storage_unavailable", f"Nothing was changed: {text}. Try again.", retry_after_ms=RETRY_LATER_MS
            )
        case Unknown(text=text):
            return Problem(
                "outcome_unknown",
                f"This may or may not have happened: {text}. Retry with the same Idempotency-Key.",
                retry_after_ms=RETRY_LATER_MS,
            )
        case _:
            raise TypeError(f"no words for {type(outcome).__name__}")


def _not_current(outcome: refusals.NotCurrent) -> Problem:
    ended = outcome.ended
    fields = None if ended is None else _ended(ended)
    if outcome.succeeded:
        text = "Somebody else holds this name, or another lease does: stop working on it."
        return Problem("lease_not_current", text, status=_NOT_CURRENT_LIVE, fields=fields)
    text = "Nothing is held under this name." if ended is None else f"This lease has ended ({ended.end.how})."
    return Problem("lease_not_current", f"{text} Claim it again if you still need it.", fields=fields)


def _ended(ended: EndedLease) -> dict[str, object]:
    end = ended.end
    return {"ended": end.how, "at": rfc3339(end.wall_ms), "by": end.by, "reason": end.reason}
