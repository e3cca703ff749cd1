"""Claiming one name or several, giving up a place in a line, and a secret for whoever works on a claim.

POST /locks/{name}/acquire, POST /claims, DELETE /tickets/{id}, POST /claims/secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from holdfast.core.answers import Acquired, AcquiredMany, Waiting, Withdrawn
from holdfast.core.commands import Acquire, ClaimAll, ClaimAny, Leave
from holdfast.core.leases import not_current
from holdfast.core.refusals import AllHeld, Delayed, Finished, Held
from holdfast.core.values import Terms, may_touch
from holdfast.engine.ids import new_uuid
from holdfast.server import render
from holdfast.server.access.claimsecrets import ClaimId, claim_secret, grant_of
from holdfast.server.operations.decoding import read_uuid
from holdfast.server.render import encode, no_content
from holdfast.wire.problems import Problem
from holdfast.wire.replies import ClaimSecretReply

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.core.state import State
    from holdfast.core.values import Moment
    from holdfast.server.api import Api, Show
    from holdfast.server.operations.call import Call
    from holdfast.server.render import Answered
    from holdfast.wire.requests import AcquireBody, ClaimBody, ClaimsBody, ClaimSecretBody

SECONDS_MAX = 1e9
"""More than any limit, and still a number after it is multiplied."""
_OK, _CONFLICT = 200, 409
COMES_BACK = b"holdfast-comes-back"
"""The header of one who asks again at once if its wait is over (W2)."""


# What is read and checked before the handlers are called.


def held_status(query: dict[str, str]) -> int:
    wanted = query.get("on_held", "200")
    if wanted not in {"200", "409"}:
        raise Problem("invalid_input", "on_held is 200 or 409.")
    return int(wanted)


def check_one(body: AcquireBody) -> None:
    if body.acl is not UNSET:
        raise Problem("invalid_input", "acl is not supported: leave it out.", status=422)
    if body.session_id is not None or body.ticket is not None:
        _check_ids(body)


def check_several(body: ClaimsBody) -> None:
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


def check_session(call: Call) -> None:
    """Let a session's secret claim for that session alone, bound to it."""
    body: ClaimBody = call.body
    if body.session_id not in {None, call.caller.session}:
        raise Problem("not_found", "A session's secret claims for that session alone.", label="Session not found")
    body.session_id, body.ephemeral = call.caller.session, True


# The handlers.


def acquire(api: Api, call: Call) -> None:
    body: AcquireBody = call.body
    lease_id, as_session = new_uuid(), call.caller.session
    command = Acquire(call.item, lease_id, terms_of(api, call), body.resume is True, 0, None, "", as_session)
    if body.wait_seconds or body.ticket is not None:
        # Most claims do not wait, and do not pay for it.
        command = msgspec.structs.replace(
            command,
            wait_ms=_wait_ms(call),
            ticket=body.ticket,
            new_ticket=new_uuid(),
            comes_back=_comes_back(call),
        )
    api.submit(call, command, SHOWS_ONE)


def claim(api: Api, call: Call) -> None:
    body: ClaimsBody = call.body
    names = tuple(api.name_for(name, call.caller) for name in body.any or body.all or ())
    terms, as_session = terms_of(api, call), call.caller.session
    if body.any is not None:
        api.submit(call, ClaimAny(names=names, lease_id=new_uuid(), terms=terms, as_session=as_session), SHOWS_SEVERAL)
        return
    command = ClaimAll(
        names=names,
        lease_ids=tuple(new_uuid() for _ in names),
        terms=terms,
        wait_ms=_wait_ms(call),
        ticket=body.ticket,
        new_ticket=new_uuid(),
        as_session=as_session,
        comes_back=_comes_back(call),
    )
    api.submit(call, command, SHOWS_SEVERAL)


def leave(api: Api, call: Call) -> None:
    command = Leave(ticket_id=call.item, principal=call.caller.principal, as_session=call.caller.session)
    api.submit(call, command, {Withdrawn: no_content})


def terms_of(api: Api, call: Call) -> Terms:
    body: ClaimBody = call.body
    ttl_seconds = api.settings.default_ttl_seconds if body.ttl_seconds is None else body.ttl_seconds
    # By place and not by keywords, as all that is made for each claim.
    return Terms(
        call.caller.principal,
        ttl_seconds * 1000,
        body.owner,
        body.session_id,
        body.ephemeral is True,
        body.lock_delay_seconds * 1000 if body.lock_delay_seconds else 0,
        body.metadata,
        body.redo is True,
        call.key,
        call.fingerprint,
        body.labels or None,
    )


