"""GET /events: all changes but renewals, in order, from any record on, as server-sent events.

One frame is one record, or a part of a large one (`frames`). The last part has the record's number as its `id`, so a
reader that resumes with `Last-Event-ID` misses nothing and sees nothing twice. If the records after it are not kept, or
never existed, the reader gets `resync`.

    catch up ──► listen ──► catch up to there ──► live
       ▲                                            │
       └──────────── it did not keep up ◄───────────┘

A reader far behind reads the journal at its own pace without a listener, so nothing is kept for it. A live reader with
a full backlog goes back to the journal: a burst slows a reader down, but cannot disconnect it or fill the memory.

GET /locks/{name}/watch: the changes of one name, live, as server-sent events in OctoStore's form.

The first frame is the state. The stream listens before it reads the state, so a frame may be sent twice, and none is
missing. No frame has a lease id, a holder, a session or metadata.

GET /backup: all state as one file, with the authority's key and the hashes of all tokens.

Only operators without a prefix may have it: its owner can make the secret of every session. One is made at a time. It
stops with the server and with the caller's token. An interrupted file has no end frame, and is not a backup.

POST /leases/watch: the ends of the leases and sessions that a caller names, as they happen (L9).

    POST /leases/watch {leases, sessions} ───► event: following   the stream's id, what has ended already
                                               event: ended       one for each end, then nothing more of that one
                                               event: displaced   the last: too many follow the same, open it again
    POST /lease-watches/{id} {leases, sessions} ─► adds to the stream; what has ended already is in the answer

One stream serves a whole process: the client adds what it claims, and the end of a lease removes it. Whoever may renew
a lease may follow it (L3, S3, L9), and no frame says more than a refused renewal would. A lease id comes with its name,
because leases are found by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from holdfast import __version__
from holdfast.api.auth.secrets import claim_held, claim_holds
from holdfast.api.decoding import LABEL, read_uuid
from holdfast.api.rendering import encode, rfc3339
from holdfast.api.streams import WRITE_BYTES, EventCursor, EventIds, Stream, parse_id, queued_events
from holdfast.core.events import Ended, Event, Granted, Record, Renewed, SessionEnded, Transferred
from holdfast.core.values import EndedLease, EndedSession, Instant, may_touch
from holdfast.engine import backup as backups
from holdfast.engine.build import JournalError
from holdfast.engine.feed import EVERYTHING, Listener
from holdfast.engine.ids import new_uuid
from holdfast.wire.problems import Problem
from holdfast.wire.replies import DisplacedReply, EndReply, LeaseWatchReply
from holdfast.wire.requests import LeaseWatchBody

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from holdfast.api.auth.auth import Caller
    from holdfast.api.context import RequestContext
    from holdfast.api.service import ApiService
    from holdfast.core.events import Record
    from holdfast.core.state import State
    from holdfast.core.values import Instant

PAGE = 500  # Records per read of the journal, which bounds their bytes.
LIVE_WITHIN = 100
SLICE_RECORDS = 500


class Events(Stream):
    def __init__(self, api: ApiService, context: RequestContext) -> None:
        prefix: str | None = context.query.get("prefix")
        own = context.caller.prefix
        if own is not None and prefix is not None:
            context.caller.require_within_prefix(prefix)
        # The header has precedence: a browser that reconnects repeats the original address.
        header = context.request.headers.get(b"last-event-id", b"").decode("latin-1").strip()
        after = header or context.query.get("after")
        self._after = None if after is None else parse_id(after)  # None: from now on.
        self._prefix = prefix or own or ""
        self._labels: frozenset[tuple[str, str]] = context.query.get(LABEL, frozenset())
        self._sent = 0  # The last record that was sent or skipped.
        self._listener: Listener | None = None
        super().__init__(api, context, api.streams)

    async def frames(self) -> AsyncIterator[bytes]:
        engine = self._api.engine
        with contextlib.suppress(JournalError):
            newest = await self._newest()
            ids = self._api.frames.ids = EventIds(engine.state.restores, engine.state.restored_seq)
            after = EventCursor(ids.count, newest) if self._after is None else self._after
            self._sent = after.seq
            if self._sent > newest or not ids.is_known(after):
                # The id is from another journal, or from before a loss of records or a restore.
                self._sent = newest
                yield self._resync()
            # A reader that is disconnected before the first event resumes here.
            yield b": from %d\nid: %b\n\n" % (self._sent, ids.of(self._sent))
            while self._listener is None or self._listener.overflowed:
                while (newest := await self._newest()) - self._sent > LIVE_WITHIN and self._is_authorized():
                    async for frames in self._missed(newest):
                        yield frames
                # From here on nothing is missed: earlier records are in the journal, later ones in the backlog.
                self._listener = engine.feed.listen(EVERYTHING, self._caller.principal, self._caller.session)
                async for frames in self._missed(await self._newest()):
                    yield frames
                async for frames in self._live(self._listener):
                    yield frames

    async def _newest(self) -> int:
        seq: int = await self._api.engine.query(lambda state, _now: state.seq)
        return seq

    async def _missed(self, upto: int) -> AsyncIterator[bytes]:
        engine = self._api.engine
        while self._sent < upto and self._is_authorized():
            records = deque(await engine.journal.follow(self._sent, PAGE))
            if self._sent < engine.journal.history_begins_after:
                # Records were dropped before the reader came, or while it read.
                self._sent = engine.journal.history_begins_after
                yield self._resync()
                continue
            if not records:
                self._sent = upto
            async for frames in self._gathered(_drain(records)):
                yield frames

    async def _live(self, listener: Listener) -> AsyncIterator[bytes]:
        while self._is_authorized() and (item := await self._next_event(listener.next)) is not None:
            if isinstance(item, bytes):
                yield item
                continue
            if not self._is_authorized():
                return
            async for frames in self._gathered(record for record, _ in queued_events(item, listener)):
                yield frames

    async def _gathered(self, records: Iterator[Record]) -> AsyncIterator[bytes]:
        """Yield the frames of records that were not sent yet, many small ones in one write.

        Each part of a large record is one write, so the next is encoded only when the reader has taken it.
        """
        gathered: list[bytes] = []
        size = 0
        frames = self._api.frames
        seen_count = 0  # `enumerate` would keep the record alive.
        for record in records:
            seen_count += 1
            if record.seq <= self._sent:
                continue
            seen = frames.of(record, self._prefix, self._labels)
            del record  # It may be large; a slow reader keeps only the shared `seen`.
            await frames.measure(seen)
            for part in range(len(seen.ends)):
                gathered.append(await frames.part(seen, part))
                size += len(gathered[-1])
                if size >= WRITE_BYTES or len(seen.ends) > 1:
                    chunk, gathered, size = b"".join(gathered), [], 0
                    yield chunk
                    if not self._is_authorized():
                        return
            self._sent = seen.seq
            if seen_count % SLICE_RECORDS == 0:
                await asyncio.sleep(0)
        if gathered:
            yield b"".join(gathered)

    def _resync(self) -> bytes:
        """Return the frame that says that events up to this id are missing."""
        id_, seq = self._api.frames.ids.of(self._sent), self._sent
        return b"id: %b\nevent: resync\ndata: %b\n\n" % (id_, encode({"seq": seq}))

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        super().close()
        if not self._api.engine.feed.is_listened_to(EVERYTHING):
            self._api.frames.clear()


def _drain(records: deque[Record]) -> Iterator[Record]:
    """Yield records without keeping them alive."""
    while records:
        yield records.popleft()


RETRY_MS = 1_000


class Watch(Stream):
    def __init__(self, api: ApiService, context: RequestContext) -> None:
        feed, most = api.engine.feed, api.settings.watched_names_max
        if feed.names >= most and not feed.is_listened_to(context.item):
            text = f"{most} names are watched, the most there may be (watched_names_max): try again."
            raise Problem("capacity_exceeded", text, retry_after_ms=RETRY_MS)
        super().__init__(api, context, api.streams)
        self._name = context.item
        self._listener = feed.listen(self._name, context.caller.principal, context.caller.session)
        self._token = 0

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield frames until the watcher falls behind, its token ends or the server stops."""
        try:
            self._token, frame = await self._api.engine.query(self._first)
        except JournalError:
            return  # The watcher reconnects, and is refused with the reason, or served.
        yield frame
        claim = self._caller.claim
        while (item := await self._next_event(self._listener.next)) is not None:
            if isinstance(item, bytes):
                yield item
                continue
            if not self._is_authorized():
                return
            yield self._describe(*item)
            if claim is not None and not claim_holds(claim, self._name, self._api.engine.state):
                return  # A claim's secret may watch a name only while it holds it.

    def close(self) -> None:
        self._listener.close()
        super().close()

    def _first(self, state: State, now: Instant) -> tuple[int, bytes]:
        lease = state.lease_of(self._name)
        token = 0
        body: dict[str, Any] = {"event": "released", "lock_name": self._name}
        if lease is not None:
            token = lease.token
            expires_at = rfc3339(now.wall_ms + state.until_of(lease) - now.ms)
            body |= {"event": "acquired", "fencing_token": token, "expires_at": expires_at}
        return token, _frame(body, now.wall_ms)

    def _describe(self, record: Record, event: Event) -> bytes:
        what, until_ms = "renewed", None
        match event:
            case Granted() | Transferred():
                self._token, what, until_ms = event.lease.token, "acquired", event.lease.until_ms
            case Renewed():
                until_ms = event.until_ms
            case Ended():
                what = "released" if event.how == "released" or event.by is not None else "expired"
            case _:
                pass
        body: dict[str, Any] = {"event": what, "lock_name": self._name}
        if until_ms is not None:
            expires_at = rfc3339(record.wall_ms + until_ms - record.at_ms)
            body |= {"fencing_token": self._token, "expires_at": expires_at}
        return _frame(body, record.wall_ms)


