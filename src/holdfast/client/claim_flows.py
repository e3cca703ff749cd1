"""Claiming one job, every job of a list, or the first free one, and waiting in the queue. Each is a flow.

One request waits for 50 seconds at most, so a long wait is several requests with one key and one ticket. Each but the
last announces the next, so that the queue position is kept in between. If the lease is granted just then, the key
leads to it, as after a lost answer. An interrupted wait leaves the queue, and releases what it may have got by then. If
the token comes from a file and is rotated meanwhile, the wait continues with the new one, at the end of the queue.

A server that goes away does not end a wait: it is asked again until the wait is over, with the same key and ticket, so
that the place is the same when it is back. If the place is lost by then, the wait joins the queue again. An endless
wait needs a server that has answered once: before that, the address may be wrong.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec
from msgspec import UNSET
from msgspec.json import Decoder

from holdfast.client import records, requests
from holdfast.client.answers import Answer, decoded, envelope, in_words, lacks_leader, refusal
from holdfast.client.clock import Instant, elapsed_ms
from holdfast.client.deadline import LeaseDeadline
from holdfast.client.effects import NEW_KEY, NOW, Cleanup, Flow, Policy, Send, Sleep
from holdfast.client.options import ClaimRequest
from holdfast.client.records import JobClaim, JobOwner, JobStatus, QueuePosition
from holdfast.client.requests import job_path
from holdfast.client.retry import (
    AWAY_SECONDS,
    HASTE_SECONDS,
    LATE_TOKEN_SECONDS,
    ReceivedAnswer,
    ask,
    get,
    is_down,
    lacks_new_token,
    request_with_retry,
)
from holdfast.errors import HoldfastError, JobHeld, NotInTime, ServerError, Unreachable
from holdfast.wire import replies
from holdfast.wire.requests import AcquireBody, ClaimBody, ClaimsBody, ReleaseBody, brief

WAIT_SECONDS_MAX = 50  # For one request; a longer wait is several of them with one ticket.
ROAMING_WAIT_SECONDS_MAX = 15  # With other addresses: one that hangs must be detected before the place lapses (W2).
WATCHED_WAIT_SECONDS_MAX = 5  # With `on_wait`, which is to be called more often.
FIRST_WAIT_SECONDS = 0.1  # How long the first request waits with `on_wait`: until the place is known.
SHARED_TICKET_SECONDS_MAX = 5.0  # The longest pause of a waiter that shares its place with another of the same name.
LOST_IN_ROW_MAX = 3  # How often in a row a claim is restarted because its place or lease was lost before we knew of it.
_OK, _CONFLICT = 200, 409
_GONE = frozenset({400, 404})  # A lease that is not current: 404, or 400 if another owner has the name by now.

log = logging.getLogger("holdfast.client")


class _WatcherRaised(Exception):
    """`on_wait` raised one of our own exceptions, which must not be mistaken for the server's."""


@contextlib.contextmanager
def _watching() -> Iterator[None]:
    try:
        yield
    except HoldfastError as error:
        raise _WatcherRaised from error


