"""`holdfast watch`, `history` and `why`, against a real server."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from holdfast.cli.main import run as run_here
from holdfast.wire.replies import WhyLink, WhyReply, WhyWaiter
from tests.cli.background_command import CLOCK, BackgroundCommand, clean_environment
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique, wait_until
from tests.support.pending import waiting
from tests.support.server import ServerProcess

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def reader(server: ServerProcess, holdfast: Run) -> Run:
    """Runs `holdfast …` with a token that may only look."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return holdfast(*arguments, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.READER)

    return run


@pytest.fixture
def api(server: ServerProcess) -> Api:
    return Api.of(server, callers.ALICE)


def watching(server: ServerProcess, home: Path, *arguments: str, terminal: bool = False) -> BackgroundCommand:
    environment = clean_environment(home, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.READER)
    return BackgroundCommand("watch", *arguments, environment=environment, terminal=terminal)


def last_seq(api: Api, job: str) -> int:
    seq: int = api.history(job, limit=1).json()["history"][0]["seq"]
    return seq


def test_watch_prints_events(server: ServerProcess, api: Api, tmp_path: Path) -> None:
    """`watch` has a line for each event under its prefix as it happens; Ctrl-C ends it with 130 and nothing more."""
    prefix = unique("watch") + "/"
    before = api.acquired(f"{prefix}before")
    after = last_seq(api, f"{prefix}before")
    with watching(server, tmp_path, prefix, "--after", str(after)) as watch:
        token = api.acquired(f"{prefix}a", owner="agent-1")["fencing_token"]
        api.acquired(unique("elsewhere"))
        api.release(f"{prefix}before", before["lease_id"], outcome="failed")
        watch.until("released")
        Api.of(server, callers.OPERATOR).revoke(f"{prefix}a", reason="too slow")
        watch.until("revoked")
        watch.interrupt()
        assert watch.end() == 130
        first, second, third = watch.shown.splitlines()
    assert re.fullmatch(rf"{CLOCK}  granted       {prefix}a  agent-1  fencing token {token}  by alice", first)
    assert re.fullmatch(
        rf"{CLOCK}  released      {prefix}before  \(access token alice\)  fencing token \d+  by alice: failed", second
    )
    assert re.fullmatch(
        rf"{CLOCK}  revoked       {prefix}a  agent-1  fencing token {token}  by operator: too slow", third
    )


def test_watch_goes_on_through_a_restart(tmp_path: Path) -> None:
    """With --json each event is a line, and none is missing or doubled when the server is killed and comes back."""
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        api = Api.of(server, callers.ALICE)
        api.acquired("first")
        with watching(server, tmp_path, "--json", "--after", "0") as watch:
            watch.until('"first"')
            server.kill()
            with server.restart() as again:
                Api.of(again, callers.ALICE).acquired("second")
                watch.until('"second"')
                watch.interrupt()
                assert watch.end() == 130
            events = [json.loads(line) for line in watch.shown.splitlines() if line.startswith("{")]
    assert [(event["event"], event["job_id"]) for event in events if event["event"] == "granted"] == [
        ("granted", "first"),
        ("granted", "second"),
    ]
    assert [event["seq"] for event in events] == sorted({event["seq"] for event in events})


def test_watch_says_that_the_server_is_away(tmp_path: Path) -> None:
    """A server that is away is said on standard error, once, and so is that it is back."""
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        Api.of(server, callers.ALICE).acquired("first")
        with watching(server, tmp_path, "--after", "0") as watch:
            watch.until("first")
            server.kill()
            watch.until("holdfast: the server is away (")
            with server.restart() as again:
                watch.until("holdfast: the server is back\n")
                Api.of(again, callers.ALICE).acquired("second")
                watch.until("second")
            assert watch.shown.count("the server is away") == 1


def test_watch_is_in_colour_on_a_terminal(server: ServerProcess, api: Api, tmp_path: Path) -> None:
    """On a terminal the event is in colour."""
    job = unique("colour")
    api.acquired(job)
    with watching(server, tmp_path, job, "--after", str(last_seq(api, job) - 1), terminal=True) as watch:
        assert "\x1b[32mgranted" in watch.until("granted")


