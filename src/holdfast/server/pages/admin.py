"""Pages about the server itself: nodes (`/ui/nodes`), metrics (`/ui/metrics`) and access tokens (`/ui/tokens`).

Metrics are drawn once for all readers (`observability/charts`). Tokens are those of `GET /tokens`, whose rights lie
within the reader's. The page cannot create one: a token is shown once, by the command that creates it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.answers import TokenGone
from holdfast.core.commands import RevokeToken
from holdfast.engine.ids import new_uuid
from holdfast.server.handlers import health as handlers
from holdfast.server.handlers import paging
from holdfast.server.handlers.tokens import check_reach, is_hidden, note_gone, picked_for
from holdfast.server.http.messages import Answered
from holdfast.server.observability import charts
from holdfast.server.operations.decoding import fingerprint, read_uuid
from holdfast.server.pages import site
from holdfast.server.render import encode
from holdfast.wire.replies import TokenReply

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.core.values import Instant
    from holdfast.server.api import Api
    from holdfast.server.operations.call import Call
    from holdfast.server.recent import Entry


def nodes(api: Api, call: Call) -> None:
    async def look() -> Answered:
        found = await handlers.found(api)
        now: Instant = await api.engine.query(lambda _state, now: now)
        journal = api.engine.journal
        shown: dict[str, Any] = {"found": found, "health": journal.health(), "is_shared": journal.is_shared}
        return await site.page(api, call, now, "nodes.html", "nodes", **shown)

    api.answer_later(call, look)


METRICS_QUERY = {"span": "How far back: 15m, 1h or 6h; 1h unless told."}
_OK = 200


def metrics(api: Api, call: Call) -> None:
    async def look() -> Answered:
        now: Instant = await api.engine.query(lambda _state, now: now)
        drawn = api.meter.series.drawn(call.query.get("span", ""))
        return await site.page(api, call, now, "metrics.html", "metrics", drawn=drawn, frame=charts)

    api.answer_later(call, look)


def drawn(api: Api, call: Call) -> None:
    series, span = api.meter.series, call.query.get("span", "")
    api.read(call, lambda _state, now: (_OK, encode({"now": now.wall_ms, "drawn": series.drawn(span)}), ()))


SHOWN = 100
TOKENS_QUERY = {"after": "Only names after this one: the next page.", "did": "What was just done."}
_read = msgspec.json.Decoder(TokenReply).decode


class Token(msgspec.Struct, frozen=True):
    told: TokenReply
    holds: int
    sessions: int
    waits: int
    key: str  # Idempotency key of the form that revokes it.


def tokens(api: Api, call: Call) -> None:
    picked = picked_for(api, call.caller, {"limit": str(SHOWN), "after": call.query.get("after", "")})

    def view(state: State, now: Instant) -> tuple[list[Token], list[Entry[str]], Instant]:
        found = [_token(_read(item), state) for item in picked.page.items]
        ended = api.ended_tokens.newest_first(api.engine.clock.monotonic_ms())
        # The rights of an ended token are not kept: only readers without a prefix and whoever ended it see it.
        mine = [each for each in ended if call.caller.prefix is None or each.principal == call.caller.principal]
        return found, mine, now

    async def look() -> Answered:
        await paging.in_slices(api.engine, picked.take_slice)
        found, ended, now = await api.engine.query(view)
        return await site.page(
            api,
            call,
            now,
            "tokens.html",
            "tokens",
            tokens=found,
            total=picked.total,
            next_after=picked.next_after,
            ended=ended,
            ended_since_ms=api.ended_tokens.since_wall_ms,
            did=call.query.get("did", ""),
        )

    api.answer_later(call, look)


def _token(told: TokenReply, state: State) -> Token:
    index = state.index
    return Token(
        told,
        index.lease_count.get(told.name, 0),
        len(index.sessions_by_principal.get(told.name, ())),
        len(index.tickets_by_principal.get(told.name, ())),
        new_uuid(),
    )


def revoke_token(api: Api, call: Call) -> None:
    hidden = is_hidden(api, call.caller, call.item)
    if not hidden:
        check_reach(api, call.caller, call.item)
    keeps = call.body.get("keep_sessions") == "true"
    command = RevokeToken(
        principal=call.caller.principal,
        name=call.item,
        keep_sessions=keeps,
        key=f"page {read_uuid(call.body.get('key', ''), 'key')}",
        fingerprint=fingerprint(call.request, call.item, ("revoke token", keeps)),
        alone=hidden,
    )
    api.submit(call, command, {TokenGone: _gone})


def _gone(api: Api, call: Call, _outcome: TokenGone, now: Instant) -> Answered:
    note_gone(api, call, now)
    return site.redirect("/ui/tokens?did=revoked")
