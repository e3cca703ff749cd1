"""What the guide shows to hosts is what our command takes."""

from __future__ import annotations

import json
import shlex
import tomllib
from typing import Any

from holdfast.agents.mcp.asgi import PATH
from holdfast.cli.main import cli
from tests.support.pages import ROOT, blocks_of

BLOCKS = blocks_of(ROOT / "docs" / "guide" / "mcp.md")


def _entries() -> list[dict[str, Any]]:
    """Every entry of a host's configuration in the guide."""
    blocks = [json.loads(block.text) for block in BLOCKS if block.language == "json"]
    blocks += [tomllib.loads(block.text) for block in BLOCKS if block.language == "toml"]
    return [entry for each in blocks for servers in each.values() for entry in servers.values()]


def test_entries_of_hosts_start_our_command() -> None:
    """Each entry names a command line of ours that is taken; or the address of the tools."""
    commands = [entry for entry in _entries() if "command" in entry]
    assert len(commands) == 4 and len(_entries()) == 5
    for entry in commands:
        assert entry["command"] == "holdfast"
        variables = entry.get("env", {})
        assert _taken(entry["args"])["owner"] or "HOLDFAST_OWNER" in variables or "HOLDFAST_TOKEN" in variables
    assert [entry["url"].endswith(PATH) for entry in _entries() if "url" in entry] == [True]


def test_commands_of_claude_code_start_our_command() -> None:
    """What is given to `claude mcp add` is a command line of ours, or the address of the tools."""
    stdio, http = (shlex.split(block.text) for block in BLOCKS if "not run" in block.marks)
    assert stdio[:3] == http[:3] == ["claude", "mcp", "add"]
    arguments = stdio[stdio.index("--") + 1 :]
    assert arguments[0] == "holdfast" and _taken(arguments[1:])["owner"]
    assert any(word.endswith(PATH) for word in http) and http[-2] == "--header"


def _taken(arguments: list[str]) -> dict[str, Any]:
    """The options of a command line, as `holdfast` reads it."""
    assert arguments[0] == "mcp"
    # Inside of the whole command line: a command on its own would keep other help options than it has there.
    with cli.make_context("holdfast", list(arguments)) as line:
        name, command, rest = cli.resolve_command(line, list(arguments))
        assert command is not None
        with command.make_context(name, rest, parent=line) as context:
            return context.params
