"""The session routes: open, look, keep alive, end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.answers import SessionOpen, SessionOver
from holdfast.core.commands import EndSession, KeepSession, OpenSession, RenewSession
from holdfast.core.refusals import SessionUnknown
from holdfast.core.values import EndedSession
from holdfast.engine.ids import new_uuid
from holdfast.server import render
from holdfast.server.api import encode, fingerprint, nothing
from holdfast.server.doors.request import read_query, read_uuid_segment
from holdfast.server.times import rfc3339
from holdfast.wire.problems import Problem
from holdfast.wire.replies import (
    SessionKeptReply,
    SessionOpenedReply,
    SessionRenewedReply,
    SessionReply,
    SessionsReply,
)

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.core.values import Moment, Session
    from holdfast.server.access.auth import Caller
    from holdfast.server.api import Answered, Api
    from holdfast.server.doors.request import Reply, Request
    from holdfast.wire.requests import SessionBody

SESSION_TTL_SECONDS = 60
_OK, _CREATED, _NO_CONTENT = 200, 201, 204


def open_(api: Api, request: Request, _segment: bytes, reply: Reply) -> None:
    """POST /sessions."""
    read_query(request.query, frozenset())
    body: SessionBody = api.session_body.read(request)
    key, mark = fingerprint(request, "sessions", body)
    caller = api.identify(request, "claim")
    if caller.via is not None:
        raise Problem("forbidden", "A session's secret cannot open sessions: use the token.")
    ttl_seconds = SESSION_TTL_SECONDS if body.ttl_seconds is None else body.ttl_seconds
    command = OpenSession(
        principal=caller.principal,
        session_id=new_uuid(),
        ttl_ms=ttl_seconds * 1000,
        name=body.name,
        metadata=body.metadata,
        key=key,
        fingerprint=mark,
    )

    def shown(outcome: SessionOpen, now: Moment) -> Answered:
        session = outcome.session
        left_ms = session.until_ms - now.ms
        opened = SessionOpenedReply(
            session.session_id,
            rfc3339(now.wall_ms + left_ms),
            session.ttl_ms // 2000,
            api.auth.key.session_secret(session.session_id),
            left_ms,
            session.name,
            session.metadata,
        )
        return _CREATED, encode(opened), ((b"cache-control", b"no-store"),)

    api.ask(command, request, reply, SessionOpen, shown)


def keep(api: Api, request: Request, segment: bytes, reply: Reply) -> None:
    """POST /sessions/{id}/keepalive."""
    session_id = read_uuid_segment(segment)
    read_query(request.query, frozenset())
    caller = _owner_of(api, request, session_id)
    command = KeepSession(principal=caller.principal, session_id=session_id)

    def shown(outcome: SessionOpen, now: Moment) -> Answered:
        left_ms = outcome.session.until_ms - now.ms
        return _OK, encode(SessionKeptReply(session_id, rfc3339(now.wall_ms + left_ms), left_ms)), ()

    api.ask(command, request, reply, SessionOpen, shown)


def renew_all(api: Api, request: Request, segment: bytes, reply: Reply) -> None:
    """POST /sessions/{id}/renew-all."""
    session_id = read_uuid_segment(segment)
    read_query(request.query, frozenset())
    caller = _owner_of(api, request, session_id)
    command = RenewSession(principal=caller.principal, session_id=session_id)

    def shown(outcome: SessionOpen, now: Moment) -> Answered:
        left_ms = outcome.session.until_ms - now.ms
        renewed = SessionRenewedReply(session_id, rfc3339(now.wall_ms + left_ms), left_ms, outcome.renewed)
        return _OK, encode(renewed), ()

    api.ask(command, request, reply, SessionOpen, shown)


def list_(api: Api, request: Request, _segment: bytes, reply: Reply) -> None:
    """GET /sessions: the caller's own; with a session's secret, that one."""
    read_query(request.query, frozenset())
    caller = api.identify(request, "read")
    user_id = api.auth.key.holder("user", caller.principal)

    def view(state: State, now: Moment) -> Answered:
        found = [
            _shown(session, state, now, user_id)
            for session in state.sessions.values()
            if session.principal == caller.principal and caller.via in {None, session.session_id}
        ]
        return _OK, encode(SessionsReply(found, len(found))), ()

    api.read(view, request, reply)


def _shown(session: Session, state: State, now: Moment, user_id: str) -> SessionReply:
    expires_at = rfc3339(now.wall_ms + session.until_ms - now.ms)
    count = len(state.index.names_by_session.get(session.session_id, ()))
    return SessionReply(session.session_id, user_id, expires_at, count, True, session.name, session.metadata)


def look(api: Api, request: Request, segment: bytes, reply: Reply) -> None:
    """GET /sessions/{id}."""
    session_id = read_uuid_segment(segment)
    read_query(request.query, frozenset())
    caller = _owner_of(api, request, session_id, scope="read")
    user_id = api.auth.key.holder("user", caller.principal)

    def view(state: State, now: Moment) -> Answered:
        session = state.sessions.get(session_id)
        if session is not None and session.principal == caller.principal:
            return _OK, encode(_shown(session, state, now, user_id)), ()
        ended = state.remembered.get(session_id)
        if isinstance(ended, EndedSession) and ended.principal == caller.principal and ended.how == "expired":
            lapsed = SessionReply(session_id, user_id, rfc3339(ended.wall_ms), 0, False, None, None)
            return _OK, encode(lapsed), ()
        problem = render.problem(SessionUnknown())
        return problem.status, problem.body(request.request_id), problem.headers()

    api.read(view, request, reply)


def end(api: Api, request: Request, segment: bytes, reply: Reply) -> None:
    """DELETE /sessions/{id}."""
    session_id = read_uuid_segment(segment)
    read_query(request.query, frozenset())
    key, mark = fingerprint(request, session_id, None)
    caller = _owner_of(api, request, session_id)
    command = EndSession(principal=caller.principal, session_id=session_id, key=key, fingerprint=mark)

    api.ask(command, request, reply, SessionOver, nothing)


def _owner_of(api: Api, request: Request, session_id: str, scope: str = "claim") -> Caller:
    """Return who asks; a session's secret knows that session alone (S3)."""
    caller = api.identify(request, scope)
    if caller.via is not None and caller.via != session_id:
        raise render.problem(SessionUnknown())
    return caller
