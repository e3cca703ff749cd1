"""`holdfast mcp` as a process: its options, what it is fed, and what it says when it cannot work."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from mcp import StdioServerParameters

from holdfast.agents.mcp import stdio
from holdfast.agents.mcp.stdio import LINE_BYTES_MAX
from holdfast.agents.mcp.stdio_backend import WAITS_MAX
from tests.agents.mcp.hosts import Home, run
from tests.support import callers
from tests.support.api import Api
from tests.support.server import ServerProcess

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


def _fed(home: Home, data: bytes, *arguments: str, hidden: str | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run the process with this input, to its end."""
    env = {**os.environ, **(home.parameters(None).env or {})}
    program = f"import sys; sys.modules[{hidden!r}] = None\n" if hidden else "import sys\n"
    program += f"from holdfast.cli.main import run; sys.exit(run(['mcp', *{arguments!r}]))"
    command = [sys.executable, "-c", program]
    return subprocess.run(command, input=data, capture_output=True, check=False, env=env, timeout=60)


def test_invalid_input_is_ignored(home: Home) -> None:
    """Lines that are no message, not UTF-8, or longer than any message, do not end it: the next one is answered."""
    hello = json.dumps(HELLO).encode() + b"\n"
    lines = b"nonsense\n\xff\xfe\n{}\n[]\n\n" + b"x" * (2 * LINE_BYTES_MAX) + b"\n" + hello
    ended = _fed(home, lines)
    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    assert ended.returncode == 0 and b"Traceback" not in ended.stderr
    assert [each["result"]["serverInfo"]["name"] for each in answers if each.get("id") == 1] == ["holdfast"]


def test_end_of_input_ends_the_process(home: Home) -> None:
    """Without any input it ends at once, and leaves nothing behind."""
    ended = _fed(home, b"", "--owner", "ana")
    assert (ended.returncode, ended.stdout) == (0, b"")
    assert not list((home.folder / "state" / "holdfast" / "mcp").iterdir())


def test_terminal_shows_an_explanation(home: Home) -> None:
    """Typed by a person it says who speaks with it, and how to end it."""
    env = {**os.environ, **(home.parameters(None).env or {})}
    ours, theirs = pty.openpty()
    try:
        os.write(ours, b"\x04")
        command = [sys.executable, "-m", "holdfast", "mcp"]
        ended = subprocess.run(command, stdin=theirs, capture_output=True, check=False, env=env, timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)
    assert ended.returncode == 0 and b"host of an agent" in ended.stderr and b"Ctrl-D" in ended.stderr


@pytest.mark.parametrize("missing", ["mcp", "aiohttp"])
def test_missing_extra_is_named(home: Home, missing: str) -> None:
    """Where its parts are not installed, one line says which, and what to install."""
    ended = _fed(home, b"", hidden=missing)
    assert ended.returncode == 69
    assert b" install -e '.[mcp]'" in ended.stderr and len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--ttl", "5s"], 64, b"too short"),
        (["--owner", "x" * 129], 64, b"1 to 128"),
        (["--url", "nonsense"], 64, b"nonsense"),
        (["extra"], 64, b"--help"),
    ],
)
def test_wrong_options_are_refused(home: Home, arguments: list[str], code: int, words: bytes) -> None:
    """What it cannot work with is said on standard error, before it speaks to its host."""
    ended = _fed(home, b"", *arguments)
    assert (ended.returncode, ended.stdout) == (code, b"")
    assert words in ended.stderr and len(ended.stderr.splitlines()) == 1


def test_unknown_tools_and_arguments_are_errors_for_the_model(home: Home) -> None:
    """A model that calls what is not there is told what is; a wrong token is told once and for all."""

    async def test() -> None:
        async with home.host("ana") as ana:
            assert "there are claim_job" in await ana.error("steal_job", job="x")
            assert "unknown field `force`" in await ana.error("claim_job", job="x", force=True)
            assert "may not stand in a name" in await ana.error("get_job_owner", job="a\u202eb")
        wrong = Home(home.folder, home.server, "hold_wrong")
        async with wrong.host("ana") as ana:
            assert "no other call will help" in await ana.error("claim_job", job="x")

    run(test())


def test_missing_token_is_reported_in_terms_of_the_tools(tmp_path: Path, server: ServerProcess, name: str) -> None:
    """Without an access token the model hears where a person puts one, and nothing of headers."""

    async def test() -> None:
        async with Home(tmp_path, server, token="").host("ana") as ana:
            said = await ana.error("claim_job", job=name)
            assert "HOLDFAST_TOKEN_FILE" in said and "Tell the person" in said and "header" not in said

    run(test())


class GeminiHome(Home):
    """Gemini CLI: the entry passes both variables, and those that are not set as references to themselves."""

    def __init__(self, folder: Path, server: ServerProcess, **variables: str) -> None:
        super().__init__(folder, server)
        self._variables = variables

    def parameters(self, owner: str | None) -> StdioServerParameters:
        found = super().parameters(owner)
        passed = {name: self._variables.get(name, f"${name}") for name in ("HOLDFAST_TOKEN", "HOLDFAST_TOKEN_FILE")}
        return found.model_copy(update={"env": {**(found.env or {}), **passed}})


