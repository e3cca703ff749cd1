"""Puts a handler behind a fence: its resource is held from the comparison until the handler is done.

So a newer owner waits for an older one that is already at work, and an older one that comes later is refused; the two
never run at once. A handler that hangs keeps its resource closed: give it a limit of its own.

The token comes with the request, in the header `Fencing-Token`, and somebody has to vouch for it (`_trust`). What a
request is about is its path as applications route it: however it is spelled, one thing has one fence.

A fence in SQL belongs into the handler's own transaction: give the middleware no fence, take the token from
`holdfast.token`, and call `SqlFence.check` in the handler. The middleware answers a `StaleToken` from the handler as it
answers its own.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from functools import wraps
from http import HTTPStatus
from string import Formatter
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, cast

from holdfast.errors import HoldfastError, StaleToken
from holdfast.fencing._token import TOKEN_MAX, checked_resource, parse_token
from holdfast.fencing._trust import Ask, Signed, Trust, Vouched, trust_in

__all__ = ["Fence", "FencedASGI", "FencedWSGI", "TOKEN_HEADER", "fenced", "routed_path"]

TOKEN_HEADER = "Fencing-Token"  # noqa: S105 - where a token is, not one
TOKEN_KEY = "holdfast.token"  # noqa: S105 - the same

_SAFE_METHODS = {"GET", "HEAD", "OPTIONS", "TRACE"}

P = ParamSpec("P")
R = TypeVar("R")
Values = MutableMapping[str, Any]
Application = Callable[..., Any]


class Fence(Protocol):
    """What `fenced` and the middleware need: MemoryFence, FolderFence, or yours."""

    def guard(self, resource: str, token: int) -> AbstractContextManager[object]: ...
    def guard_async(self, resource: str, token: int) -> AbstractAsyncContextManager[object]: ...


# --- A function ------------------------------------------------------------------------------------------------------


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


# --- What the middleware answers by itself ---------------------------------------------------------------------------


class _Answer(NamedTuple):
    status: HTTPStatus
    body: bytes

    def headers(self) -> list[tuple[str, str]]:
        return [("Content-Type", "application/json"), ("Content-Length", str(len(self.body)))]


def _answer(status: HTTPStatus, error: str, code: str, details: str, **more: str | int | None) -> _Answer:
    envelope = {"error": error, "code": code, "details": details, **more}
    return _Answer(status, json.dumps(envelope, ensure_ascii=False).encode())


def _stale(stale: StaleToken) -> _Answer:
    return _answer(
        HTTPStatus.PRECONDITION_FAILED,
        "Stale fencing token",
        "stale_token",
        f"{stale}.",
        resource=stale.resource,
        fencing_token=stale.token,
        current=stale.current,
    )


def _token(resource: str, sent: list[str], trust: Trust) -> int | _Answer:
    """Read the token; for a request that cannot be guarded, an answer. Whether it is current is asked later."""
    try:
        checked_resource(resource)
    except ValueError as error:
        return _answer(HTTPStatus.BAD_REQUEST, "Invalid resource", "invalid_resource", f"{error}.")
    if not sent:
        details = f"Send the fencing token of your claim in the header {TOKEN_HEADER}."
        return _answer(HTTPStatus.BAD_REQUEST, "No fencing token", "fencing_token_missing", details)
    text = ",".join(sent)  # More than one is none: nobody can say which was meant.
    try:
        if not isinstance(trust, Signed):
            return parse_token(text)
        token = trust.read(resource, text)
    except ValueError:
        details = f"{TOKEN_HEADER} is one whole number from 0 to {TOKEN_MAX}: send the fencing token of your claim."
        return _answer(HTTPStatus.BAD_REQUEST, "Invalid fencing token", "fencing_token_invalid", details)
    if token is None:
        details = (
            f"{TOKEN_HEADER} is not signed for {resource}: send what sign_token makes of the key, that and the token"
        )
        return _answer(HTTPStatus.FORBIDDEN, "Fencing token not signed", "fencing_token_not_signed", f"{details}.")
    return token


def _not_current(resource: str, token: int) -> _Answer:
    return _answer(
        HTTPStatus.PRECONDITION_FAILED,
        "Fencing token not current",
        "fencing_token_not_current",
        f"the server does not know fencing token {token} as that of a live claim for {resource}: "
        "you do not own the job, so stop, and claim it again if it still needs doing.",
        resource=resource,
        fencing_token=token,
    )


def _not_checked(error: HoldfastError) -> _Answer:
    details = f"Whether the fencing token is current could not be found out: {error}. Nothing was done: try again."
    return _answer(HTTPStatus.SERVICE_UNAVAILABLE, "Fencing token not checked", "fencing_token_not_checked", details)


# --- An application --------------------------------------------------------------------------------------------------


def routed_path(path: str) -> str:
    """Write a path the one way that stands for all that lead to the same thing.

    The server has taken percent escapes off. Empty segments, `.`, `..`, parameters behind `;` and a slash at the end
    are taken out here: some routers do so, and paths that lead to one thing must not have two fences. Case stays.
    """
    segments: list[str] = []
    for segment in path.split("/"):
        name = segment.partition(";")[0]
        if name == "..":
            del segments[-1:]
        elif name not in {"", "."}:
            segments.append(name)
    return "/" + "/".join(segments)


class FencedASGI:
    """Middleware for ASGI in asyncio. Other than HTTP requests, such as web sockets, pass unguarded."""

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
        """Guard `app`. Who vouches for a token has to be said: `is_current`, `key` or `trust_callers=True`.

        `resource` makes a name of the scope, or None for what needs no guard. Without it every request but GET, HEAD,
        OPTIONS and TRACE is guarded, by its path as it is routed.
        """
        self._app = app
        self._fence = fence
        self._trust = trust_in(is_current, key, trust_callers=trust_callers)
        self._resource = resource or _asgi_path

    async def __call__(self, scope: Values, receive: Any, send: Any) -> None:  # noqa: ANN401 - the framework's own
        resource = self._resource(scope) if scope["type"] == "http" else None
        if resource is None:
            await self._app(scope, receive, send)
            return
        sent = [value.decode("latin-1") for name, value in scope["headers"] if name == TOKEN_HEADER.lower().encode()]
        token = _token(resource, sent, self._trust)
        if isinstance(self._trust, Vouched) and isinstance(token, int):
            try:
                token = token if await self._trust.believes_async(resource, token) else _not_current(resource, token)
            except HoldfastError as error:
                token = _not_checked(error)
        if isinstance(token, _Answer):
            await _asgi_answer(token, send)
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
            await _asgi_answer(_stale(stale), send)


def _asgi_path(scope: Values) -> str | None:
    if scope["method"] in _SAFE_METHODS:
        return None
    path: str = scope["path"]
    # Where the application hangs is no part of what it routes by; servers of before gave the path without it.
    above = scope.get("root_path", "").rstrip("/")
    return routed_path(path[len(above) :] if path == above or path.startswith(f"{above}/") else path)


async def _asgi_answer(answer: _Answer, send: Callable[[Values], Awaitable[None]]) -> None:
    headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers()]
    await send({"type": "http.response.start", "status": answer.status.value, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


class FencedWSGI:
    """Middleware for WSGI. The resource is held until the server closes the response, for it may be made on the way."""

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
        """Guard `app`. Who vouches for a token has to be said: `is_current`, `key` or `trust_callers=True`.

        `resource` makes a name of the environ, or None for what needs no guard. Without it every request but GET, HEAD,
        OPTIONS and TRACE is guarded, by its path as it is routed.
        """
        if inspect.iscoroutinefunction(is_current):
            raise TypeError("is_current is a plain function here: WSGI has nobody who could wait for another")
        self._app = app
        self._fence = fence
        self._trust = trust_in(is_current, key, trust_callers=trust_callers)
        self._resource = resource or _wsgi_path

    def __call__(self, environ: Values, start_response: Callable[..., Any]) -> Iterable[bytes]:
        resource = self._resource(environ)
        if resource is None:
            return cast("Iterable[bytes]", self._app(environ, start_response))
        sent = environ.get("HTTP_" + TOKEN_HEADER.upper().replace("-", "_"))
        token = _token(resource, [] if sent is None else [sent], self._trust)
        if isinstance(self._trust, Vouched) and isinstance(token, int):
            try:
                token = token if self._trust.believes(resource, token) else _not_current(resource, token)
            except HoldfastError as error:
                token = _not_checked(error)
        if isinstance(token, _Answer):
            return _wsgi_answer(token, start_response)
        stack = ExitStack()
        try:
            if self._fence:
                stack.enter_context(self._fence.guard(resource, token))
            environ[TOKEN_KEY] = token
            return _HeldResponse(self._app(environ, start_response), stack, start_response)
        except StaleToken as stale:
            stack.close()
            return _wsgi_answer(_stale(stale), start_response, stale)
        except BaseException:
            stack.close()
            raise


class _HeldResponse:
    """The application's response; closing it lets the resource go."""

    def __init__(self, response: Iterable[bytes], stack: ExitStack, start_response: Callable[..., Any]) -> None:
        self._response = response
        self._stack = stack
        self._start_response = start_response

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._response
        except StaleToken as stale:
            yield from _wsgi_answer(_stale(stale), self._start_response, stale)

    def close(self) -> None:
        with self._stack:
            close = getattr(self._response, "close", None)
            if close is not None:
                close()


def _wsgi_path(environ: Values) -> str | None:
    if environ["REQUEST_METHOD"] in _SAFE_METHODS:
        return None
    path: str = environ.get("PATH_INFO", "")
    return routed_path(path.encode("latin-1").decode("utf-8", "replace"))


def _wsgi_answer(answer: _Answer, start_response: Callable[..., Any], error: StaleToken | None = None) -> list[bytes]:
    # Given the error, a server replaces headers that it has not sent, and raises it again if it has.
    raised = error and (type(error), error, error.__traceback__)
    start_response(f"{answer.status.value} {answer.status.phrase}", answer.headers(), raised)
    return [answer.body]
