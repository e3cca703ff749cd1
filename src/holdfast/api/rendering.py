"""Renders decisions as replies, and refusals as problems with their texts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import UNSET

from holdfast.api.auth.secrets import AuthorityKey
from holdfast.core import outcomes
from holdfast.core.events import (
    Ended,
    Granted,
    HistoryEvent,
    Joined,
    Left,
    Record,
    Reopened,
    Transferred,
    claim_of,
    events_by_name,
)
from holdfast.core.outcomes import Acquired
from holdfast.core.state import EMPTY, State
from holdfast.core.usage import quota_message
from holdfast.core.values import EndedLease, Instant, LastEnd, Lease, Slot
from holdfast.engine.waiters import NotLeader, Unavailable, Unknown
from holdfast.http.messages import ResponseParts
from holdfast.wire.problems import Problem
from holdfast.wire.replies import AcquiredReply, HeldName, HeldReply, HistoryEntryReply, LockReply, Previous, shown_as

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NOT_CURRENT_LIVE = 400
RETRY_LATER_MS = 1_000
NEXT_LEADER_MS = 200  # When to ask again if another node may lead, or soon will.
HIDDEN = "(hidden)"  # A name or owner outside of the caller's prefix. No name has brackets like these.

R = TypeVar("R", HeldName, HeldReply, LockReply)

encode = msgspec.json.Encoder().encode


def acquired(answer: Acquired, now: Instant, waited_ms: int = 0) -> AcquiredReply:
    lease = answer.lease
    left_ms = answer.until_ms - now.ms
    reply = AcquiredReply(
        lease.lease_id,
        lease.token,
        rfc3339(now.wall_ms + left_ms),
        left_ms // 2,
        lease.metadata,
        lease.owner,
        rfc3339(lease.granted_wall_ms),
        left_ms,
        waited_ms,
        answer.reacquired,
        None if answer.previous is None else previous(answer.previous),
        answer.attempts,
        lease.session,
    )
    if lease.labels is not None:
        reply.labels = lease.labels
    return reply


def with_labels(reply: R, lease: Lease) -> R:
    if lease.labels is not None:
        reply.labels = lease.labels
    if lease.owner is None:
        reply.shown_as = shown_as(lease.principal, lease.metadata)
    return reply


def previous(end: LastEnd) -> Previous:
    shown = shown_as(nameless_holder(end)) if end.owner is None else msgspec.UNSET
    return Previous(end.owner, end.token, end.how, rfc3339(end.wall_ms), end.note, shown_as=shown)


def nameless_holder(end: LastEnd) -> str | None:
    # A holder that releases its own lease, or hands it over, is `by`.
    return end.by if end.whose is None and end.how in {"released", "transferred"} else end.whose


def holder_id(lease: Lease, key: AuthorityKey) -> str:
    if lease.bound and lease.session is not None:
        return key.holder("session", lease.session)
    return key.holder("principal", lease.principal)


def lock(name: str, state: State, now: Instant, key: AuthorityKey) -> LockReply:
    """Say what is known of a name. Never fails: a name that nobody ever claimed is free."""
    slot = state.slots.get(name, EMPTY)
    lease = slot.lease
    before = None if slot.last_end is None else previous(slot.last_end)
    waits = state.waiter_count(name)
    if lease is None:
        return _free(name, slot, state, now, before=before, waits=waits)
    left_ms = state.until_of(lease) - now.ms
    reply = LockReply(
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
        waits,
        slot.attempts,
        before,
    )
    return with_labels(reply, lease)


def _free(name: str, slot: Slot, state: State, now: Instant, *, before: Previous | None, waits: int) -> LockReply:
    nothing = (None,) * 8
    free = LockReply(name, "free", None, state.last_token + 1, *nothing, waits, slot.attempts, before)
    if slot.done is not None and slot.done.until_ms > now.ms:
        free.status, free.owner, free.fencing_token = "done", slot.done.owner, slot.done.token
        free.completed_at, free.result = rfc3339(slot.done.wall_ms), slot.done.result
        if slot.done.owner is None:
            free.shown_as = shown_as(slot.done.whose)
    elif slot.closed_until_ms > now.ms:
        free.retry_after_ms = slot.closed_until_ms - now.ms
        free.available_at = rfc3339(now.wall_ms + free.retry_after_ms)
    return free


def no_content(_api: object, _context: object, _outcome: object, _now: Instant) -> ResponseParts:
    return 204, b"", ()


_PLAIN_PROBLEMS: dict[type[object], tuple[str, str]] = {
    outcomes.SessionLapsed: (
        "session_expired",
        "The session missed its keepalive; all that was bound to it has ended.",
    ),
    outcomes.KeyConflict: (
        "idempotency_conflict",
        "This Idempotency-Key was used for another request: take a new one.",
    ),
    outcomes.TicketGone: (
        "ticket_gone",
        "No such place in this line is yours (any more): claim again without the ticket.",
    ),
    outcomes.NotHeld: ("not_found", "Nobody holds this name: there is nothing to end."),
    outcomes.NotDone: ("not_found", "This name is not done: there is nothing to reopen."),
    outcomes.NotAllowedAnyMore: (
        "authentication_failed",
        "The access token that stood in line was revoked, replaced or has expired: come back with the new one.",
    ),
    outcomes.TokenExists: (
        "conflict",
        "An access token of that name exists: rotate it to replace it, or take another name.",
    ),
    outcomes.TokenUnknown: ("not_found", "No access token has that name."),
    outcomes.TokensExhausted: ("capacity_exceeded", "The fencing counter is at its end."),
}


def problem(outcome: object, prefix: str | None = None, *, has_revoked_code: bool = True) -> Problem:
    """Put a refusal into the words of the wire. Without `has_revoked_code` the codes are OctoStore's."""
    if type(outcome) in _PLAIN_PROBLEMS:
        return Problem(*_PLAIN_PROBLEMS[type(outcome)])
    match outcome:
        case outcomes.NotCurrent():
            return _not_current(outcome, has_revoked_code=has_revoked_code)
        case outcomes.BadTtl(max_ms=max_ms):
            return Problem("invalid_ttl", f"ttl_seconds is 1 to {max_ms // 1000} seconds.")
        case outcomes.BadField(text=text):
            return Problem("invalid_input", f"{text}.")
        case outcomes.BadName(text=text):
            return Problem("invalid_lock_name", f"{text}.")
        case outcomes.SessionUnknown():
            return Problem("not_found", "No such session of this access token.", label="Session not found")
        case outcomes.Deadlock(path=path, own=own):
            return _deadlock_problem(masked(path, prefix), own)
        case outcomes.DeadlockSearchExceeded(limit=limit):
            text = (
                f"Too many waits hang together: more than {limit} would have to be looked at"
                " to know that this one can end. Wait for fewer names, or try again later."
            )
            return Problem("quota_exceeded", text, retry_after_ms=RETRY_LATER_MS)
        case outcomes.TooManyLeases(limit=limit, of_session=of_session):
            whose = quota_message(f"hold {limit} leases", of_session=of_session)
            return Problem("lock_limit_exceeded", f"{whose} (leases_per_principal_max): release some.")
        case outcomes.TooManyTickets(limit=limit, of_session=of_session):
            whose = quota_message(f"have {limit} places in lines", of_session=of_session)
            return Problem("quota_exceeded", f"{whose} (tickets_per_principal_max): leave some.")
        case outcomes.TooManySessions(limit=limit):
            text = f"This access token has {limit} sessions, the most it may: end some (sessions_per_principal_max)."
            return Problem("quota_exceeded", text)
        case outcomes.TooManyTokens(limit=limit):
            text = f"There are {limit} access tokens, the most there may be: revoke some (tokens_max)."
            return Problem("quota_exceeded", text)
        case outcomes.QuotaExceeded(text=text):
            return Problem("quota_exceeded", f"{text}.")
        case outcomes.QueueFull(limit=limit):
            text = f"{limit} stand in this line, the most there may be (queue_max): try again."
            return Problem("quota_exceeded", text, retry_after_ms=RETRY_LATER_MS)
        case Unavailable(text=text):
            return Problem(
                "storage_unavailable", f"Nothing was changed: {text}. Try again.", retry_after_ms=RETRY_LATER_MS
            )
        case NotLeader(text=text):
            return Problem("not_leader", f"Nothing was changed: {text}. Try again.", retry_after_ms=NEXT_LEADER_MS)
        case Unknown(text=text):
            return Problem(
                "outcome_unknown",
                f"This may or may not have happened: {text}. Retry with the same Idempotency-Key.",
                retry_after_ms=RETRY_LATER_MS,
            )
        case _:
            raise TypeError(f"no words for {type(outcome).__name__}")


