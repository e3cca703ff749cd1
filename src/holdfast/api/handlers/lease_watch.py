"""POST /leases/watch: the ends of the leases and sessions that a caller names, as they happen (L9).

    POST /leases/watch {leases, sessions} ───► event: following   the stream's id, what has ended already
                                               event: ended       one for each end, then nothing more of that one
                                               event: displaced   the last: too many follow the same, open it again
    POST /lease-watches/{id} {leases, sessions} ─► adds to the stream; what has ended already is in the answer

One stream serves a whole process: the client adds what it claims, and the end of a lease removes it. Whoever may renew
a lease may follow it (L3, S3, L9), and no frame says more than a refused renewal would. A lease id comes with its name,
because leases are found by name.
"""

from __future__ import annotations

import contextlib
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from holdfast.api.auth.secrets import claim_held, claim_holds
from holdfast.api.decoding import read_uuid
from holdfast.api.rendering import encode, rfc3339
from holdfast.api.streams import Stream, queued_events
from holdfast.core.events import Ended, Event, Record, SessionEnded, Transferred
from holdfast.core.values import EndedLease, EndedSession, Instant, may_touch
from holdfast.engine.build import JournalError
from holdfast.engine.ids import new_uuid
from holdfast.wire.problems import Problem
from holdfast.wire.replies import DisplacedReply, EndReply, LeaseWatchReply
from holdfast.wire.requests import LeaseWatchBody

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.api.auth.auth import Caller
    from holdfast.api.context import RequestContext
    from holdfast.api.service import ApiService
    from holdfast.core.state import State

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
            yield _frame(b"following", await self._api.engine.query(respond))
            while (item := await self._next_event(self._listener.next)) is not None:
                if isinstance(item, bytes):
                    yield item
                    continue
                ends = islice(queued_events(item, self._listener), ENDS_PER_WRITE)
                yield b"".join(_frame(b"ended", _end_of(*each)) for each in ends)
            if (id_ := self._listener.displaced_at) is not None:
                yield _frame(b"displaced", DisplacedReply(id_))

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


def _frame(kind: bytes, said: EndReply | LeaseWatchReply | DisplacedReply) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind, encode(said))