@pytest.mark.parametrize(
    "names", [(), ("HOLDFAST_TOKEN",), ("HOLDFAST_TOKEN_FILE",), ("HOLDFAST_TOKEN", "HOLDFAST_TOKEN_FILE")]
)
def test_mcp_ignores_references_that_the_host_did_not_expand(
    tmp_path: Path, server: ServerProcess, name: str, names: tuple[str, ...]
) -> None:
    """A variable that holds a reference to itself counts as unset, and is never used as an access token."""
    file = tmp_path / "token"
    file.write_text(callers.ALICE)
    file.chmod(0o600)
    values = {"HOLDFAST_TOKEN": callers.ALICE, "HOLDFAST_TOKEN_FILE": str(file)}

    async def test() -> None:
        async with GeminiHome(tmp_path, server, **{each: values[each] for each in names}).host("ana") as ana:
            if names:
                assert (await ana.call("claim_job", job=name))["status"] == "acquired"
            else:
                assert "HOLDFAST_TOKEN_FILE" in await ana.error("claim_job", job=name)

    run(test())


def test_process_without_an_owner_generates_one(home: Home, operator: Api, name: str) -> None:
    """Without a name it claims under one of its own, says which, and keeps nothing for another process."""

    async def test() -> None:
        async with home.host(None) as first, home.host(None) as second:
            one, other = await first.call("claim_job", job=name), await second.call("claim_job", job=f"{name}/2")
            assert one["owner"] == operator.status(name).json()["owner"] != other["owner"]
            assert (await second.call("claim_job", job=name))["status"] == "held"
        assert not [path for path in (home.folder / "state").rglob("*") if path.is_file()]

    run(test())


def test_lines_are_bounded(home: Home, operator: Api, name: str) -> None:
    """One process stands in a bounded number of lines; one more is refused with words."""

    async def test() -> None:
        jobs = [f"{name}/{number}" for number in range(WAITS_MAX + 1)]
        for job in jobs:
            operator.acquired(job, owner="boss")
        async with home.host("ana") as ana:
            for job in jobs[:-1]:
                assert (await ana.call("wait_for_job", job=job, seconds=1))["status"] == "waiting"
            assert f"{WAITS_MAX} lines already" in await ana.error("wait_for_job", job=jobs[-1], seconds=1)
            assert len((await ana.call("my_jobs"))["waiting_for"]) == WAITS_MAX

    run(test())


def test_endless_line_does_not_fill_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a message that never ends only the first bytes are kept, and what comes after it is read as before."""
    monkeypatch.setattr(stdio, "LINE_BYTES_MAX", 1_000)
    pieces = [*[b"x" * 400] * 50, b"x\nnext", b"\n", b""]
    pending_sizes: list[int] = []

    def read(_descriptor: int, _count: int) -> bytes:
        frame = lines.gi_frame
        assert frame is not None
        pending_sizes.append(len(frame.f_locals["pending"]))
        return pieces.pop(0)

    monkeypatch.setattr(os, "read", read)
    lines = cast("Any", stdio._lines_of(0))
    assert list(lines) == [b"x" * 1_000, b"next"]
    assert max(pending_sizes) == 1_000


def test_deadlock_is_a_result(home: Home, operator: Api, name: str) -> None:
    """A wait that would never end is refused with the circle, and not with an error."""

    async def test() -> None:
        async with home.host("ana") as ana, home.host("ben") as ben:
            await ana.call("claim_job", job=f"{name}/a")
            await ben.call("claim_job", job=f"{name}/b")
            await ana.call("wait_for_job", job=f"{name}/b", seconds=1)
            result = await ben.call("wait_for_job", job=f"{name}/a", seconds=10)
            assert (result["status"], result["cycle"]) == ("deadlock", ["ben", f"{name}/a", "ana", f"{name}/b"])

    run(test())


def test_unread_output_ends_the_process(home: Home, operator: Api, name: str) -> None:
    """A host that vanished, with both pipes, leaves no process behind, and no job."""
    env = {**os.environ, **(home.parameters(None).env or {})}
    command = [sys.executable, "-m", "holdfast", "mcp", "--owner", "ana"]
    call = {"name": "claim_job", "arguments": {"job": name}}
    lines = [HELLO, {"jsonrpc": "2.0", "method": "notifications/initialized"}]
    lines += [{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"".join(json.dumps(each).encode() + b"\n" for each in lines))
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert answers[1]["result"]["structuredContent"]["status"] == "acquired"
        process.stdout.close()
        process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 3, "method": "ping"}).encode() + b"\n")
        process.stdin.close()
        assert process.wait(30) == 0
    assert operator.status(name).json()["owner"] is None
    assert Path(f"/proc/{process.pid}").exists() is False
