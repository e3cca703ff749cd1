"""What the fast lanes of one server share: who answers, the second hand, the backlog.

Who answers can change while connections stay: on a node that leads it is the routes of its tenure, on one that follows
whatever passes requests on. Whoever knows of the change calls `answer_from`.

Time limits need no timer for each connection: `tick` counts the seconds and looks at all of them.

When there are too many connections, the eldest on which nobody known has asked yet gives way: a stranger can take the
places of strangers, and never those of users. One in the handshake of TLS is a stranger too (`ciphertext`). The last
tenth of the places is for users who have few (`count_in`), so that one of them cannot shut the others out.

A connection that has more to do than its turn allows stands in the backlog. All that stand there get `BACKLOG_MS`
between two looks at the sockets, one after another, so that nobody waits for one that has much to say.

Whoever asks what takes long is in debt for a while: all its connections stand behind, and of theirs one request is
begun between two looks. So the others wait for one such request, and not for as many as one user has connections. If
nobody else asks, nobody has to wait: then those in debt have the time that all in the backlog have.
Those in debt have their turns one user after another: who fell into debt although it asked little waits for one request
of each, and not for all that another has asked. A large answer is made after its request was handled, so it is charged
by its size, and with all others of the same second. For a pause of the machine nobody is in debt (`server/pauses`).
When a debt is over, whoever still stands behind for it goes on like everybody else. Otherwise each would have to wait
for a look of its own, and those who ask anew would pass it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast.server.doors.message import Beginning
from holdfast.server.doors.untaken import Untaken
from holdfast.server.operations.sizes import SMALL_BODY_BYTES
from holdfast.server.pauses import Pauses
from holdfast.server.receiving import Receiving
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from uvicorn.server import ServerState

    from holdfast.engine.clock import Clock
    from holdfast.server.access.proxies import Proxies
    from holdfast.server.doors.asgi import Door
    from holdfast.server.doors.exchange import Receive, Scope, Send
    from holdfast.server.doors.request import Request
    from holdfast.server.operations.call import Reply
    from holdfast.server.operations.router import Routes
    from holdfast.settings import Settings

    Fields = tuple[tuple[bytes, bytes], ...]

BACKLOG_MS = 4
LONG_SECONDS = 0.002
"""From here on a request takes long: nearly all take a tenth of it or less."""
DEBT_TIMES, DEBT_MS_MAX = 20, 1_000
"""How long one is in debt for it: for so many times as long as it took."""
ANSWER_SECONDS_PER_BYTE = 4e-9
"""What it takes to make a large answer: 4 µs for each KiB."""
READ_BYTES = 8_192
WAIT_SECONDS_MAX = 60
"""No request of ours waits longer in line, with some to spare."""
CHECKS_PER_TURN = 500
"""How many connections `tick` looks at before it lets others have their turn: under a millisecond."""

log = logging.getLogger("holdfast.server")

_LENGTH_DIGITS = 20
_LAST_SECOND = 253_402_300_799
"""Of the year 9999: no date can be written behind it."""


class Answers(Protocol):
    """Who answers requests: the routes, or what passes them on."""

    def handle(self, request: Request, reply: Reply) -> None:
        """Answer a request; `reply` is called once, now or later, never twice."""

    def refuse(self, problem: Problem, request: Request, reply: Reply) -> None:
        """Refuse a request in the words of its route."""


class AnswersInPieces(Protocol):
    """Who answers what is answered in pieces, and says how large a body may be: the ASGI door, or what passes it on."""

    whole_methods: frozenset[bytes]
    """The methods of repeated heads that `is_in_pieces` need not be asked about."""

    def is_in_pieces(self, request: Request) -> bool:
        """Tell whether a request is answered in pieces."""

    def body_limit(self, request: Request) -> int:
        """Return how many bytes of body a request may send, or raise why no more than a small one."""

    def check_host(self, request: Request) -> None:
        """Raise if the request is for a server of another name."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request in pieces."""


class Settling(Protocol):
    """Knows how long it took to end what was due: the turns of an engine."""

    settling_ms: int


class NothingDue:
    """Where nothing is decided, nothing falls due."""

    settling_ms = 0


class Front(msgspec.Struct, frozen=True):
    """Who answers now, and what the lanes ask of it."""

    routes: Answers
    door: AnswersInPieces
    principal_of: Callable[[Request], str | None]
    """The principal of whoever asked; None for a stranger."""
    turns: Settling = NothingDue()
    says: Fields = ()
    """Header fields that all its answers have."""


def front_of(routes: Routes, door: Door, says: Fields = ()) -> Front:
    """Return the front of an engine of our own."""
    return Front(routes, door, routes.api.principal_of, routes.api.engine.turns, says)


class Behind(Protocol):
    """What stands in the backlog."""

    loop: asyncio.AbstractEventLoop

    def work_on(self) -> None:
        """Go on with what was left: all others have had their turn."""


