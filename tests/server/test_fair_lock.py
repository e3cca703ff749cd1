"""Looks that take their time are made one after another, and those who ask take lock."""

import asyncio
from collections.abc import Callable

from holdfast.server.service import FairLock
from holdfast.testing.clock import ManualClock
from tests.engine.harness import run


def played(scene: Callable[[FairLock, list[str]], object]) -> list[str]:
    told: list[str] = []

    async def play(_clock: ManualClock) -> None:
        result = scene(FairLock(), told)
        assert asyncio.iscoroutine(result)
        await result

    run(play)
    return told


async def look(lock: FairLock, who: str, told: list[str]) -> None:
    async with lock.held_for(who.rstrip("0123456789")):
        told.append(f"{who} begins")
        for _ in range(3):
            await asyncio.sleep(0)
        told.append(f"{who} ends")


def test_one_looks_at_a_time_and_who_asks_for_many_waits_for_its_own() -> None:
    """Of nine looks by one and one look by another, the other's comes third, and no two are made at once."""

    async def scene(lock: FairLock, told: list[str]) -> None:
        await asyncio.gather(*(look(lock, f"eve{number}", told) for number in range(9)), look(lock, "ana", told))

    told = played(scene)
    assert told.index("ana begins") == 4
    assert [line.split()[1] for line in told] == ["begins", "ends"] * 10


def test_one_who_left_does_not_keep_the_turn() -> None:
    """A look that was given up while it waited, or just as it was given the turn, stops nobody."""

    async def scene(lock: FairLock, told: list[str]) -> None:
        tasks = [asyncio.ensure_future(look(lock, f"eve{number}", told)) for number in range(4)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        while "eve0 ends" not in told:  # noqa: ASYNC110 - it must be seen at once
            await asyncio.sleep(0)
        # The turn was passed on in the same step.
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    assert played(scene) == ["eve0 begins", "eve0 ends", "eve3 begins", "eve3 ends"]
