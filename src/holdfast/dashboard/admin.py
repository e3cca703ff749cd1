"""Pages about the server itself: nodes (`/ui/nodes`), metrics (`/ui/metrics`) and access tokens (`/ui/tokens`).

Metrics are drawn once for all readers (`observability/charts`). Tokens are those of `GET /tokens`, whose rights lie
within the reader's. The page cannot create one: a token is shown once, by the command that creates it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.api.decoding import fingerprint, read_uuid
from holdfast.api.handlers import health as handlers
from holdfast.api.handlers import paging
from holdfast.api.handlers.tokens import check_may_end, is_hidden, record_ended_token, visible_tokens
from holdfast.api.rendering import encode
from holdfast.core.commands import RevokeToken
from holdfast.core.outcomes import TokenGone
from holdfast.dashboard import site
from holdfast.engine.ids import new_uuid
from holdfast.http.messages import ResponseParts
from holdfast.observability import charts
from holdfast.wire.replies import TokenReply

if TYPE_CHECKING:
    from holdfast.api.context import RequestContext
    from holdfast.api.service import ApiService, Entry
    from holdfast.core.state import State
    from holdfast.core.values import Instant


def nodes(api: ApiService, context: RequestContext) -> None:
    async def respond() -> ResponseParts:
        found = await handlers.read_nodes(api)
        now: Instant = await api.engine.query(lambda _state, now: now)
        journal = api.engine.journal
        shown: dict[str, Any] = {"found": found, "health": journal.health(), "is_shared": journal.is_shared}
        return await site.page(api, context, now, "nodes.html", "nodes", **shown)

    api.answer_slowly(context, respond)


METRICS_QUERY = {"span": "How far back: 15m, 1h or 6h; 1h unless told."}
_OK = 200


def metrics(api: ApiService, context: RequestContext) -> None:
    async def respond() -> ResponseParts:
        now: Instant = await api.engine.query(lambda _state, now: now)
        chart_set = api.meter.series.charts_of(context.query.get("span", ""))
        return await site.page(api, context, now, "metrics.html", "metrics", drawn=chart_set, frame=charts)

    api.answer_slowly(context, respond)


def chart_set(api: ApiService, context: RequestContext) -> None:
    series, span = api.meter.series, context.query.get("span", "")
    api.read(context, lambda _state, now: (_OK, encode({"now": now.wall_ms, "drawn": series.charts_of(span)}), ()))


SHOWN = 100
TOKENS_QUERY = {"after": "Only names after this one: the next page.", "did": "What was just done."}
_read = msgspec.json.Decoder(TokenReply).decode


class TokenRow(msgspec.Struct, frozen=True):
    reply: TokenReply
    holds: int
    sessions: int
    waits: int
    key: str  # Idempotency key of the form that revokes it.


def tokens(api: ApiService, context: RequestContext) -> None:
    selection = visible_tokens(api, context.caller, {"limit": str(SHOWN), "after": context.query.get("after", "")})

    def view(state: State, now: Instant) -> tuple[list[TokenRow], list[Entry[str]], Instant]:
        found = [_token(_read(item), state) for item in selection.page.items]
        ended = api.ended_tokens.newest_first(api.engine.clock.monotonic_ms())
        # The rights of an ended token are not kept: only readers without a prefix and whoever ended it see it.
        mine = [each for each in ended if context.caller.prefix is None or each.principal == context.caller.principal]
        return found, mine, now

    async def respond() -> ResponseParts:
        await paging.in_slices(api.engine, selection.take_slice)
        found, ended, now = await api.engine.query(view)
        return await site.page(
            api,
            context,
            now,
            "tokens.html",
            "tokens",
            tokens=found,
            total=selection.total,
            next_after=selection.next_after,
            ended=ended,
            ended_since_ms=api.ended_tokens.since_wall_ms,
            did=context.query.get("did", ""),
        )

    api.answer_slowly(context, respond)


def _token(reply: TokenReply, state: State) -> TokenRow:
    index = state.index
    return TokenRow(
        reply,
        index.lease_count.get(reply.name, 0),
        len(index.sessions_by_principal.get(reply.name, ())),
        len(index.tickets_by_principal.get(reply.name, ())),
        new_uuid(),
    )


def revoke_token(api: ApiService, context: RequestContext) -> None:
    hidden = is_hidden(api, context.caller, context.item)
    if not hidden:
        check_may_end(api, context.caller, context.item)
    keeps = context.body.get("keep_sessions") == "true"
    command = RevokeToken(
        principal=context.caller.principal,
        name=context.item,
        keep_sessions=keeps,
        key=f"page {read_uuid(context.body.get('key', ''), 'key')}",
        fingerprint=fingerprint(context.request, context.item, ("revoke token", keeps)),
        alone=hidden,
    )
    api.submit(context, command, {TokenGone: _gone})


def _gone(api: ApiService, context: RequestContext, _outcome: TokenGone, now: Instant) -> ResponseParts:
    record_ended_token(api, context, now)
    return site.redirect("/ui/tokens?did=revoked")