class ClaimAttempt:
    """The state of one claim in progress: its idempotency key, its place in the queue and its time."""

    began: Instant | None = None  # When the first request was sent.
    ticket: str | None = None
    position = 0  # The last known one; 0 if none.
    rejoined = 0  # How often we lost our place and joined the queue again.
    is_met = False  # Whether the server has answered once.
    is_away = False  # Whether we reported the server as away, and it has not answered since.
    asked_wait = 0.0  # How long the last request was to wait.
    last_wait_left = 0.0  # How many seconds of the wait were left when the last request was sent.
    lost_in_row = 0  # How often in a row the place or the lease was lost before we knew of it.
    displaced = 0  # How often we were sent away early, because a waiter of the same name has the same place.
    is_undisturbed = False  # Whether the last request waited for its full time.

    def __init__(self, jobs: Sequence[str], options: ClaimRequest, key: str) -> None:
        self.jobs = jobs
        self.options = options
        self.key = key

    def wait_left(self, now: Instant) -> float:
        return max(0.0, self.options.wait - self._waited(now)) if self.options.wait else 0.0

    def _waited(self, now: Instant) -> float:
        return 0.0 if self.began is None else elapsed_ms(self.began, now) / 1_000

    def next_wait(self, left: float, *, roams: bool = False) -> float:
        """Return how long the next request waits; `left` is the rest of the whole wait."""
        if not left:
            return 0.0
        is_watched = self.options.on_wait is not None
        # An endless wait starts briefly too: after its first answer, a server that goes away does not end it.
        if self.is_away or (self.ticket is None and (is_watched or left == math.inf)):
            return min(left, FIRST_WAIT_SECONDS)
        longest = ROAMING_WAIT_SECONDS_MAX if roams else WAIT_SECONDS_MAX
        return min(left, WATCHED_WAIT_SECONDS_MAX if is_watched else longest)

    def will_retry(self, wait: float) -> bool:
        """Tell whether another request follows if this one, waiting for `wait`, ends in `waiting`."""
        return 0 < wait < self.last_wait_left

    def start_over(self, key: str) -> None:
        self.ticket, self.key = None, key

    def extend_retries(self, now: Instant, failing: float, found: Answer | Unreachable) -> float:
        """Return for how many more seconds to retry: the rest of the wait if the server is away, which is reported."""
        left = self.wait_left(now)
        if isinstance(found, Answer) and lacks_leader(found):
            self.is_met = True  # The address is right.
        if isinstance(found, Answer) and not is_down(found):
            return min(left, LATE_TOKEN_SECONDS - failing)
        if left == 0 or (left == math.inf and not self.is_met):
            return 0.0
        if failing >= AWAY_SECONDS:
            why = found.problem if isinstance(found, Unreachable) else in_words(found)
            if self.options.on_wait is None and not self.is_away:
                until = "until it is back" if left == math.inf else f"for {left:.0f} s more"
                log.warning("the server is away (%s); asking again %s", why, until)
            self.is_away = True
            with _watching():
                self.notify(now, None, why)
        return left

    def server_answered(self) -> None:
        if self.is_away and self.options.on_wait is None:
            log.warning("the server is back")
        self.is_met, self.is_away = True, False

    def notify(self, now: Instant, owner: JobOwner | None, away: str | None = None) -> None:
        if self.options.on_wait is not None:
            self.options.on_wait(
                QueuePosition(self.jobs[0], self.position, self._waited(now), owner, away, self.rejoined)
            )


def claim_with_retry(
    attempt: ClaimAttempt,
    request: Callable[[float], Send],
    answers: Decoder[object],
    policy: Policy,
    cleanup: Cleanup,
    *,
    can_wait: bool = True,
) -> Flow[tuple[object, Instant]]:
    """Send the claim again at the same place for as long as the wait lasts; return the final reply."""

    def release_all() -> Flow[None]:
        is_released = False
        try:
            is_released = yield from _abandon(request(0.0), answers, policy)
        finally:
            if not is_released:
                requests.retire(attempt.options.owner)

    def next_try(now: Instant) -> Send:
        cleanup.release = release_all
        if attempt.began is None:
            attempt.began = now
        attempt.last_wait_left = attempt.wait_left(now)
        roams = policy.addresses > 1
        attempt.asked_wait = attempt.next_wait(attempt.last_wait_left, roams=roams) if can_wait else 0.0
        return request(attempt.asked_wait)

    def is_transient(answer: Answer) -> bool:
        return is_down(answer) or (attempt.last_wait_left > 0 and lacks_new_token(answer, policy))

    while True:
        try:
            received: ReceivedAnswer = yield from request_with_retry(
                next_try, policy, is_transient, attempt.extend_retries
            )
            if not is_down(received.answer):
                attempt.server_answered()
            if not is_claim_answer(received.answer):
                yield from _restart(attempt, received.answer, policy)
                continue
            reply = decoded(received.answer, answers, "a claim", policy.url)
            if not isinstance(reply, replies.WaitingReply):
                return reply, received.sent
            yield from _continue_waiting(attempt, reply, received.sent, policy)
        except (HoldfastError, GeneratorExit) as error:
            requests.doubt(attempt.options.owner, error)
            raise
        except BaseException as interrupt:
            # Interrupted or cancelled, or `on_wait` raised: nothing may be left behind.
            yield from release_all()
            cleanup.release = None
            if isinstance(interrupt, _WatcherRaised) and interrupt.__cause__ is not None:
                raise interrupt.__cause__ from None
            raise


