"""`/mcp` as a mounted ASGI application: authenticates each request, and loads the tools for the first valid one.

The SDK takes a second to load, so it is loaded in a thread, for the first authenticated request. This module therefore
imports nothing that comes with the extra. The server has checked `Host`, `Origin` and sizes before, and authentication
happens before the body is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import msgspec

from holdfast.agents.mcp.asgi import PATH, REQUEST_ID, Answer, Application, Ask, Receive, Scope, Send, headers_of

_NEEDED = ("aiohttp", "mcp", "yarl")
_MAJOR = "2"
_REFUSED = frozenset({401, 403, 429, 503})
_PROBE = "/sessions?limit=1"  # A cheap request, which is refused without a valid access token.


def is_installed() -> bool:
    try:
        return all(find_spec(name) for name in _NEEDED) and version("mcp").partition(".")[0] == _MAJOR
    except PackageNotFoundError:
        return False


def mcp_endpoint(ask: Ask) -> Application:
    load_task: asyncio.Task[Application] | None = None

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal load_task
        refusal = await _check_request(ask, scope)
        if refusal is not None:
            await _respond(send, *refusal)
            return
        # A load that failed is tried again: the server may have run out of memory or files for a moment.
        if load_task is None or (load_task.done() and (load_task.cancelled() or load_task.exception() is not None)):
            load_task = asyncio.create_task(asyncio.to_thread(_load, ask))
        # A client that disconnects meanwhile must not cancel that for the others.
        tools = await asyncio.shield(load_task)
        await tools(scope, receive, send)

    return application


def _load(ask: Ask) -> Application:
    from holdfast.agents.mcp.http import ToolsApp  # noqa: PLC0415 - see above

    return ToolsApp(ask)


async def _check_request(ask: Ask, scope: Scope) -> Answer | None:
    if scope["path"] != PATH:
        return _refusal(scope, 404, "not_found", "Not found", f"Ask {PATH} itself.")
    if scope["method"] != "POST":
        details = "Send messages with POST; there is no stream, and no session of the protocol."
        return _refusal(scope, 405, "invalid_input", "Invalid input", details, allow="POST")
    authorization = headers_of(scope).get("authorization")
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = await ask(scope, "GET", _PROBE, headers, b"")
    return answer if answer[0] in _REFUSED else None


def _refusal(scope: Scope, status: int, code: str, error: str, details: str, **headers: str) -> Answer:
    request_id = scope["extensions"][REQUEST_ID]
    envelope = {"error": error, "code": code, "details": details, "request_id": request_id}
    return status, headers, msgspec.json.encode(envelope)


async def _respond(send: Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
    fields = {"content-type": "application/json", **headers, "content-length": str(len(body))}
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body, "more_body": False})
