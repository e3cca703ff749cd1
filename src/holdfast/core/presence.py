"""Connected waiters, and who asked without waiting. Soft: no record says it, and a restart forgets it.

A place in a queue outlives the request that waits at it (W2). While one does, and for a moment between two requests if
the first said that a second follows, the place is *present*: it has turns and counts in the wait-for graph. Otherwise
it is absent: it keeps its order, blocks nobody, and is given up after a minute. No record may depend on presence, or a
replay would give another state.

Each name with a present waiter has a `PresentLine`, which knows whether the name is open. A ticket of several names has
a count of those that are not (`lacking`). Opening or closing a name changes the counts in its queue by one, so that
nothing ever has to look at all the names of all tickets.

An *interest* is what a refused `rlock` leaves: its holder is thought to want the name for a minute (D3). Their number
is limited, and each principal has its share.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING

from holdfast.core.shares import Shares, givers
from holdfast.core.values import INTERESTS_MAX, INTERESTS_OF_HOLDER_MAX, holder_of_ticket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.core.values import Holder, Ticket

INTERESTS_LOST_MAX = 2_000
"""How many go when there are too many: it bounds the time of a request."""

Place = tuple[int, str]
"""A join number and its ticket: sorts in the order of joining (I12)."""


class PresentLine:
    """The present waiters for one name, in the order of joining, and whether the name is open."""

    __slots__ = ("is_open", "severals", "singles")

    def __init__(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self.singles: list[Place] = []
        """Tickets that want this name alone: only the first can have a turn."""
        self.severals: list[Place] = []
        """Tickets that want other names too, and may have to be passed over."""

    def __len__(self) -> int:
        return len(self.singles) + len(self.severals)

    def __iter__(self) -> Iterator[Place]:
        return merge(self.singles, self.severals)

    def count_before(self, place: Place) -> int:
        return bisect_left(self.singles, place) + bisect_left(self.severals, place)


class Presence:
    """Who is present, who is absent since when, and who asked."""

    def __init__(self) -> None:
        self.present: set[str] = set()
        """Tickets at which a request waits."""
        self.lines: dict[str, PresentLine] = {}
        """The same by name."""
        self.tickets_by_holder: dict[Holder, dict[str, None]] = {}
        """The same by holder, in the order of arriving."""
        self.lacking: dict[str, int] = {}
        """How many of its names are not open, for each present ticket of several names."""
        self.absent_since: OrderedDict[str, int] = OrderedDict()
        """Tickets at which no request waits, since when, oldest first."""
        self.interests: dict[Holder, dict[str, int]] = {}
        """Until when a holder is thought to wait for a name, though it only asked (D3)."""
        self.interests_by_age: OrderedDict[tuple[Holder, str], tuple[int, str]] = OrderedDict()
        """The same, oldest first, with the principal."""
        self.interest_shares = Shares()
        """The same, by owner: nobody can flush another's."""

    def enter(self, ticket: Ticket, join_number: int, is_open: Callable[[str], bool]) -> bool:
        """Mark a place as present. Return whether it finds all that it wants open."""
        ticket_id = ticket.ticket_id
        self.absent_since.pop(ticket_id, None)
        if ticket_id in self.present:
            return False
        self.present.add(ticket_id)
        self.tickets_by_holder.setdefault(holder_of_ticket(ticket), {})[ticket_id] = None
        place = (join_number, ticket_id)
        lacking = 0
        for name in ticket.names:
            line = self.lines.get(name)
            if line is None:
                line = self.lines[name] = PresentLine(is_open=is_open(name))
            insort(line.severals if len(ticket.names) > 1 else line.singles, place)
            lacking += not line.is_open
        if len(ticket.names) > 1:
            self.lacking[ticket_id] = lacking
        return not lacking

    def leave(self, ticket: Ticket, join_number: int) -> None:
        """Mark a place as absent."""
        ticket_id = ticket.ticket_id
        if ticket_id not in self.present:
            return
        self.present.remove(ticket_id)
        self.lacking.pop(ticket_id, None)
        holder = holder_of_ticket(ticket)
        those = self.tickets_by_holder[holder]
        del those[ticket_id]
        if not those:
            del self.tickets_by_holder[holder]
        place = (join_number, ticket_id)
        for name in ticket.names:
            line = self.lines[name]
            places = line.severals if len(ticket.names) > 1 else line.singles
            del places[bisect_left(places, place)]
            if not line:
                del self.lines[name]

    def can_be_met(self, ticket: Ticket) -> bool:
        """Tell whether a ticket is present and finds all that it wants open.

        Finished work needs no look: its record answered every ticket without `redo`, and none can join after it (L5).
        """
        if ticket.ticket_id not in self.present:
            return False
        if len(ticket.names) > 1:
            return not self.lacking[ticket.ticket_id]
        return self.lines[ticket.names[0]].is_open

    def take_interest(self, holder: Holder, name: str, principal: str, now_ms: int, until_ms: int) -> None:
        """Note that a holder wants a name. Drop what was not refreshed in time, and what is too much."""
        self.lose_interest(holder, name)
        wanted = self.interests.setdefault(holder, {})
        wanted[name] = until_ms
        self.interests_by_age[holder, name] = (until_ms, principal)
        self.interest_shares.put(principal, _session_of(holder), _item(holder, name), 1)
        for (oldest, faded), (faded_ms, _) in list(islice(self.interests_by_age.items(), 2)):
            # Two go for one that comes, so that all go in time. One that has faded counts no more while it is there.
            if faded_ms <= now_ms:
                self.lose_interest(oldest, faded)
        if len(wanted) > INTERESTS_OF_HOLDER_MAX:
            self.lose_interest(holder, next(iter(wanted)))
        if self.interest_shares.number > INTERESTS_MAX:
            self._lose_what_is_too_much()

    def _lose_what_is_too_much(self) -> None:
        """Drop the oldest of the largest accounts, a few more than necessary."""
        shares = self.interest_shares
        for principal, session, number in list(givers(shares, INTERESTS_MAX, INTERESTS_LOST_MAX, in_bytes=False)):
            for item in list(islice(shares.account(principal, session).items, number)):
                name, _, owner = item.partition("\n")
                kind, who = ("principal", principal) if session is None else ("session", session)
                self.lose_interest((kind, who, owner or None), name)

    def lose_interest(self, holder: Holder, name: str | None = None) -> None:
        """Note that a holder no longer wants a name, or anything."""
        wanted = self.interests.get(holder)
        if wanted is None:
            return
        for each in [*wanted] if name is None else [name]:
            if wanted.pop(each, None) is not None:
                _, principal = self.interests_by_age.pop((holder, each))
                self.interest_shares.take(principal, _session_of(holder), _item(holder, each))
        if not wanted:
            del self.interests[holder]


def _session_of(holder: Holder) -> str | None:
    return holder[1] if holder[0] == "session" else None


def _item(holder: Holder, name: str) -> str:
    """Return the key of an interest in its account. No name has a line break."""
    return f"{name}\n{holder[2] or ''}"
