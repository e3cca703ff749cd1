"""POST /leases/follow: the ends of the leases and sessions that a caller names, told as they happen (L9).

    POST /leases/follow {leases, sessions} ──► event: following   the stream's id, what has ended already
                                               event: ended       one for each end, then nothing more of that one
                                               event: displaced   the last: too many follow the same, open it again
    POST /followers/{id} {leases, sessions} ─► adds to the stream; what has ended already is in the answer

One stream serves a whole process: it adds what it claims, and what it gives back ends by itself, so nothing is ever
taken out. `followed` has who may follow what. No frame says more than a refused renewal would.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from holdfast.core.events import Ended, SessionEnded, Transferred
from holdfast.engine.build import JournalError
from holdfast.engine.ids import new_uuid
from holdfast.server.operations.parts import read_uuid
from holdfast.server.render import encode
from holdfast.server.streams.events import KEEPALIVE, KEEPALIVE_SECONDS
from holdfast.server.streams.followed import Followed
from holdfast.server.times import rfc3339
from holdfast.wire.problems import Problem
from holdfast.wire.replies import DisplacedReply, EndReply, FollowingReply
from holdfast.wire.requests import FollowBody

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from holdfast.core.events import Event, Record
    from holdfast.core.state import State
    from holdfast.core.values import Moment
    from holdfast.engine.feed import Follower
    from holdfast.server.api import Api
    from holdfast.server.operations.call import Call
    from holdfast.server.render import Answered

ENDS_PER_WRITE = 100
"""How many ends are told before others have their turn: a session may end with thousands of leases."""
_OK = 200


def check_ids(body: FollowBody) -> None:
    """Check the ids in a body and write them in their usual form."""
    body.leases = {name: read_uuid(lease_id, "an id in leases") for name, lease_id in body.leases.items()}
    body.sessions = [read_uuid(session_id, "an id in sessions") for session_id in body.sessions]


def follow(api: Api, call: Call) -> Follow:
    """POST /leases/follow: let a follower in, or raise why not."""
    _check_count(api, call.body)
    api.followers.count_in(call.caller.principal, call.caller.share)
    return Follow(api, call)


def add(api: Api, call: Call) -> None:
    """POST /followers/{id}."""
    _check_count(api, call.body)
    followed = api.followed.get(call.item)
    if followed is None or not followed.is_of(call.caller):
        raise Problem("not_found", "No such stream of yours is open: open one with POST /leases/follow.")

    def view(state: State, now: Moment) -> Answered:
        return _OK, encode(followed.take(call.body, state, now)), ()

    api.read(call, view)


def _check_count(api: Api, body: FollowBody) -> None:
    count, most = len(body.leases) + len(body.sessions), api.settings.names_per_call_max
    if count > most:
        text = f"A call may follow {most} leases and sessions (names_per_call_max), this one has {count}: add the rest"
        raise Problem("invalid_input", f"{text} with POST /followers/{{id}}.", status=422)


class Follow:
    """One stream."""

    def __init__(self, api: Api, call: Call) -> None:
        self._api = api
        self._authorization = call.request.authorization
        self._principal, self._share = call.caller.principal, call.caller.share
        self._asked: FollowBody = call.body
        """What is to be followed from the beginning; it is kept until then."""
        caller = call.caller
        claim = None if caller.claim is None else caller.claim.grant
        self._follower: Follower = api.engine.feed.follow(caller.principal, caller.session, claim)
        self._followed = Followed(new_uuid(), caller, self._follower)
        api.followed[self._followed.stream] = self._followed

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield how things are, then each end, until the token or session ends or the server stops.

        What ended by the very record that shuts the caller out is still told: it is about what was its own.
        """
        with contextlib.suppress(JournalError):
            look, self._asked = partial(self._followed.take, self._asked), FollowBody()
            yield _frame(b"following", await self._api.engine.look(look))
            while True:
                try:
                    happening = await asyncio.wait_for(self._follower.next(), KEEPALIVE_SECONDS)
                except TimeoutError:
                    if not self._api.is_still_let_in(self._authorization):
                        return
                    yield KEEPALIVE
                    continue
                if happening is None:
                    if (id_ := self._follower.gave_way_at) is not None:
                        yield _frame(b"displaced", DisplacedReply(id_))
                    return
                at_hand = islice(self._at_hand(happening), ENDS_PER_WRITE)
                yield b"".join(_frame(b"ended", _told(*each)) for each in at_hand)

    def _at_hand(self, first: tuple[Record, Event]) -> Iterator[tuple[Record, Event]]:
        yield first
        while (happening := self._follower.at_hand()) is not None:
            yield happening

    def close(self) -> None:
        """Stop following."""
        self._follower.close()
        self._api.followed.pop(self._followed.stream, None)
        self._api.followers.count_out(self._principal, self._share)


def _told(record: Record, event: Event) -> EndReply:
    """Say how a lease or a session ended. A follower hears of nothing else."""
    at = rfc3339(record.wall_ms)
    match event:
        case Ended():
            return EndReply(event.lease_id, event.name, event.how, at, event.by, event.reason)
        case Transferred():
            return EndReply(event.old_lease_id, event.name, "transferred", at, event.by, event.reason)
        case SessionEnded():
            return EndReply(event.session_id, None, event.how, at, event.by, None)
        case _:
            raise ValueError(f"{type(event).__name__} ends nothing")


def _frame(kind: bytes, said: EndReply | FollowingReply | DisplacedReply) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind, encode(said))
