"""The log of events: one line for each grant and each end of a lease, once it is durable.

    granted 'deploy' to 'agent-3', fencing token 12
    expired 'deploy' of 'agent-3', fencing token 12

A line has the name, the owner, the access token's name, the fencing token, and the number of the record, by which
`/events` and the history know it. Never a lease id, metadata, a note, labels or a reason: secrets may live there.

One record may end ten thousand leases. So records stand in a bounded queue, and `LINES_PER_TURN` lines are written
between two looks at the sockets. Records for which there is no room are counted, and that is said.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from holdfast.core.events import Ended, Granted, GrantedMany, SessionEnded, TokenEnded, Transferred, ends_of, grants_of
from holdfast.server.streams.happenings import concerned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.core.events import Event, Record
    from holdfast.engine.engine import Engine

LINES_PER_TURN = 100
LINES_MAX = 100_000
"""How many may wait to be written."""
_TOLD = frozenset({Granted, GrantedMany, Transferred, Ended, SessionEnded, TokenEnded})

log = logging.getLogger("holdfast.events")


class EventLog:
    """Writes the lines of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._feed = engine.feed
        self._loop = asyncio.get_running_loop()
        self._lines: Iterator[None] = iter(())
        self._records: deque[Record] = deque()
        self._waiting = self._left_out = 0
        self._is_due = False
        self._feed.attach(self)

    def note(self, records: Iterable[Record]) -> None:
        """Take what became durable."""
        for record in records:
            if type(record.event) not in _TOLD:
                continue
            count = _count_of(record.event)
            if self._waiting + count > LINES_MAX:
                self._left_out += count
            elif count:
                self._waiting += count
                self._records.append(record)
        if self._records and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._work)

    def end(self) -> None:
        """Write what is left: there will be no more."""
        self._feed.detach(self)
        while self._waiting:
            self._write(self._waiting)
        self._tell_left_out()

    def _work(self) -> None:
        self._is_due = False
        self._write(LINES_PER_TURN)
        if self._waiting:
            self._is_due = True
            self._loop.call_soon(self._work)
        else:
            self._tell_left_out()

    def _write(self, lines_max: int) -> None:
        for _ in range(min(lines_max, self._waiting)):
            while next(self._lines, self) is self:
                self._lines = _written(self._records.popleft())
            self._waiting -= 1

    def _tell_left_out(self) -> None:
        if self._left_out:
            log.warning("%d grants and ends have no line here: there were too many at once", self._left_out)
            self._left_out = 0


def _count_of(event: Event) -> int:
    """Return how many lines an event has."""
    return 1 if isinstance(event, Transferred) else len(grants_of(event)) + len(ends_of(event))


def _written(record: Record) -> Iterator[None]:
    """Write the lines of a record, one for each step."""
    for name, told in concerned(record.event):
        match told:
            case Granted(lease=lease):
                _say(record, "granted", name, lease.owner, lease.principal, lease.token)
            case Transferred(lease=lease):
                _say(record, "transferred", name, lease.owner, lease.principal, lease.token)
            case Ended():
                how = "done" if told.done is not None else told.how
                _say(record, how, name, told.owner, told.principal, told.token)
            case _:
                continue
        yield


def _say(  # noqa: PLR0917 - a line has these parts
    record: Record, event: str, name: str, owner: str | None, principal: str | None, token: int
) -> None:
    fields = {
        "event": event,
        "name": name,
        "owner": owner,
        "principal": principal,
        "fencing_token": token,
        "seq": record.seq,
        "at_wall_ms": record.wall_ms,
    }
    link = "to" if event in {"granted", "transferred"} else "of"
    whose = f"access token {principal}" if owner is None else repr(owner)
    log.info("%s %r %s %s, fencing token %d", event, name, link, whose, token, extra={"fields": fields})
