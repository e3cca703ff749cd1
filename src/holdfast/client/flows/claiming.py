"""Claiming, renewing and giving back, as flows. Whatever is interrupted gives back what it may have got by then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from holdfast.client.clock import Instant, elapsed_ms
from holdfast.client.flows.effects import (
    HASTE_SECONDS,
    NEW_KEY,
    NOW,
    Flow,
    Heard,
    Policy,
    Rest,
    Send,
    exchange,
    insist,
    said,
)
from holdfast.client.flows.reading import status
from holdfast.client.values import records
from holdfast.client.values.answer import Answer, decoded, envelope, refusal
from holdfast.client.values.arguments import whole_seconds
from holdfast.client.values.paths import job_path
from holdfast.client.values.records import JobClaim, JobStatus, Metadata, Place
from holdfast.client.values.term import Loss, Term, lost_error
from holdfast.errors import HoldfastError, JobHeld, NotInTime, ServerError
from holdfast.wire.messages import (
    AcquireBody,
    AcquiredReply,
    ClaimsBody,
    ClaimsReply,
    DelayedReply,
    DoneReply,
    HeldManyReply,
    HeldReply,
    ReleaseBody,
    RenewBody,
    RenewedReply,
    TransferBody,
    WaitingReply,
)

WAIT_SECONDS_MAX = 50
"""What one request may wait; a longer wait is several of them at one place in the line."""
WATCHED_WAIT_SECONDS_MAX = 5
"""The same for somebody who watches, and wants to be told more often."""
GLANCE_SECONDS = 0.1
"""How long the first request waits for one who watches: until the place is known."""
SHARED_PLACE_SECONDS_MAX = 5.0
POLL_SECONDS = 0.25
POLL_SECONDS_MAX = 2.0
POLL_SHARE_MIN = 0.04
"""How much of a pause is kept at least, where the server knows of an end that comes sooner."""
UNHEARD_MAX = 3
_OK, _CONFLICT = 200, 409
_GONE = frozenset({400, 404})
"""A lease that is not current: 404, or 400 where somebody else has the name by now."""

ClaimAnswer: TypeAlias = AcquiredReply | HeldReply | DelayedReply | DoneReply | WaitingReply
ManyAnswer: TypeAlias = ClaimsReply | HeldManyReply | DoneReply | WaitingReply


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim asks for. Times in seconds, as the caller gave them."""

    ttl: float
    owner: str | None
    wait: float = 0.0
    metadata: Metadata = None
    resume: bool = False
    redo: bool = False
    session: str | None = None
    lock_delay: int = 0
    on_wait: Callable[[Place], None] | None = None


class Got(msgspec.Struct, frozen=True):
    """A claim, and the time we may believe in it."""

    claim: JobClaim
    term: Term


class _HadEnough(Exception):
    """Whoever watches the wait raised one of our own exceptions, which must not be taken for the server's."""


class _Asking:
    """One claim on its way: the key that makes it once, its place in the line, and how long it has been at it."""

    def __init__(self, jobs: Sequence[str], wanted: Wanted, began: Instant, key: str) -> None:
        self.jobs = jobs
        self.wanted = wanted
        self.began = began
        self.key = key
        self.ticket: str | None = None
        self.asked_wait = 0.0
        """How long the last request was to wait."""
        self.unheard = 0
        self.crowded = 0

    def wait_left(self, now: Instant) -> float:
        """Return how many seconds of the wait are left."""
        return max(0.0, self.wanted.wait - elapsed_ms(self.began, now) / 1_000)

    def this_wait(self, now: Instant) -> float:
        """Return how long the next request waits."""
        left = self.wait_left(now)
        if self.wanted.on_wait is None:
            return min(left, WAIT_SECONDS_MAX)
        return min(left, WATCHED_WAIT_SECONDS_MAX if self.ticket else GLANCE_SECONDS)

    def start_over(self, key: str) -> None:
        """Forget the place and the key: what they led to is gone."""
        self.ticket, self.key = None, key


def claim(job: str, wanted: Wanted, policy: Policy) -> Flow[Got]:
    """Claim one job, waiting in line for as long as wanted. Raises `JobHeld`, `NotInTime`, `JobDone`, `Deadlock`."""
    asking = _Asking([job], wanted, (yield NOW), (yield NEW_KEY))
    path = job_path(job, "acquire")

    def request(wait: float) -> Send:
        body = AcquireBody(
            ttl_seconds=whole_seconds(wanted.ttl),
            metadata=records.packed(wanted.metadata),
            owner=wanted.owner,
            resume=wanted.resume or None,
            session_id=wanted.session,
            ephemeral=True if wanted.session else None,
            lock_delay_seconds=wanted.lock_delay or None,
            wait_seconds=wait or None,
            ticket=asking.ticket,
            redo=wanted.redo or None,
        )
        return Send("POST", path, body, asking.key, wait + policy.answer_seconds)

    reply, sent = yield from _stand(asking, request, ClaimAnswer, policy)
    match reply:
        case AcquiredReply():
            term = Term(job, reply.fencing_token, sent, reply.expires_in_ms, reply.waited_ms)
            return Got(records.claimed(job, reply), term)
        case HeldReply():
            raise records.job_held(job, reply)
        case DelayedReply():
            raise records.job_closed(job, reply)
        case DoneReply():
            raise records.job_done(reply)
        case _:
            raise TypeError(f"no words for {type(reply).__name__}")