def _frame(body: dict[str, Any], observed_ms: int) -> bytes:
    return b"data: " + encode(body | {"observed_at": rfc3339(observed_ms)}) + b"\n\n"


TOPIC = " backup"  # Not a valid name. A backup listens to it to hear of the end of its token.
BACKUP_RETRY_MS = 5_000

log = logging.getLogger("holdfast.server")


class Backup(Stream):
    def __init__(self, api: ApiService, context: RequestContext) -> None:
        if context.caller.cookie is not None:
            # It holds the key that signs cookies: with it a copied cookie would be worth more than its own end.
            text = "A backup holds the server's key, and the page's cookie is not enough for it: send an access token."
            raise Problem("forbidden", text)
        if context.caller.prefix is not None:
            text = "A backup holds all names, and this token is confined to a prefix: use one without a prefix."
            raise Problem("forbidden", text)
        if api.engine.feed.is_listened_to(TOPIC):
            text = "A backup is being made already, and one is made at a time: try again."
            raise Problem("capacity_exceeded", text, retry_after_ms=BACKUP_RETRY_MS)
        super().__init__(api, context, api.streams)
        self._listener = api.engine.feed.listen(TOPIC, context.caller.principal, context.caller.session)

    async def frames(self) -> AsyncIterator[bytes]:
        writer, whose = backups.BackupWriter(), self._caller.principal
        pieces = backups.backup(self._api.engine, self._api.auth.key.for_backup(), __version__, writer)
        try:
            # Close the reader however it ends: an open one keeps the journal from dropping records.
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    if self._listener.is_over or not self._is_authorized():
                        log.warning("the backup for %s broke off: its token has ended, or the server stops", whose)
                        return
                    yield piece
        except JournalError as error:
            log.warning("the backup for %s broke off: %s", whose, error)
            return
        made = writer.totals()
        log.info("a backup was made for %s: %d bytes, %d records", whose, made.size_bytes, made.records)

    def close(self) -> None:
        self._listener.close()
        super().close()


