"""The event feed: durable records, published to listeners in their order (I16).

A listener has a bounded backlog. A slow listener is disconnected and never delays others. A listener that came with a
token or a session stops when that has ended. A follower hears only the ends of the leases and sessions that it named;
finding it costs one look-up by id, and only for a record that ends something.

A dashboard needs current state, not events, so `Touched` collects names: each once, however often it changed, renewals
too. Of a session that was kept only the session is noted, since thousands of leases may be bound to it. Nothing is
collected while no dashboard is open.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Protocol, TypeAlias

from holdfast.core.events import (
    Ended,
    Granted,
    GrantedMany,
    Joined,
    Left,
    Renewed,
    SessionEnded,
    SessionKept,
    SessionOpened,
    SessionRenewed,
    TokenEnded,
    TokenRevoked,
    Transferred,
    is_history,
    names_of,
)
from holdfast.engine.measures import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.core.events import Event, Record

TOUCHED_MAX = 20_000
"""How many names and sessions are noted. Beyond it none is, and the reader has to read everything again."""


class Touched:
    """The names and sessions that durable records changed since they were last taken."""

    def __init__(self) -> None:
        self.names: dict[str, bool] = {}
        """In the order in which they changed first; True if more may have changed than the times of a lease."""
        self.sessions: dict[str, None] = {}
        """Sessions that have another deadline, began or ended."""
        self.is_too_much = False
        """Whether some were not noted, for lack of room."""
        self._news = asyncio.Event()

    async def wait(self) -> None:
        """Wait until something changed."""
        await self._news.wait()

    def note(self, records: Iterable[Record]) -> None:
        names = self.names
        for record in records:
            event = record.event
            kind = type(event)
            if kind is Renewed:
                self._note_renewal(event)  # type: ignore[arg-type]
            elif kind is SessionKept:
                self.sessions[event.session_id] = None  # type: ignore[union-attr]
            elif kind is SessionRenewed:
                self.sessions[event.session_id] = None  # type: ignore[union-attr]
                for each in event.leases:  # type: ignore[union-attr]
                    self._note_renewal(each)  # type: ignore[arg-type]
            else:
                for name in names_of(event):
                    names[name] = True
                self._note_sessions(event)
        if len(names) + len(self.sessions) > TOUCHED_MAX:
            names.clear()
            self.sessions.clear()
            self.is_too_much = True
        if names or self.sessions or self.is_too_much:
            self._news.set()

    def _note_sessions(self, event: Event) -> None:
        match event:
            case SessionOpened():
                self.sessions[event.session.session_id] = None
            case SessionEnded():
                self.sessions[event.session_id] = None
            case TokenEnded():
                self.sessions |= dict.fromkeys(each.session_id for each in event.sessions)
            case _:
                pass

    def _note_renewal(self, renewed: Renewed) -> None:
        if renewed.note is None and renewed.metadata is None:
            self.names.setdefault(renewed.name, False)
        else:
            self.names[renewed.name] = True

    def take(self, names_max: int) -> dict[str, bool]:
        """Take the names that changed first, at most so many."""
        if len(self.names) <= names_max:
            taken, self.names = self.names, {}
        else:
            taken = {name: self.names.pop(name) for name in list(islice(self.names, names_max))}
        self._settle()
        return taken

    def take_sessions(self) -> dict[str, None]:
        taken, self.sessions = self.sessions, {}
        self._settle()
        return taken

    def take_too_much(self) -> bool:
        """Return whether some were not noted, and reset it."""
        was, self.is_too_much = self.is_too_much, False
        self._settle()
        return was

    def _settle(self) -> None:
        if not (self.names or self.sessions or self.is_too_much):
            self._news.clear()


BACKLOG_MAX = 100
ALL_BACKLOG_MAX = 10_000
"""For listeners to everything: one turn's records must fit."""
NAMES_BACKLOG_MAX = 100_000
"""How many names the records in a backlog may have: one record may grant a thousand."""
EVERYTHING = ""
"""Not a name: its listeners hear every record with history value."""
FOLLOWERS_PER_ID_MAX = 8
"""How many may follow one lease at the same time with the same token or secret.

With one more the oldest gives way, since its connection may be dead. It is notified, so a live one comes again.
"""

_ENDING = frozenset({Ended, Transferred, SessionEnded, TokenEnded})
"""What ends a lease or a session."""
_SHUTTING_OUT = frozenset({SessionEnded, TokenEnded, TokenRevoked})
"""What ends the right to listen."""


Groups: TypeAlias = "dict[str, dict[Listener, None]]"
"""Listeners, in the order in which they came."""


