"""Operations on a lease: renew, release, transfer, and renewal in the background. Each is a flow.

Two flows run for each claim and session that is held for more than a moment. `keep_renewed` renews in time, retries
and stops at a loss. `watch_deadline` only waits for the deadline, so that it reports a loss in time even if
everything else hangs.

    lease |──|─────────────|────────────────|────────────────|
          sent             a third: renew   again and again  lost, before the server's lease ends
             a moment: both begin
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET

from holdfast.client import records, requests
from holdfast.client.answers import Answer, envelope, refusal
from holdfast.client.clock import Instant
from holdfast.client.deadline import LeaseDeadline, Loss, lost_error
from holdfast.client.effects import NEW_KEY, NOW, RANDOM, Cleanup, Flow, Policy, Send, Sleep
from holdfast.client.records import JobClaim, Metadata, SessionInfo, packed
from holdfast.client.requests import integer_seconds, job_path, session_path
from holdfast.client.retry import HASTE_SECONDS, ask, complete_request, get, reply_in, request_with_retry
from holdfast.errors import HoldfastError, LeaseLost, Refused, ServerError, Unreachable
from holdfast.wire.replies import (
    AcquiredReply,
    ClaimSecretReply,
    RenewedReply,
    SessionOpenedReply,
    SessionRenewedReply,
    SessionReply,
    SessionSecretReply,
)
from holdfast.wire.requests import ClaimSecretBody, ReleaseBody, RenewBody, SessionBody, TransferBody, brief

_Renew, _Release = brief(RenewBody), brief(ReleaseBody)
T = TypeVar("T")


def renew(job: str, lease_id: str, policy: Policy, **what: Any) -> Flow[tuple[RenewedReply, Instant]]:  # noqa: ANN401
    """Renew a lease; `what` is for `renewal_request`. Raises `LeaseLost` if it has ended."""
    request = renewal_request(job, lease_id, policy.answer_seconds, **what)
    received = yield from request_with_retry(request, policy)
    return _reply(job, received.answer, policy, request, RenewedReply), received.sent


def renewal_request(
    job: str,
    lease_id: str,
    answer_seconds: float,
    *,
    ttl: float | None = None,
    note: str | None = None,
    metadata: Metadata = None,
) -> Send:
    """Return the request that renews a lease, by default for its own ttl. It is idempotent and needs no key."""
    body = _Renew(
        lease_id=lease_id,
        ttl_seconds=None if ttl is None else integer_seconds(ttl),
        keep_ttl=True if ttl is None else None,
        note=note,
        metadata=records.packed(metadata),
    )
    return Send("POST", job_path(job, "renew"), body, answer_seconds=answer_seconds)


def _reply(job: str, answer: Answer, policy: Policy, request: Send, reply: type[T]) -> T:
    """Decode a reply. Raises `LeaseLost` if the lease has ended."""
    loss = reported_loss(answer)
    if loss is not None:
        raise lost_error(f"the claim on {job}", loss, job_id=job)
    return reply_in(answer, policy, request, reply)


def release(
    job: str,
    lease_id: str,
    policy: Policy,
    *,
    owner: str | None,
    outcome: str | None = None,
    result: str | None = None,
    remember: float | None = None,
) -> Flow[None]:
    """Release a lease, even if interrupted; idempotent. Raises `LeaseLost` if it had ended in another way.

    If it is unknown whether it has ended, a generated `owner` is not used again (D1a).
    """
    body = _Release(
        lease_id=lease_id,
        outcome=outcome,  # type: ignore[arg-type]
        result=result,
        remember_seconds=None if remember is None else integer_seconds(remember, "remember"),
    )
    request = Send("POST", job_path(job, "release"), body, (yield NEW_KEY), policy.answer_seconds)
    try:
        received = yield from complete_request(request, policy)
        _reply(job, received.answer, policy, request, type(None))
    except LeaseLost as lost:
        if lost.reason != "released":
            raise
    except BaseException as error:
        requests.doubt(owner, error)
        raise


def transfer(
    job: str,
    lease_id: str,
    to_owner: str,
    policy: Policy,
    *,
    owner: str | None,
    ttl: float | None = None,
    reason: str | None = None,
) -> Flow[JobClaim]:
    """Hand a claim to another owner without a gap. `owner` is the current one, as in `release`."""
    ttl_seconds = None if ttl is None else integer_seconds(ttl)
    said = UNSET if reason is None else reason  # Sent only if given: older servers do not know the field.
    body = TransferBody(lease_id=lease_id, to_owner=to_owner, ttl_seconds=ttl_seconds, reason=said)
    request = Send("POST", job_path(job, "transfer"), body, (yield NEW_KEY), policy.answer_seconds)
    try:
        received = yield from request_with_retry(request, policy)
        return records.claimed(job, _reply(job, received.answer, policy, request, AcquiredReply))
    except BaseException as error:
        requests.doubt(owner, error)
        raise


def claim_secret(job: str, lease_id: str, policy: Policy) -> Flow[str]:
    body = ClaimSecretBody(lock_name=job, lease_id=lease_id)
    request = Send("POST", "/claims/secret", body, answer_seconds=policy.answer_seconds)
    received = yield from request_with_retry(request, policy)
    return _reply(job, received.answer, policy, request, ClaimSecretReply).claim_secret


def reported_loss(answer: Answer) -> Loss | None:
    """Return how a lease ended, if the answer says so."""
    if answer.status not in {400, 404, 410}:
        return None
    found = envelope(answer)
    if found is None:
        return None
    how = {"lease_not_current": found.ended or "expired", "revoked": "revoked", "session_expired": "session_ended"}
    reason = how.get(found.code)
    return None if reason is None else Loss(reason, found.by, found.reason, is_reported=True)


RENEWAL_DELAY_MS = 500  # When the background work starts after a claim. Most claims are shorter.
AGAIN_SECONDS_MAX = 2.0
AGAIN_SECONDS_MIN = 0.02
TRIES_PER_DEADLINE = (
    16  # A failed renewal is retried after a sixteenth of what is left, so several tries always remain.
)
# The share of the time left that one try may take: a hanging one must leave time for another. Several addresses divide
# it, because a supervisor stops its command while much of the lease is left.
ANSWER_SHARE = 0.5
TOKEN_REFUSED = 401
FAIR_SECONDS = 0.5  # A try with less time before the deadline proves nothing: the earlier failure stays the reason.

Renew: TypeAlias = Callable[[float], Send]  # Makes a renewal request, given how long its answer may take.
EndedCheck: TypeAlias = Callable[[float], Send | None]  # Makes the request of `Renewal.ended_check`, or None.


class _RenewedReply(msgspec.Struct):
    expires_in_ms: int


class Renewal(NamedTuple):
    """How to renew a lease, or a session with every lease bound to it (S4)."""

    id: str  # Of the lease or the session.
    name: str | None  # The job of the lease; None for a session.
    secret: str | None = None  # Of the session; None for a lease.

    def request(self, answer_seconds: float) -> Send:
        if self.name is None:
            return Send("POST", session_path(self.id, "renew-all"), answer_seconds=answer_seconds)
        return renewal_request(self.name, self.id, answer_seconds)

    def ended_check(self, answer_seconds: float) -> Send | None:
        """Return the request that checks without our access token whether a session is over; None for a lease.

        Revoking a token ends its sessions, and then the server refuses the token. To the secret of an ended session it
        still reports the end (S5). If the session lives on, it refuses the secret like the token, which tells nothing.
        """
        if self.secret is None:
            return None
        return Send("GET", session_path(self.id), answer_seconds=answer_seconds, bearer=self.secret)


def watch_deadline(deadline: LeaseDeadline) -> Flow[None]:
    """Mark the lease lost when its time is over. This waits for time only."""
    while not deadline.ended:
        now: Instant = yield NOW
        if deadline.is_lost(now):
            return
        yield Sleep(deadline.left_ms(now) / 1_000)


def keep_renewed(
    deadline: LeaseDeadline, renew: Renew, policy: Policy, ended_check: EndedCheck | None = None
) -> Flow[None]:
    while True:
        renew_in_ms = deadline.renew_in_ms((yield NOW), (yield RANDOM))
        # Never immediately: a server that promises very short terms must not cause a busy loop.
        yield Sleep(max(renew_in_ms / 1_000, AGAIN_SECONDS_MIN))
        while not (yield from renew_once(deadline, renew, policy, ended_check)):
            left_ms = deadline.left_ms((yield NOW))
            random_fraction: float = yield RANDOM
            pause = min(left_ms / 1_000 / TRIES_PER_DEADLINE, AGAIN_SECONDS_MAX) * (0.5 + random_fraction / 2)
            yield Sleep(max(pause, AGAIN_SECONDS_MIN))
        if deadline.ended or deadline.loss is not None:
            return


def renew_once(
    deadline: LeaseDeadline, renew: Renew, policy: Policy, ended_check: EndedCheck | None = None
) -> Flow[bool]:
    """Try to renew; True if no retry is needed."""
    sent: Instant = yield NOW
    if deadline.ended or deadline.is_lost(sent):
        return True
    random_fraction = ANSWER_SHARE / policy.addresses
    answer_seconds = min(
        policy.answer_seconds, max(deadline.left_ms(sent) / 1_000 * random_fraction, AGAIN_SECONDS_MIN)
    )
    try:
        answer: Answer = yield renew(answer_seconds)
    except Unreachable as error:
        if deadline.trouble is None or answer_seconds >= FAIR_SECONDS:
            deadline.trouble = Loss("unreachable", why=error.problem)
        return False
    except ServerError as error:
        deadline.trouble = Loss("refused", why=str(error))
        return False
    is_over = _judge(deadline, answer, sent, policy)
    if answer.status == TOKEN_REFUSED and ended_check is not None:
        yield from check_whether_ended(deadline, ended_check, policy)
        is_over = deadline.loss is not None
    return is_over


def check_whether_ended(deadline: LeaseDeadline, ended_check: EndedCheck, policy: Policy) -> Flow[None]:
    """Check whether something is over although our access token is refused. Other results are ignored."""
    now: Instant = yield NOW
    request = ended_check(
        min(policy.answer_seconds, max(deadline.left_ms(now) / 1_000 * ANSWER_SHARE, AGAIN_SECONDS_MIN))
    )
    if request is None or deadline.ended:
        return
    try:
        answer: Answer = yield request
    except ServerError:
        return
    loss = reported_loss(answer)
    if loss is not None:
        deadline.lose(loss)


def _judge(deadline: LeaseDeadline, answer: Answer, sent: Instant, policy: Policy) -> bool:
    """Apply the answer to a renewal; True if no retry is needed."""
    if answer.status == 200:  # noqa: PLR2004 - the one good answer
        try:
            promise = msgspec.json.decode(answer.body, type=_RenewedReply)
        except msgspec.MsgspecError:
            deadline.trouble = Loss("refused", why="the answer was not a Holdfast server's")
            return False
        deadline.extend(sent, promise.expires_in_ms)
        return True
    loss = reported_loss(answer)
    if loss is None and answer.status == 404 and (found := envelope(answer)) is not None and found.code == "not_found":  # noqa: PLR2004 - the session is not known any more
        loss = Loss("session_ended", is_reported=True)
    if loss is not None:
        deadline.lose(loss)
        return True
    reason = "unreachable" if answer.status >= 500 else "refused"  # noqa: PLR2004 - the server's own troubles
    deadline.trouble = Loss(reason, why=str(refusal(answer, policy.url, policy.token_file)))
    return False


_OVER = 410


def open_session(
    policy: Policy, cleanup: Cleanup | None = None, *, name: str | None, ttl_seconds: int, metadata: Metadata
) -> Flow[tuple[SessionOpenedReply, LeaseDeadline]]:
    body = SessionBody(ttl_seconds=ttl_seconds, name=name, metadata=packed(metadata))
    request = Send("POST", "/sessions", body, (yield NEW_KEY), policy.answer_seconds)
    sent: Instant = yield NOW  # The deadline counts from the first try: a retry may be answered with what that opened.
    cleanup = cleanup or Cleanup()
    cleanup.release = partial(_abandon_session, request, policy)
    try:
        reply = yield from ask(request, policy, SessionOpenedReply)
    except (Exception, GeneratorExit):
        raise
    except BaseException:
        # Interrupted or cancelled with an unknown outcome: nothing may be left behind.
        yield from _abandon_session(request, policy)
        cleanup.release = None
        raise
    deadline = LeaseDeadline("", None, sent, reply.expires_in_ms)
    deadline.title = f"the session {name or reply.session_id}"
    return reply, deadline


def adopt_session(session_id: str, policy: Policy) -> Flow[tuple[SessionOpenedReply, LeaseDeadline]]:
    """Take over a session of ours from another process that kept it alive. Raises `Refused` if it is over."""
    known = yield from live_session(session_id, policy)
    renewed, sent = yield from renew_session(session_id, policy)
    secret = yield from session_secret(session_id, policy)
    reply = SessionOpenedReply(
        session_id,
        renewed.expires_at,
        renewed.expires_in_ms // 2_000,
        secret,
        renewed.expires_in_ms,
        known.name,
        packed(known.metadata),
    )
    deadline = LeaseDeadline("", None, sent, renewed.expires_in_ms)
    deadline.title = f"the session {known.name or session_id}"
    return reply, deadline


def session_secret(session_id: str, policy: Policy) -> Flow[str]:
    request = Send("POST", session_path(session_id, "secret"), answer_seconds=policy.answer_seconds)
    return (yield from ask(request, policy, SessionSecretReply)).session_secret


def renew_session(session_id: str, policy: Policy) -> Flow[tuple[SessionRenewedReply, Instant]]:
    """Renew a session and all that is bound to it (S4); also return when its time starts to count."""
    sent: Instant = yield NOW
    request = Send("POST", session_path(session_id, "renew-all"), answer_seconds=policy.answer_seconds)
    return (yield from ask(request, policy, SessionRenewedReply)), sent


def live_session(session_id: str, policy: Policy) -> Flow[SessionInfo]:
    """Return a session of ours. Raises `Refused` if it is over, as all other requests for it do."""
    reply = yield from ask(get(session_path(session_id), policy), policy, SessionReply)
    if not reply.active:
        raise Refused(_OVER, "session_expired", "Session expired", "All that was bound to it has ended.")
    return records.session(reply)


def end_session(session_id: str, policy: Policy) -> Flow[None]:
    """End a session and all that is bound to it, even if interrupted."""
    request = Send("DELETE", session_path(session_id), None, (yield NEW_KEY), policy.answer_seconds)
    received = yield from complete_request(request, policy)
    reply_in(received.answer, policy, request, object)


def _abandon_session(request: Send, policy: Policy) -> Flow[None]:
    """End an unwanted session if it was opened, within a short time."""
    short_policy = policy.with_short_timeouts(HASTE_SECONDS, retry_seconds=HASTE_SECONDS / 2)
    try:
        hurried = msgspec.structs.replace(request, answer_seconds=HASTE_SECONDS)
        reply = yield from ask(hurried, short_policy, SessionOpenedReply)
        yield from end_session(reply.session_id, short_policy)
    except HoldfastError:
        return  # The server is away; what it may have opened expires.
