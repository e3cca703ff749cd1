"""Which names may look different since somebody last looked: each once, however often it changed. Renewals too.

`/events` and watches tell what happened. Somebody who shows how things are needs less: the names, and then one look at
the state for each. So a name that is renewed a hundred times between two looks costs one entry, and nothing is kept of
the records themselves. While nobody looks, no record is looked at.

A session that is kept has another deadline, and so have the leases bound to it. They may be thousands, so only the
session is noted here, and whoever looks decides how many of its names it looks at.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING

from holdfast.core.events import Renewed, SessionEnded, SessionKept, SessionOpened, SessionRenewed, TokenEnded, names_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.core.events import Event, Record

TOUCHED_MAX = 20_000
"""How many names and sessions are noted. Beyond it nothing is: who looks has to look at everything anew."""


class Touched:
    """What durable records touched since it was last taken."""

    def __init__(self) -> None:
        self.names: dict[str, bool] = {}
        """In the order in which they were touched first; True if more may have changed than the times of a lease."""
        self.sessions: dict[str, None] = {}
        """Sessions that have another deadline, or began, or are over."""
        self.is_too_much = False
        """Whether some were not noted, because there was no room."""
        self._news = asyncio.Event()

    async def wait(self) -> None:
        """Wait until there is something."""
        await self._news.wait()

    def note(self, records: Iterable[Record]) -> None:
        """Note what these records touched."""
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
        """Note which sessions began with an event, or ended."""
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
        """Take the names that were touched first, at most so many."""
        if len(self.names) <= names_max:
            taken, self.names = self.names, {}
        else:
            taken = {name: self.names.pop(name) for name in list(islice(self.names, names_max))}
        self._settle()
        return taken

    def take_sessions(self) -> dict[str, None]:
        """Take the sessions."""
        taken, self.sessions = self.sessions, {}
        self._settle()
        return taken

    def take_too_much(self) -> bool:
        """Tell whether some were not noted, and begin anew."""
        was, self.is_too_much = self.is_too_much, False
        self._settle()
        return was

    def _settle(self) -> None:
        if not (self.names or self.sessions or self.is_too_much):
            self._news.clear()
