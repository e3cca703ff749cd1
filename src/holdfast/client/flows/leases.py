"""What can be done with a lease one has: renew it, give it back, hand it over. Each is a flow."""

from __future__ import annotations

from msgspec import UNSET

from holdfast.client import owners
from holdfast.client.clock import Instant
from holdfast.client.flows.effects import NEW_KEY, Flow, Policy, Send
from holdfast.client.flows.exchange import exchange, insist, reply_in
from holdfast.client.values import records
from holdfast.client.values.answer import Answer, envelope
from holdfast.client.values.arguments import whole_seconds
from holdfast.client.values.paths import job_path
from holdfast.client.values.records import JobClaim, Metadata
from holdfast.client.values.term import Loss, lost_error
from holdfast.wire.replies import AcquiredReply, ClaimSecretReply, RenewedReply
from holdfast.wire.requests import ClaimSecretBody, ReleaseBody, RenewBody, TransferBody, brief

_Renew, _Release = brief(RenewBody), brief(ReleaseBody)


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
    request = renewal_request(job, lease_id, policy.answer_seconds, ttl=ttl, note=note, metadata=metadata)
    heard = yield from exchange(request, policy)
    return renewed(job, heard.answer, policy), heard.sent


def renewal_request(
    job: str,
    lease_id: str,
    answer_seconds: float,
    *,
    ttl: float | None = None,
    note: str | None = None,
    metadata: Metadata = None,
) -> Send:
    """Return the request that renews a lease. It needs no key: a second time only reaches further."""
    body = _Renew(
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
    return reply_in(answer, policy, Send("POST", job_path(job, "renew")), RenewedReply)


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
    """Give a lease back, even if interrupted; twice is harmless. Raises `LeaseLost` if it had ended in another way.

    If nobody knows whether it has ended, a name that was made up for `owner` is not used again (D1a).
    """
    body = _Release(
        lease_id=lease_id,
        outcome=outcome,  # type: ignore[arg-type]
        result=result,
        remember_seconds=None if remember is None else whole_seconds(remember, "remember"),
    )
    request = Send("POST", job_path(job, "release"), body, (yield NEW_KEY), policy.answer_seconds)
    try:
        heard = yield from insist(request, policy)
        loss = told_loss(heard.answer)
        if loss is None:
            return reply_in(heard.answer, policy, request, type(None))
    except BaseException as error:
        owners.doubt(owner, error)
        raise
    if loss.reason != "released":
        raise lost_error(f"the claim on {job}", loss, job_id=job)
    return None


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
    """Hand a claim to another owner, without a gap. `owner` is who had it, as in `release`."""
    ttl_seconds = None if ttl is None else whole_seconds(ttl)
    # An older server does not know the field, so it is sent only if there is something to say.
    said = UNSET if reason is None else reason
    body = TransferBody(lease_id=lease_id, to_owner=to_owner, ttl_seconds=ttl_seconds, reason=said)
    request = Send("POST", job_path(job, "transfer"), body, (yield NEW_KEY), policy.answer_seconds)
    try:
        heard = yield from exchange(request, policy)
        loss = told_loss(heard.answer)
        if loss is None:
            return records.claimed(job, reply_in(heard.answer, policy, request, AcquiredReply))
    except BaseException as error:
        owners.doubt(owner, error)
        raise
    raise lost_error(f"the claim on {job}", loss, job_id=job)


def claim_secret(job: str, lease_id: str, policy: Policy) -> Flow[str]:
    """Ask for the secret of a claim: what a command needs that works on it."""
    body = ClaimSecretBody(lock_name=job, lease_id=lease_id)
    request = Send("POST", "/claims/secret", body, answer_seconds=policy.answer_seconds)
    heard = yield from exchange(request, policy)
    loss = told_loss(heard.answer)
    if loss is not None:
        raise lost_error(f"the claim on {job}", loss, job_id=job)
    return reply_in(heard.answer, policy, request, ClaimSecretReply).claim_secret


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
