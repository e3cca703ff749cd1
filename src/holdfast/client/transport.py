"""What all transports share: headers, limits, the proxy, and their guarantees.

The token is sent in one header only, made here. If it came from a file and the server does not know it, the file is
read again, because it may have been rotated. A transport guarantees, for threads and for coroutines:

- Any number of threads or tasks may share it, and one that waits for an answer delays no other.
- An aborted or interrupted request leaves nothing locked, and no connection with an answer still to come.
- A forked process opens its own connections: on inherited ones it would read the answers of its parent.
- A request is sent once, and again if the server did not know the token and `Bearer` has a new one. It retries nothing
  else, follows no redirect, and raises `Unreachable` if there is no answer.

Failover between several addresses of one server: the order of tries.

The nodes of a server share one store, and each forwards requests to the leader, so any of them will do:

    first ──► a   no connection                        nothing was sent: try the next
              b   503 not_leader, overloaded           nothing happened: try the next
              c   the answer was lost                  it may have happened: try the next if it may be sent twice,
              │                                        else raise, as with one address
              └─► all failed: the flow sleeps for a while and starts over (`client/retry.py`)

A request may be sent twice if it is a GET or has an idempotency key (C5), which stays the same. Flows retry renewals
themselves, at the next address.

The address that answered stays first for the whole client until it fails. That is one number, changed in one step: no
lock that an interrupt could leave locked. If two requests see the same failure, the second changes nothing.

A dead address must cost little time, because a lease may need renewal. So connecting may take so small a share of the
time for an answer that all addresses together leave half of it.
"""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from holdfast import __version__, clientconfig
from holdfast.client.answers import NO_LEADER_HINT, NOT_NOW, Answer, envelope, lacks_leader
from holdfast.client.config import Target, is_loopback
from holdfast.client.effects import Open, Send
from holdfast.client.requests import as_json
from holdfast.errors import SettingsError, Unreachable

CONNECT_SECONDS = 5.0
ANSWER_BYTES_MAX = 64 * 1024 * 1024
STREAM_BYTES = 65_536  # Read at once from a streaming response.
KEY_HEADER = "Idempotency-Key"
WILL_RETRY_HEADER = "Holdfast-Will-Retry"  # The only header that may differ between copies of a request (C5).
_TOKEN_NOT_KNOWN = frozenset({401, 429})  # 429 is also what too many wrong tokens get.

log = logging.getLogger("holdfast.client")


class Proxy(msgspec.Struct, frozen=True):
    url: str
    authorization: str | None = None


class Bearer:
    """The token, as of when its file was last read."""

    def __init__(self, target: Target) -> None:
        self.token = target.token
        self._file = target.token_file

    def is_another_after(self, status: int, sent: str | None) -> bool:
        """Tell whether to retry: the server did not know the token, and the file has a new one."""
        if status not in _TOKEN_NOT_KNOWN or self._file is None:
            return False
        try:
            # A few bytes, and only after a refusal: fast enough for an event loop.
            self.token = clientconfig.read_token(self._file)
        except SettingsError as error:
            log.info("%s", error)  # It may be being replaced right now. The next refusal reads it again.
        return self.token != sent


