"""Requests whose end a proxy and a server could see in different places: every trick that we know of.

Each is written around a *hidden* text, which is a request or the beginning of one. By no reading that RFC 9112 allows
is it a request that the proxy may pass on: it is either part of a body, or the proxy itself refuses what it asks for.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.support import callers
from tests.support.raw import head

OUTER = "/locks/outer/check"
HOST = "Host: locks.example.com"
TOKEN = f"Authorization: Bearer {callers.ALICE}"
PLAIN = (HOST, TOKEN, "Content-Type: application/json")
CHUNKED = "Transfer-Encoding: chunked"
H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
WEBSOCKET = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: eA==", "Sec-WebSocket-Version: 13")
END = b"0\r\n\r\n"
PADDING = b" " * 200_000
"""More than a proxy or a server reads at once."""


def _post(*fields: str, path: str = OUTER, version: str = "HTTP/1.1") -> bytes:
    return head("POST", path, *PLAIN, *fields, version=version)


def _chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


def cases(hidden: bytes) -> dict[str, bytes]:
    """Every trick around this text, by its name."""
    return dict([*_lengths(hidden), *_codings(hidden), *_chunks(hidden), *_trailers(hidden), *_other(hidden)])


def _lengths(hidden: bytes) -> Iterator[tuple[str, bytes]]:
    """Two ways to say how long a body is."""
    size = len(hidden)
    yield "CL.TE", _post(f"Content-Length: {size + 5}", CHUNKED) + END + hidden
    yield "TE before CL", _post(CHUNKED, f"Content-Length: {size + 5}") + END + hidden
    yield "TE.CL", _post(CHUNKED, "Content-Length: 4") + _chunk(hidden) + END
    yield "TE.CL, no length", _post("Content-Length: 0", CHUNKED) + _chunk(hidden) + END
    yield "two lengths", _post("Content-Length: 0", f"Content-Length: {size}") + hidden
    yield "two lengths, larger first", _post(f"Content-Length: {size}", "Content-Length: 0") + hidden
    yield "a list of lengths", _post(f"Content-Length: 0, {size}") + hidden
    yield "the same length as a list", _post(f"Content-Length: {size}, {size}") + hidden
    for name, value in {
        "signed": "+0",
        "negative": "-0",
        "hexadecimal": "0x0",
        "a fraction": "0.0",
        "empty": "",
        "with an underscore": f"0_{size}",
        "too large for 64 bits": str((1 << 64) + size),
        "after a tab": f"\t{size}",
        "after a vertical tab": f"\x0b{size}",
        "with a NUL": f"{size}\x000",
    }.items():
        yield f"a length that is {name}", _post(f"Content-Length:{value}") + hidden
    yield "a blank before the colon", _post(f"Content-Length : {size}") + hidden
    yield "a length with a NUL in its name", _post(f"Content-Length\x00: {size}") + hidden
    yield "a length with an underscore in its name", _post("Content-Length: 2", f"Content_Length: {size}") + b"{}"
    yield "a folded length", _post(f"Content-Length: 0\r\n {size}") + hidden
    yield "a length on a folded line", _post(f"X-Odd: a\r\n Content-Length: {size}", "Content-Length: 0")
    yield "a length behind a bare LF", _post(f"X-Odd: a\nContent-Length: {size}") + hidden
    yield "a length behind a bare CR", _post(f"X-Odd: a\rContent-Length: {size}") + hidden
    yield "a length that Connection names", _post("Connection: Content-Length", f"Content-Length: {size}") + hidden


def _codings(hidden: bytes) -> Iterator[tuple[str, bytes]]:
    """A coding that one side knows and the other does not."""
    size = len(hidden) + 5
    for coding in (
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding:\x0bchunked",
        "Transfer-Encoding: \x00chunked",
        'Transfer-Encoding: "chunked"',
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: identity, chunked",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked;q=1",
        "Transfer-Encoding:\r\n chunked",
        "Transfer-Encoding: identity\r\n , chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
        "X-Odd: a\r\n Transfer-Encoding: chunked",
        "X-Odd: a\nTransfer-Encoding: chunked",
        "X-Odd: a\rTransfer-Encoding: chunked",
        "Transfer_Encoding: chunked",
        "Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked",
        "TE: chunked",
    ):
        yield f"{coding!r} and a length", _post(coding, f"Content-Length: {size}") + END + hidden
        if "chunked" in coding:
            yield f"{coding!r} alone", _post(coding) + _chunk(hidden) + END
    yield "chunks in HTTP/1.0", _post(CHUNKED, "Connection: keep-alive", version="HTTP/1.0") + _chunk(hidden) + END
    yield (
        "chunks and a length in HTTP/1.0",
        _post(CHUNKED, f"Content-Length: {size}", "Connection: keep-alive", version="HTTP/1.0") + END + hidden,
    )


def _chunks(hidden: bytes) -> Iterator[tuple[str, bytes]]:
    """Chunks whose lines can be read in two ways."""
    inside = _chunk(END + hidden)
    size = b"%x" % len(END + hidden)
    start = _post(CHUNKED)
    # Who takes a bare LF for the end of a line sees another chunk than who takes it for a part of the extension.
    yield "an extension with a bare LF", start + b"2;\nxx\r\n" + inside + END
    yield "an extension with a bare LF, the other way", start + b"2;a=\n{}\r\n" + size + b"\r\n" + END + hidden
    yield "an extension with a bare CR", start + b"2;a\rxx\r\n{}\r\n" + inside + END
    yield "an extension with a quoted line end", start + b'2;a="\r\n{}\r\n' + inside + END
    yield "an extension that looks like a chunk", start + _chunk(END + hidden, b";0\r") + END
    yield "a long extension", start + _chunk(END + hidden, b";" + b"a" * 20_000) + END
    yield "a chunk size that ends in LF", start + size + b"\n" + END + hidden + b"\n0\n\n"
    yield "a chunk size before blanks", start + size + b"   \r\n" + END + hidden + b"\r\n" + END
    yield "a chunk size after blanks", start + b"  " + size + b"\r\n" + END + hidden + b"\r\n" + END
    yield "a chunk size in 0x", start + b"0x" + size + b"\r\n" + END + hidden + b"\r\n" + END
    yield "a chunk size with an underscore", start + b"0_" + size + b"\r\n" + END + hidden + b"\r\n" + END
    yield "a chunk size with a sign", start + b"+" + size + b"\r\n" + END + hidden + b"\r\n" + END
    yield "a chunk size that is negative", start + b"-1\r\n" + inside + END
    yield "a chunk size of more than 64 bits", start + b"1" + b"0" * 16 + size + b"\r\n" + END + hidden
    yield "a chunk size of many zeros", start + b"0" * 300 + size + b"\r\n" + END + hidden + b"\r\n" + END
    yield "an empty chunk size", start + b"\r\n" + END + hidden
    yield "a chunk longer than it says", start + b"2\r\n{}XX" + b"0\r\n\r\n"[2:] + inside + END
    yield "a chunk without a line end", start + b"2\r\n{}0\r\n\r\n" + hidden
    yield "a last chunk with an extension", start + _chunk(hidden) + b"0;a=b\r\n\r\n"
    yield "a last chunk of LF", start + _chunk(hidden) + b"0\n\n"


def _trailers(hidden: bytes) -> Iterator[tuple[str, bytes]]:
    """What comes behind the last chunk."""
    start = _post(CHUNKED, "Trailer: Content-Length") + _chunk(b"{}") + b"0\r\n"
    size = len(hidden)
    # A line of the hidden text is a field of a trailer to one and the beginning of a request to the other.
    yield "a length in a trailer", start + b"Content-Length: %d\r\n\r\n" % size
    yield "a coding in a trailer", start + b"Transfer-Encoding: chunked\r\n\r\n"
    yield "a host in a trailer", start + b"Host: other\r\nAuthorization: none\r\n\r\n"
    yield "a trailer that is a request", start + hidden.replace(b"\r\n\r\n", b"\r\nX: ") + b"\r\n\r\n"
    yield "a trailer behind a bare LF", start + b"X: a\n" + hidden
    yield "a trailer behind a bare CR", start + b"X: a\r\r\n" + hidden
    yield "a folded trailer", start + b"X: a\r\n " + hidden
    yield "trailers without an end", start + b"X: a\r\n" * 3_000


def _other(hidden: bytes) -> Iterator[tuple[str, bytes]]:
    """Upgrades, answers that come early, and targets that are not paths."""
    size = len(hidden)
    length, large = f"Content-Length: {size}", f"Content-Length: {len(PADDING) + size}"
    for name, wish in (("h2c", H2C), ("a WebSocket", WEBSOCKET)):
        yield f"an upgrade to {name} with a body", _post(*wish, length) + hidden
        yield f"an upgrade to {name} with a large body", _post(*wish, large) + PADDING + hidden
        yield f"an upgrade to {name} with chunks", _post(*wish, CHUNKED) + _chunk(hidden) + END
        yield f"an upgrade to {name} with a body on GET", head("GET", OUTER, *PLAIN, *wish, length) + hidden
        yield f"an upgrade to {name}", head("GET", "/healthz", *PLAIN, *wish) + hidden
        yield f"an upgrade to {name} of a stream", head("GET", "/events", *PLAIN, *wish, length) + hidden
    yield "CONNECT", head("CONNECT", "locks.example.com:443", *PLAIN) + hidden
    yield "CONNECT to a path", head("CONNECT", "/healthz", *PLAIN) + hidden
    yield "CONNECT with a body", head("CONNECT", "locks.example.com:443", *PLAIN, length) + hidden
    yield "absolute form", head("POST", f"http://other{OUTER}", *PLAIN, length) + hidden
    yield "absolute form of https", head("POST", f"https://locks.example.com{OUTER}", *PLAIN, length) + hidden
    yield "a line of bare LFs", _post(length).replace(b"\r\n", b"\n") + hidden
    yield "a head that ends in a bare LF", _post("X-Odd: a").removesuffix(b"\r\n") + b"\n" + hidden
    yield "a request line in the target", head("POST", f"{OUTER} HTTP/1.1\r\nX-Odd: a", *PLAIN, length) + hidden
    yield "two hosts", _post("Host: other", length) + hidden
    yield "HTTP/1.0 that stays", _post("Connection: keep-alive", length, version="HTTP/1.0") + hidden
    yield "HTTP/0.9", b"GET /healthz\r\n" + hidden
    yield "HTTP/1.2", _post(length, version="HTTP/1.2") + hidden
    for method in ("GET", "HEAD", "DELETE", "OPTIONS", "TRACE", "BREW"):
        yield f"{method} with a body", head(method, "/healthz", *PLAIN, length) + hidden
        yield f"{method} with chunks", head(method, "/healthz", *PLAIN, CHUNKED) + _chunk(hidden) + END
    for expected in ("100-continue", "y 100-continue", "200-ok"):
        yield f"expects {expected}", _post(f"Expect: {expected}", length) + hidden
        yield f"expects {expected} on GET", head("GET", "/healthz", *PLAIN, f"Expect: {expected}", length) + hidden
    # What is refused before its body is read must not leave the body behind as the next request.
    early = {
        "no token": (OUTER, (HOST,)),
        "a wrong token": (OUTER, (HOST, "Authorization: Bearer wrong-0123456789abcdef")),
        "no route": ("/nowhere", PLAIN),
        "no JSON": (OUTER, (HOST, TOKEN, "Content-Type: text/plain")),
        "no method": ("/healthz", PLAIN),
    }
    for name, (path, fields) in early.items():
        yield f"{name} and a body", head("POST", path, *fields, length) + hidden
        yield f"{name} and chunks", head("POST", path, *fields, CHUNKED) + _chunk(hidden) + END
        yield f"{name} and a large body", head("POST", path, *fields, large) + PADDING + hidden
        yield f"{name} and large chunks", head("POST", path, *fields, CHUNKED) + _chunk(PADDING) + _chunk(hidden) + END
