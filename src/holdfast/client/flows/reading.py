"""Asking, as flows: owners, listings, history, why, and how the server is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from holdfast.client.flows.effects import Flow, Policy, Send
from holdfast.client.flows.exchange import ask, get
from holdfast.client.values import records
from holdfast.client.values.arguments import check_limit, session_name
from holdfast.client.values.moments import JobsThen, JobThen, job_then, moment_text
from holdfast.client.values.paths import job_path, with_query
from holdfast.client.values.records import Happened, JobOwner, JobStatus
from holdfast.errors import ServerError
from holdfast.wire.replies import CheckReply, HistoryReply, LockReply, LocksReply, LocksThenReply, StatusReply, WhyReply
from holdfast.wire.requests import CheckBody

PAGE = 1_000
PAGES_MAX = 1_000
"""How many pages of a history are asked for in one call: each may have cost the server a search of some megabytes."""


def status(job: str, policy: Policy) -> Flow[JobStatus]:
    """Say all that is known of a job."""
    reply = yield from ask(get(job_path(job), policy), policy, LockReply)
    return records.status_of(reply)


def jobs(
    policy: Policy,
    *,
    prefix: str | None = None,
    owner: str | None = None,
    session: str | None = None,
    labels: Mapping[str, str] | None = None,
    limit: int | None = None,
) -> Flow[list[JobOwner]]:
    """List the claimed jobs in order of name, page by page; the first `limit` of them, if that is given."""
    if limit is not None:
        check_limit(limit)
    if session is not None:
        session_name(session)
    found: list[JobOwner] = []
    after: str | None = None
    while limit is None or len(found) < limit:
        page_limit = PAGE if limit is None else min(limit - len(found), PAGE)
        path = with_query("/locks", labels, prefix=prefix, owner=owner, session=session, limit=page_limit, after=after)
        page = yield from ask(get(path, policy), policy, LocksReply)
        found += [each for each in map(records.owner_of, page.locks) if each is not None]
        after = page.next_after
        if after is None:
            break
    return found


def jobs_then(
    at: datetime | str,
    policy: Policy,
    *,
    prefix: str | None = None,
    owner: str | None = None,
    session: str | None = None,
    labels: Mapping[str, str] | None = None,
    limit: int | None = None,
) -> Flow[JobsThen]:
    """List who had what at a moment, page by page. All pages are of the record that the first was made of."""
    if limit is not None:
        check_limit(limit)
    if session is not None:
        session_name(session)
    moment = moment_text(at)
    found: list[JobThen] = []
    asked: dict[str, str | int | None] = {"prefix": prefix, "owner": owner, "session": session, "at": moment}
    while True:
        page_limit = PAGE if limit is None else min(limit - len(found), PAGE)
        path = with_query("/locks", labels, limit=page_limit, **asked)
        page = yield from ask(get(path, policy), policy, LocksThenReply)
        found += map(job_then, page.locks)
        if page.next_after is None or (limit is not None and len(found) >= limit):
            return JobsThen(None if page.at is None else records.time_of(page.at), page.record, found)
        asked |= {"record": page.record or None, "after": page.next_after}


def history(
    job: str,
    policy: Policy,
    *,
    limit: int,
    owner: str | None = None,
    since: str | None = None,
    until: str | None = None,
) -> Flow[list[Happened]]:
    """Return what happened to a job, newest first, page by page. Raises `ServerError` if there is no end to them."""
    check_limit(limit)
    found: list[Happened] = []
    before: int | None = None
    offset: int | None = None
    pages = 0
    while len(found) < limit:
        if (pages := pages + 1) > PAGES_MAX:
            raise ServerError(f"{policy.url} has more history than {PAGES_MAX} pages; narrow it with since and until")
        page_limit = min(limit - len(found), PAGE)
        path = with_query(
            job_path(job, "history"),
            limit=page_limit,
            before=before,
            offset=offset,
            owner=owner,
            since=since,
            until=until,
        )
        page = yield from ask(get(path, policy), policy, HistoryReply)
        found += map(records.happened, page.history)
        before, offset = page.next_before, page.next_offset or None
        if before is None:
            break
    return found


def why(job: str, policy: Policy) -> Flow[WhyReply]:
    """Follow the chain of waits from a job."""
    return (yield from ask(get(job_path(job, "why"), policy), policy, WhyReply))


def check(job: str, token: int, policy: Policy) -> Flow[bool]:
    """Tell whether a fencing token is that of the live claim."""
    request = Send("POST", job_path(job, "check"), CheckBody(fencing_token=token), None, policy.answer_seconds)
    reply = yield from ask(request, policy, CheckReply)
    return reply.current


def server_status(policy: Policy) -> Flow[StatusReply]:
    """Ask the server how it is."""
    return (yield from ask(get("/status", policy), policy, StatusReply))
