"""The token routes, for operators: make, list, revoke. A token is shown once, when it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.answers import TokenGone, TokenMade
from holdfast.core.commands import CreateToken, RevokeToken
from holdfast.server.access.auth import SCOPES, check_token_name
from holdfast.server.access.secrets import digest, new_token
from holdfast.server.render import encode, no_content
from holdfast.server.times import rfc3339
from holdfast.wire.problems import Problem
from holdfast.wire.replies import TokenMadeReply, TokenReply, TokensReply

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.core.values import AccessToken, Moment
    from holdfast.server.api import Api
    from holdfast.server.operations.call import Call
    from holdfast.server.render import Answered
    from holdfast.wire.requests import TokenBody

PREFIX_BYTES_MAX = 256
_OK, _CREATED, _NO_CONTENT = 200, 201, 204


def create(api: Api, call: Call) -> None:
    """POST /tokens."""
    body: TokenBody = call.body
    _check(api, body)
    principal = call.caller.principal
    token = new_token() if call.key is None else api.auth.key.token_for(principal, call.key)
    lives_ms = None if body.expires_in_seconds is None else body.expires_in_seconds * 1000
    scopes = frozenset(body.scopes or ("read", "claim"))
    command = CreateToken(
        principal=principal,
        name=body.name,
        digest=digest(token),
        scopes=tuple(scope for scope in SCOPES if scope in scopes),
        prefix=body.prefix,
        expires_wall_ms=None if lives_ms is None else api.engine.clock.wall_ms() + lives_ms,
        key=call.key,
        fingerprint=call.fingerprint,
    )

    def made(_api: Api, _call: Call, outcome: TokenMade, _now: Moment) -> Answered:
        made = outcome.token
        shown = TokenMadeReply(
            made.name, token, list(made.scopes), made.prefix, _expiry(made), rfc3339(made.made_wall_ms)
        )
        return _CREATED, encode(shown), ()

    api.submit(call, command, {TokenMade: made})


def list_(api: Api, call: Call) -> None:
    """GET /tokens."""
    static = [
        TokenReply(caller.principal, sorted(caller.scopes), caller.prefix, None, None, "static")
        for caller in api.auth.static.callers.values()
    ]

    def view(state: State, _: Moment) -> Answered:
        made = [
            TokenReply(
                token.name, list(token.scopes), token.prefix, _expiry(token), rfc3339(token.made_wall_ms), "made"
            )
            for token in state.tokens.values()
        ]
        tokens = sorted(made + static, key=lambda token: token.name)
        return _OK, encode(TokensReply(tokens)), ()

    api.read(call, view)


def revoke(api: Api, call: Call) -> None:
    """DELETE /tokens/{name}."""
    name = call.item
    if api.auth.static.of(name) is not None:
        raise Problem("conflict", f"{name!r} is a static token: take it out of the server's settings and restart.")
    principal = call.caller.principal
    command = RevokeToken(principal=principal, name=name, key=call.key, fingerprint=call.fingerprint)
    api.submit(call, command, {TokenGone: no_content})


def _check(api: Api, body: TokenBody) -> None:
    check_token_name(body.name)
    if api.auth.static.of(body.name) is not None:
        raise Problem("conflict", f"A static token is called {body.name!r}: take another name.")
    if body.scopes is not None and not body.scopes:
        raise Problem("invalid_input", f"scopes is a list of some of {', '.join(SCOPES)}.")
    if body.prefix is not None and not 0 < len(body.prefix.encode()) <= PREFIX_BYTES_MAX:
        raise Problem("invalid_input", f"prefix has 1 to {PREFIX_BYTES_MAX} bytes.")
    if body.expires_in_seconds == 0:
        raise Problem("invalid_input", "expires_in_seconds is 1 or more.")


def _expiry(token: AccessToken) -> str | None:
    return None if token.expires_wall_ms is None else rfc3339(token.expires_wall_ms)
