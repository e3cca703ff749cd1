"""A follower's state: queued requests, authenticated bearer tokens, and large bodies of unauthenticated callers.

                  queue                     send
    received ──────────────► queued ────────────────► on a link ──────► answered
                               ▲   │ 5 s in all           │
                               │   ▼                      │ the link is lost, or the response is `not_leader`
                               │  given up                │
                               └──────────────────────────┘ if it may be sent again

**Uncertain requests** (`is_uncertain`): a copy was sent over a link, and the link was lost before the response. From
then on such a request never gets `not_leader`. It is sent again only if that cannot apply it twice: a read, or one with
an idempotency key on a route that honours keys. Otherwise, and if no copy is answered, it gets `outcome_unknown`
(N-31). A copy that a leader answered with `not_leader` was not decided: the request waits again.

**Limits** of queued requests: number and bytes. One principal may have half of both, and so may all unauthenticated
callers together. A request is queued for 5 s in all, however many leaders come and go: longer than a takeover. If no
leader has responded for so long, all queued requests fail, and new ones are refused immediately until a leader
responds. So clients go to another node before their own time limit.

**Callers.** A follower cannot verify a token. It caches the principals that the leader named with its responses. That
grants nothing: the leader verifies each request.

**Large bodies.** A body over 16 KiB is read for a cached bearer token, or on a connection that is a user's already (not
a trusted proxy's, which is shared). From all others a follower takes `BODIES_MAX` at a time, `BODIES_PER_NETWORK_MAX`
from one network, `BODIES_BYTES_MAX` bytes of them together; further ones are refused before they are read (decision
0032). A body counts until its request is answered or given up or its client is gone, and no longer than a body's time
limit.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from holdfast.api.context import Reply
from holdfast.cluster.link_frames import Fields, StreamData, StreamEnd, StreamStart
from holdfast.http.messages import Request, StreamHandler
from holdfast.http.proxies import Proxies
from holdfast.wire.problems import Problem

HELD_MS_MAX = 5_000
HELD_MAX = 8_192
HELD_BYTES_MAX = 32 * 2**20
REQUEST_OVERHEAD_BYTES = 1_024  # A request's overhead, beyond head and body.
CACHED_TOKENS_MAX, CACHED_TOKEN_BYTES_MAX = 4_096, 512
BODIES_MAX = 64
BODIES_PER_NETWORK_MAX = 4
BODIES_BYTES_MAX = 32 * 2**20
RETRY_MS = 1_000

# A streamed response in pieces, or a complete one. A handler: this node leads now, and it answers.
Inbox: TypeAlias = asyncio.Queue[StreamStart | StreamData | StreamEnd | tuple[int, bytes, Fields] | StreamHandler]


class PendingRequest(msgspec.Struct, eq=False):
    request: Request
    reply: Reply | None  # None: a stream, whose response goes to `inbox`.
    inbox: Inbox | None
    received_ms: int
    may_repeat: bool  # Whether it may be sent again although a copy may have been applied.
    is_uncertain: bool = False
    is_answered: bool = False  # Or a stream has begun, or the client is gone.
    principal: str | None = None  # The principal, as far as it is known when held; None: unauthenticated.
    held_ms: int = 0  # How long it was held before it was held last.
    held_since_ms: int = 0
    number: int = 0

    def answer(self, status: int, body: bytes, headers: Fields) -> None:
        if self.is_answered:
            return
        self.is_answered = True
        if self.inbox is not None:
            self.inbox.put_nowait((status, body, headers))
        elif self.reply is not None:
            self.request.on_disconnect = self.request.on_lost = None
            self.reply(self.request, status, body, headers)


class RequestQueue:
    def __init__(self, read_ms: Callable[[], int]) -> None:
        self._read_ms = read_ms
        self.waiting: dict[PendingRequest, None] = {}
        self.bytes = 0
        self._usage: dict[str | None, tuple[int, int]] = {}  # Number and bytes of each principal.
        self._leaderless_since_ms: int | None = None  # Since when no leader responds; None: one responded last.
        self._is_ended = False

    def __len__(self) -> int:
        return len(self.waiting)

    def note_leader(self, *, responds: bool) -> None:
        """Record whether a leader responded; a response resets the time limit of all."""
        if responds:
            self._leaderless_since_ms = None
        elif self._leaderless_since_ms is None:
            self._leaderless_since_ms = self._read_ms()

    def end(self) -> None:
        self._is_ended = True

    def _is_hopeless(self, now_ms: int) -> bool:
        return self._is_ended or (
            self._leaderless_since_ms is not None and now_ms - self._leaderless_since_ms >= HELD_MS_MAX
        )

    def put(self, pending: PendingRequest, *, is_leaderless: bool) -> bool:
        """Queue a request; False: a limit is exceeded. `is_leaderless`: no leader responds; else the link is full."""
        now_ms = self._read_ms()
        if is_leaderless:
            self.note_leader(responds=False)
        if pending.held_ms >= HELD_MS_MAX or self._is_hopeless(now_ms):
            return False
        size = _size_of(pending)
        if len(self.waiting) >= HELD_MAX or self.bytes + size > HELD_BYTES_MAX:
            return False
        has, has_bytes = self._usage.get(pending.principal, (0, 0))
        if has >= HELD_MAX // 2 or has_bytes + size > HELD_BYTES_MAX // 2:
            return False
        self._usage[pending.principal] = has + 1, has_bytes + size
        pending.held_since_ms = now_ms
        self.waiting[pending] = None
        self.bytes += size
        return True

    def drop(self, pending: PendingRequest) -> None:
        if pending not in self.waiting:
            return
        del self.waiting[pending]
        size = _size_of(pending)
        self.bytes -= size
        has, has_bytes = self._usage.pop(pending.principal)
        if has > 1:
            self._usage[pending.principal] = has - 1, has_bytes - size
        pending.held_ms += self._read_ms() - pending.held_since_ms

    def pop_first(self) -> PendingRequest:
        pending = next(iter(self.waiting))
        self.drop(pending)
        return pending

    def pop_overdue(self) -> Iterable[PendingRequest]:
        """Take those whose time is over. Visits all: called a few times a second."""
        now_ms = self._read_ms()
        late = [
            each
            for each in self.waiting
            if each.held_ms + now_ms - each.held_since_ms >= HELD_MS_MAX or self._is_hopeless(now_ms)
        ]
        for pending in late:
            self.drop(pending)
        return late


def _size_of(pending: PendingRequest) -> int:
    request = pending.request
    head = sum(len(name) + len(value) for name, value in request.headers.items())
    return REQUEST_OVERHEAD_BYTES + head + len(request.path) + len(request.query) + len(request.body)


class TokenCache:
    def __init__(self) -> None:
        self.principals: dict[bytes | None, str] = {}  # Principal by header, oldest first.

    def note(self, bearer: bytes | None, principal: str | None) -> None:
        """Remember the principal of a token; None: it was refused."""
        if principal is None:
            self.principals.pop(bearer, None)
        elif bearer is not None and self.principals.get(bearer) != principal and len(bearer) <= CACHED_TOKEN_BYTES_MAX:
            while len(self.principals) >= CACHED_TOKENS_MAX:
                del self.principals[next(iter(self.principals))]
            self.principals[bearer] = principal

    def is_known_caller(self, request: Request, proxies: Proxies) -> bool:
        """Tell whether the caller is known: by the token, or because the connection is a user's already."""
        # A connection sets `on_known` until one of its requests is authenticated.
        is_users = request.on_known is None and not proxies.is_trusted_peer(request.peer)
        return is_users or request.authorization in self.principals


