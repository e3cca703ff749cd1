"""Claiming: one job, every job of a list, or the first free one. Each is a flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec import UNSET
from msgspec.json import Decoder

from holdfast.client.clock import Instant
from holdfast.client.flows.effects import NEW_KEY, NOW, Flow, Policy, Rest, Send, Trail
from holdfast.client.flows.exchange import exchange
from holdfast.client.flows.line import Asking, settles, stand
from holdfast.client.values import records
from holdfast.client.values.answer import decoded, refusal
from holdfast.client.values.options import Wanted
from holdfast.client.values.paths import job_path
from holdfast.client.values.records import JobClaim
from holdfast.client.values.term import Term
from holdfast.errors import JobHeld, NotInTime, ServerError
from holdfast.wire.replies import (
    AcquiredReply,
    ClaimsReply,
    DelayedReply,
    DoneReply,
    HeldManyReply,
    HeldReply,
    WaitingReply,
)
from holdfast.wire.requests import AcquireBody, ClaimBody, ClaimsBody, brief

POLL_SECONDS = 0.25
POLL_SECONDS_MAX = 2.0
POLL_SHARE_MIN = 0.04
"""How much of a pause is kept at least, where the server knows of an end that comes sooner."""

_CLAIM: Decoder[object] = Decoder(AcquiredReply | HeldReply | DelayedReply | DoneReply | WaitingReply)
_MANY: Decoder[object] = Decoder(ClaimsReply | HeldManyReply | DoneReply | WaitingReply)
_Acquire, _Claims = brief(AcquireBody), brief(ClaimsBody)
B = TypeVar("B", bound=ClaimBody)


class Got(msgspec.Struct, frozen=True):
    """A claim, and the time we may believe in it."""

    claim: JobClaim
    term: Term


class Waiting(msgspec.Struct, frozen=True):
    """A place in the line, as of when the server answered. It is kept for 60 s."""

    position: int


def claim(job: str, wanted: Wanted, policy: Policy, trail: Trail | None = None) -> Flow[Got]:
    """Claim one job, waiting in line for as long as wanted. Raises `JobHeld`, `NotInTime`, `JobDone`, `Deadlock`."""
    asking = Asking([job], wanted, (yield NEW_KEY))
    path = job_path(job, "acquire")

    def request(wait: float) -> Send:
        body = _body(_Acquire, wanted, wait, asking.ticket, resume=wanted.resume or None)
        return Send("POST", path, body, asking.key, wait + policy.answer_seconds, asking.comes_back(wait))

    reply, sent = yield from stand(asking, request, _CLAIM, policy, trail or Trail())
    return _got(job, reply, sent)


def visit(job: str, wanted: Wanted, policy: Policy) -> Flow[Got | Waiting]:
    """Stand in line once, for at most one request, and keep the place: the same holder finds it again (W3).

    Nobody who waits is left behind: without another visit the place goes by itself. Raises as `claim`.
    """
    body = _body(_Acquire, wanted, wanted.wait, None, resume=wanted.resume or None)
    answer_seconds = wanted.wait + policy.answer_seconds
    heard = yield from exchange(Send("POST", job_path(job, "acquire"), body, (yield NEW_KEY), answer_seconds), policy)
    if not settles(heard.answer):
        raise refusal(heard.answer, policy.url, policy.token_file)
    reply = decoded(heard.answer, _CLAIM, "a claim", policy.url)
    return Waiting(reply.position) if isinstance(reply, WaitingReply) else _got(job, reply, heard.sent)


def _got(job: str, reply: object, sent: Instant) -> Got:
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


def claim_all(jobs: Sequence[str], wanted: Wanted, policy: Policy, trail: Trail | None = None) -> Flow[list[Got]]:
    """Claim every job or none, waiting for all of them. Raises as `claim`; `JobHeld.others` has each in the way."""
    asking = Asking(jobs, wanted, (yield NEW_KEY))

    def request(wait: float) -> Send:
        body = _body(_Claims, wanted, wait, asking.ticket, all=list(jobs))
        return Send("POST", "/claims", body, asking.key, wait + policy.answer_seconds, asking.comes_back(wait))

    reply, sent = yield from stand(asking, request, _MANY, policy, trail or Trail())
    return _got_many(reply, sent, wanted, len(jobs))


def claim_any(jobs: Sequence[str], wanted: Wanted, policy: Policy, trail: Trail | None = None) -> Flow[Got]:
    """Claim the first free job of a list. The server does not wait for this, so a wait asks again and again."""
    asking = Asking(jobs, wanted, (yield NEW_KEY))
    pause = POLL_SECONDS

    def request(_wait: float) -> Send:
        body = _body(_Claims, wanted, 0, None, any=list(jobs))
        return Send("POST", "/claims", body, asking.key, policy.answer_seconds)

    while True:
        reply, sent = yield from stand(asking, request, _MANY, policy, trail or Trail(), can_wait=False)
        now: Instant = yield NOW
        left = asking.wait_left(now)
        if not isinstance(reply, HeldManyReply) or left <= 0:
            if isinstance(reply, HeldManyReply) and wanted.wait:
                raise _many_held(reply, NotInTime)
            return _got_many(reply, sent, wanted, 1)[0]
        asking.tell(now, None)
        soonest = pause * POLL_SHARE_MIN  # A server that says "at once" again and again is not asked without end.
        yield Rest(min(pause, left, max(reply.retry_after_ms / 1_000, soonest)))
        pause = min(pause * 2, POLL_SECONDS_MAX)
        asking.start_over((yield NEW_KEY))


def _body(kind: type[B], wanted: Wanted, wait: float, ticket: str | None, **more: object) -> B:
    """Return the body of a claim: the fields that every kind has, and more."""
    return kind(
        ttl_seconds=wanted.ttl,
        metadata=records.packed(wanted.metadata),
        labels=wanted.labels or UNSET,
        owner=wanted.owner,
        session_id=wanted.session,
        ephemeral=True if wanted.session else None,
        lock_delay_seconds=wanted.lock_delay or None,
        wait_seconds=wait or None,
        ticket=ticket,
        redo=wanted.redo or None,
        **more,
    )


def _got_many(reply: object, sent: Instant, wanted: Wanted, asked: int) -> list[Got]:
    match reply:
        case ClaimsReply() if len(reply.claims) != asked:
            raise ServerError(f"the server granted {len(reply.claims)} jobs where {asked} were asked for")
        case ClaimsReply():
            return [
                Got(
                    records.claimed_one(each, reply.owner, wanted.metadata, wanted.labels),
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
    more = len(others) - 1 + (reply.left_out or 0)
    text = f"{first}, and {more} more are not free" if more else str(first)
    return kind(
        text,
        job_id=first.job_id,
        owner=first.owner,
        metadata=first.metadata,
        labels=first.labels,
        note=first.note,
        claimed_at=first.claimed_at,
        last_heartbeat_at=first.last_heartbeat_at,
        expires_at=first.expires_at,
        retry_after=reply.retry_after_ms / 1_000,
        others=others,
    )
