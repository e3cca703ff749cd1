"""`rlock`, `runlock`, `rlock-heartbeat`: one question to the gateway, one line of JSON, one exit code.

The law of this file: success is said only when the gateway said it. It imports the standard library alone, and of that
as little as it can, because a shell script may start it a thousand times; whatever is seldom needed is imported late,
and so are the modules of ours, which import next to nothing.
The secret comes from the environment and leaves in the body, so it is on no command line.
"""

from __future__ import annotations

import _socket  # The module `socket` around it takes a fifth of the time that this may need to start.
import _thread
import json
import os
import sys
import time
from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

SECONDS_MAX = 10.0
"""For everything together, however slowly the answer trickles in."""
CONNECT_SECONDS_MAX = 5.0
ANSWER_BYTES_MAX = 1 << 20

OK, NOT_ALLOWED, BAD_REQUEST, UNREACHABLE, OTHER, USAGE = 0, 3, 4, 6, 7, 9
EXIT = {200: OK, 409: 1, 404: 2, 403: NOT_ALLOWED, 400: BAD_REQUEST, 503: 5, 502: 10, 504: 11, 500: 12}
# Holdfast's own: too long, not a name of the server, a wrong secret after too many others. Nothing was done.
EXIT |= {413: BAD_REQUEST, 421: BAD_REQUEST, 429: NOT_ALLOWED}
"""The exit code of each HTTP status; any other is `OTHER`."""

_TOO_LATE = "no answer in time: it may or may not have been done"
_ANOTHER = "another program answers there; look at the address in GATEWAY_URL"

Said = tuple[int, dict[str, object]]
"""An exit code and what to print."""


class UsageError(Exception):
    """The command line cannot be meant."""


class UnreachableError(Exception):
    """There is no answer, and asking again would not help."""


class LostError(UnreachableError):
    """The connection broke after it stood: what was asked may have been done."""


class Address:
    """Where the gateway is."""

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


def rlock() -> NoReturn:
    """Have a resource."""
    # All is written, nothing is open, and a look-up that hangs must not hold the end up: no tidying.
    os._exit(main("rlock", "acquire", timed=True))


def runlock() -> NoReturn:
    """Give a resource back."""
    os._exit(main("runlock", "release", timed=False))


def heartbeat() -> NoReturn:
    """Keep a resource."""
    os._exit(main("rlock-heartbeat", "heartbeat", timed=True))


def main(command: str, verb: str, *, timed: bool) -> int:
    """Run a command: print its line and return its exit code."""
    usage = f"usage: {command} URI [--ttl TIME]" if timed else f"usage: {command} URI"
    arguments = sys.argv[1:]
    try:
        if arguments[:1] in (["-h"], ["--help"]):
            from holdfast.cli.agents import rlock_help

            _write(2, rlock_help.text(usage, timed=timed))
            # Not 0: a script whose key happens to be "-h" must not believe that it has a lock.
            raise UsageError
        code, said = run(arguments, verb, os.environ, timed=timed)
    except UsageError as error:
        code, said = USAGE, _failed(f"{usage}: {error}" if error.args else usage)
    except UnreachableError as error:
        code, said = UNREACHABLE, _failed(str(error))
    except KeyboardInterrupt:
        code, said = 130, _failed("interrupted: it may or may not have been done")
    except Exception as error:  # noqa: BLE001 - Python's own exit code would say "held by another"
        code, said = OTHER, _failed(f"unexpected, it may or may not have been done: {type(error).__name__}: {error}")
    _write(1, _line(said) + "\n")
    return code


def _line(said: dict[str, object]) -> str:
    line = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
    if line.isprintable():
        return line
    from holdfast.cli.shared.harmless import in_json

    return in_json(line)


def _write(descriptor: int, text: str) -> None:
    data = text.encode()
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        # Nobody reads the line; the exit code still says it.
        return


def run(
    arguments: list[str], verb: str, environment: Mapping[str, str], *, timed: bool, seconds: float = SECONDS_MAX
) -> Said:
    """Ask the gateway; return the exit code and what to print. Raises `UsageError` and `UnreachableError`."""
    if any(each.startswith(("--ca-file", "--allow-insecure-http")) for each in arguments):
        arguments, environment = _with_options(arguments, environment)
    if not environment.get("GATEWAY_URL") and environment.get("HOLDFAST_RLOCK_STANDALONE") == "1":
        return OK, {"ok": True}
    addresses = _find(environment)
    body = _read_arguments(arguments, timed=timed)
    secret = environment.get("SHUTDOWN_SECRET")
    if not secret:
        return BAD_REQUEST, _failed("missing secret")
    return ask(addresses, verb, {"secret": secret, **body}, seconds)


def _failed(text: str) -> dict[str, object]:
    return {"ok": False, "error": text}


def _with_options(arguments: list[str], environment: Mapping[str, str]) -> tuple[list[str], Mapping[str, str]]:
    """Take the options out that are variables as well, and put them there."""
    from holdfast.cli.agents.rlock_options import taken_out

    left, given = taken_out(arguments)
    if given.get("HOLDFAST_CA_FILE", "given"):
        return left, {**environment, **given}
    raise UsageError("--ca-file needs a file")


def _read_arguments(arguments: list[str], *, timed: bool) -> dict[str, object]:
    """Return what the command line says: the key first, then options. Other arguments are ignored."""
    # No URI begins with a dash.
    if not arguments or not arguments[0] or arguments[0].startswith("-"):
        raise UsageError
    body: dict[str, object] = {"resourceKey": arguments[0]}
    rest = iter(arguments[1:])
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name == "--ttl" and timed:
            body["ttl"] = _read_seconds(value if equals else next(rest, ""))
        elif argument.startswith("-"):
            raise UsageError(f"unknown option {name}")
    return body


