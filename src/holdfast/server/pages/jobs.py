"""The list of jobs: rows as JSON for the page's modules (`GET /ui/rows`), and as a page that works without them.

The page at `/` is made on the server: the first rows that fit the search, in order, with a form and links that need
no script. Where there is script, `static/jobs.js` loads all rows through `/ui/rows`, listens to `/ui/live`, and draws
those in view. The address means the same to both: `q` is the search, `sort` the order.

A name is found by its place in the order. Anything else has to be looked at, name by name. Then a request looks at
`LOOKED_AT_MAX` names at most, and says so if there are more.
"""

from __future__ import annotations

import re
import shlex
from functools import partial
from heapq import nsmallest
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec

from holdfast.core.values import Moment
from holdfast.server.handlers import paging
from holdfast.server.pages import site
from holdfast.server.pages.rows import row_of, sign_of
from holdfast.server.pages.search import name_in, read_search, read_sort, sort_key
from holdfast.server.render import encode
from holdfast.server.streams.board import Totals, totals_of

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.server.access.auth import Caller
    from holdfast.server.api import Api
    from holdfast.server.operations.call import Call
    from holdfast.server.pages.rows import Row
    from holdfast.server.pages.search import Search
    from holdfast.server.render import Answered

LOOKED_AT_MAX = 10_000
SLICE_ROWS = 50
"""How many names are shown before others have their turn: about a millisecond."""
PAGE_ROWS = 50
"""On a page that is made on the server."""
PAGES_MAX = LOOKED_AT_MAX // PAGE_ROWS
FIRST_JOB = "my-first-job"
_OK = 200
_HOST = re.compile(rb"[A-Za-z0-9.:\[\]-]{1,255}")
"""What may stand in a command that somebody copies."""


class RowsReply(msgspec.Struct, omit_defaults=True):
    """A page of rows, in the order of their names."""

    seq: int
    """The state is at least this new: what the stream tells of a later one is newer."""
    now: int
    rows: list[Any]
    total: int
    """How many jobs there are that the caller may see, whether they fit the search or not."""
    next_after: str | None = None
    totals: Totals | None = None


class Span:
    """What a caller may see of what it looks for: the prefix to walk, and whether there can be anything."""

    def __init__(self, caller: Caller, search: Search) -> None:
        self.own = caller.prefix or ""
        self.prefix = max(self.own, search.prefix, key=len)
        meets = self.own.startswith(search.prefix) or search.prefix.startswith(self.own)
        self.is_outside = search.outside or not meets
        """Whether all that is looked for lies outside of what the caller may see."""


class Walk:
    """A look at names in their order, a slice at a time. Names lead on, so it does not matter what comes and goes."""

    def __init__(self, span: Span, search: Search, after: str = "") -> None:
        self.span = span
        self.search = search
        self.reached = after
        """The last name that was looked at."""
        self.looked_at = 0
        self.seq = self.total = 0
        self.now = Moment(0, 0)
        self.totals: Totals | None = None

    def begin(self, state: State, now: Moment) -> None:
        """Note as of when it begins."""
        if not self.seq:
            self.seq, self.total = state.seq, state.index.held.count(self.span.own)
            self.totals = None if self.span.own else totals_of(state)
        self.now = now

    def next_rows(self, state: State, now: Moment) -> list[tuple[str, Row | None]]:
        """Return the next names, each with its row if it fits. An empty list: there are no more."""
        if self.span.is_outside:
            return []
        found: list[tuple[str, Row | None]] = []
        for name in state.index.held.walk(self.span.prefix, self.reached):
            lease = state.lease_of(name)
            row = None if lease is None else row_of(name, lease, state, now)
            found.append((name, row if row is not None and self.search.fits(row) else None))
            if len(found) >= SLICE_ROWS:
                break
        return found

    def pass_by(self, name: str) -> None:
        """Note that a name was looked at."""
        self.reached = name
        self.looked_at += 1


# Rows as JSON.


def rows(api: Api, call: Call) -> None:
    """GET /ui/rows."""
    search = read_search(call.query.get("q", ""))
    pages = RowPages(Walk(Span(call.caller, search), search, call.query.get("after", "")), int(call.query["limit"]))

    async def look() -> Answered:
        await paging.put_in_order(api.engine)
        await paging.in_slices(api.engine, pages.take_slice)
        return _OK, encode(pages.reply()), ()

    api.answer_later(call, look)


class RowPages:
    """One page of rows as JSON, while it is made."""

    def __init__(self, walk: Walk, limit: int) -> None:
        self._walk = walk
        self._page = paging.Page(limit)
        self._is_cut = False

    def take_slice(self, state: State, now: Moment) -> bool:
        """Look at some names, and tell whether the page is done."""
        walk, page = self._walk, self._page
        walk.begin(state, now)
        found = walk.next_rows(state, now)
        for name, row in found:
            if (row is not None and page.is_full) or walk.looked_at >= LOOKED_AT_MAX:
                self._is_cut = True
                return True
            if row is not None:
                page.add(row)
            walk.pass_by(name)
        return len(found) < SLICE_ROWS

    def reply(self) -> RowsReply:
        """Return the page."""
        walk = self._walk
        next_after = walk.reached if self._is_cut else None
        return RowsReply(walk.seq, walk.now.wall_ms, self._page.items, walk.total, next_after, walk.totals)


