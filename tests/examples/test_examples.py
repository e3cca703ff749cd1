"""Every example does what it says, against a real server."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.api import Api
from tests.support.checks import wait_until
from tests.support.program import Program
from tests.support.server import PROJECT

Start = Callable[..., Program]

EXAMPLES = PROJECT / "examples"


def test_every_example_is_tested_listed_and_explained() -> None:
    """Each file in examples/ is started by a test, has a row in the table, and opens by saying how to run it."""
    there = {path.name for path in EXAMPLES.iterdir() if path.is_file()} - {"README.md"}
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert there == set(re.findall(r'\bexample\(\s*"([\w.]+)"', tests)) | set(STORIES)
    assert there == set(re.findall(r"^\| \[([\w.]+)\]\(\1\)", table, re.MULTILINE))
    for path in sorted(there):
        text = (EXAMPLES / path).read_text(encoding="utf-8")
        opening = ast.get_docstring(ast.parse(text)) if path.endswith(".py") else text.partition("\nset -eu")[0]
        assert f"examples/{path}" in (opening or ""), f"{path} does not say how to run it"


# --- Five agents ------------------------------------------------------------------------------------------------------


def test_five_agents_have_one_owner_and_its_death_a_heir(example: Start, alice: Api, name: str) -> None:
    """Of five processes with one token and one name, one works and four say who does; after kill −9 of that one, the
    next in line goes on within the TTL and reads who was there before, how that ended, and its last note."""
    ttl_seconds = 5
    five = example(
        "five_agents.py", name, "--agent", "agent-3", "--together", 5, "--work-seconds", 100, "--ttl", ttl_seconds
    )
    told = five.said(rf"\[(\d+)\] {name} is owned by agent-3 since [\d:]+ UTC, (.+), note: .+; leaving\n", times=4)
    (mine,) = five.said(rf"\[(\d+)\] {name} is mine \(fencing token (\d+)\)\n")
    owner = int(mine[1])
    assert len({owner, *(int(each[1]) for each in told)}) == 5, five.output
    assert {each[2] for each in told} == {str({"pid": owner, "task": name})}
    wait_until(lambda: alice.status(name).json()["note"] == "reading the issue")
    assert json.loads(alice.status(name).json()["metadata"])["pid"] == owner

    heir = example("five_agents.py", name, "--agent", "agent-4", "--work-seconds", 0.1, "--wait", 60)
    wait_until(lambda: alice.status(name).json()["waiting"] == 1)
    os.kill(owner, signal.SIGKILL)
    killed = time.monotonic()
    (token,) = heir.said(rf"{name} is mine \(fencing token (\d+)\)\n")
    assert time.monotonic() - killed < ttl_seconds + 20, "what is more is for a slow machine"
    assert int(token[1]) > int(mine[2])
    heir.said(r"before me: agent-3, expired at [\d:]+ UTC, last note: reading the issue\n")
    assert (heir.ended(), five.ended()) == (0, 0)
    assert "finished" in heir.output
    assert alice.status(name).json()["status"] == "free"


def test_agent_stops_when_its_issue_is_revoked(example: Start, operator: Api, name: str) -> None:
    """An agent whose claim an operator ends stops working, and says who ended it and why."""
    agent = example("five_agents.py", name, "--work-seconds", 100, "--ttl", 3)
    agent.said("reading the issue")
    assert operator.revoke(name, reason="wrong repository").status == 204
    agent.said(r"stopping, it is not mine any more: .*operator has revoked it: wrong repository")
    assert agent.ended() == 0


# --- A singleton cron -------------------------------------------------------------------------------------------------


def test_nightly_report_is_made_once(example: Start, alice: Api, tmp_path: Path) -> None:
    """Of four machines one makes the report, at the same time or later; a machine that fails leaves it to the next."""
    wait_until(lambda: _seconds_to_midnight() > 30, seconds_max=40)  # The job's name has the date in it.
    assert example("singleton_cron.py", "--out", tmp_path / "nowhere").ended() == 1
    machines = [example("singleton_cron.py", "--out", tmp_path) for _ in range(3)]
    assert [machine.ended() for machine in machines] == [0, 0, 0]
    late = example("singleton_cron.py", "--out", tmp_path)
    assert late.ended() == 0

    said = sorted(machine.output.split()[0] for machine in machines)
    assert (said, late.output.split()[0]) == (["made", "skipped:", "skipped:"], "skipped:")
    (report,) = tmp_path.glob("report-*.txt")
    assert len(report.read_text().splitlines()) == 1
    assert alice.status(f"nightly-{report.stem}").json()["status"] == "done"


def _seconds_to_midnight() -> float:
    now = datetime.now(UTC)
    return (datetime.combine(now.date() + timedelta(days=1), datetime.min.time(), UTC) - now).total_seconds()


# --- Deploys ----------------------------------------------------------------------------------------------------------


def test_deploys_run_one_after_another(example: Start, alice: Api, name: str, tmp_path: Path) -> None:
    """Three deploys at once run one at a time; those who wait say their place and who is before them; tokens rise."""
    script = (
        "echo $HOLDFAST_FENCING_TOKEN >>log; until [ -e go ]; do sleep 0.05; done; echo $HOLDFAST_FENCING_TOKEN >>log"
    )
    deploys = [example("serialised_deploys.py", name, "--wait", 60, "--", "sh", "-c", script) for _ in range(3)]
    wait_until(lambda: alice.status(name).json()["waiting"] == 2, seconds_max=20)
    owner = re.escape(alice.status(name).json()["owner"])
    wait_until(lambda: _count(rf"waiting at place [12] for \d+ s; {name} is with {owner}\n", deploys) >= 2)
    (tmp_path / "go").touch()
    assert [deploy.ended() for deploy in deploys] == [0, 0, 0]

    tokens = [int(line) for line in (tmp_path / "log").read_text().split()]
    assert tokens == sorted(tokens) and tokens[::2] == tokens[1::2] and len(set(tokens)) == 3, tokens
    assert alice.status(name).json()["status"] == "free"


def _count(pattern: str, programs: list[Program]) -> int:
    return sum(bool(re.search(pattern, program.output)) for program in programs)


def test_deploy_that_is_revoked_is_stopped(example: Start, operator: Api, name: str) -> None:
    """A deploy whose lease is lost is ended, and its exit code and text say so."""
    script = "echo at work; exec sleep 100"
    deploy = example("serialised_deploys.py", name, "--ttl", 3, "--", "sh", "-c", script)
    deploy.said("at work")
    assert operator.revoke(name, reason="wrong build").status == 204
    assert deploy.ended() == 20, deploy.output
    deploy.said(r"stopped the deploy: .*operator has revoked it: wrong build")


def test_deploy_gives_up_when_its_turn_does_not_come(example: Start, alice: Api, name: str) -> None:
    """A deploy whose turn does not come in time names the owner and ends with 11; one that fails ends with its own."""
    lease = alice.acquired(name, ttl_seconds=60, owner="the-long-one")
    late = example("serialised_deploys.py", name, "--wait", 0.3, "--", "true")
    assert late.ended() == 11
    late.said("gave up: .*held by the-long-one")
    alice.release(name, lease["lease_id"])
    assert example("serialised_deploys.py", name, "--", "sh", "-c", "exit 3").ended() == 3
    assert alice.status(name).json()["attempts"] == 1, "a failed deploy counts as an attempt"


# --- A backlog --------------------------------------------------------------------------------------------------------


def test_every_task_is_finished_once(example: Start, alice: Api, name: str, tmp_path: Path) -> None:
    """Three consumers share six tasks and one of them is killed in the middle of one: each task is finished once, and
    the server remembers what came of it."""
    backlog = _write_backlog(tmp_path, name, 6)
    doomed = example("queue_consumer.py", backlog, "--seconds", 100, "--ttl", 2)
    (at_work,) = doomed.said(r"working on tasks/(\S+), attempt 1\n")
    others = [example("queue_consumer.py", backlog, "--seconds", 0.05, "--ttl", 2) for _ in range(2)]
    wait_until(lambda: len(_finished(others)) == 5)
    doomed.end()
    assert [other.ended() for other in others] == [0, 0]

    assert all(other.output.endswith("all tasks are finished\n") for other in others)
    ids = [f"{name}-{number}" for number in range(6)]
    assert sorted(_finished([doomed, *others])) == ids
    assert _count(rf"working on tasks/{at_work[1]}, attempt 2\n", others) == 1
    assert {path.name: path.read_text() for path in (tmp_path / "results").glob("[!.]*")} == dict.fromkeys(ids, "HELLO")
    for each in ids:
        status = alice.status(f"tasks/{each}").json()
        assert (status["status"], status["result"]) == ("done", "5 characters"), each

    late = example("queue_consumer.py", backlog)
    assert late.ended() == 0
    assert "working on" not in late.output and late.output.endswith("all tasks are finished\n")


def test_consumer_leaves_what_others_have(example: Start, alice: Api, name: str, tmp_path: Path) -> None:
    """A consumer that will not wait says who has the tasks that are left, and leaves."""
    alice.acquired(f"tasks/{name}-0", ttl_seconds=60, owner="consumer-1")
    consumer = example("queue_consumer.py", _write_backlog(tmp_path, name, 1), "--wait", 0)
    assert consumer.ended() == 0
    consumer.said(rf"tasks/{name}-0 is with consumer-1\n.*leaving the rest to them\n")


def _write_backlog(folder: Path, name: str, count: int) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps({"id": f"{name}-{number}", "text": "Hello"}) + "\n" for number in range(count)))
    return path


def _finished(programs: list[Program]) -> list[str]:
    return [found for program in programs for found in re.findall(r"finished tasks/(\S+):", program.output)]


# --- Fences -----------------------------------------------------------------------------------------------------------

STORIES = {
    "fenced_write.py": r"A: refused: fencing token \1 is too old for reports/7, which has seen \2: .*\n",
    "paused_file_write.py": r"A: refused: fencing token \1 is too old for \S+/summary.txt, which has seen \2: .*\n",
    "fenced_handler.py": r'A: answered 412 .*"stale_token".*"fencing_token": \1, "current": \2}\nA: learns .*\n',
}
"""What each of them says when the paused worker has woken up."""


@pytest.mark.parametrize("file", STORIES)
def test_paused_worker_is_refused(example: Start, alice: Api, name: str, file: str) -> None:
    """A worker that was paused past the end of its lease is refused when it writes, and what the next owner has written
    stays."""
    story = example(file, "--job", name, "--ttl", 2)
    assert story.ended() == 0, story.output
    story.said(
        r"^A: the job is mine, with token (\d+)\n"
        r"story: A is paused, and so are its heartbeats\n"
        r"B: the job is mine, with token (\d+)\n"
        r"B: (?:written|answered 204 )\n"
        r"story: A wakes up\n"
        r"(?:the claim on .* was not released: .*\n)?"  # A line of the client's log, on standard error.
        rf"{STORIES[file]}"
        r"story: the (?:file|report) was written by B\n$"
    )
    assert alice.status(name).json()["status"] == "free"
