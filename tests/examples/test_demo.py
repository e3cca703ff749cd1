"""`make demo`: five agents work through a backlog, and the journal proves that each job was done exactly once."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from examples.demo.story import Story
from tests.support.checks import wait_until
from tests.support.program import Program
from tests.support.server import PROJECT

SECONDS_MAX = 90.0
"""What is more than a minute is for tests that run beside it."""
CHAPTERS = 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where temporary folders are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def environment(folder: Path, **more: str) -> dict[str, str]:
    mine = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    mine |= {"TMPDIR": str(folder), "PYTHONPATH": str(PROJECT / "src"), "PYTHONWARNINGS": "error"}
    return {**mine, "HOME": str(folder.parent), **more}


def demo(folder: Path, *arguments: object) -> Program:
    command = [sys.executable, "-m", "examples.demo", *map(str, arguments)]
    return Program(command, env=environment(folder), folder=PROJECT)


def processes(folder: Path) -> list[str]:
    """The commands of all processes that have to do with this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            said = path.joinpath("cmdline").read_bytes() + path.joinpath("environ").read_bytes()
            state = path.joinpath("stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue  # It is gone, or not ours.
        if str(folder).encode() in said and state != "Z":
            found.append(said.partition(b"\0\0")[0].decode(errors="replace"))
    return found


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], list[str]]:
    """A whole demonstration: what it printed, what its proof was made of, what it left behind."""
    folder = tmp_path_factory.mktemp("temporary")
    evidence = tmp_path_factory.mktemp("kept") / "evidence.json"
    with demo(folder, "--fast", "--evidence", evidence) as running:
        assert running.ended(SECONDS_MAX) == 0, running.output
        left = [path.name for path in folder.iterdir()] + processes(folder)
        return running.output, json.loads(evidence.read_text()), left


def test_every_job_is_done_exactly_once(seen: tuple[str, dict[str, Any], list[str]]) -> None:
    """The demonstration ends with 0, names each job as done in its proof, and leaves neither processes nor folders."""
    output, evidence, left = seen
    found = re.search(r"^Proved: (\d+) jobs, each done exactly once\.", output, re.MULTILINE)
    assert found is not None and int(found[1]) == len(evidence["backlog"])
    for job in evidence["backlog"]:
        assert re.search(rf"^   ✓ {job} .*\bdone\b", output, re.MULTILINE), job
    assert left == []
    assert "\x1b" not in output, "plain where it is not a terminal"
    assert max(map(len, output.splitlines())) <= 100


def test_demo_covers_every_chapter(seen: tuple[str, dict[str, Any], list[str]]) -> None:
    """Five race and four are refused; some stand in line; a killed one has an heir that reads its note and goes on; a
    circle is refused and named; an operator's reason reaches the agent; a late write is refused; so is a push, by the
    guard."""
    output, evidence, _ = seen
    assert len(re.findall(r"^\d\. ", output, re.MULTILINE)) == CHAPTERS
    assert len(re.findall(r"✗ issue-101 is (?:with|done, by) \w+: taking another one", output)) == 4
    assert re.search(r"place 2 in line for issue-109", output)
    victim = re.search(r"\$ kill -9 \d+   # (\w+) is gone", output)
    assert victim is not None
    (heir,) = re.findall(
        rf"(\w+) +before me: {victim[1]}, expired, whose last note is: rows 1 to 40 of 100 copied", output
    )
    assert re.search(rf"{heir} +issue-109: rows 41 to 100 copied", output)
    assert not re.search(rf"{heir} +issue-109: new table made", output)
    # Where the line is broken depends on the names.
    flat = " ".join(output.split())
    cycle = re.search(r"(\w+) waits for (\w+), which (\w+) has; (\w+) waits for (\w+), which (\w+) has", flat)
    assert cycle is not None and cycle[1] == cycle[6] and cycle[3] == cycle[4]
    assert {cycle[2], cycle[5]} == {"schema", "api"}
    assert re.search(r"✗ issue-112 is not mine any more: operator says: do not delete tests", output)
    assert re.search(r"✗ writes anyway, with fencing token \d+: refused, the ledger has seen \d+", output)
    push = re.search(
        r"(\w+) +\$ git push origin main\n.*✗ git push of main belongs to the job push-main, which another has: owner"
        r" (\w+),",
        output,
    )
    assert push is not None and push[1] != push[2]
    assert 'its note: "issue-113: release 2.4, no pushes to main please"' in re.sub(r"\s+", " ", output)
    assert re.search(rf"{push[1]} +pushed: the guard had push-main", output[push.end() :])
    ends = {job: [each["event"] for each in events] for job, events in evidence["journal"].items()}
    assert "expired" in ends["issue-109"] and "revoked" in ends["issue-112"]


