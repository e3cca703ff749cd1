"""GET /locks/{name}/why: why a name cannot be had, as the chain of waits."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from msgspec import UNSET

from holdfast.core.views import why as follow
from holdfast.server.render import encode
from holdfast.server.times import rfc3339
from holdfast.wire.holders import shown_as
from holdfast.wire.replies import WhyLink, WhyReply, WhyWaiter

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.core.values import Moment, Ticket
    from holdfast.core.views import Link
    from holdfast.server.api import Api
    from holdfast.server.operations.call import Call
    from holdfast.server.render import Answered

WAITERS_SHOWN = 100
_OK = 200


def why(api: Api, call: Call) -> None:
    """GET /locks/{name}/why."""

    def view(state: State, now: Moment) -> Answered:
        chain = follow(state, call.item, call.caller.prefix or "")
        waiting = [
            _waiter(ticket, is_there=ticket.ticket_id in state.presence.present)
            for ticket in (state.tickets[each] for each in islice(state.index.lines.get(call.item, ()), WAITERS_SHOWN))
        ]
        links = [_link(link, state, now) for link in chain.links]
        return _OK, encode(WhyReply(call.item, links, waiting, chain.circle)), ()

    api.read(call, view)


def _link(link: Link, state: State, now: Moment) -> WhyLink:
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


def _waiter(ticket: Ticket, *, is_there: bool) -> WhyWaiter:
    terms = ticket.terms
    shown = shown_as(terms.principal) if terms.owner is None else UNSET
    return WhyWaiter(terms.owner, rfc3339(ticket.joined_wall_ms), is_there, shown_as=shown)