class Listener:
    """Listens to one name or to everything. Ends when closed, when it falls behind, or with its token or session."""

    def __init__(self, feed: Feed, name: str, whose: tuple[str, ...]) -> None:
        self._feed = feed
        self._name = name
        self.whose = whose
        """The token and the session that it came with, see `_of_token` and `_of_session`."""
        self._backlog_max = ALL_BACKLOG_MAX if name == EVERYTHING else BACKLOG_MAX
        self._backlog: deque[tuple[Record, Event]] = deque()
        self._backlog_names = 0
        self._news = asyncio.Event()
        self.is_over = False
        self.fell_behind = False
        """Whether it is over because it did not keep up: it missed records."""
        self.on_over: Callable[[], None] = _nothing
        """Called when it is over, for a task that waits for something else too."""

    async def next(self) -> tuple[Record, Event] | None:
        """Return the next event, or None when it is over."""
        while not self._backlog:
            if self.is_over:
                return None
            self._news.clear()
            await self._news.wait()
        return self.at_hand()

    def at_hand(self) -> tuple[Record, Event] | None:
        """Return the next event if it is there already."""
        if not self._backlog:
            return None
        happening = self._backlog.popleft()
        self._backlog_names -= _size_of(happening[1])
        return happening

    def put(self, record: Record, event: Event) -> None:
        """Add to the backlog, or end a listener whose backlog is full."""
        size = _size_of(event)
        if len(self._backlog) >= self._backlog_max or self._backlog_names + size > NAMES_BACKLOG_MAX:
            self._backlog.clear()
            self.fell_behind = True
            self.close()
            return
        self._backlog.append((record, event))
        self._backlog_names += size
        self._news.set()

    def close(self) -> None:
        self._be_over()
        self._feed.forget(self._name, self)

    def _be_over(self) -> None:
        self.is_over = True
        self._news.set()
        self.on_over()


class Follower(Listener):
    """Hears the end of each lease and session that it named, once. Ends as a listener does."""

    def __init__(self, feed: Feed, whose: tuple[str, ...], secret_of: str | None) -> None:
        super().__init__(feed, EVERYTHING, whose)
        self.secret_of = secret_of
        """The session or claim whose secret it came with; None if it came with the token."""
        self._ids: dict[str, None] = {}
        self.gave_way_at: str | None = None
        """The id at which too many followed, if it is over because of that."""

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, id_: str) -> None:
        """Follow a lease or a session that lives now."""
        if id_ not in self._ids and not self.is_over:
            self._ids[id_] = None
            self._feed.enter_follower(id_, self)

    def drop(self, id_: str) -> None:
        self._ids.pop(id_, None)

    def give_way(self, id_: str) -> None:
        """End, so that another can follow this one."""
        self.gave_way_at = id_
        self.close()

    def close(self) -> None:
        self._be_over()
        ids, self._ids = self._ids, {}
        self._feed.forget_follower(ids, self)


def _nothing() -> None:
    pass


def _size_of(event: Event) -> int:
    """Return how many names an event has: its weight in a backlog."""
    match event:
        case GrantedMany():
            return len(event.grants)
        case Ended():
            return 1 + len(event.left)
        case SessionEnded():
            return len(event.leases) + len(event.left)
        case TokenEnded():
            return sum(map(_size_of, event.sessions)) + len(event.left)
        case Joined():
            return len(event.ticket.names)
        case Left():
            return len(event.names)
        case _:
            return 1


def _of_token(principal: str) -> str:
    return f"token {principal}"


def _of_session(session_id: str) -> str:
    return f"session {session_id}"


def _whose(principal: str | None, session: str | None) -> tuple[str, ...]:
    of_token = () if principal is None else (_of_token(principal),)
    return of_token if session is None else (*of_token, _of_session(session))


def _take_out(groups: Groups, key: str, listener: Listener) -> bool:
    """Take a listener out of a group, and an empty group away; False if it is not in it."""
    those = groups.get(key, {})
    if listener not in those:
        return False
    del those[listener]
    if not those:
        del groups[key]
    return True


class Witness(Protocol):
    """A part of the server that is called with all records, and must be quick: every answer waits for it."""

    def note(self, records: Sequence[Record]) -> None:
        pass


