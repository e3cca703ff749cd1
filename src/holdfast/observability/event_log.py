"""The event log: one line for each grant and each end of a lease, once it is durable.

    granted 'deploy' to 'agent-3', fencing token 12
    expired 'deploy' of 'agent-3', fencing token 12

A line never has a lease id, metadata, a note, labels or a reason: those may be secret.

One record may end ten thousand leases. Records therefore wait in a bounded queue, and each iteration of the event loop
logs at most `LINES_PER_TICK` lines. A warning reports how many lines were dropped because the queue was full.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from holdfast.core.events import (
    Ended,
    Granted,
    GrantedMany,
    SessionEnded,
    TokenEnded,
    Transferred,
    ends_of,
    events_by_name,
    grants_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.core.events import Record
    from holdfast.core.values import Lease
    from holdfast.engine.engine import Engine

LINES_PER_TICK = 100
LINES_MAX = 100_000
_LOGGED = frozenset({Granted, GrantedMany, Transferred, Ended, SessionEnded, TokenEnded})

log = logging.getLogger("holdfast.events")


class EventLog:
    def __init__(self, engine: Engine) -> None:
        self._feed = engine.feed
        self._loop = asyncio.get_running_loop()
        self._records: deque[Record] = deque()
        self._lines: Iterator[None] | None = None  # See `_logged`; None while no record is queued.
        self._waiting = self._dropped = 0
        self._feed.observe(self.note)

    def note(self, records: Iterable[Record]) -> None:
        for record in records:
            event = record.event
            if type(event) not in _LOGGED:
                continue
            count = 1 if isinstance(event, Transferred) else len(grants_of(event)) + len(ends_of(event))
            if self._waiting + count > LINES_MAX:
                self._dropped += count
            elif count:
                self._waiting += count
                self._records.append(record)
        if self._records and self._lines is None:
            self._lines = _logged(self._records)
            self._loop.call_soon(self._log_batch, LINES_PER_TICK)

    def end(self) -> None:
        self._feed.ignore(self.note)
        self._log_batch(self._waiting)

    def _log_batch(self, lines_max: int) -> None:
        for _ in islice(self._lines or (), lines_max):
            self._waiting -= 1
        if self._waiting:
            self._loop.call_soon(self._log_batch, LINES_PER_TICK)
            return
        self._lines = None
        if self._dropped:
            log.warning("event log overflow: dropped %d lines", self._dropped)
            self._dropped = 0


def _logged(records: deque[Record]) -> Iterator[None]:
    """Log one line per step."""
    while records:
        record = records.popleft()
        for name, change in events_by_name(record.event):
            match change:
                case Granted() | Transferred():
                    _log(record, "granted" if isinstance(change, Granted) else "transferred", name, change.lease)
                case Ended():
                    _log(record, "done" if change.done is not None else change.how, name, change)
                case _:
                    continue
            yield


def _log(record: Record, event: str, name: str, claim: Lease | Ended) -> None:
    fields = {
        "event": event,
        "name": name,
        "owner": claim.owner,
        "principal": claim.principal,
        "fencing_token": claim.token,
        "seq": record.seq,
        "at_wall_ms": record.wall_ms,
    }
    link = "to" if event in {"granted", "transferred"} else "of"
    whose = f"access token {claim.principal}" if claim.owner is None else repr(claim.owner)
    log.info("%s %r %s %s, fencing token %d", event, name, link, whose, claim.token, extra={"fields": fields})
