"""Looks that take their time are made one after another, and those who ask take lock."""

import asyncio
from collections.abc import Callable

from holdfast.api.service import FairLock
from holdfast.testing.clock import ManualClock
from tests.engine.harness import run


def run_scenario(scene: Callable[[FairLock, list[str]], object]) -> list[str]:
    log: list[str] = []

    async def play(_clock: ManualClock) -> None:
        result = scene(FairLock(), log)
        assert asyncio.iscoroutine(result)
        await result

    run(play)
    return log


async def hold(lock: FairLock, who: str, log: list[str]) -> None:
    async with lock.held_for(who.rstrip("0123456789")):
        log.append(f"{who} begins")
        for _ in range(3):
            await asyncio.sleep(0)
        log.append(f"{who} ends")


def test_fair_lock_takes_principals_in_turn() -> None:
    """Of nine looks by one and one look by another, the other's comes third, and no two are made at once."""

    async def scene(lock: FairLock, log: list[str]) -> None:
        await asyncio.gather(*(hold(lock, f"eve{number}", log) for number in range(9)), hold(lock, "ana", log))

    log = run_scenario(scene)
    assert log.index("ana begins") == 4
    assert [line.split()[1] for line in log] == ["begins", "ends"] * 10


def test_fair_lock_skips_cancelled_waiter() -> None:
    """A look that was given up while it waited, or just as it was given the turn, stops nobody."""

    async def scene(lock: FairLock, log: list[str]) -> None:
        tasks = [asyncio.ensure_future(hold(lock, f"eve{number}", log)) for number in range(4)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        while "eve0 ends" not in log:  # noqa: ASYNC110 - it must be seen at once
            await asyncio.sleep(0)
        # The turn was passed on in the same step.
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    assert run_scenario(scene) == ["eve0 begins", "eve0 ends", "eve3 begins", "eve3 ends"]
