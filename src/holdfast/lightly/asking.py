"""One question over HTTP/1.1, one answer: where to ask, and how, for programs that must start at once.

The law of this file: an answer is what a server sent whole, within the time; anything else is an exception that says
whether what was asked may have been done. It imports the standard library alone, and of that as little as it can; TLS
and several addresses are imported where they are needed.
"""

from __future__ import annotations

import _socket  # The module `socket` around it takes a fifth of the time that these programs may need to start.
import _thread
import os
import time

SECONDS_MAX = 10.0
"""For everything together, however slowly the answer trickles in."""
CONNECT_SECONDS_MAX = 5.0
ANSWER_BYTES_MAX = 1 << 20

_TOO_LATE = "no answer in time: it may or may not have been done"


class UnreachableError(Exception):
    """There is no answer, and asking again would not help."""


class LostError(UnreachableError):
    """The connection broke after it stood: what was asked may have been done."""


class Address:
    """Where a server is."""

    def __init__(self, url: str, origin: str, ca_file: str = "") -> None:
        """Take `http://host:port/path` apart. Raises `UnreachableError`."""
        self.origin, self.ca_file = origin, ca_file
        scheme, separator, rest = url.partition("://")
        self.scheme = scheme.lower()
        authority, slash, path = rest.partition("/")
        host, colon, port = authority.rpartition(":")
        if not colon or port.endswith("]"):
            host, port = authority, "443" if self.scheme == "https" else "80"
        usable = separator and self.scheme in {"http", "https"} and not set(url) & set(" @?#\\") and host.strip("[]")
        if not usable or not url.isascii() or not url.isprintable() or not port.isdecimal() or len(port) > 5:  # noqa: PLR2004 - as long as the largest port
            raise UnreachableError(f"{origin} is not an address: write http://host:port or https://host:port")
        self.authority = authority
        self.host, self.port = host.strip("[]"), int(port)
        self.path = (slash + path).rstrip("/")
        self.place = (self.scheme, self.host, self.port)

    @property
    def is_private(self) -> bool:
        """Is what is sent there encrypted, or does it never leave the machine?"""
        # A name may resolve to anything, so of names only this one counts.
        if self.scheme == "https" or self.host in {"localhost", "::1"}:
            return True
        parts = self.host.split(".")
        return len(parts) == 4 and parts[0] == "127" and all(part.isdecimal() for part in parts)  # noqa: PLR2004 - IPv4


def addresses(urls: str, origin: str, ca_file: str) -> list[Address]:
    """Read an address, or several with commas in between. Raises `UnreachableError`."""
    return [Address(url.strip() if "," in urls else url, origin, ca_file) for url in urls.split(",")]


def fresh_key() -> str:
    """Make an idempotency key that no other process of any machine makes."""
    # In hexadecimal, because a machine may be called anything and a key is plain ASCII.
    return f"{os.fsencode(os.uname().nodename).hex()}-{os.getpid()}-{time.monotonic_ns()}"


def seconds_until(deadline: float) -> float:
    """Tell how long it is until a moment of the monotonic clock."""
    return deadline - time.monotonic()


def deadline_in(seconds: float) -> float:
    """Return the moment of the monotonic clock that is so far ahead."""
    return time.monotonic() + seconds


