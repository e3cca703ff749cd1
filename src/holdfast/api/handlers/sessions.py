"""The session routes: open, describe, keep alive, end.

A session is its access token's own. An operator sees those of the access tokens that it could replace or revoke
(`may_see`), and can neither keep nor end them: that is done by their token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import UNSET

from holdfast.api import rendering
from holdfast.api.auth.auth import SCOPES, Caller
from holdfast.api.context import RequestContext
from holdfast.api.handlers import paging
from holdfast.api.rendering import encode, no_content, rfc3339
from holdfast.api.service import ApiService, Renderer
from holdfast.core.commands import EndSession, KeepSession, OpenSession, RenewSession
from holdfast.core.outcomes import SessionOpen, SessionOver, SessionUnknown
from holdfast.core.state import State
from holdfast.core.values import EndedSession, Instant, Session
from holdfast.engine.ids import new_secret, new_uuid
from holdfast.http.messages import ResponseParts
from holdfast.wire.problems import Problem
from holdfast.wire.replies import (
    SessionKeepaliveReply,
    SessionOpenedReply,
    SessionRenewedReply,
    SessionReply,
    SessionSecretReply,
    SessionsReply,
)
from holdfast.wire.requests import SessionBody

SESSION_TTL_SECONDS = 60
SALT_BYTES = 12


def check_is_token(_context: RequestContext) -> None:
    """Let no session's secret open another session, or have the next secret of its own."""
    raise Problem("forbidden", "A session's secret cannot ask for sessions or secrets: use the access token.")


def check_is_own(context: RequestContext) -> None:
    if context.caller.session != context.item:
        raise rendering.problem(SessionUnknown())


def open_(api: ApiService, context: RequestContext) -> None:
    body: SessionBody = context.body
    ttl_seconds = SESSION_TTL_SECONDS if body.ttl_seconds is None else body.ttl_seconds
    command = OpenSession(
        principal=context.caller.principal,
        session_id=new_uuid(),
        ttl_ms=ttl_seconds * 1000,
        name=body.name,
        metadata=body.metadata,
        key=context.key,
        fingerprint=context.fingerprint,
        salt=new_secret(SALT_BYTES).hex(),
    )
    api.submit(context, command, {SessionOpen: _opened})


def _opened(api: ApiService, context: RequestContext, outcome: SessionOpen, now: Instant) -> ResponseParts:
    session = outcome.session
    left_ms = session.until_ms - now.ms
    opened = SessionOpenedReply(
        session.session_id,
        rfc3339(now.wall_ms + left_ms),
        session.ttl_ms // 2000,
        api.auth.key.session_secret(session, context.caller.digest),
        left_ms,
        session.name,
        session.metadata,
        api.settings.public_url or UNSET,
    )
    return 201, encode(opened), ()


def secret(api: ApiService, context: RequestContext) -> None:
    caller = context.caller

    def view(state: State, _now: Instant) -> ResponseParts:
        session = state.sessions.get(context.item)
        if session is None or session.principal != caller.principal:
            return context.refusal(rendering.problem(SessionUnknown()), context.request)
        shown = SessionSecretReply(session.session_id, api.auth.key.session_secret(session, caller.digest))
        return 200, encode(shown), ()

    api.read(context, view)


def keepalive(api: ApiService, context: RequestContext) -> None:
    command = KeepSession(principal=context.caller.principal, session_id=context.item)
    api.submit(context, command, _KEEPALIVE_RENDERERS)


def _alive(_api: ApiService, context: RequestContext, outcome: SessionOpen, now: Instant) -> ResponseParts:
    left_ms = outcome.session.until_ms - now.ms
    return 200, encode(SessionKeepaliveReply(context.item, rfc3339(now.wall_ms + left_ms), left_ms)), ()


def renew_all(api: ApiService, context: RequestContext) -> None:
    command = RenewSession(principal=context.caller.principal, session_id=context.item)
    api.submit(context, command, _RENEW_RENDERERS)


def _renewed(_api: ApiService, context: RequestContext, outcome: SessionOpen, now: Instant) -> ResponseParts:
    left_ms = outcome.session.until_ms - now.ms
    return 200, encode(SessionRenewedReply(context.item, rfc3339(now.wall_ms + left_ms), left_ms, outcome.renewed)), ()


_KEEPALIVE_RENDERERS: Mapping[type, Renderer] = {SessionOpen: _alive}
_RENEW_RENDERERS: Mapping[type, Renderer] = {SessionOpen: _renewed}


def end(api: ApiService, context: RequestContext) -> None:
    principal = context.caller.principal
    command = EndSession(principal=principal, session_id=context.item, key=context.key, fingerprint=context.fingerprint)
    api.submit(context, command, {SessionOver: no_content})


def may_see(api: ApiService, caller: Caller, principal: str) -> bool:
    """Tell whether a caller sees a principal's sessions. Without a token its rights are unknown: only all will do."""
    if principal == caller.principal:
        return True
    if "admin" not in caller.scopes:
        return False
    rights = api.auth.static.of(principal) or api.engine.state.tokens.get(principal)
    return caller.may_grant(SCOPES, None) if rights is None else caller.may_grant(rights.scopes, rights.prefix)


def list_(api: ApiService, context: RequestContext) -> None:
    caller = context.caller
    principal: str = context.query.get("token", caller.principal)
    if not may_see(api, caller, principal):
        raise Problem("forbidden", "Only an operator whose rights are at least those of that access token may ask.")
    user_id = api.auth.key.holder("user", principal)

    def names(state: State) -> Iterable[str]:
        own = state.index.sessions_by_principal.get(principal, {})
        return own if caller.session is None else own.keys() & {caller.session}

    def show(session_id: str, state: State, now: Instant) -> SessionReply | None:
        session = state.sessions.get(session_id)
        return None if session is None else _session_reply(session, state, now, user_id)

    selection = paging.Selection(context.query, names, show)

    async def respond() -> ResponseParts:
        await paging.in_slices(api.engine, selection.take_slice)
        return 200, encode(SessionsReply(selection.page.items, selection.total, selection.next_after or UNSET)), ()

    api.answer_slowly(context, respond)


def describe(api: ApiService, context: RequestContext) -> None:
    def view(state: State, now: Instant) -> ResponseParts:
        session, ended = state.sessions.get(context.item), state.remembered.get(context.item)
        if session is not None and may_see(api, context.caller, session.principal):
            user_id = api.auth.key.holder("user", session.principal)
            return 200, encode(_session_reply(session, state, now, user_id)), ()
        if isinstance(ended, EndedSession) and ended.how == "expired" and may_see(api, context.caller, ended.principal):
            user_id = api.auth.key.holder("user", ended.principal)
            lapsed = SessionReply(context.item, user_id, rfc3339(ended.wall_ms), 0, False, None, None)
            return 200, encode(lapsed), ()
        return context.refusal(rendering.problem(SessionUnknown()), context.request)

    api.read(context, view)


def _session_reply(session: Session, state: State, now: Instant, user_id: str) -> SessionReply:
    expires_at = rfc3339(now.wall_ms + session.until_ms - now.ms)
    count = len(state.index.names_by_session.get(session.session_id, ()))
    return SessionReply(session.session_id, user_id, expires_at, count, True, session.name, session.metadata)