# Rows for a page that is made here.


class FirstRows:
    """The rows of one page in a wanted order: of those that fit, the first after some that are passed over."""

    def __init__(self, walk: Walk, sort: str, number: int) -> None:
        """`number` is which page it is, from 1 on; by name it is the first, after the name where the walk begins."""
        kind, self._is_reversed = read_sort(sort)
        self.sort = f"-{kind}" if self._is_reversed else kind
        self.is_by_name = kind == "name" and not self._is_reversed
        self.walk = walk
        self._key = sort_key(kind)
        self._skipped = 0 if self.is_by_name else PAGE_ROWS * (number - 1)
        self._kept: list[Row] = []
        self.fitting = 0
        """How many fit, of those that were looked at."""
        self.is_cut = False
        """Whether there were more names than are looked at; or, by name, whether there is another page."""

    def take_slice(self, state: State, now: Moment) -> bool:
        """Look at some names, and tell whether the page is done."""
        walk = self.walk
        walk.begin(state, now)
        found = walk.next_rows(state, now)
        for name, row in found:
            is_full = self.is_by_name and row is not None and len(self._kept) >= PAGE_ROWS
            if is_full or walk.looked_at >= LOOKED_AT_MAX:
                self.is_cut = True
                return True
            if row is not None:
                self._kept.append(row)
                self.fitting += 1
            walk.pass_by(name)
        if not self.is_by_name and len(self._kept) > 2 * self._wanted:
            self._kept = self._first()
        return len(found) < SLICE_ROWS

    @property
    def _wanted(self) -> int:
        return self._skipped + PAGE_ROWS

    def _first(self) -> list[Row]:
        if self._is_reversed:
            return sorted(self._kept, key=self._key, reverse=True)[: self._wanted]
        return nsmallest(self._wanted, self._kept, key=self._key)

    @property
    def rows(self) -> list[Row]:
        """The rows of the page."""
        return self._kept if self.is_by_name else self._first()[self._skipped :]

    @property
    def has_next(self) -> bool:
        """Whether another page has more."""
        return self.is_cut if self.is_by_name else self.fitting > self._wanted


def show(api: Api, call: Call) -> None:
    """GET /: the list, or how it was at a moment."""
    text, sort = call.query.get("q", "").strip(), call.query.get("sort", "name")
    search = read_search(text)
    span = Span(call.caller, search)
    number = _page_number(call.query.get("page", ""))
    first = FirstRows(Walk(span, search, call.query.get("after", "") if number == 1 else ""), sort, number)

    async def look() -> Answered:
        await paging.put_in_order(api.engine)
        await paging.in_slices(api.engine, first.take_slice)
        return _page(api, call, first, text, number)

    api.answer_later(call, look)


def _page(api: Api, call: Call, first: FirstRows, text: str, number: int) -> Answered:
    walk, sort = first.walk, first.sort
    address = partial(list_address, q=text)
    after = call.query.get("after", "")
    is_first = number == 1 and not (first.is_by_name and after)
    following = {"after": walk.reached} if first.is_by_name else {"page": number + 1}
    return site.page(
        api,
        call,
        walk.now,
        "jobs.html",
        "jobs",
        rows=first.rows,
        q=text,
        sort=sort,
        total=walk.total,
        looked_at=walk.looked_at,
        fitting=None if first.is_cut or not is_first else first.fitting,
        is_cut=first.is_cut and not first.is_by_name,
        is_outside=walk.span.is_outside and bool(walk.span.own),
        before="" if is_first else address(sort=sort),
        next=address(sort=sort, **following) if first.has_next else "",
        address=address,
        sign_of=sign_of,
        origin=_origin(api, call),
        named=name_in(text),
        first_job=shlex.quote(walk.span.own + FIRST_JOB),
    )


def _page_number(text: str) -> int:
    return min(int(text), PAGES_MAX) if re.fullmatch(r"[1-9][0-9]{0,3}", text) else 1


def list_address(*, q: str, sort: str, **more: object) -> str:
    """Return the address of the list with this search and order."""
    fields = {"q": q, "sort": "" if sort == "name" else sort, **more}
    query = urlencode({key: value for key, value in fields.items() if value})
    return f"/?{query}" if query else "/"


def _origin(api: Api, call: Call) -> str:
    """Return the address of this server as its reader sees it, for a command."""
    if api.settings.public_url:
        return api.settings.public_url.rstrip("/")
    host = call.request.host or b""
    scheme = "https" if api.origins.is_safe(call.request) else "http"
    return f"{scheme}://{host.decode()}" if _HOST.fullmatch(host) else f"{scheme}://127.0.0.1:7420"