ENDS_PER_WRITE = 100  # Then other requests are served: a session may end with thousands of leases.
_OK = 200


def check_ids(body: LeaseWatchBody) -> None:
    body.leases = {name: read_uuid(lease_id, "an id in leases") for name, lease_id in body.leases.items()}
    body.sessions = [read_uuid(session_id, "an id in sessions") for session_id in body.sessions]


def add(api: ApiService, context: RequestContext) -> None:
    _check_count(api, context.body)
    stream = api.open_lease_watches.get(context.item)
    if not isinstance(stream, LeaseWatch) or not stream.is_of(context.caller):
        raise Problem("not_found", "No such stream of yours is open: open one with POST /leases/watch.")
    api.read(context, lambda state, now: (_OK, encode(stream.take(context.body, state, now)), ()))


def _check_count(api: ApiService, body: LeaseWatchBody) -> None:
    count, most = len(body.leases) + len(body.sessions), api.settings.names_per_call_max
    if count > most:
        text = f"A call may follow {most} leases and sessions (names_per_call_max), this one has {count}: add the rest"
        raise Problem("invalid_input", f"{text} with POST /lease-watches/{{id}}.", status=422)


class LeaseWatch(Stream):
    def __init__(self, api: ApiService, context: RequestContext) -> None:
        _check_count(api, context.body)
        super().__init__(api, context, api.lease_watches)
        caller = context.caller
        self._initial: LeaseWatchBody = context.body  # What is followed from the beginning; dropped then.
        self._id = new_uuid()
        claim = None if caller.claim is None else caller.claim.grant
        self._listener = api.engine.feed.watch(caller.principal, caller.session, claim)
        api.open_lease_watches[self._id] = self

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield what has ended already, then each end, also those by the record that ends the caller's token."""
        with contextlib.suppress(JournalError):
            respond, self._initial = partial(self.take, self._initial), LeaseWatchBody()
            yield _lease_frame(b"following", await self._api.engine.query(respond))
            while (item := await self._next_event(self._listener.next)) is not None:
                if isinstance(item, bytes):
                    yield item
                    continue
                ends = islice(queued_events(item, self._listener), ENDS_PER_WRITE)
                yield b"".join(_lease_frame(b"ended", _end_of(*each)) for each in ends)
            if (id_ := self._listener.displaced_at) is not None:
                yield _lease_frame(b"displaced", DisplacedReply(id_))

    def close(self) -> None:
        self._listener.close()
        self._api.open_lease_watches.pop(self._id, None)
        super().close()

    def is_of(self, caller: Caller) -> bool:
        """Return whether this caller may add to the stream."""
        own = self._caller
        return (own.principal, own.session, own.claim) == (caller.principal, caller.session, caller.claim)

    def take(self, request: LeaseWatchBody, state: State, _now: Instant) -> LeaseWatchReply:
        """Follow what lives, and return what does not, from one view of the state: no end is missed in between."""
        found = [(id_, self._lease(name, id_, state)) for name, id_ in request.leases.items()]
        found += [(session_id, self._session(session_id, state)) for session_id in request.sessions]
        for id_, what in found:
            if what is True:
                self._listener.add(id_)
        ended = [what for _, what in found if isinstance(what, EndReply)]
        unknown = [id_ for id_, what in found if what is False]
        return LeaseWatchReply(self._id, len(self._listener), ended, unknown)

    def _lease(self, name: str, lease_id: str, state: State) -> EndReply | bool:
        """Return whether a lease lives, or how it ended. Leases of others look unknown."""
        caller, lease, ended = self._caller, state.lease_of(name), state.remembered.get(lease_id)
        if caller.prefix is not None and not name.startswith(caller.prefix):
            return False
        if lease is not None and lease.lease_id == lease_id:
            if caller.claim is not None:
                return claim_holds(caller.claim, name, state)
            return may_touch(lease, caller.principal, caller.session)
        if not isinstance(ended, EndedLease) or ended.name != name or ended.principal != caller.principal:
            return False
        if caller.session is not None and not (ended.bound and ended.session == caller.session):
            return False
        if caller.claim is not None and not claim_held(caller.claim, name, lease_id, state):
            return False
        end = ended.end
        return EndReply(lease_id, name, end.how, rfc3339(end.wall_ms), end.by, end.reason)

    def _session(self, session_id: str, state: State) -> EndReply | bool:
        """Return the same for a session. A session secret knows only its own session."""
        caller, session, ended = self._caller, state.sessions.get(session_id), state.remembered.get(session_id)
        if caller.claim is not None or caller.session not in {None, session_id}:
            return False
        if session is not None:
            return session.principal == caller.principal
        if not isinstance(ended, EndedSession) or ended.principal != caller.principal:
            return False
        return EndReply(session_id, None, ended.how, rfc3339(ended.wall_ms), None, None)


def _end_of(record: Record, event: Event) -> EndReply:
    at = rfc3339(record.wall_ms)
    match event:
        case Ended():
            return EndReply(event.lease_id, event.name, event.how, at, event.by, event.reason)
        case Transferred():
            return EndReply(event.old_lease_id, event.name, "transferred", at, event.by, event.reason)
        case SessionEnded():
            return EndReply(event.session_id, None, event.how, at, event.by, None)
        case _:
            raise ValueError(f"{type(event).__name__} ends nothing")  # Followers hear only of ends.


def _lease_frame(kind: bytes, said: EndReply | LeaseWatchReply | DisplacedReply) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind, encode(said))
