"""The state: one slot per name, the line, the sessions, the tokens, the one retry memory. Only `evolve` changes it.

The durable part is what `freeze` returns. The rest are indexes, rebuilt from it: counts, alarms, the ordered names.
Values are frozen, so that `freeze` is a few shallow copies and the snapshot can be encoded later, in slices (I15).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from holdfast.core.deadlock import holder_of_ticket
from holdfast.core.ordered import OrderedNames
from holdfast.core.values import (
    ABSENT_MS_MAX,
    INTERESTS_MAX,
    AccessToken,
    Lease,
    Memo,
    Remembered,
    Session,
    Slot,
    Ticket,
)

if TYPE_CHECKING:
    from holdfast.core.values import Holder

EMPTY = Slot()


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The scalars of the state."""

    seq: int = 0
    now_ms: int = 0
    last_token: int = 0
    epoch: int = 0


class Frozen(msgspec.Struct, frozen=True):
    """A consistent picture of the durable state, cheap to take. What it holds is never changed again."""

    head: Head
    slots: dict[str, Slot]
    sessions: dict[str, Session]
    remembered: dict[str, Remembered]
    memos: dict[tuple[str, str], Memo]
    tokens: dict[str, AccessToken]
    tickets: dict[str, Ticket]


class State:
    """Who owns what, as of the last record."""

    def __init__(self) -> None:
        self.seq = self.now_ms = self.last_token = self.epoch = 0
        self.slots: dict[str, Slot] = {}
        self.sessions: dict[str, Session] = {}
        self.remembered: dict[str, Remembered] = {}
        """Ended leases and sessions by id and spent keys, oldest first: the one retry memory (C5)."""
        self.memos: dict[tuple[str, str], Memo] = {}
        """What each (principal, idempotency key) made, while that lives or is remembered."""
        self.tokens: dict[str, AccessToken] = {}
        self.tickets: dict[str, Ticket] = {}
        """Who stands in line, in the order of joining (W2)."""
        # Soft from here on: who is there, and who asked without waiting. At the start nobody is and nobody did.
        self.there: set[str] = set()
        self.there_at: dict[str, int] = {}
        """How many wait for a name and are there."""
        self.there_in: dict[str, list[tuple[int, str]]] = {}
        """Who waits for a name and is there, in the order of joining."""
        self.absent_since: dict[str, int] = {}
        """Tickets whose holder is not there, since when, longest first."""
        self.interests: dict[Holder, dict[str, int]] = {}
        """Until when a holder is thought to wait for a name, though it only asked (D3)."""
        self.interests_by_age: dict[tuple[Holder, str], int] = {}
        """The same, oldest first."""
        # Indexes from here on.
        self.lines: dict[str, dict[str, None]] = {}
        """Tickets by name, in the order of joining."""
        self.tickets_of: dict[Holder, dict[str, None]] = {}
        self.tickets_by: dict[str, int] = {}
        self.tickets_with: dict[str, dict[str, None]] = {}
        """Tickets by the session that they end with."""
        self.ticket_of_lease: dict[str, str] = {}
        self.number_of: dict[str, int] = {}
        """A number for each ticket that rises with the order of joining, across all lines (I12)."""
        self.numbers = 0
        self.stirred: dict[str, None] = {}
        """Names at which somebody in line may have a turn now."""
        self.turns: list[tuple[int, str]] = []
        """Tickets found to have a turn, the one that joined first on top. Empty when the lines are settled."""
        self.handed: dict[str, None] = {}
        """Names that went to a new holder: a circle may be closed there."""
        self.opening_alarms: list[tuple[int, str]] = []
        self.held = OrderedNames()
        self.leases_of: dict[str, int] = {}
        self.sessions_of: dict[str, int] = {}
        self.names_in: dict[str, dict[str, bool]] = {}
        """Names by session, with whether they are bound to it."""
        self.token_by_digest: dict[str, AccessToken] = {}
        self.lease_alarms: list[tuple[int, int, str]] = []
        self.session_alarms: list[tuple[int, str]] = []
        self.closed_until_ms = 0
        self.forget_at_ms = 0

    # What is so.

    def lease_of(self, name: str) -> Lease | None:
        """Return the live lease of a name."""
        slot = self.slots.get(name)
        return None if slot is None else slot.lease

    def until_of(self, lease: Lease) -> int:
        """Return when a lease ends unless something happens: the earlier of its own and its session's deadline (S2)."""
        if lease.bound and lease.session is not None:
            session = self.sessions.get(lease.session)
            if session is not None and session.until_ms < lease.until_ms:
                return session.until_ms
        return lease.until_ms

    @property
    def free_names(self) -> int:
        """How many names are remembered that nobody holds."""
        return len(self.slots) - len(self.held)

    def has_deadlines(self) -> bool:
        """Tell whether time matters: somebody holds, lives or waits for something to open (T1)."""
        return bool(self.held or self.sessions or self.tickets) or self.closed_until_ms > self.now_ms

    def next_alarm_ms(self) -> int | None:
        """Return the earliest instant at which something may fall due; it may turn out to be nothing, never late."""
        heaps = (self.lease_alarms, self.session_alarms, self.opening_alarms)
        dues = [alarms[0][0] for alarms in heaps if alarms]
        if self.absent_since:
            dues.append(next(iter(self.absent_since.values())) + ABSENT_MS_MAX)
        return min(dues, default=None)

    # Who is there (W2).

    def arrive(self, ticket_id: str) -> None:
        """Somebody waits at this place: it counts in the line and in the graph of waits."""
        self.absent_since.pop(ticket_id, None)
        place = (self.number_of[ticket_id], ticket_id)
        for name in self.tickets[ticket_id].names:
            self.stirred[name] = None
            if ticket_id not in self.there:
                count(self.there_at, name, 1)
                insort(self.there_in.setdefault(name, []), place)
        self.there.add(ticket_id)

    def depart(self, ticket_id: str, now_ms: int) -> None:
        """Nobody waits at this place for now: it keeps its order and blocks nobody."""
        if ticket_id in self.there:
            self.uncount(self.tickets[ticket_id])
            self.absent_since[ticket_id] = now_ms

    def uncount(self, ticket: Ticket) -> None:
        """Take a ticket out of those who are there."""
        if ticket.ticket_id in self.there:
            self.there.remove(ticket.ticket_id)
            place = (self.number_of[ticket.ticket_id], ticket.ticket_id)
            for name in ticket.names:
                count(self.there_at, name, -1)
                those = self.there_in[name]
                del those[bisect_left(those, place)]
                if not those:
                    del self.there_in[name]

    def position_of(self, ticket_id: str) -> int:
        """Return the place in the longest of the lines that a ticket stands in, counting those who are there."""
        place = (self.number_of[ticket_id], ticket_id)
        return 1 + max(bisect_left(self.there_in.get(name, ()), place) for name in self.tickets[ticket_id].names)

    # Who asked without waiting (D3).

    def take_interest(self, holder: Holder, name: str, until_ms: int) -> None:
        """Note that a holder wants a name; of too many, the oldest are dropped."""
        self.interests_by_age.pop((holder, name), None)
        self.interests_by_age[holder, name] = until_ms
        self.interests.setdefault(holder, {})[name] = until_ms
        if len(self.interests_by_age) > INTERESTS_MAX:
            self.lose_interest(*next(iter(self.interests_by_age)))

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

    def forget_interests(self, now_ms: int) -> None:
        """Drop the interests that were not refreshed in time."""
        while self.interests_by_age:
            (holder, name), until_ms = next(iter(self.interests_by_age.items()))
            if until_ms > now_ms:
                return
            self.lose_interest(holder, name)

    # What a snapshot holds.

    def freeze(self) -> Frozen:
        """Take a consistent picture: shallow copies only, milliseconds at 100 000 leases."""
        return Frozen(
            Head(self.seq, self.now_ms, self.last_token, self.epoch),
            self.slots.copy(),
            self.sessions.copy(),
            self.remembered.copy(),
            self.memos.copy(),
            self.tokens.copy(),
            self.tickets.copy(),
        )

    @classmethod
    def thaw(cls, frozen: Frozen) -> State:
        """Make a state from a picture, which is used up by it; the indexes are built anew."""
        state = cls()
        head = frozen.head
        state.seq, state.now_ms, state.last_token, state.epoch = head.seq, head.now_ms, head.last_token, head.epoch
        state.slots = frozen.slots
        state.sessions = frozen.sessions
        state.remembered = frozen.remembered
        state.memos = frozen.memos
        state.tokens = frozen.tokens
        state.tickets = frozen.tickets
        state._build_indexes()
        return state

    def _build_indexes(self) -> None:
        self.held.update(name for name, slot in self.slots.items() if slot.lease is not None)
        for name, slot in self.slots.items():
            if slot.closed_until_ms:
                self.close(name, slot.closed_until_ms)
            lease = slot.lease
            if lease is None:
                continue
            self.slots[name] = replace(slot, alarm_ms=lease.until_ms)
            self.lease_alarms.append((lease.until_ms, lease.token, name))
            count(self.leases_of, lease.principal, 1)
            if lease.session in self.sessions:
                self.names_in.setdefault(lease.session, {})[name] = lease.bound
        heapq.heapify(self.lease_alarms)
        for session in self.sessions.values():
            self.session_alarms.append((session.until_ms, session.session_id))
            count(self.sessions_of, session.principal, 1)
        heapq.heapify(self.session_alarms)
        self.token_by_digest = {token.digest: token for token in self.tokens.values()}
        for ticket in self.tickets.values():
            self.line_up(ticket)
            self.absent_since[ticket.ticket_id] = self.now_ms

    # What evolve does at more than one place.

    def close(self, name: str, until_ms: int) -> None:
        """Note that a name is closed, and when it opens."""
        self.closed_until_ms = max(self.closed_until_ms, until_ms)
        heapq.heappush(self.opening_alarms, (until_ms, name))

    def line_up(self, ticket: Ticket) -> None:
        """Enter a ticket into the lines."""
        for name in ticket.names:
            self.lines.setdefault(name, {})[ticket.ticket_id] = None
        self.numbers += 1
        self.number_of[ticket.ticket_id] = self.numbers
        for lease_id in ticket.lease_ids:
            self.ticket_of_lease[lease_id] = ticket.ticket_id
        self.tickets_of.setdefault(holder_of_ticket(ticket), {})[ticket.ticket_id] = None
        terms = ticket.terms
        if terms.bound and terms.session is not None:
            self.tickets_with.setdefault(terms.session, {})[ticket.ticket_id] = None
        count(self.tickets_by, terms.principal, 1)


def count(counts: dict[str, int], who: str, by: int) -> None:
    """Change a count; what nobody has is not kept."""
    left = counts.get(who, 0) + by
    if left:
        counts[who] = left
    else:
        counts.pop(who, None)