def _wait_ms(call: Call) -> int:
    """Return how long a claim still waits; a time beyond all limits stays one.

    What another node held it for is over (N-31). Who wanted to wait still gets a place in the line.
    """
    wanted_ms = int(min(call.body.wait_seconds or 0, SECONDS_MAX) * 1000)
    return max(1, wanted_ms - call.request.held_ms) if wanted_ms > 0 else wanted_ms


def _comes_back(call: Call) -> bool:
    """Tell whether the caller asks again at once if its wait is over. Without a key it could not learn of its turn."""
    return call.key is not None and call.request.headers.get(COMES_BACK) == b"true"


# How their outcomes are shown. `call.query` is the status that the caller wants for a name it cannot have.


def _acquired(_api: Api, call: Call, outcome: Acquired, now: Moment) -> Answered:
    return _OK, encode(render.acquired(outcome, now, call.waited_ms)), ()


def _held(api: Api, call: Call, outcome: Held, now: Moment) -> Answered:
    body = render.held(outcome, now, api.auth.key)
    return call.query, encode(body), _retry_after(call.query, body.retry_after_ms)


def _delayed(_api: Api, call: Call, outcome: Delayed, now: Moment) -> Answered:
    body = render.delayed(outcome, now)
    return _CONFLICT, encode(body), _retry_after(call.query, body.retry_after_ms)


def _waiting(_api: Api, call: Call, outcome: Waiting, _now: Moment) -> Answered:
    return call.query, encode(render.waiting(outcome, call.waited_ms)), ()


def _done(_api: Api, call: Call, outcome: Finished, now: Moment) -> Answered:
    return call.query, encode(render.done(outcome, now)), ()


def _claimed(_api: Api, call: Call, outcome: AcquiredMany, now: Moment) -> Answered:
    claims = outcome.claims
    if len(claims) > 1:
        # A place in the line has the order of the request that joined. The answer has the order of this one.
        by_name = dict(claims)
        outcome = AcquiredMany(tuple((name, by_name[name]) for name in call.body.all))
    return _OK, encode(render.claims(outcome, now, call.waited_ms)), ()


def _claimed_one(api: Api, call: Call, outcome: Acquired, now: Moment) -> Answered:
    """Show a claim of all of one name that had to wait."""
    return _claimed(api, call, AcquiredMany(((call.body.all[0], outcome),)), now)


def _all_held(api: Api, call: Call, outcome: AllHeld, now: Moment) -> Answered:
    body = render.held_many(outcome, now, api.auth.key)
    return call.query, encode(body), _retry_after(call.query, body.retry_after_ms)


SHOWS_ONE: Mapping[type, Show] = {
    Acquired: _acquired,
    Held: _held,
    Waiting: _waiting,
    Finished: _done,
    Delayed: _delayed,
}

SHOWS_SEVERAL: Mapping[type, Show] = {
    AcquiredMany: _claimed,
    Acquired: _claimed_one,
    AllHeld: _all_held,
    Waiting: _waiting,
    Finished: _done,
}


def _retry_after(status: int, retry_after_ms: int) -> tuple[tuple[bytes, bytes], ...]:
    if status == _OK:
        return ()
    return ((b"retry-after", str(max(1, -(-retry_after_ms // 1000))).encode()),)


# Letting somebody work on a claim.


def secret(api: Api, call: Call) -> None:
    """POST /claims/secret: what a command gets in place of the token. It needs what a renewal needs."""
    body: ClaimSecretBody = call.body
    caller = call.caller
    name = api.name_for(body.lock_name, caller)

    def view(state: State, _now: Moment) -> Answered:
        lease = state.lease_of(name)
        own = lease is not None and may_touch(lease, caller.principal, caller.session)
        if lease is None or not own or lease.lease_id != body.lease_id:
            ended = not_current(state, name, body.lease_id, caller.principal)
            problem = render.problem(ended, caller.prefix, knows_revoked=api.knows_revoked)
            return call.refusal(problem, call.request)
        if lease.key is None:
            text = "A claim's secret is made of its Idempotency-Key, and this one has none: claim it with such a key."
            return call.refusal(Problem("invalid_input", text, status=422), call.request)
        grant = grant_of(state, lease.principal, lease.key, lease.lease_id)
        made = claim_secret(api.auth.key, ClaimId(lease.principal, grant, lease.key), caller.digest)
        return _OK, encode(ClaimSecretReply(made)), ()

    api.read(call, view)
