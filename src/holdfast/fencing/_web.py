"""Guards a handler with a fence: its resource is held from the comparison until the handler is done.

So a newer owner waits for an older one that is already at work, and an older one that comes later is refused; they
never run at the same time. A handler that hangs blocks its resource: give it a timeout.

The token comes in the request header `Fencing-Token`. It shows how new its owner is, not who that is: a caller that may
raise a fence without limit can lock out all future owners. So something has to vouch for a token first:

    is_current      the server: it is asked once for each token that is greater than all it vouched for before
    key             an HMAC of the resource and the token, made by `sign_token`; no server is asked
    trust_callers   nothing: for a handler that only its own workers can reach

The resource of a request is its normalised path, so all spellings share one fence. A SQL fence belongs in the handler's
own transaction: give the middleware no fence, take the token from `holdfast.token`, and call `SqlFence.check` in the
handler. The middleware answers a `StaleToken` from the handler like its own.
"""

from __future__ import annotations

import asyncio
import hmac
import inspect
import json
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from functools import wraps
from http import HTTPStatus
from string import Formatter
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from holdfast.errors import HoldfastError, StaleToken
from holdfast.fencing._memory import TOKEN_MAX, checked_resource, checked_token, parse_token

TOKEN_HEADER = "Fencing-Token"  # noqa: S105 - where a token is, not one
TOKEN_KEY = "holdfast.token"  # noqa: S105 - the same
KEY_BYTES_MIN = 16
RESOURCES_MAX = 10_000

_SAFE_METHODS = {"GET", "HEAD", "OPTIONS", "TRACE"}

P = ParamSpec("P")
R = TypeVar("R")
Values = MutableMapping[str, Any]
Application = Callable[..., Any]
Ask = Callable[[str, int], "bool | Awaitable[bool]"]  # Whether a token is that of the resource's live claim.


class Fence(Protocol):
    """What `fenced` and the middleware need: MemoryFence, FolderFence, or yours."""

    def guard(self, resource: str, token: int) -> AbstractContextManager[object]: ...
    def guard_async(self, resource: str, token: int) -> AbstractAsyncContextManager[object]: ...