def masked(path: tuple[str, ...], prefix: str | None) -> tuple[str, ...]:
    """Return a cycle (who asks, what it wants, who holds that, …) as a caller confined to a prefix may see it."""
    if prefix is None:
        return path
    shown = [path[0]]
    for name, holder in zip(path[1::2], [*path[2::2], ""], strict=True):
        shown += [name, holder] if name.startswith(prefix) else [HIDDEN, HIDDEN]
    return tuple(shown[: len(path)])


def _deadlock_problem(path: tuple[str, ...], lease: Lease | None) -> Problem:
    """Say who waits for whom; for a wait for its own lease, as after a lost answer, since when it has it (D1a)."""
    if lease is None:
        around = " → ".join([*path, path[0]])
        text = f"Waiting would never end: {around}. Release what you hold, or do not wait."
        return Problem("deadlock", text, fields={"cycle": list(path)})
    who, name = path
    claimed_at = rfc3339(lease.granted_wall_ms)
    text = (
        f"{who} holds {name} itself since {claimed_at}, and would wait for itself."
        f" If that lease is yours, claim {name} with resume: true to have it back."
        " If it is another worker's, give each worker an owner of its own."
    )
    heartbeat_at = rfc3339(lease.beat_wall_ms)
    own = {"owner": lease.owner, "same_owner": True, "claimed_at": claimed_at, "last_heartbeat_at": heartbeat_at}
    return Problem("deadlock", text, fields={"cycle": list(path), **own})


