"""Alarms that are for nothing are cleared away a few at a time, and none that is needed is lost (L2)."""

import random

from holdfast.core import outcomes
from holdfast.core.commands import Release, Renew
from holdfast.core.timers import COMPACTED_PER_CALL, DEADLINES_SPARE, DeadlineHeap
from holdfast.core.values import Instant
from tests.core.bare_core import Core
from tests.support.commands import acquire

OTHERS = 2_000
TTL_MS = 60_000


def crowded() -> Core:
    """Many hold something, and as many alarms are for nothing as there may be before they are sifted."""
    core = Core()
    for number in range(OTHERS):
        core.ask(acquire(name=f"n{number}", principal="p", lease_id=f"L{number}", ttl_ms=TTL_MS + number))
    for number in range(OTHERS + DEADLINES_SPARE - 5):
        come_and_go(core, number)
    return core


def come_and_go(core: Core, number: int) -> int:
    """Claim a name and give it back; return the steps of the dearer of the two."""
    claim = acquire(name="x", principal="q", lease_id=f"X{number}", ttl_ms=TTL_MS)
    return max(core.steps(claim), core.steps(Release(name="x", principal="q", lease_id=f"X{number}")))


def test_release_cost_ignores_deadlines_of_other_leases() -> None:
    """Of all who come and go none looks at more than a few alarms, however many others hold something."""
    core = crowded()
    assert not core.state.timers.lease_deadlines.draining
    steps = [come_and_go(core, 10_000 + number) for number in range(20)]
    assert core.state.timers.lease_deadlines.draining, "nothing was sifted"
    assert max(steps) < 1_500


def test_leases_expire_on_time_during_compaction() -> None:
    """Some are renewed for longer and some for less, before and while alarms are sifted: none ends late or early."""
    core = crowded()
    chance = random.Random(7)
    untils = {f"n{number}": TTL_MS + number for number in range(OTHERS)}
    for number in range(200):
        come_and_go(core, 20_000 + number)
        name = f"n{chance.randrange(OTHERS)}"
        ttl_ms = chance.choice([TTL_MS // 2, TTL_MS, 2 * TTL_MS])
        asked = Renew(name=name, principal="p", lease_id=f"L{name[1:]}", ttl_ms=ttl_ms)
        assert isinstance(core.ask(asked), outcomes.Extended)
        untils[name] = ttl_ms
    assert core.state.timers.lease_deadlines.draining
    for now_ms in sorted({until_ms + late for until_ms in untils.values() for late in (-1, 0)}):
        core.now = Instant(now_ms, now_ms)
        core.expire_due()
        assert len(core.state.index.held) == sum(until_ms > now_ms for until_ms in untils.values())
    assert not untils.keys() & {name for name, slot in core.state.slots.items() if slot.lease is not None}


def test_compaction_leaves_one_deadline_per_lease() -> None:
    """Alarms that stand twice are kept once, those for nothing go, and the first is always known."""
    deadlines: DeadlineHeap[tuple[int, int]] = DeadlineHeap()
    chance = random.Random(3)
    deadlines.fill([(chance.randrange(100), number % 700) for number in range(3_000)])
    needed = set(range(300))
    while deadlines.draining or len(deadlines.heap) > 2 * len(needed) + DEADLINES_SPARE:
        before = len(deadlines.draining)
        deadlines.compact(len(needed), lambda deadline: deadline if deadline[1] in needed else None)
        assert not before or before - len(deadlines.draining) <= COMPACTED_PER_CALL
        assert deadlines.first_heap()[0] == min(deadlines.heap + deadlines.draining)
    assert sorted(number for _, number in deadlines.heap + deadlines.draining) == sorted(needed)
