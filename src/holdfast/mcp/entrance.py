"""Who may come in at `/mcp`: asked before anything else, without the SDK.

The server has checked `Host`, `Origin` and sizes before anything comes here. A caller without an access token that the
server knows is told so by the status of HTTP, as at all routes. It costs no more than there: for strangers nothing is
loaded, and no byte of a body is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from holdfast.mcp.asgi import PATH, REQUEST_ID, Ask, Scope, Send

Answer: TypeAlias = tuple[int, Mapping[str, str], bytes]

_METHOD = "POST"
_NOT_LET_IN = frozenset({401, 403, 429, 503})
_PROBE = "/sessions?limit=1"
"""Asks for little, and is refused to whoever has no access token that is known."""


async def refusal_of(ask: Ask, scope: Scope) -> Answer | None:
    """Return why a request is not taken, if it is not."""
    if scope["path"] != PATH:
        return _refusal(scope, 404, "not_found", "Not found", f"Ask {PATH} itself.")
    if scope["method"] != _METHOD:
        # There is no stream of the server's own: nothing is told here that was not asked for.
        details = f"Send messages with {_METHOD}; there is no stream, and no session of the protocol."
        return _refusal(scope, 405, "invalid_input", "Invalid input", details, allow=_METHOD)
    authorization = headers_of(scope).get("authorization")
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = await ask(scope, "GET", _PROBE, headers, b"")
    return answer if answer[0] in _NOT_LET_IN else None


def headers_of(scope: Scope) -> dict[str, str]:
    """Return the headers of a request, by their names in small letters."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


async def pass_on(send: Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Send an answer of the server's."""
    fields = {"content-type": "application/json", **headers, "content-length": str(len(body))}
    written = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": written})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _refusal(scope: Scope, status: int, code: str, error: str, details: str, **headers: str) -> Answer:
    """Refuse in the words of all routes."""
    request_id = scope["extensions"][REQUEST_ID]
    envelope = {"error": error, "code": code, "details": details, "request_id": request_id}
    return status, headers, msgspec.json.encode(envelope)
