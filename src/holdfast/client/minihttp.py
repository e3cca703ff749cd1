"""One request over HTTP/1.1, for programs whose start time matters.

Only a complete answer within the time is returned; anything else is an exception that says whether the request may have
been executed. This imports as little as possible, of the standard library only: TLS and TOML only where they are
needed, so `holdfast.clientconfig` is not used either.

The nodes of one server are interchangeable: if one is unreachable, silent, or cannot serve now, the next is asked. If
all failed and one may answer soon, they are asked again until the time is over. The caller ensures that requests are
safe to send twice, as with one address.
"""

from __future__ import annotations

import _socket  # The module `socket` around it takes a fifth of the time that these programs may need to start.
import _thread
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

SECONDS_MAX = 10.0  # For everything together, however slowly the answer trickles in.
CONNECT_SECONDS_MAX = 5.0
ANSWER_BYTES_MAX = 1 << 20

PAUSE_SECONDS = 0.2
ANSWER_SECONDS_MIN = 3.0  # The least time for one of several, if there is enough: a node may wait for a new leader.
_NOT_NOW = frozenset({502, 503, 504})  # The answers of a node that cannot serve now.

_TOO_LATE = "no answer in time: it may or may not have been done"


class UnreachableError(Exception):
    """There is no answer, and retrying would not help."""


class LostError(UnreachableError):
    """The connection broke after it was established: the request may have been executed."""


class Address:
    """A parsed `http://host:port/path`. Raises `UnreachableError`."""

    def __init__(self, url: str, origin: str, ca_file: str = "") -> None:
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
        self.endpoint = (self.scheme, self.host, self.port)

    @property
    def is_private(self) -> bool:
        """Tell whether requests are encrypted or never leave the machine."""
        # A name may resolve to anything, so of names only this one counts.
        if self.scheme == "https" or self.host in {"localhost", "::1"}:
            return True
        parts = self.host.split(".")
        return len(parts) == 4 and parts[0] == "127" and all(part.isdecimal() for part in parts)  # noqa: PLR2004 - IPv4


def addresses(urls: str, origin: str, ca_file: str) -> list[Address]:
    """Parse an address, or several separated by commas. Raises `UnreachableError`."""
    return [Address(url.strip() if "," in urls else url, origin, ca_file) for url in urls.split(",")]


def fresh_key() -> str:
    """Return an idempotency key that is unique across processes and machines."""
    # In hexadecimal, because a key is plain ASCII and a host name may not be.
    return f"{os.fsencode(os.uname().nodename).hex()}-{os.getpid()}-{time.monotonic_ns()}"


def others(gateways: list[Address], nodes: list[Address]) -> list[Address]:
    """Return the nodes that HOLDFAST_URL names besides the gateway, if the gateway is one of them."""
    known = {each.endpoint for each in gateways}
    found = [each for each in nodes if each.endpoint not in known]
    return found if len(found) < len(nodes) else []


def seconds_until(deadline: float) -> float:
    return deadline - time.monotonic()


def deadline_in(seconds: float) -> float:
    return time.monotonic() + seconds


