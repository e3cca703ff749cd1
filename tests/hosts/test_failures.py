"""Edits of real agents when a part that the guard needs is missing: every one fails closed."""

from __future__ import annotations

import socket

from tests.hosts.conftest import Cell
from tests.hosts.expected import ALLOWED, REFUSED, Result
from tests.hosts.hosts import Host
from tests.hosts.world import CONTENT, NEW, OLD, ONE, World


def test_edit_needs_running_server(host: Host, world: World, cell: Cell) -> None:
    """An edit in a guarded area is refused while the server is down; other files are free."""
    world.prepare(host)
    other = world.repository / "other.py"
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # Without listen(), so that connections are refused.
        world.environment["HOLDFAST_URL"] = f"http://127.0.0.1:{closed.getsockname()[1]}"
        results = world.run(
            host,
            [
                *host.edit(world.file, OLD, NEW),
                *host.shell("echo x >> src/auth/login.py"),
                *host.write(other, "x = 1\n"),
            ],
        )
    assert other.exists(), results
    cell.is_now(observed(world), results)


def test_edit_needs_responding_server(host: Host, world: World, cell: Cell) -> None:
    """An edit is refused in bounded time if the server accepts connections and never responds."""
    world.prepare(host)
    with socket.create_server(("127.0.0.1", 0), backlog=50) as silent:
        world.environment["HOLDFAST_URL"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        results = world.run(host, host.edit(world.file, OLD, NEW))
    cell.is_now(observed(world), results)


def test_edit_needs_holdfast_program(host: Host, world: World, cell: Cell) -> None:
    """An edit is refused if the host cannot find `holdfast`."""
    world.prepare(host)
    world.hold()
    world.holdfast_link.unlink()
    results = world.run(host, host.edit(world.file, OLD, NEW))
    cell.is_now(observed(world), results)


def test_edit_needs_approved_hook(host: Host, world: World, cell: Cell) -> None:
    """A host that ignores hooks which were not approved lets the edit pass; the guide says so."""
    world.prepare(host)
    world.hold()
    options = host.unapproved_options(world.home, f"{ONE}: please do your task.")
    results = world.run(host, host.edit(world.file, OLD, NEW), options=options)
    cell.is_now(observed(world), results)


def test_headless_ask_refuses_edit(host: Host, world: World, cell: Cell) -> None:
    """Without a terminal an edit that a person must agree to is refused, and the agent learns how to get agreement."""
    world.prepare(host)
    world.rules('when_free = "ask"')
    results = world.run(host, host.edit(world.file, OLD, NEW))
    assert f"holdfast guard agree {world.job}" in results[-1], results
    cell.is_now(observed(world), results)


def observed(world: World) -> Result:
    """Return whether the edit of the guarded file had an effect."""
    return REFUSED if world.file.read_text() == CONTENT else ALLOWED