# --- The proof --------------------------------------------------------------------------------------------------------


def done_again(evidence: dict[str, Any]) -> str:
    """Somebody else claims a job that is done, and does it once more."""
    events = evidence["journal"]["issue-103"]
    last = max(each["seq"] for each in events)
    for number, event in enumerate(("granted", "done"), 1):
        events.append({"seq": last + number, "event": event, "owner": "eve", "token": 900})
    return r"issue-103: done 2 times: by \w+ \(fencing token \d+\), eve \(fencing token 900\)"


def never_done(evidence: dict[str, Any]) -> str:
    """A claim that was released, and not done."""
    for event in evidence["journal"]["issue-104"]:
        event["event"] = event["event"].replace("done", "released")
    return r"issue-104: never done"


def never_claimed(evidence: dict[str, Any]) -> str:
    """A job of which the journal knows nothing."""
    evidence["journal"]["issue-105"] = []
    return r"issue-105: never done"


def lost_claim_wrote(evidence: dict[str, Any]) -> str:
    """The agent whose claim was revoked has written as well."""
    (revoked,) = [each for each in evidence["journal"]["issue-112"] if each["event"] == "revoked"]
    write = {"job": "issue-112", "token": revoked["token"], "agent": revoked["owner"], "result": "late"}
    evidence["writes"].insert(0, write)
    return rf"issue-112: {revoked['owner']} wrote with fencing token {revoked['token']}, .* not done: revoked"


def two_owners(evidence: dict[str, Any]) -> str:
    """A grant before the end of the last one."""
    events = evidence["journal"]["issue-109"]
    (expired,) = [each for each in events if each["event"] == "expired"]
    expired["seq"] = max(each["seq"] for each in events) + 1
    return r"issue-109: two owners: \w+ \(fencing token \d+\) got it while"


def token_falls(evidence: dict[str, Any]) -> str:
    """A later claim with a smaller fencing token."""
    grants = [each for each in evidence["journal"]["staging"] if each["event"] == "granted"]
    token = grants[-1]["token"]
    for event in evidence["journal"]["staging"]:
        event["token"] = 0 if event["token"] == token else event["token"]
    return r"staging: the fencing token of \w+ \(fencing token 0\) is not greater than"


def still_held(evidence: dict[str, Any]) -> str:
    """A resource that nobody gave back."""
    events = evidence["journal"]["api"]
    evidence["journal"]["api"] = [next(each for each in events if each["event"] == "granted")]
    return r"api: \w+ \(fencing token \d+\) still has it"


def not_written(evidence: dict[str, Any]) -> str:
    """A job that is done, and has no result."""
    evidence["writes"] = [each for each in evidence["writes"] if each["job"] != "issue-101"]
    return r"issue-101: no result was written"


def pushed_twice(evidence: dict[str, Any]) -> str:
    """A commit that is there once more."""
    evidence["commits"].append("issue-114")
    return r"issue-114: 2 commits of it were pushed, not 1"


def never_pushed(evidence: dict[str, Any]) -> str:
    """A commit that did not arrive."""
    evidence["commits"].remove("issue-114")
    return r"issue-114: 0 commits of it were pushed, not 1"


def nothing_there(evidence: dict[str, Any]) -> str:
    """No backlog at all."""
    evidence.update(backlog=[], journal={}, writes=[], to_push=[], commits=[])
    return r"nothing was done: the backlog is empty"


FORGERIES = (
    done_again,
    never_done,
    never_claimed,
    lost_claim_wrote,
    two_owners,
    token_falls,
    still_held,
    not_written,
    pushed_twice,
    never_pushed,
    nothing_there,
)


