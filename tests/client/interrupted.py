"""A program that lives a life with a client again and again, and is interrupted each time at another step of it.

A program of its own, because tracing that raises leaves its marks on a Python: current exceptions, counts of recursion.

    python -m tests.client.interrupted SCENARIO URL TOKEN PREFIX STEPS      0 steps: every step
"""

from __future__ import annotations

import gc
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from holdfast import Holdfast, JobHeld
from holdfast.client.effects import Flow, Sleep
from holdfast.client.sync import background_thread
from tests.support.checks import wait_until

SECONDS_MAX = 30.0
TTL = 4
Scenario = Callable[[Holdfast, str], object]


def claimed(client: Holdfast, job: str) -> None:
    with client.claim(job, ttl=TTL) as claim:
        claim.note("begun")


def checked(client: Holdfast, job: str) -> None:
    with client.claim(job, ttl=TTL, on_lost=print) as claim:
        claim.lost.wait(0.001)
        claim.renew()
        claim.raise_if_lost()


def done(client: Holdfast, job: str) -> None:
    claim = client.claim(job, ttl=TTL)
    claim.done(remember=1)


def first_of_two(client: Holdfast, job: str) -> None:
    with client.claim_any([f"{job}/1", f"{job}/2"], ttl=TTL):
        pass


def several(client: Holdfast, job: str) -> None:
    with client.claim_all([f"{job}/1", f"{job}/2", f"{job}/3"], ttl=TTL) as claims:
        claims.note("begun")


def by_session(client: Holdfast, job: str) -> None:
    # At least 10 s, so that a session is what is left behind longest.
    with client.session(ttl=10) as session, session.claim(job, ttl=TTL):
        pass


def handed_over(client: Holdfast, job: str) -> None:
    claim = client.claim(job, ttl=TTL)
    record = claim.transfer("another")
    client.release_job(job, record.lease_id)


def waited_for(client: Holdfast, job: str) -> None:
    held = client.claim_job(job, "first", ttl=TTL)
    try:
        client.claim(job, ttl=TTL, owner="second", wait=0.02)
    except JobHeld:
        client.release_job(job, held.lease_id)


WITH: list[Scenario] = [claimed, checked, first_of_two, several, by_session]
SCENARIOS = [*WITH, done, handed_over, waited_for]


@contextmanager
def traced(on_step: Callable[[str], None]) -> Iterator[None]:
    """Calls `on_step` at every step of this thread, but for those of this file."""

    def trace(frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - it returns itself
        if frame.f_code.co_filename != __file__:
            on_step(f"{event} of {frame.f_code.co_qualname}, line {frame.f_lineno} of {frame.f_code.co_filename}")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def steps_of(scenario: Scenario, client: Holdfast, job: str) -> int:
    counted: list[int] = []
    with traced(lambda _: counted.append(1)):
        scenario(client, job)
    return len(counted)


def interrupted_at(step: int, scenario: Scenario, client: Holdfast, job: str, positions: list[str]) -> bool:
    """Live this life, interrupt it at that step, and note where that is. Returns whether the interrupt came out."""
    remaining = [step]

    def on_step(position: str) -> None:
        remaining[0] -= 1
        if remaining[0] == -1:
            positions.append(position)
            raise KeyboardInterrupt

    try:
        raise LookupError
    except LookupError:
        # In here, because what is raised by tracing at the end of an `except` leaves that exception as the current one,
        # and with it all that its frames held. What was current before is so again when this block is left.
        try:
            with traced(on_step):
                scenario(client, job)
        except KeyboardInterrupt:
            return True
    return False


def spread_steps(steps: int, wanted: int) -> list[int]:
    """So many of the steps, spread."""
    return sorted({round(at * steps / wanted) for at in range(wanted)})


def renewed_now() -> list[str]:
    """What the background still renews, or watches."""
    keeper = background_thread()
    scheduled = [each[2] for each in tuple(keeper._schedule._heap)] + [each[1] for each in tuple(keeper._inbox)]
    found = [repr(each.flow) for each in scheduled if not each.is_over]
    return [each for each in found if any(what in each for what in ("None", "watch_deadline", "keep_renewed"))]


def keeper_runs() -> bool:
    resumed = threading.Event()

    def rest() -> Flow[None]:
        yield Sleep(0)
        resumed.set()

    background_thread().add(rest(), lambda _: None)
    return resumed.wait(SECONDS_MAX)


def main(name: str, url: str, token: str, prefix: str, wanted: int) -> None:
    """Try the steps, and print how many they were, of how many the interrupt came out, and how many expired."""
    warnings.simplefilter("ignore")  # What is dropped says so.
    sys.unraisablehook = lambda _: None  # An interrupt inside of `__del__`.
    sys.setrecursionlimit(1_000_000)
    scenario = next(each for each in SCENARIOS if each.__name__ == name)
    client = Holdfast(url, token=token, environment={})
    scenario(client, f"{prefix}/warm")
    steps = steps_of(scenario, client, f"{prefix}/counted")
    tried, came_out, remaining = spread_steps(steps, min(wanted, steps)), 0, 0
    for step in tried:
        where = [f"step {step} of {steps}"]
        came_out += interrupted_at(step, scenario, client, f"{prefix}/{step}", where)
        if renewed_now():
            gc.collect()
        assert renewed_now() == [], where
        assert keeper_runs(), where
        client.claim(f"{prefix}/after").release()
        remaining += bool(client.list_claimed_jobs(f"{prefix}/{step}"))
    gc.collect()
    wait_until(lambda: client.list_claimed_jobs(prefix) == [], seconds_max=SECONDS_MAX)
    print(len(tried), came_out, remaining)


if __name__ == "__main__":
    _, scenario_name, server_url, server_token, jobs_prefix, steps_max = sys.argv
    main(scenario_name, server_url, server_token, jobs_prefix, int(steps_max))
