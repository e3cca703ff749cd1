"""Look-ups over what is durable: nothing here that the slots, sessions, tickets, tokens and memory do not say.

In no archive. `build` makes it from nothing; `evolve` keeps it with the other methods, and a test compares the
two after every step. Collections that have become empty are dropped, so that nothing outlives what it is for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING

from holdfast.core.ordered import OrderedNames
from holdfast.core.shares import (
    Shares,
    account_of_name,
    account_of_remembered,
    weight_of_done,
    weight_of_name,
    weight_of_remembered,
)
from holdfast.core.values import holder_of_ticket

if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import TypeVar

    from holdfast.core.values import AccessToken, Holder, Lease, Remembered, Session, Slot, Ticket

    K = TypeVar("K", bound=Hashable)
    V = TypeVar("V")


class Index:
    """Counts, lines, and who has what."""

    def __init__(self) -> None:
        self.held = OrderedNames()
        """The names that somebody holds."""
        self.lease_count: dict[str, int] = {}
        """By principal."""
        self.sessions_by_principal: dict[str, dict[str, None]] = {}
        """In the order of opening."""
        self.tickets_by_principal: dict[str, dict[str, None]] = {}
        """In the order of joining."""
        self.names_by_session: dict[str, dict[str, bool]] = {}
        """The held names of a session, with whether they are bound to it."""
        self.lines: dict[str, dict[str, None]] = {}
        """Tickets by name, in the order of joining."""
        self.join_number: dict[str, int] = {}
        """A number for each ticket that rises with the order of joining, across all lines (I12)."""
        self.last_join_number = 0
        self.tickets_by_wish: dict[tuple[Holder, frozenset[str]], dict[str, None]] = {}
        """The place of a holder for just these names, in any order (W3). A claim without an owner has none already.

        It is one, but for journals of versions that took another order for another wish.
        """
        self.tickets_by_session: dict[str, dict[str, None]] = {}
        """Tickets that end with a session."""
        self.ticket_by_lease_id: dict[str, str] = {}
        """Which ticket will get this lease id."""
        self.token_by_digest: dict[str, AccessToken] = {}
        self.token_prefixes: list[str] = []
        """Of each token that is confined to one, sorted."""
        self.closed_until_ms = 0
        """When the last of the closed names opens (L6)."""
        self.waiting_names: dict[tuple[str, str | None], int] = {}
        """How many names a principal waits for, with each of its places; and one of its sessions."""
        self.places: dict[tuple[str, str, str | None], int] = {}
        """How many places in the line for a name a principal has, and one of its sessions."""
        self.memory = Shares()
        """The retry memory, by whose it is."""
        self.free = Shares()
        """The names that nobody holds, by who left them. One that is done stands there and does not count."""
        self.done = Shares()
        """The names that are remembered as done, by who finished them (L5)."""

    def build(
        self,
        slots: dict[str, Slot],
        sessions: dict[str, Session],
        tickets: dict[str, Ticket],
        tokens: dict[str, AccessToken],
        remembered: dict[str, Remembered],
    ) -> None:
        """Make everything from what is durable."""
        held: list[str] = []
        counts: defaultdict[str, int] = defaultdict(int)
        for name, slot in slots.items():
            lease = slot.lease
            if slot.closed_until_ms:
                self.closed_until_ms = max(self.closed_until_ms, slot.closed_until_ms)
            if lease is None:
                self.add_free(name, slot)
                continue
            # As `add_lease` does it, without a call for each of a million leases: nobody is served before the last.
            held.append(name)
            counts[lease.principal] += 1
            if lease.session is not None and lease.session in sessions:
                self.names_by_session.setdefault(lease.session, {})[name] = lease.bound
        self.held.build(held)
        self.lease_count.update(counts)
        for session in sessions.values():
            self.add_session(session)
        for ticket in tickets.values():
            self.add_ticket(ticket)
        for token in tokens.values():
            self.add_token(token)
        for place, thing in remembered.items():
            self.remember(place, thing)

    def add_lease(self, name: str, lease: Lease, sessions: dict[str, Session]) -> None:
        """Enter a live lease; `held` is kept by the caller, since a transfer leaves the name held.

        `sessions` are those that live: a plain claim may outlive the session it counts in.
        """
        self.lease_count[lease.principal] = self.lease_count.get(lease.principal, 0) + 1
        if lease.session is not None and lease.session in sessions:
            self.names_by_session.setdefault(lease.session, {})[name] = lease.bound

    def drop_lease(self, name: str, lease: Lease) -> None:
        """Take a lease that is over out."""
        _count(self.lease_count, lease.principal, -1)
        if lease.session is not None:
            _take_out(self.names_by_session, lease.session, name)

    def add_session(self, session: Session) -> None:
        """Enter a session that was opened."""
        self.sessions_by_principal.setdefault(session.principal, {})[session.session_id] = None

    def drop_session(self, session: Session) -> None:
        """Take a session that is over out, with the names that were counted in it."""
        _take_out(self.sessions_by_principal, session.principal, session.session_id)
        self.names_by_session.pop(session.session_id, None)

    def add_token(self, token: AccessToken) -> None:
        """Enter a token that was let in."""
        self.token_by_digest[token.digest] = token
        if token.prefix is not None:
            insort(self.token_prefixes, token.prefix)

    def drop_token(self, token: AccessToken) -> None:
        """Take a token out that was shut out."""
        self.token_by_digest.pop(token.digest, None)
        if token.prefix is not None:
            del self.token_prefixes[bisect_left(self.token_prefixes, token.prefix)]

    def crowded_prefix(self, within: str, most: int) -> str | None:
        """Return a token's prefix that `within` lies in, and so do those of `most` tokens or more; None if none does.

        A maker that is confined is asked for all of them: what it makes counts for its own maker too.
        """
        those = self.token_prefixes
        for size in range(1, len(within) + 1):
            prefix = within[:size]
            first = bisect_left(those, prefix)
            if first < len(those) and those[first] == prefix:
                behind = bisect_right(those, prefix, lo=first, key=itemgetter(slice(size)))
                if behind - first >= most:
                    return prefix
        return None

    def add_free(self, name: str, slot: Slot) -> None:
        """Enter a name that nobody holds any more, behind all others of its account."""
        principal, session = account_of_name(slot)
        if slot.done is None:
            self.free.put(principal, session, name, weight_of_name(name, slot))
        else:
            self.free.put(principal, session, name, 0)
            self.done.put(principal, session, name, weight_of_done(name, slot.done))

    def drop_free(self, name: str, slot: Slot) -> None:
        """Take out a name that is held again, or forgotten."""
        principal, session = account_of_name(slot)
        self.free.take(principal, session, name)
        if slot.done is not None:
            self.done.take(principal, session, name)

    def fade(self, name: str, faded: Slot) -> None:
        """Count a name among the free ones, since it is done no more. It stands there where it stood."""
        principal, session = account_of_name(faded)
        self.done.take(principal, session, name)
        self.free.weigh(principal, session, name, weight_of_name(name, faded))

    def remember(self, place: str, thing: Remembered) -> None:
        """Enter what the retry memory keeps, behind all others of its account."""
        principal, session = account_of_remembered(thing)
        self.memory.put(principal, session, place, weight_of_remembered(place, thing))

    def forget(self, place: str, thing: Remembered) -> None:
        """Take out what the retry memory keeps no longer."""
        principal, session = account_of_remembered(thing)
        self.memory.take(principal, session, place)

    def _count_waiting(self, ticket: Ticket, by: int) -> None:
        who = ticket.terms.principal
        for session in (None, ticket.terms.session) if ticket.terms.bound else (None,):
            _count(self.waiting_names, (who, session), by * len(ticket.names))
            for name in ticket.names:
                _count(self.places, (name, who, session), by)

    def add_ticket(self, ticket: Ticket) -> None:
        """Enter a ticket into the lines, behind all others."""
        self._count_waiting(ticket, 1)
        ticket_id, terms = ticket.ticket_id, ticket.terms
        self.last_join_number += 1
        self.join_number[ticket_id] = self.last_join_number
        for name in ticket.names:
            self.lines.setdefault(name, {})[ticket_id] = None
        for lease_id in ticket.lease_ids:
            self.ticket_by_lease_id[lease_id] = ticket_id
        holder = holder_of_ticket(ticket)
        if holder[0] != "alone":
            self.tickets_by_wish.setdefault((holder, frozenset(ticket.names)), {})[ticket_id] = None
        if terms.bound and terms.session is not None:
            self.tickets_by_session.setdefault(terms.session, {})[ticket_id] = None
        self.tickets_by_principal.setdefault(terms.principal, {})[ticket_id] = None

    def drop_ticket(self, ticket: Ticket) -> None:
        """Take a ticket out of the lines."""
        self._count_waiting(ticket, -1)
        ticket_id, terms = ticket.ticket_id, ticket.terms
        del self.join_number[ticket_id]
        for name in ticket.names:
            _take_out(self.lines, name, ticket_id)
        for lease_id in ticket.lease_ids:
            self.ticket_by_lease_id.pop(lease_id, None)
        _take_out(self.tickets_by_wish, (holder_of_ticket(ticket), frozenset(ticket.names)), ticket_id)
        if terms.bound and terms.session is not None:
            _take_out(self.tickets_by_session, terms.session, ticket_id)
        _take_out(self.tickets_by_principal, terms.principal, ticket_id)


def _count(counts: dict[K, int], who: K, by: int) -> None:
    """Change a count; what nobody has is not kept."""
    left = counts.get(who, 0) + by
    if left:
        counts[who] = left
    else:
        counts.pop(who, None)


def _take_out(groups: dict[K, dict[str, V]], key: K, item: str) -> None:
    """Take one out of a group, and the group away with its last."""
    group = groups.get(key)
    if group is not None:
        group.pop(item, None)
        if not group:
            del groups[key]
