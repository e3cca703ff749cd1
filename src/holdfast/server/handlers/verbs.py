"""What else can be done with a claim: hand it on, check its token, end it, reopen it, ask why it cannot be had."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from holdfast.core.answers import Acquired, OpenAgain, Released
from holdfast.core.commands import Reopen, Revoke, Transfer
from holdfast.core.views import why as follow
from holdfast.engine.ids import new_uuid
from holdfast.server import render
from holdfast.server.api import encode, fingerprint, nothing
from holdfast.server.doors.request import read_query, read_segment, read_uuid
from holdfast.server.times import rfc3339
from holdfast.wire.replies import CheckReply, WhyLink, WhyReply, WhyWaiter

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.core.values import Moment
    from holdfast.core.views import Link
    from holdfast.server.api import Answered, Api
    from holdfast.server.doors.request import Reply, Request
    from holdfast.wire.requests import CheckBody, ReopenBody, RevokeBody, TransferBody

WAITERS_SHOWN = 100
_OK, _NO_CONTENT = 200, 204


def transfer(api: Api, request: Request, segment: bytes, reply: Reply) -> None:
    """POST /locks/{name}/transfer."""
    text = read_segment(segment)
    read_query(request.query, frozenset())
    body: TransferBody = api.transfer_body.read(request)
    lease_id = read_uuid(body.lease_id, "lease_id")
    key, mark = fingerprint(request, text, body)
    caller = api.identify(request, "claim")
    command = Transfer(
        name=api.name_for(text, caller),
        principal=caller.principal,
        lease_id=lease_id,
        new_lease_id=new_uuid(),
        to_owner=body.to_owner,
        ttl_ms=None if body.ttl_seconds is None else body.ttl_seconds * 1000,
        via=caller.via,
        key=key,
        fingerprint=mark,
    )

    def shown(outcome: Acquired, now: Moment) -> Answered:
        return _OK, encode(render.acquired(outcome, now)), ()

    api.ask(command, request, reply, Acquired, shown)


def check(api: Api, request: Request, segment: bytes, reply: Reply) -> None:
    """POST /locks/{name}/check: what a guarded resource asks before it accepts a write."""
    text = read_segment(segment)
    read_query(request.query, frozenset())
    body: CheckBody = api.check_body.read(request)
    name = api.name_for(text, api.identify(request, "read"))

    def view(state: State, _: Moment) -> Answered:
        lease = state.lease_of(name)
        token = None if lease is None else lease.token
        return _OK, encode(CheckReply(token == body.fencing_token, token)), ()

    api.read(view, request, reply)


def revoke(api: Api, request: Request, segment: bytes, reply: Reply) -> None:
    """POST /locks/{name}/revoke."""
    text = read_segment(segment)
    read_query(request.query, frozenset())
    body: RevokeBody = api.revoke_body.read(request)
    key, mark = fingerprint(request, text, body)
    caller = api.identify(request, "admin")
    command = Revoke(
        name=api.name_for(text, caller), principal=caller.principal, reason=body.reason, key=key, fingerprint=mark
    )
    _change(api, command, request, reply)


def reopen(api: Api, request: Request, segment: bytes, reply: Reply) -> None:
    """POST /locks/{name}/reopen."""
    text = read_segment(segment)
    read_query(request.query, frozenset())
    body: ReopenBody = api.reopen_body.read(request)
    key, mark = fingerprint(request, text, body)
    caller = api.identify(request, "admin")
    command = Reopen(
        name=api.name_for(text, caller), principal=caller.principal, reason=body.reason, key=key, fingerprint=mark
    )
    _change(api, command, request, reply)


def _change(api: Api, command: Revoke | Reopen, request: Request, reply: Reply) -> None:
    api.ask(command, request, reply, Released | OpenAgain, nothing)


def why(api: Api, request: Request, segment: bytes, reply: Reply) -> None:
    """GET /locks/{name}/why."""
    text = read_segment(segment)
    read_query(request.query, frozenset())
    caller = api.identify(request, "read")
    name = api.name_for(text, caller)

    def view(state: State, now: Moment) -> Answered:
        chain = follow(state, name, caller.prefix or "")
        waiting = [
            WhyWaiter(ticket.terms.owner, rfc3339(ticket.joined_wall_ms), ticket.ticket_id in state.presence.present)
            for ticket in (state.tickets[each] for each in islice(state.index.lines.get(name, ()), WAITERS_SHOWN))
        ]
        links = [_link(link, state, now) for link in chain.links]
        return _OK, encode(WhyReply(name, links, waiting, chain.circle)), ()

    api.read(view, request, reply)


def _link(link: Link, state: State, now: Moment) -> WhyLink:
    slot = link.slot
    lease = slot.lease
    if lease is None:
        if slot.done is not None and slot.done.until_ms > now.ms:
            return WhyLink(link.name, "done", slot.done.owner, None, None, None, None, [])
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
    )
