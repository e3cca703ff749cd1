"""The event feed: durable records, published to listeners in their order (I16).

A slow listener is disconnected and never delays others. A listener that was opened with a token or a session ends with
it. A watch (`LeaseWatch`) receives only the ends of the leases and sessions that it named, found by one look-up by id.

A dashboard needs current state, not events, so `DirtyNames` collects changed names, each once, renewals too. Of a kept
session only the session is noted, since thousands of leases may be bound to it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TypeAlias

from holdfast.core import events
from holdfast.core.events import Event, Record, is_history, names_of, parts_of
from holdfast.engine.metrics import Tally

DIRTY_MAX = 20_000  # names and sessions; beyond it none is kept, and the reader reads everything again


class DirtyNames:
    def __init__(self) -> None:
        self.names: dict[str, bool] = {}  # in order of change; False if only a lease's times may have changed
        self.sessions: dict[str, None] = {}
        self.overflowed = False
        self._news = asyncio.Event()

    async def wait(self) -> None:
        while not (self.names or self.sessions or self.overflowed):
            self._news.clear()
            await self._news.wait()

    def note(self, records: Iterable[Record]) -> None:
        for record in records:
            match record.event:
                case events.Renewed():
                    self._note_renewal(record.event)
                case events.SessionExtended(session_id=session_id):
                    self.sessions[session_id] = None
                case events.SessionRenewed(session_id=session_id, leases=leases):
                    self.sessions[session_id] = None
                    for each in leases:
                        self._note_renewal(each)
                case events.SessionOpened(session=session):
                    self.sessions[session.session_id] = None
                case event:
                    self.names.update(dict.fromkeys(names_of(event), True))
                    self.sessions.update(dict.fromkeys(each.session_id for each in _ended_sessions(event)))
        if len(self.names) + len(self.sessions) > DIRTY_MAX:
            self.names.clear()
            self.sessions.clear()
            self.overflowed = True
        self._news.set()

    def _note_renewal(self, renewed: events.Renewed) -> None:
        if renewed.note is None and renewed.metadata is None:
            self.names.setdefault(renewed.name, False)
        else:
            self.names[renewed.name] = True

    def take(self, names_max: int) -> dict[str, bool]:
        if len(self.names) <= names_max:
            taken, self.names = self.names, {}
            return taken
        return {name: self.names.pop(name) for name in list(islice(self.names, names_max))}

    def take_sessions(self) -> dict[str, None]:
        taken, self.sessions = self.sessions, {}
        return taken

    def take_overflow(self) -> bool:
        was, self.overflowed = self.overflowed, False
        return was


def _ended_sessions(event: Event) -> tuple[events.SessionEnded, ...]:
    match event:
        case events.SessionEnded():
            return (event,)
        case events.TokenEnded():
            return event.sessions
        case _:
            return ()


BACKLOG_MAX = 100
ALL_BACKLOG_MAX = 10_000  # for listeners to everything, and followers: the records of one batch must fit
NAMES_BACKLOG_MAX = 100_000  # of the records in a backlog: one record may grant a thousand
EVERYTHING = ""  # Not a name: its listeners receive every record with history value.
# Of one lease, with the same token or secret. One more displaces the oldest, since its connection may be dead. It is
# notified, so a live one opens another stream.
WATCHES_PER_ID_MAX = 8

_ENDING = frozenset({events.Ended, events.Transferred, events.SessionEnded, events.TokenEnded})
_REVOKING = frozenset({events.SessionEnded, events.TokenEnded, events.TokenRevoked})
_OF_NAME = frozenset({events.Granted, events.Renewed, events.Ended, events.Transferred})


Groups: TypeAlias = "dict[str, dict[Listener, None]]"


class Listener:
    """Listens to one name or to everything. Ends when closed, when it falls behind, or with its token or session."""

    def __init__(self, backlog_max: int) -> None:
        self._groups: dict[str, Groups] = {}  # what it is in: names, ids and keys of secrets are never equal
        self._backlog_max = backlog_max
        self._backlog: deque[tuple[Record, Event]] = deque()
        self._backlog_names = 0
        self._news = asyncio.Event()
        self.is_over = False
        self.overflowed = False
        self.on_over: Callable[[], None] = lambda: None  # for a task that waits for something else too

    def enter(self, groups: Groups, key: str) -> None:
        self._groups[key] = groups
        groups.setdefault(key, {})[self] = None

    def leave(self, key: str) -> None:
        groups = self._groups.pop(key)
        del groups[key][self]
        if not groups[key]:
            del groups[key]

    async def next(self) -> tuple[Record, Event] | None:
        while not self._backlog:
            if self.is_over:
                return None
            self._news.clear()
            await self._news.wait()
        return self.next_nowait()

    def next_nowait(self) -> tuple[Record, Event] | None:
        if not self._backlog:
            return None
        record, event = self._backlog.popleft()
        self._backlog_names -= _size_of(event)
        return record, event

    def put(self, record: Record, event: Event) -> None:
        size = _size_of(event)
        if len(self._backlog) >= self._backlog_max or self._backlog_names + size > NAMES_BACKLOG_MAX:
            self._backlog.clear()
            self.overflowed = True
            self.close()
            return
        self._backlog.append((record, event))
        self._backlog_names += size
        self._news.set()

    def close(self) -> None:
        self.is_over = True
        for key in list(self._groups):
            self.leave(key)
        self._news.set()
        self.on_over()


class LeaseWatch(Listener):
    """Receives the end of each lease and session that it named, once. Ends as a listener does."""

    def __init__(self, ids: Groups, secret_of: str | None) -> None:
        super().__init__(ALL_BACKLOG_MAX)
        self._ids = ids
        self._secret_of = secret_of  # the session or claim whose secret it came with; None if it came with the token
        self._count = 0
        self.displaced_at: str | None = None

    def __len__(self) -> int:
        return self._count

    def add(self, id_: str) -> None:
        """Follow a lease or a session that lives now.

        This only displaces followers with the same secret: a command has the secret of its claim, and must not displace
        the program that started it with the token.
        """
        if id_ in self._groups or self.is_over:
            return
        others = self._ids.get(id_, {})
        alike = [each for each in others if isinstance(each, LeaseWatch) and each._secret_of == self._secret_of]  # noqa: SLF001 - its own class
        if len(alike) >= WATCHES_PER_ID_MAX:
            alike[0].displaced_at = id_
            alike[0].close()
        self.enter(self._ids, id_)
        self._count += 1

    def leave(self, key: str) -> None:
        self._count -= self._groups[key] is self._ids
        super().leave(key)


def _size_of(event: Event) -> int:
    match event:
        case events.Joined():
            return len(event.ticket.names)
        case events.Left():
            return len(event.names)
        case _:
            return sum(1 for _ in parts_of(event))


def _token(principal: str) -> str:
    return f"token {principal}"


def _session(session_id: str) -> str:
    return f"session {session_id}"


class Feed:
    def __init__(self, tally: Tally | None = None) -> None:
        self._by_name: Groups = {}
        self._by_id: Groups = {}
        self._by_secret: Groups = {}  # listeners of each token and session, all followers among them
        # Called with all records, also after `close`. They must be quick: every answer waits for them.
        self.observers: tuple[Callable[[Sequence[Record]], None], ...] = ()
        self.tally = Tally() if tally is None else tally

    @property
    def names(self) -> int:
        return len(self._by_name)

    def is_listened_to(self, name: str) -> bool:
        return name in self._by_name

    def listen(self, name: str, principal: str | None = None, session: str | None = None) -> Listener:
        listener = Listener(ALL_BACKLOG_MAX if name == EVERYTHING else BACKLOG_MAX)
        listener.enter(self._by_name, name)
        self._end_with(listener, principal, session)
        return listener

    def watch(self, principal: str, session: str | None = None, claim: str | None = None) -> LeaseWatch:
        """Return a watch, which ends with this token or session. `session` or `claim`: whose secret was used."""
        watch = LeaseWatch(self._by_id, session if claim is None else claim)
        self._end_with(watch, principal, session)
        return watch

    def _end_with(self, listener: Listener, principal: str | None, session: str | None) -> None:
        if principal is not None:
            listener.enter(self._by_secret, _token(principal))
        if session is not None:
            listener.enter(self._by_secret, _session(session))

    def observe(self, observer: Callable[[Sequence[Record]], None]) -> None:
        self.observers = (*self.observers, observer)

    def ignore(self, observer: Callable[[Sequence[Record]], None]) -> None:
        self.observers = tuple(each for each in self.observers if each != observer)

    def publish(self, records: Sequence[Record]) -> None:
        """Count records and notify listeners. Without listeners, counting is all."""
        self.tally.count(records)
        for observe in self.observers:
            observe(records)
        if not self._by_name and not self._by_secret:
            return
        for record in records:
            event = record.event
            kind = type(event)
            if kind in _ENDING and self._by_id:
                self._notify_watches(record, event)
            if self._by_name:
                for part in event.leases if isinstance(event, events.SessionRenewed) else parts_of(event):
                    if type(part) in _OF_NAME:
                        self._notify(part.name, record, part)  # type: ignore[union-attr]
                if EVERYTHING in self._by_name and is_history(event):
                    self._notify(EVERYTHING, record, event)
            if kind in _REVOKING:
                self._end_listeners_of(event)

    def _notify(self, name: str, record: Record, event: Event) -> None:
        for listener in list(self._by_name.get(name, ())):
            listener.put(record, event)

    def _notify_watches(self, record: Record, event: Event) -> None:
        ended = ""
        parts: tuple[Event, ...] = ()
        match event:
            case events.Ended():
                ended = event.lease_id
            case events.Transferred():
                ended = event.old_lease_id
            case events.SessionEnded():
                ended, parts = event.session_id, event.leases
            case events.TokenEnded():
                parts = event.sessions
            case _:
                pass
        for watch in list(self._by_id.get(ended, ())):
            watch.leave(ended)
            watch.put(record, event)
        for part in parts:
            self._notify_watches(record, part)

    def _end_listeners_of(self, event: Event) -> None:
        match event:
            case events.TokenEnded(name=principal) | events.TokenRevoked(name=principal):
                # Those of its sessions too: their secrets are dead, even if the sessions live on (S5).
                key = _token(principal)
            case events.SessionEnded(session_id=session_id):
                key = _session(session_id)
            case _:
                return
        for listener in list(self._by_secret.get(key, ())):
            listener.close()

    def close(self) -> None:
        for groups in (self._by_name, self._by_secret):
            for listener in [each for group in groups.values() for each in group]:
                listener.close()
