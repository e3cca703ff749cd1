"""The list of jobs: the page at `/`, which `static/jobs.js` fills, and `GET /ui/rows`, its rows as JSON.

The script loads the rows, listens to `/ui/live`, searches and sorts. The server searches only among very many jobs, at
most `SCANNED_NAMES_MAX` names per request; prefixes use the order of names.

    prefix:github://acme     names that start so
    owner:agent-3            owners that start so, in upper or lower case
    label:team:web           jobs with this label; label:team is any value of it
    anything else            is in the name, the owner, the note, a label or the metadata, in upper or lower case

All terms must match. A value with blanks is quoted: owner:"build bot". Every text is a valid search.
`static/search.js` parses it the same way; a test compares the two.
"""

from __future__ import annotations

import re
import shlex
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.api.handlers import paging
from holdfast.api.rendering import encode
from holdfast.dashboard import site
from holdfast.dashboard.rows import JobRow, Totals, row_of, totals_of
from holdfast.http.messages import ResponseParts

if TYPE_CHECKING:
    from holdfast.api.auth.auth import Caller
    from holdfast.api.context import RequestContext
    from holdfast.api.service import ApiService
    from holdfast.core.state import State
    from holdfast.core.values import Instant

SCANNED_NAMES_MAX = 10_000
SLICE_ROWS = 50  # About a millisecond, then other requests are served.
SEARCH_CHARS_MAX = 512
TERMS_MAX = 16
FIRST_JOB = "my-first-job"
_HOST = re.compile(rb"[A-Za-z0-9.:\[\]-]{1,255}")
_TERM = re.compile(r'(?:(prefix|owner|label):)?(?:"([^"]*)"?|(\S+))')
_UNFINISHED = frozenset({"prefix:", "owner:", "label:"})  # Terms whose value is still being typed.


class Search(msgspec.Struct, frozen=True):
    prefixes: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    labels: tuple[tuple[str, str | None], ...] = ()
    words: tuple[str, ...] = ()

    @property
    def is_prefix_only(self) -> bool:
        return not (self.owners or self.labels or self.words)

    def matches(self, row: JobRow) -> bool:
        owner, text = row.owner.lower(), _text_of(row) if self.words else ""
        return (
            all(map(row.name.startswith, self.prefixes))
            and all(map(owner.startswith, self.owners))
            and all(key in row.labels and value in {None, row.labels[key]} for key, value in self.labels)
            and all(word in text for word in self.words)
        )


def _text_of(row: JobRow) -> str:
    """Return everything that words are searched in. Line breaks keep a word from matching across two parts."""
    labels = (f"{key}:{value}" for key, value in row.labels.items())
    fields = (f"{key}={value}" for key, value in row.fields)
    return "\n".join((row.name, row.owner, row.note, *labels, *fields)).lower()


def read_search(text: str) -> Search:
    found: dict[str | None, list[str]] = {"prefix": [], "owner": [], "label": [], None: []}
    for term in islice(_TERM.finditer(text[:SEARCH_CHARS_MAX]), TERMS_MAX):
        kind, value = term[1], term[2] if term[2] is not None else term[3] or ""
        if value and (kind is not None or value not in _UNFINISHED):
            found[kind].append(value)
    parts = (label.partition(":") for label in found["label"])
    labels = tuple((key, value if colon else None) for key, colon, value in parts)
    owners, words = (tuple(map(str.lower, found[kind])) for kind in ("owner", None))
    return Search(tuple(found["prefix"]), owners, labels, words)


def prefix_for(caller: Caller, search: Search) -> str | None:
    """Return the prefix to walk; None if nothing that the caller may see matches."""
    prefixes = (caller.prefix or "", *search.prefixes)
    longest = max(prefixes, key=len)
    return longest if all(map(longest.startswith, prefixes)) else None


class RowsReply(msgspec.Struct, omit_defaults=True):
    seq: int  # Stream frames with a greater one are newer than these rows.
    now: int
    rows: list[Any]
    total: int  # All jobs that the caller may see, matching or not.
    next_after: str | None = None
    totals: Totals | None = None


def rows(api: ApiService, context: RequestContext) -> None:
    """GET /ui/rows, a slice at a time. A page continues after a name, so jobs may come and go meanwhile."""
    query, own = context.query, context.caller.prefix or ""
    search = read_search(query.get("q", ""))
    prefix, page = prefix_for(context.caller, search), paging.Page(int(query["limit"]))
    reply = RowsReply(0, 0, page.items, 0)
    reached, scanned = query.get("after", ""), 0

    def take_slice(state: State, now: Instant) -> bool:
        nonlocal reached, scanned
        if not reply.now:
            reply.seq, reply.total = state.seq, state.index.held.count(own)
            reply.totals = None if own else totals_of(state)
        reply.now = now.wall_ms
        ends_at = scanned + SLICE_ROWS
        for name in () if prefix is None else state.index.held.walk(prefix, reached):
            lease = state.lease_of(name)
            row = None if lease is None else row_of(name, lease, state, now)
            matches = row is not None and search.matches(row)
            if (matches and page.is_full) or scanned >= SCANNED_NAMES_MAX:
                reply.next_after = reached
                return True
            if matches:
                page.add(row)
            reached = name
            scanned += 1
            if scanned >= ends_at:
                return False
        return True

    async def respond() -> ResponseParts:
        await paging.sort_held_names(api.engine)
        await paging.in_slices(api.engine, take_slice)
        return 200, encode(reply), ()

    api.answer_slowly(context, respond)


def show(api: ApiService, context: RequestContext) -> None:
    query = context.query
    first_job = shlex.quote((context.caller.prefix or "") + FIRST_JOB)

    async def respond() -> ResponseParts:
        now: Instant = await api.engine.query(lambda _state, now: now)
        q, sort, origin = query.get("q", "").strip(), query.get("sort", ""), _origin(api, context)
        return await site.page(
            api, context, now, "jobs.html", "jobs", q=q, sort=sort, origin=origin, first_job=first_job
        )

    api.answer_slowly(context, respond)


def _origin(api: ApiService, context: RequestContext) -> str:
    if api.settings.public_url:
        return api.settings.public_url.rstrip("/")
    host = context.request.host or b""
    scheme = "https" if api.origins.is_https(context.request) else "http"
    return f"{scheme}://{host.decode()}" if _HOST.fullmatch(host) else f"{scheme}://127.0.0.1:7420"
