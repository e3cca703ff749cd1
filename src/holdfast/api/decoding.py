r"""Requests become request contexts: every part is decoded once, strictly, in the order that the wire promises.

    path → query → body (size, content type, syntax, types, values) → key → who asks → its scope → its session → name

The first that is wrong is refused with the reason: up to the key immediately; from the caller on the refusal rests on
the state. What a command means is checked in the core.

For a body over `SMALL_BODY_BYTES` or a query over `SMALL_QUERY_BYTES`, who asks comes first. Such a body is not parsed
if it has more values than a legal one: counting is cheap, parsing is not.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Callable
from operator import attrgetter
from typing import Any, NoReturn
from urllib.parse import parse_qsl, unquote_to_bytes
from uuid import UUID

import msgspec

from holdfast.api.auth.secrets import SESSION_PREFIX, key_in_scope
from holdfast.api.context import ANONYMOUS, Reply, RequestContext
from holdfast.api.operation import Key, Operation, Reader
from holdfast.api.rendering import encode
from holdfast.api.service import ApiService
from holdfast.config import Settings
from holdfast.core.values import KEY_CHARS_MAX
from holdfast.http.messages import SMALL_BODY_BYTES, Request, too_large
from holdfast.wire.problems import Problem
from holdfast.wire.requests import ClaimBody, field_names, lenient

SHOWN_CHARS = 64
SMALL_QUERY_BYTES = 2_048
QUERY_FIELDS_MAX = 64
TARGET_BYTES_MAX = 16_384  # Of a path or query: decoding is slow, and a mounted application's header may be long.
LABEL = "label"  # The one field of a query that may be repeated.

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_UNKNOWN_FIELD = re.compile(r"unknown field `([^`]*)`")
_JSON = b"application/json"
_ANY_JSON = msgspec.json.Decoder(msgspec.Raw)  # Checks the syntax alone: anybody may send this, and `json` takes long.
_CLAIM_FIELDS_BYTES = 32_768  # A claim's fields but metadata, as long as they may be, all in escapes.
_TEXT_CHAR_BYTES = 2 * 12  # Two of metadata, note and result; beyond U+FFFF a character may be two `\uXXXX`.
_NAME_BYTES = 2_400  # A name and a lease's id, in the longest way to write them.
_VALUES_SPARE = 1_024
_QUOTES_OF_TEXT, _QUOTES_OF_ONE_KEY = 4, 3  # Of a field with its text; and fewer than those of any two fields.
# Numbers: for every byte that is looked for in bytes as bytes, Python first makes an error that it is no number.
_BACKSLASH, _PERCENT = ord("\\"), ord("%")
_SEPARATORS = (b",", b"[", b"{")  # Between the values of JSON, or before them: at most two for each text of ours.
_BEARER_OF_SESSION = f"Bearer {SESSION_PREFIX}".encode()
_NO_KEY = (None, "")
_EMPTY_HASH = hashlib.blake2b(digest_size=12)  # Copied for each fingerprint: that takes less than to make one.


# Bodies.


def body_bytes_max(operation: Operation, settings: Settings) -> int:
    """Return the body size limit of an operation: with room for its largest legal body, written in escapes."""
    if operation.body is None or operation.scope is None:
        # It is not read (some clients send one with everything), or before the sender is known.
        return min(SMALL_BODY_BYTES, settings.body_bytes_max)
    bytes_max = _CLAIM_FIELDS_BYTES + _TEXT_CHAR_BYTES * settings.metadata_chars_max
    if not {"any", "leases"}.isdisjoint(field_names(operation.body)):
        bytes_max += _NAME_BYTES * settings.names_per_call_max
    return min(bytes_max, settings.body_bytes_max)


class BodyReader:
    def __init__(self, body: type[Any], bytes_max: int, settings: Settings) -> None:
        self._bytes_max = bytes_max
        self._texts_max = _VALUES_SPARE + 2 * settings.names_per_call_max  # Strings, with the names of fields.
        self._decode = msgspec.json.Decoder(lenient(body) if settings.unknown_fields == "ignore" else body).decode
        self._fields = field_names(body)
        texts = sum(field.required and field.type is str for field in msgspec.structs.fields(body))
        self._quotes_of_each_once = _QUOTES_OF_TEXT * texts + _QUOTES_OF_ONE_KEY
        """With so many quotes no field is there twice: texts that must be there have four each, one more field two."""

    def read(self, request: Request) -> Any:  # noqa: ANN401 - the type it was made for
        body = request.body
        if len(body) > self._bytes_max:
            raise too_large(self._bytes_max)
        content_type = request.content_type
        if content_type != _JSON:
            _check_content_type(content_type)
        try:
            if len(body) > SMALL_BODY_BYTES:
                self._check_large(body)
            elif body.count(b'"') > self._quotes_of_each_once:
                _check_duplicates(body, _pieces_of(body))
            return self._decode(body)
        except msgspec.ValidationError as error:
            text = str(error)  # Broken JSON, or a field that is there twice, comes before types.
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Problem("invalid_input", f"The body is not JSON: {error}") from None
        try:
            if body.count(b'"') <= self._quotes_of_each_once:
                _check_duplicates(
                    body, _pieces_of(body)
                )  # Not searched yet: texts that must be there have as many quotes.
            body.decode()
            _ANY_JSON.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Problem("invalid_input", f"The body is not JSON: {error}") from None
        raise self._explain(text)

    def _check_large(self, body: bytes) -> None:
        pieces = _pieces_of(body, 2 * self._texts_max + 1)
        between = b"".join(pieces[::2])
        separators = sum(between.count(separator) for separator in _SEPARATORS)
        if len(pieces) > 2 * self._texts_max + 1 or separators > 2 * self._texts_max + len(_SEPARATORS):
            text = f"The body has more values than this request can have: at most {self._texts_max} texts."
            raise Problem("invalid_input", text, status=422)
        _check_duplicates(body, pieces)

    def _explain(self, text: str) -> Problem:
        unknown = _UNKNOWN_FIELD.search(text)
        if unknown is None:
            return Problem("invalid_input", f"{text}. See /docs for the fields.", status=422)
        field = unknown.group(1)
        near = difflib.get_close_matches(field[:SHOWN_CHARS], self._fields, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(self._fields)}."
        return Problem("invalid_input", f"Unknown field {shown(field)}: {hint}", status=422)


def _pieces_of(body: bytes, splits_max: int = -1) -> list[bytes]:
    """Split JSON at its quotes, without escaped ones: texts alternate with what is between them."""
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"") if _BACKSLASH in body else body
    return plain.split(b'"', splits_max)


def _check_duplicates(body: bytes, pieces: list[bytes]) -> None:
    """Refuse a field that is there twice. Only a body where one may be is parsed slowly."""
    texts = pieces[1::2]
    if len(set(texts)) == len(texts) and _BACKSLASH not in body:
        return
    keys = [text for text, after in zip(texts, pieces[2::2], strict=False) if after.lstrip()[:1] == b":"]
    if len(set(keys)) < len(keys) or any(_BACKSLASH in key for key in keys):
        try:
            loads(body, str)  # Numbers stay texts: finding the value of a long one takes long.
        except ValueError as error:
            raise msgspec.DecodeError(str(error)) from None


def loads(body: bytes, number: Callable[[str], Any] | None = None) -> Any:  # noqa: ANN401 - as `json.loads`
    """Parse JSON in which no field is there twice; `number` makes a value of a number. Raises `ValueError`."""
    try:
        return json.loads(
            body.decode(), object_pairs_hook=_pairs, parse_constant=_no_constant, parse_int=number, parse_float=number
        )
    except RecursionError as error:
        raise ValueError(str(error)) from None


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the field {shown(name)} stands twice")
        found[name] = value
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _check_content_type(content_type: bytes | None) -> None:
    kind = (content_type or b"").split(b";", 1)[0].strip().lower()
    if kind != _JSON and not (kind.startswith(b"application/") and kind.endswith(b"+json")):
        raise Problem("invalid_input", "Send the body as Content-Type: application/json.", status=415)


def shown(text: str) -> str:
    return repr(text) if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]!r}…"


# Paths, queries, keys.


def too_long(part: str) -> Problem:
    return Problem("invalid_input", f"The {part} of a request has at most {TARGET_BYTES_MAX} bytes.", status=431)


def read_segment(segment: bytes) -> str:
    if len(segment) > TARGET_BYTES_MAX:
        raise too_long("path")
    try:
        return (unquote_to_bytes(segment) if _PERCENT in segment else segment).decode()
    except UnicodeDecodeError:
        raise Problem("invalid_input", "The path is not UTF-8: percent-encode the bytes of UTF-8.") from None


def read_uuid_segment(segment: bytes) -> str:
    text = read_segment(segment)
    return text if _UUID.fullmatch(text) else read_uuid(text, "The id in the path", status=400)


def read_uuid(text: str, field: str, *, status: int = 422) -> str:
    if _UUID.fullmatch(text):
        return text
    try:
        return str(UUID(text))
    except ValueError:
        raise Problem("invalid_input", f"{field} is not a UUID.", status=status) from None


def read_query(query: bytes, known: frozenset[str]) -> dict[str, Any]:
    """Return the query's fields; each must be known and may be there once, but for `label`: that is a set of pairs."""
    if not query:
        return {}
    if len(query) > TARGET_BYTES_MAX:
        raise too_long("query")
    try:
        pairs = parse_qsl(
            query.decode(),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=QUERY_FIELDS_MAX,
        )
    except ValueError:
        raise Problem("invalid_input", "The query is malformed.") from None
    fields: dict[str, Any] = {}
    labels = set()
    for field, text in pairs:
        if field not in known:
            raise Problem("invalid_input", f"Unknown query field {shown(field)}: known are {', '.join(sorted(known))}.")
        if field == LABEL:
            labels.add(_read_label(text))
        elif field in fields:
            raise Problem("invalid_input", "A field stands twice in the query.")
        else:
            fields[field] = text
    if labels:
        fields[LABEL] = frozenset(labels)
    return fields


