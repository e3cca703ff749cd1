"""A check comes before every call of a tool: what it imports is counted, and where it asks is where the client asks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.agents.guard import server as guards
from holdfast.client import config
from holdfast.errors import SettingsError
from tests.agents.guard.agents import World

HEAVY = {"asyncio", "click", "email", "http", "inspect", "msgspec", "pathlib", "selectors", "socket", "ssl", "wcwidth"}
HEAVY |= {"subprocess", "tempfile", "threading", "tomllib", "typing", "urllib", "dataclasses", "logging", "argparse"}
HEAVY |= {"hashlib", "random", "datetime", "shutil", "fnmatch", "glob", "unicodedata", "holdfast.errors"}
MODULES_MAX = 100
"""Of all that a check loads, with what Python itself loads at its start."""


def loaded(world: World, file: str) -> set[str]:
    """What a check imports, as Python itself tells it."""
    fields = {
        "session_id": "s-1",
        "cwd": str(world.repository),
        "hook_event_name": "PreToolUse",
        "tool_name": "Write",
        "tool_input": {"file_path": str(world.repository / file)},
    }
    source = Path(guards.__file__).parents[3]
    code = f"import sys; sys.path.insert(0, {str(source)!r}); from holdfast.cli.start import main; main()"
    done = subprocess.run(
        [sys.executable, "-S", "-X", "importtime", "-c", code, "guard", "hook", "--host", "claude"],
        input=json.dumps(fields),
        env={**world.environment, "HOLDFAST_GUARD_HOST_PID": str(os.getpid())},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done
    return {line.split("|")[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


def test_check_imports_few_modules(world: World) -> None:
    """What no rule names, and what the agent has: little of the standard library, and no more. Counted, not timed."""
    loaded(world, "src/auth/x")
    try:
        for file in ("README.md", "src/auth/x"):
            found = loaded(world, file)
            assert found & HEAVY == set(), file
            assert len(found) <= MODULES_MAX, sorted(found)
            ours = {name for name in found if name.startswith("holdfast")}
            light = ("holdfast.agents.guard", "holdfast.cli", "holdfast.client.minihttp", "holdfast.privatefiles")
            packages = {"holdfast", "holdfast.agents", "holdfast.client", "holdfast.sanitize"}
            assert {name for name in ours if not name.startswith(light)} <= packages
    finally:
        world.holdfast("guard", "release", "--all")


def test_first_claim_imports_no_dependencies(world: World) -> None:
    """The first check of a session parses TOML and starts the daemon; it too loads the standard library alone."""
    found = loaded(world, "src/auth/x")
    assert "tomllib" in found and not found & {"click", "msgspec", "wcwidth", "asyncio", "ssl", "subprocess"}
    world.holdfast("guard", "release", "--all")


# Where it asks, and with which token: the same as the client.

CASES: dict[str, tuple[str, dict[str, str]]] = {
    "nothing": ("", {}),
    "file": ('url = "http://127.0.0.1:1"\ntoken_file = "token"', {}),
    "file and variable": ('url = "http://127.0.0.1:1"\ntoken_file = "token"', {"HOLDFAST_URL": "http://127.0.0.1:2"}),
    "the same by variable": (
        'url = "http://127.0.0.1:1"\ntoken_file = "token"',
        {"HOLDFAST_URL": "http://127.0.0.1:1"},
    ),
    "a token by variable": ('url = "http://127.0.0.1:1"', {"HOLDFAST_TOKEN": "hold_x"}),
    "a token file by variable": ("", {"HOLDFAST_TOKEN_FILE": "TOKEN"}),
    "several": ('url = "http://127.0.0.1:1,http://127.0.0.1:2"\ntoken_file = "token"', {}),
    "one of several": (
        'url = "http://127.0.0.1:1,http://127.0.0.1:2"\ntoken_file = "token"',
        {"HOLDFAST_URL": "http://127.0.0.1:2"},
    ),
    "plain to another machine": ('url = "http://198.51.100.7:1"\ntoken_file = "token"', {}),
    "plain and allowed": ('url = "http://198.51.100.7:1"\ntoken_file = "token"\nallow_insecure_http = true', {}),
    "plain, allowed there, not here": (
        'url = "http://127.0.0.1:1"\nallow_insecure_http = true',
        {"HOLDFAST_URL": "http://198.51.100.7:1", "HOLDFAST_TOKEN": "hold_x"},
    ),
    "plain and allowed by variable": (
        "",
        {"HOLDFAST_URL": "http://198.51.100.7:1", "HOLDFAST_TOKEN": "a", "HOLDFAST_ALLOW_INSECURE_HTTP": "1"},
    ),
    "broken": ("url = ", {}),
    "no address": ("", {"HOLDFAST_URL": "nonsense", "HOLDFAST_TOKEN": "a"}),
}


@pytest.mark.parametrize("case", CASES)
def test_guard_finds_the_same_server_as_the_client(case: str, tmp_path: Path) -> None:
    """The guard finds the same server and shows the same token as the client does, or refuses where the client does."""
    text, variables = CASES[case]
    folder = tmp_path / "holdfast"
    folder.mkdir()
    if text:
        (folder / "client.toml").write_text(text)
    (folder / "token").write_text("hold_kept\n")
    (folder / "token").chmod(0o600)
    environment = {"XDG_CONFIG_HOME": str(tmp_path), **variables}
    environment = {name: str(folder / "token") if value == "TOKEN" else value for name, value in environment.items()}

    def of_client() -> tuple[str, str | None]:
        found = config.find(url=None, token_file=None, environment=environment)
        if found.token is None:
            raise SettingsError("token", "nowhere", "the guard cannot claim without one")
        return found.url, found.token

    def of_guard() -> tuple[str, str | None]:
        found = guards.find(environment)
        return found.urls, found.bearer

    assert _outcome(of_guard, guards.RefusedError) == _outcome(of_client, SettingsError)


def _outcome(find: Callable[[], tuple[str, str | None]], kind: type[Exception]) -> tuple[str, str | None] | str:
    try:
        return find()
    except kind:
        return "refused"


def test_names_are_quoted_as_one_segment() -> None:
    """N2: what stands in a path is one segment, whatever is in a name."""
    assert guards.quoted("github://a/b c?#%") == "github%3A%2F%2Fa%2Fb%20c%3F%23%25"
    assert guards.quoted("é\udc80") == "%C3%A9%3F"
