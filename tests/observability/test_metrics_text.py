"""What the text of `/metrics` costs: the same for any number of leases, and at most once a second."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from holdfast.config import Settings
from holdfast.core.values import Limits
from holdfast.engine.engine import Engine
from holdfast.observability.metrics import ROWS, Meter, NodeRole
from tests.engine.harness import acquire, run, serving
from tests.observability.metrics_reader import samples_in, value
from tests.support.memory_journal import MemoryJournal

if TYPE_CHECKING:
    from holdfast.testing.clock import ManualClock


def meter_of(engine: Engine, clock: ManualClock) -> Meter:
    meter = Meter(Settings(data=Path("unused")), clock, engine.metrics)
    meter.sources.serve(engine, {})
    return meter


def calls_for(meter: Meter) -> int:
    """How many functions of Python are called for one text."""
    count = 0

    def profile(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(profile)
    try:
        meter.text.now()
    finally:
        sys.setprofile(None)
    return count


def test_metrics_text_does_not_iterate_leases() -> None:
    """With two thousand leases it takes as many calls as with two: nothing is looked at one by one."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            meter = meter_of(engine, clock)
            await engine.ask(acquire("first"))
            await engine.ask(acquire("second"))
            meter.text.now()
            clock.advance(1_000)
            few = calls_for(meter)
            for number in range(2_000):
                engine.submit(acquire(f"job/{number}"), lambda _outcome, _now: None)
            await engine.query(lambda _state, _now: None)
            clock.advance(1_000)
            many = calls_for(meter)
            assert value(meter.text.now(), "holdfast_leases_held") == 2_002
            assert abs(many - few) < 30, "a number with more digits may take a call more"

    run(test)


def test_metrics_text_is_cached_for_a_second() -> None:
    """Who asks ten thousand times in a second makes one text of us."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            meter = meter_of(engine, clock)
            first = meter.text.now()
            await engine.ask(acquire("first"))
            clock.advance(900)
            assert meter.text.now() is first
            assert calls_for(meter) < 20
            clock.advance(100)
            assert value(meter.text.now(), "holdfast_grants_total") == 1

    run(test)


def test_follower_reports_its_own_metrics() -> None:
    """It says that it does not lead, which epoch it knows and whether it is linked, and nothing of the leases."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            meter = meter_of(engine, clock)
            meter.sources.role = lambda: NodeRole(leads=False, epoch=7, is_linked=True)
            meter.sources.stop_serving(engine)
            text = meter.text.now()
            assert (value(text, "holdfast_leader"), value(text, "holdfast_epoch")) == (0, 7)
            assert (value(text, "holdfast_linked"), value(text, "holdfast_takeovers_total")) == (1, 1)
            names = {name for name, _ in samples_in(text)}
            assert not names & {"holdfast_leases_held", "holdfast_tail_bytes", "holdfast_store_bytes"}
            assert "holdfast_grants_total" in names, "what was counted while it led stays"

    run(test)


def test_counters_survive_leader_term() -> None:
    """A counter of a process never falls, however often it begins to lead anew."""

    async def test(clock: ManualClock) -> None:
        meter = Meter(Settings(data=Path("unused")), clock)
        for number in (1, 2, 3):
            engine = Engine(MemoryJournal(), Limits(), clock=clock, version="test", metrics=meter.sources.measures)
            await engine.start()
            meter.sources.serve(engine, {})
            await engine.ask(acquire("job"))
            clock.advance(1_000)
            text = meter.text.now()
            assert value(text, "holdfast_grants_total") == number
            assert value(text, "holdfast_takeovers_total") == number
            meter.sources.stop_serving(engine)
            await engine.stop()

    run(test)


def test_names_follow_the_rules_of_prometheus() -> None:
    """A counter ends with `_total` and nothing else does, every row has its help, and no name stands twice."""
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names))
    for row in ROWS:
        assert row.name.startswith(("holdfast_", "process_"))
        assert row.name.endswith("_total") == (row.kind == "counter"), row.name
        assert row.help.endswith(".") and "\n" not in row.help
        assert bool(row.label) == bool(row.values)
