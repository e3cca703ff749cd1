"""The lock routes: acquire, renew, release, status, list."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from holdfast.core.answers import Acquired, Extended, Released, Waiting
from holdfast.core.commands import Acquire, Release, Renew
from holdfast.core.refusals import Delayed, Finished, Held
from holdfast.core.values import Terms
from holdfast.engine.ids import new_uuid
from holdfast.engine.waiters import after_wait
from holdfast.server import render
from holdfast.server.api import encode, fingerprint, refuse
from holdfast.server.doors.request import read_key, read_query, read_segment, read_uuid
from holdfast.wire.problems import Problem
from holdfast.wire.replies import LocksReply
from holdfast.wire.requests import field_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.core.state import State
    from holdfast.core.values import Moment
    from holdfast.server.access.auth import Caller
    from holdfast.server.api import Answered, Api
    from holdfast.server.doors.request import Reply, Request
    from holdfast.wire.requests import AcquireBody, ClaimBody, ReleaseBody, RenewBody

NULL = b"null"
RENEW_TTL_SECONDS = 60
"""What a renewal without a ttl means, as OctoStore has it (L3)."""
SECONDS_MAX = 1e9
"""More than any limit, and still a number after it is multiplied."""
LIST_LIMIT = 1_000
LIST_LIMIT_MAX = 10_000
_OK, _CONFLICT = 200, 409
_ON_HELD = frozenset({"on_held"})
_NUMBER = re.compile(r"[0-9]{1,9}")
_LIST = frozenset({"after", "limit", "owner", "prefix", "session"})


def acquire(api: Api, request: Request, segment: bytes, reply: Reply) -> None:
    """POST /locks/{name}/acquire."""
    text = read_segment(segment)
    status_if_held = held_status(request.query) if request.query else _OK
    body: AcquireBody = api.acquire_body.read(request)
    if body.acl is not UNSET:
        raise Problem("invalid_input", "acl is not supported: leave it out.", status=422)
    session = None if body.session_id is None else read_uuid(body.session_id, "session_id")
    ticket = None if body.ticket is None else read_uuid(body.ticket, "ticket")
    wait_ms = 0 if body.wait_seconds is None else in_ms(body.wait_seconds)
    key, mark = (None, "") if request.key is None else fingerprint(request, text, unwaited(body))
    caller = api.identify(request, "claim")
    bound = bool(body.ephemeral)
    if caller.via is not None:
        session, bound = own_session(caller, session), True
    ttl_seconds = api.settings.default_ttl_seconds if body.ttl_seconds is None else body.ttl_seconds
    command = Acquire(
        name=api.name_for(text, caller),
        lease_id=new_uuid(),
        terms=Terms(
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
        ),
        resume=bool(body.resume),
        via=caller.via,
    )
    if wait_ms or ticket is not None:
        # Most claims do not wait, and do not pay for it.
        command = msgspec.structs.replace(command, wait_ms=wait_ms, ticket=ticket, new_ticket=new_uuid())

    def answer(outcome: object, now: Moment) -> None:
        waited_ms = 0
        if not isinstance(outcome, Acquired):
            outcome, waited_ms = after_wait(outcome)
        if isinstance(outcome, Acquired):
            api.counters.acquires += 1
            reply(_OK, encode(render.acquired(outcome, now, waited_ms)), ())
        elif isinstance(outcome, Held):
            body = render.held(outcome, now, api.auth.key)
            reply(status_if_held, encode(body), retry_after(status_if_held, body.retry_after_ms))
        elif isinstance(outcome, Waiting):
            reply(status_if_held, encode(render.waiting(outcome, waited_ms)), ())
        elif isinstance(outcome, Finished):
            reply(status_if_held, encode(render.done(outcome, now)), ())
        elif isinstance(outcome, Delayed):
            delayed = render.delayed(outcome, now)
            reply(_CONFLICT, encode(delayed), retry_after(status_if_held, delayed.retry_after_ms))
        else:
            refuse(render.problem(outcome), request, reply)

    if (waiter := api.engine.submit(command, answer)) is not None:
        api.wait(waiter, request)


def in_ms(seconds: float) -> int:
    """Return a time in milliseconds; one beyond all limits stays one."""
    return int(min(seconds, SECONDS_MAX) * 1000)


def unwaited(body: ClaimBody) -> dict[str, object]:
    """Return a claim without what may differ between tries: how long it waits, and at which place (C5)."""
    fields = {name: getattr(body, name) for name in field_names(type(body))} | {"wait_seconds": None, "ticket": None}
    return {name: value for name, value in fields.items() if value is not UNSET}


def renew(api: Api, request: Request, segment: bytes, reply: Reply) -> None:
    """POST /locks/{name}/renew."""
    text = read_segment(segment)
    read_query(request.query, frozenset())
    body: RenewBody = api.renew_body.read(request)
    lease_id = read_uuid(body.lease_id, "lease_id")
    key = read_key(request)
    caller = api.identify(request, "claim")
    ttl_seconds = body.ttl_seconds
    if ttl_seconds is None:
        ttl_seconds = min(RENEW_TTL_SECONDS, api.settings.max_ttl_seconds)
    command = Renew(
        name=api.name_for(text, caller),
        principal=caller.principal,
        lease_id=lease_id,
        ttl_ms=None if body.keep_ttl else ttl_seconds * 1000,
        note=body.note,
        metadata=body.metadata,
        via=caller.via,
        key=key,
    )

    def shown(outcome: Extended, now: Moment) -> Answered:
        return _OK, encode(render.renewed(outcome, now)), ()

    api.ask(command, request, reply, Extended, shown)


def release(api: Api, request: Request, segment: bytes, reply: Reply) -> None:
    """POST /locks/{name}/release."""
    text = read_segment(segment)
    read_query(request.query, frozenset())
    body: ReleaseBody = api.release_body.read(request)
    lease_id = read_uuid(body.lease_id, "lease_id")
    key, mark = (None, "") if request.key is None else fingerprint(request, text, body)
    if body.outcome != "done" and (body.result is not None or body.remember_seconds is not None):
        raise Problem("invalid_input", 'result and remember_seconds go with "outcome": "done".', status=422)
    caller = api.identify(request, "claim")
    command = Release(
        name=api.name_for(text, caller),
        principal=caller.principal,
        lease_id=lease_id,
        failed=body.outcome == "failed",
        done=body.outcome == "done",
        remember_ms=(body.remember_seconds or 0) * 1000,
        result=body.result,
        via=caller.via,
        key=key,
        fingerprint=mark,
    )

    def shown(_outcome: Released, _now: Moment) -> Answered:
        api.counters.releases += 1
        return _OK, NULL, ()

    api.ask(command, request, reply, Released, shown)


def status(api: Api, request: Request, segment: bytes, reply: Reply) -> None:
    """GET /locks/{name}."""
    text = read_segment(segment)
    read_query(request.query, frozenset())
    name = api.name_for(text, api.identify(request, "read"))

    def view(state: State, now: Moment) -> Answered:
        return _OK, encode(render.lock(name, state, now, api.auth.key)), ()

    api.read(view, request, reply)


def list_(api: Api, request: Request, _segment: bytes, reply: Reply) -> None:
    """GET /locks."""
    query = read_query(request.query, _LIST)
    limit = _limit(query.get("limit"))
    session = read_uuid(query["session"], "session", status=400) if "session" in query else None
    caller = api.identify(request, "read")
    prefix = _effective_prefix(query.get("prefix"), caller)

    def view(state: State, now: Moment) -> Answered:
        names = list(_matching(state, prefix or "", query.get("owner"), session))
        after = query.get("after", "")
        page = list(islice((name for name in names if name > after), limit + 1))
        more = len(page) > limit
        locks = [render.lock(name, state, now, api.auth.key) for name in page[:limit]]
        found = LocksReply(locks, len(names), prefix, page[limit - 1] if more else None)
        return _OK, encode(found), ()

    api.read(view, request, reply)


def _matching(state: State, prefix: str, owner: str | None, session: str | None) -> Iterator[str]:
    for name in state.index.held.walk(prefix):
        if owner is not None or session is not None:
            lease = state.lease_of(name)
            if lease is None or (owner is not None and lease.owner != owner):
                continue
            if session is not None and lease.session != session:
                continue
        yield name


def _effective_prefix(prefix: str | None, caller: Caller) -> str | None:
    """Return the prefix to list: a confined token sees its own part, unasked; asking for another is refused."""
    if caller.prefix is None:
        return prefix
    if prefix is None:
        return caller.prefix
    caller.may_touch(prefix)
    return prefix


def _limit(text: str | None) -> int:
    if text is None:
        return LIST_LIMIT
    if not _NUMBER.fullmatch(text) or not 0 < int(text) <= LIST_LIMIT_MAX:
        raise Problem("invalid_input", f"limit is 1 to {LIST_LIMIT_MAX}.")
    return int(text)


def held_status(query: bytes) -> int:
    """Return the status that the caller wants for a name it cannot have."""
    wanted = read_query(query, _ON_HELD).get("on_held", "200")
    if wanted not in {"200", "409"}:
        raise Problem("invalid_input", "on_held is 200 or 409.")
    return int(wanted)


def own_session(caller: Caller, session: str | None) -> str:
    """Return the session of the secret; it cannot claim for another."""
    if caller.via is None or session not in {None, caller.via}:
        raise Problem("not_found", "A session's secret claims for that session alone.", label="Session not found")
    return caller.via


def retry_after(status: int, retry_after_ms: int) -> tuple[tuple[bytes, bytes], ...]:
    """Return the header that goes with a refusal that is not a 200."""
    if status == _OK:
        return ()
    return ((b"retry-after", str(max(1, -(-retry_after_ms // 1000))).encode()),)
