"""Tools of the hosts and of MCP servers: which files and commands a call names."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.agents.guard.decision import Matcher
from holdfast.agents.guard.hosts import Event
from tests.agents.guard.conftest import RULES


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with rules."""
    top = tmp_path / "repo"
    (top / "src" / "auth").mkdir(parents=True)
    (top / "src" / "app").mkdir()
    (top / "holdfast-guard.toml").write_text(RULES)
    return top


def jobs(repository: Path, host: str, tool: str, arguments: object, *, event: str = "PreToolUse") -> list[str]:
    """The jobs that a call of a tool needs."""
    fields = {
        "hook_event_name": event,
        "session_id": "s-1",
        "conversation_id": "s-1",
        "cwd": str(repository),
        "tool_name": tool,
        "tool_input": arguments,
    }
    return sorted(
        {requirement.job for requirement in Matcher(str(repository.parent / "state")).of_event(Event(host, fields))}
    )


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("mcp__filesystem__write_file", {"path": "src/auth/x", "content": "a"}),
        ("mcp__filesystem__edit_file", {"path": "src/auth/x", "edits": []}),
        ("mcp__filesystem__create_directory", {"path": "src/auth/new"}),
        ("mcp__filesystem__move_file", {"source": "src/auth/x", "destination": "y"}),
        ("mcp__filesystem__move_file", {"source": "x", "destination": "src/auth/y"}),
        ("mcp__filesystem__move_file", {"source": "src", "destination": "other"}),
        ("mcp__files__delete_files", {"paths": ["README.md", "src/auth/x"]}),
        ("mcp__ide__writeFile", {"filepath": "src/auth/x"}),
        ("mcp__serena__replace_symbol_body", {"relative_path": "src/auth/x", "body": "a"}),
        ("mcp_filesystem_write_file", {"path": "src/auth/x", "content": "a"}),
        ("mcp_filesystem_move_file", {"source": "a", "destination": "src/auth/x"}),
        ("MCP:write_file", {"path": "src/auth/x"}),
    ],
)
def test_mcp_file_tools_need_the_job_of_the_file(tool: str, arguments: object, repository: Path) -> None:
    """An MCP tool whose name says that it writes needs the jobs of the files that its arguments name."""
    assert "area:auth" in jobs(repository, "claude", tool, arguments)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("mcp__filesystem__read_file", {"path": "src/auth/x"}),
        ("mcp__filesystem__search_files", {"path": "src/auth", "pattern": "x"}),
        ("mcp__filesystem__write_file", {"path": "src/app/x"}),
        ("mcp__filesystem__create_directory", {"path": "src"}),
        ("mcp__tracker__create_issue", {"title": "src/auth/x is slow"}),
        ("mcp__drive__write_file", {"id": "1"}),
    ],
)
def test_other_mcp_tools_pass(tool: str, arguments: object, repository: Path) -> None:
    """Reading, other files and other arguments need nothing."""
    assert jobs(repository, "claude", tool, arguments) == []


def test_cursor_tools_need_the_job_of_the_file(repository: Path) -> None:
    """Cursor's own editing tools, and the tools of its MCP servers, which have no prefix."""
    for tool, arguments in (
        ("edit_file", {"target_file": "src/auth/x", "instructions": "a", "code_edit": "b"}),
        ("search_replace", {"file_path": "src/auth/x", "old_string": "a", "new_string": "b"}),
        ("delete_file", {"target_file": "src/auth/x"}),
        ("run_terminal_cmd", {"command": "rm src/auth/x"}),
    ):
        assert jobs(repository, "cursor", tool, arguments, event="preToolUse") == ["area:auth"], tool
    text = '{"source": "src/auth/x", "destination": "y"}'
    assert jobs(repository, "cursor", "move_file", text, event="beforeMCPExecution") == ["area:auth"]


def test_codex_workdir_is_where_the_command_runs(repository: Path) -> None:
    """Relative names of Codex's shell tools are relative to `workdir`."""
    for tool, name in (("exec_command", "cmd"), ("shell", "command"), ("Bash", "command")):
        for folder in ("src/auth", str(repository / "src" / "auth")):
            assert jobs(repository, "codex", tool, {name: "echo x > a", "workdir": folder}) == ["area:auth"], tool
        assert jobs(repository, "codex", tool, {name: "echo x > a", "workdir": "src/app"}) == []
    assert jobs(repository, "codex", "shell", {"command": ["bash", "-lc", "echo > a"], "workdir": "src/auth"}) == [
        "area:auth"
    ]


def test_tool_rules_match_both_spellings_of_mcp_tools(repository: Path) -> None:
    """Gemini CLI writes `mcp_SERVER_TOOL`; the rule for `mcp__SERVER__TOOL` holds for it too."""
    prod = {"environment": "prod-eu"}
    assert jobs(repository, "claude", "mcp__deploy__apply", prod) == ["deploy:prod-eu"]
    assert jobs(repository, "gemini", "mcp_deploy_apply", prod, event="BeforeTool") == ["deploy:prod-eu"]
    assert jobs(repository, "gemini", "mcp_deployer_apply", prod, event="BeforeTool") == []
