"""What a connection of the generator asks, one request after another, and whether each answer was the right one.

A script serves all connections of a run. It is told which of them had an answer, and gives the next request of that
one, or None when it has no more. Names come in one order over all connections, so two never ask for one name.
"""

from __future__ import annotations

import secrets
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OK = 200
ACQUIRED = b'"status":"acquired"'
CALL_NAMES = 100
ANY_HELD = CALL_NAMES // 2
"""So many of the names in a call of `any` are held, and stand first: they are passed over."""
_LEASE = b'"lease_id":"'
_UUID_BYTES = 36


class Wire:
    """Writes requests: to one server, with one token, and with the lines that our own client sends if asked to."""

    def __init__(self, port: int, authorization: str, *, as_client: bool = False) -> None:
        lines = f"Host: 127.0.0.1:{port}\r\nAuthorization: {authorization}\r\n"
        if as_client:
            lines = f"Accept: application/json\r\nUser-Agent: holdfast/benchmark\r\n{lines}"
        self._lines = lines.encode()
        self._as_client = as_client
        # Another start for each run: a key that an earlier run used would be refused.
        self._key_start = secrets.token_hex(8).encode()
        self._keys = count()

    def post(self, path: bytes, body: bytes, *, is_keyed: bool = True) -> bytes:
        """Write a POST. One as our client sends it has a key that no other request has."""
        key = b""
        if self._as_client and is_keyed:
            key = b"Idempotency-Key: %b%016x\r\n" % (self._key_start, next(self._keys))
        return b"POST %b HTTP/1.1\r\n%bContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n%b" % (
            path,
            self._lines,
            key,
            len(body),
            body,
        )

    def get(self, path: bytes) -> bytes:
        return b"GET %b HTTP/1.1\r\n%b\r\n" % (path, self._lines)


class Script(Protocol):
    """What the generator asks."""

    wrong: int
    sample: str

    def next(self, connection: int) -> bytes | None:
        """Return the next request of a connection; None when there is none."""

    def judge(self, connection: int, status: int, body: bytes) -> None:
        """Take the answer to the last request of that connection."""

    def finish(self) -> None:
        """Take note that the run is over."""


class _Judging:
    """Counts the answers that were not what was asked for, and keeps the first."""

    def __init__(self) -> None:
        self.wrong = 0
        self.sample = ""

    def blame(self, status: int, body: bytes) -> None:
        self.wrong += 1
        self.sample = self.sample or f"{status} {body[:200].decode(errors='replace')}"

    def finish(self) -> None:
        """Nothing is left to do for most."""


class Acquire(_Judging):
    """Claims a new name with each request. What it got can be kept in a file, for `Renew` and `Release`."""

    def __init__(self, wire: Wire, prefix: str, ttl_seconds: int = 3_600, keep: str | None = None) -> None:
        super().__init__()
        self._wire = wire
        self._prefix = prefix.encode()
        self._numbers = count()
        self._body = b'{"ttl_seconds":%d}' % ttl_seconds
        self._keep = keep
        self._asked: dict[int, bytes] = {}
        self._got: list[bytes] = []

    def next(self, connection: int) -> bytes | None:
        name = b"%b-%09d" % (self._prefix, next(self._numbers))
        if self._keep is not None:
            self._asked[connection] = name
        return self._wire.post(b"/locks/%b/acquire" % name, self._body)

    def judge(self, connection: int, status: int, body: bytes) -> None:
        if status != OK or ACQUIRED not in body:
            self.blame(status, body)
        elif self._keep is not None:
            self._got.append(b"%b %b\n" % (self._asked[connection], _lease_in(body)))

    def finish(self) -> None:
        if self._keep is not None:
            Path(self._keep).write_bytes(b"".join(self._got))


class _Rounds(_Judging):
    """Asks the same things, round and round; each must be answered with 200."""

    def __init__(self, requests: Sequence[bytes]) -> None:
        super().__init__()
        self._requests = requests
        self._numbers = count()

    def next(self, connection: int) -> bytes | None:
        return self._requests[next(self._numbers) % len(self._requests)]

    def judge(self, connection: int, status: int, body: bytes) -> None:
        if status != OK:
            self.blame(status, body)


class Renew(_Rounds):
    """Renews leases that are held."""

    def __init__(self, wire: Wire, held: Sequence[tuple[bytes, bytes]]) -> None:
        super().__init__(
            [
                wire.post(b"/locks/%b/renew" % name, b'{"lease_id":"%b","keep_ttl":true}' % lease, is_keyed=False)
                for name, lease in held
            ]
        )


class Release(_Judging):
    """Gives leases back that are held, each once."""

    def __init__(self, wire: Wire, held: Sequence[tuple[bytes, bytes]]) -> None:
        super().__init__()
        self._wire = wire
        self._held = iter(held)

    def next(self, connection: int) -> bytes | None:
        for name, lease in self._held:
            return self._wire.post(b"/locks/%b/release" % name, b'{"lease_id":"%b"}' % lease)
        return None

    def judge(self, connection: int, status: int, body: bytes) -> None:
        if status != OK:
            self.blame(status, body)


