"""Sign-in to the operators' page with an access token, and sign-out.

    GET any page        without a token or a cookie: the sign-in page in its place, rendered once
    POST /ui/sign-in    the token, in a form: a cookie and a redirect (303), or the sign-in page with the reason
    POST /ui/sign-out   deletes the cookie
    GET /ui/here        who is signed in, for scripts; renews the cookie

The token is only in the body of that one request, never in an address, a page, a log or browser storage. A wrong one
counts by address, as everywhere (`access.refusals`).

**Links from other sites.** A browser does not send a `Strict` cookie with a link opened from a chat. The sign-in page
therefore asks `/ui/here` first: that request has the cookie. If it is good, the page is loaded again.

**Login forgery.** Another site must not sign a reader in with its own token, so the form is accepted only from our
pages. The sign-in page sends its origin (`Referrer-Policy: same-origin`), because over plain http browsers send nothing
else that tells it. All other pages send no referrer.
"""

from __future__ import annotations

import re
from functools import cache
from html import escape
from typing import TYPE_CHECKING

from holdfast.api.auth import secrets
from holdfast.api.auth.auth import in_order
from holdfast.api.auth.secrets import CLAIM_PREFIX, SESSION_PREFIX
from holdfast.api.context import ANONYMOUS, RequestContext
from holdfast.api.rendering import encode
from holdfast.dashboard.site import HEADERS, environment, problem_page, read_form, redirect, renewal
from holdfast.http.messages import ResponseParts, clear_cookie, set_cookie
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from holdfast.api.operation import Handler
    from holdfast.api.service import ApiService
    from holdfast.core.state import State
    from holdfast.core.values import Instant
    from holdfast.http.messages import Request

SIGN_IN = b"/ui/sign-in"
NEXT_CHARS_MAX = 2_048  # After sign-in with a longer address, the list is shown.
# An address of one of our pages: no other host, no form, no script's request.
_NEXT = re.compile(r"/(?:\?[!-\[\]-~]*|ui/(?!sign-|here|static/)[!-\[\]-~]*)?")
_NOTE, _BACK = b"<!--note-->", b"<!--next-->"
_OK, _UNAUTHORISED = 200, 401
_FROM_PAGE = "Sign in at the page itself: this form came from elsewhere, or your browser does not say where from."
_OTHER_SECRET = "This is the secret of a session or of a claim. Sign in with an access token."  # noqa: S105 - a text


@cache
def _bytes() -> bytes:
    return environment().get_template("sign_in.html").render().encode()


def sign_in_page(status: int, note: str = "", back: str = "/") -> ResponseParts:
    body = _bytes()
    if note:
        body = body.replace(_NOTE, f'<p class="notice bad" role="alert">{escape(note)}</p>'.encode(), 1)
    if back != "/":
        body = body.replace(_BACK, f'<input type="hidden" name="next" value="{escape(back)}">'.encode(), 1)
    return status, body, (*HEADERS, (b"referrer-policy", b"same-origin"))


def sign_in_required(handler: Handler, status: int = _UNAUTHORISED) -> Handler:
    """Wrap a handler: unauthenticated callers get the sign-in page."""

    def answer(api: ApiService, context: RequestContext) -> None:
        if context.caller is ANONYMOUS:
            context.answer(sign_in_page(status, back=_return_path(context.request)))
        else:
            handler(api, context)

    return answer


def refusal(problem: Problem, request: Request) -> ResponseParts:
    """Render a problem as a page: for unauthenticated callers, the sign-in page."""
    if request.path == SIGN_IN and request.method == b"POST":
        status, body, fields = sign_in_page(problem.status, problem.details, _form_return_path(request))
        return status, body, (*fields, *problem.headers())
    if problem.status == _UNAUTHORISED:
        return sign_in_page(_UNAUTHORISED, problem.details, _return_path(request))
    return problem_page(problem, request)


def refusal_at_root(problem: Problem, request: Request) -> ResponseParts:
    """Render a problem at `/`, which is open to everybody: a missing token is not an error there."""
    if problem.status == _UNAUTHORISED:
        return sign_in_page(_OK, problem.details, _return_path(request))
    return refusal(problem, request)


def _return_path(request: Request) -> str:
    """Return the address to return to after sign-in."""
    query = b"?" + request.query if request.query else b""
    return _checked_path((request.path + query).decode("latin-1")) if request.method in {b"GET", b"HEAD"} else "/"


def _checked_path(back: str) -> str:
    return back if len(back) <= NEXT_CHARS_MAX and _NEXT.fullmatch(back) else "/"


def _form_return_path(request: Request) -> str:
    try:
        return _checked_path(read_form(request).get("next", "/"))
    except Problem:
        return "/"


def show(_api: ApiService, context: RequestContext) -> None:
    context.answer(redirect("/"))


def sign_in(api: ApiService, context: RequestContext) -> None:
    request = context.request
    if not api.origins.is_same_origin(request):
        raise Problem("forbidden", _FROM_PAGE)
    token = read_form(request).get("token", "").strip()
    if not token:
        raise Problem("invalid_input", "Enter an access token.")
    if token.startswith((SESSION_PREFIX, CLAIM_PREFIX)):
        raise Problem("forbidden", _OTHER_SECRET)
    back, is_https = _form_return_path(request), api.origins.is_https(request)
    # From here on the token is the credential, not the browser's earlier cookie.
    request.authorization = b"Bearer " + token.encode("latin-1", "replace")
    caller = api.admit(request, "read")

    def view(_state: State, now: Instant) -> ResponseParts:
        cookie = secrets.Cookie(caller.principal, now.wall_ms, now.wall_ms, is_https)
        value = secrets.sign(api.auth.key, cookie, caller.digest)
        return redirect(back, set_cookie(request.headers, value, secrets.LIFE_SECONDS, is_https=is_https))

    api.read(context, view)


def sign_out(api: ApiService, context: RequestContext) -> None:
    is_https = api.origins.is_https(context.request)
    api.read(context, lambda _state, _now: redirect("/", clear_cookie(context.request.headers, is_https=is_https)))


def here(api: ApiService, context: RequestContext) -> None:
    caller = context.caller
    if caller is ANONYMOUS:
        context.answer(_NOT_HERE)
        return

    def view(_state: State, now: Instant) -> ResponseParts:
        identity = {
            "signed_in": True,
            "principal": caller.principal,
            "scopes": in_order(caller.scopes),
            "prefix": caller.prefix,
            "server_ms": now.wall_ms,
        }
        return _OK, encode(identity), renewal(api, context, now.wall_ms)

    api.read(context, view)


def not_here(problem: Problem, request: Request) -> ResponseParts:
    if problem.status == _UNAUTHORISED:
        return _NOT_HERE
    return problem.status, problem.body(request.request_id), problem.headers()


_NOT_HERE: ResponseParts = (_OK, encode({"signed_in": False}), ())
