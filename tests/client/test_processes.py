"""Clients in processes of their own: killed, stopped, cut off, and on a way that loses answers. One owner, always."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from holdfast import AsyncHoldfast, Holdfast, JobHeld, LeaseLost
from holdfast.client.effects import Send
from tests.client.both import KINDS, Both, Either
from tests.support import callers
from tests.support.checks import at_once, wait_until
from tests.support.proxy import LeakyProxy
from tests.support.server import ServerProcess, serving
from tests.support.supervised import state_of

SECONDS_MAX = 30.0
"""Bounds every wait. Nothing is proved by it passing."""

OWNER = """
import sys, holdfast
job, ttl, wait = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
try:
    claim = holdfast.claim(job, ttl=ttl, wait=wait, owner=sys.argv[4])
except holdfast.JobHeld as held:
    print("held by", held.owner, flush=True)
else:
    before = claim.previous
    claim.note("step 3 of 5")
    print("works", claim.fencing_token, before and (before.owner, before.ended, before.note), flush=True)
    sys.stdin.readline()
    claim.release()
    print("released", flush=True)
"""

STOPPED = """
import os, signal, sys, holdfast
claim = holdfast.claim(sys.argv[1], ttl=float(sys.argv[2]))
print("works", flush=True)
acted = 0
while not claim.lost.is_set():
    acted += 1
    print("acts", flush=True)
    if acted == 5:
        os.kill(os.getpid(), signal.SIGSTOP)
try:
    claim.raise_if_lost()
except holdfast.LeaseLost as lost:
    print("lost", lost.reason, claim.remaining, flush=True)
"""


class Worker:
    """A program in a process of its own, which says a line for everything it does."""

    def __init__(self, program: str, server: ServerProcess, folder: Path, *arguments: object) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)],
            env={
                **clean,
                "XDG_CONFIG_HOME": str(folder),
                "HOLDFAST_URL": server.url,
                "HOLDFAST_TOKEN": callers.ALICE,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        self._out: IO[str] = self.process.stdout  # type: ignore[assignment]

    def line(self) -> str:
        """What it says next; '' when it has ended."""
        return self._out.readline().strip()

    def kill(self) -> None:
        self.process.kill()

    def finish(self) -> list[str]:
        """Let it go on and end; what it said until then."""
        said, _ = self.process.communicate("go\n", timeout=SECONDS_MAX)
        return said.split("\n")[:-1]

    def clear(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@contextmanager
def workers(server: ServerProcess, folder: Path) -> Iterator[Any]:
    """Starts workers and leaves none behind."""
    started: list[Worker] = []

    def start(program: str, *arguments: object) -> Worker:
        started.append(Worker(program, server, folder, *arguments))
        return started[-1]

    yield start
    for worker in started:
        worker.clear()


def test_five_processes_one_owner(server: ServerProcess, client: Holdfast, tmp_path: Path, job: str) -> None:
    """C3, C7: of five processes with one token and one name one works and four are told; when it is killed another
    takes over, and is told who was there, that its time passed, and what it said last.
    """
    with workers(server, tmp_path) as start:
        five = [start(OWNER, job, 3, 0, "triage") for _ in range(5)]
        said = {worker: worker.line() for worker in five}
        working = [worker for worker, line in said.items() if line.startswith("works")]
        assert len(working) == 1, said
        assert sorted(said.values())[:4] == ["held by triage"] * 4
        heir = start(OWNER, job, 3, SECONDS_MAX, "heir")
        wait_until(lambda: client.job(job).waiting == 1, seconds_max=SECONDS_MAX)
        working[0].kill()
        token = int(said[working[0]].split()[1])
        line = heir.line()
        assert int(line.split()[1]) > token
        assert line.endswith("('triage', 'expired', 'step 3 of 5')")
        assert heir.finish() == ["released"]
    assert client.get_job_owner(job) is None


def test_stopped_process_sees_the_loss_first(server: ServerProcess, client: Holdfast, tmp_path: Path, job: str) -> None:
    """T4: a process that was stopped for longer than its ttl finds the claim lost before it acts again."""
    ttl = 2
    with workers(server, tmp_path) as start:
        worker = start(STOPPED, job, ttl)
        assert [worker.line() for _ in range(6)] == ["works", *["acts"] * 5]
        wait_until(lambda: state_of(worker.pid) == "T", seconds_max=SECONDS_MAX)
        stopped = time.monotonic()
        with client.claim(job, owner="next", wait=SECONDS_MAX) as heir:
            wait_until(lambda: time.monotonic() > stopped + 2 * ttl, seconds_max=SECONDS_MAX)
            os.kill(worker.pid, signal.SIGCONT)
            assert worker.finish() == ["lost expired 0.0"]
            heir.raise_if_lost()
            assert heir.previous is not None and heir.previous.ended == "expired"


@pytest.fixture
def pair(server_of_one_s_own: ServerProcess, nowhere: dict[str, str]) -> Iterator[list[Either]]:
    """A client of each kind."""
    kinds = [Both(kind) for kind in KINDS]
    options: dict[str, Any] = {"token": callers.ALICE, "environment": nowhere, "retry_seconds": 1}
    yield [both.client(url=server_of_one_s_own.url, **options) for both in kinds]
    for both in kinds:
        both.close()


@pytest.fixture
def server_of_one_s_own(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that the test may kill."""
    with serving(tmp_path / "data", tokens=callers.TOKENS) as process:
        yield process


