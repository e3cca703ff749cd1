"""The guard and the MCP server of one agent: a claim through either counts for both."""

from __future__ import annotations

import re

from tests.hosts.conftest import Cell
from tests.hosts.expected import ALLOWED, FAILS, REFUSED, WORKS
from tests.hosts.hosts import Host
from tests.hosts.scripted_model import Step
from tests.hosts.world import CONTENT, NEW, OLD, World
from tests.support.checks import wait_until


def test_mcp_claim_covers_edit(host: Host, world: World, cell: Cell) -> None:
    """An agent that claimed the job with the MCP tool may edit."""
    world.prepare(host)
    owners: list[str | None] = []
    script: list[Step] = [
        world.until_mcp_is_ready(host),
        *host.mcp("claim_job", job=world.job),
        lambda: owners.append(world.owner()),
        *host.edit(world.file, OLD, NEW),
    ]
    results = world.run(host, script)
    assert owners[0], results
    wait_until(world.is_free)
    cell.is_now(REFUSED if world.file.read_text() == CONTENT else ALLOWED, results)


def test_edit_covers_mcp_claim(host: Host, world: World, cell: Cell) -> None:
    """An agent that edited may claim the same job with the MCP tool, and the file has one owner throughout."""
    world.prepare(host)
    script: list[Step] = [
        world.until_mcp_is_ready(host),
        *host.edit(world.file, OLD, NEW),
        *host.mcp("claim_job", job=world.job),
    ]
    results = world.run(host, script)
    assert world.file.read_text() != CONTENT, results
    assert len(set(world.grants())) == 1, world.history()
    wait_until(world.is_free)
    cell.is_now(ALLOWED if is_claimed(results[-1]) else REFUSED, results)


def test_release_counts_for_guard_and_mcp(host: Host, world: World, cell: Cell) -> None:
    """A job that the guard claimed can be released with the MCP tool, and the other way round."""
    world.prepare(host)
    free: list[bool] = []
    script: list[Step] = [
        world.until_mcp_is_ready(host),
        *host.edit(world.file, OLD, NEW),
        *host.mcp("release_job", job=world.job),
        lambda: free.append(world.is_free()),
        *host.mcp("claim_job", job=world.job),
        *host.shell(f"{world.holdfast_link} guard release"),
        lambda: free.append(world.is_free()),
        *host.mcp("my_jobs"),
    ]
    results = world.run(host, script)
    is_empty = re.search(r"jobs\W+\[\]", results[-1]) is not None
    cell.is_now(WORKS if free == [True, True] and is_empty else FAILS, free, results)


def is_claimed(result: str) -> bool:
    """Tell whether the result of `claim_job` says that the caller has the job."""
    return re.search(r"still_held\W+true", result) is not None