def _read_label(text: str) -> tuple[str, str]:
    key, colon, value = text.partition(":")
    if not colon:
        raise Problem("invalid_input", f"The label {shown(text)} has no value: write it as key:value.")
    return key, value


def read_key(request: Request) -> str | None:
    if request.key is None:
        return None
    text = request.key.decode("latin-1").strip()
    if not 0 < len(text) <= KEY_CHARS_MAX or not text.isascii() or not text.isprintable():
        raise Problem("invalid_input", f"Idempotency-Key has 1 to {KEY_CHARS_MAX} printable ASCII characters.")
    return text


# All parts of a request.


def reader_for(api: ApiService, operation: Operation) -> Reader:
    if operation.reader is not None:
        return operation.reader(api, operation)
    return token_reader(api, operation) if operation.scope is not None else anonymous_reader(api, operation)


def anonymous_reader(api: ApiService, operation: Operation) -> Reader:
    def read(request: Request, _segment: bytes, reply: Reply) -> RequestContext:
        return RequestContext(operation.refusal, request, reply, "", None, None, ANONYMOUS, api)

    return read


def token_reader(api: ApiService, operation: Operation) -> Reader:
    read_item = _item_reader(operation.path)
    is_name = operation.path.startswith("/locks/{name}")
    read_fields = _query_reader(operation)
    no_fields = read_fields(b"")
    read_body = _body_reader(api, operation)
    check_body, check_session, key_and_content = operation.check_body, operation.check_session, _key_reader(operation)
    scope, own_scope, refusal = operation.scope or "", operation.own_scope, operation.refusal
    admit, check_name = api.admit, api.name_for

    def read(request: Request, segment: bytes, reply: Reply) -> RequestContext:
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
        if caller is None:
            caller = admit(request, scope, own_scope)
        context = RequestContext(refusal, request, reply, item, query, body, caller, api, key, fingerprint)
        if caller.session is not None and check_session is not None:
            check_session(context)
        if is_name:
            check_name(item, caller, body)
        return context

    return read


