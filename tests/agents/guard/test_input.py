"""Hostile input: whatever comes on standard input, nothing that a rule names passes by it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agents.guard.agents import SCRIPT, Answer, World
from tests.support.api import Api

HOST = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"


def hook(world: World, content: bytes, *words: str, cwd: Path | None = None) -> Answer:
    """Run the hook with these bytes, for a host that ends right afterwards."""
    done = subprocess.run(
        [sys.executable, "-c", HOST, SCRIPT, "guard", "hook", *(words or ("--host", "claude"))],
        input=content,
        cwd=cwd or world.repository,
        env=world.environment,
        capture_output=True,
        check=False,
        timeout=60,
    )
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())


def good(world: World, **fields: object) -> dict[str, object]:
    """An input that needs the job area:auth."""
    return {
        "session_id": "s-1",
        "cwd": str(world.repository),
        "hook_event_name": "PreToolUse",
        "tool_name": "Write",
        "tool_input": {"file_path": str(world.repository / "src/auth/x"), "content": "y"},
        **fields,
    }


BAD = {
    "empty": b"",
    "not JSON": b"hello",
    "half": b'{"session_id": "s',
    "a list": b"[]",
    "null": b"null",
    "not UTF-8": b'{"session_id": "\xff\xfe"}',
    "deep": b'{"a":' * 100_000,
    "deep and closed": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "no event": b'{"session_id": "s", "tool_name": "Write"}',
    "no session": b'{"hook_event_name": "PreToolUse", "tool_name": "Write"}',
    "wrong kinds": b'{"session_id": 1, "hook_event_name": ["Pre"], "tool_name": {}, "tool_input": 7, "cwd": null}',
    "a relative folder": b'{"session_id": "s", "hook_event_name": "PreToolUse", "tool_name": "Bash", "cwd": "x"}',
}


@pytest.mark.parametrize("name", BAD)
def test_unreadable_input_is_refused(name: str, world: World) -> None:
    """It is refused in one line that says why, without a traceback; where there is no rule file it passes."""
    reason = hook(world, BAD[name]).refused
    assert "what the host sent cannot be used" in reason and reason.count("\n") == 1 and "Traceback" not in reason
    assert hook(world, BAD[name], cwd=world.folder) == (0, "", "")
    assert json.loads(hook(world, BAD[name], "--host", "cursor").out)["permission"] == "deny"


def test_input_of_ten_megabytes_is_read(world: World, api: Api) -> None:
    """A large file is a file: ten megabytes of content are judged as any other, and so is what is not named."""
    api.acquired("area:auth", owner="ben", ttl_seconds=60)
    content = "x" * 10_000_000
    path = str(world.repository / "src/auth/x")
    assert (
        "owner ben"
        in hook(world, json.dumps(good(world, tool_input={"file_path": path, "content": content})).encode()).refused
    )
    path = str(world.repository / "README.md")
    assert hook(world, json.dumps(good(world, tool_input={"file_path": path, "content": content})).encode()).passed


def test_a_command_of_a_megabyte_is_read(world: World, api: Api) -> None:
    """A long command line is read to its end."""
    api.acquired("push-main", owner="ben", ttl_seconds=60)
    line = "echo " + "x" * 1_000_000 + "; git push origin main"
    fields = good(world, tool_name="Bash", tool_input={"command": line})
    assert "owner ben" in hook(world, json.dumps(fields).encode()).refused


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\nb", "\u202eevil", "\udc80", "x" * 5_000, "..", "a/../b", "main", ""])
def test_unusual_file_names_are_matched(name: str, world: World, api: Api) -> None:
    """Names of sessions, agents and files stay names: no folder is left by them, and nothing acts on a terminal."""
    api.acquired("area:auth", owner="ben", ttl_seconds=60)
    path = f"{world.repository}/src/auth/{name}"
    fields = good(world, session_id=name or "s", agent_id=name, tool_input={"file_path": path})
    answer = hook(world, json.dumps(fields).encode())
    if name == "..":
        assert answer == (0, "", ""), "that is the folder above"
        return
    reason = answer.refused
    assert "owner ben" in reason and reason.rstrip("\n").isprintable() and len(reason) < 2_000
    folders = [path.relative_to(world.state).parts for path in world.state.rglob("*") if path.is_dir()]
    assert all(parts[0] in {"owners", "rules"} and len(parts) <= 3 for parts in folders), folders


def test_a_null_character_is_refused(world: World) -> None:
    """No file has one in its name, and no shell reads one."""
    for fields in (
        good(world, tool_input={"file_path": "src/auth/\0x"}),
        good(world, tool_name="Bash", tool_input={"command": "rm src/auth/x\0"}),
        good(world, cwd="/tmp\0/x"),
    ):
        assert hook(world, json.dumps(fields).encode()).code == 2


@pytest.mark.parametrize("words", [("--host", "other"), ("--host",), ("x",), ("--host", "claude", "more")])
def test_a_wrong_command_line_refuses(words: tuple[str, ...], world: World) -> None:
    """A slip in the host's settings blocks and says how it is written: any other exit code would let the call pass."""
    answer = hook(world, b"{}", *words)
    assert (
        answer.code == 2 and "usage: holdfast guard hook --host claude|codex|cursor|gemini|opencode|qwen" in answer.err
    )


def test_a_state_that_cannot_be_written_refuses(world: World) -> None:
    """Without a place to keep the session nothing is claimed, and so nothing passes."""
    world.environment["XDG_STATE_HOME"] = "/proc/nowhere"
    assert "cannot be written" in hook(world, json.dumps(good(world)).encode()).refused
