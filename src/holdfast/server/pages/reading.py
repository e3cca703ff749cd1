"""Requests for pages become calls. Who asks comes first: for a stranger nothing else is read.

    who asks → its scope → name → query → form

A stranger's call has the caller `NOBODY`. Its answer is the sign-in page (`signin.inside`), which looks at no state.
Unlike the API, a page passes over what it does not know in a query: whoever hands a link on may add to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from holdfast.server.access.origins import fields_of, is_form
from holdfast.server.operations.call import NOBODY, Call
from holdfast.server.operations.parts import (
    QUERY_FIELDS_MAX,
    TARGET_BYTES_MAX,
    read_segment,
    read_uuid_segment,
    too_long,
)
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from holdfast.server.api import Api
    from holdfast.server.http.messages import Request
    from holdfast.server.operations.call import Reply
    from holdfast.server.operations.operation import Operation, Reader


def by_page(api: Api, operation: Operation) -> Reader:
    """For a page, and for a form on one. `query` and `body` of the call are dictionaries of texts."""
    scope, refusal = operation.scope or "read", operation.refusal
    read_item = read_uuid_segment if "{id}" in operation.path else read_segment
    is_name, takes_form = operation.path.startswith("/ui/jobs/{name}"), operation.method == "POST"
    known = frozenset(operation.query)

    def read(request: Request, segment: bytes, reply: Reply) -> Call:
        if request.authorization is None:
            return Call(refusal, request, reply, "", {}, {}, NOBODY, api)
        caller = api.admit(request, scope)
        item = read_item(segment)
        if is_name:
            api.name_for(item, caller)
        form = read_form(request) if takes_form else {}
        return Call(refusal, request, reply, item, _read_query(request.query, known), form, caller, api)

    return read


def _read_query(query: bytes, known: frozenset[str]) -> dict[str, str]:
    """Return the fields that a page knows; of those that stand twice the first."""
    if not query or not known:
        return {}
    if len(query) > TARGET_BYTES_MAX:
        raise too_long("query")
    try:
        text = query.decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, errors="replace", max_num_fields=QUERY_FIELDS_MAX)
    except ValueError:
        raise Problem("invalid_input", "The query is malformed.") from None
    return {field: value for field, value in reversed(pairs) if field in known}


def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; of those that stand twice the first. Line ends are those of plain text."""
    if not is_form(request):
        raise Problem("invalid_input", "Send the fields as a form does.", status=415)
    return {field: value.replace("\r\n", "\n") for field, value in reversed(fields_of(request))}
