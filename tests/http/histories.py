"""Draws what a client may do on one connection: what it sends, in which pieces, when it reads, how it ends.

One seed is one history, to the byte. Requests come from `GOOD`, `ENDINGS` come last, and more requests may stand behind
an ending, where they must never happen. What must become of it all is not said here: the naive model reads the bytes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from tests.http.judge import due, ends_itself
from tests.http.naive_http import BODY_BYTES_MAX, HEAD_BYTES_MAX, read
from tests.support import callers

Finish = Literal["listen", "half-close", "hang up", "reset"]
Pause = Literal["none", "turn", "moment", "answers"]


READ_AHEAD_BYTES = 8_000
"""What a server surely reads on behind a stream: an end of sending behind more than that it need not notice."""


@dataclass(frozen=True)
class History:
    """What a client does on one connection."""

    seed: int
    kinds: tuple[str, ...]
    sent: bytes
    cuts: tuple[tuple[int, Pause], ...]
    """Where it pauses in sending, and how."""
    reads_late: bool
    """Whether it reads nothing before all is sent."""
    finish: Finish

    def __str__(self) -> str:
        how = f"{len(self.sent)} bytes, cut at {list(self.cuts)[:20]}, reads late: {self.reads_late}, {self.finish}"
        return f"seed {self.seed}: {', '.join(self.kinds)}; {how}"


class Draw:
    """The chance of one history, and its names."""

    def __init__(self, seed: int, stem: str) -> None:
        self.chance = random.Random(seed)
        self._stem = stem
        self._names = 0

    def fresh(self) -> str:
        """A name that nobody used."""
        self._names += 1
        return f"{self._stem}/{self._names - 1}"

    def used(self) -> str:
        """A name that was used, if there is one."""
        return f"{self._stem}/{self.chance.randrange(max(1, self._names))}"

    def one_in(self, number: int) -> bool:
        """Is it this one?"""
        return self.chance.randrange(number) == 0


def request(
    method: str,
    path: str,
    *fields: str,
    body: bytes | None = None,
    token: str | None = callers.ALICE,
    version: str = "1.1",
    kind: str = "application/json",
) -> bytes:
    """A request as bytes. A body has its length, unless `fields` say that it comes in chunks."""
    lines = [f"{method} {path} HTTP/{version}", "Host: localhost"]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    if body is not None:
        lines.append(f"Content-Type: {kind}")
        if not any(line.startswith("Transfer-Encoding") for line in fields):
            lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, *fields, "", ""]).encode("latin-1") + (body or b"")


def _claim_body(draw: Draw) -> bytes:
    number = f"{draw.chance.getrandbits(32)}"
    bodies: list[dict[str, object]] = [{}, {"ttl_seconds": 90, "metadata": number}, {"metadata": number * 20}]
    return json.dumps(draw.chance.choice(bodies)).encode()


def _acquire(draw: Draw) -> bytes:
    return request("POST", f"/locks/{draw.fresh()}/acquire", body=_claim_body(draw))


def _acquire_with_a_key(draw: Draw) -> bytes:
    key = f"Idempotency-Key: {draw.chance.getrandbits(64):x}"
    return request("POST", f"/locks/{draw.fresh()}/acquire", key, body=_claim_body(draw))


def _acquire_again(draw: Draw) -> bytes:
    return request("POST", f"/locks/{draw.used()}/acquire", body=b"{}")


def _status(draw: Draw) -> bytes:
    return request(draw.chance.choice(["GET", "GET", "HEAD"]), f"/locks/{draw.used()}")


def _plain(draw: Draw) -> bytes:
    token = None if draw.one_in(2) else callers.ALICE
    return request(draw.chance.choice(["GET", "GET", "HEAD"]), draw.chance.choice(["/health", "/healthz"]), token=token)


def _large(draw: Draw) -> bytes:
    return request("GET", draw.chance.choice(["/docs"] * 9 + ["/openapi.json"]), token=None)


def _lost(draw: Draw) -> bytes:
    path, method = draw.chance.choice(
        [
            ("/nope", "GET"),
            ("/nope", "POST"),
            ("/health", "DELETE"),
            (f"/locks/{draw.used()}", "PUT"),
            (f"/locks/{draw.fresh()}/acquire", "GET"),
            (f"/locks/{draw.used()}/watch", "OPTIONS"),
        ]
    )
    return request(method, path, body=b"{}" if method == "POST" else None)


def _unauthenticated(draw: Draw) -> bytes:
    token = draw.chance.choice([None, "nobody-knows-this-one", callers.READER])
    if token != callers.READER and draw.one_in(3):
        return request("GET", f"/locks/{draw.used()}{draw.chance.choice(['', '/watch'])}", token=token)
    return request("POST", f"/locks/{draw.fresh()}/acquire", body=b"{}", token=token)


def _malformed(draw: Draw) -> bytes:
    hidden = request("POST", f"/locks/{draw.fresh()}/acquire", body=b"{}")
    body = draw.chance.choice([hidden, hidden * 3, b"", b"{", b"[]", b'{"colour": 1}', b"\x00" * 10])
    return request("POST", f"/locks/{draw.fresh()}/acquire", body=body)


def _other_type(draw: Draw) -> bytes:
    return request("POST", f"/locks/{draw.fresh()}/acquire", body=b"{}", kind="text/plain")


def _get_with_body(draw: Draw) -> bytes:
    hidden = request("POST", f"/locks/{draw.fresh()}/acquire", body=b"{}")
    return request("GET", f"/locks/{draw.used()}", body=hidden)


def _in_chunks(draw: Draw, body: bytes, trailers: bytes = b"") -> bytes:
    written = b""
    while body:
        size = draw.chance.randint(1, len(body))
        extension = draw.chance.choice([b"", b"", b";x", b';note="a b"', b";" + b"e" * 60])
        written += b"%x%b\r\n%b\r\n" % (size, extension, body[:size])
        body = body[size:]
    return written + b"0\r\n" + trailers + b"\r\n"


def _chunked(draw: Draw) -> bytes:
    hidden = request("POST", f"/locks/{draw.fresh()}/acquire", body=b"{}")
    body = draw.chance.choice([_claim_body(draw), _claim_body(draw), hidden])
    head = request("POST", f"/locks/{draw.fresh()}/acquire", "Transfer-Encoding: chunked", body=b"")
    return head + _in_chunks(draw, body)


TRAILERS = (
    b"X-Sum: 1\r\n",
    b"Host: elsewhere\r\nHost: more\r\n",
    b"Idempotency-Key: a\r\nUpgrade: h2c\r\n",
    b"Expect: 100-continue\r\nContent-Type: text/plain\r\n",
)


def _trailers(draw: Draw) -> bytes:
    """A body with trailers; some carry what would let the caller in, if it counted."""
    lets_in = draw.one_in(3)
    trailers = f"Authorization: Bearer {callers.ALICE}\r\n".encode() if lets_in else draw.chance.choice(TRAILERS)
    head = request(
        "POST",
        f"/locks/{draw.fresh()}/acquire",
        "Transfer-Encoding: chunked",
        body=b"",
        token=None if lets_in else callers.ALICE,
    )
    return head + _in_chunks(draw, b"{}", trailers)


def _expect(draw: Draw) -> bytes:
    return request("POST", f"/locks/{draw.fresh()}/acquire", "Expect: 100-continue", body=_claim_body(draw))


def _absolute(draw: Draw) -> bytes:
    if draw.one_in(2):
        return request("GET", f"http://localhost/locks/{draw.used()}")
    return request("POST", f"http://localhost/locks/{draw.fresh()}/acquire", body=b"{}")


def _upgrade(draw: Draw) -> bytes:
    wish = [f"Upgrade: {draw.chance.choice(['websocket', 'h2c', 'TLS/1.3', 'x'])}"]
    wish += draw.chance.choice([["Connection: Upgrade"], ["Connection: Upgrade, keep-alive"], []])
    wish += ["Expect: 100-continue"] if draw.one_in(4) else []
    hidden = request("POST", f"/locks/{draw.fresh()}/acquire", body=b"{}")
    body = draw.chance.choice([b"{}", hidden])
    if draw.one_in(3):
        return request("GET", "/health", *wish)
    if draw.one_in(2):
        return request("POST", f"/locks/{draw.fresh()}/acquire", *wish, body=body)
    head = request("POST", f"/locks/{draw.fresh()}/acquire", *wish, "Transfer-Encoding: chunked", body=b"")
    return head + _in_chunks(draw, body)


def _other_spelling(draw: Draw) -> bytes:
    """The same request as others write it."""
    head, _, body = request("POST", f"/locks/{draw.fresh()}/acquire", body=_claim_body(draw)).partition(b"\r\n\r\n")
    line, *fields = head.split(b"\r\n")
    spelled = []
    for field in fields:
        name, _, value = field.partition(b": ")
        name = draw.chance.choice([name, name.upper(), name.lower()])
        spelled.append(
            name + b":" + draw.chance.choice([b" ", b"", b"\t", b" \t  "]) + value + draw.chance.choice([b"", b" "])
        )
    draw.chance.shuffle(spelled)
    return b"\r\n".join([line, *spelled, b"", body])


def _blank_lines(draw: Draw) -> bytes:
    return b"\r\n" * draw.chance.randint(1, 3) + _status(draw)


def _waits(draw: Draw) -> bytes:
    body = json.dumps({"wait_seconds": draw.chance.choice([0.001, 0.03])}).encode()
    return request("POST", f"/locks/{draw.used()}/acquire", body=body, token=callers.BOB)


def _twice(draw: Draw) -> bytes:
    field = draw.chance.choice(
        ["Host: localhost", f"Authorization: Bearer {callers.ALICE}", "Content-Type: application/json"]
    )
    return request("POST", f"/locks/{draw.fresh()}/acquire", field, body=b"{}")


Kind = Callable[[Draw], bytes]

GOOD: dict[str, tuple[int, Kind]] = {
    "acquire": (12, _acquire),
    "acquire with a key": (8, _acquire_with_a_key),
    "acquire again": (3, _acquire_again),
    "status": (6, _status),
    "plain": (5, _plain),
    "large": (1, _large),
    "lost": (3, _lost),
    "let nobody in": (3, _unauthenticated),
    "malformed": (3, _malformed),
    "other type": (1, _other_type),
    "get with a body": (2, _get_with_body),
    "chunked": (3, _chunked),
    "trailers": (3, _trailers),
    "expect": (2, _expect),
    "absolute": (2, _absolute),
    "upgrade": (2, _upgrade),
    "other spelling": (3, _other_spelling),
    "blank lines": (1, _blank_lines),
    "waits": (1, _waits),
    "twice": (1, _twice),
}
"""Requests, and how often each is drawn."""


def _closing(draw: Draw) -> bytes:
    method, path, body = draw.chance.choice(
        [("GET", "/health", None), ("POST", f"/locks/{draw.fresh()}/acquire", b"{}"), ("GET", "/nope", None)]
    )
    return request(method, path, "Connection: close", body=body)


def _old(draw: Draw) -> bytes:
    method, path, body = draw.chance.choice(
        [("GET", "/health", None), ("POST", f"/locks/{draw.fresh()}/acquire", b"{}"), ("GET", "/docs", None)]
    )
    return request(method, path, body=body, version="1.0")


def _old_and_persistent(draw: Draw) -> bytes:
    return request("POST", f"/locks/{draw.fresh()}/acquire", "Connection: keep-alive", body=b"{}", version="1.0")


def _nothing(_draw: Draw) -> bytes:
    return b""


def _part(draw: Draw) -> bytes:
    kind = draw.chance.choice([_acquire, _status, _chunked, _trailers, _expect, _upgrade, _get_with_body])
    complete = kind(draw)
    return complete[: draw.chance.randrange(1, len(complete))]


def _stray(draw: Draw) -> bytes:
    return draw.chance.choice([b"\x00", b"x", b"{}", b"\x16\x03\x01\x02\x00\x01\x00", b" ", b"0\r\n\r\n", b"get "])


def _bad_head(draw: Draw) -> bytes:
    path = f"/locks/{draw.fresh()}/acquire"
    good = request("POST", path, "X-Last: 1", body=b"{}")
    old, new = draw.chance.choice(
        [
            (b"X-Last: 1", b"nonsense"),
            (b"X-Last: 1", b"X-Last : 1"),
            (b"X-Last: 1", b"X-Last: a\x00b"),
            (b"X-Last: 1", b": 1"),
            (b"X-Last: 1", b"Content-Length: 2"),
            (b"X-Last: 1", b"Content-Length: 40"),
            (b"X-Last: 1", b"Transfer-Encoding: chunked"),
            (b"X-Last: 1", b"Transfer-Encoding: gzip"),
            (b"Content-Length: 2", b"Content-Length: +2"),
            (b"Content-Length: 2", b"Content-Length: 2, 2"),
            (b"Content-Length: 2", b"Content-Length: 0x2"),
            (b"X-Last: 1", b"Idempotency-Key: a\x00b"),
            (b"Content-Length: 2", b"Transfer-Encoding: xchunked"),
            (b"Host: localhost\r\n", b""),
            (b"POST ", b"BREW "),
            (b"POST ", b"post "),
            (b"HTTP/1.1", b"HTTP/9.9"),
            (b"HTTP/1.1", b"FTP/1.1"),
            (b" HTTP/1.1", b""),
        ]
    )
    return good.replace(old, new, 1)


def _large_head(draw: Draw) -> bytes:
    line = f"X-Same: {'y' * 40}"
    one = [f"X-Large: {'x' * 2 * HEAD_BYTES_MAX}"]
    many = [f"X-{number}: {'y' * 40}" for number in range(HEAD_BYTES_MAX // 20)]
    fields = draw.chance.choice([one, many, [line] * (HEAD_BYTES_MAX // 20)])
    return request("POST", f"/locks/{draw.fresh()}/acquire", *fields, body=b"{}")


def _large_body(draw: Draw) -> bytes:
    path, size = f"/locks/{draw.fresh()}/acquire", 5 * BODY_BYTES_MAX
    if draw.one_in(2):
        expect = ("Expect: 100-continue",) if draw.one_in(2) else ()
        return request("POST", path, *expect, body=b" " * size)
    start = request("POST", path, "Transfer-Encoding: chunked", body=b"")
    return start + draw.chance.choice([b"%x\r\n%b\r\n" % (size, b" " * size), b"100\r\n%b\r\n" % (b" " * 256) * 80])


def _bad_chunks(draw: Draw) -> bytes:
    start = request("POST", f"/locks/{draw.fresh()}/acquire", "Transfer-Encoding: chunked", body=b"")
    return start + draw.chance.choice([b"zz\r\n", b"-1\r\n", b"1\r\n{}\r\n0\r\n\r\n", b"\r\n", b"0x2\r\n{}\r\n"])


def _large_trailers(draw: Draw) -> bytes:
    start = request("POST", f"/locks/{draw.fresh()}/acquire", "Transfer-Encoding: chunked", body=b"")
    line = draw.chance.choice([b"X-Same: " + b"y" * 40 + b"\r\n", b"X-Large: " + b"x" * 5 * HEAD_BYTES_MAX + b"\r\n"])
    return start + b"2\r\n{}\r\n0\r\n" + line * (5 * HEAD_BYTES_MAX // len(line) + 1) + b"\r\n"


def _tunnel(draw: Draw) -> bytes:
    return request("CONNECT", "localhost:443", token=None)


def _stream(draw: Draw) -> bytes:
    name = draw.used() if draw.one_in(2) else draw.fresh()
    version = "1.0" if draw.one_in(4) else "1.1"
    if draw.one_in(3):
        return request("GET", f"/events?prefix={name.replace('/', '%2F')}", version=version)
    return request("GET", f"/locks/{name}/watch", version=version)


ENDINGS: dict[str, tuple[int, Kind]] = {
    "closing": (6, _closing),
    "HTTP/1.0": (3, _old),
    "HTTP/1.0, to be kept": (1, _old_and_persistent),
    "nothing": (3, _nothing),
    "part": (4, _part),
    "stray": (3, _stray),
    "bad head": (5, _bad_head),
    "large head": (1, _large_head),
    "large body": (1, _large_body),
    "bad chunks": (2, _bad_chunks),
    "large trailers": (1, _large_trailers),
    "tunnel": (1, _tunnel),
    "stream": (4, _stream),
}


def draw(seed: int, stem: str) -> History:
    """The history of this seed. Its names begin with `stem`."""
    chosen = Draw(seed, stem)
    chance = chosen.chance
    count = chance.choice([0, 1, 1, 2, 2, 3, 4, 5, 7, 10, 15, chance.randint(16, 40)])
    pieces = [_pick(chosen, GOOD) for _ in range(count)]
    pieces.append(_pick(chosen, ENDINGS))
    if pieces[-1][0] != "part" and chance.randrange(2):
        pieces += [_pick(chosen, GOOD) for _ in range(chance.randint(1, 4))]
    sent = b"".join(piece for _, piece in pieces)
    reads_late = chosen.one_in(8)
    return History(
        seed,
        tuple(kind for kind, _ in pieces),
        sent,
        _cuts(chance, sent, [len(piece) for _, piece in pieces]),
        reads_late,
        _finish(chosen, sent),
    )


def _pick(chosen: Draw, kinds: Mapping[str, tuple[int, Kind]]) -> tuple[str, bytes]:
    name = chosen.chance.choices(list(kinds), [weight for weight, _ in kinds.values()])[0]
    return name, kinds[name][1](chosen)


def _cuts(chance: random.Random, sent: bytes, sizes: list[int]) -> tuple[tuple[int, Pause], ...]:
    """Nowhere, between the pieces, or anywhere; now and then behind every byte of the first ones."""
    kind = chance.choice(["none", "none", "pieces", "anywhere", "anywhere", "anywhere", "bytes"])
    positions: set[int] = set()
    if kind == "pieces":
        positions = {sum(sizes[:number]) for number in range(1, len(sizes))}
    elif kind == "anywhere" and sent:
        positions = {chance.randrange(len(sent)) for _ in range(chance.randint(1, 6))}
    elif kind == "bytes" and sent:
        start = chance.randrange(len(sent))
        positions = set(range(start, min(len(sent), start + 40)))
    pause_choices: list[Pause] = ["none", "turn", "turn", "moment", "answers"]
    return tuple((position, chance.choice(pause_choices)) for position in sorted(positions - {0}))


def _finish(chosen: Draw, sent: bytes) -> Finish:
    """Something that ends the connection: the server itself if it must, else the client."""
    reading = read(sent)
    itself = ends_itself(reading)
    is_slow = len(sent) > READ_AHEAD_BYTES and len(due(reading)) < len(reading.asked)
    if chosen.one_in(12) or (is_slow and not itself):
        return chosen.chance.choice(["hang up", "reset"])
    return "listen" if itself and not chosen.one_in(4) else "half-close"
