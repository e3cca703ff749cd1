"""One JSON request, one JSON answer, over urllib3. Nothing is retried and no redirect is followed.

The token leaves this file in one header only, to one server only.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
import urllib3

from holdfast import __version__
from holdfast.client._config import Target, is_loopback
from holdfast.errors import NotAllowed, Refused, ServerError, Unreachable

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
ANSWER_BYTES_MAX = 64 * 1024 * 1024

T = TypeVar("T")


class Answer(msgspec.Struct, frozen=True):
    """What came back, whatever its status."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:  # noqa: ANN401 - JSON is whatever the server sent
        """Decode the body; None where it is not JSON."""
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            return None


class _Envelope(msgspec.Struct):
    """The body of a refusal."""

    error: str
    code: str
    details: str | None = None
    request_id: str | None = None


class Transport:
    """A way to one server. Use it as a context manager, or `close` it."""

    def __init__(
        self,
        target: Target,
        *,
        environment: Mapping[str, str],
        connect_seconds: float = CONNECT_SECONDS,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        """Prepare; nothing is sent yet. `environment` may name a proxy, which is never asked for a loopback address."""
        self.target = target
        self._pool = _pool_for(target.url, environment)
        self._timeout = urllib3.Timeout(connect=connect_seconds, read=read_seconds)

    def __repr__(self) -> str:
        """Show where it leads, never the token."""
        return f"Transport({self.target!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def send(self, method: str, path: str, body: object = None) -> Answer:
        """Send one request and return its answer, whatever its status. Raises `Unreachable`."""
        headers = {"Accept": "application/json", "User-Agent": f"holdfast/{__version__}"}
        if self.target.token is not None:
            headers["Authorization"] = f"Bearer {self.target.token}"
        payload = None
        if body is not None:
            payload = msgspec.json.encode(body)
            headers["Content-Type"] = "application/json"
        try:
            response = self._pool.request(
                method,
                self.target.url + path,
                body=payload,
                headers=headers,
                redirect=False,
                retries=False,
                timeout=self._timeout,
                preload_content=False,
                decode_content=False,
            )
            content = b""
            # To its very end, where an answer that broke off is found out.
            while len(content) <= ANSWER_BYTES_MAX and (part := response.read(ANSWER_BYTES_MAX + 1)):
                content += part
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(self.target.url, _reason(error)) from None
        if len(content) > ANSWER_BYTES_MAX:
            response.close()  # What is left of it must not be read as the next answer.
            raise ServerError(f"{self.target.url} sent more than {ANSWER_BYTES_MAX} bytes; is it a Holdfast server?")
        response.release_conn()
        return Answer(response.status, response.headers, content)

    def call(self, method: str, path: str, reply: type[T], body: object = None) -> T:
        """Send one request and return the reply it was promised. Raises `ServerError` in one of its forms."""
        answer = self.send(method, path, body)
        if not 200 <= answer.status < 300:  # noqa: PLR2004 - the range of success
            raise self.refusal(answer)
        try:
            return msgspec.json.decode(answer.body or b"null", type=reply)
        except msgspec.MsgspecError as error:
            raise ServerError(
                f"{self.target.url} does not answer {method} {path} as a Holdfast server would ({error});"
                " check the address, and that server and client have the same version"
            ) from None

    def refusal(self, answer: Answer) -> Refused:
        """Make an exception of an answer that is not a success."""
        if 300 <= answer.status < 400:  # noqa: PLR2004 - the range of redirects
            error, details = (
                f"{self.target.url} answered with a redirect, and none is followed",
                "set the address it leads to",
            )
            return Refused(answer.status, "redirect", error, details)
        kind = NotAllowed if answer.status in {401, 403} else Refused
        try:
            found = msgspec.json.decode(answer.body, type=_Envelope)
        except msgspec.MsgspecError:
            details = "this is not how a Holdfast server refuses; check the address and what stands in between"
            return kind(answer.status, "unexpected", f"{self.target.url} answered {answer.status}", details)
        return kind(answer.status, found.code, found.error, found.details, found.request_id)


def _pool_for(url: str, environment: Mapping[str, str]) -> urllib3.PoolManager:
    parts = urlsplit(url)
    name = f"{parts.scheme}_proxy"
    proxy = environment.get(name) or environment.get(name.upper())
    without = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    if not proxy or is_loopback(url) or _is_listed(parts.hostname or "", without):
        return urllib3.PoolManager(num_pools=1)
    hop = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    headers = None
    if hop.username is not None:
        secret = f"{unquote(hop.username)}:{unquote(hop.password or '')}"
        headers = urllib3.make_headers(proxy_basic_auth=secret)
    address = hop._replace(netloc=hop.netloc.rpartition("@")[2]).geturl()
    return urllib3.ProxyManager(address, num_pools=1, proxy_headers=headers)


def _is_listed(host: str, without: str) -> bool:
    """Does `no_proxy` name this host, or a domain it belongs to?"""
    entries = [entry.strip().lower().lstrip(".") for entry in without.split(",")]
    return any(entry in {"*", host} or host.endswith(f".{entry}") for entry in entries if entry)


def _reason(error: BaseException) -> str:
    """Say in a few words why there was no answer: urllib3's own texts show its insides."""
    match error:
        case urllib3.exceptions.NameResolutionError():
            return "the host's name is not known"
        case urllib3.exceptions.NewConnectionError():
            pass  # A kind of ConnectTimeoutError to urllib3; its cause knows better.
        case urllib3.exceptions.ConnectTimeoutError():
            return "the connection was not accepted in time"
        case urllib3.exceptions.ReadTimeoutError():
            return "the answer did not come in time"
        case urllib3.exceptions.SSLError():
            return f"the encrypted connection failed ({error})"
        case urllib3.exceptions.ProxyError():
            return f"the proxy did not let us through ({error.original_error})"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
        cause = cause.__cause__ or cause.__context__
    return "the connection broke"
