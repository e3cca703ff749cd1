"""Bearer tokens: let in and shut out by records like everything else, known only by their digests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core import refusals
from holdfast.core.answers import TokenGone, TokenMade
from holdfast.core.decision import Decision, accept, recall, refuse
from holdfast.core.events import TokenCreated, TokenRevoked
from holdfast.core.values import AccessToken, Memo

if TYPE_CHECKING:
    from holdfast.core.commands import CreateToken, RevokeToken
    from holdfast.core.state import State
    from holdfast.core.values import Limits, Moment


def create(state: State, command: CreateToken, now: Moment, limits: Limits) -> Decision:
    """Let a token in."""
    memo = recall(state, command, "token")
    if memo is not None:
        return _created_before(state, memo) if isinstance(memo, Memo) else refuse(memo)
    if command.name in state.tokens:
        return refuse(refusals.TokenExists())
    if len(state.tokens) >= limits.tokens_max:
        return refuse(refusals.TooManyTokens(limits.tokens_max))
    token = AccessToken(
        command.name,
        command.digest,
        command.scopes,
        command.prefix,
        command.expires_wall_ms,
        now.wall_ms,
        command.principal,
    )
    return Decision((TokenCreated(token, command.key, command.fingerprint),), TokenMade(token))


def _created_before(state: State, memo: Memo) -> Decision:
    token = state.tokens.get(memo.made)
    return refuse(refusals.TokenUnknown()) if token is None else accept(TokenMade(token))


def revoke(state: State, command: RevokeToken) -> Decision:
    """Shut a token out. Its leases live on: they belong to the principal and end in their own time."""
    memo = recall(state, command, "revoke_token")
    if memo is not None:
        return accept(TokenGone()) if isinstance(memo, Memo) else refuse(memo)
    if command.name not in state.tokens:
        return refuse(refusals.TokenUnknown())
    event = TokenRevoked(command.name, command.principal, command.key, command.fingerprint)
    return Decision((event,), TokenGone())