def judged(evidence: dict[str, Any], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    stored = tmp_path / "evidence.json"
    stored.write_text(json.dumps(evidence))
    return proof_of(stored)


def proof_of(stored: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.demo.proof", str(stored)]
    env = environment(stored.parent)
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=PROJECT, env=env)


def test_stored_evidence_is_verified_again(seen: tuple[str, dict[str, Any], list[str]], tmp_path: Path) -> None:
    """The evidence of a demonstration that was in order is found in order by itself."""
    done = judged(seen[1], tmp_path)
    assert (done.returncode, done.stderr) == (0, "") and "all in order" in done.stdout


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_forged_evidence_is_found_out(
    seen: tuple[str, dict[str, Any], list[str]], tmp_path: Path, forge: Callable[[dict[str, Any]], str]
) -> None:
    """A journal or a ledger that breaks one of the rules makes the proof fail, and it names the job."""
    evidence = json.loads(json.dumps(seen[1]))
    expected = forge(evidence)
    done = judged(evidence, tmp_path)
    assert done.returncode == 1
    assert re.search(rf"^{expected}", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"journal": {"issue-101": [{"seq": 1}]}}'])
def test_invalid_evidence_is_reported(tmp_path: Path, content: str | None) -> None:
    """A file that is not there, or holds something else, is neither proof nor fault: exit code 2, and its name."""
    stored = tmp_path / "kept.json"
    if content is not None:
        stored.write_text(content)
    done = proof_of(stored)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{stored} is not what a demonstration keeps" in done.stderr


def test_evidence_needs_a_folder(folder: Path) -> None:
    """Where the evidence cannot be kept is said before anything is started."""
    with demo(folder, "--evidence", folder / "nowhere" / "evidence.json") as running:
        assert running.ended(SECONDS_MAX) == 2
        assert "there is no such folder" in running.output and "Starting" not in running.output


def test_demonstration_without_its_proof_fails(folder: Path) -> None:
    """Somebody writes a result past the fence while it runs: it ends with 1 and says which job."""
    with demo(folder, "--fast") as running:
        running.said(r"✓ issue-102 is done", seconds_max=SECONDS_MAX)
        (ledger,) = folder.glob("*/world/ledger.sqlite3")
        with closing(sqlite3.connect(ledger)) as connection, connection:
            connection.execute("INSERT INTO result VALUES ('issue-102', 7777, 'mallory', 'once more')")
        assert running.ended(SECONDS_MAX) == 1, running.output
        assert re.search(r"issue-102: mallory wrote with fencing token 7777", running.output)
        assert re.search(r"^NOT PROVED: issue-102\.", running.output, re.MULTILINE)
        assert "each done exactly once" not in running.output


# --- The end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "moment", ["Starting", "issue-101 is mine", "kill -9", "would never end", "holdfast revoke", "git push"]
)
def test_ctrl_c_leaves_nothing(folder: Path, moment: str) -> None:
    """Ctrl-C ends it at any moment: no process and no folder is left."""
    with demo(folder) as running:
        running.said(moment, seconds_max=SECONDS_MAX)
        os.killpg(running.pid, signal.SIGINT)  # As a terminal does.
        assert running.ended(SECONDS_MAX) == 130, running.output
        assert running.output.endswith("Stopped. Nothing is left behind.\n")
        assert (list(folder.iterdir()), processes(folder)) == ([], [])


def test_kill_leaves_nothing(folder: Path) -> None:
    """After kill −9 of the demonstration its server, its agents and its folder go by themselves."""
    with demo(folder, "--fast") as running:
        running.said("issue-101 is mine", seconds_max=SECONDS_MAX)
        os.kill(running.pid, signal.SIGKILL)
        wait_until(lambda: not list(folder.iterdir()) and not processes(folder), seconds_max=SECONDS_MAX)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    yield ours, theirs
    for end in (ours, theirs):
        os.close(end)


@pytest.mark.parametrize(("columns", "fits"), [(80, 80), (200, 100), (0, 100)])
def test_lines_fit_the_terminal(terminal: tuple[int, int], columns: int, fits: int) -> None:
    """No line of the story is longer than the terminal is wide, nor than is good to read."""
    ours, theirs = terminal
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    with os.fdopen(os.dup(theirs), "w", encoding="utf-8") as out:
        story = Story(out, 0)
        story.line("ana", "told", "word " * 60)
        story.proof([], [])
    lines = re.sub(r"\x1b\[[0-9;]*m", "", os.read(ours, 4096).decode()).splitlines()
    assert fits - len("word ") <= max(map(len, lines)) <= fits


@pytest.mark.parametrize(("variables", "is_colourful"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_are_for_terminals(
    folder: Path, terminal: tuple[int, int], variables: dict[str, str], is_colourful: bool
) -> None:
    """On a terminal it is in colour, unless NO_COLOR is set."""
    ours, theirs = terminal
    env = environment(folder, TERM="xterm-256color", **variables)
    command = [sys.executable, "-m", "examples.demo", "--fast"]
    running = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=env, cwd=PROJECT, start_new_session=True)
    received = b""
    while b"issue-101 is mine" not in received:
        received += os.read(ours, 4096)
    running.send_signal(signal.SIGINT)
    assert running.wait(SECONDS_MAX) == 130
    assert (b"\x1b[" in received) == is_colourful
