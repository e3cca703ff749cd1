"""What the history says of one name, as leases and waits with a beginning and an end. Plain functions of records.

A page of history may begin in the middle of a lease, and end in the middle of another. A beginning or an end that lies
outside of it is None, and whoever draws it says so. No lease id and no ticket leaves this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.core.events import Ended, Granted, GrantedMany, Joined, Left, Record, Reopened, Transferred
from holdfast.server.streams.happenings import Told, concerned
from holdfast.wire.holders import shown_as

if TYPE_CHECKING:
    from holdfast.core.values import Lease
    from holdfast.engine.build import HistoryPage

CHANGES_MAX = 200
"""How many changes of a name one page tells. One record may say thousands: finished work answers everybody in line."""
BADLY = frozenset({"expired", "revoked", "session_ended", "failed"})
"""Ends that nobody wanted."""


class Page(msgspec.Struct, frozen=True):
    """Some of what happened to a name, newest first, and where the next page begins."""

    told: list[tuple[Record, Told]]
    next_before: int | None = None
    next_offset: int = 0
    """How many changes of record `next_before` were told: the next page tells its others first. 0: it is told whole."""


class Held(msgspec.Struct):
    """One lease of the name."""

    owner: str
    token: int | None
    from_ms: int | None
    """Wall time. None: it began before this page."""
    to_ms: int | None = None
    """None: it lives, or ended after this page."""
    how: str = ""
    """How it ended: `released`, `done`, `failed`, `expired`, `revoked`, `session_ended` or `transferred`."""
    by: str | None = None
    reason: str | None = None
    note: str | None = None
    """The last that its holder said."""
    is_live: bool = False

    @property
    def ended_badly(self) -> bool:
        """Whether nobody wanted that end."""
        return self.how in BADLY


class Waited(msgspec.Struct):
    """One place in the line for the name."""

    owner: str
    from_ms: int | None
    to_ms: int | None = None
    how: str = ""
    """`granted`, or why it was left. Empty: it is still there, or ended after this page."""


class Happened(msgspec.Struct, frozen=True):
    """One change of the name, for the table: what `GET /locks/{name}/history` tells, and the last note of a lease."""

    seq: int
    at_ms: int
    event: str
    owner: str
    token: int | None = None
    by: str | None = None
    reason: str | None = None
    note: str | None = None

    @property
    def is_bad(self) -> bool:
        """Whether something ended that nobody wanted to end."""
        return self.event in BADLY


class Story(msgspec.Struct, frozen=True):
    """What one page of history comes to, oldest first."""

    held: tuple[Held, ...]
    waited: tuple[Waited, ...]
    reopened_ms: tuple[int, ...] = ()


def page_of(page: HistoryPage, name: str, *, offset: int = 0, before: int | None = None) -> Page:
    """Return what the records say of the name, newest first, and at most `CHANGES_MAX` of it.

    `offset` is how much of the first record, number `before`, the page before has told already.
    """
    told: list[tuple[Record, Told]] = []
    for record in page.records:
        said = [each for of, each in concerned(record.event) if of == name]
        said.reverse()
        first = offset if record.seq == before else 0
        for number, each in enumerate(said[first:], first):
            if len(told) >= CHANGES_MAX:
                return Page(told, record.seq if number else record.seq + 1, number)
            told.append((record, each))
    return Page(told, page.next_before)


def story_of(page: Page, live: Lease | None, *, is_newest: bool) -> Story:
    """Put together what belongs together. `live` is the lease of the name now; it counts on the newest page alone."""
    gathered = _Gathered()
    for record, told in reversed(page.told):
        gathered.tell(record, told)
    if is_newest:
        gathered.know_live(live)
    return Story(tuple(gathered.held), tuple(gathered.waited), tuple(gathered.reopened_ms))


def happened(record: Record, told: Told) -> Happened:
    """Return one row of the table."""
    seq, at_ms, owner = record.seq, record.wall_ms, owner_in(told)
    match told:
        case Granted(lease=lease):
            return Happened(seq, at_ms, "granted", owner, lease.token, lease.principal)
        case Transferred(lease=lease):
            return Happened(seq, at_ms, "transferred", owner, lease.token, told.by, told.reason)
        case Ended():
            how = how_ended(told)
            reason = None if how == "failed" else told.reason
            return Happened(seq, at_ms, how, owner, told.token, told.by, reason, told.note)
        case Joined():
            return Happened(seq, at_ms, "waiting", owner, by=told.ticket.terms.principal)
        case Left():
            return Happened(seq, at_ms, "left", owner, reason=told.how)
        case Reopened():
            return Happened(seq, at_ms, "reopened", owner, by=told.by, reason=told.reason)


def owner_in(told: Told) -> str:
    """Return how the one is shown whom a change is about."""
    match told:
        case Granted(lease=lease) | Transferred(lease=lease):
            return shown_owner(lease.owner, lease.principal)
        case Ended() | Left():
            return shown_owner(told.owner, told.principal)
        case Joined():
            return shown_owner(told.ticket.terms.owner, told.ticket.terms.principal)
        case Reopened():
            return ""


def shown_owner(owner: str | None, principal: str | None) -> str:
    """Return how somebody is shown in what is kept for long: never with metadata."""
    return shown_as(principal) if owner is None else owner


def how_ended(ended: Ended) -> str:
    """Return the one word for an end."""
    if ended.done is not None:
        return "done"
    return "failed" if ended.how == "released" and ended.reason == "failed" else ended.how


class _Gathered:
    """A story while it is gathered, oldest first."""

    def __init__(self) -> None:
        self.held: list[Held] = []
        self.waited: list[Waited] = []
        self.reopened_ms: list[int] = []
        self._open: Held | None = None
        self._places: dict[str, Waited] = {}
        """Who waits, by ticket."""

    def tell(self, record: Record, told: Told) -> None:
        at_ms = record.wall_ms
        match told:
            case Granted(lease=lease):
                event = record.event
                self._leave(event.ticket_id if isinstance(event, GrantedMany) else told.ticket_id, at_ms)
                self._begin(lease, at_ms)
            case Transferred(lease=lease):
                self._end(at_ms, "transferred", by=told.by, reason=told.reason)
                self._begin(lease, at_ms)
            case Ended():
                self._take_end(told, at_ms)
            case Joined():
                ticket = told.ticket
                if ticket.ticket_id not in self._places:
                    waited = Waited(owner_in(told), at_ms)
                    self._places[ticket.ticket_id] = waited
                    self.waited.append(waited)
            case Left():
                self._leave(told.ticket_id, at_ms, told)
            case Reopened():
                self.reopened_ms.append(at_ms)

    def know_live(self, live: Lease | None) -> None:
        """Enter what is so now: the newest page ends with it."""
        if live is None:
            return
        if self._open is None or self._open.token != live.token:
            self._begin(live, live.granted_wall_ms)
        if self._open is not None:
            self._open.is_live, self._open.note = True, live.note

    def _begin(self, lease: Lease, at_ms: int) -> None:
        self._open = Held(shown_owner(lease.owner, lease.principal), lease.token, at_ms)
        self.held.append(self._open)

    def _take_end(self, ended: Ended, at_ms: int) -> None:
        if self._open is None or self._open.token != ended.token:
            self._open = Held(owner_in(ended), ended.token, None)
            self.held.append(self._open)
        reason = None if ended.reason == "failed" else ended.reason
        self._end(at_ms, how_ended(ended), by=ended.by, reason=reason, note=ended.note)

    def _end(
        self, at_ms: int, how: str, *, by: str | None = None, reason: str | None = None, note: str | None = None
    ) -> None:
        held, self._open = self._open, None
        if held is None:
            # The lease that was handed on began before this page, and nothing here says whose it was.
            return
        held.to_ms, held.how, held.by, held.reason, held.note = at_ms, how, by, reason, note
        if held.from_ms is not None:
            # The wall clock may have been set back in between: nothing ends before it begins.
            held.to_ms = max(at_ms, held.from_ms)

    def _leave(self, ticket_id: str | None, at_ms: int, left: Left | None = None) -> None:
        if ticket_id is None:
            return
        waited = self._places.pop(ticket_id, None)
        if waited is None:
            if left is None:
                # It was granted, and the lease itself says to whom.
                return
            waited = Waited(owner_in(left), None)
            self.waited.append(waited)
        waited.to_ms = at_ms if waited.from_ms is None else max(at_ms, waited.from_ms)
        waited.how = "granted" if left is None else left.how