def is_claim_answer(answer: Answer) -> bool:
    """Tell whether this answers the claim, unlike a refusal or a lost place."""
    return answer.status == _OK or (answer.status == _CONFLICT and envelope(answer) is None)


def _restart(attempt: ClaimAttempt, answer: Answer, policy: Policy) -> Flow[None]:
    """Restart with a new key if the place or lease was lost while we were cut off; raise every other refusal."""
    found = envelope(answer)
    is_lost = answer.status in _GONE and found is not None and found.code in {"ticket_gone", "lease_not_current"}
    if not is_lost or attempt.lost_in_row >= LOST_IN_ROW_MAX:
        raise refusal(answer, policy.url, policy.token_file)
    attempt.lost_in_row += 1
    attempt.rejoined += 1
    attempt.start_over((yield NEW_KEY))


def _continue_waiting(attempt: ClaimAttempt, reply: replies.WaitingReply, sent: Instant, policy: Policy) -> Flow[None]:
    """Store the place. Raises `NotInTime` once the wait is over."""
    now: Instant = yield NOW
    attempt.ticket, attempt.position = reply.ticket, reply.position
    attempt.lost_in_row = 0
    left = attempt.wait_left(now)
    if left <= 0:
        yield from leave_queue(reply.ticket, policy)
        raise (yield from _not_in_time(attempt, policy))
    was_undisturbed, is_early = attempt.is_undisturbed, elapsed_ms(sent, now) < attempt.asked_wait * 500
    attempt.is_undisturbed = not is_early
    if was_undisturbed and is_early:
        return  # Probably by a server that stops: returning immediately keeps the place at the next one.
    if attempt.options.on_wait is not None:
        known = (yield from _try_status(attempt.jobs[0], policy)) if len(attempt.jobs) == 1 else None
        with _watching():
            attempt.notify(now, None if known is None else known.owner)
    if is_early:
        # Again: a waiter of the same name has the same place. Taking it back immediately would never end.
        attempt.displaced += 1
        yield Sleep(min(attempt.displaced * 0.5, SHARED_TICKET_SECONDS_MAX, left))


def _not_in_time(attempt: ClaimAttempt, policy: Policy) -> Flow[JobHeld]:
    waited = f"not acquired within {attempt.options.wait:g} s"
    if len(attempt.jobs) > 1:
        return NotInTime(f"{waited}: {', '.join(attempt.jobs)}", job_id=attempt.jobs[0])
    job = attempt.jobs[0]
    known = yield from _try_status(job, policy)
    owner = None if known is None else known.owner
    if known is None or owner is None:
        return NotInTime(f"{job} was {waited}", job_id=job, waiting=0 if known is None else known.waiting)
    details = {name: value for name, value in msgspec.structs.asdict(owner).items() if hasattr(NotInTime, name)}
    details |= {"job_id": job, "waiting": known.waiting, "retry_after": owner.expires_in}
    return NotInTime(f"{job} was {waited}; it is held by {owner.shown_as}", **details)


def status(job: str, policy: Policy) -> Flow[JobStatus]:
    return records.status_of((yield from ask(get(job_path(job), policy), policy, replies.LockReply)))


def _try_status(job: str, policy: Policy) -> Flow[JobStatus | None]:
    """Query a job to enrich a message; None if that is not allowed or not answered."""
    try:
        return (yield from status(job, msgspec.structs.replace(policy, retry_seconds=0)))
    except HoldfastError:
        return None


def _abandon(request: Send, answers: Decoder[object], policy: Policy) -> Flow[bool]:
    """Find out what an unwanted claim led to, and release that, within a short time. True if nothing is left."""
    short_policy = policy.with_short_timeouts(HASTE_SECONDS, retry_seconds=HASTE_SECONDS / 2)
    try:
        received = yield from request_with_retry(
            msgspec.structs.replace(request, answer_seconds=HASTE_SECONDS), short_policy
        )
        if not is_claim_answer(received.answer):
            return not is_down(received.answer)
        reply = decoded(received.answer, answers, "", policy.url)
        match reply:
            case replies.WaitingReply():
                yield from leave_queue(reply.ticket, short_policy)
            case replies.AcquiredReply() if not reply.reacquired:
                yield from _release_unwanted(request.path.removesuffix("/acquire"), reply.lease_id, short_policy)
            case replies.ClaimsReply():
                for each in reply.claims:
                    yield from _release_unwanted(job_path(each.name), each.lease_id, short_policy)
            case _:
                pass
    except HoldfastError:
        return False  # The server is away; what it may have granted expires.
    return True


