"""The state as of the last record. It has four parts, and each says who may change it.

    part        holds                                         changed by
    ---------   -------------------------------------------   -------------------------------------------------
    State       what the journal says: slots, sessions,       `evolve` alone
                tickets, tokens, their last uses,
                the retry memory
    .index      look-ups over it: counts, queues, held names  `evolve` alone; a restart builds the same
    .timers     deadlines, and candidates for a grant         `evolve` and `attach` add, `next_due` takes
    .connected  which waiters have an open request, what      the engine, by `attach`, `detach` and interests;
                they lack, and who asked without waiting.     `evolve` takes out what has ended; `evolve` and
                Empty after a restart                         `next_due` note that a name has opened or closed

`decide` and the queries change none of them. `tests/core/test_state_parts.py` checks every line of this table.

The durable part is seven tables and a few scalars. A table (`TrackedDict`) is a dictionary that tracks its changes
since the last `take_changes`, so that archiving costs what changed and not what there is:

    gone      keys that were there, and were taken out
    changed   keys that were there and stayed, with their values now
    new       keys that came, with their values, in their order after all others

A value that is set again keeps its position; one that is taken out and put in again comes last. Only `put` and `pop`
track changes, so the other methods raise, and the type checker refuses `table[key] = value` (a `__setitem__` of our own
would double the cost of each change). Values are frozen, so that they can be encoded later, in slices (I15).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from heapq import heappush
from typing import TYPE_CHECKING, Any, Generic, Never, NoReturn, TypeVar

import msgspec

from holdfast.core.connected_waiters import ConnectedWaiters
from holdfast.core.index import Index
from holdfast.core.timers import Timers
from holdfast.core.values import (
    DETACHED_MS_MAX,
    AccessToken,
    IdempotencyRecord,
    Lease,
    Remembered,
    Session,
    Slot,
    Ticket,
)

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")

REQUIRED: Any = object()

_pop = dict.pop


class ChangeSet(msgspec.Struct, Generic[K, V]):
    gone: dict[K, None]
    changed: dict[K, V]
    new: dict[K, V]

    def __len__(self) -> int:
        return len(self.gone) + len(self.changed) + len(self.new)

    def add(self, later: ChangeSet[K, V]) -> Iterator[None]:
        """Add later changes, one at each step."""
        gone, changed, new = self.gone, self.changed, self.new
        for key in later.gone:
            if key in new:
                # It came since the last time. If it was there before as well, it is in `gone`.
                del new[key]
            else:
                changed.pop(key, None)
                gone[key] = None
            yield
        for key, value in later.changed.items():
            (new if key in new else changed)[key] = value
            yield
        for key, value in later.new.items():
            new[key] = value
            yield

    def clear_in_steps(self) -> Iterator[None]:
        """Forget everything, one entry at each step, since freeing the values takes time."""
        for change_set in (self.gone, self.changed, self.new):
            while change_set:
                change_set.popitem()
                yield


class TrackedDict(dict[K, V]):
    __slots__ = ("changed", "gone", "new")

    def __init__(self) -> None:
        self.gone: dict[K, None] = {}
        self.changed: dict[K, V] = {}
        self.new: dict[K, V] = {}

    def load(self, rows: Mapping[K, V]) -> None:
        super().update(rows)

    def take_changes(self) -> ChangeSet[K, V]:
        """Return the changes since the last time, and start again. Constant time."""
        change_set = ChangeSet(self.gone, self.changed, self.new)
        self.gone, self.changed, self.new = {}, {}, {}
        return change_set

    def put(self, key: K, value: V) -> None:
        if key in self and key not in self.new:
            self.changed[key] = value
        else:
            self.new[key] = value
        self[key] = value  # type: ignore[index, assignment] # Nobody else may.

    def pop(self, key: K, default: Any = REQUIRED) -> Any:  # noqa: ANN401 - as a dictionary's
        if key in self.new:
            del self.new[key]
        elif key in self:
            self.changed.pop(key, None)
            self.gone[key] = None
        elif default is not REQUIRED:
            return default
        return _pop(self, key)

    if TYPE_CHECKING:

        def __setitem__(self, key: Never, value: Never) -> NoReturn: ...  # type: ignore[override]
        def __delitem__(self, key: Never) -> NoReturn: ...  # type: ignore[override]

    def _reject_untracked(self, *_: object, **__: object) -> NoReturn:
        """Refuse a change that would not be tracked."""
        raise TypeError("a table of the state is changed one row at a time, so that each change is noted")

    update = setdefault = popitem = clear = __ior__ = _reject_untracked


EMPTY = Slot()


class StateScalars(msgspec.Struct, frozen=True, array_like=True):
    seq: int = 0
    now_ms: int = 0
    last_token: int = 0
    epoch: int = 0
    restores: int = 0
    restored_seq: int = 0


class Frozen(msgspec.Struct, frozen=True):
    """A consistent snapshot of the durable part. Its values never change."""

    scalars: StateScalars
    slots: dict[str, Slot]
    sessions: dict[str, Session]
    remembered: dict[str, Remembered]
    memos: dict[tuple[str, str], IdempotencyRecord]
    tokens: dict[str, AccessToken]
    tickets: dict[str, Ticket]
    last_used: dict[str, int]


TABLES = Frozen.__struct_fields__[1:]  # in the order in which they are written


class StateChanges(msgspec.Struct):
    scalars: StateScalars
    tables: dict[str, ChangeSet[Any, Any]]


class State:
    def __init__(self) -> None:
        self.seq = self.now_ms = self.last_token = self.epoch = 0
        self.restores = self.restored_seq = 0  # how often the journal went back, and the record that says so
        self.slots: TrackedDict[str, Slot] = TrackedDict()
        self.sessions: TrackedDict[str, Session] = TrackedDict()
        self.remembered: TrackedDict[str, Remembered] = TrackedDict()
        self.memos: TrackedDict[tuple[str, str], IdempotencyRecord] = (
            TrackedDict()
        )  # while what a key made lives or is remembered
        self.tokens: TrackedDict[str, AccessToken] = TrackedDict()
        self.tickets: TrackedDict[str, Ticket] = TrackedDict()  # in the order of joining (W2)
        self.last_used: TrackedDict[str, int] = TrackedDict()  # by token name: the minute of its last use, as wall time
        self.index = Index()
        self.timers = Timers()
        self.connected = ConnectedWaiters()

    def lease_of(self, name: str) -> Lease | None:
        slot = self.slots.get(name)
        return None if slot is None else slot.lease

    def until_of(self, lease: Lease) -> int:
        """Return when a lease ends: the earlier of its own and its session's deadline (S2)."""
        if lease.bound and lease.session is not None:
            session = self.sessions.get(lease.session)
            if session is not None and session.until_ms < lease.until_ms:
                return session.until_ms
        return lease.until_ms

    def has_deadlines(self) -> bool:
        """Return whether time matters: something is held, lives or waits for a name to open (T1)."""
        return bool(self.index.held or self.sessions or self.tickets) or self.index.closed_until_ms > self.now_ms

    def next_deadline_ms(self) -> int | None:
        """Return the earliest instant at which something may fall due; maybe too early, never late."""
        timers = self.timers
        heaps = (timers.lease_deadlines.first_heap(), timers.session_deadlines.first_heap(), timers.opening_deadlines)
        dues = [deadlines[0][0] for deadlines in heaps if deadlines]
        if self.connected.detached_since:
            dues.append(next(iter(self.connected.detached_since.values())) + DETACHED_MS_MAX)
        return min(dues, default=None)

    def waiter_count(self, name: str) -> int:
        return len(self.connected.queues.get(name, ()))

    def position_of(self, ticket_id: str) -> int:
        """Return the position of a ticket in the longest of its queues, counting attached waiters."""
        position = (self.index.join_number[ticket_id], ticket_id)
        queues = (self.connected.queues.get(name) for name in self.tickets[ticket_id].names)
        return 1 + max(0 if queue is None else queue.count_before(position) for queue in queues)

    def is_open(self, name: str) -> bool:
        """Return whether a name can be granted: free, and the end of its delay was handled (L6)."""
        slot = self.slots.get(name)
        return slot is None or (slot.lease is None and slot.closed_until_ms <= self.timers.opened_until_ms)

    # Candidates for the next grant (`queue` explains why this is enough).

    def update_open(self, name: str) -> None:
        """Update whether a name is open for those attached in its queue. Idempotent."""
        queue = self.connected.queues.get(name)
        if queue is None or queue.is_open == (is_open := self.is_open(name)):
            return
        queue.is_open = is_open
        closed_names = self.connected.closed_names
        if not is_open:
            for _, ticket_id in queue.multi_name:
                closed_names[ticket_id] += 1
            return
        for position in queue.multi_name:
            closed_names[position[1]] -= 1
            if not closed_names[position[1]]:
                heappush(self.timers.candidates, position)
        self.add_candidate(name)

    def add_candidate(self, name: str) -> None:
        """Make the first waiter that wants only this open name a candidate."""
        queue = self.connected.queues.get(name)
        if queue is not None and queue.is_open and queue.single_name:
            heappush(self.timers.candidates, queue.single_name[0])

    # Attached tickets: reported by the engine, in no record (W2).

    def attach(self, ticket_id: str) -> None:
        ticket = self.tickets[ticket_id]
        number = self.index.join_number[ticket_id]
        if self.connected.attach(ticket, number, self.is_open):
            heappush(self.timers.candidates, (number, ticket_id))

    def detach(self, ticket_id: str, now_ms: int) -> None:
        if ticket_id in self.connected.attached:
            self.connected.detach(self.tickets[ticket_id], self.index.join_number[ticket_id])
            self.connected.detached_since[ticket_id] = now_ms

    def detach_all(self, now_ms: int | None = None) -> None:
        """Mark all waiters as detached after a restart; each has a full minute to come back (W2)."""
        self.connected = ConnectedWaiters()
        self.connected.detached_since = OrderedDict.fromkeys(self.tickets, self.now_ms if now_ms is None else now_ms)

    # To and from the archive.

    @property
    def scalars(self) -> StateScalars:
        return StateScalars(self.seq, self.now_ms, self.last_token, self.epoch, self.restores, self.restored_seq)

    def table(self, name: str) -> TrackedDict[Any, Any]:
        found: TrackedDict[Any, Any] = getattr(self, name)
        return found

    def take_changes(self) -> StateChanges:
        return StateChanges(self.scalars, {name: self.table(name).take_changes() for name in TABLES})

    def rebuild_from(self, scalars: StateScalars) -> None:
        """Build the other parts, once the tables are loaded."""
        self.seq, self.now_ms, self.last_token, self.epoch = (
            scalars.seq,
            scalars.now_ms,
            scalars.last_token,
            scalars.epoch,
        )
        self.restores, self.restored_seq = scalars.restores, scalars.restored_seq
        self.index.build(self.slots, self.sessions, self.tickets, self.tokens, self.remembered)
        self.timers.build(self.slots, self.sessions)
        self.detach_all()

    # Snapshots, for tests and offline work: they walk over everything.

    def freeze(self) -> Frozen:
        return Frozen(self.scalars, *(self.table(name).copy() for name in TABLES))

    @classmethod
    def thaw(cls, frozen: Frozen) -> State:
        state = cls()
        for name in TABLES:
            state.table(name).load(getattr(frozen, name))
        state.rebuild_from(frozen.scalars)
        return state
