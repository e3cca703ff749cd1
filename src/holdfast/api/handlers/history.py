"""GET /locks/{name}/history: what happened to a name, newest first; and GET /locks?at=…: who held what at a moment.

Beyond a search's budget or a page's size, the reply has where to go on, which may be inside a record.

A moment is resolved once, to the number of the last record by then in the order of the journal, and later pages name
that number. If history is dropped meanwhile, the reply says so and never shows names as free. Deadlines, heartbeats,
notes and metadata are not kept.
"""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from holdfast.api.auth.secrets import AuthorityKey
from holdfast.api.context import RequestContext
from holdfast.api.decoding import LABEL
from holdfast.api.handlers.paging import PAGE_BYTES, SLICE_ITEMS
from holdfast.api.rendering import changes, encode, holder_id, rfc3339
from holdfast.api.service import ApiService
from holdfast.engine.build import Held, HeldQuery, HistoryPage, HistoryQuery
from holdfast.engine.engine import Engine
from holdfast.http.messages import ResponseParts
from holdfast.wire.problems import Problem
from holdfast.wire.replies import HistoryReply, PastLockReply, PastLocksReply, shown_as

LIMIT = 100
LIMIT_MAX = 1_000
RECORD_CHANGES_MIN = 100  # So many changes of one record are on one page, however small its limit is.
_NUMBER = re.compile(r"[0-9]{1,16}")


def history(api: ApiService, context: RequestContext) -> None:
    query: dict[str, str] = context.query
    before, offset = _number(query, "before"), _number(query, "offset") or 0
    if offset and before is None:
        raise Problem("invalid_input", "offset goes with before: both are of the page before.")
    wanted = HistoryQuery(
        name=context.item,
        # With an offset the record of that number itself was not returned completely.
        before_seq=before + 1 if before is not None and offset else before,
        since_wall_ms=time_of(query.get("since"), "since"),
        until_wall_ms=time_of(query.get("until"), "until"),
        owner=query.get("owner"),
        limit=int(query["limit"]),
    )

    async def respond() -> ResponseParts:
        page = await api.engine.history(wanted)
        return 200, encode(history_reply(page, wanted, offset)), ()

    api.answer_slowly(context, respond)


def history_reply(page: HistoryPage, query: HistoryQuery, offset: int) -> HistoryReply:
    """Return a page of changes, newest first. `offset` is how many changes of the first record were returned before."""
    found: list[Any] = []
    size = 0
    for number, record in enumerate(page.records, 1):
        matching = [
            change for change in changes(record, lambda name: name == query.name) if query.owner in {None, change.owner}
        ]
        matching.reverse()
        first = offset if number == 1 and query.before_seq == record.seq + 1 else 0
        for count, change in enumerate(matching[first:], first + 1):
            item = Raw(encode(change))
            found.append(item)
            size += len(item)
            if count < len(matching) and (size >= PAGE_BYTES or len(found) >= max(query.limit, RECORD_CHANGES_MIN)):
                return HistoryReply(found, record.seq, count)
        if len(found) >= query.limit or number == query.limit or size >= PAGE_BYTES:
            return HistoryReply(found, record.seq)
    return HistoryReply(found, page.next_before)


def _number(query: dict[str, str], field: str) -> int | None:
    return number_of(query[field], field) if field in query else None


def number_of(text: str, field: str = "record") -> int:
    if not _NUMBER.fullmatch(text) or int(text) == 0:
        raise Problem("invalid_input", f"{field} is a whole number from 1.")
    return int(text)


