"""What strangers without a token send: every row of the hostile mix."""

from __future__ import annotations

import json

from tests.load.swarm import CHANCE, Attack
from tests.support.pending import payload
from tests.support.raw import head

MIB = 1 << 20
HOST = "Host: 127.0.0.1"
JSON_TYPE = "Content-Type: application/json"
LARGE = 2 * MIB

PAGES = ("/docs", "/openapi.json", "/openapi.yaml", "/status", "/health", "/healthz", "/readyz")
ASKED = ("/locks", "/locks/job", "/locks/job/why", "/locks/job/history", "/sessions", "/tokens", "/events")


def _get(path: str, token: str | None = None, method: str = "GET") -> bytes:
    return payload(path, token, method=method)


def _announced(length: int, *fields: str, path: str = "/claims") -> bytes:
    return head("POST", path, HOST, JSON_TYPE, f"Content-Length: {length}", *fields)


def _chunked(*fields: str) -> bytes:
    return head("POST", "/claims", HOST, JSON_TYPE, "Transfer-Encoding: chunked", *fields)


def _wrong_token() -> str:
    return f"wrong-{CHANCE.getrandbits(128):032x}"


def _wrong_tokens() -> bytes:
    return b"".join(_get(CHANCE.choice(ASKED), _wrong_token()) for _ in range(50))


def _padded(open_: bytes, close: bytes, size: int) -> bytes:
    """JSON, or nearly, of just that size."""
    count = (size - 2) // (len(open_) + len(close))
    middle = open_ * count + close * count
    return middle + b" " * (size - len(middle))


BODIES = (
    b'{"name": "' + b"a" * (LARGE - 12) + b'"}',
    _padded(b"[", b"]", LARGE),
    _padded(b'{"a":', b"}", LARGE),
    json.dumps({f"field-{number}": number for number in range(60_000)}).encode(),
    json.dumps({"all": [f"name-{number}" for number in range(100_000)]}).encode(),
    b"\xff" * LARGE,
)


def _large_body() -> bytes:
    body = CHANCE.choice(BODIES)
    wrong = (f"Authorization: Bearer {_wrong_token()}",) if CHANCE.random() < 0.5 else ()
    return _announced(len(body), *wrong, path=CHANCE.choice(("/claims", "/locks/job/acquire", "/sessions"))) + body


def _huge_head() -> bytes:
    return CHANCE.choice(
        (
            head("GET", "/healthz", HOST, "X-Long: " + "a" * MIB),
            head("GET", "/healthz", HOST, *(["X-Again: b"] * 100_000)),
            head("GET", "/healthz", HOST, *(f"X-{number}: b" for number in range(50_000))),
            head("GET", "/" + "a" * MIB, HOST),
            head("GET", "/healthz", *([HOST] * 50_000)),
            head("GET", "/healthz", HOST, *(f"X-{number}: b" for number in range(1_000))),
        )
    )


def _upgrade() -> bytes:
    h2c = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    websocket = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: eA==", "Sec-WebSocket-Version: 13")
    return CHANCE.choice(
        (
            head("GET", "/healthz", HOST, *h2c),
            head("POST", "/claims", HOST, *h2c, "Content-Length: 10") + b"0123456789",
            head("GET", "/events", HOST, *websocket),
            head("CONNECT", "127.0.0.1:80", HOST),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" * 1_000,
        )
    )


def _garbage() -> bytes:
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + CHANCE.randbytes(508)
    return CHANCE.choice((hello, CHANCE.randbytes(4_096), b"\x00" * 4_096, b"hello\r\n\r\n", b"\n" * 100 + b"GET"))


def _odd_methods() -> bytes:
    methods = ("OPTIONS", "HEAD", "PUT", "PATCH", "DELETE", "TRACE", "BREW", "PROPFIND", "M" * 100)
    return b"".join(_get(CHANCE.choice((*PAGES, *ASKED, "*")), method=CHANCE.choice(methods)) for _ in range(20))


def _byte() -> bytes:
    return CHANCE.choice((b"a", b"A", b":", b"\r\n"))


STREAMS = b"".join(_get(path) for path in ("/events", "/locks/job/watch", "/events?prefix=a"))

ATTACKS: dict[str, Attack] = {
    "pipelined floods": Attack(connections=8, more=_get("/healthz") * 1_000, every_seconds=0.02),
    "pipelined claims": Attack(connections=8, more=payload("/claims", None, {"any": ["job"]}) * 1_000),
    "unread answers": Attack(
        connections=100,
        more=(_get("/docs") + _get("/openapi.json")) * 100,
        reads=False,
        receive_buffer_bytes=4_096,
    ),
    "slow heads": Attack(
        connections=600, first=b"POST /claims HTTP/1.1\r\nHost: 127.0.0.1\r\nX-", more=_byte, every_seconds=1
    ),
    "slow bodies": Attack(connections=600, first=_announced(100_000), more=b" ", every_seconds=1),
    "held bodies": Attack(connections=400, first=_announced(LARGE) + b" " * (LARGE - 1)),
    "held bodies in chunks": Attack(
        connections=100, first=_chunked() + (b"10000\r\n" + b" " * (1 << 16) + b"\r\n") * 31, opens_per_second=50
    ),
    "announced bodies": Attack(connections=300, first=_announced(LARGE, "Expect: 100-continue")),
    "large bodies": Attack(connections=16, first=_large_body, more=_large_body, opens_per_second=50),
    "wrong tokens": Attack(connections=16, more=_wrong_tokens, every_seconds=0.02),
    "wrong tokens each once": Attack(
        connections=64, first=lambda: _get("/locks", _wrong_token()), lasts_seconds=0.2, opens_per_second=300
    ),
    "endless trailers": Attack(
        connections=20, first=_chunked() + b"0\r\n", more=(b"X-T: " + b"a" * 995 + b"\r\n") * 10
    ),
    "endless extension": Attack(connections=20, first=_chunked() + b"1;", more=b"a" * 10_000),
    "small chunks": Attack(connections=20, first=_chunked(), more=(b"1;a=" + b"b" * 100 + b"\r\nx\r\n") * 1_000),
    "upgrades": Attack(connections=20, first=_upgrade, more=lambda: CHANCE.randbytes(1_000)),
    "garbage": Attack(connections=20, first=_garbage, more=_garbage, stubborn=True, lasts_seconds=5),
    "empty lines": Attack(connections=10, more=b"\r\n" * 5_000),
    "huge heads": Attack(connections=20, first=_huge_head, opens_per_second=50),
    "tiny segments": Attack(connections=50, more=_byte, every_seconds=0.01),
    "churn": Attack(connections=200, lasts_seconds=0.01, opens_per_second=2_000),
    "churn with resets": Attack(
        connections=100, first=_get("/docs"), lasts_seconds=0.01, resets=True, reads=False, opens_per_second=500
    ),
    "half closed": Attack(
        connections=300, first=_get("/docs") + b"GET /hea", half_closes=True, reads=False, lasts_seconds=20
    ),
    "idle": Attack(connections=3_000, opens_per_second=500),
    "odd methods": Attack(connections=10, more=_odd_methods),
    "streams": Attack(connections=20, more=STREAMS * 10),
    "open pages": Attack(connections=10, more=b"".join(map(_get, PAGES)) * 10),
}
