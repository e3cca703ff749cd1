"""Connected waiters, and interests. Not durable: a restart forgets both.

A ticket outlives the request that waits with it (W2). While one waits, and for a moment between two requests if the
first announced the second, the ticket is *attached*: it can be granted and counts in the wait-for graph. Otherwise it
is *detached*: it keeps its order, blocks no other, and is dropped after a minute. No record may depend on this, or a
replay would give another state.

A `WaitQueue` knows whether its name is open. A ticket of several names counts those that are not (`closed_names`), so
that no change has to check all names of all tickets. A refused `rlock` leaves an *interest*: its holder is thought to
want the name for a minute (D3).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from heapq import merge
from itertools import islice

from holdfast.core.usage import UsageLedger, planned_evictions
from holdfast.core.values import INTERESTS_MAX, INTERESTS_OF_HOLDER_MAX, Holder, Ticket, holder_of_ticket

QueuePosition = tuple[int, str]  # join number and ticket: sorts in the order of joining (I12)


class WaitQueue:
    __slots__ = ("is_open", "multi_name", "single_name")

    def __init__(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self.single_name: list[QueuePosition] = []  # tickets for this name alone: only the first can be granted
        self.multi_name: list[QueuePosition] = []  # tickets for other names too, which may have to be passed over

    def __len__(self) -> int:
        return len(self.single_name) + len(self.multi_name)

    def __iter__(self) -> Iterator[QueuePosition]:
        return merge(self.single_name, self.multi_name)

    def count_before(self, position: QueuePosition) -> int:
        return bisect_left(self.single_name, position) + bisect_left(self.multi_name, position)


class ConnectedWaiters:
    def __init__(self) -> None:
        self.attached: set[str] = set()
        self.queues: dict[str, WaitQueue] = {}
        self.tickets_by_holder: dict[Holder, dict[str, None]] = {}  # attached ones, in the order of attaching
        self.closed_names: dict[str, int] = {}  # of each attached ticket of several names: how many are not open
        self.detached_since: OrderedDict[str, int] = OrderedDict()  # no request waits; oldest first
        self.interests: dict[Holder, dict[str, int]] = {}  # until when a holder is thought to wait for a name (D3)
        self.interests_by_age: OrderedDict[tuple[Holder, str], tuple[int, str]] = OrderedDict()
        self.interest_usage = UsageLedger()

    def attach(self, ticket: Ticket, join_number: int, is_open: Callable[[str], bool]) -> bool:
        """Mark a ticket as attached. Return whether all that it wants is open."""
        ticket_id = ticket.ticket_id
        self.detached_since.pop(ticket_id, None)
        if ticket_id in self.attached:
            return False
        self.attached.add(ticket_id)
        self.tickets_by_holder.setdefault(holder_of_ticket(ticket), {})[ticket_id] = None
        position = (join_number, ticket_id)
        closed_names = 0
        for name in ticket.names:
            if (queue := self.queues.get(name)) is None:
                queue = self.queues[name] = WaitQueue(is_open=is_open(name))
            insort(queue.multi_name if len(ticket.names) > 1 else queue.single_name, position)
            closed_names += not queue.is_open
        if len(ticket.names) > 1:
            self.closed_names[ticket_id] = closed_names
        return not closed_names

    def detach(self, ticket: Ticket, join_number: int) -> None:
        ticket_id = ticket.ticket_id
        if ticket_id not in self.attached:
            return
        self.attached.remove(ticket_id)
        self.closed_names.pop(ticket_id, None)
        holder = holder_of_ticket(ticket)
        those = self.tickets_by_holder[holder]
        del those[ticket_id]
        if not those:
            del self.tickets_by_holder[holder]
        position = (join_number, ticket_id)
        for name in ticket.names:
            queue = self.queues[name]
            positions = queue.multi_name if len(ticket.names) > 1 else queue.single_name
            del positions[bisect_left(positions, position)]
            if not queue:
                del self.queues[name]

    def can_be_granted(self, ticket: Ticket) -> bool:
        """Return whether a ticket is attached and all that it wants is open.

        Finished work needs no check: its record answered every ticket without `redo`, and none can join after it (L5).
        """
        if ticket.ticket_id not in self.attached:
            return False
        if len(ticket.names) > 1:
            return not self.closed_names[ticket.ticket_id]
        return self.queues[ticket.names[0]].is_open

    def add_interest(self, holder: Holder, name: str, principal: str, now_ms: int, until_ms: int) -> None:
        self.drop_interest(holder, name)
        wanted = self.interests.setdefault(holder, {})
        wanted[name] = until_ms
        self.interests_by_age[holder, name] = (until_ms, principal)
        self.interest_usage.put(principal, _session_of(holder), _item(holder, name), 1)
        for (oldest, expired), (faded_ms, _) in list(islice(self.interests_by_age.items(), 2)):
            # Two go for each that comes, so that all go in time. A faded one has no effect while it is there.
            if faded_ms <= now_ms:
                self.drop_interest(oldest, expired)
        if len(wanted) > INTERESTS_OF_HOLDER_MAX:
            self.drop_interest(holder, next(iter(wanted)))
        if self.interest_usage.weight > INTERESTS_MAX:
            self._evict_interests()

    def _evict_interests(self) -> None:
        ledger = self.interest_usage
        for principal, session, number in list(planned_evictions(ledger, INTERESTS_MAX)):
            for item in list(islice(ledger.account(principal, session).items, number)):
                name, _, owner = item.partition("\n")
                kind, who = ("principal", principal) if session is None else ("session", session)
                self.drop_interest((kind, who, owner or None), name)

    def drop_interest(self, holder: Holder, name: str | None = None) -> None:
        if (wanted := self.interests.get(holder)) is None:
            return
        for each in [*wanted] if name is None else [name]:
            if wanted.pop(each, None) is not None:
                _, principal = self.interests_by_age.pop((holder, each))
                self.interest_usage.take(principal, _session_of(holder), _item(holder, each))
        if not wanted:
            del self.interests[holder]


def _session_of(holder: Holder) -> str | None:
    return holder[1] if holder[0] == "session" else None


def _item(holder: Holder, name: str) -> str:
    """Return the key of an interest in its account. No name has a line break."""
    return f"{name}\n{holder[2] or ''}"
