"""What is so, as of the last record. Four parts, and each says who may change it.

    part        holds                                         changed by
    ---------   -------------------------------------------   -------------------------------------------------
    State       what the journal says: slots, sessions,       `evolve` alone
                tickets, tokens, their last uses,
                the retry memory
    .index      look-ups over it: counts, lines, held names   `evolve` alone; a restart builds the same
    .agenda     where to look next: alarms, who may have a    `evolve` and `arrive` add, `settle` takes
                turn
    .presence   which waiters have an open request, what      the engine, by `arrive`, `depart` and interests;
                they lack, and who asked without waiting.     `evolve` takes out what has ended; `evolve` and
                Empty after a restart                         `settle` note that a name has opened or closed

`decide` and the views change none of them. `tests/core/test_state_parts.py` holds every line of this table.

The durable part is seven tables and a few numbers. The tables note what changed in them (`kept`), and `take_changes`
gives that away for the archive: what it costs does not depend on how much there is. Values are frozen, so that they can
be encoded later, in slices (I15).
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappush
from typing import Any

import msgspec

from holdfast.core.agenda import Agenda
from holdfast.core.index import Index
from holdfast.core.kept import Kept, Notes
from holdfast.core.presence import Presence
from holdfast.core.values import (
    ABSENT_MS_MAX,
    AccessToken,
    Lease,
    Memo,
    Remembered,
    Session,
    Slot,
    Ticket,
)

EMPTY = Slot()


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The scalars of the state."""

    seq: int = 0
    now_ms: int = 0
    last_token: int = 0
    epoch: int = 0
    restores: int = 0
    restored_seq: int = 0


class Frozen(msgspec.Struct, frozen=True):
    """A consistent picture of the durable part, cheap to take. What it holds is never changed again."""

    head: Head
    slots: dict[str, Slot]
    sessions: dict[str, Session]
    remembered: dict[str, Remembered]
    memos: dict[tuple[str, str], Memo]
    tokens: dict[str, AccessToken]
    tickets: dict[str, Ticket]
    last_used: dict[str, int]


TABLES = Frozen.__struct_fields__[1:]
"""The names of the tables, in the order in which they are written."""


class Taken(msgspec.Struct):
    """What changed in the durable part since it was taken before, as of the last record."""

    head: Head
    tables: dict[str, Notes[Any, Any]]


