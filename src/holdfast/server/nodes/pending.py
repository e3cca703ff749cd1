"""A request on its way through a follower: held until there is a leader, handed to a link, answered.

                  hold                      ask
    received ──────────────► held ──────────────────► on a link ──────► answered
                               ▲   │ 5 s in all           │
                               │   ▼                      │ the link is lost, or it says `not_leader`
                               │  given up                │
                               └──────────────────────────┘ if it may be sent again

**What is not known** (`is_uncertain`): a copy was handed to a link, and the link was lost before its answer came. From
then on `not_leader` is never said of this request. It is sent again only if that cannot do it twice: a look, or one
with an idempotency key on a route that honours keys. Else, and if no copy is answered, it is `outcome_unknown` (N-31).

A copy that a leader answered with `not_leader` was not decided: it changes nothing, and the request waits again.

**Bounds** of what is held: in number and in bytes. One user may have half of both, and so may all together whom nobody
knows: nobody can take the places of all others. The 5 s are what a request is held in all, however many
leaders come and go.

**No longer than there is hope.** A takeover takes less than 5 s. If nobody has answered for so long, all that is held
is given up, and what comes then is refused at once, until somebody answers: whoever asks learns what is the case, and
goes to another node, before its own patience ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.server.http.messages import Request
from holdfast.server.nodes.link.streams import Inbox
from holdfast.server.operations.call import Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.server.nodes.link.frames import Fields

HELD_MS_MAX = 5_000
HELD_MAX = 8_192
HELD_BYTES_MAX = 32 * 2**20
ITSELF_BYTES = 1_024
"""What a request takes beside its head and body."""


class Pending(msgspec.Struct, eq=False):
    """One request that is not answered yet. A struct, because one is made for each request."""

    request: Request
    reply: Reply | None
    """Answers it. None: it is a stream, and `inbox` has what comes."""
    inbox: Inbox | None
    received_ms: int
    may_repeat: bool
    """Whether it may be sent again although a copy may have been done."""
    is_uncertain: bool = False
    is_answered: bool = False
    """Whether it was answered, or a stream begun; or nobody waits for it any more."""
    who: str | None = None
    """Whose it is, as far as that is known when it is held; None of a stranger's."""
    held_ms: int = 0
    """For how long it was held before it was held last."""
    held_since_ms: int = 0
    number: int = 0
    """Its number on the link that it was handed to last."""
    scheme: str = ""

    def answer(self, status: int, body: bytes, headers: Fields) -> None:
        """Answer it, once."""
        if self.is_answered:
            return
        self.is_answered = True
        if self.inbox is not None:
            self.inbox.put_whole(status, body, self._fields(body, headers))
        elif self.reply is not None:
            self.request.on_disconnect = self.request.on_lost = None
            self.reply(self.request, status, body, headers)

    def _fields(self, body: bytes, headers: Fields) -> Fields:
        """Return the fields of a whole response to a request for a stream, which adds only the request id."""
        kind = () if any(name == b"content-type" for name, _ in headers) else ((b"content-type", b"application/json"),)
        length = (b"content-length", str(len(body)).encode())
        return (*headers, *kind, length)


class Held:
    """The requests that wait for a leader, in the order in which they came."""

    def __init__(self, read_ms: Callable[[], int]) -> None:
        self._read_ms = read_ms
        self.waiting: dict[Pending, None] = {}
        self.bytes = 0
        self._of: dict[str | None, tuple[int, int]] = {}
        """How many each has, and their bytes."""
        self._alone_since_ms: int | None = None
        """When it was first met that nobody answers; None: somebody has answered since."""
        self._ends = False

    def __len__(self) -> int:
        return len(self.waiting)

    def hear(self, *, is_answer: bool) -> None:
        """Know that somebody answers: whoever is held next may hope for as long as ever. Or that nobody does."""
        if is_answer:
            self._alone_since_ms = None
        elif self._alone_since_ms is None:
            self._alone_since_ms = self._read_ms()

    def end(self) -> None:
        """Know that this node ends. It looks for no leader any more, so nobody who is held may hope."""
        self._ends = True

    def _is_hopeless(self, now_ms: int) -> bool:
        return self._ends or (self._alone_since_ms is not None and now_ms - self._alone_since_ms >= HELD_MS_MAX)

    def put(self, pending: Pending, *, is_alone: bool) -> bool:
        """Hold a request, if there is room and hope, and it was not held for too long already. Tell whether.

        `is_alone`: because nobody answers; else because the link is full.
        """
        now_ms = self._read_ms()
        if is_alone:
            self.hear(is_answer=False)
        if pending.held_ms >= HELD_MS_MAX or self._is_hopeless(now_ms):
            return False
        size = _size_of(pending)
        if len(self.waiting) >= HELD_MAX or self.bytes + size > HELD_BYTES_MAX:
            return False
        has, has_bytes = self._of.get(pending.who, (0, 0))
        if has >= HELD_MAX // 2 or has_bytes + size > HELD_BYTES_MAX // 2:
            return False
        self._of[pending.who] = has + 1, has_bytes + size
        pending.held_since_ms = now_ms
        self.waiting[pending] = None
        self.bytes += size
        return True

    def drop(self, pending: Pending) -> None:
        """Hold a request no more."""
        if pending not in self.waiting:
            return
        del self.waiting[pending]
        size = _size_of(pending)
        self.bytes -= size
        has, has_bytes = self._of.pop(pending.who)
        if has > 1:
            self._of[pending.who] = has - 1, has_bytes - size
        pending.held_ms += self._read_ms() - pending.held_since_ms

    def first(self) -> Pending:
        """Take the one that has waited longest."""
        pending = next(iter(self.waiting))
        self.drop(pending)
        return pending

    def overdue(self) -> Iterable[Pending]:
        """Take those that were held for long enough. Looks at all of them: called a few times a second."""
        now_ms = self._read_ms()
        late = [
            each
            for each in self.waiting
            if each.held_ms + now_ms - each.held_since_ms >= HELD_MS_MAX or self._is_hopeless(now_ms)
        ]
        for pending in late:
            self.drop(pending)
        return late


def _size_of(pending: Pending) -> int:
    """Return how much a request makes us keep. It is looked at for one that is held alone."""
    request = pending.request
    head = sum(len(name) + len(value) for name, value in request.headers.items())
    return ITSELF_BYTES + head + len(request.path) + len(request.query) + len(request.body)
