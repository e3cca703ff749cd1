"""Interrupts at every step of a claim's scenario (I11, L1): nothing is renewed that nobody has, and the client goes on.

An interrupt is `KeyboardInterrupt`, raised in the main thread between any two steps of it. Here it is placed: at the
n-th step of a scenario, for every n. A step is a line, or the call or return of a function, of our code and of the
standard library's alike. Afterwards the claim is released, or it expires: then it is free soon.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from holdfast import Holdfast
from tests.client import interrupted
from tests.support import callers, proof
from tests.support.checks import unique, wait_until
from tests.support.server import PROJECT, ServerProcess

SECONDS_MAX = 30.0


@pytest.mark.parametrize(
    ("scenario", "before"),
    [
        *((scenario.__name__, "") for scenario in interrupted.SCENARIOS),
        *((scenario.__name__, "http://127.0.0.1:1,") for scenario in (interrupted.claimed, interrupted.waited_for)),
    ],
)
def test_interrupt_at_every_step_leaves_nothing(
    server: ServerProcess, scenario: str, before: str, record_property: Callable[..., None]
) -> None:
    """After an interrupt at any step nothing is renewed that nobody has, the client and its keeper go on, and the job
    is free at once, or when its term is over. Where there are several addresses, too.
    """
    wanted = proof.count("interrupts: steps of each scenario, at most")
    program = [sys.executable, "-m", "tests.client.interrupted"]
    ran = subprocess.run(
        [*program, scenario, before + server.url, callers.ALICE, unique("interrupts"), str(wanted)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-5_000:]
    tried, came_out, left = map(int, ran.stdout.split()[-3:])
    assert came_out > tried * 0.8
    if scenario in {each.__name__ for each in interrupted.WITH}:
        # Most are given back at once. One that comes as the block begins or ends can only be left to its term.
        assert left < tried * 0.1
    record_property("count: interrupts placed", tried)
    record_property("count: interrupts after which a term had to end", left)


REAL = """
import random, signal, sys, time, warnings
import holdfast
from tests.client.interrupted import SCENARIOS
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
        chance.choice(SCENARIOS)(client, f"{prefix}/{turn}")
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
    with subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            assert "interrupts in" in process.stdout.readline()
            wait_until(lambda: client.list_claimed_jobs(prefix) == [], seconds_max=SECONDS_MAX)
            process.stdin.close()
            assert process.wait(SECONDS_MAX) == 0
        finally:
            process.kill()
    record_property("count: real interrupts", wanted)