def headers_for(token: str | None, request: Send | Open) -> dict[str, str]:
    """Return the headers of a request, the only place for the token."""
    headers = {"Accept": "application/json", "User-Agent": f"holdfast/{__version__}"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    if request.body is not None:
        headers["Content-Type"] = "application/json"
    if isinstance(request, Open):
        headers.update(request.headers)
    elif request.key is not None:
        headers[KEY_HEADER] = request.key
    if isinstance(request, Send) and request.will_retry:
        headers[WILL_RETRY_HEADER] = "true"
    return headers


def payload_of(request: Send | Open) -> bytes | None:
    try:
        return None if request.body is None else as_json(request.body)
    except UnicodeEncodeError as error:
        raise ValueError(f"{error.object!r:.50} cannot be sent: it is not text that UTF-8 can write") from None


def proxy_for(url: str, environment: Mapping[str, str]) -> Proxy | None:
    """Return the proxy that the environment names, except for a loopback address. Raises `SettingsError`."""
    parts = urlsplit(url)
    name = f"{parts.scheme}_proxy"
    proxy = environment.get(name) or environment.get(name.upper())
    without = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    host = parts.hostname or ""
    exempt = [entry.strip().lower().lstrip(".") for entry in without.split(",")]
    is_exempt = any(entry in {"*", host} or host.endswith(f".{entry}") for entry in exempt if entry)
    if not proxy or is_exempt or is_loopback(url):
        return None
    hop = _address_of(proxy, name)
    address = hop._replace(netloc=hop.netloc.rpartition("@")[2]).geturl()
    if hop.username is None:
        return Proxy(address)
    pair = f"{unquote(hop.username)}:{unquote(hop.password or '')}".encode()
    return Proxy(address, f"Basic {b64encode(pair).decode()}")


def _address_of(proxy: str, name: str) -> SplitResult:
    """Parse a proxy's address. Errors do not show it, because it may contain a password."""
    with suppress(ValueError):
        hop = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        if hop.scheme == "http" and hop.hostname and hop.port != 0 and proxy.isascii():
            return hop
    raise SettingsError("proxy", name, "its address cannot be used", "http://host:port")


BEGIN_SECONDS = 10.0  # How long a stream may take to begin before the next address is tried.
_NOTHING_HAPPENED = frozenset({"not_leader", "overloaded"})
_REFUSED = 300  # From this status on, error texts name the address.

T = TypeVar("T")
# Yields the address to try next, is sent the answer or thrown `Unreachable`, and returns the result.
Trying: TypeAlias = Generator[int, T, T]


class Tries:
    """The results of the tries of one request."""

    def __init__(self, urls: tuple[str, ...]) -> None:
        self._urls = ",".join(urls)
        self.errors: list[Unreachable] = []
        self.refused: Answer | None = None  # A refusal after which nothing has happened.
        self.doubtful: Answer | None = None  # A proxy's answer, which leaves the outcome open.

    def fail(self, error: Unreachable) -> None:
        # Not the error itself: its cause refers to the frames of our callers, which refer to us.
        self.errors.append(Unreachable(error.url, error.problem, error.hint, was_sent=error.was_sent))

    def result(self) -> Answer:
        """Return the answer that nothing happened, if that is true of all copies. Else raises `Unreachable`."""
        found = self.doubtful or self.refused
        if found is None or any(error.was_sent for error in self.errors):
            raise self.error()
        return found

    def error(self) -> Unreachable:
        problems = dict.fromkeys(error.problem for error in self.errors)
        text = ", ".join(problems)
        if len(problems) > 1:
            text = ", ".join(f"{error.problem} ({error.url})" for error in self.errors)
        hint = next((error.hint for error in self.errors if error.hint), "")
        if self.refused is not None and lacks_leader(self.refused):
            hint = NO_LEADER_HINT
        return Unreachable(self._urls, text, hint, was_sent=any(error.was_sent for error in self.errors))


class Failover:
    """The order of the tries, for both transports."""

    def __init__(self, target: Target, make: Callable[..., Any]) -> None:
        self.target = target
        self._urls = target.addresses
        self._first = 0  # The index of the address to try first.
        share = 1 / (2 * len(self._urls))
        more = {"bearer": Bearer(target), "connect_share": share, "begin_seconds": BEGIN_SECONDS}
        self._transports = [make(target.at(each), **more) for each in self._urls]

    def __repr__(self) -> str:  # Never the token.
        return f"{type(self).__name__}({self.target!r})"

    def order(self) -> list[int]:
        count = len(self._urls)
        return [(self._first + number) % count for number in range(count)]

    def failed(self, at: int) -> None:
        """Start with the next one from now on, unless another request has reported this failure."""
        if self._first == at:
            self._first = (at + 1) % len(self._urls)

    def sending(self, request: Send) -> Trying[Answer]:
        """Send one request to the first address that answers. Raises `Unreachable`."""
        tries = Tries(self._urls)
        repeats = request.method == "GET" or request.key is not None  # Even after a lost answer (C5).
        for at in self.order():
            try:
                answer = yield at
            except Unreachable as error:
                self.failed(at)
                if error.was_sent and not repeats:
                    raise
                tries.fail(error)
                continue
            if answer.status >= _REFUSED:
                # One of several addresses may belong to another program.
                answer = msgspec.structs.replace(answer, url=self._urls[at])
            found = envelope(answer) if answer.status in NOT_NOW else None
            if answer.status not in NOT_NOW or (found is not None and found.code not in _NOTHING_HAPPENED):
                return answer  # It is the leader's, and would be the same through another node.
            self.failed(at)
            if found is not None:
                tries.refused = answer
            elif repeats:
                tries.doubtful = answer
            else:
                return answer
        return tries.result()

    def opening(self) -> Trying[Any]:
        """Open a stream at the first address that answers. Raises `Unreachable`."""
        tries, order = Tries(self._urls), self.order()
        for at in order:
            try:
                stream = yield at
            except Unreachable as error:
                self.failed(at)
                tries.fail(error)
                continue
            if stream.status not in NOT_NOW:
                stream.on_broken = partial(self.failed, at)
                return stream
            self.failed(at)
            if at == order[-1]:
                return stream
            stream.close()
        raise tries.error()