def _release_unwanted(at: str, lease_id: str, policy: Policy) -> Flow[None]:
    # As failed: nothing was done, so the attempts must not be reset.
    body = ReleaseBody(lease_id=lease_id, outcome="failed")
    received = yield from request_with_retry(Send("POST", f"{at}/release", body, (yield NEW_KEY)), policy)
    if is_down(received.answer):
        raise refusal(received.answer, policy.url)


def leave_queue(ticket: str, policy: Policy) -> Flow[None]:
    """Give up a place in the queue, which may be lost already."""
    try:
        yield from request_with_retry(
            Send("DELETE", f"/tickets/{ticket}", answer_seconds=policy.answer_seconds), policy
        )
    except HoldfastError:
        return  # Then it lapses, in a minute.


POLL_SECONDS = 0.25
POLL_SECONDS_MAX = 2.0
POLL_SHARE_MIN = 0.04  # The least share of a pause, if the server says that a job is free sooner.

_CLAIM: Decoder[object] = Decoder(
    replies.AcquiredReply | replies.HeldReply | replies.DelayedReply | replies.DoneReply | replies.WaitingReply
)
_MANY: Decoder[object] = Decoder(replies.ClaimsReply | replies.HeldManyReply | replies.DoneReply | replies.WaitingReply)
_Acquire, _Claims = brief(AcquireBody), brief(ClaimsBody)
B = TypeVar("B", bound=ClaimBody)


class AcquiredClaim(msgspec.Struct, frozen=True):
    claim: JobClaim
    deadline: LeaseDeadline


class Waiting(msgspec.Struct, frozen=True):
    """A place in the queue, which the server keeps for 60 s."""

    position: int


def claim(job: str, options: ClaimRequest, policy: Policy, cleanup: Cleanup | None = None) -> Flow[AcquiredClaim]:
    """Claim one job, waiting for it as requested. Raises `JobHeld`, `NotInTime`, `JobDone`, `Deadlock`."""
    attempt = ClaimAttempt([job], options, (yield NEW_KEY))
    path = job_path(job, "acquire")

    def request(wait: float) -> Send:
        body = _body(_Acquire, options, wait, attempt.ticket, resume=options.resume or None)
        return Send("POST", path, body, attempt.key, wait + policy.answer_seconds, attempt.will_retry(wait))

    reply, sent = yield from claim_with_retry(attempt, request, _CLAIM, policy, cleanup or Cleanup())
    return _acquired(job, reply, sent)


def claim_once(job: str, options: ClaimRequest, policy: Policy) -> Flow[AcquiredClaim | Waiting]:
    """Wait for one request at most. The place stays for the holder's next visit (W3), or lapses. Raises as `claim`."""
    body = _body(_Acquire, options, options.wait, None, resume=options.resume or None)
    answer_seconds = options.wait + policy.answer_seconds
    received = yield from request_with_retry(
        Send("POST", job_path(job, "acquire"), body, (yield NEW_KEY), answer_seconds), policy
    )
    if not is_claim_answer(received.answer):
        raise refusal(received.answer, policy.url, policy.token_file)
    reply = decoded(received.answer, _CLAIM, "a claim", policy.url)
    return Waiting(reply.position) if isinstance(reply, replies.WaitingReply) else _acquired(job, reply, received.sent)


def _acquired(job: str, reply: object, sent: Instant) -> AcquiredClaim:
    match reply:
        case replies.AcquiredReply():
            deadline = LeaseDeadline(job, reply.fencing_token, sent, reply.expires_in_ms, reply.waited_ms)
            return AcquiredClaim(records.claimed(job, reply), deadline)
        case replies.HeldReply():
            raise records.job_held(job, reply)
        case replies.DelayedReply():
            raise records.job_closed(job, reply)
        case replies.DoneReply():
            raise records.job_done(reply)
        case _:
            raise TypeError(f"no words for {type(reply).__name__}")


