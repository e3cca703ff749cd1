"""The fast lane: one object is one connection, and answers go out without an ASGI scope and a task for each request.

It is an accelerator and never a second implementation: both doors end in `operations.router`. Bytes become requests in
`incoming`; what the lane owes for them stands in one queue, in the order in which it came in (`owed`):

      bytes ──► `_unread` ──► incoming ──► `_owed` ──► one under way ──► transport
                  │ reading pauses           │ bounded in number and bytes,
                  while there is any         then nothing more is fed

`_work` is the only one that takes from `_unread` and `_owed`. It is a loop, and it begins the next only when the last
is done and the caller takes what is written. So answers leave in the order of their requests, nothing is written into a
stream that has begun, a request that was decided gets the answer that was decided, and a caller that does not read
makes us stop reading.

After `STEPS_PER_TURN` steps, and while its user is in debt for what took long, it stands behind all others (`lanes`).

If the connection is lost before its answer comes, `on_disconnect` of the request tells the engine that nobody waits any
more. A caller that closes only its sending side still gets the answers to what it sent; but who waits in line or reads
a stream counts as gone then, because a process that died looks the same.

The end: our side is closed and what still comes in is thrown away until the other side closes too, or
`LINGER_SECONDS` have passed. If we closed at once, the kernel would take the last answer back before it was read.

Every state has a time limit. One `Lanes.tick` counts whole seconds for all connections:

      waiting for a request     idle_timeout_seconds      each TAKEN_BYTES_MIN of what is written   idle_timeout_seconds
      a head                    header_timeout_seconds    an answer of ours that does not come      `answer_seconds_max`
      a body                    body_timeout_seconds      the other side's end, after ours          LINGER_SECONDS
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.server.doors.exchange import Exchange
from holdfast.server.doors.gone import GONE
from holdfast.server.doors.incoming import BODY, FEED_BYTES, HEAD, IDLE, Incoming
from holdfast.server.doors.lanes import LONG_SECONDS
from holdfast.server.doors.message import CONTINUE, LARGE_BYTES, message
from holdfast.server.doors.owed import Debt, Owed, Refusal
from holdfast.server.doors.request import Request, request_from
from holdfast.server.doors.untaken import Uptake
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from holdfast.server.doors.lanes import Lanes

UNSENT_BYTES_MAX = 16_384
"""How much may be written before it is taken."""
BEHIND_BYTES_MAX = 65_536
"""How much may stand behind a claim that waits in line, or a stream. Only those who are known have one."""
DISCARDED_BYTES_MAX = 65_536
STEPS_PER_TURN = 4
"""How many requests are begun, or pieces fed, before the other connections have their turn."""
CONNECTIONS_TOLD_MAX = 256
"""How many connections beyond the most are told that they are too many; those beyond are dropped without a word."""
LINGER_SECONDS, FAREWELL_SECONDS = 2, 0.3  # The second for idle connections when the server stops.

_NOTHING = memoryview(b"")


class Lane(asyncio.BufferedProtocol):
    """One connection."""

    __slots__ = (
        "_discarded_bytes",
        "_half_closed",
        "_incoming",
        "_is_behind",
        "_is_over",
        "_is_working",
        "_lanes",
        "_owed",
        "_reading_pauses",
        "_rest",
        "_since",
        "_transport",
        "_unread",
        "_uptake",
        "is_known",
        "is_stopping",
        "known_as",
        "loop",
        "peer",
        "writing_pauses",
    )

    known_as: str | None
    _transport: asyncio.Transport
    _incoming: Incoming

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self.loop = asyncio.get_running_loop()
        self.peer: Any = None
        self._unread = b""
        """What was received and not fed to the parser yet."""
        self._owed = Owed()
        self._rest = _NOTHING
        """What is still to be written of a large body."""
        self.is_known, self.known_as = False, None
        self._since = lanes.now_seconds
        """When the last answer was done; when the current one was begun; when it was over."""
        self._is_working = self._is_behind = self._is_over = False
        self._half_closed = self.is_stopping = self._reading_pauses = self.writing_pauses = False
        self._uptake, self._discarded_bytes = Uptake(self._since), 0

    # The connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, unless there are too many."""
        self._transport = transport  # type: ignore[assignment]
        self._transport.set_write_buffer_limits(UNSENT_BYTES_MAX)
        self.peer = transport.get_extra_info("peername")
        address = self.peer[0] if isinstance(self.peer, tuple) else ""
        self._incoming = Incoming(self, self._lanes, self._lanes.settings, address)
        beyond = self._lanes.add(self)
        if beyond > CONNECTIONS_TOLD_MAX or self._lanes.is_stopping:
            self._transport.abort()
        elif beyond > 0:
            self._refuse_and_end(Problem("overloaded", "There are too many connections.", retry_after_ms=1_000))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's
        """Return where the next bytes go. Its size bounds what one connection can make us keep unread."""
        return self._lanes.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Answer; what cannot be answered yet waits."""
        incoming, owed, lanes = self._incoming, self._owed, self._lanes
        if incoming.ended:
            self._discard(nbytes)
            return
        data = lanes.buffer[:nbytes].tobytes()
        is_free = owed.current is None and not self._unread and not owed and not self.writing_pauses
        if is_free and not (lanes.debtors and lanes.must_stand_behind(self.known_as or self)):
            request = incoming.repeated(data)
            if request is not None and (request.method in lanes.whole_methods or not lanes.door.is_in_pieces(request)):
                self._answer(request)
                return
            if nbytes <= FEED_BYTES:
                incoming.feed(data)
                if owed:
                    self._work()
                return
        self._unread += data
        self._work()
        self._look_at_reading()

    def _discard(self, size: int) -> None:
        """Throw away what follows a refusal; but not without end: that keeps us from the others."""
        self._discarded_bytes += size
        if self._discarded_bytes > DISCARDED_BYTES_MAX and not self._is_away() and not self._transport.is_closing():
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Know that the other side sends no more. True: the connection stays open for what is owed."""
        self._half_closed = True
        self._incoming.ended |= not self._unread
        if self._is_over or self._is_away() or not (self._owed.current or self._owed or self._unread):
            self._hang_up()
        return self._transport.can_write_eof()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """Know that nobody is there any more."""
        self._lanes.remove(self)
        self._forget()
        self._incoming.close()
        self._transport = GONE

    def pause_writing(self) -> None:
        """Write no more: the other side does not take it."""
        self.writing_pauses = True

    def resume_writing(self) -> None:
        """Write again."""
        self.writing_pauses = False
        if isinstance(self._owed.current, Exchange):
            self._owed.current.resume_writing()
        elif self._rest:
            self._write_rest()
        else:
            self._work()

    def shutdown(self) -> None:
        """Stop after the answer that is under way."""
        self.is_stopping = True
        if self._owed.current is None:
            self._hang_up()
            # TLS would wait for the other side to say goodbye too.
            self.loop.call_later(FAREWELL_SECONDS, self._transport.abort)

    def _recognise(self, principal: str) -> None:
        """Know who asks here, or raise that it has too many connections."""
        if not self.is_known:
            self.known_as, self.is_known = self._lanes.count_in(self.peer, principal), True

    # The queue. `incoming` puts in, `_work` takes out.

    def take(self, request: Request) -> None:
        """Owe an answer."""
        self._owed.append(request)

    def take_in_pieces(self, request: Request) -> Exchange | None:
        """Owe an exchange, if this request is answered in pieces."""
        if not self._lanes.door.is_in_pieces(request):
            return None
        request.on_known = None if self.is_known else self._recognise
        exchange = Exchange(self, request, self._lanes.put_behind, self._lanes.receiving.free)
        self._owed.append(exchange)
        return exchange

    def take_expectation(self) -> None:
        """Owe the word that a body may come."""
        self._owed.append(CONTINUE)

    def body_limit(self, request: Request) -> int:
        """Return how many bytes of body a request may send, or raise why none."""
        request.on_known = None if self.is_known else self._recognise
        return self._lanes.body_limit(self, request)

    def refuse(self, problem: Problem, request: Request | None) -> None:
        """Owe a refusal: the last word on this connection."""
        exchange = self._owed.open_exchange()
        if exchange is not None:
            # The rest of its body will never come.
            exchange.disconnect()
        self._owed.append(Refusal(problem, request or request_from(b"", b"", b"", {}, b"")))

    def _work(self, *, has_turn: bool = False) -> None:
        """Feed what was received and begin what is owed, until it must wait for somebody or has had its turn."""
        if self._is_working or self._is_behind:
            return
        owed, in_debt = self._owed, self._lanes.is_in_debt(self.known_as or self)
        self._is_working = True
        steps, may_begin = 0, has_turn or not in_debt
        while steps < STEPS_PER_TURN and not self._is_over and not self._transport.is_closing():
            if may_begin and owed and owed.current is None and not self.writing_pauses:
                self._begin(owed.popleft())
                may_begin = not in_debt
            elif self._unread and owed.has_room():
                piece, self._unread = self._unread[:FEED_BYTES], self._unread[FEED_BYTES:]
                owed.count_read(len(piece))
                self._incoming.feed(piece)
                if self._incoming.ended:
                    self._unread = b""
            else:
                break
            steps += 1
        has_more = steps == STEPS_PER_TURN or (in_debt and owed and owed.current is None and not self.writing_pauses)
        self._is_behind = bool(has_more) and not self._is_over and not self._transport.is_closing()
        self._is_working = False
        if self._is_behind:
            self._lanes.put_behind(self, debtor=(self.known_as or "") if in_debt else None, owes=self.known_as or self)
        elif self._half_closed and not (self._is_over or owed.current or owed or self._unread):
            self._end()
        if self._unread or self._reading_pauses:
            self._look_at_reading()

    def work_on(self) -> None:
        """Go on with what was left: all others have had their turn."""
        self._is_behind = False
        self._work(has_turn=True)

    def _look_at_reading(self) -> None:
        """Let the other side send only if what it sent is read."""
        # Who does not read does not hear that the other side is gone: of one who waits or reads it must be heard.
        must_hear = self._is_away() and self._owed.open_exchange() is None
        if must_hear and len(self._unread) > BEHIND_BYTES_MAX:
            self._unread = b""
            text = "Too much was sent behind a request that waits in line, or a stream: send it after the answer."
            self._refuse_and_end(Problem("invalid_input", text))
        pauses = bool(self._unread) and not must_hear
        if pauses == self._reading_pauses or self._transport.is_closing():
            return
        self._reading_pauses = pauses
        if pauses:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
            self._incoming.since = self._lanes.now_seconds

    def _begin(self, debt: Debt) -> None:
        """Begin what is owed next. Most of it is done before this returns, or after the next commit."""
        if isinstance(debt, Request):
            self._answer(debt)
        elif isinstance(debt, Exchange):
            self._owed.current, self._since = debt, self._lanes.now_seconds
            if self._half_closed:
                self._hang_up()
            else:
                debt.begin()
        elif isinstance(debt, bytes):
            self.write(debt)
        else:
            self._owed.current = debt.request
            debt.request.keep_alive = False
            self._lanes.routes.refuse(debt.problem, debt.request, self._reply)

    # Answers.

    def _answer(self, request: Request) -> None:
        lanes, read_seconds = self._lanes, self._lanes.read_seconds
        self._owed.current, self._since = request, lanes.now_seconds
        if not self.is_known:
            request.on_known = self._recognise
        began = read_seconds()
        lanes.routes.handle(request, self._reply)
        if (took_seconds := read_seconds() - began) >= LONG_SECONDS:
            lanes.charge(self.known_as or self, took_seconds)
        if self._half_closed and self._is_away():
            self._hang_up()

    def _is_away(self) -> bool:
        """Tell whether somebody who sends no more counts as gone: one who waits in line or reads a stream."""
        now = self._owed.current
        return isinstance(now, Exchange) or (now is not None and now.on_disconnect is not None)

    def _reply(self, request: Request, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        """Write an answer, unless nobody waits for it any more."""
        owed, lanes = self._owed, self._lanes
        if owed.current is not request or self._rest:
            return
        if lanes.receiving.kept:
            lanes.receiving.free(request)
        keep_alive = request.keep_alive and not self.is_stopping
        data = message(request, status, body, headers, lanes.beginning, keep_alive)
        self._uptake.written_bytes += len(data)
        self._transport.write(data)
        if len(body) > LARGE_BYTES and request.method != b"HEAD":
            lanes.charge_answer(self.known_as or self, len(body))
            request.keep_alive, request.on_disconnect = keep_alive, None
            self._rest = memoryview(body)
            self._write_rest()
        elif keep_alive and not owed and not self._unread and not self._half_closed:
            # As `done`, which would find nothing to do: nearly every answer ends here.
            owed.current, self._since = None, lanes.now_seconds
        else:
            self.done(keep_alive=keep_alive)

    def _write_rest(self) -> None:
        """Write on with a large body, as far as it is taken."""
        while self._rest and not self.writing_pauses and not self._transport.is_closing():
            # Copied, and no empty view at the end: each view, and so the transport's, would keep the whole body.
            piece, self._rest = bytes(self._rest[:UNSENT_BYTES_MAX]), self._rest[UNSENT_BYTES_MAX:] or _NOTHING
            self.write(piece)
        self._lanes.untaken.note(self, self._owed.current, self._rest)
        if not self._rest and isinstance(self._owed.current, Request):
            self.done(keep_alive=self._owed.current.keep_alive)

    def write(self, data: bytes) -> None:
        """Write what is not a whole answer."""
        self._uptake.written_bytes += len(data)
        self._transport.write(data)

    def done(self, *, keep_alive: bool) -> None:
        """Know that what was under way is answered: the next is begun, or the connection ends."""
        self._owed.current, self._since = None, self._lanes.now_seconds
        if not keep_alive or self.is_stopping:
            self._end()
        elif self._owed or self._unread or self._half_closed:
            self._work()

    # What an exchange asks for.

    @property
    def said_always(self) -> tuple[tuple[bytes, bytes], ...]:
        """The date and what else every answer says."""
        return self._lanes.said_always

    @property
    def scheme(self) -> str:
        """How the connection is secured."""
        return "http" if self._transport.get_extra_info("sslcontext") is None else "https"

    def go_on(self) -> None:
        """Read on: there is room for more of the body."""
        if self._unread:
            self._work()

    def run(self, exchange: Exchange) -> None:
        """Let an exchange run as a task of its own."""
        task = self.loop.create_task(exchange.run(self._lanes.door))
        self._lanes.tasks.add(task)
        task.add_done_callback(self._lanes.tasks.discard)

    # The end.

    def _end(self) -> None:
        """Close our side, and wait a little for the other."""
        self._since = self._lanes.now_seconds
        self._forget()
        self._look_at_reading()
        if self._half_closed or not self._transport.can_write_eof():
            self._transport.close()
        elif not self._transport.is_closing():
            self._transport.write_eof()

    def _hang_up(self) -> None:
        """Close; the other side is gone or takes nothing."""
        self._forget()
        self._transport.close()

    def _forget(self) -> None:
        self._is_over = True
        self._incoming.end()
        self._unread, self._rest = b"", _NOTHING
        self._lanes.let_go(self)
        self._owed.forget()

    def abort(self) -> None:
        """Break the connection off: what was begun cannot be completed."""
        self._transport.abort()

    # Time.

    def check_time(self) -> None:
        """End a connection that takes too long for what it is doing."""
        settings, now = self._lanes.settings, self._lanes.now_seconds
        unsent_bytes = self._transport.get_write_buffer_size()
        if self._uptake.seconds_without(unsent_bytes, now) > settings.idle_timeout_seconds:
            self._transport.abort()
        elif self._is_over:
            if unsent_bytes == 0 and now - self._since > LINGER_SECONDS:
                self._transport.abort()
        elif self._owed.is_unanswered() and not self._rest and now - self._since > self._lanes.answer_seconds_max:
            self._transport.abort()
        else:
            self._check_sender(now)

    def _check_sender(self, now: int) -> None:
        settings, incoming, owed = self._lanes.settings, self._incoming, self._owed
        if incoming.ended or self._reading_pauses:
            return
        passed = now - incoming.since
        if incoming.phase == IDLE:
            if not (owed.current or owed) and min(passed, now - self._since) > settings.idle_timeout_seconds:
                self._end()
        elif incoming.phase == HEAD and passed > settings.header_timeout_seconds:
            self._refuse_late("head of a request", settings.header_timeout_seconds)
        elif incoming.phase == BODY and passed > settings.body_timeout_seconds:
            self._refuse_late("body of a request", settings.body_timeout_seconds)

    def _refuse_late(self, what: str, seconds: int) -> None:
        self._refuse_and_end(Problem("invalid_input", f"The {what} takes at most {seconds} s to arrive.", status=408))

    def _refuse_and_end(self, problem: Problem) -> None:
        self._incoming.ended = True
        self.refuse(problem, None)
        self._work()
