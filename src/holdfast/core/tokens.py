"""Bearer tokens, known only by their digests.

A principal is the name of a token, and outlives it. What becomes of what it has when the token ends (S5):

    what it has                      revoke, rotate     with `keep_sessions`
    ------------------------------   ----------------   -------------------------------------------
    plain leases                     live on            live on
    sessions, and what is bound      end                live on, for the next token of that name
    unbound tickets                  end                end
    its waiters                      answered           answered; bound tickets stay, and are absent

Either way the secrets of its sessions are dead: they are derived from the digest of the token, among others.
"""

from __future__ import annotations

from holdfast.core import outcomes
from holdfast.core.commands import CreateToken, RecordUses, RevokeToken, RotateToken
from holdfast.core.decision import Decision, accept, left, recall, refuse
from holdfast.core.events import SessionEnded, TokenCreated, TokenEnded, TokenRevoked, TokensUsed
from holdfast.core.outcomes import Answer, TokenGone, TokenMade, UsesRecorded
from holdfast.core.sessions import end_leases_of, end_tickets_of
from holdfast.core.state import State
from holdfast.core.usage import half_of
from holdfast.core.values import AccessToken, IdempotencyRecord, Instant, Limits


def create(state: State, command: CreateToken, now: Instant, limits: Limits) -> Decision:
    if (memo := recall(state, command, "token")) is not None:
        return _made_before(state, memo) if isinstance(memo, IdempotencyRecord) else refuse(memo)
    if command.name in state.tokens:
        return refuse(outcomes.TokenExists())
    if len(state.tokens) >= limits.tokens_max:
        return refuse(outcomes.TooManyTokens(limits.tokens_max))
    half = half_of(limits.tokens_max)
    if command.within is not None and (crowded := state.index.crowded_prefix(command.within, half)) is not None:
        return refuse(
            outcomes.QuotaExceeded(
                f"There are {half} tokens within {crowded!r}, half of tokens_max, and an operator with a"
                " prefix makes no more: revoke some, or let an operator without a prefix make it"
            )
        )
    token = _token(command, command.scopes, command.prefix, command.expires_wall_ms, now)
    return Decision((TokenCreated(token, command.key, command.fingerprint),), TokenMade(token))


def _made_before(state: State, memo: IdempotencyRecord) -> Decision:
    token = state.tokens.get(memo.made)
    return refuse(outcomes.TokenUnknown()) if token is None else accept(TokenMade(token))


def revoke(state: State, command: RevokeToken, now: Instant) -> Decision:
    if (memo := recall(state, command, "revoke_token")) is not None:
        return accept(TokenGone()) if isinstance(memo, IdempotencyRecord) else refuse(memo)
    if command.name not in state.tokens:
        return refuse(outcomes.TokenUnknown())
    if command.alone:
        event = TokenRevoked(command.name, command.principal, command.key, command.fingerprint)
        return Decision((event,), TokenGone())
    return _end(state, command, now, None, TokenGone())


def rotate(state: State, command: RotateToken, now: Instant) -> Decision:
    if (memo := recall(state, command, "rotate_token")) is not None:
        return _made_before(state, memo) if isinstance(memo, IdempotencyRecord) else refuse(memo)
    if (before := state.tokens.get(command.name)) is None:
        return refuse(outcomes.TokenUnknown())
    expires_wall_ms = command.expires_wall_ms
    if command.keep_lifetime and before.expires_wall_ms is not None:
        expires_wall_ms = now.wall_ms + before.expires_wall_ms - before.made_wall_ms
    elif command.keep_lifetime:
        expires_wall_ms = None
    token = _token(command, before.scopes, before.prefix, expires_wall_ms, now)
    return _end(state, command, now, token, TokenMade(token))


def _token(
    command: CreateToken | RotateToken,
    scopes: tuple[str, ...],
    prefix: str | None,
    expires_wall_ms: int | None,
    now: Instant,
) -> AccessToken:
    name, digest, maker, salt = command.name, command.digest, command.principal, command.salt
    return AccessToken(name, digest, scopes, prefix, expires_wall_ms, now.wall_ms, maker, salt)


def _end(
    state: State, command: RevokeToken | RotateToken, now: Instant, successor: AccessToken | None, answer: Answer
) -> Decision:
    """End a token with what is its own, in one record, and answer all that wait with it."""
    name, by, keeps = command.name, command.principal, command.keep_sessions
    tickets = [state.tickets[each] for each in state.index.tickets_by_principal.get(name, ())]
    sessions = [
        SessionEnded(
            session_id,
            "revoked",
            end_leases_of(state, session_id, now.ms, by),
            by,
            left=end_tickets_of(state, session_id),
            principal=name,
        )
        for session_id in (() if keeps else state.index.sessions_by_principal.get(name, ()))
    ]
    unbound = tuple(left(ticket, "token_ended") for ticket in tickets if not ticket.terms.bound)
    event = TokenEnded(name, by, tuple(sessions), unbound, keeps, successor, command.key, command.fingerprint)
    return Decision((event,), answer, tuple((each.ticket_id, outcomes.NotAllowedAnyMore()) for each in tickets))


def record_uses(state: State, command: RecordUses) -> Decision:
    news = tuple((name, wall_ms) for name, wall_ms in command.uses if state.last_used.get(name, 0) != wall_ms)
    return Decision((TokensUsed(news),) if news else (), UsesRecorded())