def claim_all(jobs: Sequence[str], wanted: Wanted, policy: Policy) -> Flow[list[Got]]:
    """Claim every job or none, waiting for all of them. Raises as `claim`; `JobHeld.others` has each in the way."""
    asking = _Asking(jobs, wanted, (yield NOW), (yield NEW_KEY))

    def request(wait: float) -> Send:
        body = _claims_body(wanted, wait, asking.ticket)
        body.all = list(jobs)
        return Send("POST", "/claims", body, asking.key, wait + policy.answer_seconds)

    reply, sent = yield from _stand(asking, request, ManyAnswer, policy)
    return _got_many(reply, sent, wanted, len(jobs))


def claim_any(jobs: Sequence[str], wanted: Wanted, policy: Policy) -> Flow[Got]:
    """Claim the first free job of a list. The server does not wait for this, so a wait asks again and again."""
    began: Instant = yield NOW
    pause = POLL_SECONDS
    while True:
        asking = _Asking(jobs, wanted, began, (yield NEW_KEY))

        def request(_wait: float, key: str = asking.key) -> Send:
            body = _claims_body(wanted, 0, None)
            body.any = list(jobs)
            return Send("POST", "/claims", body, key, policy.answer_seconds)

        reply, sent = yield from _stand(asking, request, ManyAnswer, policy, can_wait=False)
        left = asking.wait_left((yield NOW))
        if not isinstance(reply, HeldManyReply) or left <= 0:
            if isinstance(reply, HeldManyReply) and wanted.wait:
                raise _many_held(reply, NotInTime)
            return _got_many(reply, sent, wanted, 1)[0]
        soonest = pause * POLL_SHARE_MIN  # A server that says "at once" again and again is not asked without end.
        yield Rest(min(pause, left, max(reply.retry_after_ms / 1_000, soonest)))
        pause = min(pause * 2, POLL_SECONDS_MAX)


def _stand(
    asking: _Asking,
    request: Callable[[float], Send],
    answers: object,
    policy: Policy,
    *,
    can_wait: bool = True,
) -> Flow[tuple[object, Instant]]:
    """Ask, and come back to the same place for as long as the wait lasts; return the reply that settles it."""

    def next_try(now: Instant) -> Send:
        asking.asked_wait = asking.this_wait(now) if can_wait else 0.0
        return request(asking.asked_wait)

    while True:
        try:
            heard: Heard = yield from exchange(next_try, policy)
            if not _settles(heard.answer):
                yield from _begin_again(asking, heard.answer, policy)
                continue
            reply = decoded(heard.answer, answers, "a claim", policy.url)  # type: ignore[arg-type, var-annotated]
            if not isinstance(reply, WaitingReply):
                return reply, heard.sent
            yield from _go_on_waiting(asking, reply, heard.sent, policy)
        except (HoldfastError, GeneratorExit):
            raise
        except BaseException as interrupt:
            # Interrupted or cancelled, or whoever watches has had enough: nothing may be left behind.
            yield from _abandon(request(0.0), answers, policy)
            if isinstance(interrupt, _HadEnough) and interrupt.__cause__ is not None:
                raise interrupt.__cause__ from None
            raise


def _settles(answer: Answer) -> bool:
    """Tell whether this is an answer to the claim, and not a refusal or a wait that is gone."""
    return answer.status == _OK or (answer.status == _CONFLICT and envelope(answer) is None)


def _begin_again(asking: _Asking, answer: Answer, policy: Policy) -> Flow[None]:
    """Start over with a new key where the last one leads nowhere; raise what cannot be mended so."""
    found = envelope(answer)
    gone = answer.status in _GONE and found is not None and found.code in {"ticket_gone", "lease_not_current"}
    if not gone or asking.unheard >= UNHEARD_MAX:
        raise refusal(answer, policy.url)
    # The place lapsed while we were cut off, or the lease ended before we heard of it.
    asking.unheard += 1
    asking.start_over((yield NEW_KEY))


