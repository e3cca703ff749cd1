"""Several names in one call, and giving up a place in a line: POST /claims, DELETE /tickets/{id}."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.answers import Acquired, AcquiredMany, Waiting, Withdrawn
from holdfast.core.commands import ClaimAll, ClaimAny, Leave
from holdfast.core.refusals import AllHeld, Finished
from holdfast.core.values import Terms
from holdfast.engine.ids import new_uuid
from holdfast.engine.waiters import after_wait
from holdfast.server import render
from holdfast.server.api import encode, fingerprint, nothing, refuse
from holdfast.server.doors.request import read_query, read_uuid, read_uuid_segment
from holdfast.server.handlers.locks import held_status, in_ms, own_session, retry_after, unwaited
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from holdfast.core.values import Moment
    from holdfast.server.access.auth import Caller
    from holdfast.server.api import Api
    from holdfast.server.doors.request import Reply, Request
    from holdfast.wire.requests import ClaimsBody

_OK, _NO_CONTENT = 200, 204


def claim(api: Api, request: Request, _segment: bytes, reply: Reply) -> None:
    """POST /claims."""
    status_if_held = held_status(request.query) if request.query else _OK
    body: ClaimsBody = api.claims_body.read(request)
    _check(body)
    if body.session_id is not None:
        body.session_id = read_uuid(body.session_id, "session_id")
    if body.ticket is not None:
        body.ticket = read_uuid(body.ticket, "ticket")
    key, mark = fingerprint(request, "claims", unwaited(body))
    caller = api.identify(request, "claim")
    command = _command(api, body, caller, key, mark)

    def answer(outcome: object, now: Moment) -> None:
        outcome, waited_ms = after_wait(outcome)
        if isinstance(outcome, Acquired):
            # A claim of all of one name that had to wait.
            outcome = AcquiredMany(((command.names[0], outcome),))
        if isinstance(outcome, AcquiredMany):
            api.counters.acquires += len(outcome.claims)
            reply(_OK, encode(render.claims(outcome, now, waited_ms)), ())
        elif isinstance(outcome, AllHeld):
            held = render.held_many(outcome, now, api.auth.key)
            reply(status_if_held, encode(held), retry_after(status_if_held, held.retry_after_ms))
        elif isinstance(outcome, Waiting):
            reply(status_if_held, encode(render.waiting(outcome, waited_ms)), ())
        elif isinstance(outcome, Finished):
            reply(status_if_held, encode(render.done(outcome, now)), ())
        else:
            refuse(render.problem(outcome), request, reply)

    waiter = api.engine.submit(command, answer)
    if waiter is not None:
        api.wait(waiter, request)


def _check(body: ClaimsBody) -> None:
    if (body.any is None) == (body.all is None):
        raise Problem("invalid_input", 'Send either "any" or "all", with a list of names.', status=422)
    if body.any is not None and (body.wait_seconds or body.ticket is not None):
        raise Problem("invalid_input", '"any" does not wait: ask again after retry_after_ms.', status=422)


def _command(api: Api, body: ClaimsBody, caller: Caller, key: str | None, mark: str) -> ClaimAny | ClaimAll:
    session, bound = body.session_id, bool(body.ephemeral)
    if caller.via is not None:
        session, bound = own_session(caller, session), True
    names = tuple(api.name_for(name, caller) for name in body.any or body.all or ())
    ttl_seconds = api.settings.default_ttl_seconds if body.ttl_seconds is None else body.ttl_seconds
    terms = Terms(
        principal=caller.principal,
        ttl_ms=ttl_seconds * 1000,
        owner=body.owner,
        metadata=body.metadata,
        session=session,
        bound=bound,
        delay_ms=(body.lock_delay_seconds or 0) * 1000,
        redo=bool(body.redo),
        key=key,
        fingerprint=mark,
    )
    if body.any is not None:
        return ClaimAny(names=names, lease_id=new_uuid(), terms=terms, via=caller.via)
    return ClaimAll(
        names=names,
        lease_ids=tuple(new_uuid() for _ in names),
        terms=terms,
        wait_ms=0 if body.wait_seconds is None else in_ms(body.wait_seconds),
        ticket=body.ticket,
        new_ticket=new_uuid(),
        via=caller.via,
    )


def leave(api: Api, request: Request, segment: bytes, reply: Reply) -> None:
    """DELETE /tickets/{id}."""
    ticket_id = read_uuid_segment(segment)
    read_query(request.query, frozenset())
    caller = api.identify(request, "claim")
    api.ask(Leave(ticket_id=ticket_id, principal=caller.principal, via=caller.via), request, reply, Withdrawn, nothing)
