"""The plugin for opencode, loaded by Node as opencode loads it: it asks the real hook, and rejects by throwing."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.agents.skill import files
from tests.agents.guard.agents import SCRIPT, World
from tests.support.api import Api
from tests.support.checks import unique, wait_until

NODE = shutil.which("node")
DRIVER = Path(__file__).with_name("opencode_driver.mjs")
pytestmark = pytest.mark.skipif(NODE is None, reason="Node is not installed")


class Opencode:
    """A host that has loaded the plugin."""

    def __init__(self, world: World, **environment: str) -> None:
        plugin = world.folder / "plugin.mjs"  # Node takes a module by this name; opencode takes any.
        plugin.write_text(files.text(files.PLUGIN))
        path = f"{Path(SCRIPT).parent}:{world.environment['PATH']}"
        self.session = unique("session")
        self.process = subprocess.Popen(
            [str(NODE), str(DRIVER), str(plugin), str(world.repository)],
            env={**world.environment, "PATH": path, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def call(self, hook: str, argument: object, output: object = None) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps({"hook": hook, "input": argument, "output": output}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def write(self, file: str, session: str = "", call: str = "c-1") -> dict[str, Any]:
        """The agent is about to write a file."""
        asked = {"tool": "write", "sessionID": session or self.session, "callID": call}
        return self.call("tool.execute.before", asked, {"args": {"filePath": file, "content": "x"}})

    def tell(self, kind: str, **properties: object) -> dict[str, Any]:
        """Something happened in the host."""
        return self.call("event", {"event": {"type": kind, "properties": properties}})

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()
        self.process.wait(20)


@pytest.fixture
def opencode(world: World) -> Iterator[Opencode]:
    """A host in the repository."""
    host = Opencode(world)
    yield host
    host.close()


def owner_of(api: Api, job: str) -> str | None:
    owner: str | None = api.status(job).json().get("owner")
    return owner


def test_plugin_claims_free_jobs_and_rejects_held_ones(opencode: Opencode, api: Api) -> None:
    """A free job is claimed for the session; a call under another's job is rejected with the owner's name."""
    assert opencode.write("src/auth/x")["passed"]
    assert owner_of(api, "area:auth") == f"opencode:{opencode.session}"
    api.acquired("area:billing", owner="ben", ttl_seconds=60)
    answer = opencode.write("src/billing/x")
    assert not answer["passed"] and "owner ben" in answer["reason"]
    assert opencode.write("README.md")["passed"]


@pytest.mark.parametrize("path", ["/nowhere", "broken"])
def test_plugin_rejects_calls_when_holdfast_cannot_run(world: World, path: str) -> None:
    """Without `holdfast`, or with one that fails, no call passes, also what no rule names."""
    folder = world.folder / "broken"
    folder.mkdir()
    (folder / "holdfast").write_text("#!/bin/sh\nexit 1\n")
    (folder / "holdfast").chmod(0o755)
    host = Opencode(world, PATH=str(world.folder / path))
    answer = host.write("README.md")
    host.close()
    assert not answer["passed"] and "holdfast guard" in answer["reason"]


def test_plugin_makes_subagents_owners_of_their_own(opencode: Opencode, api: Api) -> None:
    """A child session owns what it claims, its parent does not; the end of its turn gives the job back."""
    opencode.tell("session.created", info={"id": "child", "parentID": opencode.session})
    assert opencode.write("src/auth/x", session="child")["passed"]
    owner = owner_of(api, "area:auth")
    assert owner and owner != f"opencode:{opencode.session}"
    assert not opencode.write("src/auth/x")["passed"]
    opencode.tell("session.idle", sessionID="child")
    assert opencode.write("src/auth/x")["passed"]


@pytest.mark.parametrize("end", ["session.deleted", "exit"])
def test_plugin_releases_jobs_at_session_end(opencode: Opencode, api: Api, end: str) -> None:
    """The end of a turn keeps the job; the deleted session and the end of the process give it back."""
    assert opencode.write("src/auth/x")["passed"]
    opencode.tell("session.idle", sessionID=opencode.session)
    assert owner_of(api, "area:auth") == f"opencode:{opencode.session}"
    if end == "exit":
        opencode.close()
    else:
        opencode.tell("session.deleted", info={"id": opencode.session})
    wait_until(lambda: owner_of(api, "area:auth") is None)


def test_plugin_appends_messages_to_the_result(world: World, api: Api) -> None:
    """What the guard says about a call that passes comes with the result of that call, and of no other."""
    world.rules('when_away = "let-pass"\n[[rule]]\npaths = "src/auth/**"\njob = "area:auth"\n')
    host = Opencode(world, HOLDFAST_URL="http://127.0.0.1:9")
    assert host.write("src/auth/x", call="c-1")["passed"]
    after = {"tool": "write", "sessionID": host.session}
    assert host.call("tool.execute.after", {**after, "callID": "c-2"}, {"output": "done"})["output"]["output"] == "done"
    said = host.call("tool.execute.after", {**after, "callID": "c-1"}, {"output": "done"})["output"]["output"]
    host.close()
    assert said.startswith("done\n\n") and "WITHOUT a claim" in said