def _item_reader(path: str) -> Callable[[bytes], str]:
    if "{id}" in path:
        return read_uuid_segment
    return read_segment if "{name}" in path else lambda _segment: ""


def _query_reader(operation: Operation) -> Callable[[bytes], Any]:
    known, parse = frozenset(operation.query), operation.read_query
    if operation.ignores_query or parse is None:
        return lambda query: None if operation.ignores_query else read_query(query, known)
    return lambda query: parse(read_query(query, known))


def _body_reader(api: ApiService, operation: Operation) -> Callable[[Request], Any] | None:
    if operation.body is None:
        return None
    read = BodyReader(operation.body, body_bytes_max(operation, api.settings), api.settings).read
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
    key = read_key(request)
    return None if key is None else key_in_scope(key, request.authorization)


def _content_reader(body: type[Any] | None) -> Callable[[Any], object]:
    """Return what a retry must not change in a body (C5): all but wait and ticket; labels have no order."""
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
    """Return what a key stands for (C5). A session is part of it, or two runs with one key would own a name (S3)."""
    written = encode((request.method, item, content))
    authorization = request.authorization
    if authorization is not None and authorization.startswith(_BEARER_OF_SESSION):
        written += authorization[len(_BEARER_OF_SESSION) :].partition(b"_")[0]
    hasher = _EMPTY_HASH.copy()
    hasher.update(written)
    return hasher.hexdigest()
