"""Asking, and what operators do, as flows: owners, listings, history, why, revoke, reopen, tokens, sessions."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.client.flows.effects import NEW_KEY, Flow, Policy, Send, ask, insist, said
from holdfast.client.values import records
from holdfast.client.values.paths import job_path, session_path, token_path, with_query
from holdfast.client.values.records import Happened, JobOwner, JobStatus, SessionInfo
from holdfast.wire.messages import (
    CheckBody,
    CheckReply,
    HistoryReply,
    LockReply,
    LocksReply,
    ReopenBody,
    RevokeBody,
    SessionsReply,
    StatusReply,
    TokenBody,
    TokenMadeReply,
    TokenReply,
    TokensReply,
    WhyReply,
)

PAGE = 1_000


def status(job: str, policy: Policy) -> Flow[JobStatus]:
    """Say all that is known of a job."""
    reply = yield from ask(_get(job_path(job), policy), policy, LockReply)
    return records.status_of(reply)


def jobs(
    policy: Policy,
    *,
    prefix: str | None = None,
    owner: str | None = None,
    session: str | None = None,
    limit: int | None = None,
) -> Flow[list[JobOwner]]:
    """List the claimed jobs in order of name, page by page; the first `limit` of them, if that is given."""
    found: list[JobOwner] = []
    after: str | None = None
    while limit is None or len(found) < limit:
        page_limit = PAGE if limit is None else min(limit - len(found), PAGE)
        path = with_query("/locks", prefix=prefix, owner=owner, session=session, limit=page_limit, after=after)
        page = yield from ask(_get(path, policy), policy, LocksReply)
        found += [each for each in map(records.owner_of, page.locks) if each is not None]
        after = page.next_after
        if after is None:
            break
    return found


def history(
    job: str,
    policy: Policy,
    *,
    limit: int,
    owner: str | None = None,
    since: str | None = None,
    until: str | None = None,
) -> Flow[list[Happened]]:
    """Return what happened to a job, newest first."""
    found: list[Happened] = []
    before: int | None = None
    while len(found) < limit:
        page_limit = min(limit - len(found), PAGE)
        path = with_query(
            job_path(job, "history"), limit=page_limit, before=before, owner=owner, since=since, until=until
        )
        page = yield from ask(_get(path, policy), policy, HistoryReply)
        found += map(records.happened, page.history)
        before = page.next_before
        if before is None:
            break
    return found


def why(job: str, policy: Policy) -> Flow[WhyReply]:
    """Follow the chain of waits from a job."""
    return (yield from ask(_get(job_path(job, "why"), policy), policy, WhyReply))


def check(job: str, token: int, policy: Policy) -> Flow[bool]:
    """Tell whether a fencing token is that of the live claim."""
    request = Send("POST", job_path(job, "check"), CheckBody(fencing_token=token), None, policy.answer_seconds)
    reply = yield from ask(request, policy, CheckReply)
    return reply.current


def revoke(job: str, reason: str, policy: Policy) -> Flow[None]:
    """End somebody's claim."""
    yield from _change("POST", job_path(job, "revoke"), RevokeBody(reason=reason), policy)


def reopen(job: str, reason: str | None, policy: Policy) -> Flow[None]:
    """Let finished work be claimed again."""
    yield from _change("POST", job_path(job, "reopen"), ReopenBody(reason=reason), policy)


def sessions(policy: Policy) -> Flow[list[SessionInfo]]:
    """List the caller's sessions."""
    reply = yield from ask(_get("/sessions", policy), policy, SessionsReply)
    return [records.session(each) for each in reply.sessions]


def end_session(session_id: str, policy: Policy) -> Flow[None]:
    """End a session and all that is bound to it, even if interrupted."""
    request = Send("DELETE", session_path(session_id), None, (yield NEW_KEY), policy.answer_seconds)
    heard = yield from insist(request, policy)
    said(heard.answer, policy, request, object)


def server_status(policy: Policy) -> Flow[StatusReply]:
    """Ask the server how it is."""
    return (yield from ask(_get("/status", policy), policy, StatusReply))


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
    """List the tokens, without the tokens."""
    reply = yield from ask(_get("/tokens", policy), policy, TokensReply)
    return reply.tokens


def revoke_token(name: str, policy: Policy) -> Flow[None]:
    """Shut a token out."""
    yield from _change("DELETE", token_path(name), None, policy)


def _get(path: str, policy: Policy) -> Send:
    return Send("GET", path, answer_seconds=policy.answer_seconds)


def _change(method: str, path: str, body: object, policy: Policy) -> Flow[None]:
    yield from ask(Send(method, path, body, (yield NEW_KEY), policy.answer_seconds), policy, object)
