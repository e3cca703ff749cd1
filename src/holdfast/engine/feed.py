"""What happened, counted and told to those who listen: only records that are durable, in their order (I16).

A listener has a bounded backlog. One that does not keep up is dropped and told so; it never slows anybody else.
Who listens in the name of a token or a session stops when that has ended: the record that ends it says whose it was.

A follower is told of the ends of the leases and sessions that it named, and of nothing else. To find it costs one
look-up by id, and only for a record that ends something.

Who shows how things are is told which names to look at again (`touched`), renewals too, and nothing of what happened.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol, TypeAlias

from holdfast.core.events import (
    Ended,
    Granted,
    GrantedMany,
    Joined,
    Left,
    Renewed,
    SessionEnded,
    SessionRenewed,
    TokenEnded,
    TokenRevoked,
    Transferred,
    is_history,
)
from holdfast.engine.measures import Tally
from holdfast.engine.touched import Touched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.core.events import Event, Record

BACKLOG_MAX = 100
ALL_BACKLOG_MAX = 10_000
"""For one who listens to everything: what a turn can bring at once must fit."""
NAMES_BACKLOG_MAX = 100_000
"""How many names the records in a backlog may speak of: one record may grant a thousand."""
EVERYTHING = ""
"""Not a name: who listens to it hears every record with history value."""
FOLLOWERS_PER_ID_MAX = 8
"""How many may follow one lease at the same time with the same token or secret.

With one more the eldest gives way: its connection may be dead. It is told, so one that lives comes again.
"""

_ENDING = frozenset({Ended, Transferred, SessionEnded, TokenEnded})
"""What ends a lease or a session."""
_SHUTTING_OUT = frozenset({SessionEnded, TokenEnded, TokenRevoked})
"""What ends the right to listen."""


Groups: TypeAlias = "dict[str, dict[Listener, None]]"
"""Listeners, in the order in which they came."""


class Listener:
    """One who listens to one name, or to everything. Ends when closed, when it fell behind, or with its token."""

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
        """Whether it is over because it did not keep up: it missed something and must look anew."""
        self.on_over: Callable[[], None] = _nothing
        """Called when it is over, for one who waits for something else too."""

    async def next(self) -> tuple[Record, Event] | None:
        """Return the next happening, or None when it is over."""
        while not self._backlog:
            if self.is_over:
                return None
            self._news.clear()
            await self._news.wait()
        return self.at_hand()

    def at_hand(self) -> tuple[Record, Event] | None:
        """Return the next happening if it is there already."""
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
        """Stop listening."""
        self._be_over()
        self._feed.forget(self._name, self)

    def _be_over(self) -> None:
        self.is_over = True
        self._news.set()
        self.on_over()


class Follower(Listener):
    """One who is told of the end of each lease and session that it named, once. Ends as a listener does."""

    def __init__(self, feed: Feed, whose: tuple[str, ...], secret_of: str | None) -> None:
        super().__init__(feed, EVERYTHING, whose)
        self.secret_of = secret_of
        """The session or claim whose secret it came with; None if it came with the token."""
        self._ids: dict[str, None] = {}
        self.gave_way_at: str | None = None
        """If it is over because too many followed this one: its id."""

    def __len__(self) -> int:
        """Return how many ends are awaited."""
        return len(self._ids)

    def add(self, id_: str) -> None:
        """Follow a lease or a session that lives now."""
        if id_ not in self._ids and not self.is_over:
            self._ids[id_] = None
            self._feed.enter_follower(id_, self)

    def drop(self, id_: str) -> None:
        """Know that this one is not awaited any more: it has ended."""
        self._ids.pop(id_, None)

    def give_way(self, id_: str) -> None:
        """End, so that another can follow this one."""
        self.gave_way_at = id_
        self.close()

    def close(self) -> None:
        """Stop listening."""
        self._be_over()
        ids, self._ids = self._ids, {}
        self._feed.forget_follower(ids, self)


def _nothing() -> None:
    """Do nothing."""


def _size_of(event: Event) -> int:
    """Return how many names an event speaks of: what it weighs in a backlog."""
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
    """Take a listener out of a group, and the group away with its last; False if it is not in it."""
    those = groups.get(key, {})
    if listener not in those:
        return False
    del those[listener]
    if not those:
        del groups[key]
    return True


class Witness(Protocol):
    """One of our own who is told everything at once, and must be quick: whoever waits for an answer waits for it."""

    def note(self, records: Sequence[Record]) -> None:
        """Know what became durable."""


class Feed:
    """Who listens to what."""

    def __init__(self, tally: Tally | None = None) -> None:
        self._listeners: Groups = {}
        self._followers: dict[str, tuple[Follower, ...]] = {}
        """By the id of a lease or a session; the eldest first."""
        self._by_whose: Groups = {}
        """Those of each token and session. Every follower is in here."""
        self._looks: tuple[Touched, ...] = ()
        self._witnesses: tuple[Witness, ...] = ()
        self.count = 0
        self.tally = Tally() if tally is None else tally

    @property
    def names(self) -> int:
        """How many names somebody listens to."""
        return len(self._listeners)

    def is_listened_to(self, name: str) -> bool:
        """Tell whether anybody listens to a name."""
        return name in self._listeners

    def listen(self, name: str, principal: str | None = None, session: str | None = None) -> Listener:
        """Listen to a name from now on: until it is closed, or until this token or this session has ended."""
        listener = Listener(self, name, _whose(principal, session))
        self._listeners.setdefault(name, {})[listener] = None
        for each in listener.whose:
            self._by_whose.setdefault(each, {})[listener] = None
        self.count += 1
        return listener

    def follow(self, principal: str, session: str | None = None, claim: str | None = None) -> Follower:
        """Follow what will be added: until it is closed, or until this token or this session has ended.

        `session` or `claim` is that whose secret was shown in place of the token, if one was.
        """
        follower = Follower(self, _whose(principal, session), session if claim is None else claim)
        for each in follower.whose:
            self._by_whose.setdefault(each, {})[follower] = None
        return follower

    def look(self) -> Touched:
        """Note from now on which names are touched, until `look_away`."""
        touched = Touched()
        self._looks = (*self._looks, touched)
        return touched

    def look_away(self, touched: Touched) -> None:
        """Note it no more; harmless if it is not noted."""
        self._looks = tuple(each for each in self._looks if each is not touched)

    def enter_follower(self, id_: str, follower: Follower) -> None:
        """Enter one who follows a lease or a session.

        It can only take the place of one with the same secret. A command has the secret of its claim, and must not be
        able to keep the news from who started it with the token.
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
        """Tell somebody all records from now on, also after `close`."""
        self._witnesses = (*self._witnesses, witness)

    def detach(self, witness: Witness) -> None:
        """Tell it no more."""
        self._witnesses = tuple(each for each in self._witnesses if each is not witness)

    def publish(self, records: Sequence[Record]) -> None:
        """Count what happened, and tell everybody concerned. While nobody listens, that is all."""
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
        """Tell those who follow what this event ended. It is over, so nobody follows it any more."""
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
        """End those who listen in the name of what this event ended."""
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
