"""What one job's page shows of the state: owner, line, why. Plain functions of the state, a moment and a prefix.

Each look is bounded, however long a line is and however many waits hang together. What the API hides is not in here
either: a name outside of the reader's prefix, a lease id, a ticket.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.deadlock import why
from holdfast.core.state import EMPTY
from holdfast.server.pages.rows import Field, Row, fields_of, row_of, sign_of
from holdfast.server.pages.views.told import shown_owner
from holdfast.server.render import nameless_holder
from holdfast.wire.holders import shown_as

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.core.values import Done, LastEnd, Lease, Moment, Slot

LINE_SHOWN = 100
"""How many of a line stand on one page."""
LINKS_SHOWN = 12
"""How many boxes of a chain are shown; of the rest only how many there are."""
WAITS_SHOWN = 3
"""How many of an owner's other waits a box names."""


class Place(msgspec.Struct, frozen=True):
    """One who stands in line."""

    number: int
    owner: str
    since_ms: int
    is_there: bool
    """Whether a request of it waits right now. Who is away keeps the place for a minute, and blocks nobody."""
    names: int
    """How many names it wants at once."""


class Line(msgspec.Struct, frozen=True):
    """A part of the line, and how long all of it is."""

    total: int
    there: int
    places: tuple[Place, ...]
    first: int
    """The number of the first place that is shown."""

    @property
    def next_first(self) -> int | None:
        """Where the next part begins, if there is one."""
        behind = self.first + len(self.places)
        return behind if self.places and behind <= self.total else None

    @property
    def previous_first(self) -> int | None:
        """Where the part before begins, if there is one."""
        return None if self.first <= 1 else max(1, self.first - LINE_SHOWN)


class Box(msgspec.Struct, frozen=True):
    """One link of the chain of waits."""

    name: str
    status: str
    """`held`, `free`, `closed` or `done`."""
    owner: str = ""
    sign: str = ""
    """The sign of life of who holds it."""
    row: Row | None = None
    """Only if it is held."""
    waits_for: tuple[str, ...] = ()
    waits_left_out: int = 0


class Chain(msgspec.Struct, frozen=True):
    """Why a name cannot be had."""

    boxes: tuple[Box, ...]
    left_out: int
    is_circle: bool


class Ended(msgspec.Struct, frozen=True):
    """How the last lease ended."""

    how: str
    owner: str
    token: int
    at_ms: int
    by: str | None
    reason: str | None
    note: str | None


class Finished(msgspec.Struct, frozen=True):
    """Finished work that is remembered."""

    owner: str
    token: int
    at_ms: int
    until_ms: int
    """Wall time, as all here."""
    result: tuple[Field, ...]


class Job(msgspec.Struct, frozen=True):
    """All that is known of a name now."""

    name: str
    status: str
    """`held`, `done`, `closed`, `free`, or `unknown` for a name that nobody claimed as far as the state knows."""
    now_ms: int
    line: Line
    chain: Chain
    attempts: int
    row: Row | None = None
    """Only if it is held, as the four below."""
    sign: str = ""
    fields: tuple[Field, ...] = ()
    delay_ms: int = 0
    is_bound: bool = False
    ended: Ended | None = None
    done: Finished | None = None
    opens_ms: int | None = None
    """When a name opens that its last lease keeps closed."""


def job_of(state: State, now: Moment, name: str, prefix: str | None, line_from: int = 1) -> Job:
    """Look at a name. It need not be known: then it is free, and nobody has been there."""
    slot = state.slots.get(name, EMPTY)
    lease = slot.lease
    line = line_of(state, name, line_from)
    chain = chain_of(state, now, name, prefix)
    ended = None if slot.last_end is None else _ended(slot.last_end)
    if lease is None:
        done = _finished(slot.done, now)
        is_closed = done is None and slot.closed_until_ms > now.ms
        opens_ms = now.wall_ms + slot.closed_until_ms - now.ms if is_closed else None
        status = _status(state, name, slot, is_done=done is not None, is_closed=is_closed)
        return Job(name, status, now.wall_ms, line, chain, slot.attempts, ended=ended, done=done, opens_ms=opens_ms)
    row = row_of(name, lease, state, now)
    sign = sign_of(row, now.wall_ms)
    fields = fields_of(lease.metadata)
    delay_ms, is_bound = lease.delay_ms, lease.bound
    return Job(
        name, "held", now.wall_ms, line, chain, slot.attempts, row, sign, fields, delay_ms, is_bound, ended=ended
    )


def _status(state: State, name: str, slot: Slot, *, is_done: bool, is_closed: bool) -> str:
    if is_done:
        return "done"
    if is_closed:
        return "closed"
    return "unknown" if slot is EMPTY and name not in state.index.lines else "free"


def line_of(state: State, name: str, first: int = 1) -> Line:
    """Return a part of the line for a name, in the order of joining."""
    tickets = state.index.lines.get(name, {})
    total = len(tickets)
    first = min(max(first, 1), max(total, 1))
    places: list[Place] = []
    for number, ticket_id in enumerate(islice(tickets, first - 1, first - 1 + LINE_SHOWN), first):
        ticket = state.tickets[ticket_id]
        owner = shown_owner(ticket.terms.owner, ticket.terms.principal)
        is_there = ticket_id in state.presence.present
        places.append(Place(number, owner, ticket.joined_wall_ms, is_there, len(ticket.names)))
    return Line(total, state.waiting_at(name), tuple(places), first)


def chain_of(state: State, now: Moment, name: str, prefix: str | None) -> Chain:
    """Return why a name cannot be had, as `GET /locks/{name}/why` tells it, in fewer boxes."""
    chain = why(state, name, prefix or "")
    boxes: list[Box] = []
    for link in chain.links[:LINKS_SHOWN]:
        lease = link.slot.lease
        if lease is None:
            done = link.slot.done
            is_done = done is not None and done.until_ms > now.ms
            is_closed = link.slot.closed_until_ms > now.ms
            owner = shown_owner(done.owner, done.whose) if done is not None and is_done else ""
            boxes.append(Box(link.name, "done" if is_done else "closed" if is_closed else "free", owner))
        else:
            boxes.append(_held_box(link.name, lease, link.waits_for, state, now))
    return Chain(tuple(boxes), len(chain.links) - len(boxes), chain.circle)


def _held_box(name: str, lease: Lease, waits_for: tuple[str, ...], state: State, now: Moment) -> Box:
    row = row_of(name, lease, state, now)
    return Box(
        name,
        "held",
        row.owner,
        sign_of(row, now.wall_ms),
        row,
        waits_for[:WAITS_SHOWN],
        len(waits_for) - len(waits_for[:WAITS_SHOWN]),
    )


def _ended(end: LastEnd) -> Ended:
    owner = shown_as(nameless_holder(end)) if end.owner is None else end.owner
    how = "failed" if end.how == "released" and end.reason == "failed" else end.how
    reason = None if how == "failed" else end.reason
    return Ended(how, owner, end.token, end.wall_ms, end.by, reason, end.note)


def _finished(done: Done | None, now: Moment) -> Finished | None:
    if done is None or done.until_ms <= now.ms:
        return None
    until_ms = now.wall_ms + done.until_ms - now.ms
    return Finished(shown_owner(done.owner, done.whose), done.token, done.wall_ms, until_ms, fields_of(done.result))