def _go_on_waiting(asking: _Asking, reply: WaitingReply, sent: Instant, policy: Policy) -> Flow[None]:
    """Take note of the place. Raises `NotInTime` once the wait is over."""
    now: Instant = yield NOW
    asking.ticket = reply.ticket
    asking.unheard = 0
    left = asking.wait_left(now)
    if left <= 0:
        yield from leave(reply.ticket, policy)
        raise (yield from _not_in_time(asking, policy))
    if asking.wanted.on_wait is not None:
        known = (yield from _glance(asking.jobs[0], policy)) if len(asking.jobs) == 1 else None
        waited = elapsed_ms(asking.began, now) / 1_000
        place = Place(asking.jobs[0], reply.position, waited, None if known is None else known.owner)
        try:
            asking.wanted.on_wait(place)
        except HoldfastError as error:
            raise _HadEnough from error
    if elapsed_ms(sent, now) < asking.asked_wait * 500:
        # Sent away early: somebody of the same name stands at the same place. Taking it back at once would never end.
        asking.crowded += 1
        yield Rest(min(asking.crowded * 0.5, SHARED_PLACE_SECONDS_MAX, left))


def _not_in_time(asking: _Asking, policy: Policy) -> Flow[JobHeld]:
    waited = f"not acquired within {asking.wanted.wait:g} s"
    if len(asking.jobs) > 1:
        return NotInTime(f"{waited}: {', '.join(asking.jobs)}", job_id=asking.jobs[0])
    job = asking.jobs[0]
    known = yield from _glance(job, policy)
    owner = None if known is None else known.owner
    if known is None or owner is None:
        return NotInTime(f"{job} was {waited}", job_id=job, waiting=0 if known is None else known.waiting)
    return NotInTime(
        f"{job} was {waited}; it is held by {owner.owner or 'an owner without a name'}",
        job_id=job,
        owner=owner.owner,
        metadata=owner.metadata,
        note=owner.note,
        claimed_at=owner.claimed_at,
        last_heartbeat_at=owner.last_heartbeat_at,
        expires_at=owner.expires_at,
        waiting=known.waiting,
        retry_after=owner.expires_in,
    )


def _glance(job: str, policy: Policy) -> Flow[JobStatus | None]:
    """See how a job is, for what is said beside the point; None where we may not look, or nobody answers."""
    try:
        return (yield from status(job, msgspec.structs.replace(policy, retry_seconds=0)))
    except HoldfastError:
        return None


def _abandon(request: Send, answers: object, policy: Policy) -> Flow[None]:
    """Find out what a claim came to that nobody wants any more, and give it back; for a short while only."""
    hasty = msgspec.structs.replace(policy, answer_seconds=HASTE_SECONDS, retry_seconds=HASTE_SECONDS / 2)
    try:
        heard = yield from exchange(msgspec.structs.replace(request, answer_seconds=HASTE_SECONDS), hasty)
        if not _settles(heard.answer):
            return
        reply: object = decoded(heard.answer, answers, "", policy.url)  # type: ignore[arg-type]
        match reply:
            case WaitingReply():
                yield from leave(reply.ticket, hasty)
            case AcquiredReply() if not reply.reacquired:
                yield from _give_back(request.path.removesuffix("/acquire"), reply.lease_id, hasty)
            case ClaimsReply():
                for each in reply.claims:
                    yield from _give_back(job_path(each.name), each.lease_id, hasty)
            case _:
                pass
    except HoldfastError:
        return  # The server is gone; what it may have given us ends by itself.


def _give_back(at: str, lease_id: str, policy: Policy) -> Flow[None]:
    # As failed: nothing was done, so what counts the attempts must not begin anew.
    body = ReleaseBody(lease_id=lease_id, outcome="failed")
    yield from exchange(Send("POST", f"{at}/release", body, (yield NEW_KEY)), policy)


def leave(ticket: str, policy: Policy) -> Flow[None]:
    """Give up a place in the line; it may be gone already."""
    try:
        yield from exchange(Send("DELETE", f"/tickets/{ticket}", answer_seconds=policy.answer_seconds), policy)
    except HoldfastError:
        return  # Then it goes by itself, in a minute.


def _claims_body(wanted: Wanted, wait: float, ticket: str | None) -> ClaimsBody:
    return ClaimsBody(
        ttl_seconds=whole_seconds(wanted.ttl),
        metadata=records.packed(wanted.metadata),
        owner=wanted.owner,
        session_id=wanted.session,
        ephemeral=True if wanted.session else None,
        lock_delay_seconds=wanted.lock_delay or None,
        wait_seconds=wait or None,
        ticket=ticket,
        redo=wanted.redo or None,
    )