def claim_all(
    jobs: Sequence[str], options: ClaimRequest, policy: Policy, cleanup: Cleanup | None = None
) -> Flow[list[AcquiredClaim]]:
    """Claim every job or none, waiting for all of them. Raises as `claim`; `JobHeld.others` has each in the way."""
    attempt = ClaimAttempt(jobs, options, (yield NEW_KEY))

    def request(wait: float) -> Send:
        body = _body(_Claims, options, wait, attempt.ticket, all=list(jobs))
        return Send("POST", "/claims", body, attempt.key, wait + policy.answer_seconds, attempt.will_retry(wait))

    reply, sent = yield from claim_with_retry(attempt, request, _MANY, policy, cleanup or Cleanup())
    return _acquired_many(reply, sent, options, len(jobs))


def claim_any(
    jobs: Sequence[str], options: ClaimRequest, policy: Policy, cleanup: Cleanup | None = None
) -> Flow[AcquiredClaim]:
    """Claim the first free job of a list. The server has no queue for this, so a wait polls."""
    attempt = ClaimAttempt(jobs, options, (yield NEW_KEY))
    pause = POLL_SECONDS

    def request(_wait: float) -> Send:
        body = _body(_Claims, options, 0, None, any=list(jobs))
        return Send("POST", "/claims", body, attempt.key, policy.answer_seconds)

    while True:
        reply, sent = yield from claim_with_retry(attempt, request, _MANY, policy, cleanup or Cleanup(), can_wait=False)
        now: Instant = yield NOW
        left = attempt.wait_left(now)
        if not isinstance(reply, replies.HeldManyReply) or left <= 0:
            if isinstance(reply, replies.HeldManyReply) and options.wait:
                raise _many_held(reply, NotInTime)
            return _acquired_many(reply, sent, options, 1)[0]
        attempt.notify(now, None)
        soonest = pause * POLL_SHARE_MIN  # A server that always says "now" must not cause a busy loop.
        yield Sleep(min(pause, left, max(reply.retry_after_ms / 1_000, soonest)))
        pause = min(pause * 2, POLL_SECONDS_MAX)
        attempt.start_over((yield NEW_KEY))


def _body(kind: type[B], options: ClaimRequest, wait: float, ticket: str | None, **more: object) -> B:
    return kind(
        ttl_seconds=options.ttl,
        metadata=records.packed(options.metadata),
        labels=options.labels or UNSET,
        owner=options.owner,
        session_id=options.session,
        ephemeral=True if options.session else None,
        lock_delay_seconds=options.lock_delay or None,
        wait_seconds=wait or None,
        ticket=ticket,
        redo=options.redo or None,
        **more,
    )


def _acquired_many(reply: object, sent: Instant, options: ClaimRequest, asked: int) -> list[AcquiredClaim]:
    match reply:
        case replies.ClaimsReply() if len(reply.claims) != asked:
            raise ServerError(f"the server granted {len(reply.claims)} jobs where {asked} were asked for")
        case replies.ClaimsReply():
            return [
                AcquiredClaim(
                    records.claimed_one(each, reply.owner, options.metadata, options.labels),
                    LeaseDeadline(each.name, each.fencing_token, sent, each.expires_in_ms, reply.waited_ms),
                )
                for each in reply.claims
            ]
        case replies.HeldManyReply():
            raise _many_held(reply, JobHeld)
        case replies.DoneReply():
            raise records.job_done(reply)
        case _:
            raise TypeError(f"no words for {type(reply).__name__}")


def _many_held(reply: replies.HeldManyReply, kind: type[JobHeld]) -> JobHeld:
    others = [records.name_held(each) for each in reply.held]
    if not others:
        raise ServerError("the server refused, and named nobody who has the jobs; try again")
    first = others[0]
    more = len(others) - 1 + (reply.left_out or 0)
    text = f"{first}, and {more} more are not free" if more else str(first)
    known = vars(first) | {"retry_after": reply.retry_after_ms / 1_000, "others": others, "shown_as": None}
    return kind(text, **known)