class LargeBodies:
    """Large bodies of unauthenticated callers that are being read, or are on their way to the leader."""

    def __init__(self, seconds_max: int) -> None:
        self._ms_max = seconds_max * 1000
        self._bodies: dict[str, tuple[int, str, int]] = {}  # By request id, oldest first: since when, from where, size.
        self._by_network: Counter[str] = Counter()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._bodies)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._bodies

    def take(self, request_id: str, network: str, size: int, now_ms: int) -> None:
        while self._bodies and now_ms - next(iter(self._bodies.values()))[0] > self._ms_max:
            self.free(next(iter(self._bodies)))
        is_full = len(self._bodies) >= BODIES_MAX or self.bytes + size > BODIES_BYTES_MAX
        if is_full or self._by_network[network] >= BODIES_PER_NETWORK_MAX:
            text = "This node follows, and does not know your access token yet. Too many large bodies of others whom it"
            text += " does not know are being read: send a small request first, or try again."
            raise Problem("overloaded", text, retry_after_ms=RETRY_MS)
        self._bodies[request_id] = now_ms, network, size
        self._by_network[network] += 1
        self.bytes += size

    def free(self, request_id: str) -> None:
        found = self._bodies.pop(request_id, None)
        if found is not None:
            _, network, size = found
            self.bytes -= size
            self._by_network[network] -= 1
            if not self._by_network[network]:
                del self._by_network[network]