class InTurn:
    """What stands behind, by whose it is: one of each in turn, and of each the first that came."""

    def __init__(self) -> None:
        self._of: dict[str, deque[tuple[Behind, object]]] = {}
        """By principal, the one whose turn it is first. Strangers are one. Each with the one who is in debt for it."""

    def __bool__(self) -> bool:
        return bool(self._of)

    def append(self, who: str, behind: Behind, owes: object) -> None:
        """Put it behind all others of the same."""
        self._of.setdefault(who, deque()).append((behind, owes))

    def popleft(self) -> tuple[Behind, object]:
        """Take the one whose turn it is. Whose it was comes last now."""
        who = next(iter(self._of))
        of_this_one = self._of.pop(who)
        behind = of_this_one.popleft()
        if of_this_one:
            self._of[who] = of_this_one
        return behind


class Connection(Behind, Protocol):
    """One connection, as all of them together see it."""

    is_known: bool
    """Whether somebody who is known has asked there."""
    known_as: str | None
    """The principal that asked there first. None: nobody who is known has, or the connection is a proxy's."""

    def abort(self) -> None:
        """Break it off."""

    def check_time(self) -> None:
        """End it if it takes too long for what it is doing."""


class Lanes:
    """What the connections of one server share."""

    def __init__(
        self,
        front: Front,
        settings: Settings,
        clock: Clock,
        proxies: Proxies,
        server_state: ServerState,
        *,
        observe: Callable[[Front], Front] | None = None,
    ) -> None:
        """`observe` puts whoever watches requests around each front."""
        self.settings = settings
        self._observe = observe
        self._proxies = proxies
        self.connections: set[Any] = server_state.connections
        self.tasks = server_state.tasks
        self.is_stopping = False
        """Whether no new connection is taken: one whose TLS was not ready yet may still come."""
        self._strangers: dict[Connection, None] = {}
        """The eldest first. One that is known by now is taken out when it is met."""
        self.buffer = memoryview(bytearray(READ_BYTES))
        """Where what comes in is put, for as long as it takes to copy it."""
        self.now_seconds = 0
        """Counted by `tick`: a clock of whole seconds, good enough for time limits."""
        self.answer_seconds_max = WAIT_SECONDS_MAX + self.settings.disk_hang_seconds
        """No answer of ours takes longer: a wait in line, and a disk that must answer or the server ends."""
        self._clock = clock
        self.now_ms = self._clock.monotonic_ms
        self.read_seconds = self._clock.monotonic_seconds
        self._has: dict[str, int] = {}
        """How many connections each principal has; and all of them together."""
        self._known = 0
        self.untaken = Untaken(self._principal_of)
        self.receiving = Receiving()
        self._pauses = Pauses()
        self.debtors: dict[object, int] = {}
        """Who is in debt, and until when: a principal, or a connection whose principal is not known."""
        self._made: dict[object, float] = {}
        """How long it took to make the large answers of each in this second, as far as nobody is in debt for them."""
        self._backlog: deque[Behind] = deque()
        self._backlog_of_debtors = InTurn()
        self._others_asked = False
        """Whether somebody who is not in debt asked since the backlog had its time. Only known while anybody is."""
        self._catch_up_is_due = False
        self.answer_from(front)

    def answer_from(self, front: Front) -> None:
        """Let somebody else answer from now on. Connections stay, and what was begun is ended by whoever began it."""
        if self._observe is not None:
            front = self._observe(front)
        self._front = front
        self.routes, self.door = front.routes, front.door
        self.whole_methods = front.door.whole_methods
        self._turns, self._settling_ms = front.turns, front.turns.settling_ms
        self._read_date()

    def _principal_of(self, request: Request) -> str | None:
        return self._front.principal_of(request)

    def add(self, connection: Connection) -> int:
        """Count a connection in, in the place of a stranger if need be. Return how many there are too many."""
        self.connections.add(connection)
        beyond = len(self.connections) - self.settings.connections_max
        while beyond > 0 and self._strangers:
            stranger = next(iter(self._strangers))
            del self._strangers[stranger]
            if not stranger.is_known:
                self.connections.discard(stranger)
                stranger.abort()
                beyond -= 1
        self._strangers[connection] = None
        return beyond

    def remove(self, connection: Connection) -> None:
        """Count a connection out."""
        self.connections.discard(connection)
        self._strangers.pop(connection, None)
        if connection.known_as is not None:
            self._known -= 1
            self._has[connection.known_as] -= 1
            if not self._has[connection.known_as]:
                del self._has[connection.known_as]

    def body_limit(self, connection: Connection, request: Request) -> int:
        """Return how many bytes of body a request may send, and count them if they are many; or raise why not."""
        bytes_max = self.door.body_limit(request)
        if bytes_max > SMALL_BODY_BYTES:
            who = self._principal_of(request) or connection.known_as
            if who is not None:
                said = request.headers.get(b"content-length", b"")
                announced = int(said[-_LENGTH_DIGITS:]) if said.isdigit() else bytes_max
                self.receiving.take(connection, request, who, min(announced, bytes_max))
        return bytes_max

    def let_go(self, connection: Connection) -> None:
        """Know that nothing is kept for a connection any more."""
        self.untaken.drop(connection)
        self.receiving.drop(connection)

    def count_in(self, peer: object, principal: str) -> str | None:
        """Count a connection for the principal that asks on it first, or raise that it has too many.

        Returns the name to count it out by: none for a trusted proxy's, which is everybody's.
        """
        if isinstance(peer, tuple) and self._proxies.is_one(peer[0]):
            return None
        most = self.settings.connections_max
        has = self._has.get(principal, 0)
        if has >= max(1, most // 100) and self._known >= most - most // 10:
            text = f"This access token has {has} connections open; the last are for others. Close some, or try again."
            raise Problem("quota_exceeded", text, retry_after_ms=1_000)
        self._known += 1
        self._has[principal] = has + 1
        return principal

    async def tick(self) -> None:
        """Count a second and look at every connection's time, without keeping the others waiting."""
        self.now_seconds += 1
        self._read_date()
        self._not_own_seconds()
        self._made.clear()
        for who in list(self.debtors):
            self.is_in_debt(who)
        for number, connection in enumerate(list(self.connections), 1):
            if connection in self.connections:
                self._check_time(connection)
            if number % CHECKS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _check_time(self, connection: Connection) -> None:
        try:
            connection.check_time()
        except Exception:
            log.exception("a bug while a connection's time was looked at")
            connection.abort()

    def _read_date(self) -> None:
        # A wall clock that is out of its mind must not take the service down: it decides nothing.
        seconds = min(max(self._clock.wall_ms() // 1000, 0), _LAST_SECOND)
        date = (b"date", formatdate(seconds, usegmt=True).encode())
        self.said_always: Fields = (date, *self._front.says)
        self.beginning = Beginning(self.said_always)

    def charge(self, who: object, took_seconds: float) -> None:
        """Let somebody be in debt for a request that took long, but not for what was not its own.

        That is what others had of the processor, and what fell due and ended before it was decided. Both count since
        the last look, be it that of `tick`: so each excuses somebody once.
        """
        own_seconds = took_seconds - self._not_own_seconds()
        if own_seconds >= LONG_SECONDS:
            self.debtors[who] = self.now_ms() + min(int(DEBT_TIMES * own_seconds * 1000), DEBT_MS_MAX)

    def charge_answer(self, who: object, size: int) -> None:
        """Let somebody be in debt for large answers: many of them in a second count as one request that took long."""
        made_seconds = self._made.get(who, 0.0) + size * ANSWER_SECONDS_PER_BYTE
        if made_seconds >= LONG_SECONDS:
            until = self.now_ms() + min(int(DEBT_TIMES * made_seconds * 1000), DEBT_MS_MAX)
            self.debtors[who] = max(until, self.debtors.get(who, until))
            made_seconds = 0.0
        self._made[who] = made_seconds

    def _not_own_seconds(self) -> float:
        before_ms, self._settling_ms = self._settling_ms, self._turns.settling_ms
        return self._pauses.since_last() + (self._settling_ms - before_ms) / 1000

    def is_in_debt(self, who: object) -> bool:
        """Tell whether somebody asked just now what took long."""
        until = self.debtors.get(who)
        if until is None or self.now_ms() < until:
            return until is not None
        del self.debtors[who]
        return False

    def must_stand_behind(self, who: object) -> bool:
        """Tell whether somebody who asks is in debt. Asked only while anybody is: so it is known whether others ask."""
        in_debt = self.is_in_debt(who)
        self._others_asked |= not in_debt
        return in_debt

    def put_behind(self, behind: Behind, *, debtor: str | None = None, owes: object = None) -> None:
        """Let a connection go on when those that have waited longer have had their turn.

        `debtor` says whose it is, if it is to stand behind all who are not in debt; it is empty for a stranger.
        `owes` is who `is_in_debt` for it. Without, it stands behind also when nobody is.
        """
        if debtor is None:
            self._backlog.append(behind)
        else:
            self._backlog_of_debtors.append(debtor, behind, owes)
        if not self._catch_up_is_due:
            self._catch_up_is_due = True
            behind.loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        """Let those in the backlog work, one after another, for a short while."""
        loop = asyncio.get_running_loop()
        until_ms = self.now_ms() + BACKLOG_MS
        for _ in range(len(self._backlog)):
            self._backlog.popleft().work_on()
            if self.now_ms() >= until_ms:
                break
        is_alone, self._others_asked = not (self._others_asked or self._backlog), False
        while self._backlog_of_debtors:
            behind, owes = self._backlog_of_debtors.popleft()
            behind.work_on()
            goes_on = owes is not None and (is_alone or not self.is_in_debt(owes))
            if not goes_on or self.now_ms() >= until_ms:
                break
        self._catch_up_is_due = bool(self._backlog or self._backlog_of_debtors)
        if self._catch_up_is_due:
            loop.call_soon(self._catch_up)
