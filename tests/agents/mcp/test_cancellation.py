"""Calls that a host gives up, calls at the same time, and answers that do not come: what is told stays true."""

from __future__ import annotations

import array
import asyncio
import fcntl
import itertools
import json
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from holdfast.agents.mcp import stdio_backend
from holdfast.agents.mcp.stdio import JOBS
from holdfast.agents.mcp.stdio_backend import BackgroundTasks
from holdfast.errors import LeaseLost, Unreachable
from tests.agents.mcp.hosts import Home, run
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import wait_until
from tests.support.server import ServerProcess

ANSWER_SECONDS_MAX = 30
PIPE_BYTES = 4_096
"""The smallest size of a pipe: less than two answers of `tools/list`."""
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


class Pipe:
    """A host that writes each message itself, and so can cancel a call, or stop to read."""

    def __init__(self, home: Home, owner: str) -> None:
        parameters = home.parameters(owner)
        env = {**os.environ, **(parameters.env or {})}
        command = [sys.executable, *parameters.args]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self.answers: dict[int, dict[str, Any]] = {}
        self._ids = itertools.count()
        self.take(self.send("initialize", **HELLO))
        self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Close the input of the process, and see it end."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(ANSWER_SECONDS_MAX)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()

    def send(self, method: str, **params: object) -> int:
        """Send a request, and return its id."""
        number = next(self._ids)
        self._write({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        return number

    def begin(self, tool: str, **arguments: object) -> int:
        """Call a tool, and do not wait for its answer."""
        return self.send("tools/call", name=tool, arguments=arguments)

    def cancel(self, number: int) -> None:
        """Give a call up."""
        self._write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}})

    def take(self, number: int) -> dict[str, Any]:
        """Read until the answer to a request is there, and return it."""
        assert self.process.stdout is not None
        while number not in self.answers:
            answer = json.loads(self.process.stdout.readline())
            self.answers[answer["id"]] = answer.get("result", answer)
        return self.answers[number]

    def call(self, tool: str, **arguments: object) -> dict[str, Any]:
        """Call a tool that answers with a result."""
        result: dict[str, Any] = self.take(self.begin(tool, **arguments))["structuredContent"]
        return result

    def _write(self, message: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()


@pytest.fixture
def pipe(home: Home) -> Iterator[Pipe]:
    """The host of an agent, ana."""
    with Pipe(home, "ana") as host:
        yield host


def _names(result: dict[str, Any]) -> list[str]:
    return [each["job"] for each in result["jobs"]]


def _unread(pipe: Pipe) -> int:
    """Return how many bytes of answers wait in the pipe."""
    assert pipe.process.stdout is not None
    count = array.array("i", [0])
    fcntl.ioctl(pipe.process.stdout.fileno(), termios.FIONREAD, count)
    return count[0]


def test_job_that_is_being_released_is_not_held(pipe: Pipe, operator: Api, name: str) -> None:
    """A claim beside a release of the same job is told what the server says: it never has what was just given back."""
    for job in (f"{name}/{number}" for number in range(10)):
        pipe.call("claim_job", job=job)
        release, claim = pipe.begin("release_job", job=job), pipe.begin("claim_job", job=job)
        assert pipe.take(release)["structuredContent"]["status"] == "released"
        has = pipe.take(claim)["structuredContent"]["status"] == "acquired"
        assert has == (operator.status(job).json()["owner"] == "ana")
        assert has == (job in _names(pipe.call("my_jobs")))


def test_release_that_was_cancelled_is_done(tmp_path: Path, name: str) -> None:
    """A release goes on when its call is cancelled, and the job is not told to be held: neither then, nor later."""
    with (
        ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server,
        Pipe(Home(tmp_path, server), "ana") as pipe,
    ):
        pipe.call("claim_job", job=name)
        server.pause()
        try:
            release = pipe.begin("release_job", job=name)
            pipe.cancel(release)
            assert _names(pipe.call("my_jobs")) == []
        finally:
            server.resume()
        operator = Api.of(server, callers.OPERATOR)
        wait_until(lambda: operator.status(name).json()["owner"] is None)
        assert pipe.call("my_jobs") == {"status": "listed", "owner": "ana", "jobs": []}
        assert pipe.call("heartbeat_job", job=name)["status"] == "not_yours"
        home = Home(tmp_path, server)
        pipe.end()
        with Pipe(home, "ana") as next_one:
            # It was given back: the next process must not be told that it lost it.
            assert next_one.call("my_jobs") == {"status": "listed", "owner": "ana", "jobs": []}
            assert (
                next_one.call("claim_job", job=name)["fencing_token"] == operator.status(name).json()["fencing_token"]
            )


def test_cancelled_claim_is_released(pipe: Pipe, operator: Api, name: str) -> None:
    """A call that was given up before its answer claims nothing: nobody knows of it, and it would be kept for ever."""
    jobs = {}
    for number in range(30):
        job = f"{name}/{number}"
        jobs[pipe.begin("claim_job", job=job, note="here")] = job
        for _ in range(number % 6):
            pipe.take(pipe.send("ping"))
        pipe.cancel(max(jobs))
    pipe.call("my_jobs")
    unknown = {job for number, job in jobs.items() if number not in pipe.answers}
    assert unknown, "every call was answered before it was cancelled"
    wait_until(lambda: all(operator.status(job).json()["owner"] is None for job in unknown))
    assert not unknown & set(_names(pipe.call("my_jobs")))


def test_two_waits_for_one_job_end_nothing(pipe: Pipe, operator: Api, name: str) -> None:
    """A model may wait for one job in two calls: both are told that it is theirs."""
    lease = operator.acquired(name, owner="boss")
    waits = [pipe.begin("wait_for_job", job=name, seconds=30) for _ in range(2)]
    assert pipe.call("wait_for_job", job=name, seconds=1)["status"] == "waiting"
    assert operator.release(name, lease["lease_id"]).status == 200
    assert [pipe.take(each)["structuredContent"]["status"] for each in waits] == ["acquired", "acquired"]


def test_granted_and_lost_job_is_not_reported_as_held(home: Home, operator: Api, name: str) -> None:
    """A turn that came between two calls, and was revoked before the second, is told as lost and not as acquired."""

    async def test() -> None:
        async with home.host("ana") as ana:
            lease = operator.acquired(name, owner="boss")
            await ana.call("wait_for_job", job=name, seconds=1)
            assert operator.release(name, lease["lease_id"]).status == 200
            await asyncio.to_thread(wait_until, lambda: operator.status(name).json()["owner"] == "ana")
            before = operator.status(name).json()["fencing_token"]
            async with ana.client.listen(resource_subscriptions=[JOBS]) as events:
                assert operator.revoke(name, reason="test").status == 204
                await anext(aiter(events))
            result = await ana.call("wait_for_job", job=name, seconds=1)
            assert result.get("fencing_token") != before
            assert [each["job"] for each in result["lost"]] == [name]

    run(test())


@pytest.mark.parametrize("how", ["signal", "input"])
def test_host_that_does_not_read_holds_no_job(home: Home, operator: Api, name: str, how: str) -> None:
    """A host that lives and does not read its answers can still end the process, which gives everything back."""
    with Pipe(home, "ana") as pipe:
        pipe.call("claim_job", job=name)
        assert pipe.process.stdout is not None
        fcntl.fcntl(pipe.process.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        flood = b"".join(
            json.dumps({"jsonrpc": "2.0", "id": f"x{number}", "method": "tools/list"}).encode() + b"\n"
            for number in range(100)
        )
        assert pipe.process.stdin is not None
        pipe.process.stdin.write(flood)
        pipe.process.stdin.flush()
        wait_until(lambda: _unread(pipe) > PIPE_BYTES // 2)
        if how == "signal":
            pipe.process.send_signal(signal.SIGTERM)
        else:
            pipe.process.stdin.close()
        assert pipe.process.wait(ANSWER_SECONDS_MAX) == 0
        assert operator.status(name).json()["owner"] is None


def test_unanswered_release_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release is tried until the server has answered, or it is not needed any more."""
    monkeypatch.setattr(stdio_backend, "RETRY_SECONDS", 0.0)
    tries: list[str] = []

    async def away(times: int, then: Exception | None) -> None:
        tries.append("try")
        if len(tries) <= times:
            raise Unreachable("http://127.0.0.1", "no answer")
        if then is not None:
            raise then

    async def test() -> None:
        for then in (None, LeaseLost("it is another's")):
            tries.clear()
            work = BackgroundTasks()
            work.retry(lambda: away(3, then), lambda: True)  # noqa: B023 - it ends within the turn
            await asyncio.wait(work.unfinished)
            assert len(tries) == 4
        tries.clear()
        work = BackgroundTasks()
        work.retry(lambda: away(1_000, None), lambda: len(tries) < 5)
        await asyncio.wait(work.unfinished)
        assert len(tries) == 5

    run(test())
