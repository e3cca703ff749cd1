"""Look-ups over what is durable, and the held names in order.

The index holds nothing that is not in the tables of the state, and is in no archive. `build` makes it, `evolve`
maintains it, and a test compares the two after every step. Empty collections are dropped.

**`OrderedNames`** serves listings by prefix. Claims outnumber listings by far, so a change is only noted. A listing
sorts the noted names in first, some at a time, and yields between. The order is a list of short sorted lists, so that
one change moves a few hundred names. Python compares strings by code point, which is the byte order of UTF-8.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterator
from operator import itemgetter
from typing import TypeVar

from holdfast.core.names import NAME_BYTES_MAX
from holdfast.core.usage import (
    UsageLedger,
    account_of_name,
    account_of_remembered,
    weight_of_done,
    weight_of_name,
    weight_of_remembered,
)
from holdfast.core.values import AccessToken, Holder, Lease, Remembered, Session, Slot, Ticket, holder_of_ticket

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

BLOCK_NAMES = 512  # of a new block, which is split at twice that; small blocks are left alone
_AFTER_ALL = chr(0x10FFFF) * (NAME_BYTES_MAX // 4 + 1)  # prefix + this > all names with the prefix: no name is as long
_last = itemgetter(-1)


class OrderedNames:
    def __init__(self) -> None:
        self._blocks: list[list[str]] = []
        self._in_blocks = 0
        self._added: set[str] = set()
        self._removed: set[str] = set()

    def __len__(self) -> int:
        return self._in_blocks - len(self._removed) + len(self._added)

    def add(self, name: str) -> None:
        if name in self._removed:
            self._removed.discard(name)
        else:
            self._added.add(name)

    def remove(self, name: str) -> None:
        if name in self._added:
            self._added.discard(name)
        else:
            self._removed.add(name)

    def build(self, order: list[str]) -> None:
        order.sort()
        self._blocks = [order[entry_id : entry_id + BLOCK_NAMES] for entry_id in range(0, len(order), BLOCK_NAMES)]
        self._in_blocks = len(order)

    @property
    def unordered(self) -> int:
        return len(self._added) + len(self._removed)

    def put_in_order(self, names_max: int) -> None:
        for _ in range(min(names_max, len(self._removed))):
            self._delete(self._removed.pop())
            names_max -= 1
        for _ in range(min(names_max, len(self._added))):
            self._insert(self._added.pop())
        # An emptied set keeps its capacity, and finding the next name to pop would take longer and longer.
        if not self._removed:
            self._removed = set()
        if not self._added:
            self._added = set()

    def walk(self, prefix: str = "", after: str = "") -> Iterator[str]:
        """Yield the names that start with `prefix` and come after `after`, in order. Invalid once the set changes.

        Updates the order first. A caller that must not take long calls `put_in_order` before.
        """
        self.put_in_order(self.unordered)
        # The first name with the prefix, or the first after `after`, whichever is later.
        start, find = (after, bisect_right) if after >= prefix and after else (prefix, bisect_left)
        first = find(self._blocks, start, key=_last)
        for number in range(first, len(self._blocks)):
            block = self._blocks[number]
            for entry_id in range(find(block, start) if number == first else 0, len(block)):
                if not block[entry_id].startswith(prefix):
                    return
                yield block[entry_id]

    def count(self, prefix: str) -> int:
        if not prefix:
            return len(self)
        self.put_in_order(self.unordered)
        return self._count_before(prefix + _AFTER_ALL) - self._count_before(prefix)

    def _count_before(self, name: str) -> int:
        number = bisect_left(self._blocks, name, key=_last)
        if number == len(self._blocks):
            return self._in_blocks
        return sum(map(len, self._blocks[:number])) + bisect_left(self._blocks[number], name)

    def _insert(self, name: str) -> None:
        self._in_blocks += 1
        if not self._blocks:
            self._blocks.append([name])
            return
        number = min(bisect_left(self._blocks, name, key=_last), len(self._blocks) - 1)
        block = self._blocks[number]
        insort(block, name)
        if len(block) >= 2 * BLOCK_NAMES:
            self._blocks.insert(number + 1, block[BLOCK_NAMES:])
            del block[BLOCK_NAMES:]

    def _delete(self, name: str) -> None:
        self._in_blocks -= 1
        number = bisect_left(self._blocks, name, key=_last)
        block = self._blocks[number]
        del block[bisect_left(block, name)]
        if not block:
            del self._blocks[number]


class Index:
    def __init__(self) -> None:
        self.held = OrderedNames()
        self.lease_count: dict[str, int] = {}
        self.sessions_by_principal: dict[str, dict[str, None]] = {}
        self.tickets_by_principal: dict[str, dict[str, None]] = {}
        self.names_by_session: dict[str, dict[str, bool]] = {}  # held names of a session; True if bound to it
        self.queues: dict[str, dict[str, None]] = {}  # tickets by name, in the order of joining
        self.join_number: dict[str, int] = {}  # rises with the order of joining, across all queues (I12)
        self.last_join_number = 0
        # The ticket of a holder for just these names, in any order (W3). One, except in journals of old versions.
        self.tickets_by_names: dict[tuple[Holder, frozenset[str]], dict[str, None]] = {}
        self.tickets_by_session: dict[str, dict[str, None]] = {}
        self.ticket_by_lease_id: dict[str, str] = {}
        self.token_by_digest: dict[str, AccessToken] = {}
        self.token_prefixes: list[str] = []
        self.closed_until_ms = 0
        self.waiting_names: dict[tuple[str, str | None], int] = {}  # names waited for; None: the principal's total
        self.ticket_counts: dict[
            tuple[str, str, str | None], int
        ] = {}  # tickets in a queue; None: the principal's total
        self.retry_usage = UsageLedger()
        self.free_usage = UsageLedger()  # by who left them; done names are among them with weight 0
        self.done_count = 0
        self.done_usage = UsageLedger()

    def build(
        self,
        slots: dict[str, Slot],
        sessions: dict[str, Session],
        tickets: dict[str, Ticket],
        tokens: dict[str, AccessToken],
        remembered: dict[str, Remembered],
    ) -> None:
        held: list[str] = []
        for name, slot in slots.items():
            lease = slot.lease
            if slot.closed_until_ms:
                self.closed_until_ms = max(self.closed_until_ms, slot.closed_until_ms)
            if lease is None:
                self.add_free(name, slot)
                continue
            held.append(name)
            self.add_lease(name, lease, sessions)
        self.held.build(held)
        for session in sessions.values():
            self.add_session(session)
        for ticket in tickets.values():
            self.add_ticket(ticket)
        for token in tokens.values():
            self.add_token(token)
        for entry_id, entry in remembered.items():
            self.remember(entry_id, entry)

    def add_lease(self, name: str, lease: Lease, sessions: dict[str, Session]) -> None:
        """Add a live lease. The caller updates `held`, since a transfer leaves the name held.

        `sessions` are those that live: a plain claim may outlive the session it counts in.
        """
        self.lease_count[lease.principal] = self.lease_count.get(lease.principal, 0) + 1
        if lease.session is not None and lease.session in sessions:
            self.names_by_session.setdefault(lease.session, {})[name] = lease.bound

    def drop_lease(self, name: str, lease: Lease) -> None:
        _count(self.lease_count, lease.principal, -1)
        if lease.session is not None:
            _take_out(self.names_by_session, lease.session, name)

    def add_session(self, session: Session) -> None:
        self.sessions_by_principal.setdefault(session.principal, {})[session.session_id] = None

    def drop_session(self, session: Session) -> None:
        _take_out(self.sessions_by_principal, session.principal, session.session_id)
        self.names_by_session.pop(session.session_id, None)

    def add_token(self, token: AccessToken) -> None:
        self.token_by_digest[token.digest] = token
        if token.prefix is not None:
            insort(self.token_prefixes, token.prefix)

    def drop_token(self, token: AccessToken) -> None:
        self.token_by_digest.pop(token.digest, None)
        if token.prefix is not None:
            del self.token_prefixes[bisect_left(self.token_prefixes, token.prefix)]

    def crowded_prefix(self, within: str, most: int) -> str | None:
        """Return the shortest token prefix that `within` lies in, with `most` tokens or more, or None.

        A confined maker is checked for all of them: what it makes counts for its own maker too.
        """
        those = self.token_prefixes
        for size in range(1, len(within) + 1):
            prefix = within[:size]
            first = bisect_left(those, prefix)
            if first < len(those) and those[first] == prefix:
                end = bisect_right(those, prefix, lo=first, key=itemgetter(slice(size)))
                if end - first >= most:
                    return prefix
        return None

    def add_free(self, name: str, slot: Slot) -> None:
        principal, session = account_of_name(slot)
        if slot.done is None:
            self.free_usage.put(principal, session, name, weight_of_name(name, slot))
        else:
            self.free_usage.put(principal, session, name, 0)
            self.done_usage.put(principal, session, name, weight_of_done(name, slot.done))
            self.done_count += 1

    def drop_free(self, name: str, slot: Slot) -> None:
        principal, session = account_of_name(slot)
        self.free_usage.take(principal, session, name)
        if slot.done is not None:
            self.done_usage.take(principal, session, name)
            self.done_count -= 1

    def expire_done(self, name: str, expired: Slot) -> None:
        principal, session = account_of_name(expired)
        self.done_usage.take(principal, session, name)
        self.done_count -= 1
        self.free_usage.put(principal, session, name, weight_of_name(name, expired))  # keeps its position

    def remember(self, entry_id: str, entry: Remembered) -> None:
        principal, session = account_of_remembered(entry)
        self.retry_usage.put(principal, session, entry_id, weight_of_remembered(entry_id, entry))

    def forget(self, entry_id: str, entry: Remembered) -> None:
        principal, session = account_of_remembered(entry)
        self.retry_usage.take(principal, session, entry_id)

    def _count_waiting(self, ticket: Ticket, by: int) -> None:
        who = ticket.terms.principal
        for session in (None, ticket.terms.session) if ticket.terms.bound else (None,):
            _count(self.waiting_names, (who, session), by * len(ticket.names))
            for name in ticket.names:
                _count(self.ticket_counts, (name, who, session), by)

    def add_ticket(self, ticket: Ticket) -> None:
        self._count_waiting(ticket, 1)
        ticket_id, terms = ticket.ticket_id, ticket.terms
        self.last_join_number += 1
        self.join_number[ticket_id] = self.last_join_number
        for name in ticket.names:
            self.queues.setdefault(name, {})[ticket_id] = None
        for lease_id in ticket.lease_ids:
            self.ticket_by_lease_id[lease_id] = ticket_id
        holder = holder_of_ticket(ticket)
        if holder[0] != "alone":
            self.tickets_by_names.setdefault((holder, frozenset(ticket.names)), {})[ticket_id] = None
        if terms.bound and terms.session is not None:
            self.tickets_by_session.setdefault(terms.session, {})[ticket_id] = None
        self.tickets_by_principal.setdefault(terms.principal, {})[ticket_id] = None

    def drop_ticket(self, ticket: Ticket) -> None:
        self._count_waiting(ticket, -1)
        ticket_id, terms = ticket.ticket_id, ticket.terms
        del self.join_number[ticket_id]
        for name in ticket.names:
            _take_out(self.queues, name, ticket_id)
        for lease_id in ticket.lease_ids:
            self.ticket_by_lease_id.pop(lease_id, None)
        _take_out(self.tickets_by_names, (holder_of_ticket(ticket), frozenset(ticket.names)), ticket_id)
        if terms.bound and terms.session is not None:
            _take_out(self.tickets_by_session, terms.session, ticket_id)
        _take_out(self.tickets_by_principal, terms.principal, ticket_id)


def _count(counts: dict[K, int], who: K, by: int) -> None:
    left = counts.get(who, 0) + by
    if left:
        counts[who] = left
    else:
        counts.pop(who, None)


def _take_out(groups: dict[K, dict[str, V]], key: K, item: str) -> None:
    if (group := groups.get(key)) is not None:
        group.pop(item, None)
        if not group:
            del groups[key]
