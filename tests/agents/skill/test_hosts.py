"""`holdfast skill install` and `uninstall` for each host: where its documentation says, and back to what was before."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.agents.skill import files as document
from holdfast.agents.skill import installer
from holdfast.agents.skill.hosts import HOSTS
from tests.agents.skill.conftest import Run, tree_of
from tests.support.pages import ROOT

ALL = [word for host in HOSTS for word in ("--for", host.name)]
SETTINGS = '{\r\n\t// mine\r\n\t"model": "x",\r\n\t"hooks": {"PreToolUse": [{"hooks": []}]},\r\n}'
CONFIG = '\n# mine\nmodel = "x"  # why\n\n[mcp_servers.other]\ncommand = "other"'

EXPECTED_FILES = {
    # host: (skill, MCP servers, hooks) of a project, and of a user
    "claude": (
        (".claude/skills", ".mcp.json", ".claude/settings.json"),
        (".claude/skills", ".claude.json", ".claude/settings.json"),
    ),
    "codex": (
        (".agents/skills", ".codex/config.toml", ".codex/hooks.json"),
        (".agents/skills", ".codex/config.toml", ".codex/hooks.json"),
    ),
    "cursor": (
        (".cursor/skills", ".cursor/mcp.json", ".cursor/hooks.json"),
        (".cursor/skills", ".cursor/mcp.json", ".cursor/hooks.json"),
    ),
    "gemini": (
        (".gemini/skills", ".gemini/settings.json", ".gemini/settings.json"),
        (".gemini/skills", ".gemini/settings.json", ".gemini/settings.json"),
    ),
    "opencode": (
        (".opencode/skills", "opencode.json", ".opencode/plugins/holdfast.js"),
        (".config/opencode/skills", ".config/opencode/opencode.json", ".config/opencode/plugins/holdfast.js"),
    ),
    "qwen": (
        (".qwen/skills", ".qwen/settings.json", ".qwen/settings.json"),
        (".qwen/skills", ".qwen/settings.json", ".qwen/settings.json"),
    ),
    "vscode": ((".github/skills", ".vscode/mcp.json", None), (".copilot/skills", None, None)),
}
KEYS = {
    "claude": "mcpServers",
    "codex": "mcp_servers",
    "cursor": "mcpServers",
    "gemini": "mcpServers",
    "opencode": "mcp",
    "qwen": "mcpServers",
    "vscode": "servers",
}


READ_BY_THE_TOOLS = ["HOLDFAST_OWNER", "HOLDFAST_URL", "HOLDFAST_TOKEN", "HOLDFAST_TOKEN_FILE", "HOLDFAST_CA_FILE"]
GEMINI_PASSES = {"HOLDFAST_TOKEN": "$HOLDFAST_TOKEN", "HOLDFAST_TOKEN_FILE": "$HOLDFAST_TOKEN_FILE"}
READ_BY_THE_TOOLS += ["HOLDFAST_ALLOW_INSECURE_HTTP", "XDG_CONFIG_HOME", "XDG_STATE_HOME"]


def read(path: Path) -> dict[str, dict[str, dict[str, object]]]:
    text = path.read_text()
    found: dict[str, dict[str, dict[str, object]]] = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    return found


def fill(base: Path, host: str, *, is_user: bool) -> None:
    """Put files of the user's own where a host has them."""
    _, *others = EXPECTED_FILES[host][is_user]
    for each in filter(None, others):
        if each.endswith(".js"):
            continue
        (base / each).parent.mkdir(parents=True, exist_ok=True)
        (base / each).write_text(CONFIG if each.endswith(".toml") else SETTINGS, newline="")
        (base / each).chmod(0o640)


