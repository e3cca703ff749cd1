"""The token routes, for operators: make, list, revoke, rotate. A token is shown once, when it is made.

Rights are never wider than their giver's. What an operator makes lies within its own scopes and prefix, and so does
what it sees, revokes and rotates: any other token is unknown to it.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from holdfast.api import rendering
from holdfast.api.auth.auth import SCOPES, Caller, check_token_name, in_order
from holdfast.api.auth.secrets import digest, new_token
from holdfast.api.context import RequestContext
from holdfast.api.handlers import paging
from holdfast.api.rendering import encode, no_content, rfc3339
from holdfast.api.service import ApiService, Renderer
from holdfast.core.commands import CreateToken, RevokeToken, RotateToken
from holdfast.core.outcomes import TokenExists, TokenGone, TokenMade, TokenUnknown
from holdfast.core.state import State
from holdfast.core.values import AccessToken, Instant
from holdfast.engine.ids import new_secret
from holdfast.http.messages import ResponseParts
from holdfast.wire.problems import Problem
from holdfast.wire.replies import TokenMadeReply, TokenReply, TokensReply
from holdfast.wire.requests import RotateBody, TokenBody

PREFIX_BYTES_MAX = 256
SALT_BYTES = 12
_YES_OR_NO = {"true": True, "false": False}


def create(api: ApiService, context: RequestContext) -> None:
    body: TokenBody = context.body
    _check(api, body)
    caller = context.caller
    scopes = frozenset(body.scopes or ("read", "claim"))
    prefix = caller.prefix if body.prefix is None else body.prefix
    _check_giver(caller, scopes, prefix)
    _check_inheritance(api.engine.state, caller, body.name)
    salt, token = _new_token(api, context)
    command = CreateToken(
        principal=caller.principal,
        name=body.name,
        digest=digest(token),
        scopes=tuple(in_order(scopes)),
        prefix=prefix,
        expires_wall_ms=_expires_wall_ms(api, body.expires_in_seconds),
        salt=salt,
        key=context.key,
        fingerprint=context.fingerprint,
        within=caller.prefix,
    )
    api.submit(context, command, {TokenMade: _render_created(token, 201), TokenExists: _render_name_taken})


def _check(api: ApiService, body: TokenBody) -> None:
    check_token_name(body.name)
    if api.auth.static.of(body.name) is not None:
        raise Problem("conflict", f"A static access token is called {body.name!r}: take another name.")
    if body.scopes is not None and not body.scopes:
        raise Problem("invalid_input", f"scopes is a list of some of {', '.join(SCOPES)}.")
    if body.prefix is not None and not 0 < len(body.prefix.encode()) <= PREFIX_BYTES_MAX:
        raise Problem("invalid_input", f"prefix has 1 to {PREFIX_BYTES_MAX} bytes.")
    _check_expiry(body.expires_in_seconds)


def _check_expiry(seconds: int | None) -> None:
    if seconds == 0:
        raise Problem("invalid_input", "expires_in_seconds is 1 or more.")


def _check_giver(caller: Caller, scopes: frozenset[str], prefix: str | None) -> None:
    if not caller.may_grant(scopes, prefix):
        allowed = "+".join(in_order(caller.scopes))
        names = "" if caller.prefix is None else f", and a prefix that starts with {caller.prefix!r}"
        text = f"An access token has no more rights than its maker: you may give {allowed}{names}."
        raise Problem("forbidden", text)


def _check_inheritance(state: State, caller: Caller, name: str) -> None:
    """Raise if a maker that is confined to a prefix would inherit by a name what may lie outside of it."""
    index = state.index
    if caller.prefix is None or name in state.tokens:
        return
    if name in index.lease_count or name in index.sessions_by_principal or name in index.tickets_by_principal:
        raise Problem(
            "conflict",
            f"An earlier access token called {name!r} has left claims, sessions or places in line, and a new one would"
            " have them. Take another name, or let an operator without a prefix make it. To replace one, rotate it.",
        )


def _new_token(api: ApiService, context: RequestContext) -> tuple[str, str]:
    if context.key is None:
        return "", new_token()
    salt = new_secret(SALT_BYTES).hex()
    return salt, api.auth.key.token_for(context.caller.principal, context.key, salt)


def _expires_wall_ms(api: ApiService, seconds: int | None) -> int | None:
    """Return the end of a lifetime that begins now: by the time of the turn, as `created_at` is."""
    if seconds is None:
        return None
    now = api.engine.tick()
    return (api.engine.clock.wall_ms() if now is None else now.wall_ms) + seconds * 1000


def _render_created(token: str, status: int) -> Renderer:
    """Return what shows a token that was made just now, or by an earlier try with the same key."""

    def made(api: ApiService, context: RequestContext, outcome: TokenMade, _now: Instant) -> ResponseParts:
        made, shown = outcome.token, token
        if digest(shown) != made.digest and context.key is not None:
            shown = api.auth.key.token_for(context.caller.principal, context.key, made.salt)
        if digest(shown) != made.digest:
            # What the key made is no more, and another has its name: that one is not the caller's to see.
            return context.refusal(rendering.problem(TokenUnknown()), context.request)
        reply = TokenMadeReply(
            made.name, shown, list(made.scopes), made.prefix, _expiry(made), rfc3339(made.made_wall_ms)
        )
        return status, encode(reply), ()

    return made


def _render_name_taken(api: ApiService, context: RequestContext, outcome: TokenExists, _now: Instant) -> ResponseParts:
    """Names are one space for all. Who may not see the token is not told to rotate it."""
    existing = api.engine.state.tokens.get(context.body.name)
    problem = rendering.problem(outcome)
    if existing is None or not context.caller.may_grant(existing.scopes, existing.prefix):
        problem = Problem(
            problem.code, "This name is taken, by an access token that is not yours to see: take another name."
        )
    return context.refusal(problem, context.request)


def list_(api: ApiService, context: RequestContext) -> None:
    selection = visible_tokens(api, context.caller, context.query)

    async def respond() -> ResponseParts:
        await paging.in_slices(api.engine, selection.take_slice)
        return 200, encode(TokensReply(selection.page.items, selection.next_after or UNSET)), ()

    api.answer_slowly(context, respond)


def visible_tokens(api: ApiService, caller: Caller, query: dict[str, str]) -> paging.Selection:
    may_grant = caller.may_grant
    static = {
        caller.principal: caller
        for caller in api.auth.static.callers.values()
        if may_grant(caller.scopes, caller.prefix)
    }

    def names(state: State) -> Iterator[str]:
        yield from static
        for token in state.tokens.values():
            if token.name not in static and may_grant(token.scopes, token.prefix):
                yield token.name

    def show(name: str, state: State, _now: Instant) -> TokenReply | None:
        token = state.tokens.get(name)
        if name in static:
            shown = TokenReply(name, sorted(static[name].scopes), static[name].prefix, None, None, "static")
        elif token is not None and may_grant(token.scopes, token.prefix):
            made_at = rfc3339(token.made_wall_ms)
            shown = TokenReply(name, list(token.scopes), token.prefix, _expiry(token), made_at, "made")
        else:
            return None
        used_wall_ms = api.token_uses.last_of(name, state)
        shown.last_used = None if used_wall_ms is None else rfc3339(used_wall_ms)
        return shown

    return paging.Selection(query, names, show)


def _expiry(token: AccessToken) -> str | None:
    return None if token.expires_wall_ms is None else rfc3339(token.expires_wall_ms)


def read_keep_sessions(fields: dict[str, str]) -> bool:
    text = fields.get("keep_sessions", "false")
    if text not in _YES_OR_NO:
        raise Problem("invalid_input", "keep_sessions is true or false.")
    return _YES_OR_NO[text]


def revoke(api: ApiService, context: RequestContext) -> None:
    hidden = is_hidden(api, context.caller, context.item)
    if not hidden:
        check_may_end(api, context.caller, context.item)
    command = RevokeToken(
        principal=context.caller.principal,
        name=context.item,
        keep_sessions=context.query,
        key=context.key,
        fingerprint=context.fingerprint,
        alone=hidden,
    )
    api.submit(context, command, {TokenGone: _revoked})


def _revoked(api: ApiService, context: RequestContext, outcome: TokenGone, now: Instant) -> ResponseParts:
    record_ended_token(api, context, now)
    return no_content(api, context, outcome, now)


def record_ended_token(api: ApiService, context: RequestContext, now: Instant) -> None:
    """Keep for a while that a token was revoked: operators ask for that, and no list has it any more."""
    now_ms = api.engine.clock.monotonic_ms()
    api.ended_tokens.note(context.item, context.caller.principal, now_ms=now_ms, wall_ms=now.wall_ms)


def rotate(api: ApiService, context: RequestContext) -> None:
    body: RotateBody = context.body
    _check_expiry(body.expires_in_seconds)
    if body.never_expires and body.expires_in_seconds is not None:
        raise Problem(
            "invalid_input", "An access token that never expires has no expires_in_seconds: send one of the two."
        )
    check_may_end(api, context.caller, context.item)
    salt, token = _new_token(api, context)
    command = RotateToken(
        principal=context.caller.principal,
        name=context.item,
        digest=digest(token),
        expires_wall_ms=_expires_wall_ms(api, body.expires_in_seconds),
        salt=salt,
        keep_sessions=body.keep_sessions,
        keep_lifetime=body.expires_in_seconds is None and not body.never_expires,
        key=context.key,
        fingerprint=context.fingerprint,
    )
    api.submit(context, command, {TokenMade: _render_created(token, 200)})


def is_hidden(api: ApiService, caller: Caller, name: str) -> bool:
    """Tell whether there is a made token behind a static one of the same name, and both are the caller's to end."""
    static, token = api.auth.static.of(name), api.engine.state.tokens.get(name)
    if static is None or token is None:
        return False
    return all(caller.may_grant(each.scopes, each.prefix) for each in (static, token))


