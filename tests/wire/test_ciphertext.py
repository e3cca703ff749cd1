"""What a connection gives to OpenSSL, and when: in this process, without a socket, turn by turn."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from holdfast.server.ciphertext import RECORD_BYTES_MAX, RECORDS_PER_TURN, Ciphertext
from holdfast.server.doors.lanes import READ_BYTES

LOOPS = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.Loop}
WORDS = [f"word {number};".encode() for number in range(30)]


class Turns:
    """Lanes that give nobody a turn by themselves."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.settings = SimpleNamespace(header_timeout_seconds=10)
        self.now_seconds = 0
        self.is_stopping = False
        self.connections: set[object] = set()
        self.behind: list[Ciphertext] = []

    def add(self, connection: object) -> int:
        self.connections.add(connection)
        return 0

    def remove(self, connection: object) -> None:
        self.connections.discard(connection)

    def put_behind(self, behind: Ciphertext, *, debtor: str | None = None, owes: object = None) -> None:
        assert (debtor, owes) in {(None, None), ("", behind)}
        self.behind.append(behind)

    def give_turn(self) -> None:
        self.behind.pop(0).work_on()


class Raw(asyncio.Transport):
    """The connection itself."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_paused = False
        self.is_over = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_over

    def close(self) -> None:
        self.is_over = True

    def abort(self) -> None:
        self.is_over = True


class Heard(asyncio.BufferedProtocol):
    """What takes its place: notes what it hears."""

    def __init__(self, ciphertext: Ciphertext) -> None:
        self._ciphertext = ciphertext
        self._buffer = memoryview(bytearray(READ_BYTES))
        self.said = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self._ciphertext.hand_over()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.said += self._buffer[:nbytes].tobytes()


class Talk:
    """One connection from both of its ends."""

    def __init__(self, turns: Turns, pem: Path) -> None:
        self.turns, self.raw = turns, Raw()
        self.hellos = 0
        self.heard: Heard | None = None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        context.sni_callback = self._count_hello
        self.server = Ciphertext(turns, context, self._secure)  # type: ignore[arg-type] # lanes of the test's own
        self.server.connection_made(self.raw)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = ssl.create_default_context(cafile=str(pem)).wrap_bio(
            self._incoming, self._outgoing, server_hostname="127.0.0.1"
        )

    def _count_hello(self, _connection: object, _name: object, _context: object) -> None:
        self.hellos += 1

    def _secure(self, _lanes: object, ciphertext: Ciphertext) -> Heard:
        self.heard = Heard(ciphertext)
        return self.heard

    def shake(self) -> bytes:
        """Go on with the handshake as the client; return what it sends."""
        self._incoming.write(bytes(self.raw.written))
        self.raw.written.clear()
        with contextlib.suppress(ssl.SSLWantReadError):
            self.client.do_handshake()
        return self._outgoing.read()

    def records_of(self, *said: bytes) -> bytes:
        """Return each of these as a record of its own."""
        for text in said:
            self.client.write(text)
        return self._outgoing.read()

    def send(self, data: bytes) -> None:
        self.server.get_buffer(-1)[: len(data)] = data
        self.server.buffer_updated(len(data))

    async def secure(self) -> None:
        """Have it ready, with a turn for each record."""
        for _ in range(2):
            self.send(self.shake())
            while self.turns.behind:
                self.turns.give_turn()
                await asyncio.sleep(0)
        assert self.heard is not None and not self.turns.connections


def each_loop(test: Callable[[Path], Awaitable[None]]) -> Callable[[str, Path], None]:
    """Run a test on both loops: each has a TLS of its own."""

    @pytest.mark.parametrize("kind", LOOPS)
    def on_loop(kind: str, pem: Path) -> None:
        async def run() -> None:
            await test(pem)

        with asyncio.Runner(loop_factory=LOOPS[kind]) as runner:
            runner.run(run())

    on_loop.__doc__ = test.__doc__
    return on_loop


@each_loop
async def test_those_who_say_hello_at_once_have_a_turn_each(pem: Path) -> None:
    """A hello is not looked at before its turn, however many come together: in one turn one is answered."""
    turns = Turns()
    talks = [Talk(turns, pem) for _ in range(20)]
    for talk in talks:
        talk.send(talk.shake())
    assert len(turns.behind) == 20
    assert not any(talk.hellos or talk.raw.written for talk in talks)
    for number, talk in enumerate(talks, 1):
        turns.give_turn()
        assert talk.hellos == 1 and talk.raw.written
        assert sum(talk.hellos for talk in talks) == number


@each_loop
async def test_half_a_hello_has_no_tls(pem: Path) -> None:
    """Until a record is whole nothing is made for it, it has no turn, and the time of a head ends it."""
    turns = Turns()
    talk = Talk(turns, pem)
    hello = talk.shake()
    for at in range(len(hello) - 1):
        talk.send(hello[at : at + 1])
    assert talk.heard is None and not turns.behind and not talk.raw.is_paused
    turns.now_seconds = 11
    talk.server.check_time()
    assert talk.raw.is_over


@each_loop
async def test_one_who_is_gone_gets_no_handshake(pem: Path) -> None:
    """Who left while its hello stood behind costs nothing any more."""
    turns = Turns()
    talk = Talk(turns, pem)
    talk.send(talk.shake())
    assert not talk.raw.is_paused, "it must be heard"
    assert talk.server.eof_received() is False
    talk.server.connection_lost(None)
    turns.give_turn()
    assert talk.hellos == 0 and not talk.raw.written and not turns.connections


@each_loop
async def test_what_is_no_tls_is_ended_in_its_turn(pem: Path) -> None:
    """Somebody who speaks plain HTTP is not waited for until a record is whole that never will be."""
    turns = Turns()
    talk = Talk(turns, pem)
    talk.send(b"GET / HTTP/1.1\r\n")
    turns.give_turn()
    assert talk.raw.is_over and talk.hellos == 0


@each_loop
async def test_what_comes_before_its_turn_is_bounded(pem: Path) -> None:
    """Who sends on and on before its turn is read no more."""
    turns = Turns()
    talk = Talk(turns, pem)
    hello = talk.shake()
    sent = 0
    while not talk.raw.is_paused:
        talk.send(hello)
        sent += len(hello)
        assert sent < RECORD_BYTES_MAX + READ_BYTES
    assert len(turns.behind) == 1


@each_loop
async def test_many_records_at_once_are_given_a_few_at_a_time(pem: Path) -> None:
    """Of many small records a few are read at once, and the rest in turns: all of them, in order, once each. Nothing
    more is read meanwhile.
    """
    turns = Turns()
    talk = Talk(turns, pem)
    await talk.secure()
    assert talk.heard is not None
    talk.send(talk.records_of(*WORDS))
    for end in range(RECORDS_PER_TURN, len(WORDS), RECORDS_PER_TURN):
        assert talk.heard.said == b"".join(WORDS[:end])
        assert talk.raw.is_paused
        turns.give_turn()
    assert talk.heard.said == b"".join(WORDS)
    assert not talk.raw.is_paused and not turns.behind


@each_loop
async def test_few_records_need_no_turn(pem: Path) -> None:
    """A request in a record or two is heard at once, wherever it is cut."""
    turns = Turns()
    talk = Talk(turns, pem)
    await talk.secure()
    assert talk.heard is not None
    sent = talk.records_of(*WORDS[:3])
    for at in range(len(sent)):
        talk.send(sent[at : at + 1])
        assert not turns.behind
    assert talk.heard.said == b"".join(WORDS[:3])


@each_loop
async def test_all_that_was_sent_is_heard_before_the_end(pem: Path) -> None:
    """Who sends many records and closes is heard to the last of them."""
    turns = Turns()
    talk = Talk(turns, pem)
    await talk.secure()
    assert talk.heard is not None
    talk.send(talk.records_of(*WORDS))
    assert talk.server.eof_received() is True
    while turns.behind:
        assert not talk.raw.is_over
        turns.give_turn()
    assert talk.heard.said == b"".join(WORDS)
    await asyncio.sleep(0)
    assert talk.raw.is_over


@each_loop
async def test_nothing_is_given_that_is_not_taken(pem: Path) -> None:
    """While TLS has enough, nothing more is read for it; afterwards all of it is there."""
    turns = Turns()
    talk = Talk(turns, pem)
    await talk.secure()
    assert talk.heard is not None
    talk.server.pause_reading()
    assert talk.raw.is_paused
    talk.send(talk.records_of(*WORDS))
    assert talk.heard.said == b"" and not turns.behind
    talk.server.resume_reading()
    while turns.behind:
        turns.give_turn()
    assert talk.heard.said == b"".join(WORDS) and not talk.raw.is_paused
