"""What is kept is limited in bytes, by what its texts take."""

from __future__ import annotations

import tracemalloc

from holdfast.core import outcomes
from holdfast.core.commands import EndSession, OpenSession, Release
from holdfast.core.values import Limits
from tests.core.test_usage import World
from tests.support.commands import acquire

REAL_WEIGHTS = True


def test_long_result_is_refused_and_short_one_accepted() -> None:
    """Finished work counts with its result: over the limit the lease stays held, and can be released without (L5)."""
    world = World(Limits(done_bytes_per_principal_max=300))
    world.ask(acquire(name="d6", principal="eve", lease_id="L", ttl_ms=60_000))

    def finish(result: str) -> object:
        done = Release(name="d6", principal="eve", lease_id="L", done=True, remember_ms=3_600_000, result=result)
        return world.ask(done)

    refusal = finish("a" * 300)
    assert isinstance(refusal, outcomes.QuotaExceeded) and "300 bytes" in refusal.text
    assert isinstance(finish("short"), outcomes.Released)


def test_retry_records_are_bounded_in_bytes() -> None:
    """Keys with long texts of four bytes a character stay within the limits in bytes, as Python counts them (C5)."""
    limits = Limits(retry_bytes_max=4 * 2**20, ended_bytes_max=4 * 2**20)
    world = World(limits)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(8_000):
        # Another text each time, so that none is shared.
        world.spend(f"job-{number}", ("eve", None), note=f"{number:06}" + "\N{GRINNING FACE}" * 1_018)
        world.records.clear()
        world.now_ms += 1
        world.expire_due()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert world.state.index.retry_usage.weight <= limits.retry_bytes_max
    assert world.state.index.free_usage.weight <= limits.ended_bytes_max
    assert len(world.state.remembered) > 500
    assert after - before < limits.retry_bytes_max + limits.ended_bytes_max


def test_each_key_is_counted_with_what_it_leads_to() -> None:
    """Entries without long texts, with a key for their beginning and for their end, take about what they count (C5)."""
    world = World(Limits())
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(4_000):
        id_, key, end, fingerprint = (f"{letter} {number:034}" for letter in "ikef")
        if number % 2:
            world.ask(
                acquire(name="job", principal="eve", lease_id=id_, ttl_ms=60_000, key=key, fingerprint=fingerprint)
            )
            world.ask(Release(name="job", principal="eve", lease_id=id_, key=end, fingerprint=fingerprint))
        else:
            world.ask(OpenSession(principal="eve", session_id=id_, ttl_ms=60_000, key=key, fingerprint=fingerprint))
            world.ask(EndSession(principal="eve", session_id=id_, key=end, fingerprint=fingerprint))
        world.records.clear()
        world.state.take_changes()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(world.state.remembered) == 4_000
    assert after - before < 1.5 * (world.state.index.retry_usage.weight + world.state.index.free_usage.weight)
