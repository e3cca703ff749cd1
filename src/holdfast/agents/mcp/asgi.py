"""The types of ASGI, and the extensions of a scope that the server passes to a mounted application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

PATH = "/mcp"
REQUEST_ID = "holdfast.request_id"  # The id of the request, which every refusal names.
DISCONNECTED = "holdfast.disconnected"  # A future that is done when the client is gone, or has its response.

Scope: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
Send: TypeAlias = Callable[[Any], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Answer: TypeAlias = tuple[int, Mapping[str, str], bytes]
# Sends the server a request on behalf of the one with this scope: method, path, headers, body.
Ask: TypeAlias = Callable[[Scope, str, str, Mapping[str, str], bytes], Awaitable[Answer]]


def headers_of(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