class Feed:
    """All listeners."""

    def __init__(self, tally: Tally | None = None) -> None:
        self._listeners: Groups = {}
        self._followers: dict[str, tuple[Follower, ...]] = {}
        """By the id of a lease or a session, oldest first."""
        self._by_whose: Groups = {}
        """Those of each token and session, all followers among them."""
        self._looks: tuple[Touched, ...] = ()
        self._witnesses: tuple[Witness, ...] = ()
        self.count = 0
        self.tally = Tally() if tally is None else tally

    @property
    def names(self) -> int:
        """How many names have listeners."""
        return len(self._listeners)

    def is_listened_to(self, name: str) -> bool:
        return name in self._listeners

    def listen(self, name: str, principal: str | None = None, session: str | None = None) -> Listener:
        """Listen to a name until it is closed, or until this token or this session has ended."""
        listener = Listener(self, name, _whose(principal, session))
        self._listeners.setdefault(name, {})[listener] = None
        for each in listener.whose:
            self._by_whose.setdefault(each, {})[listener] = None
        self.count += 1
        return listener

    def follow(self, principal: str, session: str | None = None, claim: str | None = None) -> Follower:
        """Follow what will be added, until it is closed, or until this token or this session has ended.

        `session` or `claim` is that whose secret was shown instead of the token.
        """
        follower = Follower(self, _whose(principal, session), session if claim is None else claim)
        for each in follower.whose:
            self._by_whose.setdefault(each, {})[follower] = None
        return follower

    def look(self) -> Touched:
        """Collect the changed names from now on, until `look_away`."""
        touched = Touched()
        self._looks = (*self._looks, touched)
        return touched

    def look_away(self, touched: Touched) -> None:
        self._looks = tuple(each for each in self._looks if each is not touched)

    def enter_follower(self, id_: str, follower: Follower) -> None:
        """Enter a follower of a lease or a session.

        It can only take the place of one with the same secret. A command has the secret of its claim, and must not keep
        the news from the program that started it with the token.
        """
        alike = [each for each in self._followers.get(id_, ()) if each.secret_of == follower.secret_of]
        if len(alike) >= FOLLOWERS_PER_ID_MAX:
            alike[0].give_way(id_)
        self._followers[id_] = (*self._followers.get(id_, ()), follower)

    def forget_follower(self, ids: Iterable[str], follower: Follower) -> None:
        """Take a follower out of all that it follows; harmless if it is out already."""
        for id_ in ids:
            left = tuple(each for each in self._followers.get(id_, ()) if each is not follower)
            if left:
                self._followers[id_] = left
            else:
                self._followers.pop(id_, None)
        for whose in follower.whose:
            _take_out(self._by_whose, whose, follower)

    def forget(self, name: str, listener: Listener) -> None:
        """Take a listener out; harmless if it is out already."""
        if _take_out(self._listeners, name, listener):
            for whose in listener.whose:
                _take_out(self._by_whose, whose, listener)
            self.count -= 1

    def attach(self, witness: Witness) -> None:
        """Notify a witness of all records from now on, also after `close`."""
        self._witnesses = (*self._witnesses, witness)

    def detach(self, witness: Witness) -> None:
        self._witnesses = tuple(each for each in self._witnesses if each is not witness)

    def publish(self, records: Sequence[Record]) -> None:
        """Count records and notify listeners. Without listeners, counting is all."""
        self.tally.count(records)
        for witness in self._witnesses:
            witness.note(records)
        if not self._listeners and not self._by_whose and not self._looks:
            return
        for touched in self._looks:
            touched.note(records)
        if not self._listeners and not self._by_whose:
            return
        for record in records:
            event = record.event
            kind = type(event)
            if kind in _ENDING and self._followers:
                self._tell_of_end(record, event)
            if self._listeners:
                self._tell_listeners(record, event)
            if kind in _SHUTTING_OUT:
                self._end_those_of(event)

    def _tell_listeners(self, record: Record, event: Event) -> None:
        match event:
            case Granted() | Renewed() | Ended() | Transferred():
                self._tell(event.name, record, event)
            case GrantedMany():
                for grant in event.grants:
                    self._tell(grant.name, record, grant)
            case SessionEnded() | SessionRenewed():
                for each in event.leases:
                    self._tell(each.name, record, each)
            case TokenEnded():
                for session in event.sessions:
                    for ended in session.leases:
                        self._tell(ended.name, record, ended)
            case _:
                pass
        if EVERYTHING in self._listeners and is_history(event):
            self._tell(EVERYTHING, record, event)

    def _tell_of_end(self, record: Record, event: Event) -> None:
        """Notify the followers of what this event ended."""
        match event:
            case Ended(lease_id=ended) | Transferred(old_lease_id=ended) | SessionEnded(session_id=ended):
                for follower in self._followers.pop(ended, ()):
                    follower.drop(ended)
                    follower.put(record, event)
            case _:
                pass
        match event:
            case SessionEnded(leases=parts) | TokenEnded(sessions=parts):
                for part in parts:
                    self._tell_of_end(record, part)
            case _:
                pass

    def _end_those_of(self, event: Event) -> None:
        """End the listeners whose token or session this event ended."""
        match event:
            case TokenEnded(name=principal) | TokenRevoked(name=principal):
                # Those of its sessions too: their secrets are dead, even if the sessions live on (S5).
                whose = _of_token(principal)
            case SessionEnded(session_id=session_id):
                whose = _of_session(session_id)
            case _:
                return
        for listener in list(self._by_whose.get(whose, ())):
            listener.close()

    def close(self) -> None:
        """End every listener: the server stops."""
        for groups in (self._listeners, self._by_whose):
            for those in list(groups.values()):
                for listener in list(those):
                    listener.close()

    def _tell(self, name: str, record: Record, event: Event) -> None:
        for listener in list(self._listeners.get(name, ())):
            listener.put(record, event)