def test_renewal_survives_a_restart(server_of_one_s_own: ServerProcess, pair: list[Either], job: str) -> None:
    """A claim outlives the server's death: its renewals fail, go on when the server is back, and nothing is lost."""
    claims = [client.claim(f"{job}/{number}", ttl=15) for number, client in enumerate(pair)]
    tokens = [claim.fencing_token for claim in claims]
    server_of_one_s_own.kill()
    wait_until(lambda: all(claim._deadline.trouble for claim in claims), seconds_max=SECONDS_MAX)
    assert not any(claim.lost.is_set() for claim in claims)
    with server_of_one_s_own.restart():
        wait_until(lambda: not any(claim._deadline.trouble for claim in claims), seconds_max=SECONDS_MAX)
        for client, claim in zip(pair, claims, strict=True):
            owner = client.get_job_owner(claim.job_id)
            assert (owner.fencing_token, owner.last_heartbeat_at > owner.claimed_at) == (claim.fencing_token, True)
            assert not claim.lost.is_set()
            claim.release()
    assert [claim.fencing_token for claim in claims] == tokens


def test_server_gone_for_good(server_of_one_s_own: ServerProcess, pair: list[Either], job: str) -> None:
    """I4: without a server a claim is lost as unreachable, and nobody believes in it when the lease may have ended."""
    ttl = 3
    claims = []
    sent: list[list[float]] = [[], []]
    for number, client in enumerate(pair):
        inner = getattr(client, "_inner", client)
        inner._transport.send = recording(inner._transport.send, sent[number])
        claims.append(client.claim(f"{job}/{number}", ttl=ttl))
    server_of_one_s_own.kill()
    lost: set[int] = set()
    while len(lost) < 2:
        for number, claim in enumerate(claims):
            looked = time.monotonic()
            if claim.lost.is_set():
                lost.add(number)
            else:
                assert looked < sent[number][-1] + ttl, "it still believes when the lease may have ended"
        assert time.monotonic() < sent[0][-1] + SECONDS_MAX
    for claim in claims:
        with pytest.raises(LeaseLost) as caught:
            claim.raise_if_lost()
        assert caught.value.reason == "unreachable"
        claim.release()


def recording(send: Any, sent: list[float]) -> Any:  # noqa: ANN401 - of either kind
    """Note when each request was sent that was answered."""
    if not inspect.iscoroutinefunction(send):

        def recorded(request: Send) -> Any:  # noqa: ANN401 - an answer
            began = time.monotonic()
            answer = send(request)
            sent.append(began)
            return answer

        return recorded

    async def awaited(request: Send) -> Any:  # noqa: ANN401 - an answer
        began = time.monotonic()
        answer = await send(request)
        sent.append(began)
        return answer

    return awaited