def ask(
    asked: list[Address], method: str, path: str, headers: str, content: bytes, *, seconds: float = SECONDS_MAX
) -> tuple[int, bytes, bool]:
    """Send one request, and once more if the connection broke: what is sent must be safe to ask twice.

    `headers` are those beside the ones of every request, each with its line end. Returns the status, the body, and
    whether the answer to another try was lost. Raises `UnreachableError`; it is a `LostError` where something may have
    been done.
    """
    deadline = deadline_in(seconds)

    def ask_one(address: Address, answer_seconds: float, connect_seconds: float) -> tuple[int, bytes]:
        head = (
            f"{method} {address.path}{path} HTTP/1.1\r\nHost: {address.authority}\r\n{headers}Connection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        return _send(address, head.encode() + content, answer_seconds, connect_seconds)

    if len(asked) > 1:
        from holdfast.lightly.several import ask_each

        kinds = (UnreachableError, LostError)
        return ask_each(asked, ask_one, lambda: seconds_until(deadline), time.sleep, kinds)
    try:
        return *ask_one(asked[0], seconds, CONNECT_SECONDS_MAX), False
    except LostError as lost:
        try:
            return *ask_one(asked[0], seconds_until(deadline), CONNECT_SECONDS_MAX), True
        except UnreachableError:
            raise lost from None


def _send(address: Address, request: bytes, answer_seconds: float, connect_seconds: float) -> tuple[int, bytes]:
    now = time.monotonic()
    deadline = now + answer_seconds
    connection = _connect(address, min(deadline, now + connect_seconds))
    try:
        connection.settimeout(_left(deadline))
        connection.sendall(request)
        return _AnswerReader(connection, deadline).read()
    except (TimeoutError, UnreachableError):
        raise LostError(_TOO_LATE) from None
    except (OSError, ValueError) as error:
        hint = "; if it speaks https, write https:// in its address" if address.scheme == "http" else ""
        raise LostError(f"the connection broke, it may or may not have been done: {_words(error)}{hint}") from None
    finally:
        connection.close()


def _connect(address: Address, deadline: float) -> _socket.socket:
    failure = "no address"
    for family, kind, protocol, _, place in _resolve(address, deadline):
        connection = None
        try:
            connection = _socket.socket(family, kind, protocol)
            connection.settimeout(_left(deadline))
            connection.connect(place)
            if address.scheme == "https":
                from holdfast.lightly.tls import secured

                connection = secured(connection, address.host, address.ca_file)
        except OSError as error:
            if connection is not None:
                connection.close()
            failure = (_why_not(error) if address.scheme == "https" else _words(error)) + _hint(error)
        else:
            return connection
    raise UnreachableError(f"cannot reach {address.scheme}://{address.authority}: {failure}")


def _hint(error: Exception) -> str:
    from holdfast.sandbox import hint

    return f"; {found}" if (found := hint(error)) else ""


def _words(error: Exception) -> str:
    """Say what went wrong in the system's own words, without what Python writes around them."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _why_not(error: OSError) -> str:
    from holdfast.lightly.tls import why_not

    return why_not(error)


def _resolve(address: Address, deadline: float) -> list[tuple[int, int, int, str, tuple[str, int]]]:
    """Look the name up. That cannot be interrupted, so it is done beside, and waited for while there is time."""
    found: list[object] = []
    done = _thread.allocate_lock()
    done.acquire()

    def look_up() -> None:
        try:
            found.extend(_socket.getaddrinfo(address.host.encode(), address.port, 0, _socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            found.append(error)
        finally:
            done.release()

    _thread.start_new_thread(look_up, ())
    if not done.acquire(timeout=_left(deadline)):
        raise UnreachableError(f"cannot find the address of {address.host} in time")
    if isinstance(found[0], Exception):
        whose = f"{address.origin}{', in a session the public_url of the server' * (address.origin == 'GATEWAY_URL')}"
        why = _words(found[0]) + _hint(found[0])
        raise UnreachableError(f"cannot find the address of {address.host} ({whose}): {why}")
    return found  # type: ignore[return-value]


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise UnreachableError(_TOO_LATE)
    return left


class _AnswerReader:
    """Reads one answer of HTTP/1.1, strictly. What breaks off or is not HTTP raises `ValueError`."""

    def __init__(self, connection: _socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._data = b""
        self._size = 0

    def read(self) -> tuple[int, bytes]:
        """Return the status and the body."""
        status, headers = self._head()
        while 100 <= status < 200:  # noqa: PLR2004 - answers before the answer
            status, headers = self._head()
        if b"chunked" in headers.get(b"transfer-encoding", b"").lower():
            return status, self._chunks()
        length = headers.get(b"content-length")
        if length is not None:
            return status, self._take(_number(length, 10))
        while self._more():
            pass
        return status, self._data

    def _head(self) -> tuple[int, dict[bytes, bytes]]:
        first = self._line().split(b" ", 2)
        if len(first) < 2 or not first[0].startswith(b"HTTP/1.") or len(first[1]) != 3:  # noqa: PLR2004 - as in "HTTP/1.1 200"
            raise ValueError("this is not HTTP")
        headers: dict[bytes, bytes] = {}
        while line := self._line():
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip()
        return _number(first[1], 10), headers

    def _chunks(self) -> bytes:
        body = b""
        while size := _number(self._line().partition(b";")[0].strip(), 16):
            body += self._take(size)
            if self._line():
                raise ValueError("a chunk is longer than it says")
        return body

    def _line(self) -> bytes:
        while b"\n" not in self._data:
            self._need()
        line, _, self._data = self._data.partition(b"\n")
        return line.removesuffix(b"\r")

    def _take(self, size: int) -> bytes:
        while len(self._data) < size:
            self._need()
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def _need(self) -> None:
        if not self._more():
            raise ValueError("the answer broke off")

    def _more(self) -> bool:
        self._connection.settimeout(_left(self._deadline))
        piece = self._connection.recv(65_536)
        self._data += piece
        self._size += len(piece)
        if self._size > ANSWER_BYTES_MAX:
            raise ValueError("the answer is too long")
        return bool(piece)


def _number(text: bytes, base: int) -> int:
    """Read what is digits and nothing else; `int` alone would also take signs and underscores."""
    if not text or not set(text) <= set(b"0123456789abcdefABCDEF"[: 10 if base == 10 else 22]):  # noqa: PLR2004 - decimal
        raise ValueError("this is not HTTP")
    return int(text, base)
