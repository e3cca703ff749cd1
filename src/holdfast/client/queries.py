"""The operations of a client that hold nothing: claims and sessions by their id, queries, and administration."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import UNSET

from holdfast.client import claim_flows, lease_flows, records, requests
from holdfast.client.effects import NEW_KEY, Cleanup, Flow, Policy, Send, acquisition, operation
from holdfast.client.records import (
    JobClaim,
    JobEvent,
    JobOwner,
    JobStatus,
    Metadata,
    OpenedSession,
    PastJobOwners,
    SessionInfo,
)
from holdfast.client.requests import check_limit, integer_seconds, job_path, session_name, token_path, with_query
from holdfast.client.retry import ask, get
from holdfast.errors import ServerError
from holdfast.wire import replies
from holdfast.wire.replies import StatusReply, TokenMadeReply, TokenReply, WhyReply
from holdfast.wire.requests import CheckBody, ReopenBody, RevokeBody, RotateBody, TokenBody

TTL_SECONDS = 60.0  # For sessions.
HISTORY_LIMIT = 100
PAGE = 1_000
PAGES_MAX = 1_000  # Pages of a history per call: each may cost the server a search of some megabytes.


class Operations:
    """The operations of a client that hold nothing. Each is a flow that both clients run."""

    _policy: Policy

    @abstractmethod
    def _worker(self) -> object: ...

    @operation
    def heartbeat_job(
        self,
        job_id: str,
        lease_id: str,
        *,
        ttl: float | None = None,
        note: str | None = None,
        metadata: Metadata = None,
    ) -> Flow[float]:
        """Renew a claim for its own ttl, or another; return its remaining seconds. Raises `LeaseLost`."""
        reply, _ = yield from lease_flows.renew(job_id, lease_id, self._policy, ttl=ttl, note=note, metadata=metadata)
        return reply.expires_in_ms / 1_000

    @operation
    def release_job(
        self,
        job_id: str,
        lease_id: str,
        *,
        outcome: str | None = None,
        result: str | None = None,
        remember: float | None = None,
    ) -> Flow[None]:
        """Release a claim; idempotent. Raises `LeaseLost` if it had ended in another way."""
        owner = requests.owner_of(self._worker())
        how: dict[str, Any] = {"outcome": outcome, "result": result, "remember": remember}
        return lease_flows.release(job_id, lease_id, self._policy, owner=owner, **how)

    @operation
    def transfer_job(
        self, job_id: str, lease_id: str, to_owner: str, *, ttl: float | None = None, reason: str | None = None
    ) -> Flow[JobClaim]:
        """Hand a claim to another owner without a gap. Raises `LeaseLost`."""
        owner = requests.owner_of(self._worker())
        return lease_flows.transfer(job_id, lease_id, to_owner, self._policy, owner=owner, ttl=ttl, reason=reason)

    @operation
    def claim_secret(self, job_id: str, lease_id: str) -> Flow[str]:
        """Return a token for a command that works on a claim: it can only query, renew and release that claim.

        It becomes invalid with the claim and with the token of this client. Raises `LeaseLost`.
        """
        return lease_flows.claim_secret(job_id, lease_id, self._policy)

    @acquisition
    def open_session(
        self, cleanup: Cleanup, name: str | None = None, *, ttl: float = TTL_SECONDS, metadata: Metadata = None
    ) -> Flow[OpenedSession]:
        """Open a session that the caller keeps alive: any call with its secret does.

        Claims made with `session=` its id end with it. `end_session` ends it.
        """
        seconds = integer_seconds(ttl)
        reply, _ = yield from lease_flows.open_session(
            self._policy, cleanup, name=name, ttl_seconds=seconds, metadata=metadata
        )
        return records.opened_session(reply, self._policy.url)

    @operation
    def sessions(self) -> Flow[list[SessionInfo]]:
        """List the sessions of this client's token."""
        found = yield from _every_page("/sessions", self._policy, replies.SessionsReply, "sessions")
        return list(map(records.session, found))

    @operation
    def end_session(self, session_id: str) -> Flow[None]:
        """End a session and all that is bound to it."""
        return lease_flows.end_session(session_id, self._policy)

    @operation
    def get_job_owner(self, job_id: str) -> Flow[JobOwner | None]:
        """Return the owner of a job, since when, and when it last renewed; None if the job is free."""
        return (yield from claim_flows.status(job_id, self._policy)).owner

    @operation
    def job(self, job_id: str) -> Flow[JobStatus]:
        """Return the state of a job."""
        return claim_flows.status(job_id, self._policy)

    @operation
    def list_claimed_jobs(
        self,
        prefix: str | None = None,
        *,
        owner: str | None = None,
        session: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> Flow[list[JobOwner]]:
        """List the claimed jobs, ordered by name: all of them, or the first `limit`."""
        asked = _listing(prefix, owner, session, limit)
        found: list[JobOwner] = []
        while limit is None or len(found) < limit:
            path = with_query("/locks", records.plain_labels(labels), **asked, limit=_page_limit(limit, found))
            page = yield from ask(get(path, self._policy), self._policy, replies.LocksReply)
            found += [each for each in map(records.owner_of, page.locks) if each is not None]
            asked["after"] = page.next_after
            if page.next_after is None:
                break
        return found

    @operation
    def list_claimed_jobs_at(
        self,
        at: datetime | str,
        prefix: str | None = None,
        *,
        owner: str | None = None,
        session: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> Flow[PastJobOwners]:
        """List the owners at a time in the kept history, ordered by job: all of them, or the first `limit`.

        `at` is a `datetime`, in local time if it has no zone, or a text in RFC 3339. Raises `Refused` for a time in the
        future, and for one whose history is no longer kept.
        """
        asked = {"at": records.time_text(at)} | _listing(prefix, owner, session, limit)
        found: list[records.PastJobOwner] = []
        while True:
            path = with_query("/locks", records.plain_labels(labels), **asked, limit=_page_limit(limit, found))
            page = yield from ask(get(path, self._policy), self._policy, replies.PastLocksReply)
            found += map(records.past_job_owner, page.locks)
            if page.next_after is None or (limit is not None and len(found) >= limit):
                return PastJobOwners(None if page.at is None else records.time_of(page.at), page.record, found)
            # Every page is of the record of the first one.
            asked |= {"record": page.record or None, "after": page.next_after}

    @operation
    def history(
        self,
        job_id: str,
        *,
        limit: int = HISTORY_LIMIT,
        owner: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> Flow[list[JobEvent]]:
        """Return the events of a job, newest first. `since` and `until` are times in RFC 3339."""
        check_limit(limit)
        asked: dict[str, Any] = {"owner": owner, "since": since, "until": until}
        found: list[JobEvent] = []
        for _ in range(PAGES_MAX):
            path = with_query(job_path(job_id, "history"), **asked, limit=_page_limit(limit, found))
            page = yield from ask(get(path, self._policy), self._policy, replies.HistoryReply)
            found += map(records.job_event, page.history)
            if page.next_before is None or len(found) >= limit:
                return found
            asked |= {"before": page.next_before, "offset": page.next_offset or None}
        url = self._policy.url
        raise ServerError(f"{url} has more history than {PAGES_MAX} pages; narrow it with since and until")

    @operation
    def why(self, job_id: str) -> Flow[WhyReply]:
        """Explain why a job is not available: the chain from it to the owner at its end."""
        return ask(get(job_path(job_id, "why"), self._policy), self._policy, WhyReply)

    @operation
    def check(self, job_id: str, token: int) -> Flow[bool]:
        """Tell whether a fencing token is that of the live claim."""
        body = CheckBody(fencing_token=token)
        request = Send("POST", job_path(job_id, "check"), body, answer_seconds=self._policy.answer_seconds)
        return (yield from ask(request, self._policy, replies.CheckReply)).current

    @operation
    def server_status(self) -> Flow[StatusReply]:
        """Return the server's status."""
        return ask(get("/status", self._policy), self._policy, StatusReply)

    @operation
    def revoke(self, job_id: str, reason: str) -> Flow[None]:
        """End a claim; its owner is told by whom and why. Needs the scope admin."""
        return self._change("POST", job_path(job_id, "revoke"), RevokeBody(reason=reason))

    @operation
    def reopen(self, job_id: str, reason: str | None = None) -> Flow[None]:
        """Let finished work be claimed again. Needs the scope admin."""
        return self._change("POST", job_path(job_id, "reopen"), ReopenBody(reason=reason))

    @operation
    def create_token(
        self,
        name: str,
        *,
        scopes: Sequence[str] | None = None,
        prefix: str | None = None,
        expires_in_seconds: int | None = None,
    ) -> Flow[TokenMadeReply]:
        """Create a token, which is shown only this once. Needs the scope admin."""
        body = TokenBody(
            name=name,
            scopes=None if scopes is None else list(scopes),  # type: ignore[arg-type]
            prefix=prefix,
            expires_in_seconds=expires_in_seconds,
        )
        return self._change("POST", "/tokens", body, TokenMadeReply)

    @operation
    def list_tokens(self) -> Flow[list[TokenReply]]:
        """List the tokens, without their secrets. Needs the scope admin."""
        return _every_page("/tokens", self._policy, replies.TokensReply, "tokens")

    @operation
    def revoke_token(self, name: str, *, keep_sessions: bool = False) -> Flow[None]:
        """Revoke a token, and its sessions unless they are kept for the next one. Needs the scope admin."""
        return self._change("DELETE", token_path(name) + ("?keep_sessions=true" if keep_sessions else ""), None)

    @operation
    def rotate_token(
        self,
        name: str,
        *,
        keep_sessions: bool = False,
        expires_in_seconds: int | None = None,
        never_expires: bool = False,
    ) -> Flow[TokenMadeReply]:
        """Replace a token by another of the same name and rights, shown only this once. Needs the scope admin.

        By default it expires when the old one would have.
        """
        body = RotateBody(
            keep_sessions=keep_sessions, expires_in_seconds=expires_in_seconds, never_expires=never_expires
        )
        return self._change("POST", f"{token_path(name)}/rotate", body, TokenMadeReply)

    def _change(self, method: str, path: str, body: object, reply: type[Any] = object) -> Flow[Any]:
        """Send a request with an idempotency key, and return its reply."""
        found = yield from ask(
            Send(method, path, body, (yield NEW_KEY), self._policy.answer_seconds), self._policy, reply
        )
        return None if reply is object else found


def _listing(prefix: str | None, owner: str | None, session: str | None, limit: int | None) -> dict[str, Any]:
    if limit is not None:
        check_limit(limit)
    return {"prefix": prefix, "owner": owner, "session": None if session is None else session_name(session)}


def _page_limit(limit: int | None, found: Sequence[object]) -> int:
    return PAGE if limit is None else min(limit - len(found), PAGE)


def _every_page(path: str, policy: Policy, reply: type[Any], field: str) -> Flow[list[Any]]:
    found: list[Any] = []
    after: str | None = None
    while True:
        page = yield from ask(get(with_query(path, after=after), policy), policy, reply)
        found += getattr(page, field)
        if page.next_after is UNSET:
            return found
        after = page.next_after
