"""Shared by all pages: templates, headers, requests and static files.

    handler ──► await page(api, context, now, "view.html", …) ──► status, bytes, headers
    problem ──► problem_page(problem, request)             ──► the same, for a reader who was refused

Templates escape all values (autoescape), and an undefined name is an error. `POLICY` forbids inline scripts and styles,
and, in browsers that support trusted types, HTML made from text by scripts.

Static files are served from one folder named by the hash of all of them. So browsers cache them for ever, modules
import each other by plain names, and a page never gets those of another version.
"""

from __future__ import annotations

import asyncio
import hashlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote

import jinja2
import msgspec

from holdfast import __version__
from holdfast.api.auth import secrets
from holdfast.api.auth.auth import in_order
from holdfast.api.auth.origins import fields_of, is_form
from holdfast.api.context import ANONYMOUS, Reply, RequestContext
from holdfast.api.decoding import QUERY_FIELDS_MAX, TARGET_BYTES_MAX, read_segment, read_uuid_segment, too_long
from holdfast.api.rendering import rfc3339
from holdfast.dashboard.history import BADLY, owner_of
from holdfast.dashboard.rows import fields_of as metadata_fields
from holdfast.dashboard.rows import label_term, liveness_of, name_parts, span_text, time_left_text
from holdfast.http.messages import ResponseParts, envelope, set_cookie
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from holdfast.api.operation import Operation, Reader
    from holdfast.api.service import ApiService
    from holdfast.core.values import Instant
    from holdfast.http.messages import Request

Fields = tuple[tuple[bytes, bytes], ...]

STATIC = b"/ui/static/"
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; worker-src 'self';"
    b" form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script';"
    b" trusted-types holdfast"
)
HEADERS: Fields = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", POLICY),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)  # Every answer also has `x-content-type-options` and `cache-control: no-store`.
NO_REFERRER = (b"referrer-policy", b"no-referrer")
_CACHED_FOREVER = (b"cache-control", b"public, max-age=31536000, immutable")
_TYPES = {".css": b"text/css; charset=utf-8", ".js": b"text/javascript; charset=utf-8", ".svg": b"image/svg+xml"}
SLICE_PIECES = 300  # Of a page: about a millisecond, then other requests are served.
_OK = 200


class Me(msgspec.Struct, frozen=True):
    name: str
    scopes: list[str]
    prefix: str | None
    form_token: str

    def may(self, scope: str) -> bool:
        return scope in self.scopes


async def page(  # noqa: PLR0917 - what every page has, in the order in which it is known
    api: ApiService,
    context: RequestContext,
    now: Instant,
    template: str,
    view: str = "",
    status: int = _OK,
    **shown: object,
) -> ResponseParts:
    """Render a page for the caller, a slice at a time. `view` is marked in the head of the page.

    `seq` is the last record before the state was read: a live view loads again if the stream begins after it.
    """
    caller, cookie, state = context.caller, context.caller.cookie, api.engine.state
    form_token = "" if cookie is None else secrets.form_token(api.auth.key, cookie, caller.digest)
    known = {
        "me": Me(caller.principal, in_order(caller.scopes), caller.prefix, form_token),
        "view": view,
        "server_ms": now.wall_ms,
        "counts": {"jobs": len(state.index.held), "waits": len(state.tickets), "sessions": len(state.sessions)},
    }
    templates = await asyncio.to_thread(compiled)
    pieces: list[str] = []
    for piece in templates.get_template(template).generate(shown, **known):
        pieces.append(piece)
        if len(pieces) % SLICE_PIECES == 0:
            await asyncio.sleep(0)
    return status, "".join(pieces).encode(), (*HEADERS, NO_REFERRER, *renewal(api, context, now.wall_ms))


def renewal(api: ApiService, context: RequestContext, wall_ms: int) -> Fields:
    """Return the headers that renew the caller's cookie, if it is due."""
    cookie = context.caller.cookie
    if cookie is None or not cookie.needs_renewal(wall_ms):
        return ()
    renewed = cookie.renewed(wall_ms)
    value = secrets.sign(api.auth.key, renewed, context.caller.digest)
    return (set_cookie(context.request.headers, value, secrets.LIFE_SECONDS, is_https=renewed.is_https),)