@pytest.mark.parametrize("is_user", [False, True], ids=["project", "user"])
@pytest.mark.parametrize("host", EXPECTED_FILES)
def test_install_writes_the_documented_files(
    project: Path, home: Path, skill: Run, host: str, *, is_user: bool
) -> None:
    """The skill, the MCP server and the hooks are in the documented files, and are gone again without a trace."""
    base, scope = (home, ["--user"]) if is_user else (project, [])
    before = tree_of(base)
    done = skill("install", "--for", host, "--hooks", *scope)
    assert done.returncode == 0, done.stderr
    where, servers, hooks = EXPECTED_FILES[host][is_user]
    assert (base / where / "holdfast" / "SKILL.md").read_text() == document.text()
    if servers:
        entry = read(base / servers)[KEYS[host]]["holdfast"]
        started = ["holdfast", "mcp"] if host == "opencode" else "holdfast"
        assert (entry["command"], entry.get("args")) == (started, None if host == "opencode" else ["mcp"])
        # Codex starts it in a clean environment, but for the variables that the entry names.
        assert entry.get("env_vars") == (READ_BY_THE_TOOLS if host == "codex" else None)
        assert entry.get("env") == (GEMINI_PASSES if host == "gemini" else None)
    else:
        assert "names no file" in done.stderr
    if hooks and host == "opencode":
        assert (base / hooks).read_text() == document.text(document.PLUGIN)
    elif hooks:
        command = f"holdfast guard hook --host {host}"
        found = read(base / hooks)["hooks"]
        assert all(command in json.dumps(each) and len(each) == 1 for each in found.values())
        # Only the event that asks may block: exit code 2 at the end of a turn would keep the agent working.
        assert [f"{command} || exit 2" in json.dumps(each) for each in found.values()] == [
            event in {"PreToolUse", "preToolUse", "BeforeTool"} for event in found
        ]
    else:
        assert "has no hooks" in done.stderr
    assert tree_of(home if not is_user else project) == {}
    assert skill("uninstall", "--for", host, *scope).returncode == 0
    assert tree_of(base) == before


@pytest.mark.parametrize("is_user", [False, True], ids=["project", "user"])
@pytest.mark.parametrize("host", EXPECTED_FILES)
def test_uninstall_restores_files_of_others(project: Path, home: Path, skill: Run, host: str, *, is_user: bool) -> None:
    """Comments, order, indentation, line ends, modes and the missing newline at the end: all is there afterwards."""
    base, scope = (home, ["--user"]) if is_user else (project, [])
    fill(base, host, is_user=is_user)
    before = tree_of(base)
    assert skill("install", "--for", host, "--hooks", *scope).returncode == 0
    installed = tree_of(base)
    assert {name: mode for name, (mode, _) in installed.items() if name in before} == {
        name: mode for name, (mode, _) in before.items()
    }
    again = skill("install", "--for", host, "--hooks", *scope)
    assert again.returncode == 0 and "put in place" not in again.stdout
    assert tree_of(base) == installed
    assert skill("uninstall", "--for", host, *scope).returncode == 0
    assert tree_of(base) == before


