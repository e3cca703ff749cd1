"""The operations for whoever looks after servers, people and machines: health, nodes, counters, backups."""

from __future__ import annotations

from holdfast.server.handlers import health, nodes
from holdfast.server.metrics import answering
from holdfast.server.operations.operation import Operation
from holdfast.server.streams import backup
from holdfast.wire import replies

OPERATING: tuple[Operation, ...] = (
    Operation(
        "GET",
        "/backup",
        backup.backup,
        "All that the server knows, as one file to restore from; it holds secrets",
        scope="admin",
        is_stream=True,
        replies={200: "application/octet-stream"},
        problems=("invalid_input", "forbidden", "quota_exceeded", "capacity_exceeded"),
    ),
    Operation(
        "GET",
        "/health",
        health.health,
        "How the store is",
        any_host=True,
        replies={200: replies.HealthReply, 503: replies.HealthReply},
    ),
    Operation(
        "GET",
        "/health/leader",
        health.leads,
        "Whether this node leads: for a load balancer",
        any_host=True,
        replies={200: replies.ReadyReply, 503: replies.ReadyReply},
    ),
    Operation(
        "GET",
        "/healthz",
        health.alive,
        "Whether the process answers",
        any_host=True,
        is_local=True,
        replies={200: replies.ReadyReply},
    ),
    Operation(
        "GET",
        "/metrics",
        answering.metrics,
        "What this node has counted and measured, for Prometheus",
        scope=answering.SCOPE,
        reader=answering.reader,
        replies={200: "text/plain"},
        problems=("forbidden",),
    ),
    Operation(
        "GET",
        "/nodes",
        nodes.nodes,
        "Who leads, since when, and which nodes are there",
        scope="read",
        replies={200: replies.NodesReply},
        problems=("forbidden",),
    ),
    Operation(
        "GET",
        "/readyz",
        health.ready,
        "Whether the journal takes writes",
        any_host=True,
        replies={200: replies.ReadyReply, 503: replies.ReadyReply},
    ),
    Operation("GET", "/status", health.status, "Counters since the start", replies={200: replies.StatusReply}),
)
