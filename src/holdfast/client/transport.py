"""What all transports share: headers, limits, the proxy, and their guarantees.

The token is sent in one header only, made here. If it came from a file and the server does not know it, the file is
read again, because it may have been rotated. A transport guarantees, for threads and for coroutines:

- Any number of threads or tasks may share it, and one that waits for an answer delays no other.
- An aborted or interrupted request leaves nothing locked, and no connection with an answer still to come.
- A forked process opens its own connections: on inherited ones it would read the answers of its parent.
- A request is sent once, and again if the server did not know the token and `Bearer` has a new one. It retries nothing
  else, follows no redirect, and raises `Unreachable` if there is no answer.
"""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from holdfast import __version__, clientconfig
from holdfast.client.config import Target, is_loopback
from holdfast.client.effects import Open, Send
from holdfast.client.requests import as_json
from holdfast.errors import SettingsError

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
