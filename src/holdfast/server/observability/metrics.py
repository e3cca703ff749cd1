"""Every metric: one row each, with its name, its help, its label with all the values that has, and where it is read.

The text of `/metrics`, the page of the docs and the tests of the dashboard and the alerts are made of these rows. A
label has only values that stand here: nothing that a user wrote is ever one.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from holdfast import __version__
from holdfast.core.refusals import AllHeld, Delayed, Finished, Held, NotHeld
from holdfast.engine.measures import Spread
from holdfast.wire.problems import KINDS

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.engine.build import Health
    from holdfast.engine.engine import Engine
    from holdfast.server.metrics.sources import Place, Sources

Value: TypeAlias = "float | Mapping[str, float] | Spread | None"
"""A number; one for each value of the row's label; a spread; None: there is nothing to tell here."""

ENDS = ("released", "expired", "revoked", "session_ended", "transferred")
LEAVES = ("gone", "withdrawn", "deadlock", "refused", "done", "session_ended", "token_ended")
SESSION_ENDS = ("expired", "deleted", "revoked")
STREAMS = ("watches", "followers", "pages")
REASONS_SHOWN: dict[type, str] = {
    Held: "held",
    AllHeld: "held",
    NotHeld: "not_held",
    Finished: "done",
    Delayed: "delayed",
}
"""What is decided against a caller and is no problem, but an answer of its own."""
REASONS = (*dict.fromkeys(REASONS_SHOWN.values()), *KINDS)
STATM = "/proc/self/statm"


class Look(msgspec.Struct):
    """One look at everything, made once for all rows."""

    sources: Sources
    place: Place
    engine: Engine | None
    state: State | None
    health: Health | None


