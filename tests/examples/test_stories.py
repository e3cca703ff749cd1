"""The stories of frameworks and schedulers: each is true, and what is not true is found."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.pages import blocks_of
from tests.support.program import Program
from tests.support.server import PROJECT

EXAMPLES = PROJECT / "examples"
LOCKED = sorted(lock.parent for lock in EXAMPLES.glob("*/*/requirements.txt"))
FACTS = {"frameworks": 11, "schedulers": 5}
"""How many each kind of story ends with, at least."""


class Tell(Protocol):
    def __call__(self, kind: str, name: str, *arguments: object) -> Program: ...


@pytest.fixture
def tell(tmp_path: Path) -> Iterator[Tell]:
    """Starts a story as `make examples` does."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "STORY_"))}
    with ExitStack() as stack:

        def start(kind: str, name: str, *arguments: object) -> Program:
            command = [sys.executable, "-m", f"examples.{kind}.story", name, *map(str, arguments)]
            return stack.enter_context(Program(command, env=mine, folder=PROJECT))

        yield start


def facts_of(story: Program) -> dict[str, bool]:
    """What a story ends with."""
    found = re.findall(r"^  (true |FALSE)  (.+)$", story.output, re.MULTILINE)
    return {fact: word == "true " for word, fact in found}


def test_plain_story_is_true(tell: Tell) -> None:
    """Without a framework: one owner, a refusal that says who, a takeover that reads the note, a late request refused,
    and nothing done without a server."""
    story = tell("frameworks", "plain", "--ttl", 3)
    assert story.ended(120) == 0, story.output
    facts = facts_of(story)
    assert len(facts) == FACTS["frameworks"] and all(facts.values()), story.output


@pytest.mark.parametrize("folder", LOCKED, ids=lambda folder: folder.name)
def test_story_is_true(tell: Tell, folder: Path) -> None:
    """The same with each framework, and a thing done once with each scheduler, where `make examples` installed it."""
    if not (PROJECT / ".venv-examples" / folder.name / "stamp").exists():
        pytest.skip(f"not installed here: make examples ARGS={folder.name}")
    story = tell(folder.parent.name, folder.name)
    assert story.ended(300) == 0, story.output
    facts = facts_of(story)
    assert len(facts) >= FACTS[folder.parent.name] and all(facts.values()), story.output


def test_bad_agent_is_found(tell: Tell, tmp_path: Path) -> None:
    """An agent that does not read the note, calls home, and goes on without a server makes a story that is not true."""
    (tmp_path / "agent.py").write_text(
        "import asyncio, contextlib, socket\n"
        "import holdfast\n"
        "from examples.frameworks.plain import agent\n"
        "agent.who_had_it = lambda *_: ''\n"
        "with contextlib.suppress(OSError):\n"
        "    socket.create_connection(('telemetry.example', 443))\n"
        "with contextlib.suppress(holdfast.Unreachable):\n"
        "    asyncio.run(agent.main())\n"
    )
    story = tell("frameworks", "plain", "--ttl", 2, "--agent", tmp_path / "agent.py")
    assert story.ended(120) == 1, story.output
    assert {fact for fact, is_so in facts_of(story).items() if not is_so} == {
        "agent-4 read the note of agent-3",
        "every step was done once, by the owner of that time, with its fencing token",
        "agent-5, without a server, did nothing and failed",
        "nobody tried to reach another machine",
    }
    assert "socket.getaddrinfo telemetry.example" in story.output


def test_agent_without_a_claim_is_refused(tell: Tell, tmp_path: Path) -> None:
    """An agent that works without a claim has no fencing token that the hub takes, and the story ends there."""
    (tmp_path / "agent.py").write_text(
        "from examples.frameworks.stage import read_part\n"
        "played = read_part()\n"
        "for step in ('push_fix', 'open_pull_request'):\n"
        "    played.send(step, played.issues[0], 7)\n"
    )
    story = tell("frameworks", "plain", "--agent", tmp_path / "agent.py")
    assert story.ended(120) == 1, story.output
    assert "HTTP Error 412" in story.output and "did not come so far" in story.output


def test_make_knows_every_example() -> None:
    """`make examples` runs each folder that has a lock, and the table of the examples has each."""
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for kind in FACTS:
        (listed,) = re.findall(rf"^{kind.upper()} := (.+)$", makefile, re.MULTILINE)
        folders = [folder.name for folder in LOCKED if folder.parent.name == kind]
        assert sorted(listed.split()) == folders
        for name in folders:
            assert f"({kind}/{name}/" in table, f"{kind}/{name} has no row in examples/README.md"


SHOWN = {
    "celery.md": EXAMPLES / "schedulers" / "celery" / "tasks.py",
    "apscheduler.md": EXAMPLES / "schedulers" / "apscheduler" / "nightly.py",
    "github-actions.md": EXAMPLES / "github-actions" / "deploy.yml",
}


@pytest.mark.parametrize("page", SHOWN)
def test_guides_show_the_files(page: str) -> None:
    """A recipe shows the file that is run, letter by letter, without the words on top."""
    block = blocks_of(PROJECT / "docs" / "guide" / page)[0]
    text = SHOWN[page].read_text(encoding="utf-8")
    if SHOWN[page].suffix == ".py":
        code = ast.parse(text).body[1].lineno - 1
        text = "".join(text.splitlines(keepends=True)[code:])
    assert block.text == text


def test_guide_to_airflow_is_python() -> None:
    """What the one recipe shows that nothing runs can be read by Python, and claims as the others do."""
    (block,) = blocks_of(PROJECT / "docs" / "guide" / "airflow.md")
    names = {ast.unparse(node.func) for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.Call)}
    assert {"holdfast.claim", "claim.done", "AirflowSkipException"} <= names