def ask(
    asked: list[Address], method: str, path: str, headers: str, content: bytes, *, seconds: float = SECONDS_MAX
) -> tuple[int, bytes, bool]:
    """Send one request, and again if the connection broke: it must be safe to send twice.

    `headers` are additional ones, each with its line end. Returns the status, the body, and whether the answer to
    another try was lost. Raises `UnreachableError`, or `LostError` if the request may have been executed.
    """
    deadline = deadline_in(seconds)

    def ask_one(address: Address, answer_seconds: float, connect_seconds: float) -> tuple[int, bytes]:
        head = (
            f"{method} {address.path}{path} HTTP/1.1\r\nHost: {address.authority}\r\n{headers}Connection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        return _send(address, head.encode() + content, answer_seconds, connect_seconds)

    if len(asked) > 1:
        return _ask_each(asked, ask_one, deadline)
    try:
        return *ask_one(asked[0], seconds, CONNECT_SECONDS_MAX), False
    except LostError as lost:
        try:
            return *ask_one(asked[0], seconds_until(deadline), CONNECT_SECONDS_MAX), True
        except UnreachableError:
            raise lost from None


def _ask_each(
    asked: list[Address], ask_one: Callable[[Address, float, float], tuple[int, bytes]], deadline: float
) -> tuple[int, bytes, bool]:
    """Return the first good answer, and whether that to another try was lost.

    `ask_one` takes the seconds for its answer, and how many of them for connecting.
    """
    left = seconds_until(deadline)
    share = max(left / len(asked), min(left / 2, ANSWER_SECONDS_MIN))
    connect_seconds = left / len(asked) / 2
    lost: LostError | None = None
    refused: tuple[int, bytes] | None = None
    while True:
        failures: list[str] = []
        for address in asked:
            left = seconds_until(deadline)
            try:
                status, content = ask_one(address, min(share, left), min(connect_seconds, left))
            except UnreachableError as error:
                failures.append(str(error))
                lost = error if isinstance(error, LostError) else lost
            else:
                if status not in _NOT_NOW:
                    return status, content, lost is not None
                refused = status, content
        # If no node is there at all, that is reported immediately, as with one address.
        if seconds_until(deadline) <= PAUSE_SECONDS or (lost is None and refused is None):
            break
        time.sleep(PAUSE_SECONDS)
    if lost is not None:
        raise lost
    if refused is not None:
        return *refused, False
    raise UnreachableError("; ".join(dict.fromkeys(failures)))


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
    for family, kind, protocol, _, socket_address in _resolve(address, deadline):
        connection = None
        try:
            connection = _socket.socket(family, kind, protocol)
            connection.settimeout(_left(deadline))
            connection.connect(socket_address)
            if address.scheme == "https":
                connection = _secured(connection, address.host, address.ca_file)
        except OSError as error:
            if connection is not None:
                connection.close()
            failure = (_why_not(error) if address.scheme == "https" else _words(error)) + _hint(error)
        else:
            return connection
    raise UnreachableError(f"cannot reach {address.scheme}://{address.authority}: {failure}")


def _hint(error: Exception) -> str:
    from holdfast.neterrors import hint

    return f"; {found}" if (found := hint(error)) else ""


def _words(error: Exception) -> str:
    """Return the system's own error text, without Python's additions."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _secured(connection: _socket.socket, host: str, ca_file: str) -> ssl.SSLSocket:
    """Start TLS on an open connection, trusting only `ca_file`, or else the system's CAs. Raises `OSError`."""
    import socket
    import ssl

    left = connection.gettimeout()
    tls_socket = socket.socket(fileno=connection.detach())
    tls_socket.settimeout(left)
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        tls_socket.close()
        reason = getattr(error, "reason", None) or error.strerror or "it cannot be read"
        raise OSError(f"the CA file {ca_file} cannot be used: {reason.lower().replace('_', ' ')}") from None
    try:
        return context.wrap_socket(tls_socket, server_hostname=host)
    except BaseException:
        tls_socket.close()
        raise


def _why_not(error: OSError) -> str:
    import ssl

    from holdfast import neterrors

    return "; ".join(neterrors.trouble(error)) if isinstance(error, ssl.SSLError) else error.strerror or str(error)


def _resolve(address: Address, deadline: float) -> list[tuple[int, int, int, str, tuple[str, int]]]:
    """Look the name up in a thread, because a lookup has no timeout."""
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
    """Reads one HTTP/1.1 response strictly. Raises `ValueError` if it is truncated or malformed."""

    def __init__(self, connection: _socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._data = b""
        self._size = 0

    def read(self) -> tuple[int, bytes]:
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
    """Parse digits only; `int` alone would also accept signs and underscores."""
    if not text or not set(text) <= set(b"0123456789abcdefABCDEF"[: 10 if base == 10 else 22]):  # noqa: PLR2004 - decimal
        raise ValueError("this is not HTTP")
    return int(text, base)


class StoredConfig:
    """The user's `client.toml`. Fields that are missing or not text are empty. Raises `ValueError` if unreadable."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        import tomllib

        self.file = file_of(environment)
        lines: Mapping[str, object] = {}
        try:
            with open(self.file, encoding="utf-8") as opened:
                lines = tomllib.loads(opened.read())
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.file} cannot be read: {error}") from None
        self.url = _text(lines, "url")
        self.ca_file = self._named(lines, "ca_file")
        self.token_file = self._named(lines, "token_file")
        self.allow_insecure_http = lines.get("allow_insecure_http") is True

    def _named(self, lines: Mapping[str, object], name: str) -> str:
        """Return a path from the file; a relative one starts at the folder of `client.toml`."""
        found = _text(lines, name)
        if not found:
            return ""
        return self.file.removesuffix("client.toml") * (found[0] not in "/~") + os.path.expanduser(found)


def file_of(environment: Mapping[str, str]) -> str:
    config = environment.get("XDG_CONFIG_HOME", "")
    if not config.startswith("/"):
        config = (environment.get("HOME") or os.path.expanduser("~")) + "/.config"
    return config + "/holdfast/client.toml"


def _text(lines: Mapping[str, object], name: str) -> str:
    value = lines.get(name)
    return value if isinstance(value, str) else ""