def _got_many(reply: object, sent: Instant, wanted: Wanted, asked: int) -> list[Got]:
    match reply:
        case ClaimsReply() if len(reply.claims) != asked:
            raise ServerError(f"the server granted {len(reply.claims)} jobs where {asked} were asked for")
        case ClaimsReply():
            return [
                Got(
                    records.claimed_one(each, reply.owner, wanted.metadata),
                    Term(each.name, each.fencing_token, sent, each.expires_in_ms, reply.waited_ms),
                )
                for each in reply.claims
            ]
        case HeldManyReply():
            raise _many_held(reply, JobHeld)
        case DoneReply():
            raise records.job_done(reply)
        case _:
            raise TypeError(f"no words for {type(reply).__name__}")


def _many_held(reply: HeldManyReply, kind: type[JobHeld]) -> JobHeld:
    others = [records.name_held(each) for each in reply.held]
    if not others:
        raise ServerError("the server refused, and named nobody who has the jobs; try again")
    first = others[0]
    text = str(first) if len(others) == 1 else f"{first}, and {len(others) - 1} more are not free"
    return kind(
        text,
        job_id=first.job_id,
        owner=first.owner,
        metadata=first.metadata,
        note=first.note,
        claimed_at=first.claimed_at,
        last_heartbeat_at=first.last_heartbeat_at,
        expires_at=first.expires_at,
        retry_after=reply.retry_after_ms / 1_000,
        others=others,
    )


def renew(
    job: str,
    lease_id: str,
    policy: Policy,
    *,
    ttl: float | None = None,
    note: str | None = None,
    metadata: Metadata = None,
) -> Flow[tuple[RenewedReply, Instant]]:
    """Renew a lease, for its own ttl unless told otherwise. Raises `LeaseLost` if it has ended."""
    request = renewal(job, lease_id, policy.answer_seconds, ttl=ttl, note=note, metadata=metadata)
    heard = yield from exchange(request, policy)
    return renewed(job, heard.answer, policy), heard.sent


def renewal(
    job: str,
    lease_id: str,
    answer_seconds: float,
    *,
    ttl: float | None = None,
    note: str | None = None,
    metadata: Metadata = None,
) -> Send:
    """Return the request that renews a lease. It needs no key: a second time only reaches further."""
    body = RenewBody(
        lease_id=lease_id,
        ttl_seconds=None if ttl is None else whole_seconds(ttl),
        keep_ttl=True if ttl is None else None,
        note=note,
        metadata=records.packed(metadata),
    )
    return Send("POST", job_path(job, "renew"), body, answer_seconds=answer_seconds)


def renewed(job: str, answer: Answer, policy: Policy) -> RenewedReply:
    """Return the reply to a renewal. Raises `LeaseLost` if the lease has ended."""
    loss = told_loss(answer)
    if loss is not None:
        raise lost_error(f"the claim on {job}", loss, job_id=job)
    return said(answer, policy, Send("POST", job_path(job, "renew")), RenewedReply)


def release(
    job: str,
    lease_id: str,
    policy: Policy,
    *,
    outcome: str | None = None,
    result: str | None = None,
    remember: float | None = None,
) -> Flow[None]:
    """Give a lease back, even if interrupted; twice is harmless. Raises `LeaseLost` if it had ended in another way."""
    body = ReleaseBody(
        lease_id=lease_id,
        outcome=outcome,  # type: ignore[arg-type]
        result=result,
        remember_seconds=None if remember is None else whole_seconds(remember, "remember"),
    )
    request = Send("POST", job_path(job, "release"), body, (yield NEW_KEY), policy.answer_seconds)
    heard = yield from insist(request, policy)
    loss = told_loss(heard.answer)
    if loss is None:
        return said(heard.answer, policy, request, type(None))
    if loss.reason != "released":
        raise lost_error(f"the claim on {job}", loss, job_id=job)
    return None


def transfer(job: str, lease_id: str, to_owner: str, policy: Policy, *, ttl: float | None = None) -> Flow[JobClaim]:
    """Hand a claim to another owner, without a gap."""
    body = TransferBody(lease_id=lease_id, to_owner=to_owner, ttl_seconds=None if ttl is None else whole_seconds(ttl))
    request = Send("POST", job_path(job, "transfer"), body, (yield NEW_KEY), policy.answer_seconds)
    heard = yield from exchange(request, policy)
    loss = told_loss(heard.answer)
    if loss is not None:
        raise lost_error(f"the claim on {job}", loss, job_id=job)
    return records.claimed(job, said(heard.answer, policy, request, AcquiredReply))


def told_loss(answer: Answer) -> Loss | None:
    """Return how a lease ended, if that is what the answer says."""
    if answer.status not in {400, 404, 410}:
        return None
    found = envelope(answer)
    if found is None:
        return None
    match found.code:
        case "lease_not_current":
            return Loss(found.ended or "expired", found.by, found.reason, told=True)
        case "revoked":
            return Loss("revoked", found.by, found.reason, told=True)
        case "session_expired":
            return Loss("session_ended", told=True)
        case _:
            return None
