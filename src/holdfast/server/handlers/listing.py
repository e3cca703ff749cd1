"""GET /locks: the held names in order, in pages. Those of a moment that is over are in `handlers/history.py`.

A name is found by its place in the order. An owner or a label is not: each name is looked at, and a request looks at
`LOOKED_AT_MAX` at most. Then it answers with what it found and where to go on, even if it found nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import Any

from holdfast.core.state import State
from holdfast.core.values import Lease, Moment, has_labels
from holdfast.server import render
from holdfast.server.access.auth import Caller
from holdfast.server.access.secrets import AuthorityKey
from holdfast.server.api import Api
from holdfast.server.handlers import history, paging
from holdfast.server.operations.call import Call
from holdfast.server.operations.decoding import LABEL, read_uuid
from holdfast.server.render import Answered, encode
from holdfast.wire.replies import LocksReply

LOOKED_AT_MAX = 10_000


def read_query(query: dict[str, Any]) -> dict[str, Any]:
    paging.read_limit(query)
    history.read_asked(query)
    if "session" in query:
        query["session"] = read_uuid(query["session"], "session", status=400)
    return query


def list_(api: Api, call: Call) -> None:
    prefix = effective_prefix(call.query.get("prefix"), call.caller)
    if history.THEN in call.query:
        history.list_then(api, call, prefix)
        return
    listing = Listing(call.query, prefix, api.auth.key)

    async def look() -> Answered:
        await paging.put_in_order(api.engine)
        await paging.in_slices(api.engine, listing.take_slice)
        return 200, encode(listing.reply()), ()

    api.answer_later(call, look)


class Listing:
    """One page, while it is made. Names lead on from slice to slice, so it does not matter what comes and goes."""

    def __init__(self, query: dict[str, Any], prefix: str | None, key: AuthorityKey) -> None:
        self._page = paging.Page(int(query["limit"]))
        self._prefix = prefix
        self._key = key
        self._owner, self._session, self._labels = query.get("owner"), query.get("session"), query.get(LABEL)
        self._is_filtered = not (self._owner is self._session is self._labels is None)
        self._is_first = "after" not in query
        self._reached: str = query.get("after", "")
        self._looked_at = 0
        self._next_after: str | None = None
        self._total: int | None = None
        self._of_session: list[str] | None = None
        """The names of the session that is asked for, in order, if it has few enough."""

    def reply(self) -> LocksReply:
        total = self._total
        if self._is_filtered and self._is_first and self._next_after is None:
            total = len(self._page.items)
        return LocksReply(self._page.items, total, self._prefix, self._next_after)

    def take_slice(self, state: State, now: Moment) -> bool:
        page = self._page
        page.begin_slice()
        if not self._looked_at:
            self._begin(state)
        for number, name in enumerate(self._names(state)):
            if page.ends_slice or number >= paging.SLICE_NAMES:
                return False
            lease = state.lease_of(name)
            is_wanted = lease is not None and self._is_wanted(lease)
            if (is_wanted and page.is_full) or (self._is_filtered and self._looked_at >= LOOKED_AT_MAX):
                self._next_after = self._reached
                return True
            if is_wanted:
                page.add(render.lock(name, state, now, self._key))
            self._looked_at += 1
            self._reached = name
        return True

    def _begin(self, state: State) -> None:
        prefix = self._prefix or ""
        if not self._is_filtered:
            self._total = state.index.held.count(prefix)
        elif self._session is not None and self._session in state.sessions:
            # Only of a session that lives: a plain claim may outlive the session it was made in.
            names = state.index.names_by_session.get(self._session, ())
            if len(names) <= LOOKED_AT_MAX:
                self._of_session = sorted(name for name in names if name.startswith(prefix))

    def _names(self, state: State) -> Iterator[str]:
        names = self._of_session
        if names is None:
            return state.index.held.walk(self._prefix or "", self._reached)
        return islice(names, bisect_right(names, self._reached), None)

    def _is_wanted(self, lease: Lease) -> bool:
        return (
            (self._owner is None or lease.owner == self._owner)
            and (self._session is None or lease.session == self._session)
            and (self._labels is None or has_labels(lease.labels, self._labels))
        )


def effective_prefix(prefix: str | None, caller: Caller) -> str | None:
    """Return the prefix to list: a confined token sees its own part, unasked; asking for another is refused."""
    if caller.prefix is None:
        return prefix
    if prefix is None:
        return caller.prefix
    caller.require_within_prefix(prefix)
    return prefix
