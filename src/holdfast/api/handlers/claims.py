"""Claiming one name or several, leaving a queue, and a secret for whoever works on a claim.

POST /locks/{name}/acquire, POST /claims, DELETE /tickets/{id}, POST /claims/secret.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.api import rendering
from holdfast.api.auth.secrets import ClaimId, claim_secret, grant_of
from holdfast.api.context import RequestContext
from holdfast.api.decoding import read_uuid
from holdfast.api.rendering import encode, no_content, rfc3339
from holdfast.api.service import ApiService, Renderer
from holdfast.core.commands import Acquire, ClaimAll, ClaimAny, Leave
from holdfast.core.leases import not_current
from holdfast.core.outcomes import Acquired, AcquiredMany, AllHeld, Delayed, Finished, Held, Waiting, Withdrawn
from holdfast.core.state import State
from holdfast.core.values import Instant, Terms, may_touch
from holdfast.engine.ids import new_uuid
from holdfast.http.messages import ResponseParts
from holdfast.wire.problems import Problem
from holdfast.wire.replies import (
    ClaimReply,
    ClaimSecretReply,
    ClaimsReply,
    DelayedReply,
    DoneReply,
    HeldManyReply,
    HeldName,
    HeldReply,
    WaitingReply,
    shown_as,
)
from holdfast.wire.requests import AcquireBody, ClaimBody, ClaimsBody, ClaimSecretBody

SECONDS_MAX = 1e9
_OK, _CONFLICT = 200, 409
_HELD_BYTES_MAX = 256 * 1024  # JSON about the holders in the way of a claim of several: metadata may make it megabytes.
WILL_RETRY = b"holdfast-will-retry"  # Sent by callers that ask again immediately after their wait (W2).


def read_held_status(query: dict[str, str]) -> int:
    wanted = query.get("on_held", "200")
    if wanted not in {"200", "409"}:
        raise Problem("invalid_input", "on_held is 200 or 409.")
    return int(wanted)


def check_claim(body: AcquireBody) -> None:
    if body.acl is not UNSET:
        raise Problem("invalid_input", "acl is not supported: leave it out.", status=422)
    if body.session_id is not None or body.ticket is not None:
        _check_ids(body)


def check_claims(body: ClaimsBody) -> None:
    if (body.any is None) == (body.all is None):
        raise Problem("invalid_input", 'Send either "any" or "all", with a list of names.', status=422)
    if body.any is not None and (body.wait_seconds or body.ticket is not None):
        raise Problem("invalid_input", '"any" does not wait: ask again after retry_after_ms.', status=422)
    _check_ids(body)


def _check_ids(body: ClaimBody) -> None:
    if body.session_id is not None:
        body.session_id = read_uuid(body.session_id, "session_id")
    if body.ticket is not None:
        body.ticket = read_uuid(body.ticket, "ticket")


def check_session(context: RequestContext) -> None:
    body: ClaimBody = context.body
    if body.session_id not in {None, context.caller.session}:
        raise Problem("not_found", "A session's secret claims for that session alone.", label="Session not found")
    body.session_id, body.ephemeral = context.caller.session, True


def acquire(api: ApiService, context: RequestContext) -> None:
    body: AcquireBody = context.body
    lease_id, as_session = new_uuid(), context.caller.session
    command = Acquire(context.item, lease_id, terms_of(api, context), body.resume is True, 0, None, "", as_session)
    if body.wait_seconds or body.ticket is not None:
        command = msgspec.structs.replace(  # Most claims do not wait, and do not pay for it.
            command,
            wait_ms=_wait_ms(context),
            ticket=body.ticket,
            new_ticket=new_uuid(),
            will_retry=_will_retry(context),
        )
    api.submit(context, command, SINGLE_RENDERERS)


def claim(api: ApiService, context: RequestContext) -> None:
    body: ClaimsBody = context.body
    names = tuple(api.name_for(name, context.caller) for name in body.any or body.all or ())
    terms, as_session = terms_of(api, context), context.caller.session
    if body.any is not None:
        api.submit(
            context, ClaimAny(names=names, lease_id=new_uuid(), terms=terms, as_session=as_session), SEVERAL_RENDERERS
        )
        return
    command = ClaimAll(
        names=names,
        lease_ids=tuple(new_uuid() for _ in names),
        terms=terms,
        wait_ms=_wait_ms(context),
        ticket=body.ticket,
        new_ticket=new_uuid(),
        as_session=as_session,
        will_retry=_will_retry(context),
    )
    api.submit(context, command, SEVERAL_RENDERERS)


def leave_queue(api: ApiService, context: RequestContext) -> None:
    command = Leave(ticket_id=context.item, principal=context.caller.principal, as_session=context.caller.session)
    api.submit(context, command, {Withdrawn: no_content})


def terms_of(api: ApiService, context: RequestContext) -> Terms:
    body: ClaimBody = context.body
    ttl_seconds = api.settings.default_ttl_seconds if body.ttl_seconds is None else body.ttl_seconds
    return Terms(  # Positional, as all that is made for each claim.
        context.caller.principal,
        ttl_seconds * 1000,
        body.owner,
        body.session_id,
        body.ephemeral is True,
        body.lock_delay_seconds * 1000 if body.lock_delay_seconds else 0,
        body.metadata,
        body.redo is True,
        context.key,
        context.fingerprint,
        body.labels or None,
    )


def _wait_ms(context: RequestContext) -> int:
    """Return how long a claim still waits after another node held it (N-31): at least until it has joined."""
    wanted_ms = int(min(context.body.wait_seconds or 0, SECONDS_MAX) * 1000)
    return max(1, wanted_ms - context.request.held_ms) if wanted_ms > 0 else wanted_ms


def _will_retry(context: RequestContext) -> bool:
    """Tell whether the caller asks again at once if its wait is over. Without a key it could not learn of its turn."""
    return context.key is not None and context.request.headers.get(WILL_RETRY) == b"true"


# How their outcomes are shown. `context.query` is the status that the caller wants for a name it cannot have.


def _held(api: ApiService, context: RequestContext, outcome: Held, now: Instant) -> ResponseParts:
    """Say who owns the name; never the lease id (C2)."""
    lease, left_ms = outcome.lease, outcome.until_ms - now.ms
    reply = HeldReply(
        rendering.holder_id(lease, api.auth.key),
        rfc3339(now.wall_ms + left_ms),
        left_ms,
        lease.metadata,
        lease.owner,
        outcome.same_owner,
        rfc3339(lease.granted_wall_ms),
        rfc3339(lease.beat_wall_ms),
        left_ms,
        lease.note,
        outcome.waiting,
    )
    return _refused(context, rendering.with_labels(reply, lease), left_ms)


def _delayed(_api: ApiService, context: RequestContext, outcome: Delayed, now: Instant) -> ResponseParts:
    left_ms = outcome.until_ms - now.ms
    seconds = 0 if outcome.end is None else outcome.end.delay_ms // 1000
    reply = DelayedReply(rfc3339(now.wall_ms + left_ms), seconds, left_ms)
    return _CONFLICT, *_refused(context, reply, left_ms)[1:]


def _waiting(_api: ApiService, context: RequestContext, outcome: Waiting, _now: Instant) -> ResponseParts:
    return context.query, encode(WaitingReply(outcome.ticket_id, outcome.position, context.waited_ms)), ()


def _done(_api: ApiService, context: RequestContext, outcome: Finished, now: Instant) -> ResponseParts:
    done = outcome.done
    left_ms = done.until_ms - now.ms
    reply = DoneReply(outcome.name, done.owner, done.token, rfc3339(done.wall_ms), done.result, left_ms)
    if done.owner is None:
        reply.shown_as = shown_as(done.whose)
    return context.query, encode(reply), ()


def _claimed(
    _api: ApiService, context: RequestContext, outcome: AcquiredMany | Acquired, now: Instant
) -> ResponseParts:
    # A ticket has the order of the request that joined. The answer has the order of this one. One name of
    # `all` that had to wait comes as a claim of one.
    claims = dict(outcome.claims) if isinstance(outcome, AcquiredMany) else {context.body.all[0]: outcome}
    claimed: list[ClaimReply] = []
    for name in context.body.all or claims:
        claim = claims[name]
        left_ms = claim.until_ms - now.ms
        claimed.append(
            ClaimReply(
                name,
                claim.lease.lease_id,
                claim.lease.token,
                rfc3339(now.wall_ms + left_ms),
                left_ms // 2,
                left_ms,
                None if claim.previous is None else rendering.previous(claim.previous),
                claim.attempts,
            )
        )
    owner = next(iter(claims.values())).lease.owner
    return _OK, encode(ClaimsReply(claimed, owner, context.waited_ms)), ()


def _all_held(api: ApiService, context: RequestContext, outcome: AllHeld, now: Instant) -> ResponseParts:
    """Say who is in the way: the first of them, as many as fit into the reply, and at least one."""
    held: list[HeldName] = []
    left_out: int | UnsetType = UNSET
    bytes_left = _HELD_BYTES_MAX
    for name, obstacle in outcome.names:
        left_ms = obstacle.until_ms - now.ms
        if isinstance(obstacle, Held):
            lease = obstacle.lease
            reply = HeldName(
                name,
                lease.owner,
                rendering.holder_id(lease, api.auth.key),
                left_ms,
                lease.metadata,
                lease.note,
                rfc3339(lease.granted_wall_ms),
                rfc3339(lease.beat_wall_ms),
                rfc3339(now.wall_ms + left_ms),
            )
            reply = rendering.with_labels(reply, lease)
        else:
            reply = HeldName(name, None, None, left_ms, None, None, None, None, None)
        bytes_left -= len(encode(reply))
        if bytes_left < 0 and held:
            left_out = len(outcome.names) - len(held)
            break
        held.append(reply)
    return _refused(context, HeldManyReply(held, outcome.retry_after_ms, left_out), outcome.retry_after_ms)


def _refused(context: RequestContext, reply: object, retry_after_ms: int) -> ResponseParts:
    headers = () if context.query == _OK else ((b"retry-after", str(max(1, -(-retry_after_ms // 1000))).encode()),)
    return context.query, encode(reply), headers


SINGLE_RENDERERS: Mapping[type, Renderer] = {
    Acquired: lambda _api, context, outcome, now: (
        _OK,
        encode(rendering.acquired(outcome, now, context.waited_ms)),
        (),
    ),
    Held: _held,
    Waiting: _waiting,
    Finished: _done,
    Delayed: _delayed,
}

SEVERAL_RENDERERS: Mapping[type, Renderer] = {
    AcquiredMany: _claimed,
    Acquired: _claimed,
    AllHeld: _all_held,
    Waiting: _waiting,
    Finished: _done,
}


def secret(api: ApiService, context: RequestContext) -> None:
    """POST /claims/secret: what a command gets in place of the token. It needs what a renewal needs."""
    body: ClaimSecretBody = context.body
    caller = context.caller
    name = api.name_for(body.lock_name, caller)

    def view(state: State, _now: Instant) -> ResponseParts:
        lease = state.lease_of(name)
        own = lease is not None and may_touch(lease, caller.principal, caller.session)
        if lease is None or not own or lease.lease_id != body.lease_id:
            ended = not_current(state, name, body.lease_id, caller.principal)
            problem = rendering.problem(ended, caller.prefix, has_revoked_code=api.has_revoked_code)
            return context.refusal(problem, context.request)
        if lease.key is None:
            text = "A claim's secret is made of its Idempotency-Key, and this one has none: claim it with such a key."
            return context.refusal(Problem("invalid_input", text, status=422), context.request)
        grant = grant_of(state, lease.principal, lease.key, lease.lease_id)
        made = claim_secret(api.auth.key, ClaimId(lease.principal, grant, lease.key), caller.digest)
        return _OK, encode(ClaimSecretReply(made)), ()

    api.read(context, view)