class Status(_Rounds):
    """Asks who has a name that is held."""

    def __init__(self, wire: Wire, held: Sequence[tuple[bytes, bytes]]) -> None:
        super().__init__([wire.get(b"/locks/%b" % name) for name, _ in held])

    def judge(self, connection: int, status: int, body: bytes) -> None:
        if status != OK or b'"status":"held"' not in body:
            self.blame(status, body)


class Heartbeat(_Rounds):
    """Keeps sessions alive."""

    def __init__(self, wire: Wire, sessions: Sequence[tuple[bytes, bytes]]) -> None:
        paths = [b"/sessions/%b/keepalive" % session for session, _ in sessions]
        super().__init__([wire.post(path, b"", is_keyed=False) for path in paths])


class Loop(_Judging):
    """The life of a claim: acquire, two renewals, release. Each connection takes the next of so many names."""

    RENEWALS = 2

    def __init__(self, wire: Wire, prefix: str, names: int) -> None:
        super().__init__()
        self._wire = wire
        self._paths = [b"/locks/%b-%06d/" % (prefix.encode(), number) for number in range(names)]
        self._numbers = count()
        self._at: dict[int, tuple[bytes, int, bytes]] = {}
        """The path, the step that was asked for last, and the lease, by connection."""

    def next(self, connection: int) -> bytes | None:
        path, step, lease = self._at.get(connection, (b"", self.RENEWALS + 1, b""))
        if step > self.RENEWALS or not lease:
            path = self._paths[next(self._numbers) % len(self._paths)]
            self._at[connection] = (path, 0, b"")
            return self._wire.post(path + b"acquire", b'{"ttl_seconds":60}')
        step += 1
        self._at[connection] = (path, step, lease)
        if step <= self.RENEWALS:
            body = b'{"lease_id":"%b","keep_ttl":true}' % lease
            return self._wire.post(path + b"renew", body, is_keyed=False)
        return self._wire.post(path + b"release", b'{"lease_id":"%b"}' % lease)

    def judge(self, connection: int, status: int, body: bytes) -> None:
        path, step, _ = self._at[connection]
        if status != OK or (step == 0 and ACQUIRED not in body):
            self.blame(status, body)
            self._at[connection] = (path, step, b"")
        elif step == 0:
            self._at[connection] = (path, step, _lease_in(body))


class All(_Judging):
    """Claims a hundred new names with each call, all or none."""

    def __init__(self, wire: Wire, prefix: str) -> None:
        super().__init__()
        self._wire = wire
        self._prefix = prefix
        self._numbers = count()

    def next(self, connection: int) -> bytes | None:
        call = next(self._numbers)
        names = ",".join(f'"{self._prefix}-{call:07d}-{number:02d}"' for number in range(CALL_NAMES))
        return self._wire.post(b"/claims", b'{"ttl_seconds":3600,"all":[%b]}' % names.encode())

    def judge(self, connection: int, status: int, body: bytes) -> None:
        # The last name with a lease of its own: only a grant of them all has it.
        if status != OK or b'-%02d","lease_id":"' % (CALL_NAMES - 1) not in body:
            self.blame(status, body)


class First(_Judging):
    """Claims the first free one of a hundred names with each call; half of them are held, and stand first."""

    def __init__(self, wire: Wire, prefix: str, held: Sequence[tuple[bytes, bytes]]) -> None:
        super().__init__()
        self._wire = wire
        self._prefix = prefix
        self._held = ",".join(f'"{name.decode()}"' for name, _ in held[:ANY_HELD])
        self._numbers = count()

    def next(self, connection: int) -> bytes | None:
        call = next(self._numbers)
        names = ",".join(f'"{self._prefix}-{call:07d}-{number:02d}"' for number in range(CALL_NAMES - ANY_HELD))
        return self._wire.post(b"/claims", f'{{"ttl_seconds":3600,"any":[{self._held},{names}]}}'.encode())

    def judge(self, connection: int, status: int, body: bytes) -> None:
        if status != OK or ACQUIRED not in body:
            self.blame(status, body)


class Template(_Judging):
    """Any other system: one raw request with the name left open, and the text that only a grant has in it."""

    def __init__(self, template: str, marker: str, names: Any) -> None:  # noqa: ANN401 - see `load.http.Names`
        super().__init__()
        self._template = template
        self._marker = marker.encode()
        self._names = names
        self._numbers = count()

    def next(self, connection: int) -> bytes | None:
        number = next(self._numbers)
        text = self._template.replace("{name}", self._names.name(number))
        return text.replace("{user}", self._names.user(number)).encode()

    def judge(self, connection: int, status: int, body: bytes) -> None:
        if not OK <= status < OK + 100 or self._marker not in body:
            self.blame(status, body)


def _lease_in(body: bytes) -> bytes:
    start = body.index(_LEASE) + len(_LEASE)
    return body[start : start + _UUID_BYTES]


def read_pairs(path: str) -> list[tuple[bytes, bytes]]:
    """Read what a file says of held leases: a name and a lease id in each line."""
    lines = Path(path).read_bytes().splitlines()
    return [(name, lease) for name, _, lease in (line.partition(b" ") for line in lines)]


def write_pairs(path: Path, held: Mapping[str, str]) -> str:
    """Write what `read_pairs` reads, and return where."""
    path.write_text("".join(f"{name} {lease}\n" for name, lease in held.items()), encoding="utf-8")
    return str(path)
