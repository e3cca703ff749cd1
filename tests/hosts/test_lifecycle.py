"""Installation, end and several agents of real hosts."""

from __future__ import annotations

import re
import threading

from tests.hosts.conftest import Cell
from tests.hosts.expected import ALLOWED, FAILS, REFUSED, WORKS
from tests.hosts.hosts import Host
from tests.hosts.scripted_model import Step
from tests.hosts.world import BARRIER_SECONDS_MAX, NEW, OLD, ONE, REFUSAL, TWO, World, contents, kill_host, meet
from tests.support.checks import wait_until
from tests.support.server import PROJECT

SUBAGENT = "subagent_"
"""Part of a marker; Codex allows no other characters in a task name."""


def test_host_discovers_skill(host: Host, world: World, cell: Cell) -> None:
    """The host shows the skill to its model and runs the MCP tools."""
    world.prepare(host)
    results = world.run(host, [world.until_mcp_is_ready(host)])
    assert "listed" in results[-1], results
    text = (PROJECT / "skills/holdfast/SKILL.md").read_text(encoding="utf-8")
    (description,) = re.findall(r"^description: (.{40})", text, re.MULTILINE)
    bodies = [str(turn.body) for turn in world.model.turns]
    cell.is_now(WORKS if any(description in body for body in bodies) else FAILS)


def test_uninstall_restores_files(host: Host, world: World, cell: Cell) -> None:
    """After install, a run of the host and uninstall every file of the project has its old bytes."""
    host.configure(world.home, world.repository, world.model.url)
    for name, text in host.files.items():
        (world.repository / name).parent.mkdir(exist_ok=True)
        (world.repository / name).write_bytes(text.encode())
    before = contents(world.repository)
    world.install(host)
    installed = contents(world.repository)
    assert installed != before
    world.run(host, host.edit(world.file, OLD, NEW))
    world.command("holdfast", "skill", "uninstall", "--for", host.kind)
    after = contents(world.repository)
    # Files that the host itself created during its run are its own.
    changed = [name for name in {*before, *installed} if before.get(name) != after.get(name)]
    cell.is_now(WORKS if changed == ["src/auth/login.py"] else FAILS, changed)


def test_sigkill_releases_jobs(host: Host, world: World, cell: Cell) -> None:
    """When the host is killed, its jobs are free long before their lease ends: that of the guard and that of MCP."""
    world.prepare(host)
    issue = f"{world.job}:issue"
    held = threading.Event()
    over = threading.Event()

    def wait_for_kill() -> None:
        held.set()
        over.wait(BARRIER_SECONDS_MAX)

    script: list[Step] = [
        world.until_mcp_is_ready(host),
        *host.mcp("claim_job", job=issue),
        *host.edit(world.file, OLD, NEW),
        wait_for_kill,
    ]
    world.model.follow({ONE: script})
    agent = world.start(host)
    try:
        assert held.wait(BARRIER_SECONDS_MAX), world.log()
        assert world.owner() and world.owner(issue), world.model.results(ONE)
        kill_host(agent)
        wait_until(lambda: world.is_free() and world.is_free(issue))
    finally:
        over.set()
    cell.is_now(WORKS)


def test_two_agents_exclude_each_other(host: Host, world: World, cell: Cell) -> None:
    """Of two agents of one host that edit at the same moment, exactly one gets the job; the other is refused."""
    world.prepare(host)
    files = {marker: world.file.with_name(f"{marker}.py") for marker in (ONE, TWO)}
    is_running, start, end = threading.Event(), threading.Barrier(2), threading.Barrier(2)
    scripts: dict[str, list[Step]] = {
        marker: [
            is_running.set,
            lambda: meet(start),
            *host.write(file, "x = 1\n"),
            lambda: meet(end),
        ]
        for marker, file in files.items()
    }
    world.model.follow(scripts)
    first = world.start(host, ONE)
    # opencode creates its database when it first starts, and fails if two processes do so at the same time.
    assert is_running.wait(BARRIER_SECONDS_MAX), world.log()
    world.finish(first, world.start(host, TWO))
    results = {marker: world.model.results(marker)[-1] for marker in scripts}
    written = [marker for marker in scripts if files[marker].exists()]
    refused = [marker for marker in scripts if REFUSAL in results[marker]]
    assert len(world.grants()) == 1, world.history()
    cell.is_now(REFUSED if len(written) == len(refused) == 1 and written != refused else ALLOWED, results)


def test_subagent_is_an_owner(host: Host, world: World, cell: Cell) -> None:
    """A subagent claims a free job and releases it when it ends. With an agent id it does not own its parent's jobs."""
    world.prepare(host)
    files = [world.file.with_name(name) for name in ("first.py", "parent.py", "second.py")]
    scripts: dict[str, list[Step]] = {
        ONE: [
            *host.subagent(f"{SUBAGENT}1: please do your task."),
            *host.write(files[1], "x = 1\n"),
            *host.subagent(f"{SUBAGENT}2: please do your task."),
        ],
        f"{SUBAGENT}1": [*host.write(files[0], "x = 1\n")],
        f"{SUBAGENT}2": [*host.write(files[2], "x = 1\n")],
    }
    results = world.run(host, scripts)
    assert files[0].exists() and files[1].exists(), results
    assert len(set(world.grants())) == (1 if files[2].exists() else 2), world.history()
    cell.is_now(ALLOWED if files[2].exists() else REFUSED, results)