class Row(msgspec.Struct, frozen=True):
    """One metric."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    read: Callable[[Look], Value]
    label: str = ""
    values: tuple[str, ...] = ()
    """All that the label can be."""

    @property
    def samples(self) -> tuple[str, ...]:
        """The names under which Prometheus knows it."""
        if self.kind == "histogram":
            return f"{self.name}_bucket", f"{self.name}_count", f"{self.name}_sum"
        return (self.name,)


def look_at(sources: Sources) -> Look:
    """Look once."""
    engine = sources.engine
    if engine is None:
        return Look(sources, sources.place(), None, None, None)
    return Look(sources, sources.place(), engine, engine.state, engine.journal.health())


def _refusals(look: Look) -> Mapping[str, float]:
    counters = look.sources.counters
    found = dict.fromkeys(REASONS, 0)
    for code, count in counters.reasons.items():
        found[code] += count
    for kind, count in counters.shown.items():
        found[REASONS_SHOWN[kind]] += count
    return found


def _all_of(values: tuple[str, ...], counts: Mapping[str, int]) -> Mapping[str, float]:
    """Return the count of each value: one that has not happened yet is 0, so that its first time is seen as a rise."""
    return {value: counts.get(value, 0) for value in values}


def _streams(look: Look) -> Value:
    if look.engine is None:
        return None
    open_now = look.sources.streams
    return {kind: open_now[kind].count if kind in open_now else 0 for kind in STREAMS}


def _of_state(count: Callable[[State], int]) -> Callable[[Look], Value]:
    return lambda look: None if look.state is None else count(look.state)


def _of_engine(count: Callable[[Engine], float]) -> Callable[[Look], Value]:
    return lambda look: None if look.engine is None else count(look.engine)


def _of_health(read: Callable[[Health], float | None]) -> Callable[[Look], Value]:
    return lambda look: None if look.health is None else read(look.health)


def _tokens(look: Look) -> Value:
    return None if look.state is None else len(look.state.tokens) + look.sources.tokens


def _connections(look: Look) -> Value:
    count = look.sources.connections
    return None if count is None else count()


def _proven_seconds(look: Look) -> Value:
    engine = look.engine
    if engine is None or not engine.journal.is_shared:
        return None
    ago_ms = engine.proven_ms_ago()
    return None if ago_ms is None else ago_ms / 1000


def _memory_bytes(_look: Look) -> Value:
    try:
        with open(STATM, encoding="ascii") as statm:  # noqa: PTH123 - A kernel's file is read in one go, by its name.
            return int(statm.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return None


ROWS: tuple[Row, ...] = (
    Row("holdfast_info", "gauge", "Always 1; says the version.", lambda _: {__version__: 1}, "version", (__version__,)),
    # What has a record, counted once it is durable.
    Row(
        "holdfast_grants_total",
        "counter",
        "Leases that were given out.",
        lambda look: look.sources.measures.tally.grants,
    ),
    Row(
        "holdfast_reacquires_total",
        "counter",
        "Claims that were had already, and given to their holder once more.",
        lambda look: look.sources.counters.reacquires,
    ),
    Row(
        "holdfast_renewals_total",
        "counter",
        "Leases that got a new deadline, each lease of a session too.",
        lambda look: look.sources.measures.tally.renewals,
    ),
    Row(
        "holdfast_ends_total",
        "counter",
        "Leases that ended, by how. All but released and transferred were lost by their holders.",
        lambda look: _all_of(ENDS, look.sources.measures.tally.ends),
        "how",
        ENDS,
    ),
    Row(
        "holdfast_joins_total",
        "counter",
        "Places in line that were taken.",
        lambda look: look.sources.measures.tally.joins,
    ),
    Row(
        "holdfast_leaves_total",
        "counter",
        "Places in line that ended without a grant, by how.",
        lambda look: _all_of(LEAVES, look.sources.measures.tally.leaves),
        "how",
        LEAVES,
    ),
    Row(
        "holdfast_sessions_opened_total",
        "counter",
        "Sessions that were opened.",
        lambda look: look.sources.measures.tally.sessions,
    ),
    Row(
        "holdfast_sessions_ended_total",
        "counter",
        "Sessions that ended, by how.",
        lambda look: _all_of(SESSION_ENDS, look.sources.measures.tally.session_ends),
        "how",
        SESSION_ENDS,
    ),
    # What leaves no record, counted where it is answered.
    Row(
        "holdfast_refusals_total",
        "counter",
        "Requests that were refused, by reason: held, not_held, done or delayed, else the code of the problem.",
        _refusals,
        "reason",
        REASONS,
    ),
    # How long and how many.
    Row(
        "holdfast_answer_seconds",
        "histogram",
        "From the first request of a batch to all its answers, once for each answer. Waits in line are not in it.",
        lambda look: look.sources.measures.answers,
    ),
    Row(
        "holdfast_commit_seconds",
        "histogram",
        "How long it took until a batch of records was durable, or the seat proven.",
        lambda look: look.sources.measures.commits,
    ),
    Row(
        "holdfast_commit_records",
        "histogram",
        "How many records one commit made durable.",
        lambda look: look.sources.measures.batches,
    ),
    Row(
        "holdfast_turn_seconds",
        "histogram",
        "How long a turn took to decide all that it was asked. Nobody else is served meanwhile.",
        lambda look: look.sources.measures.turns,
    ),
    Row(
        "holdfast_loop_lag_seconds",
        "histogram",
        "By how much the event loop was late, looked at ten times a second.",
        lambda look: look.sources.lags,
    ),
    Row(
        "holdfast_wait_seconds",
        "histogram",
        "How long those stood in line who were granted what they waited for.",
        lambda look: look.sources.measures.waits,
    ),
    Row(
        "holdfast_hold_seconds",
        "histogram",
        "How long leases were held, once they ended.",
        lambda look: look.sources.measures.holds,
    ),
    # What is so now. A node that follows does not know it.
    Row(
        "holdfast_leases_held", "gauge", "Names that somebody owns now.", _of_state(lambda state: len(state.index.held))
    ),
    Row("holdfast_places_in_line", "gauge", "Places in lines.", _of_state(lambda state: len(state.tickets))),
    Row(
        "holdfast_requests_waiting",
        "gauge",
        "Places in lines at which a request waits right now.",
        _of_state(lambda state: len(state.presence.present)),
    ),
    Row("holdfast_sessions_open", "gauge", "Open sessions.", _of_state(lambda state: len(state.sessions))),
    Row("holdfast_access_tokens", "gauge", "Access tokens that are let in.", _tokens),
    Row(
        "holdfast_names_known",
        "gauge",
        "Names that are held, or whose last owner is remembered.",
        _of_state(lambda state: len(state.slots)),
    ),
    Row(
        "holdfast_retries_remembered",
        "gauge",
        "What the retry memory keeps.",
        _of_state(lambda state: len(state.remembered)),
    ),
    Row("holdfast_streams_open", "gauge", "Open streams, by what they are for.", _streams, "kind", STREAMS),
    # The store.
    Row(
        "holdfast_tail_records",
        "gauge",
        "Durable records that are not archived yet.",
        _of_engine(lambda engine: engine.unarchived[0]),
    ),
    Row(
        "holdfast_tail_bytes",
        "gauge",
        "What they take.",
        _of_engine(lambda engine: engine.journal.tail_bytes),
    ),
    Row(
        "holdfast_tail_bytes_max",
        "gauge",
        "What they may take; beyond it new claims are refused (tail_mib_max).",
        lambda look: look.sources.settings.tail_mib_max * 2**20,
    ),
    Row(
        "holdfast_archive_failing",
        "gauge",
        "1 if the last try to archive failed.",
        _of_engine(lambda engine: engine.unarchived[1]),
    ),
    Row(
        "holdfast_store_takes_claims",
        "gauge",
        "1 if the store takes new claims.",
        _of_health(lambda health: health.takes_claims),
    ),
    Row("holdfast_store_bytes", "gauge", "The size of the store.", _of_health(lambda health: health.size_bytes)),
    Row(
        "holdfast_store_free_bytes",
        "gauge",
        "What is left on its disk.",
        _of_health(lambda health: health.free_bytes),
    ),
    Row(
        "holdfast_store_proven_seconds",
        "gauge",
        "On a store that nodes share: how long ago it last proved that this node leads.",
        _proven_seconds,
    ),
    # Nodes.
    Row("holdfast_leader", "gauge", "1 if this node leads.", lambda look: look.place.leads),
    Row("holdfast_epoch", "gauge", "The epoch of the leader that this node knows.", lambda look: look.place.epoch),
    Row(
        "holdfast_takeovers_total",
        "counter",
        "How often this process has begun to lead.",
        lambda look: look.sources.takeovers,
    ),
    Row(
        "holdfast_linked",
        "gauge",
        "1 if this node follows and has a link to the leader.",
        lambda look: look.place.is_linked,
    ),
    Row("holdfast_links", "gauge", "Links of followers to this node.", lambda look: look.place.links),
    # The process.
    Row("holdfast_connections", "gauge", "Open connections.", _connections),
    Row(
        "holdfast_connections_max",
        "gauge",
        "How many there may be (connections_max).",
        lambda look: look.sources.settings.connections_max,
    ),
    Row(
        "holdfast_log_lines_left_out_total",
        "counter",
        "Lines of the log that were left out because nobody took them fast enough.",
        lambda look: look.sources.lines_left_out(),
    ),
    Row(
        "process_cpu_seconds_total",
        "counter",
        "Processor time of the server's own process.",
        lambda look: look.sources.processor_seconds(),
    ),
    Row("process_resident_memory_bytes", "gauge", "Memory of the server's own process.", _memory_bytes),
    Row(
        "process_start_time_seconds",
        "gauge",
        "When the process started, in seconds since 1970.",
        lambda look: look.sources.started_wall_ms / 1000,
    ),
)