def _not_current(outcome: outcomes.NotCurrent, *, has_revoked_code: bool) -> Problem:
    ended = outcome.ended
    fields = None if ended is None else _ended(ended)
    if ended is not None and ended.end.how == "revoked":
        text = f"This lease was revoked by {ended.end.by}: {ended.end.reason}. Stop working on it."
        if has_revoked_code:
            return Problem("revoked", text, fields=fields)
        status = _NOT_CURRENT_LIVE if outcome.succeeded else None
        return Problem("lease_not_current", text, status=status, fields=fields)
    if outcome.succeeded:
        text = "Somebody else holds this name, or another lease does: stop working on it."
        return Problem("lease_not_current", text, status=_NOT_CURRENT_LIVE, fields=fields)
    text = "Nothing is held under this name." if ended is None else f"This lease has ended ({ended.end.how})."
    return Problem("lease_not_current", f"{text} Claim it again if you still need it.", fields=fields)


def _ended(ended: EndedLease) -> dict[str, object]:
    end = ended.end
    return {"ended": end.how, "at": rfc3339(end.wall_ms), "by": end.by, "reason": end.reason}


CACHED_MAX = 2_048  # The texts of a second or two. Dropping them all takes well under a millisecond.


class _Texts(dict[int, str]):
    def __missing__(self, wall_ms: int) -> str:
        if len(self) >= CACHED_MAX:
            self.clear()
        seconds, ms = divmod(wall_ms, 1000)
        text = self[wall_ms] = f"{_second(seconds)}.{ms:03d}Z"
        return text


@lru_cache(maxsize=1_024)
def _second(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        # A wall clock that is out of its mind must not take the service down: it decides nothing.
        return "9999-12-31T23:59:59" if seconds > 0 else "0001-01-01T00:00:00"


rfc3339: Callable[[int], str] = _Texts().__getitem__  # Of milliseconds, in UTC. Two are in each reply: no wrapper.


def changes(record: Record, is_wanted: Callable[[str], bool]) -> Iterator[HistoryEntryReply]:
    """Yield an entry for each wanted name that a record concerns."""
    for name, event in events_by_name(record.event):
        if is_wanted(name):
            yield history_entry(record.seq, record.wall_ms, name, event)


def history_entry(seq: int, wall_ms: int, name: str, event: HistoryEvent) -> HistoryEntryReply:
    """Return the history entry of one name. It never has metadata, because history is kept for long."""
    claim = claim_of(event)
    owner, labels = (None, None) if claim is None else (claim.owner, claim.labels)
    shown = UNSET if claim is None or owner is not None else shown_as(claim.principal)
    entry = partial(HistoryEntryReply, seq, rfc3339(wall_ms), labels=labels or UNSET, shown_as=shown)
    match event:
        case Granted(lease=lease):
            return entry("granted", name, owner, lease.token, lease.principal, None)
        case Ended():
            return entry(
                "done" if event.done is not None else event.how, name, owner, event.token, event.by, event.reason
            )
        case Transferred(lease=lease):
            return entry("transferred", name, owner, lease.token, event.by, event.reason)
        case Reopened():
            return entry("reopened", name, None, None, event.by, event.reason)
        case Joined():
            return entry("waiting", name, owner, None, event.ticket.terms.principal, None)
        case Left():
            return entry("left", name, owner, None, None, event.how)