class State:
    """Who owns what, as of the last record."""

    def __init__(self) -> None:
        self.seq = self.now_ms = self.last_token = self.epoch = 0
        self.restores = self.restored_seq = 0
        """How often the journal itself went back to an earlier record, and the record that said so last."""
        self.slots: Kept[str, Slot] = Kept()
        self.sessions: Kept[str, Session] = Kept()
        self.remembered: Kept[str, Remembered] = Kept()
        """Ended leases and sessions by id and spent keys, oldest first: the one retry memory (C5)."""
        self.memos: Kept[tuple[str, str], Memo] = Kept()
        """What each (principal, idempotency key) made, while that lives or is remembered."""
        self.tokens: Kept[str, AccessToken] = Kept()
        self.tickets: Kept[str, Ticket] = Kept()
        """Who stands in line, in the order of joining (W2)."""
        self.last_used: Kept[str, int] = Kept()
        """By a token's name, made or static: the minute of its last use, as wall time."""
        self.index = Index()
        self.agenda = Agenda()
        self.presence = Presence()

    # Looks.

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

    def has_deadlines(self) -> bool:
        """Tell whether time matters: somebody holds, lives or waits for something to open (T1)."""
        return bool(self.index.held or self.sessions or self.tickets) or self.index.closed_until_ms > self.now_ms

    def next_alarm_ms(self) -> int | None:
        """Return the earliest instant at which something may fall due; it may turn out to be nothing, never late."""
        dues = self.agenda.next_alarms_ms()
        if self.presence.absent_since:
            dues.append(next(iter(self.presence.absent_since.values())) + ABSENT_MS_MAX)
        return min(dues, default=None)

    def waiting_at(self, name: str) -> int:
        """Return how many wait for a name and are present."""
        return len(self.presence.lines.get(name, ()))

    def position_of(self, ticket_id: str) -> int:
        """Return the place in the longest of the lines that a ticket stands in, counting those who are present."""
        place = (self.index.join_number[ticket_id], ticket_id)
        lines = (self.presence.lines.get(name) for name in self.tickets[ticket_id].names)
        return 1 + max(0 if line is None else line.count_before(place) for line in lines)

    def is_open(self, name: str) -> bool:
        """Tell whether a name can be granted: nobody holds it, and settling has seen the end of its delay (L6)."""
        slot = self.slots.get(name)
        return slot is None or (slot.lease is None and slot.closed_until_ms <= self.agenda.opened_until_ms)

    # Whose turn it may be (line.py says why this is enough).

    def look_again_at(self, name: str) -> None:
        """Note for those present in a line whether its name is open now. To say it twice changes nothing."""
        line = self.presence.lines.get(name)
        if line is None or line.is_open == (is_open := self.is_open(name)):
            return
        line.is_open = is_open
        lacking = self.presence.lacking
        if not is_open:
            for _, ticket_id in line.severals:
                lacking[ticket_id] += 1
            return
        for place in line.severals:
            lacking[place[1]] -= 1
            if not lacking[place[1]]:
                heappush(self.agenda.candidates, place)
        self.offer(name)

    def offer(self, name: str) -> None:
        """Let the first who wants an open name alone be a candidate for it."""
        line = self.presence.lines.get(name)
        if line is not None and line.is_open and line.singles:
            heappush(self.agenda.candidates, line.singles[0])

    # Who is present: said by the engine, kept by no record (W2).

    def arrive(self, ticket_id: str) -> None:
        """A request waits at this place: it counts in the line and in the graph of waits."""
        ticket = self.tickets[ticket_id]
        number = self.index.join_number[ticket_id]
        if self.presence.enter(ticket, number, self.is_open):
            heappush(self.agenda.candidates, (number, ticket_id))

    def depart(self, ticket_id: str, now_ms: int) -> None:
        """No request waits at this place for now: it keeps its order and blocks nobody."""
        if ticket_id in self.presence.present:
            self.presence.leave(self.tickets[ticket_id], self.index.join_number[ticket_id])
            self.presence.absent_since[ticket_id] = now_ms

    def send_everybody_away(self, now_ms: int | None = None) -> None:
        """After a restart nobody is present, and each in line has its full minute to come back from now on (W2).

        `now_ms` is for who knows that it is later than the last record.
        """
        self.presence = Presence()
        self.presence.absent_since = OrderedDict.fromkeys(self.tickets, self.now_ms if now_ms is None else now_ms)

    # What the archive is given, and what it gives back.

    @property
    def head(self) -> Head:
        """The scalars."""
        return Head(self.seq, self.now_ms, self.last_token, self.epoch, self.restores, self.restored_seq)

    def table(self, name: str) -> Kept[Any, Any]:
        """Return one of `TABLES`."""
        found: Kept[Any, Any] = getattr(self, name)
        return found

    def take_changes(self) -> Taken:
        """Take what changed since this was done before. It takes no longer for more of it: nothing is copied."""
        return Taken(self.head, {name: self.table(name).take() for name in TABLES})

    def begin_with(self, head: Head) -> None:
        """Build the other parts, once the tables are loaded. Nothing of it is a change."""
        self.seq, self.now_ms, self.last_token, self.epoch = head.seq, head.now_ms, head.last_token, head.epoch
        self.restores, self.restored_seq = head.restores, head.restored_seq
        self.index.build(self.slots, self.sessions, self.tickets, self.tokens, self.remembered)
        self.agenda.build(self.slots, self.sessions)
        self.send_everybody_away()

    # Pictures, for tests and for what is done offline: they walk over everything.

    def freeze(self) -> Frozen:
        """Take a consistent picture: shallow copies of all tables."""
        return Frozen(
            self.head,
            self.slots.copy(),
            self.sessions.copy(),
            self.remembered.copy(),
            self.memos.copy(),
            self.tokens.copy(),
            self.tickets.copy(),
            self.last_used.copy(),
        )

    @classmethod
    def thaw(cls, frozen: Frozen) -> State:
        """Make a state from a picture; the other parts are built anew."""
        state = cls()
        for name in TABLES:
            state.table(name).load(getattr(frozen, name))
        state.begin_with(frozen.head)
        return state
