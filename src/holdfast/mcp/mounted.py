"""`/mcp` beside the routes of a server: loaded when the first request comes that is let in, in a thread.

The SDK takes a second to load, and a server must not stand still for that. So nothing is loaded at the start, nor for a
stranger, and here nothing is imported that is not there without the extra.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from holdfast.mcp.asgi import Application, Ask, Receive, Scope, Send
from holdfast.mcp.entrance import pass_on, refusal_of

_NEEDED = ("aiohttp", "mcp", "yarl")
_MAJOR = "2"


def is_installed() -> bool:
    """Tell whether what the tools need is installed, in a version that they are written for."""
    try:
        return all(find_spec(name) for name in _NEEDED) and version("mcp").partition(".")[0] == _MAJOR
    except PackageNotFoundError:
        return False


def mounted(ask: Ask) -> Application:
    """Return the application. Nothing is loaded yet."""
    return _Late(ask)


class _Late:
    """An application that is loaded when somebody asks it who may."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._loading: asyncio.Task[Application] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = await refusal_of(self._ask, scope)
        if refusal is not None:
            await pass_on(send, *refusal)
            return
        if self._loading is None or _has_failed(self._loading):
            self._loading = asyncio.create_task(asyncio.to_thread(_load, self._ask))
        # One that leaves while it is loaded must not end that for the others.
        application = await asyncio.shield(self._loading)
        await application(scope, receive, send)


def _has_failed(loading: asyncio.Task[Application]) -> bool:
    """Tell whether it has to be loaded anew: a server may have been short of memory or files, for once."""
    return loading.done() and (loading.cancelled() or loading.exception() is not None)


def _load(ask: Ask) -> Application:
    from holdfast.mcp.http import Tools  # noqa: PLC0415 - the reason for this file

    return Tools(ask)
