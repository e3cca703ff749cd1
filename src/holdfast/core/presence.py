"""Soft: which waiters have an open request, and who asked without waiting. No record says it; a restart forgets it.

A place in the line outlives the request that waits at it (W2). While one does, the place is *present*: it has turns and
counts in the graph of waits. While none does, it is absent: it keeps its order, blocks nobody, and is given up after a
minute. No record may depend on who is present, or a replay would give another state.

An *interest* is what a refused `rlock` leaves: its holder is thought to want the name for a minute (D3).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from holdfast.core.values import INTERESTS_MAX

if TYPE_CHECKING:
    from holdfast.core.values import Holder, Ticket


class Presence:
    """Who is present, who is absent since when, and who asked."""

    def __init__(self) -> None:
        self.present: set[str] = set()
        """Tickets at which a request waits."""
        self.present_by_name: dict[str, list[tuple[int, str]]] = {}
        """The same by name, in the order of joining: (join number, ticket)."""
        self.absent_since: dict[str, int] = {}
        """Tickets at which no request waits, since when, longest first."""
        self.interests: dict[Holder, dict[str, int]] = {}
        """Until when a holder is thought to wait for a name, though it only asked (D3)."""
        self.interests_by_age: dict[tuple[Holder, str], int] = {}
        """The same, oldest first."""

    def enter(self, ticket: Ticket, join_number: int) -> None:
        """Count a place among the present."""
        self.absent_since.pop(ticket.ticket_id, None)
        if ticket.ticket_id not in self.present:
            self.present.add(ticket.ticket_id)
            for name in ticket.names:
                insort(self.present_by_name.setdefault(name, []), (join_number, ticket.ticket_id))

    def leave(self, ticket: Ticket, join_number: int) -> None:
        """Count a place no longer among the present."""
        if ticket.ticket_id in self.present:
            self.present.remove(ticket.ticket_id)
            for name in ticket.names:
                line = self.present_by_name[name]
                del line[bisect_left(line, (join_number, ticket.ticket_id))]
                if not line:
                    del self.present_by_name[name]

    def take_interest(self, holder: Holder, name: str, now_ms: int, until_ms: int) -> None:
        """Note that a holder wants a name. What was not refreshed in time is dropped, and of too many the oldest."""
        self.interests_by_age.pop((holder, name), None)
        self.interests_by_age[holder, name] = until_ms
        self.interests.setdefault(holder, {})[name] = until_ms
        while self.interests_by_age:
            (oldest, wanted), faded_ms = next(iter(self.interests_by_age.items()))
            if faded_ms > now_ms and len(self.interests_by_age) <= INTERESTS_MAX:
                return
            self.lose_interest(oldest, wanted)

    def lose_interest(self, holder: Holder, name: str | None = None) -> None:
        """Note that a holder no longer wants a name, or anything."""
        wanted = self.interests.get(holder)
        if wanted is None:
            return
        for each in [*wanted] if name is None else [name]:
            if wanted.pop(each, None) is not None:
                del self.interests_by_age[holder, each]
        if not wanted:
            del self.interests[holder]
