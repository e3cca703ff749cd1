"""The rows of the gateway in the table of operations."""

from __future__ import annotations

from holdfast.server.gateway import handlers
from holdfast.server.gateway.reading import by_secret
from holdfast.server.operations.operation import Key, Operation
from holdfast.wire import gateway

_ERRORS = dict.fromkeys((400, 403, 413, 421, 429, 503), gateway.GatewayErrorReply)

GATEWAY: tuple[Operation, ...] = (
    Operation(
        "POST",
        "/locks/acquire",
        handlers.acquire,
        "Gateway: have a resource, as a run",
        body=gateway.GatewayTimedBody,
        reader=by_secret,
        refusal=handlers.error,
        replies={200: gateway.GatewayAcquiredReply, 409: gateway.GatewayRefusedReply, **_ERRORS},
    ),
    Operation(
        "POST",
        "/locks/heartbeat",
        handlers.heartbeat,
        "Gateway: keep a resource, as a run",
        body=gateway.GatewayTimedBody,
        reader=by_secret,
        refusal=handlers.error,
        replies={
            200: gateway.GatewayKeptReply,
            404: gateway.GatewayRefusedReply,
            409: gateway.GatewayRefusedReply,
            **_ERRORS,
        },
    ),
    Operation(
        "GET",
        "/locks/list",
        handlers.list_,
        "Gateway: what a run has",
        query={"secret": "The session's secret."},
        reader=by_secret,
        refusal=handlers.error,
        replies={200: list[gateway.GatewayOwnLock], **_ERRORS},
    ),
    Operation(
        "POST",
        "/locks/release",
        handlers.release,
        "Gateway: give a resource back, as a run",
        body=gateway.GatewayBody,
        reader=by_secret,
        refusal=handlers.error,
        key=Key.WITH_CONTENT,
        replies={
            200: gateway.GatewayReleasedReply,
            404: gateway.GatewayRefusedReply,
            409: gateway.GatewayRefusedReply,
            **_ERRORS,
        },
    ),
    Operation(
        "GET",
        "/locks/status",
        handlers.status,
        "Gateway: who has what",
        scope="read",
        passes_over_query=True,
        refusal=handlers.error_of_status,
        replies={200: gateway.GatewayStatusReply, 401: gateway.GatewayErrorReply, **_ERRORS},
    ),
)
