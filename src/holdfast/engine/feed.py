"""What happened, told to those who listen: only records that are durable, in their order (I16).

A listener has a bounded backlog. One that does not keep up is dropped and told so; it never slows anybody else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from holdfast.core.events import Ended, Granted, Renewed, SessionEnded, SessionRenewed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.core.events import Event, Record

BACKLOG_MAX = 100


class Listener:
    """One who listens to one name. Ends when closed, or when it fell behind."""

    def __init__(self, feed: Feed, name: str) -> None:
        self._feed = feed
        self._name = name
        self._backlog: deque[tuple[Record, Event]] = deque()
        self._stirred = asyncio.Event()
        self.is_over = False
        self.fell_behind = False
        """Whether it is over because it did not keep up: it missed something and must look anew."""

    async def next(self) -> tuple[Record, Event] | None:
        """Return the next happening, or None when it is over."""
        while not self._backlog:
            if self.is_over:
                return None
            self._stirred.clear()
            await self._stirred.wait()
        return self._backlog.popleft()

    def put(self, record: Record, event: Event) -> None:
        """Add to the backlog, or end a listener whose backlog is full."""
        if len(self._backlog) >= BACKLOG_MAX:
            self._backlog.clear()
            self.fell_behind = True
            self.close()
            return
        self._backlog.append((record, event))
        self._stirred.set()

    def close(self) -> None:
        """Stop listening."""
        self.is_over = True
        self._stirred.set()
        self._feed.forget(self._name, self)


class Feed:
    """Who listens to what."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Listener]] = {}
        self.count = 0

    @property
    def names(self) -> int:
        """How many names somebody listens to."""
        return len(self._listeners)

    def is_listened_to(self, name: str) -> bool:
        """Tell whether anybody listens to a name."""
        return name in self._listeners

    def listen(self, name: str) -> Listener:
        """Listen to a name from now on."""
        listener = Listener(self, name)
        self._listeners.setdefault(name, []).append(listener)
        self.count += 1
        return listener

    def forget(self, name: str, listener: Listener) -> None:
        """Take a listener out; harmless if it is out already."""
        those = self._listeners.get(name, [])
        if listener in those:
            those.remove(listener)
            self.count -= 1
            if not those:
                del self._listeners[name]

    def publish(self, records: Iterable[Record]) -> None:
        """Tell everybody concerned. Nothing is looked at while nobody listens."""
        if not self._listeners:
            return
        for record in records:
            event = record.event
            match event:
                case Granted() | Renewed() | Ended():
                    self._tell(event.name, record, event)
                case SessionEnded() | SessionRenewed():
                    for each in event.leases:
                        self._tell(each.name, record, each)
                case _:
                    pass

    def close(self) -> None:
        """End every listener: the server stops."""
        for those in list(self._listeners.values()):
            for listener in list(those):
                listener.close()

    def _tell(self, name: str, record: Record, event: Event) -> None:
        for listener in list(self._listeners.get(name, ())):
            listener.put(record, event)
