"""Hosts that skip installed hooks without a message: `guard status` and `skill install` report it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.agents.skill.installer import Scope, codex_hash, problems
from holdfast.cli import main
from tests.agents.skill.conftest import Run

APPROVED = "sha256:e9e58a8fee7c2a96f89a20f87ad7963f823c1b2a857eb9b63b69c439980cba76"
"""As Codex 0.169.0 lists the hook that `skill install` writes (`hooks/list` of its app server)."""


def status() -> int:
    return main.run(["guard", "status", "--json"])


@pytest.fixture
def user(home: Path) -> Scope:
    """The user's scope, without variables."""
    return Scope(home, is_user=True)


def approve(home: Path, project: Path, state: str, *, trust: str = "trusted", file: Path | None = None) -> None:
    """Write Codex's settings: whether it trusts the project, and the state of the guard's hook."""
    key = json.dumps(f"{file or project / '.codex/hooks.json'}:pre_tool_use:0:0")
    text = f"[projects.{json.dumps(str(project))}]\ntrust_level = {json.dumps(trust)}\n[hooks.state.{key}]\n{state}\n"
    (home / ".codex").mkdir(exist_ok=True)
    (home / ".codex/config.toml").write_text(text)


def test_codex_hash_equals_that_of_codex() -> None:
    """The hash of the hook is the one that the real Codex computes."""
    assert codex_hash("Bash|apply_patch|mcp__.*", "holdfast guard hook --host codex || exit 2") == APPROVED


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (f'trusted_hash = "{APPROVED}"', ""),
        ("", "until you start `codex` and approve it"),
        ('trusted_hash = "sha256:0"', "changed after you approved it"),
        (f'trusted_hash = "{APPROVED}"\nenabled = false', "disabled"),
        ("trusted_hash = 1", "until you start `codex` and approve it"),
    ],
)
def test_codex_hook_needs_the_approval_of_its_present_form(
    project: Path, home: Path, skill: Run, user: Scope, state: str, word: str
) -> None:
    """A hook that is not approved, was changed since, or is disabled is reported, and an approved one is not."""
    skill("install", "--for", "codex", "--hooks")
    approve(home, project, state)
    found = problems(Scope(project), user)
    assert len(found) == bool(word) and all(word in each for each in found)


def test_codex_ignores_projects_that_are_not_trusted(project: Path, home: Path, skill: Run, user: Scope) -> None:
    """Without trust in the project its hooks do not run; a file that cannot be read is reported as unknown."""
    skill("install", "--for", "codex", "--hooks")
    assert "does not trust the project" in problems(Scope(project), user)[0]
    approve(home, project, f'trusted_hash = "{APPROVED}"', trust="untrusted")
    assert "does not trust the project" in problems(Scope(project), user)[0]
    (home / ".codex/config.toml").write_text("[[")
    assert "cannot tell" in problems(Scope(project), user)[0]


def test_codex_hook_of_a_user_needs_approval_alone(project: Path, home: Path, skill: Run, user: Scope) -> None:
    """Hooks in the home directory need no trusted project; their approval is found below CODEX_HOME too."""
    skill("install", "--user", "--for", "codex", "--hooks")
    assert "approve it with /hooks" in problems(user, user)[0]
    approve(home, project, f'trusted_hash = "{APPROVED}"', file=home / ".codex/hooks.json")
    assert problems(user, user) == []
    moved = Scope(home, is_user=True, environment={"CODEX_HOME": str(home / "x")})
    (home / ".codex").rename(home / "x")
    assert "approve it with /hooks" in problems(moved, moved)[0], "its key names the file"
    approve(home, project, f'trusted_hash = "{APPROVED}"', file=home / "x/hooks.json")
    (home / ".codex/config.toml").rename(home / "x/config.toml")
    assert problems(moved, moved) == []


@pytest.mark.parametrize(
    ("rules", "is_trusted"),
    [
        ({}, False),
        ({"": "TRUST_FOLDER"}, True),
        ({"..": "TRUST_FOLDER"}, True),
        ({"../sibling": "TRUST_PARENT"}, True),
        ({"../sibling": "TRUST_FOLDER"}, False),
        ({"..": "TRUST_FOLDER", "": "DO_NOT_TRUST"}, False),
        ({"": "TRUST_FOLDER", "..": "DO_NOT_TRUST"}, True),
    ],
)
@pytest.mark.parametrize("part", ["--hooks", "--no-hooks"])
def test_gemini_ignores_folders_that_are_not_trusted(
    project: Path, home: Path, skill: Run, user: Scope, rules: dict[str, str], part: str, *, is_trusted: bool
) -> None:
    """Hooks and MCP server of a project count only in a trusted folder; the rule for the longest path decides."""
    skill("install", "--for", "gemini", part)
    (home / ".gemini").mkdir()
    named = {str(project / name): level for name, level in rules.items()}
    (home / ".gemini/trustedFolders.json").write_text(json.dumps(named))
    found = problems(Scope(project), user)
    assert len(found) == (not is_trusted) and all("--skip-trust" in each and "--user" in each for each in found)


def test_gemini_trust_can_be_set_elsewhere(project: Path, home: Path, skill: Run, user: Scope) -> None:
    """The setting that turns folder trust off, the variables and an installation for the user need no rule."""
    skill("install", "--for", "gemini", "--hooks")
    assert problems(Scope(project), user)
    (home / "rules.json").write_text(json.dumps({str(project): "TRUST_FOLDER"}))
    moved = {"GEMINI_CLI_TRUSTED_FOLDERS_PATH": str(home / "rules.json")}
    for variables in ({"GEMINI_CLI_TRUST_WORKSPACE": "true"}, moved):
        assert problems(Scope(project), Scope(home, is_user=True, environment=variables)) == []
    (home / ".gemini").mkdir()
    (home / ".gemini/settings.json").write_text('{"security": {"folderTrust": {"enabled": false}}}')
    assert problems(Scope(project), user) == []
    (home / ".gemini/settings.json").unlink()
    skill("install", "--user", "--for", "gemini", "--hooks")
    assert problems(user, user) == []


def test_status_and_install_report_skipped_hooks(
    project: Path, home: Path, skill: Run, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both commands name the file and what to do, from any folder of the project; without hooks there is nothing."""
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    assert status() == 0 and json.loads(capfd.readouterr().out)["warnings"] == []
    (project / ".git").mkdir()
    done = skill("install", "--for", "codex", "--for", "gemini", "--hooks")
    assert "without a message" in done.stderr and "--skip-trust" in done.stderr
    (project / "deep").mkdir()
    monkeypatch.chdir(project / "deep")
    capfd.readouterr()
    assert status() == 0
    warnings = json.loads(capfd.readouterr().out)["warnings"]
    assert [".codex/hooks.json" in warnings[0], ".gemini/settings.json" in warnings[1], len(warnings)] == [
        True,
        True,
        2,
    ]
    assert main.run(["guard", "status"]) == 0
    shown = capfd.readouterr().err
    assert all(warning in shown for warning in warnings)
