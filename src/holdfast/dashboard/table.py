"""The operations of the operators' page: one row for each address. They are not part of the API.

A page (`_view`) shows unauthenticated callers the sign-in page, and problems as pages. Requests of scripts (`_data`)
are answered and refused in JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.api.handlers import paging
from holdfast.api.operation import Handler, Operation
from holdfast.dashboard import admin, job, jobs, moment, sessions, signin, site, waits
from holdfast.dashboard.live_feed import Live
from holdfast.dashboard.site import page_reader
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from holdfast.api.context import RequestContext
    from holdfast.api.service import ApiService

_HTML = "text/html"


def _view(  # noqa: PLR0917 - a row
    method: str,
    path: str,
    handler: Handler,
    summary: str,
    scope: str | None = "read",
    status: int = 401,
    **more: Any,  # noqa: ANN401 - fields of a row
) -> Operation:
    """Return the row of a page, or of a form on one. `status` is that of the sign-in page in its place."""
    row: dict[str, Any] = {"replies": {200: _HTML}, "refusal": signin.refusal, "in_documents": False, **more}
    return Operation(
        method, path, signin.sign_in_required(handler, status), summary, scope=scope, reader=page_reader, **row
    )


def _data(path: str, handler: Handler, summary: str, media_type: str = "application/json", **more: Any) -> Operation:  # noqa: ANN401 - fields of a row
    return Operation("GET", path, handler, summary, scope="read", in_documents=False, replies={200: media_type}, **more)


def _nowhere(_api: ApiService, context: RequestContext) -> None:
    raise Problem("not_found", f"There is no page at {context.request.path.decode('latin-1')}.")


def _jobs(api: ApiService, context: RequestContext) -> None:
    (moment.show if context.query.get("at") else jobs.show)(api, context)


JOBS = _view(
    "GET",
    "/",
    _jobs,
    "The operators' page: jobs, live. Without a token: the way to sign in, and a link to /docs",
    scope=None,
    status=200,
    refusal=signin.refusal_at_root,
    query={
        "q": "Which jobs: `prefix:`, `owner:`, `label:key:value`, and words.",
        "sort": "`name`, `owner`, `held`, `heartbeat`, `time_left` or `queue`; reversed with `-` before it.",
        "at": "Who held what at this moment.",
        "record": "As of this record of that moment.",
        "after": "Only names after this one: the next page of a moment.",
    },
    in_documents=True,
)

_ROWS_QUERY = {"q": "Which jobs.", "after": "Only names after this one.", "limit": "At most so many, and about 1 MiB."}
_DONE: dict[str, Any] = {"replies": {303: None}}

PAGES: tuple[Operation, ...] = (
    _view("GET", "/ui/{path}", _nowhere, "Every other address below it"),
    _view("GET", "/ui/metrics", admin.metrics, "What the server has measured of itself", query=admin.METRICS_QUERY),
    _data("/ui/metrics/drawn", admin.chart_set, "The same, as its script takes it", query=admin.METRICS_QUERY),
    _data("/ui/here", signin.here, "Who is signed in", reader=page_reader, refusal=signin.not_here),
    _data("/ui/live", Live, "The rows of the list that changed", "text/event-stream", is_stream=True),
    _data(
        "/ui/marks",
        moment.markers,
        "Where things ended badly, newest first, and how far back the history reaches",
        query={"before": "Only records before this number."},
    ),
    _data(
        "/ui/rows",
        jobs.rows,
        "Rows of the list, in the order of their names",
        query=_ROWS_QUERY,
        read_query=paging.read_limit,
    ),
    _view("GET", "/ui/sign-in", signin.show, "The field for a token", status=200),
    Operation("POST", "/ui/sign-in", signin.sign_in, "Sign in", refusal=signin.refusal, in_documents=False, **_DONE),
    _view("POST", "/ui/sign-out", signin.sign_out, "Sign out", **_DONE),
    _view("GET", "/ui/jobs", job.by_query, "A job, by its name", query=job.QUERY),
    _view("GET", "/ui/jobs/{name}", job.show, "One job", query=job.QUERY),
    _view("POST", "/ui/jobs/{name}/reopen", job.reopen, "Reopen a job", scope="admin", **_DONE),
    _view("POST", "/ui/jobs/{name}/revoke", job.revoke, "End a lease", scope="admin", **_DONE),
    _view("POST", "/ui/jobs/{name}/transfer", job.transfer, "Hand a claim over", scope="admin", **_DONE),
    _view("GET", "/ui/nodes", admin.nodes, "Who leads, who follows"),
    _view("GET", "/ui/sessions", sessions.sessions, "Sessions", query=sessions.LIST_QUERY),
    _view("GET", "/ui/sessions/{id}", sessions.session, "One session", query=sessions.ONE_QUERY),
    _view("GET", "/ui/tokens", admin.tokens, "Access tokens", scope="admin", query=admin.TOKENS_QUERY),
    _view("POST", "/ui/tokens/{name}/revoke", admin.revoke_token, "Revoke one", scope="admin", **_DONE),
    _view("GET", "/ui/waits", waits.waits, "Who waits for whom"),
    Operation(
        "GET",
        "/ui/static/{file}",
        site.static,
        "What pages load",
        is_local=True,
        in_documents=False,
        replies={200: "text/css"},
    ),
)