def test_claude_code_gets_the_hooks_that_the_guard_needs(project: Path, skill: Run) -> None:
    """Edits, commands and MCP tools are asked for before, and the ends of a turn, a subagent and a session are told.

    A hook that fails or takes too long lets nothing pass; the guide of the guard shows the same, to the letter.
    """
    skill("install", "--for", "claude", "--hooks")
    settings = read(project / ".claude/settings.json")
    command = {"type": "command", "command": "holdfast guard hook --host claude"}
    asks = {"type": "command", "command": "holdfast guard hook --host claude || exit 2"}
    tools, run = {"matcher": "Edit|MultiEdit|Write|NotebookEdit|Bash|Monitor|mcp__.*"}, {"hooks": [command]}
    assert settings == {
        "hooks": {
            "PreToolUse": [{**tools, "hooks": [{**asks, "timeout": 30, "onFailure": "block"}]}],
            "PostToolUse": [{**tools, **run}],
            "Stop": [run],
            "SubagentStop": [run],
            "SessionEnd": [run],
        }
    }
    page = (ROOT / "docs" / "guide" / "guard.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert json.loads(shown) == settings


def test_the_guide_has_the_table_of_hosts() -> None:
    """The guide names the files and events of every host as the table in the code has them."""
    page = (ROOT / "docs" / "guide" / "skill.md").read_text(encoding="utf-8")
    shown = []
    for host in HOSTS:
        config_files = (host.skill, host.mcp.config_file, host.hooks.config_file if host.hooks else None)
        cells = [
            ", ".join(
                path
                for path in (
                    config_file.project and f"`{config_file.project}`",
                    config_file.user and f"`~/{config_file.user}`",
                )
                if path is not None
            )
            if config_file
            else "left out"
            for config_file in config_files
        ]
        events = ", ".join(event for event, _ in host.hooks.events) if host.hooks else "–"
        shown.append(" | ".join([f"| `{host.name}` ({host.title})", *cells, f"{events} |"]))
    assert re.findall(r"^\| `\w+` \(.*$", page, re.MULTILINE) == shown


def test_hooks_are_added_only_on_request(project: Path, skill: Run) -> None:
    """Without --hooks there are none, and each part can be left out or taken away alone."""
    skill("install", "--for", "gemini")
    assert "hooks" not in read(project / ".gemini/settings.json")
    skill("install", "--for", "gemini", "--no-skill", "--no-mcp", "--hooks")
    both = (project / ".gemini/settings.json").read_bytes()
    skill("uninstall", "--no-skill", "--no-hooks")
    assert "mcpServers" not in read(project / ".gemini/settings.json")
    skill("install", "--for", "gemini")
    assert json.loads(both) == read(project / ".gemini/settings.json")
    skill("uninstall", "--no-skill", "--no-mcp")
    assert list(read(project / ".gemini/settings.json")) == ["mcpServers"]
    assert skill("uninstall").returncode == 0
    assert tree_of(project) == {}


def test_install_defaults_to_the_hosts_in_use(project: Path, skill: Run) -> None:
    """Whoever has a folder here is in use. If nobody has, that is a mistake, and the line names the hosts."""
    refused = skill("install")
    assert refused.returncode == 64 and "--for: claude, codex, cursor, gemini, opencode, qwen, vscode" in refused.stderr
    (project / ".cursor").mkdir()
    skill("install")
    assert {path.split("/")[0] for path in tree_of(project)} == {".cursor"}
    nothing = skill("uninstall", "--for", "claude")
    assert (nothing.returncode, nothing.stdout) == (0, "") and "nothing of Holdfast's" in nothing.stderr


def test_the_project_is_the_repository(project: Path, home: Path, skill: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """From inside of a git repository its top is meant; --dir names another folder, and cannot stand beside --user."""
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    (project / "src" / "deep").mkdir(parents=True)
    monkeypatch.chdir(project / "src" / "deep")
    skill("install", "--for", "vscode")
    assert (project / ".vscode" / "mcp.json").exists()
    skill("install", "--for", "vscode", "--dir", ".")
    assert (project / "src" / "deep" / ".vscode" / "mcp.json").exists()
    assert skill("install", "--for", "vscode", "--dir", ".", "--user").returncode == 64
    assert skill("install", "--for", "vscode", "--dir", "nowhere").returncode == 64
    assert tree_of(home) == {}


def test_environment_variables_move_folders(
    project: Path, home: Path, skill: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLAUDE_CONFIG_DIR and CODEX_HOME move the files of a user, and not those of a project."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(home / "c"))
    monkeypatch.setenv("CODEX_HOME", str(home / "x"))
    assert skill("install", "--user", "--for", "claude", "--for", "codex", "--hooks").returncode == 0
    assert {name for name, (_, content) in tree_of(home).items() if content} == {
        ".agents/skills/holdfast/SKILL.md",
        "c/.claude.json",
        "c/settings.json",
        "c/skills/holdfast/SKILL.md",
        "x/config.toml",
        "x/hooks.json",
    }
    assert skill("uninstall", "--user").returncode == 0
    assert [name for name, (_, content) in tree_of(home).items() if content] == []
    skill("install", "--for", "codex")
    assert (project / ".codex" / "config.toml").exists()


def test_dry_run_shows_changes_and_writes_nothing(project: Path, skill: Run) -> None:
    """Its diff, applied by git, is exactly what the installation does; and the same for taking it away."""
    for host in EXPECTED_FILES:
        fill(project, host, is_user=False)
    for path in project.rglob("*"):  # A diff on a terminal cannot carry a carriage return.
        if path.is_file():
            path.write_bytes(path.read_bytes().replace(b"\r", b""))
    for command in (["install", *ALL, "--hooks"], ["uninstall"]):
        before = tree_of(project)
        shown = skill(*command, "--dry-run")
        assert shown.returncode == 0 and "nothing was changed" in shown.stderr
        assert tree_of(project) == before
        skill(*command)
        after = {name: content for name, (_, content) in tree_of(project).items() if content}
        for name in after.keys() | {name for name, (_, content) in before.items() if content}:
            (project / name).unlink(missing_ok=True)
        for name, (_, content) in before.items():
            if content:
                (project / name).parent.mkdir(parents=True, exist_ok=True)
                (project / name).write_bytes(content)
        subprocess.run(["git", "apply", "-p0", "-"], cwd=project, input=shown.stdout, text=True, check=True)
        assert {name: content for name, (_, content) in tree_of(project).items() if content} == after


def test_an_older_skill_is_brought_up_to_date(project: Path, skill: Run) -> None:
    """A copy of another version is replaced and removed; one that somebody wrote into is left, and that is said."""
    skill("install", "--for", "claude")
    config_file = project / ".claude/skills/holdfast/SKILL.md"
    older = document.text().replace("One live owner", "An older text")
    older = older.replace(f'digest: "{document.digest_of(document.text())}"', f'digest: "{document.digest_of(older)}"')
    config_file.write_text(older, newline="\r\n")
    assert "brought up to date" in skill("install").stdout
    assert config_file.read_text() == document.text()
    config_file.write_text(document.text() + "and always ask me first\n")
    for command, code in (("install", 0), ("uninstall", 2)):
        done = skill(command, "--no-mcp")
        assert done.returncode == code and "not as we wrote it" in done.stderr
        assert config_file.read_text().endswith("ask me first\n")


def test_install_upgrades_the_plugin_of_opencode(project: Path, skill: Run) -> None:
    """A plugin of an earlier version is replaced; one that was changed stays, and both commands report it."""
    skill("install", "--for", "opencode", "--hooks")
    config_file, now = project / ".opencode/plugins/holdfast.js", document.text(document.PLUGIN)
    older = now.replace("30_000", "20_000")
    config_file.write_text(older.replace(document.digest_of(now), document.digest_of(older)))
    assert "brought up to date" in skill("install", "--for", "opencode", "--hooks").stdout
    assert config_file.read_text() == now
    config_file.write_text(now + "// mine\n")
    for command, code in (("install", 0), ("uninstall", 2)):
        done = skill(command, "--for", "opencode", *(["--hooks"] if command == "install" else []))
        assert (
            done.returncode == code
            and "not as we wrote it" in done.stderr
            and config_file.read_text().endswith("mine\n")
        )


def test_opencode_of_a_user_is_found_by_its_folder(project: Path, home: Path, skill: Run) -> None:
    """Its folder in the home directory is another one than that of a project."""
    (home / ".config/opencode").mkdir(parents=True)
    skill("install", "--user", "--hooks")
    assert (home / ".config/opencode/plugins/holdfast.js").exists()
    assert skill("uninstall", "--user").returncode == 0


EARLIER = [
    ("claude", ".claude/settings.json", r" \|\| exit 2", ""),
    ("codex", ".codex/hooks.json", r" \|\| exit 2", ""),
    ("cursor", ".cursor/hooks.json", r' \|\| exit 2",\s*"failClosed": true', '"'),
    ("gemini", ".gemini/settings.json", r" \|\| exit 2", ""),
    ("gemini", ".gemini/settings.json", r',\s*"env": \{[^}]*\}', ""),
]


@pytest.mark.parametrize("form", ["alone", "several lines", "one line"])
@pytest.mark.parametrize(("host", "path", "now", "earlier"), EARLIER)
def test_install_replaces_earlier_entries(
    project: Path, skill: Run, host: str, path: str, now: str, earlier: str, form: str
) -> None:
    """An entry of an earlier version gets its present form where it is, and every other byte stays."""
    if form != "alone":
        fill(project, host, is_user=False)
        if form == "one line":
            (project / path).write_text('{"hooks": {}, "mcpServers": {"a": {}}, "version": 1}')
    before = tree_of(project)
    skill("install", "--for", host, "--hooks")
    current, installed = (project / path).read_bytes().decode(), tree_of(project)
    old = re.sub(now, earlier, current)
    assert old != current
    (project / path).write_text(old, newline="")
    assert skill("uninstall", "--for", host).returncode == 0
    assert tree_of(project) == before, "an earlier entry is removed too"
    skill("install", "--for", host, "--hooks")
    (project / path).write_text(old, newline="")
    assert skill("install", "--for", host, "--hooks").returncode == 0
    assert tree_of(project) == installed
    skill("uninstall", "--for", host)
    assert tree_of(project) == before


def test_install_keeps_the_order_of_hooks_that_it_renews(project: Path, skill: Run) -> None:
    """A renewed hook keeps its index, by which Codex knows what a person approved; a commented one is left."""
    skill("install", "--for", "codex", "--hooks")
    file = project / ".codex/hooks.json"
    own = json.loads(file.read_text())["hooks"]["PreToolUse"][0]
    old = json.loads(json.dumps(own).replace(" || exit 2", ""))
    other = {"matcher": "x", "hooks": []}
    file.write_text(json.dumps({"hooks": {"PreToolUse": [old, other]}}))
    assert "brought up to date" in skill("install", "--for", "codex", "--hooks").stdout
    assert json.loads(file.read_text())["hooks"]["PreToolUse"] == [own, other]
    file.write_text(json.dumps({"hooks": {"PreToolUse": [old]}}).replace('"matcher"', '/* mine */ "matcher"'))
    done = skill("install", "--for", "codex", "--hooks")
    assert "not as we wrote it" in done.stderr and "exit 2" not in file.read_text()


@pytest.mark.parametrize(
    ("path", "ours", "theirs"),
    [
        (".mcp.json", '"args": ["mcp"]', '"args": ["mcp"], "env": {"HOLDFAST_OWNER": "me"}'),
        (".mcp.json", '"holdfast": {', '"locks": {'),
        (".mcp.json", '"command": "holdfast"', '"command": "/opt/bin/holdfast" // mine\n'),
        (".mcp.json", '"args":', '/* mine */ "args":'),
        (".claude/settings.json", "Edit|", "Read|Edit|"),
        (".claude/settings.json", '"holdfast guard', '"~/bin/holdfast guard'),
    ],
)
def test_edited_entry_is_left_alone(project: Path, skill: Run, path: str, ours: str, theirs: str) -> None:
    """An entry that still runs our command and is not as we wrote it stays as it is, and no second one is added."""
    skill("install", "--for", "claude", "--hooks")
    file = project / path
    changed = file.read_text().replace(ours, theirs)
    assert changed != file.read_text()
    file.write_text(changed)
    again = skill("install", "--for", "claude", "--hooks")
    assert again.returncode == 0 and file.read_text() == changed
    gone = skill("uninstall")
    assert gone.returncode == 2 and f"{path}: " in gone.stderr and "not as we wrote it" in gone.stderr
    assert file.exists() and theirs.strip() in file.read_text()


def test_another_program_of_that_name_is_left(project: Path, skill: Run) -> None:
    """An entry `holdfast` that runs something else is not touched, neither by install nor by uninstall."""
    text = '{"mcpServers": {"holdfast": {"command": "anchor"}}}'
    (project / ".mcp.json").write_text(text)
    (project / ".codex").mkdir()
    (project / ".codex/config.toml").write_text('[mcp_servers.holdfast]\ncommand = "anchor"\n')
    for command in ("install", "uninstall"):
        done = skill(command, "--for", "claude", "--for", "codex")
        assert done.stderr.count("not as we wrote it") == 2
        assert (project / ".mcp.json").read_text() == text


def test_install_without_parts_is_a_usage_error(project: Path, skill: Run) -> None:
    """Who wants neither the skill, nor the server, nor hooks is told what to write, and nothing is changed."""
    done = skill("install", "--for", "claude", "--no-skill", "--no-mcp")
    assert done.returncode == 64 and "--hooks" in done.stderr
    assert tree_of(project) == {}


def test_install_reports_a_program_missing_on_the_path(skill: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `holdfast` is not on the PATH, one line says so, and which folder to put there."""
    monkeypatch.setenv("PATH", "/nowhere")
    done = skill("install", "--for", "claude")
    assert done.returncode == 0 and "not on your PATH here" in done.stderr
    assert str(Path(sys.executable).parent) in done.stderr


@pytest.mark.parametrize("parts", [[], ["--no-mcp"]])
def test_install_reports_a_missing_extra(skill: Run, monkeypatch: pytest.MonkeyPatch, parts: list[str]) -> None:
    """Where the extra for the MCP server is not installed, one line says so and how to install it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "mcp" else object())
    done = skill("install", "--for", "claude", *parts)
    assert done.returncode == 0 and (" install -e '.[mcp]'" in done.stderr) == (not parts)


def test_show_prints_the_skill(skill: Run) -> None:
    """`holdfast skill show` prints the very text, and nothing else."""
    assert skill("show").stdout == document.text()


class Interrupts:
    """Calls something, and is interrupted instead at the n-th time."""

    def __init__(self, call: Callable[..., object], at: int) -> None:
        self._call = call
        self._left = at

    def __call__(self, *arguments: object) -> object:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt
        return self._call(*arguments)


@pytest.mark.parametrize(
    ("owner", "name"), [(installer, "write_file"), (os, "fsync")], ids=["between files", "within a file"]
)
@pytest.mark.parametrize("is_install", [True, False], ids=["install", "uninstall"])
def test_interrupt_leaves_every_file_complete(
    project: Path, skill: Run, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, *, is_install: bool
) -> None:
    """Wherever Ctrl-C comes, each file is the old or the new one; one more run finishes what was begun."""
    for host in EXPECTED_FILES:
        fill(project, host, is_user=False)
    commands = [["uninstall"], ["install", *ALL, "--hooks"]]
    states = [tree_of(project)]
    skill(*commands[1])
    states.append(tree_of(project))
    skill(*commands[not is_install])
    start, end = states[not is_install], states[is_install]
    stopped = 0
    for at in range(1, 100):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, Interrupts(getattr(owner, name), at))
            code = skill(*commands[is_install]).returncode
        found = tree_of(project)
        files = {name: each for name, each in found.items() if each[1]}
        assert all(each in (start.get(name), end.get(name)) for name, each in files.items())
        assert skill(*commands[is_install]).returncode == 0
        assert tree_of(project) == end
        skill(*commands[not is_install])
        assert tree_of(project) == start
        if code == 0:
            break
        assert code == 130
        stopped += 1
    assert stopped > 5
