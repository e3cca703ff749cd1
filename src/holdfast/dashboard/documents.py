"""The API's description, made from the table: OpenAPI for programs, one page without script for people."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import __version__
from holdfast.api.decoding import LABEL
from holdfast.api.operation import Key, Operation
from holdfast.dashboard.site import HEADERS, NO_REFERRER, environment
from holdfast.http.messages import envelope
from holdfast.wire.problems import KINDS
from holdfast.wire.requests import field_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.api.context import RequestContext
    from holdfast.api.service import ApiService

_OK = 200
_REF = "#/components/schemas/{name}"
_PROBLEM_REF = {"$ref": _REF.format(name="Problem")}
_STATUSES = {"invalid_input": (400, 405, 408, 413, 415, 422, 431), "lease_not_current": (400, 404)}
_EVERYWHERE = ("storage_unavailable", "outcome_unknown", "invalid_input")
_PROBLEM = {
    "type": "object",
    "required": ["error", "code", "details", "request_id"],
    "properties": {
        "error": {"type": "string", "description": "A label for people."},
        "code": {"type": "string", "enum": sorted(KINDS)},
        "details": {"type": "string", "description": "What is wrong and what to do next."},
        "request_id": {"type": "string"},
        "retry_after_ms": {"type": "integer", "description": "Only when a retry can help."},
    },
}


class Documents:
    """The documents about one table of operations, rendered on first use, and their handlers."""

    def __init__(self, operations: Callable[[], tuple[Operation, ...]]) -> None:
        self._operations = operations  # A function, because the table contains the handlers of its own documents.

    def docs(self, _api: ApiService, context: RequestContext) -> None:
        context.answer((_OK, self._page, (*HEADERS, NO_REFERRER)))

    def openapi_json(self, _api: ApiService, context: RequestContext) -> None:
        context.answer((_OK, self._openapi, ()))

    def openapi_yaml(self, _api: ApiService, context: RequestContext) -> None:
        """GET /openapi.yaml: the same text, for JSON is YAML."""
        context.answer((_OK, self._openapi, ((b"content-type", b"application/yaml"),)))

    @cached_property
    def _openapi(self) -> bytes:
        return _openapi(self._operations())

    @cached_property
    def _page(self) -> bytes:
        template = environment().get_template("docs.html")
        return template.render(operations=self._operations(), codes=KINDS, field_names=field_names).encode()


def _openapi(operations: tuple[Operation, ...]) -> bytes:
    types = [
        type_
        for operation in operations
        for either in (operation.body, *operation.replies.values())
        for type_ in (either if isinstance(either, tuple) else (either,))
        if type_ is not None and not isinstance(type_, str)
    ]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    schema_of = dict(zip(map(repr, types), schemas, strict=True))
    for body in {operation.body for operation in operations if operation.body is not None}:
        schema = components[body.__name__]
        schema["properties"] = {name: schema["properties"][name] for name in field_names(body)}
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation, schema_of)
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": __version__, "description": "One live owner for every job."},
        "paths": paths,
        "components": {
            "schemas": components | {"Problem": _PROBLEM},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def _describe(operation: Operation, schema_of: dict[str, Any]) -> dict[str, Any]:
    words = operation.path.replace("{", "by-").replace("}", "").replace(".", "-").strip("/").split("/")
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": "-".join([operation.method.lower(), *words]),
        "parameters": _parameters(operation),
        "responses": _responses(operation, schema_of),
    }
    if operation.body is not None:
        content = _json(schema_of[repr(operation.body)])
        described["requestBody"] = {"required": not operation.body_may_be_empty, "content": content}
    if operation.scope is not None:
        described["security"] = [{"bearer": []}]
        described["description"] = f"Needs the scope `{operation.scope}`."
    return described


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    text: dict[str, Any] = {"type": "string"}
    headers = dict(operation.headers)
    if operation.key is not Key.IGNORED:
        headers["Idempotency-Key"] = "The same key has at most one effect, and gets the first answer again."
    parts = (part for part in operation.path.split("/") if part.startswith("{"))
    ids = {part.strip("{}"): text if part == "{name}" else text | {"format": "uuid"} for part in parts}
    found: list[dict[str, Any]] = []
    for name, schema in ids.items():
        found.append({"name": name, "in": "path", "required": True, "schema": schema})
    for name, about in operation.query.items():
        schema = {"type": "array", "items": text} if name == LABEL else text
        found.append({"name": name, "in": "query", "description": about, "schema": schema})
    for name, about in headers.items():
        found.append({"name": name, "in": "header", "description": about, "schema": text})
    return found


def _responses(operation: Operation, schema_of: dict[str, Any]) -> dict[str, Any]:
    request_id = {"X-Request-Id": {"schema": {"type": "string"}}}
    responses: dict[str, Any] = {}
    for status, type_ in operation.replies.items():
        response = responses[str(status)] = {"description": operation.summary, "headers": request_id}
        if isinstance(type_, str):
            response["content"] = {type_: {"schema": {"type": "string"}}}
        elif isinstance(type_, tuple):
            response["content"] = _json({"anyOf": [schema_of[repr(each)] for each in type_]})
        elif type_ is not None:
            response["content"] = _json(schema_of[repr(type_)])
        elif status == _OK:
            response["content"] = _json({"type": "null"})
    for status, codes in sorted(_problems(operation).items()):
        if str(status) in responses:
            known = responses[str(status)]["content"]["application/json"]
            known["schema"] = {"anyOf": [known["schema"], _PROBLEM_REF]}
        else:
            text = "Refused: " + ", ".join(f"`{code}`" for code in codes)
            responses[str(status)] = {"description": text, "headers": request_id, "content": _json(_PROBLEM_REF)}
    return responses


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _problems(operation: Operation) -> dict[int, list[str]]:
    """Return the problem codes by status: those that the row names, and those that follow from it."""
    codes = [*operation.problems, *_EVERYWHERE]
    if operation.refusal is envelope:
        if operation.path.startswith("/locks/{name}"):
            codes.append("invalid_lock_name")
        if operation.key is Key.WITH_CONTENT:
            codes.append("idempotency_conflict")
        if operation.scope is not None:
            codes.append("forbidden")
    if not operation.any_host:
        codes.append("misdirected")
    if operation.scope is not None:
        codes += ["authentication_required", "authentication_failed", "too_many_wrong_tokens"]
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        for status in _STATUSES.get(code, (KINDS[code].status,)):
            by_status.setdefault(status, []).append(code)
    return by_status