def test_history_prints_past_owners(reader: Run, api: Api, server: ServerProcess) -> None:
    """`history` has a row for each thing that happened to a job, newest first, with who did it and why."""
    job = unique("history")
    lease = api.acquired(job, owner="agent-1")
    api.release(job, lease["lease_id"])
    api.acquired(job, owner="agent-2")
    Api.of(server, callers.OPERATOR).revoke(job, reason="too slow")
    head, *rows = reader("history", job).stdout.splitlines()
    assert head.split() == ["WHEN", "AGO", "EVENT", "OWNER", "FENCING", "TOKEN", "BY", "REASON"]
    assert [re.split(r" {2,}", row)[2:4] for row in rows] == [
        ["revoked", "agent-2"],
        ["granted", "agent-2"],
        ["released", "agent-1"],
        ["granted", "agent-1"],
    ]
    assert rows[0].rstrip().endswith("operator  too slow")
    cut = reader("history", job, "--limit", "2")
    assert len(cut.stdout.splitlines()) == 3 and "there is more" in cut.stderr
    assert reader("history", job, "--limit", "4").stderr == ""
    assert len(reader("history", job, "--owner", "agent-1").stdout.splitlines()) == 3
    reply = json.loads(reader("history", job, "--json").stdout)["history"]
    assert [event["event"] for event in reply] == ["revoked", "granted", "released", "granted"]


def test_history_between_two_times(reader: Run, api: Api) -> None:
    """`--since` and `--until` leave what happened between them, and nothing is said beside the result."""
    job = unique("history")
    api.acquired(job)
    assert len(reader("history", job, "--since", "1h").stdout.splitlines()) == 2
    done = reader("history", job, "--until", "1h")
    assert (done.returncode, done.stdout) == (0, "") and "nothing is known" in done.stderr
    unknown = reader("history", unique("never"))
    assert (unknown.returncode, unknown.stdout) == (0, "") and "like this" not in unknown.stderr
    assert reader("history", job, "--since", "yesterday").returncode == 64


def test_why_draws_the_chain(reader: Run, server: ServerProcess, api: Api) -> None:
    """`why` follows the waits to the owner everybody waits for, and lists who stands in line."""
    deploy, base = unique("deploy"), unique("base")
    lease = api.acquired(base, owner="agent-2", ttl_seconds=600)
    api.renew(base, lease["lease_id"], keep_ttl=True, note="migrating")
    api.acquired(deploy, owner="agent-1")
    with (
        waiting(api, base, owner="agent-1"),
        waiting(Api.of(server, callers.BOB), deploy, owner="agent-3"),
    ):
        wait_until(lambda: api.status(base).json()["waiting"] == 1 == api.status(deploy).json()["waiting"])
        shown = reader("why", deploy).stdout.splitlines()
        reply = json.loads(reader("why", deploy, "--json").stdout)
    assert re.match(rf"{deploy} is held by agent-1 since {CLOCK} \(\d+ s\), last heartbeat ", shown[0])
    assert shown[1] == f"   agent-1 waits for {base}"
    assert re.match(rf"└─ {base} is held by agent-2 since .* (9|10) min left", shown[2])
    assert shown[3] == "      note: migrating"
    assert shown[4] == "everybody waits for agent-2, who waits for nobody"
    assert shown[5] == f"in line for {deploy}:"
    assert re.fullmatch(r"   1\. agent-3 for \d+ s", shown[6])
    assert [link["name"] for link in reply["chain"]] == [deploy, base] and reply["circle"] is False


def test_why_of_a_free_job(reader: Run) -> None:
    """A free job is said to be free."""
    job = unique()
    assert reader("why", job).stdout == f"{job} is free\nnobody stands in line for {job}\n"


class _Cycle:
    """A server in whose answer two owners wait for each other."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def why(self, job: str) -> WhyReply:
        def link(name: str, owner: str, wanted: str) -> WhyLink:
            at = "2026-11-15T02:14:05.000Z"
            return WhyLink(name, "held", owner, at, at, 60_000, None, [wanted])

        chain = [link("a", "one", "b"), link("b", "two", "c"), link("c", "three", "b"), link("b", "two", "c")]
        return WhyReply(job, chain, [WhyWaiter("three", "2026-11-15T02:14:05.000Z", there=False)], circle=True)


def test_why_marks_a_cycle(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A circle is marked with the jobs in it, and with what an operator can do."""
    monkeypatch.setattr("holdfast.cli.operators.watch.client", lambda *_: _Cycle())
    assert run_here(["why", "a"]) == 0
    shown = capsys.readouterr()
    assert "CIRCLE: b -> c -> b: nobody in it can go on by itself\n" in shown.out
    assert "away at the moment" in shown.out
    assert "holdfast revoke b --reason" in shown.err
