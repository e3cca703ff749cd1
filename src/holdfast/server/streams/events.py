"""GET /events: everything that happens but renewals, in order, from any place on. Server-sent events.

One frame is one record; its `id` is the record's number, so that a reader that comes back with `Last-Event-ID` misses
nothing and sees nothing twice. What is no longer kept, or never was, is told as `resync`. A reader that does not keep
up is dropped, and finds the rest in the journal when it comes back. One whose token is shut out hears nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from holdfast.core.values import has_labels
from holdfast.engine.build import JournalError
from holdfast.engine.feed import EVERYTHING
from holdfast.server.operations.parts import LABEL
from holdfast.server.render import encode
from holdfast.server.streams.happenings import changes
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.core.events import Event, Record
    from holdfast.engine.feed import Listener
    from holdfast.server.access.auth import Caller
    from holdfast.server.api import Api
    from holdfast.server.doors.request import Request
    from holdfast.server.operations.call import Call

    Happening = tuple[Record, Event]

PAGE = 500
WRITE_BYTES = 65_536
"""How much is gathered for one write, about."""
KEEPALIVE_SECONDS = 15
KEEPALIVE = b": keepalive\n\n"
NUMBER_DIGITS_MAX = 16


def events(api: Api, call: Call) -> Events:
    """GET /events: let a reader in, or raise why not."""
    prefix = _prefix(call.query.get("prefix"), call.caller)
    # The header first: a browser that comes back on its own repeats the address it began with.
    after = _after(_header(call.request) or call.query.get("after"))
    api.streams.count_in(call.caller.principal)
    return Events(api, call, prefix, call.query.get(LABEL, frozenset()), after)


def _header(request: Request) -> str | None:
    sent = request.headers.get(b"last-event-id")
    return None if sent is None else sent.decode("latin-1").strip()


def _prefix(wanted: str | None, caller: Caller) -> str:
    if caller.prefix is None:
        return wanted or ""
    if wanted is not None:
        caller.require_within_prefix(wanted)
    return wanted or caller.prefix


def _after(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > NUMBER_DIGITS_MAX:
        raise Problem("invalid_input", "after and Last-Event-ID are the number of a record.")
    return int(text)


class Events:
    """One reader: of names that start with `prefix` and claims that have all `labels`, after the record `after`.

    Without `after` it begins with what happens now.
    """

    def __init__(
        self, api: Api, call: Call, prefix: str, labels: frozenset[tuple[str, str]], after: int | None
    ) -> None:
        self._api = api
        self._authorization = call.request.authorization
        self._principal = call.caller.principal
        self._prefix = prefix
        self._labels = labels
        self._after = after
        self._listener: Listener = api.engine.feed.listen(EVERYTHING)

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield what was missed, then what happens; listening began before, so there is no gap between the two."""
        engine = self._api.engine
        with contextlib.suppress(JournalError):
            now_seq = await engine.look(lambda state, _: state.seq)
            sent = now_seq if self._after is None else self._after
            yield b": from %d\n\n" % sent
            if sent > now_seq:
                # A number of another journal, or of one that was put back from a backup.
                sent = now_seq
                yield _resync(sent)
            while sent < now_seq and self._is_let_in():
                records = await engine.follow(sent, PAGE)
                if sent < engine.journal.history_begins_after:
                    # Dropped before the reader came, or while it read.
                    sent = engine.journal.history_begins_after
                    yield _resync(sent)
                    continue
                if not records:
                    break
                sent = records[-1].seq
                frames = b"".join(map(self._frame, records))
                if frames:
                    yield frames
            async for frame in self._live(sent):
                yield frame

    async def _live(self, sent: int) -> AsyncIterator[bytes]:
        while self._is_let_in():
            try:
                happening = await asyncio.wait_for(self._listener.next(), KEEPALIVE_SECONDS)
            except TimeoutError:
                yield KEEPALIVE
                continue
            if happening is None or not self._is_let_in():
                return
            frames = self._gather(happening, sent)
            if frames:
                yield frames

    def _gather(self, happening: Happening | None, sent: int) -> bytes:
        """Return the frames of this and of what else is there already, up to a size: one write for many."""
        frames: list[bytes] = []
        size = 0
        while happening is not None:
            record, _ = happening
            if record.seq > sent:
                frames.append(self._frame(record))
                size += len(frames[-1])
            happening = self._listener.at_hand() if size < WRITE_BYTES else None
        return b"".join(frames)

    def _is_let_in(self) -> bool:
        return self._api.is_still_let_in(self._authorization)

    def _frame(self, record: Record) -> bytes:
        """Return the frame of a record; nothing if it concerns no name that the reader may see."""
        seen = [change for change in changes(record) if change.name.startswith(self._prefix)]
        if self._labels:
            seen = [change for change in seen if has_labels(change.labels or None, self._labels)]
        if not seen:
            return b""
        return b"id: %d\nevent: change\ndata: %b\n\n" % (record.seq, encode({"seq": record.seq, "changes": seen}))

    def close(self) -> None:
        """Stop reading."""
        self._listener.close()
        self._api.streams.count_out(self._principal)


def _resync(seq: int) -> bytes:
    """Return the frame that says: what was before this number is not all told, look anew."""
    return b"id: %d\nevent: resync\ndata: %b\n\n" % (seq, encode({"seq": seq}))
