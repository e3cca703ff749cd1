"""The state: one slot per name, the sessions, the tokens, the one retry memory. Only `evolve` changes it.

The durable part is what `freeze` returns. The rest are indexes, rebuilt from it: counts, alarms, the ordered names.
Values are frozen, so that `freeze` is a few shallow copies and the snapshot can be encoded later, in slices (I15).
"""

from __future__ import annotations

import heapq
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from holdfast.core.events import (
    Ended,
    Event,
    Forgotten,
    Granted,
    Opened,
    Record,
    Renewed,
    SessionEnded,
    SessionKept,
    SessionOpened,
    SessionRenewed,
    TimePassed,
    TokenCreated,
    TokenRevoked,
)
from holdfast.core.ordered import OrderedNames
from holdfast.core.values import (
    AccessToken,
    EndedLease,
    EndedSession,
    LastEnd,
    Lease,
    Memo,
    Remembered,
    Session,
    Slot,
    SpentKey,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

EMPTY = Slot()

ALARMS_SPARE = 1_000
"""How many alarms may outlive what they were set for, beyond as many as there are live ones."""


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


class State:
    """Who owns what, as of the last record."""

    def __init__(self) -> None:
        self.seq = 0
        self.now_ms = 0
        self.last_token = 0
        self.epoch = 0
        self.slots: dict[str, Slot] = {}
        self.sessions: dict[str, Session] = {}
        self.remembered: dict[str, Remembered] = {}
        """Ended leases and sessions by id and spent keys, oldest first: the one retry memory (C5)."""
        self.memos: dict[tuple[str, str], Memo] = {}
        """What each (principal, idempotency key) made, while that lives or is remembered."""
        self.tokens: dict[str, AccessToken] = {}
        # Indexes from here on.
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
        return bool(self.held or self.sessions) or self.closed_until_ms > self.now_ms

    def next_alarm_ms(self) -> int | None:
        """Return the earliest instant at which something may fall due; it may turn out to be nothing, never late."""
        dues = [alarms[0][0] for alarms in (self.lease_alarms, self.session_alarms) if alarms]
        return min(dues, default=None)

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
        state._build_indexes()
        return state

    def _build_indexes(self) -> None:
        self.held.update(name for name, slot in self.slots.items() if slot.lease is not None)
        for name, slot in self.slots.items():
            self.closed_until_ms = max(self.closed_until_ms, slot.closed_until_ms)
            lease = slot.lease
            if lease is None:
                continue
            self.slots[name] = replace(slot, alarm_ms=lease.until_ms)
            self.lease_alarms.append((lease.until_ms, lease.token, name))
            _count(self.leases_of, lease.principal, 1)
            if lease.session in self.sessions:
                self.names_in.setdefault(lease.session, {})[name] = lease.bound
        heapq.heapify(self.lease_alarms)
        for session in self.sessions.values():
            self.session_alarms.append((session.until_ms, session.session_id))
            _count(self.sessions_of, session.principal, 1)
        heapq.heapify(self.session_alarms)
        self.token_by_digest = {token.digest: token for token in self.tokens.values()}


def evolve(state: State, record: Record) -> None:
    """Let a record take effect. It never refuses: what is in the journal has happened."""
    event = record.event
    state.seq = record.seq
    state.now_ms = record.at_ms
    match event:
        case Granted():
            _granted(state, event)
        case Renewed():
            _renewed(state, event, record)
        case Ended():
            _ended(state, event, record)
        case SessionOpened():
            _session_opened(state, event)
        case SessionKept():
            _session_kept(state, event.session_id, event.until_ms)
        case SessionRenewed():
            _session_kept(state, event.session_id, event.until_ms)
            for renewed in event.leases:
                _renewed(state, renewed, record)
        case SessionEnded():
            _session_ended(state, event, record)
        case TokenCreated():
            _token_created(state, event, record)
        case TokenRevoked():
            _token_revoked(state, event, record)
        case Forgotten():
            _forgotten(state, event)
        case Opened():
            state.epoch = event.epoch
        case TimePassed():
            pass


def _granted(state: State, event: Granted) -> None:
    name, lease = event.name, event.lease
    before = state.slots.get(name, EMPTY)
    state.slots[name] = Slot(lease, 0, before.last_end, before.attempts + 1, lease.until_ms)
    state.last_token = lease.token
    state.held.add(name)
    _count(state.leases_of, lease.principal, 1)
    heapq.heappush(state.lease_alarms, (lease.until_ms, lease.token, name))
    if lease.session is not None:
        state.names_in.setdefault(lease.session, {})[name] = lease.bound
    if lease.key is not None:
        state.memos[lease.principal, lease.key] = Memo("acquire", lease.lease_id, event.fingerprint)


def _renewed(state: State, event: Renewed, record: Record) -> None:
    slot = state.slots[event.name]
    lease = slot.lease
    if lease is None:
        return
    lease = replace(
        lease,
        ttl_ms=event.ttl_ms,
        until_ms=event.until_ms,
        note=lease.note if event.note is None else event.note,
        metadata=lease.metadata if event.metadata is None else event.metadata,
        beat_wall_ms=record.wall_ms,
        renew_key=lease.renew_key if event.key is None else event.key,
    )
    # A later deadline keeps its alarm, which looks again when it rings; only an earlier one needs a new alarm.
    alarm_ms = slot.alarm_ms
    if event.until_ms < alarm_ms:
        alarm_ms = event.until_ms
        heapq.heappush(state.lease_alarms, (alarm_ms, lease.token, event.name))
    state.slots[event.name] = Slot(lease, slot.closed_until_ms, slot.last_end, slot.attempts, alarm_ms)
    if event.claim_key is not None:
        memo = Memo("acquire", lease.lease_id, event.fingerprint)
        _spend_key(state, lease.principal, event.claim_key, memo, record.at_ms)


def _ended(state: State, event: Ended, record: Record) -> None:
    slot = state.slots.pop(event.name)
    lease = slot.lease
    if lease is None:
        return
    end = LastEnd(
        event.how,
        event.token,
        lease.owner,
        lease.note,
        record.at_ms,
        record.wall_ms,
        event.by,
        event.reason,
        lease.delay_ms,
    )
    # Popped and put back, so that the names nobody holds stand in the order in which they ended.
    state.slots[event.name] = Slot(None, event.closed_until_ms, end, 0 if event.well else slot.attempts)
    state.closed_until_ms = max(state.closed_until_ms, event.closed_until_ms)
    state.held.remove(event.name)
    _count(state.leases_of, lease.principal, -1)
    if lease.session is not None:
        state.names_in.get(lease.session, {}).pop(event.name, None)
    state.remembered[lease.lease_id] = EndedLease(event.name, lease.principal, lease.session, end, lease.key, event.key)
    if event.key is not None and event.by is not None:
        state.memos[event.by, event.key] = Memo("release", lease.lease_id, event.fingerprint)
    if len(state.lease_alarms) > 2 * len(state.held) + ALARMS_SPARE:
        _drop_dead_lease_alarms(state)


def _drop_dead_lease_alarms(state: State) -> None:
    """A lease of a day that was released at once must not keep its alarm for a day."""
    slots = state.slots
    alive: list[tuple[int, int, str]] = []
    for alarm in state.lease_alarms:
        slot = slots.get(alarm[2], EMPTY)
        if slot.lease is not None and slot.lease.token == alarm[1] and slot.alarm_ms == alarm[0]:
            alive.append(alarm)
    heapq.heapify(alive)
    state.lease_alarms = alive


def _session_opened(state: State, event: SessionOpened) -> None:
    session = event.session
    state.sessions[session.session_id] = session
    _count(state.sessions_of, session.principal, 1)
    heapq.heappush(state.session_alarms, (session.until_ms, session.session_id))
    if session.key is not None:
        state.memos[session.principal, session.key] = Memo("session", session.session_id, event.fingerprint)


def _session_kept(state: State, session_id: str, until_ms: int) -> None:
    state.sessions[session_id] = replace(state.sessions[session_id], until_ms=until_ms)


def _session_ended(state: State, event: SessionEnded, record: Record) -> None:
    for ended in event.leases:
        _ended(state, ended, record)
    session = state.sessions.pop(event.session_id)
    state.names_in.pop(event.session_id, None)
    _count(state.sessions_of, session.principal, -1)
    state.remembered[event.session_id] = EndedSession(
        session.principal, event.how, record.at_ms, record.wall_ms, session.key, event.key
    )
    if event.key is not None:
        state.memos[session.principal, event.key] = Memo("end_session", event.session_id, event.fingerprint)
    if len(state.session_alarms) > 2 * len(state.sessions) + ALARMS_SPARE:
        state.session_alarms = [alarm for alarm in state.session_alarms if alarm[1] in state.sessions]
        heapq.heapify(state.session_alarms)


def _token_created(state: State, event: TokenCreated, record: Record) -> None:
    token = event.token
    state.tokens[token.name] = token
    state.token_by_digest[token.digest] = token
    if event.key is not None:
        _spend_key(state, token.made_by, event.key, Memo("token", token.name, event.fingerprint), record.at_ms)


def _token_revoked(state: State, event: TokenRevoked, record: Record) -> None:
    token = state.tokens.pop(event.name)
    state.token_by_digest.pop(token.digest, None)
    if event.key is not None:
        _spend_key(state, event.by, event.key, Memo("revoke_token", event.name, event.fingerprint), record.at_ms)


def _spend_key(state: State, principal: str, key: str, memo: Memo, at_ms: int) -> None:
    state.memos[principal, key] = memo
    state.remembered[f"{principal} {key}"] = SpentKey(principal, key, at_ms)


def _forgotten(state: State, event: Forgotten) -> None:
    for place in list(islice(state.remembered, event.remembered)):
        match state.remembered.pop(place):
            case EndedLease(principal=principal, key=key, end_key=end_key):
                _forget_memos(state, principal, key, end_key)
            case EndedSession(principal=principal, key=key, end_key=end_key):
                _forget_memos(state, principal, key, end_key)
            case SpentKey(principal=principal, key=key):
                _forget_memos(state, principal, key)
    if event.names:
        for name in list(islice(forgettable(state, state.now_ms), event.names)):
            del state.slots[name]


def forgettable(state: State, now_ms: int) -> Iterator[str]:
    """Yield the names that nobody holds and nothing keeps closed (I14), in the order in which they ended."""
    slots = state.slots.items()
    return (name for name, slot in slots if slot.lease is None and slot.closed_until_ms <= now_ms)


def _forget_memos(state: State, principal: str, *keys: str | None) -> None:
    for key in keys:
        if key is not None:
            state.memos.pop((principal, key), None)


def _count(counts: dict[str, int], who: str, by: int) -> None:
    left = counts.get(who, 0) + by
    if left:
        counts[who] = left
    else:
        counts.pop(who, None)


def event_fits(state: State, event: Event) -> bool:
    """Tell whether the event speaks of what is there: a journal that does not fit its own past is damaged."""
    match event:
        case Granted():
            return state.lease_of(event.name) is None and event.lease.token > state.last_token
        case Renewed() | Ended():
            lease = state.lease_of(event.name)
            return lease is not None and lease.lease_id == event.lease_id
        case SessionKept():
            return event.session_id in state.sessions
        case SessionRenewed():
            return event.session_id in state.sessions and all(event_fits(state, renewed) for renewed in event.leases)
        case SessionEnded():
            return event.session_id in state.sessions and all(event_fits(state, ended) for ended in event.leases)
        case TokenRevoked():
            return event.name in state.tokens
        case _:
            return True
