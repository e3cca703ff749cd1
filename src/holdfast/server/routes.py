"""Every operation of a server: the API, the documents about it, and the operators' page."""

from __future__ import annotations

from holdfast.api.handlers import table
from holdfast.api.operation import Operation
from holdfast.dashboard.documents import Documents
from holdfast.dashboard.table import JOBS, PAGES

_document = Documents(lambda: tuple(operation for operation in OPERATIONS if operation.in_documents))

OPERATIONS: tuple[Operation, ...] = (
    JOBS,
    Operation("GET", "/docs", _document.docs, "This API, for people", replies={200: "text/html"}, is_local=True),
    Operation(
        "GET",
        "/openapi.json",
        _document.openapi_json,
        "This document",
        replies={200: "application/json"},
        is_local=True,
    ),
    Operation(
        "GET",
        "/openapi.yaml",
        _document.openapi_yaml,
        "This document",
        replies={200: "application/yaml"},
        is_local=True,
    ),
    *table.OPERATIONS,
    *PAGES,
)