def time_of(text: str | None, field: str) -> int | None:
    if text is None:
        return None
    try:
        parsed = datetime.fromisoformat(text.replace(" ", "+"))
        return int(parsed.replace(tzinfo=parsed.tzinfo or UTC).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise Problem("invalid_input", f"{field} is a time like 2026-01-31T02:14:00Z.") from None


AS_OF = "then"


class AsOfQuery(msgspec.Struct, frozen=True):
    at_ms: int | None
    record: int | None  # With a time too: the next page of that time.


class AsOf(msgspec.Struct, frozen=True):
    record: int  # The last by then.
    wall_ms: int | None  # None: unknown.


def read_as_of(query: dict[str, Any]) -> None:
    """Replace the fields `at` and `record` of a query, if it has them, by an `AsOfQuery`."""
    if "at" not in query and "record" not in query:
        return
    query[AS_OF] = AsOfQuery(time_of(query.pop("at", None), "at"), _number(query, "record"))
    query.pop("record", None)


def list_as_of(api: ApiService, context: RequestContext, prefix: str | None) -> None:
    query: AsOfQuery = context.query[AS_OF]

    async def respond() -> ResponseParts:
        try:
            as_of = await resolve_as_of(api.engine, query)
            page = await past_page(api.engine, as_of, context.query, prefix, api.auth.key)
        except Problem as problem:
            return context.refusal(problem, context.request)
        return 200, encode(page), ()

    api.answer_slowly(context, respond)


async def resolve_as_of(engine: Engine, query: AsOfQuery) -> AsOf:
    last, now_ms = await engine.query(lambda state, now: (state.seq, now.wall_ms))
    journal = engine.journal
    if query.record is not None:
        if query.record > last:
            raise Problem("invalid_input", f"There is no record {query.record} yet: the last is {last}.")
        wall_ms = query.at_ms
        if wall_ms is None or wall_ms > now_ms or await journal.last_by(wall_ms) != query.record:
            # The record counts. A moment that is not its own would be a lie, whoever wrote the address.
            found = await journal.follow(query.record - 1, 1)
            wall_ms = found[0].wall_ms if found and found[0].seq == query.record else None
        as_of = AsOf(query.record, wall_ms)
    else:
        at_ms = query.at_ms or 0
        if at_ms > now_ms:
            raise Problem("invalid_input", f"at is in the future: by this server's clock it is {rfc3339(now_ms)} now.")
        as_of = AsOf(await journal.last_by(at_ms), at_ms)
        if as_of.record == 0:
            # Before the first record. That nobody held anything is not known of a time before there was a server.
            raise await _history_unavailable(engine)
    await require_history(engine, as_of.record)
    return as_of


async def require_history(engine: Engine, record: int) -> None:
    if record < engine.journal.history_begins_after:
        raise await _history_unavailable(engine)


async def _history_unavailable(engine: Engine) -> Problem:
    begins_ms = await history_start(engine)
    since = "now" if begins_ms is None else f"at {rfc3339(begins_ms)}"
    why = "it was before the history that this server keeps, or before it was restored from a backup"
    text = f"Who held what at that moment is not known: {why}. Looking back begins {since}."
    fields = {"history_begins_at": None if begins_ms is None else rfc3339(begins_ms)}
    return Problem("history_not_kept", text, fields=fields)


async def history_start(engine: Engine) -> int | None:
    first = await engine.journal.follow(engine.journal.history_begins_after, 1)
    return first[0].wall_ms if first else None


async def past_page(
    engine: Engine, as_of: AsOf, query: dict[str, Any], prefix: str | None, key: AuthorityKey
) -> PastLocksReply:
    """Return a page of who held what. Raises if the history of then was dropped meanwhile."""
    found = await engine.journal.held(
        HeldQuery(
            seq=as_of.record,
            after=query.get("after"),
            prefix=prefix or "",
            owner=query.get("owner"),
            session=query.get("session"),
            labels=query.get(LABEL, frozenset()),
            limit=int(query["limit"]),
        )
    )
    await require_history(engine, as_of.record)  # Again: it may have been dropped before it was read.
    items: list[Any] = []
    size = 0
    next_after = found.next_after
    for number, held in enumerate(found.held, 1):
        item = encode(past_lock_reply(held, key))
        items.append(Raw(item))
        size += len(item)
        if size >= PAGE_BYTES and number < len(found.held):
            next_after = held.name
            break
        if number % SLICE_ITEMS == 0:
            await asyncio.sleep(0)
    at = None if as_of.wall_ms is None else rfc3339(as_of.wall_ms)
    return PastLocksReply(items, at, as_of.record, prefix, next_after)


def past_lock_reply(held: Held, key: AuthorityKey) -> PastLockReply:
    lease = held.lease
    return PastLockReply(
        held.name,
        "held",
        holder_id(lease, key),
        lease.token,
        lease.owner,
        rfc3339(lease.granted_wall_ms),
        lease.ttl_ms,
        lease.session,
        held.granted_seq,
        labels=UNSET if lease.labels is None else lease.labels,
        shown_as=shown_as(lease.principal) if lease.owner is None else UNSET,
    )
