"""The words of ASGI, and what the server gives to an application that stands beside its routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

PATH = "/mcp"
REQUEST_ID = "holdfast.request_id"
"""Where the extensions of a scope have the id of its request, which every refusal names."""

Scope: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Ask: TypeAlias = Callable[[Scope, str, str, Mapping[str, str], bytes], Awaitable[tuple[int, Mapping[str, str], bytes]]]
"""Asks the server, on behalf of the request with this scope: method, path, headers, body."""