def fenced(
    fence: Fence,
    *,
    resource: str | Callable[..., str],
    token: str | Callable[..., int] = "token",  # noqa: S107 - the name of an argument
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Run a function, `def` or `async def`, only with a token that is not stale; else raise `StaleToken`.

    `resource` is a name with the function's arguments in it, as in `"reports/{report_id}"`, or a function of the same
    arguments. `token` is the name of an argument, or a function of the same arguments.
    """

    def decorate(handler: Callable[P, R]) -> Callable[P, R]:
        if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
            raise TypeError(f"{handler.__qualname__} is a generator and works after the fence is open: return a value")
        signature = inspect.signature(handler)
        resource_of = resource if callable(resource) else _template(resource, signature)
        token_of = token if callable(token) else _argument(token, signature)

        if inspect.iscoroutinefunction(handler):

            @wraps(handler)
            async def run_async(*args: P.args, **kwargs: P.kwargs) -> object:
                async with fence.guard_async(resource_of(*args, **kwargs), token_of(*args, **kwargs)):
                    return await handler(*args, **kwargs)

            return cast("Callable[P, R]", run_async)

        @wraps(handler)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with fence.guard(resource_of(*args, **kwargs), token_of(*args, **kwargs)):
                return handler(*args, **kwargs)

        return run

    return decorate


def _template(template: str, signature: inspect.Signature) -> Callable[..., str]:
    for _, field, _, _ in Formatter().parse(template):
        if field is not None:
            _argument(field.partition(".")[0].partition("[")[0], signature)
    return lambda *args, **kwargs: template.format_map(_arguments(signature, args, kwargs))


def _argument(name: str, signature: inspect.Signature) -> Callable[..., Any]:
    if name not in signature.parameters:
        raise TypeError(f"the function has no argument {name!r}; it has {', '.join(signature.parameters) or 'none'}")
    return lambda *args, **kwargs: _arguments(signature, args, kwargs)[name]


def _arguments(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def sign_token(key: bytes, resource: str, token: int) -> str:
    """Return what to send as `Fencing-Token` to a handler that has the same key: the token, a dot, its signature."""
    return f"{checked_token(token)}.{_signature(_checked_key(key), checked_resource(resource), token)}"


def _signature(key: bytes, resource: str, token: int) -> str:
    # Neither contains a NUL, so no two pairs are encoded alike.
    return hmac.digest(key, f"holdfast.fencing\0{resource}\0{token}".encode(), "sha256").hex()


def _checked_key(key: bytes) -> bytes:
    if not isinstance(key, bytes):
        raise TypeError(f"a key is bytes, not {type(key).__name__}")
    if len(key) < KEY_BYTES_MIN:
        raise ValueError(f"a key has at least {KEY_BYTES_MIN} bytes, this one has {len(key)}: take os.urandom(32)")
    return key


class Vouched:
    """Asks the server, once for each owner of a resource: tokens that it vouched for are remembered."""

    def __init__(self, is_current: Ask) -> None:
        self._ask = is_current
        self._is_async = inspect.iscoroutinefunction(is_current)
        self._mutex = threading.Lock()
        self._greatest: dict[str, int] = {}

    def vouches(self, resource: str, token: int) -> bool:
        """Tell whether the server vouches for a token, or for a greater one: then the fence decides."""
        # Only True is a yes: a coroutine that is never awaited must not count as one.
        return self._knows(resource, token) or self._record_answer(resource, token, self._ask(resource, token))

    async def vouches_async(self, resource: str, token: int) -> bool:
        """Do the same in asyncio. A plain function is called in a thread: it may block on the network."""
        if self._knows(resource, token):
            return True
        if self._is_async:
            answer = self._ask(resource, token)
        else:
            answer = await asyncio.to_thread(self._ask, resource, token)
        return self._record_answer(resource, token, await answer if inspect.isawaitable(answer) else answer)

    def _knows(self, resource: str, token: int) -> bool:
        with self._mutex:
            return token <= self._greatest.get(resource, -1)

    def _record_answer(self, resource: str, token: int, answer: object) -> bool:
        if answer is not True:
            return False
        with self._mutex:
            self._greatest[resource] = max(token, self._greatest.pop(resource, -1))
            if len(self._greatest) > RESOURCES_MAX:
                del self._greatest[next(iter(self._greatest))]  # The least recently updated one.
        return True


class _Refusal(Exception):
    """An answer of the middleware's own."""

    def __init__(self, status: int, error: str, code: str, details: str, **more: str | int | None) -> None:
        super().__init__(code)
        self.status = HTTPStatus(status)
        envelope = {"error": error, "code": code, "details": details, **more}
        self.body = json.dumps(envelope, ensure_ascii=False).encode()
        self.headers = [("Content-Type", "application/json"), ("Content-Length", str(len(self.body)))]


def _refusal(error: Exception) -> _Refusal:
    match error:
        case _Refusal():
            return error
        case StaleToken():
            more: dict[str, Any] = {
                "resource": error.resource,
                "fencing_token": error.fencing_token,
                "current": error.current,
            }
            return _Refusal(412, "Stale fencing token", "stale_token", f"{error}.", **more)
        case _:
            details = (
                f"Whether the fencing token is current could not be found out: {error}. Nothing was done: try again."
            )
            return _Refusal(503, "Fencing token not checked", "fencing_token_not_checked", details)


def _not_current(resource: str, token: int) -> _Refusal:
    details = (
        f"the server does not know fencing token {token} as that of a live claim for {resource}: "
        "you do not own the job, so stop, and claim it again if it still needs doing"
    )
    code = "fencing_token_not_current"
    return _Refusal(412, "Fencing token not current", code, f"{details}.", resource=resource, fencing_token=token)


def routed_path(path: str) -> str:
    """Normalise a path, so that all paths to the same resource have one spelling.

    The server has decoded percent escapes. This removes empty segments, `.`, `..`, parameters after `;` and a trailing
    slash, as some routers do: one resource must not have two fences. Case stays.
    """
    segments: list[str] = []
    for segment in path.split("/"):
        name = segment.partition(";")[0]
        if name == "..":
            del segments[-1:]
        elif name not in {"", "."}:
            segments.append(name)
    return "/" + "/".join(segments)


class _Fenced:
    _can_await = True

    def __init__(
        self,
        app: Application,
        fence: Fence | None = None,
        *,
        is_current: Ask | None = None,
        key: bytes | None = None,
        trust_callers: bool = False,
        resource: Callable[[Values], str | None] | None = None,
    ) -> None:
        """Guard `app`. State what vouches for a token: `is_current`, `key` or `trust_callers=True`.

        `resource` maps the scope (ASGI) or the environ (WSGI) to a resource, or to None for unguarded requests. Without
        it every request except GET, HEAD, OPTIONS and TRACE is guarded, by its normalised path.
        """
        if not self._can_await and inspect.iscoroutinefunction(is_current):
            raise TypeError("is_current is a plain function here: WSGI cannot wait for a coroutine")
        if [is_current is not None, key is not None, trust_callers is True].count(True) != 1:  # No default is safe.
            raise TypeError(
                "say who vouches for a fencing token: is_current=… (asks the server), key=… (signed tokens), or"
                " trust_callers=True if only your own workers can send requests; just one of them"
            )
        self._app = app
        self._fence = fence
        self._vouched = None if is_current is None else Vouched(is_current)
        self._key = None if key is None else _checked_key(key)
        self._resource = resource or self._path

    @staticmethod
    def _path(values: Values) -> str | None:
        """Return the path of a request as it is routed; None if it needs no guard."""
        raise TypeError(f"no path in {values}")

    def _token(self, resource: str, sent: list[str]) -> int:
        """Read the token; the caller checks later whether it is current. Raises `_Refusal`."""
        try:
            checked_resource(resource)
        except ValueError as error:
            raise _Refusal(400, "Invalid resource", "invalid_resource", f"{error}.") from None
        if not sent:
            details = f"Send the fencing token of your claim in the header {TOKEN_HEADER}."
            raise _Refusal(400, "No fencing token", "fencing_token_missing", details)
        text = ",".join(sent)  # More than one is invalid: it is unknown which was meant.
        digits, _, signature = (text, "", "") if self._key is None else text.partition(".")
        try:
            token = parse_token(digits)
        except ValueError:
            details = f"{TOKEN_HEADER} is one whole number from 0 to {TOKEN_MAX}: send the fencing token of your claim."
            raise _Refusal(400, "Invalid fencing token", "fencing_token_invalid", details) from None
        if self._key is not None:
            right = _signature(self._key, resource, token)
            if not hmac.compare_digest(right.encode(), signature.encode()):
                made = "send what sign_token makes of the key, that and the token"
                details = f"{TOKEN_HEADER} is not signed for {resource}: {made}."
                raise _Refusal(403, "Fencing token not signed", "fencing_token_not_signed", details)
        return token


class FencedASGI(_Fenced):
    """Middleware for ASGI in asyncio. Everything but HTTP requests, such as web sockets, passes unguarded."""

    @staticmethod
    def _path(values: Values) -> str | None:
        if values["method"] in _SAFE_METHODS:
            return None
        path: str = values["path"]
        # The mount point is no part of the routed path; older servers send the path without it.
        above = values.get("root_path", "").rstrip("/")
        return routed_path(path[len(above) :] if path == above or path.startswith(f"{above}/") else path)

    async def __call__(self, scope: Values, receive: Any, send: Any) -> None:  # noqa: ANN401 - the framework's own
        resource = self._resource(scope) if scope["type"] == "http" else None
        if resource is None:
            await self._app(scope, receive, send)
            return
        sent = [value.decode("latin-1") for name, value in scope["headers"] if name == TOKEN_HEADER.lower().encode()]
        try:
            token = self._token(resource, sent)
            if self._vouched is not None and not await self._vouched.vouches_async(resource, token):
                raise _not_current(resource, token)
        except (_Refusal, HoldfastError) as error:
            await _asgi_answer(error, send)
            return
        has_started = False

        async def watch(message: Values) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            async with AsyncExitStack() as stack:
                if self._fence:
                    await stack.enter_async_context(self._fence.guard_async(resource, token))
                await self._app({**scope, TOKEN_KEY: token}, receive, watch)
        except StaleToken as stale:
            if has_started:
                raise
            await _asgi_answer(stale, send)


async def _asgi_answer(error: Exception, send: Callable[[Values], Awaitable[None]]) -> None:
    answer = _refusal(error)
    headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers]
    await send({"type": "http.response.start", "status": answer.status.value, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


class FencedWSGI(_Fenced):
    """Middleware for WSGI. The resource is held until the server closes the response, which may be a generator."""

    _can_await = False

    @staticmethod
    def _path(values: Values) -> str | None:
        if values["REQUEST_METHOD"] in _SAFE_METHODS:
            return None
        path: str = values.get("PATH_INFO", "")
        return routed_path(path.encode("latin-1").decode("utf-8", "replace"))

    def __call__(self, environ: Values, start_response: Callable[..., Any]) -> Iterable[bytes]:
        resource = self._resource(environ)
        if resource is None:
            return cast("Iterable[bytes]", self._app(environ, start_response))
        sent = environ.get("HTTP_" + TOKEN_HEADER.upper().replace("-", "_"))
        try:
            token = self._token(resource, [] if sent is None else [sent])
            if self._vouched is not None and not self._vouched.vouches(resource, token):
                raise _not_current(resource, token)
        except (_Refusal, HoldfastError) as error:
            return _wsgi_answer(error, start_response)
        stack = ExitStack()
        try:
            if self._fence:
                stack.enter_context(self._fence.guard(resource, token))
            environ[TOKEN_KEY] = token
            return _HeldResponse(self._app(environ, start_response), stack, start_response)
        except StaleToken as stale:
            stack.close()
            return _wsgi_answer(stale, start_response)
        except BaseException:
            stack.close()
            raise


class _HeldResponse:
    """The application's response; closing it releases the resource."""

    def __init__(self, response: Iterable[bytes], stack: ExitStack, start_response: Callable[..., Any]) -> None:
        self._response = response
        self._stack = stack
        self._start_response = start_response

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._response
        except StaleToken as stale:
            yield from _wsgi_answer(stale, self._start_response)

    def close(self) -> None:
        with self._stack:
            close = getattr(self._response, "close", None)
            if close is not None:
                close()


def _wsgi_answer(error: Exception, start_response: Callable[..., Any]) -> list[bytes]:
    answer = _refusal(error)
    # Given the error, a server replaces unsent headers, and raises it again if they were sent.
    raised = (type(error), error, error.__traceback__) if isinstance(error, StaleToken) else None
    start_response(f"{answer.status.value} {answer.status.phrase}", answer.headers, raised)
    return [answer.body]