def check_may_end(api: ApiService, caller: Caller, name: str) -> None:
    """Raise unless this token is the caller's to end. Nothing is awaited until the decision, so it holds for that."""
    static = api.auth.static.of(name)
    state = api.engine.state
    token = state.tokens.get(name)
    rights = token if static is None else static
    if rights is not None and not caller.may_grant(rights.scopes, rights.prefix):
        raise rendering.problem(TokenUnknown())
    if static is not None:
        raise Problem(
            "conflict", f"{name!r} is a static access token: take it out of the server's settings and restart."
        )
    if caller.prefix is not None and _has_outside(state, name, caller.prefix):
        raise Problem(
            "conflict",
            f"Sessions or places in line of {name!r} reach beyond {caller.prefix!r}:"
            " an operator without a prefix must do this.",
        )


def _has_outside(state: State, principal: str, prefix: str) -> bool:
    """Tell whether something that ends with a token, or goes over to the next one, lies outside a prefix."""
    index = state.index
    claimed = (
        name
        for session_id in index.sessions_by_principal.get(principal, ())
        for name in index.names_by_session.get(session_id, ())
    )
    awaited = (
        name for ticket_id in index.tickets_by_principal.get(principal, ()) for name in state.tickets[ticket_id].names
    )
    return any(not name.startswith(prefix) for names in (claimed, awaited) for name in names)
