"""Whom a follower knows, and how many large bodies it takes from those whom it does not know.

A follower has no state, so it cannot tell a right token from a wrong one. The leader tells with each answer who asked,
and the follower remembers the bearer tokens that were let in last. It gives nobody a right: the leader looks at each
request anew.

A body over 16 KiB is read for a bearer that is known, or on a connection that is a user's already. A trusted proxy's
connections are everybody's, so there the token alone counts. Of all others a follower takes `BODIES_MAX` at a time and
`PER_PLACE_MAX` from one address, `BODIES_BYTES_MAX` bytes of them together; beyond that they are refused before they
are read (decision 0032 says why: at the leader nobody unknown may send one at all). A place is free again when the
request is answered or given up or its client is gone, and at the latest when the time for a body is over: until then
the body is kept here, or is on its way.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from holdfast.server.access.proxies import Proxies
    from holdfast.server.http.messages import Request

BEARERS_MAX, BEARER_BYTES_MAX = 4_096, 512
BODIES_MAX = 64
PER_PLACE_MAX = 4
BODIES_BYTES_MAX = 32 * 2**20
RETRY_MS = 1_000


class Bearers:
    """The bearer tokens that were let in last."""

    def __init__(self, proxies: Proxies) -> None:
        self._proxies = proxies
        self._known: dict[bytes, str] = {}
        """By header: whose it is. The one that was added first is forgotten first."""

    def note(self, bearer: bytes | None, principal: str | None) -> None:
        """Know who asked with a token; None: it was not let in."""
        if bearer is None:
            return
        if principal is None:
            self._known.pop(bearer, None)
        elif self._known.get(bearer) != principal and len(bearer) <= BEARER_BYTES_MAX:
            while len(self._known) >= BEARERS_MAX:
                del self._known[next(iter(self._known))]
            self._known[bearer] = principal

    def principal_of(self, bearer: bytes | None) -> str | None:
        """Return whose a bearer token is, as it was last time; None if it is not known."""
        return None if bearer is None else self._known.get(bearer)

    def owner_of(self, request: Request) -> str | None:
        """Return whose a request is; None of a stranger's. It is empty for users whose token was forgotten since."""
        return self.principal_of(request.authorization) or ("" if self.knows(request) else None)

    def knows(self, request: Request) -> bool:
        """Tell whether whoever asks is known: by the token, or because the connection is a user's already."""
        if request.authorization in self._known:
            return True
        # A connection sets `on_known` until one of its requests is authenticated.
        return request.on_known is None and not self._proxies.is_one(request.peer)


class LargeBodies:
    """The large bodies of strangers that are being read, or are on their way to the leader."""

    def __init__(self, seconds_max: int) -> None:
        """`seconds_max` is how long a body may take to arrive."""
        self._ms_max = seconds_max * 1000
        self._places: dict[str, tuple[int, str, int]] = {}
        """By request id: since when, from where, and how large it may become. The eldest first."""
        self._from: Counter[str] = Counter()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._places

    def take(self, request_id: str, place: str, size: int, now_ms: int) -> None:
        """Let a body be read, or raise that too many are."""
        while self._places and now_ms - next(iter(self._places.values()))[0] > self._ms_max:
            self.free(next(iter(self._places)))
        is_full = len(self._places) >= BODIES_MAX or self.bytes + size > BODIES_BYTES_MAX
        if is_full or self._from.get(place, 0) >= PER_PLACE_MAX:
            text = "This node follows, and does not know your access token yet. Too many large bodies of others whom it"
            text += " does not know are being read: send a small request first, or try again."
            raise Problem("overloaded", text, retry_after_ms=RETRY_MS)
        self._places[request_id] = now_ms, place, size
        self._from[place] += 1
        self.bytes += size

    def free(self, request_id: str) -> None:
        """Know that a body is kept no more."""
        found = self._places.pop(request_id, None)
        if found is not None:
            _, place, size = found
            self.bytes -= size
            self._from[place] -= 1
            if not self._from[place]:
                del self._from[place]
