"""What operators do, as flows: revoke, reopen, and the tokens."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from holdfast.client.flows.effects import NEW_KEY, Flow, Policy, Send
from holdfast.client.flows.exchange import ask, get
from holdfast.client.values.paths import job_path, token_path, with_query
from holdfast.wire.replies import TokenMadeReply, TokenReply, TokensReply
from holdfast.wire.requests import ReopenBody, RevokeBody, RotateBody, TokenBody


def revoke(job: str, reason: str, policy: Policy) -> Flow[None]:
    """End somebody's claim."""
    yield from _change("POST", job_path(job, "revoke"), RevokeBody(reason=reason), policy)


def reopen(job: str, reason: str | None, policy: Policy) -> Flow[None]:
    """Let finished work be claimed again."""
    yield from _change("POST", job_path(job, "reopen"), ReopenBody(reason=reason), policy)


def create_token(
    name: str,
    policy: Policy,
    *,
    scopes: Sequence[str] | None = None,
    prefix: str | None = None,
    expires_in_seconds: int | None = None,
) -> Flow[TokenMadeReply]:
    """Make a token; the answer is the only one that ever shows it."""
    body = TokenBody(
        name=name,
        scopes=None if scopes is None else list(scopes),  # type: ignore[arg-type]
        prefix=prefix,
        expires_in_seconds=expires_in_seconds,
    )
    request = Send("POST", "/tokens", body, (yield NEW_KEY), policy.answer_seconds)
    return (yield from ask(request, policy, TokenMadeReply))


def list_tokens(policy: Policy) -> Flow[list[TokenReply]]:
    """List the tokens, without the tokens, page by page."""
    found: list[TokenReply] = []
    after: str | None = None
    while True:
        reply = yield from ask(get(with_query("/tokens", after=after), policy), policy, TokensReply)
        found += reply.tokens
        if reply.next_after is UNSET:
            return found
        after = reply.next_after


def revoke_token(name: str, policy: Policy, *, keep_sessions: bool = False) -> Flow[None]:
    """Shut a token out."""
    query = "?keep_sessions=true" if keep_sessions else ""
    yield from _change("DELETE", token_path(name) + query, None, policy)


def rotate_token(
    name: str,
    policy: Policy,
    *,
    keep_sessions: bool = False,
    expires_in_seconds: int | None = None,
    never_expires: bool = False,
) -> Flow[TokenMadeReply]:
    """Let another token take the place of one; the answer is the only one that ever shows it."""
    body = RotateBody(keep_sessions=keep_sessions, expires_in_seconds=expires_in_seconds, never_expires=never_expires)
    request = Send("POST", f"{token_path(name)}/rotate", body, (yield NEW_KEY), policy.answer_seconds)
    return (yield from ask(request, policy, TokenMadeReply))


def _change(method: str, path: str, body: object, policy: Policy) -> Flow[None]:
    yield from ask(Send(method, path, body, (yield NEW_KEY), policy.answer_seconds), policy, object)
