"""Interrupts at every step of a claim's life (I11, L1): nothing is renewed that nobody has, and the client goes on.

An interrupt is `KeyboardInterrupt`, raised in the main thread between any two steps of it. Here it is placed: at the
n-th step of a life, for every n. A step is a line, or the call or return of a function, of our code and of the standard
library's alike. Afterwards the claim is given back, or its term ends it: then it is free soon.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from holdfast import Holdfast, JobHeld
from holdfast.client.flows.effects import Flow, Rest
from holdfast.client.threads.background import background_thread
from tests.support import callers, proof
from tests.support.checks import unique, wait_until
from tests.support.server import ServerProcess

SECONDS_MAX = 30.0
TTL = 4
Life = Callable[[Holdfast, str], object]


def claimed(client: Holdfast, job: str) -> None:
    with client.claim(job, ttl=TTL) as claim:
        claim.note("begun")


def looked_at(client: Holdfast, job: str) -> None:
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


WITH: list[Life] = [claimed, looked_at, first_of_two, several, by_session]
LIVES = [*WITH, done, handed_over, waited_for]


@contextmanager
def traced(hear: Callable[[str], None]) -> Iterator[None]:
    """Calls `hear` at every step of this thread, but for those of this file."""

    def trace(frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - it returns itself
        if frame.f_code.co_filename != __file__:
            hear(f"{event} of {frame.f_code.co_qualname}, line {frame.f_lineno} of {frame.f_code.co_filename}")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def steps_of(life: Life, client: Holdfast, job: str) -> int:
    counted: list[int] = []
    with traced(lambda _: counted.append(1)):
        life(client, job)
    return len(counted)


def interrupted_at(step: int, life: Life, client: Holdfast, job: str, places: list[str]) -> bool:
    """Live this life, interrupt it at that step, and note where that is. Returns whether the interrupt came out."""
    left = [step]

    def hear(place: str) -> None:
        left[0] -= 1
        if left[0] == -1:
            places.append(place)
            raise KeyboardInterrupt

    try:
        raise LookupError
    except LookupError:
        # In here, because what is raised by tracing at the end of an `except` leaves that exception as the current one,
        # and with it all that its frames held. What was current before is so again when this block is left.
        try:
            with traced(hear):
                life(client, job)
        except KeyboardInterrupt:
            return True
    return False


def places(steps: int) -> list[int]:
    """Which steps this run tries: each, or so many of them, spread."""
    wanted = proof.count("interrupts: places of each life, 0 for every one") or steps
    return sorted({round(at * steps / wanted) for at in range(wanted)})


def renewed_now() -> list[str]:
    """What the background still renews, or watches."""
    keeper = background_thread()
    flows = [each[2].item for each in tuple(keeper._schedule._heap)] + [each[1] for each in tuple(keeper._inbox)]
    found = [repr(flow.flow) for flow in flows if flow is not None and not flow.is_over]
    return [each for each in found if "watch_deadline" in each or "keep_renewed" in each]


def keeper_goes_on() -> bool:
    resumed = threading.Event()

    def rest() -> Flow[None]:
        yield Rest(0)
        resumed.set()

    background_thread().add(rest(), lambda _: None)
    return resumed.wait(SECONDS_MAX)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # What is dropped says so, and sockets of the library do.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # An interrupt inside of `__del__`.
@pytest.mark.parametrize("life", LIVES)
def test_interrupted_at_every_step(
    client: Holdfast, server: ServerProcess, nowhere: dict[str, str], life: Life, record_property: Callable[..., None]
) -> None:
    """After an interrupt at any step nothing is renewed that nobody has, the client and its keeper go on, and the job
    is free at once, or when its term is over.
    """
    prefix = unique("interrupts")
    life(client, f"{prefix}/warm")
    steps = steps_of(life, client, f"{prefix}/counted")
    tried, came_out, left = places(steps), 0, 0
    for step in tried:
        where = [f"step {step} of {steps}"]
        came_out += interrupted_at(step, life, client, f"{prefix}/{step}", where)
        if renewed_now():
            gc.collect()
        assert renewed_now() == [], where
        assert keeper_goes_on(), where
        client.claim(f"{prefix}/after").release()
        left += bool(client.list_claimed_jobs(f"{prefix}/{step}"))
    gc.collect()
    wait_until(lambda: client.list_claimed_jobs(prefix) == [], seconds_max=SECONDS_MAX)
    assert came_out > len(tried) * 0.8
    if life in WITH:
        # Most are given back at once. One that comes as the block begins or ends can only be left to its term.
        assert left < len(tried) * 0.1
    record_property("count: interrupts placed", len(tried))
    record_property("count: interrupts after which a term had to end", left)


REAL = """
import random, signal, sys, time, warnings
import holdfast
from tests.client.test_interrupts import LIVES
warnings.simplefilter("ignore")
url, token, prefix, wanted, seed = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
chance = random.Random(seed)
client = holdfast.Holdfast(url, token=token, environment={"HOME": "/nonexistent"})
came = 0
def hear(*_):
    global came
    came += 1
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, hear)
turn = 0
while came < wanted:
    turn += 1
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0002, 0.02))
        chance.choice(LIVES)(client, f"{prefix}/{turn}")
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        pass
    except holdfast.HoldfastError as error:
        print("unexpected", type(error), error, file=sys.stderr)
for number in range(20):
    with client.claim(f"{prefix}/after-{number}"):
        pass
print(came, "interrupts in", turn, "lives", flush=True)
sys.stdin.readline()
"""


def test_real_interrupts(client: Holdfast, server: ServerProcess, record_property: Callable[..., None]) -> None:
    """A program that real signals interrupt at random goes on, however many they were, and keeps nothing."""
    prefix, wanted = unique("real"), proof.count("interrupts: real ones")
    command = [sys.executable, "-c", REAL, server.url, callers.ALICE, prefix, str(wanted), "8731"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            assert "interrupts in" in process.stdout.readline()
            wait_until(lambda: client.list_claimed_jobs(prefix) == [], seconds_max=SECONDS_MAX)
            process.stdin.close()
            assert process.wait(SECONDS_MAX) == 0
        finally:
            process.kill()
    record_property("count: real interrupts", wanted)
