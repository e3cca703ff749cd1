"""The routes for people and machines that look after the server: health, readiness, status. None asks who you are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import __version__
from holdfast.server.render import encode
from holdfast.server.times import rfc3339
from holdfast.wire.health import LEADS
from holdfast.wire.replies import HealthReply, ReadyReply, StatusReply

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.core.values import Moment
    from holdfast.server.api import Api
    from holdfast.server.operations.call import Call
    from holdfast.server.render import Answered

PROVEN_MS_MAX = 1_000
REFUSED = "the store refuses writes: the log says why"
_OK, _NOT_READY = 200, 503


def health(api: Api, call: Call) -> None:
    """GET /health: how the store is."""
    store = api.engine.journal.health()
    serving = api.engine.turn() is not None
    well = serving and store.takes_claims
    details = store.text if serving else api.engine.why_not_serving()
    body = HealthReply("ok" if well else "unwell", store.storage, store.size_bytes, details, store.free_bytes)
    call.answer((_OK if well else _NOT_READY, encode(body), ()))


def alive(_api: Api, call: Call) -> None:
    """GET /healthz: the process answers."""
    call.answer((_OK, encode(ReadyReply("ok", "alive")), ()))


def ready(api: Api, call: Call) -> None:
    """GET /readyz: the journal takes writes."""
    if api.engine.turn() is None:
        call.answer((_NOT_READY, encode(ReadyReply("not_ready", api.engine.why_not_serving())), ()))
    elif not api.engine.journal.takes_claims and not (store := api.engine.journal.health()).takes_claims:
        call.answer((_NOT_READY, encode(ReadyReply("not_ready", store.text)), ()))
    elif api.engine.is_refused:
        call.answer((_NOT_READY, encode(ReadyReply("not_ready", REFUSED)), ()))
    else:
        call.answer((_OK, encode(ReadyReply("ok", "the journal takes writes")), ()))


def leads(api: Api, call: Call) -> None:
    """GET /health/leader: this node leads, and knows it: of a shared store that is a second old at most (N-34)."""
    engine = api.engine
    if engine.turn() is None:
        call.answer(not_leader(engine.why_not_serving()))
    elif engine.journal.is_shared and ((ago_ms := engine.proven_ms_ago()) is None or ago_ms > PROVEN_MS_MAX):
        call.answer(not_leader("the store has not confirmed that for a second"))
    elif engine.is_refused:
        call.answer(not_leader(f"{LEADS}, and {REFUSED}"))
    else:
        call.answer((_OK, encode(ReadyReply("ok", f"{LEADS}, epoch {engine.state.epoch}")), ()))


def not_leader(why: str) -> Answered:
    """Return the answer of a node that does not lead."""
    return _NOT_READY, encode(ReadyReply("not_leader", why)), ()


def status(api: Api, call: Call) -> None:
    """GET /status: counters since the start."""
    uptime = (api.engine.clock.monotonic_ms() - api.started_ms) // 1000

    def view(state: State, now: Moment) -> Answered:
        counters = StatusReply(
            "ok",
            uptime,
            len(state.index.held),
            len(state.tokens) + len(api.auth.static.callers),
            api.engine.feed.tally.grants + api.counters.reacquires,
            api.engine.feed.tally.releases,
            __version__,
            rfc3339(now.wall_ms),
            api.settings.resource_lock_timeout,
            api.counters.refusals,
        )
        return _OK, encode(counters), ()

    api.read(call, view)