def test_lost_answers_cost_nothing(server: ServerProcess, client: Holdfast, nowhere: dict[str, str], job: str) -> None:
    """C5, I8: on a way that loses one answer in ten every claim is had once and given back once, and none is left."""
    names = [f"{job}/{number}" for number in range(5)]
    had: list[tuple[str, int]] = []

    def threads(proxy: LeakyProxy, worker: int) -> int:
        with Holdfast(proxy.url, token=callers.ALICE, environment=nowhere) as holdfast:
            for turn in range(25):
                name = names[(worker + turn) % len(names)]
                with holdfast.claim(name, wait=SECONDS_MAX, owner=f"thread-{worker}") as claim:
                    had.append((name, claim.fencing_token))
        return 25

    def tasks(proxy: LeakyProxy) -> int:
        return asyncio.run(all_tasks(proxy))

    async def all_tasks(proxy: LeakyProxy) -> int:
        async with AsyncHoldfast(proxy.url, token=callers.ALICE, environment=nowhere) as holdfast:
            return sum(await asyncio.gather(*(task(holdfast, worker) for worker in range(6))))

    async def task(holdfast: AsyncHoldfast, worker: int) -> int:
        for turn in range(25):
            name = names[(worker + turn) % len(names)]
            try:
                async with holdfast.claim_all([name, f"{job}/own-{worker}"], owner=f"task-{worker}") as claims:
                    had.extend(claims.fencing_tokens.items())
            except JobHeld:
                async with holdfast.claim(name, wait=SECONDS_MAX, owner=f"task-{worker}") as claim:
                    had.append((name, claim.fencing_token))
        return 25

    with LeakyProxy(server, one_in=10, seed=8_731) as proxy:
        calls = [lambda: tasks(proxy), *(lambda worker=worker: threads(proxy, worker) for worker in range(4))]
        assert sum(at_once(calls, seconds_max=120)) == 250
        assert proxy.lost > 50
    every = [*names, *(f"{job}/own-{worker}" for worker in range(6))]
    happened = [
        (each.event, each.job_id, each.fencing_token) for name in every for each in client.history(name, limit=10_000)
    ]
    for event in ("granted", "released"):
        assert sorted(each[1:] for each in happened if each[0] == event) == sorted(had), event
    assert client.list_claimed_jobs(job) == []
    assert [client.job(name).waiting for name in every] == [0] * len(every)


LEFT = """
import sys, warnings, holdfast
warnings.simplefilter("always")
session = holdfast.session("left")
claims = [holdfast.claim(sys.argv[1]), holdfast.claim_all([sys.argv[1] + "/2"]), session.claim(sys.argv[1] + "/3")]
with holdfast.claim(sys.argv[1] + "/4"):
    pass
"""


def test_exit_releases_remaining_claims(
    server: ServerProcess, client: Holdfast, tmp_path: Path, job: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A program that ends with claims in its hands gives them back, as failed, and warns of each."""
    with workers(server, tmp_path) as start:
        worker = start(LEFT, job)
        worker.finish()
        assert worker.process.returncode == 0
    assert client.list_claimed_jobs(job) == []
    assert [client.history(f"{job}{more}")[0].event for more in ("", "/2", "/3")] == [
        "released",
        "released",
        "session_ended",
    ]
    assert [client.job(f"{job}{more}").attempts for more in ("", "/4")] == [1, 0]
    said = capfd.readouterr().err
    assert said.count("to the end of the program") == 3 and "the session left was held" in said


def test_unreachable_server_does_not_delay_exit(tmp_path: Path, job: str) -> None:
    """At exit a server that does not answer is asked for a short time only."""
    with serving(tmp_path / "data", tokens=callers.TOKENS) as server, workers(server, tmp_path) as start:
        worker = start(f"{LEFT}\nprint('ends', flush=True)\nsys.stdin.readline()", job)
        assert worker.line() == "ends"
        os.kill(server.pid, signal.SIGSTOP)
        try:
            worker.finish()
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert worker.process.returncode == 0