def _read_seconds(text: str) -> float:
    from holdfast.durations import milliseconds

    if not (found_ms := milliseconds(text)):
        raise UsageError("--ttl needs a time above 0, as 120, 90s, 15m, 1h30m or 500ms")
    return found_ms / 1_000


# Where to ask.


def _find(environment: Mapping[str, str]) -> list[Address]:
    ca_file = environment.get("HOLDFAST_CA_FILE", "")
    allowed = environment.get("HOLDFAST_ALLOW_INSECURE_HTTP", "").lower() in {"1", "true", "yes", "on"}
    named = environment.get("HOLDFAST_URL", "")
    if url := environment.get("GATEWAY_URL"):
        # Whoever started this run chose the network between the two; inside one host it is often plain HTTP.
        gateways = _addresses(url, "GATEWAY_URL", ca_file)
        if "," in named:
            from holdfast.cli.agents.rlock_several import others

            beside = others(gateways, _addresses(named, "HOLDFAST_URL", ca_file))
            gateways += _guarded([each for each in beside if allowed or each.is_private], allowed=True)
        return gateways
    if named:
        return _guarded(_addresses(named, "HOLDFAST_URL", ca_file), allowed=allowed)
    from holdfast.cli.agents.rlock_config import Kept

    try:
        kept = Kept(environment)
    except ValueError as error:
        raise UnreachableError(str(error)) from None
    if kept.url:
        addresses = _addresses(kept.url, kept.file, ca_file or kept.ca_file)
        return _guarded(addresses, allowed=allowed or kept.allow_insecure_http)
    raise UnreachableError("no gateway: set GATEWAY_URL, or HOLDFAST_RLOCK_STANDALONE=1 if nothing else runs")


def _addresses(urls: str, origin: str, ca_file: str) -> list[Address]:
    return [Address(url.strip() if "," in urls else url, origin, ca_file) for url in urls.split(",")]


def _guarded(addresses: list[Address], *, allowed: bool) -> list[Address]:
    for address in [each for each in addresses if not each.is_private]:
        if not allowed:
            meant = "set HOLDFAST_ALLOW_INSECURE_HTTP=1 or GATEWAY_URL if that is meant"
            raise UnreachableError(f"the secret would travel unencrypted: use https://, or {meant}")
        _write(2, f"the secret travels to {address.authority} unencrypted, as was allowed\n")
    return addresses


# How to ask.


def ask(addresses: list[Address], verb: str, body: dict[str, object], seconds: float = SECONDS_MAX) -> Said:
    """Send one request, and once more if the connection broke; return the exit code and what to print.

    Asking again is safe: the same run gets the lock it has, keeps it twice, and a release carries a key by which
    the server knows it again.
    """
    deadline = time.monotonic() + seconds
    key = ""
    if verb == "release":
        # In hexadecimal, because a machine may be called anything and a key is plain ASCII.
        machine = os.fsencode(os.uname().nodename).hex()
        key = f"Idempotency-Key: {machine}-{os.getpid()}-{time.monotonic_ns()}\r\n"
    content = json.dumps(body).encode()

    def ask_one(address: Address, answer_seconds: float, connect_seconds: float) -> Said:
        head = (
            f"POST {address.path}/locks/{verb} HTTP/1.1\r\nHost: {address.authority}\r\n{key}Connection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        return _judge(*_send(address, head.encode() + content, answer_seconds, connect_seconds))

    if len(addresses) > 1:
        from holdfast.cli.agents.rlock_several import ask_each

        kinds = (UnreachableError, LostError)
        code, said, was_lost = ask_each(addresses, ask_one, lambda: deadline - time.monotonic(), time.sleep, kinds)
        if not was_lost:
            return code, said
    else:
        try:
            return ask_one(addresses[0], seconds, CONNECT_SECONDS_MAX)
        except LostError as lost:
            try:
                code, said = ask_one(addresses[0], deadline - time.monotonic(), CONNECT_SECONDS_MAX)
            except UnreachableError:
                raise lost from None
    if verb == "release" and code in {1, 2}:
        # A gateway that knows no keys cannot tell what became of the first try, and neither can we.
        said["lost"] = "the answer to a first try was lost: it may be that one which gave the lock back"
    return code, said


def _judge(status: int, content: bytes) -> Said:
    """Turn an answer into an exit code and what to print. A 200 that is not the gateway's own is no success."""
    code = EXIT.get(status, OTHER)
    try:
        said = json.loads(content)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        return code or OTHER, _failed(f"HTTP {status}, and not from a gateway: {_ANOTHER}")
    if code == OK and said.get("ok") is not True:
        return OTHER, _failed(f"HTTP 200 without ok, and not from a gateway: {_ANOTHER}")
    return code, said if "ok" in said else {"ok": False, **said}


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
        connection = _socket.socket(family, kind, protocol)
        try:
            connection.settimeout(_left(deadline))
            connection.connect(place)
            if address.scheme == "https":
                from holdfast.cli.agents.rlock_tls import secured

                connection = secured(connection, address.host, address.ca_file)
        except OSError as error:
            connection.close()
            failure = _why_not(error) if address.scheme == "https" else _words(error)
        else:
            return connection
    raise UnreachableError(f"cannot reach {address.scheme}://{address.authority}: {failure}")


def _words(error: Exception) -> str:
    """Say what went wrong in the system's own words, without what Python writes around them."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _why_not(error: OSError) -> str:
    from holdfast.cli.agents.rlock_tls import why_not

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
        raise UnreachableError(f"cannot find the address of {address.host} ({whose}): {_words(found[0])}")
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
