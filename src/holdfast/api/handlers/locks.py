"""Operations on one name: renew, release, transfer, check, status, why; revoke and reopen for operators; GET /locks.

GET /locks finds names by their order. For an owner or a label it scans at most `SCANNED_NAMES_MAX` names, and
replies with what it found and where to go on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from msgspec import UNSET

from holdfast.api import rendering
from holdfast.api.auth.auth import Caller
from holdfast.api.auth.secrets import AuthorityKey
from holdfast.api.context import RequestContext
from holdfast.api.decoding import LABEL, read_uuid
from holdfast.api.handlers import history, paging
from holdfast.api.rendering import encode, no_content, rfc3339
from holdfast.api.service import ApiService, Renderer
from holdfast.core.commands import Release, Renew, Reopen, Revoke, Transfer
from holdfast.core.deadlock import Link
from holdfast.core.deadlock import why as follow
from holdfast.core.outcomes import Acquired, Extended, HandedOver, OpenAgain, Released
from holdfast.core.state import State
from holdfast.core.values import Instant, Lease, Ticket, has_labels
from holdfast.engine.ids import new_uuid
from holdfast.http.messages import ResponseParts
from holdfast.wire.problems import Problem
from holdfast.wire.replies import CheckReply, LocksReply, RenewedReply, WhyLink, WhyReply, WhyWaiter, shown_as
from holdfast.wire.requests import ClaimSecretBody, ReleaseBody, RenewBody, TransferBody

RENEW_TTL_SECONDS = 60  # Of a renewal without a ttl, as OctoStore has it (L3).
SCANNED_NAMES_MAX = 10_000
WAITERS_SHOWN = 100


def check_lease_id(body: RenewBody | ReleaseBody | TransferBody | ClaimSecretBody) -> None:
    if body.lease_id is not UNSET:
        body.lease_id = read_uuid(body.lease_id, "lease_id")


def check_release(body: ReleaseBody) -> None:
    check_lease_id(body)
    if body.outcome != "done" and (body.result is not None or body.remember_seconds is not None):
        raise Problem("invalid_input", 'result and remember_seconds go with "outcome": "done".', status=422)


def renew(api: ApiService, context: RequestContext) -> None:
    body: RenewBody = context.body
    ttl_seconds = body.ttl_seconds
    if ttl_seconds is None:
        ttl_seconds = min(RENEW_TTL_SECONDS, api.settings.max_ttl_seconds)
    command = Renew(
        name=context.item,
        principal=context.caller.principal,
        lease_id=body.lease_id,
        ttl_ms=None if body.keep_ttl else ttl_seconds * 1000,
        note=body.note,
        metadata=body.metadata,
        as_session=context.caller.session,
        key=context.key,
    )
    api.submit(context, command, _RENEW_RENDERERS)


def _renewed(_api: ApiService, _context: RequestContext, outcome: Extended, now: Instant) -> ResponseParts:
    left_ms = outcome.until_ms - now.ms
    expires_at = rfc3339(now.wall_ms + left_ms)
    return 200, encode(RenewedReply(outcome.lease.lease_id, expires_at, left_ms // 2, left_ms)), ()


def release(api: ApiService, context: RequestContext) -> None:
    body: ReleaseBody = context.body
    command = Release(
        name=context.item,
        principal=context.caller.principal,
        lease_id=body.lease_id,
        failed=body.outcome == "failed",
        done=body.outcome == "done",
        remember_ms=(body.remember_seconds or 0) * 1000,
        result=body.result,
        as_session=context.caller.session,
        key=context.key,
        fingerprint=context.fingerprint,
    )
    api.submit(context, command, _RELEASE_RENDERERS)


def transfer(api: ApiService, context: RequestContext) -> None:
    body: TransferBody = context.body
    if body.lease_id is UNSET:
        context.caller.require_scope("admin")
    command = Transfer(
        name=context.item,
        principal=context.caller.principal,
        lease_id=None if body.lease_id is UNSET else body.lease_id,
        new_lease_id=new_uuid(),
        to_owner=body.to_owner,
        ttl_ms=None if body.ttl_seconds is None else body.ttl_seconds * 1000,
        as_session=context.caller.session,
        key=context.key,
        fingerprint=context.fingerprint,
        reason=body.reason or None,
    )
    api.submit(context, command, _TRANSFER_RENDERERS)


_RENEW_RENDERERS: Mapping[type, Renderer] = {Extended: _renewed}
_RELEASE_RENDERERS: Mapping[type, Renderer] = {Released: lambda _api, _context, _outcome, _now: (200, b"null", ())}
_TRANSFER_RENDERERS: Mapping[type, Renderer] = {
    Acquired: lambda _api, _context, outcome, now: (200, encode(rendering.acquired(outcome, now)), ()),
    HandedOver: no_content,
}


def revoke(api: ApiService, context: RequestContext) -> None:
    principal, reason = context.caller.principal, context.body.reason
    command = Revoke(
        name=context.item, principal=principal, reason=reason, key=context.key, fingerprint=context.fingerprint
    )
    api.submit(context, command, {Released: no_content})


def reopen(api: ApiService, context: RequestContext) -> None:
    principal, reason = context.caller.principal, context.body.reason
    command = Reopen(
        name=context.item, principal=principal, reason=reason, key=context.key, fingerprint=context.fingerprint
    )
    api.submit(context, command, {OpenAgain: no_content})


def check(api: ApiService, context: RequestContext) -> None:
    def view(state: State, _: Instant) -> ResponseParts:
        lease = state.lease_of(context.item)
        token = None if lease is None else lease.token
        return 200, encode(CheckReply(token == context.body.fencing_token, token)), ()

    api.read(context, view)


def status(api: ApiService, context: RequestContext) -> None:
    def view(state: State, now: Instant) -> ResponseParts:
        return 200, encode(rendering.lock(context.item, state, now, api.auth.key)), ()

    api.read(context, view)


def why(api: ApiService, context: RequestContext) -> None:
    def view(state: State, now: Instant) -> ResponseParts:
        chain = follow(state, context.item, context.caller.prefix or "")
        waiting = [
            _waiter(ticket, is_connected=ticket.ticket_id in state.connected.attached)
            for ticket in (
                state.tickets[each] for each in islice(state.index.queues.get(context.item, ()), WAITERS_SHOWN)
            )
        ]
        links = [_link(link, state, now) for link in chain.links]
        return 200, encode(WhyReply(context.item, links, waiting, chain.is_cycle)), ()

    api.read(context, view)


def _link(link: Link, state: State, now: Instant) -> WhyLink:
    slot = link.slot
    lease = slot.lease
    if lease is None:
        if slot.done is not None and slot.done.until_ms > now.ms:
            done = slot.done
            shown = shown_as(done.whose) if done.owner is None else UNSET
            return WhyLink(link.name, "done", done.owner, None, None, None, None, [], shown_as=shown)
        closed = slot.closed_until_ms > now.ms
        return WhyLink(link.name, "closed" if closed else "free", None, None, None, None, None, [])
    return WhyLink(
        link.name,
        "held",
        lease.owner,
        rfc3339(lease.granted_wall_ms),
        rfc3339(lease.beat_wall_ms),
        state.until_of(lease) - now.ms,
        lease.note,
        list(link.waits_for),
        shown_as=shown_as(lease.principal) if lease.owner is None else UNSET,
    )


def _waiter(ticket: Ticket, *, is_connected: bool) -> WhyWaiter:
    terms = ticket.terms
    shown = shown_as(terms.principal) if terms.owner is None else UNSET
    return WhyWaiter(terms.owner, rfc3339(ticket.joined_wall_ms), is_connected, shown_as=shown)


def read_list_query(query: dict[str, Any]) -> dict[str, Any]:
    paging.read_limit(query)
    history.read_as_of(query)
    if "session" in query:
        query["session"] = read_uuid(query["session"], "session", status=400)
    return query


def list_(api: ApiService, context: RequestContext) -> None:
    prefix = effective_prefix(context.query.get("prefix"), context.caller)
    if history.AS_OF in context.query:
        history.list_as_of(api, context, prefix)
        return
    listing = Listing(context.query, prefix, api.auth.key)

    async def respond() -> ResponseParts:
        await paging.sort_held_names(api.engine)
        await paging.in_slices(api.engine, listing.take_slice)
        return 200, encode(listing.reply()), ()

    api.answer_slowly(context, respond)


class Listing:
    """One page, while it is made. Names lead on from slice to slice, so it does not matter what comes and goes."""

    def __init__(self, query: dict[str, Any], prefix: str | None, key: AuthorityKey) -> None:
        self._page = paging.Page(int(query["limit"]))
        self._prefix = prefix
        self._key = key
        self._owner, self._session, self._labels = query.get("owner"), query.get("session"), query.get(LABEL)
        self._is_filtered = not (self._owner is self._session is self._labels is None)
        self._is_first = "after" not in query
        self._reached: str = query.get("after", "")
        self._scanned = 0
        self._next_after: str | None = None
        self._total: int | None = None
        self._of_session: list[str] | None = None  # Sorted names of the session asked for, if it has few enough.

    def reply(self) -> LocksReply:
        total = self._total
        if self._is_filtered and self._is_first and self._next_after is None:
            total = len(self._page.items)
        return LocksReply(self._page.items, total, self._prefix, self._next_after)

    def take_slice(self, state: State, now: Instant) -> bool:
        page = self._page
        page.begin_slice()
        if not self._scanned:
            self._begin(state)
        for number, name in enumerate(self._names(state)):
            if page.ends_slice or number >= paging.SLICE_NAMES:
                return False
            lease = state.lease_of(name)
            is_wanted = lease is not None and self._is_wanted(lease)
            if (is_wanted and page.is_full) or (self._is_filtered and self._scanned >= SCANNED_NAMES_MAX):
                self._next_after = self._reached
                return True
            if is_wanted:
                page.add(rendering.lock(name, state, now, self._key))
            self._scanned += 1
            self._reached = name
        return True

    def _begin(self, state: State) -> None:
        prefix = self._prefix or ""
        if not self._is_filtered:
            self._total = state.index.held.count(prefix)
        elif self._session is not None and self._session in state.sessions:
            # Only of a session that lives: a plain claim may outlive the session it was made in.
            names = state.index.names_by_session.get(self._session, ())
            if len(names) <= SCANNED_NAMES_MAX:
                self._of_session = sorted(name for name in names if name.startswith(prefix))

    def _names(self, state: State) -> Iterator[str]:
        names = self._of_session
        if names is None:
            return state.index.held.walk(self._prefix or "", self._reached)
        return islice(names, bisect_right(names, self._reached), None)

    def _is_wanted(self, lease: Lease) -> bool:
        return (
            (self._owner is None or lease.owner == self._owner)
            and (self._session is None or lease.session == self._session)
            and (self._labels is None or has_labels(lease.labels, self._labels))
        )


def effective_prefix(prefix: str | None, caller: Caller) -> str | None:
    """Return the prefix to list: a confined token sees its own part, unasked; asking for another is refused."""
    if caller.prefix is None:
        return prefix
    if prefix is None:
        return caller.prefix
    caller.require_within_prefix(prefix)
    return prefix