def problem_page(problem: Problem, request: Request) -> ResponseParts:
    """Render a refusal as a page, from the problem alone: any node can do it."""
    if problem.code == "misdirected":  # Under a host name that is not ours there is no page of ours.
        return envelope(problem, request)
    text = environment().get_template("problem.html").render(problem=problem, request_id=request.request_id)
    return problem.status, text.encode(), (*HEADERS, NO_REFERRER, *problem.headers())


def redirect(to: str, *fields: tuple[bytes, bytes]) -> ResponseParts:
    return 303, b"", (*HEADERS, NO_REFERRER, (b"location", to.encode("ascii")), *fields)


def path_of(name: str) -> str:
    """Return the address of a job's page. A name is one percent-encoded segment."""
    if name == ".":  # Browsers take it for this folder, also percent-encoded.
        return "/ui/jobs?name=."
    return f"/ui/jobs/{quote(name, safe='')}"


@cache
def environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("holdfast.dashboard"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {
        "BADLY": BADLY,
        "fields_of": metadata_fields,
        "label_term": label_term,
        "name_parts": name_parts,
        "owner_of": owner_of,
        "path_of": path_of,
        "liveness_of": liveness_of,
        "static": static_path,
        "version": __version__,
    }
    made.filters |= {"rfc3339": rfc3339, "span": span_text, "time_left": time_left_text}
    return made


@cache
def compiled() -> jinja2.Environment:
    """Return the environment with all templates compiled. The first call takes 0.16 s: never on the event loop."""
    for name in environment().list_templates():
        environment().get_template(name)
    return environment()


# Requests for pages become contexts: caller → scope → name → query → form. Of unauthenticated requests nothing is read:
# their caller is `ANONYMOUS`, and `signin.inside` answers with the sign-in page, which reads no state.
# Unlike the API, a page ignores unknown fields of a query: services that pass a link on may add some.


def page_reader(api: ApiService, operation: Operation) -> Reader:
    scope, refusal = operation.scope or "read", operation.refusal
    read_item = read_uuid_segment if "{id}" in operation.path else read_segment
    is_name, takes_form = operation.path.startswith("/ui/jobs/{name}"), operation.method == "POST"
    known = frozenset(operation.query)

    def read(request: Request, segment: bytes, reply: Reply) -> RequestContext:
        if request.authorization is None:
            return RequestContext(refusal, request, reply, "", {}, {}, ANONYMOUS, api)
        caller = api.admit(request, scope)
        item = read_item(segment)
        if is_name:
            api.name_for(item, caller)
        form = read_form(request) if takes_form else {}
        return RequestContext(refusal, request, reply, item, _read_query(request.query, known), form, caller, api)

    return read


def _read_query(query: bytes, known: frozenset[str]) -> dict[str, str]:
    """Return the known fields; of repeated ones the first."""
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
    """Return the fields of a form, of repeated ones the first, with plain line feeds."""
    if not is_form(request):
        raise Problem("invalid_input", "Send the fields as a form does.", status=415)
    return {field: value.replace("\r\n", "\n") for field, value in reversed(fields_of(request))}


class Files(msgspec.Struct, frozen=True):
    version: str
    by_name: dict[str, tuple[bytes, bytes]]


@cache
def static_files() -> Files:
    by_name: dict[str, tuple[bytes, bytes]] = {}
    hasher = hashlib.blake2b(digest_size=10)
    for file in sorted(files(__package__).joinpath("static").iterdir(), key=lambda file: file.name):
        media_type = _TYPES.get("." + file.name.rpartition(".")[2])
        if media_type is not None:
            content = file.read_bytes()
            by_name[file.name] = media_type, content
            hasher.update(b"%b %d " % (file.name.encode(), len(content)) + content)
    return Files(hasher.hexdigest(), by_name)


def static_path(name: str) -> str:
    known = static_files()
    if name not in known.by_name:
        raise KeyError(name)
    return f"{STATIC.decode()}{known.version}/{name}"


def static(_api: ApiService, context: RequestContext) -> None:
    """GET /ui/static/{version}/{file}, for anyone. During upgrades, another node's version is not cached."""
    version, _, name = context.request.path.removeprefix(STATIC).decode("latin-1").partition("/")
    known = static_files()
    if name not in known.by_name:
        context.answer(envelope(Problem("not_found", "There is no such file."), context.request))
        return
    media_type, content = known.by_name[name]
    caching = (_CACHED_FOREVER,) if version == known.version else ()
    context.answer(
        (_OK, content, ((b"content-type", media_type), (b"cross-origin-resource-policy", b"same-origin"), *caching))
    )
