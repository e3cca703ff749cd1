"""Requests become calls: every part is read once, in the order that the wire promises.

    path → query → body (size, content type, syntax, types, values) → key → who asks → its scope → its session → name

The first that is wrong is told. Up to the key nothing but the request is looked at, so a refusal is answered at once;
from the caller on it rests on the state. What a command means is checked later, where it is decided, in the core.

A body over `SMALL_BODY_BYTES` or a query over `SMALL_QUERY_BYTES` is not worth reading for somebody whom nobody knows:
who asks comes before it then.

`reader_for` looks at the row once, when the server starts, and returns a function that has everything at hand.
"""

from __future__ import annotations

import hashlib
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.server.access.claimsecrets import key_within
from holdfast.server.access.secrets import SESSION_PREFIX
from holdfast.server.operations.call import NOBODY, Call
from holdfast.server.operations.operation import Key
from holdfast.server.operations.parts import BodyReader, read_key, read_query, read_segment, read_uuid_segment
from holdfast.server.operations.sizes import SMALL_BODY_BYTES, size_of
from holdfast.server.render import encode
from holdfast.wire.requests import ClaimBody, field_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.server.api import Api
    from holdfast.server.http.messages import Request
    from holdfast.server.operations.call import Reply
    from holdfast.server.operations.operation import Operation, Reader

    Content = Callable[[Any], object]

_BEARER_OF_SESSION = f"Bearer {SESSION_PREFIX}".encode()
_NO_KEY = (None, "")
_NO_MARK = hashlib.blake2b(digest_size=12)
"""Copied for each fingerprint: that takes less than to make one."""
SMALL_QUERY_BYTES = 2_048


def reader_for(api: Api, operation: Operation) -> Reader:
    if operation.reader is not None:
        return operation.reader(api, operation)
    return by_token(api, operation) if operation.scope is not None else nothing(api, operation)


def nothing(api: Api, operation: Operation) -> Reader:
    def read(request: Request, _segment: bytes, reply: Reply) -> Call:
        return Call(operation.refusal, request, reply, "", None, None, NOBODY, api)

    return read


def by_token(api: Api, operation: Operation) -> Reader:
    """For an operation that is asked for with a bearer token, or a session's secret in its place."""
    read_item = _item_reader(operation.path)
    is_name = operation.path.startswith("/locks/{name}")
    read_fields = _query_reader(operation)
    no_fields = read_fields(b"")
    read_body = _body_reader(api, operation)
    check_body, check_after_key, check_session = (
        operation.check_body,
        operation.check_after_key,
        operation.check_session,
    )
    key_and_content = _key_reader(operation)
    scope, refusal = operation.scope or "", operation.refusal
    own_scope = operation.own_scope
    admit, check_name = api.admit, api.name_for

    def read(request: Request, segment: bytes, reply: Reply) -> Call:
        item = read_item(segment)
        body = caller = None
        query = no_fields
        if request.query or len(request.body) > SMALL_BODY_BYTES:
            if len(request.query) > SMALL_QUERY_BYTES or len(request.body) > SMALL_BODY_BYTES:
                caller = admit(request, scope, own_scope)
            query = read_fields(request.query)
        if read_body is not None:
            body = read_body(request)
            if check_body is not None:
                check_body(body)
        key, fingerprint = _NO_KEY if request.key is None else key_and_content(request, item, body)
        if check_after_key is not None:
            check_after_key(body)
        if caller is None:
            caller = admit(request, scope, own_scope)
        call = Call(refusal, request, reply, item, query, body, caller, api, key, fingerprint)
        if caller.session is not None and check_session is not None:
            check_session(call)
        if is_name:
            check_name(item, caller, body)
        return call

    return read


def _item_reader(path: str) -> Callable[[bytes], str]:
    if "{id}" in path:
        return read_uuid_segment
    return read_segment if "{name}" in path else lambda _segment: ""


def _query_reader(operation: Operation) -> Callable[[bytes], Any]:
    if operation.passes_over_query:
        return lambda _query: None
    known = frozenset(operation.query)
    made_of = operation.read_query
    if made_of is None:
        return lambda query: read_query(query, known)
    return lambda query: made_of(read_query(query, known))


def _body_reader(api: Api, operation: Operation) -> Callable[[Request], Any] | None:
    if operation.body is None:
        return None
    settings = api.settings
    size = size_of(operation, settings)
    read = BodyReader(operation.body, size, ignore_unknown=settings.unknown_fields == "ignore").read
    if not operation.body_may_be_empty:
        return read
    empty = operation.body()
    return lambda request: read(request) if request.body else empty


def _key_reader(operation: Operation) -> Callable[[Request, str, Any], tuple[str | None, str]]:
    if operation.key is Key.IGNORED:
        return lambda _request, _item, _body: _NO_KEY
    if operation.key is Key.ALONE:
        return lambda request, _item, _body: (_read_own_key(request), "")
    content = _content_reader(operation.body)
    collection = operation.path.lstrip("/")
    key_of = _read_own_key if operation.own_scope else read_key

    def read(request: Request, item: str, body: Any) -> tuple[str | None, str]:  # noqa: ANN401 - any body
        return key_of(request), fingerprint(request, item or collection, content(body))

    return read


def _read_own_key(request: Request) -> str | None:
    """Return the idempotency key of an operation that a claim's secret may ask for."""
    key = read_key(request)
    return None if key is None else key_within(key, request.authorization)


def _content_reader(body: type[Any] | None) -> Content:
    """Return what makes of a body that which a retry must not change.

    How long a claim waits, and at which place in the line, may differ from one try to the next (C5). Labels have no
    order, and none at all is the same as absent.
    """
    if body is None or not issubclass(body, ClaimBody):
        return lambda read: read
    names = field_names(body)
    values_of = attrgetter(*names)
    in_order = msgspec.defstruct("Content", names)

    def content(read: ClaimBody) -> object:
        made = in_order(*values_of(read))
        made.wait_seconds = made.ticket = None  # type: ignore[attr-defined]
        made.labels = dict(sorted(read.labels.items())) if read.labels else msgspec.UNSET  # type: ignore[attr-defined]
        return made

    return content


def fingerprint(request: Request, item: str, content: object) -> str:
    """Return what a request comes to: another request may not use its key again (C5).

    What another session's secret asks is another request, or two runs that use one key would both hear that they own it
    (S3). Whether the secret is right is looked at before the key is.
    """
    written = encode((request.method, item, content))
    authorization = request.authorization
    if authorization is not None and authorization.startswith(_BEARER_OF_SESSION):
        written += authorization[len(_BEARER_OF_SESSION) :].partition(b"_")[0]
    mark = _NO_MARK.copy()
    mark.update(written)
    return mark.hexdigest()
