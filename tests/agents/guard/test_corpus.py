"""Two lists of shell commands as coding agents write them: ordinary ones always pass, writing ones need the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.agents.guard.decision import Matcher
from tests.agents.guard.agents import World
from tests.support.api import Api

HERE = Path(__file__).parent
ORDINARY = (HERE / "ordinary_commands.txt").read_text().rstrip("\n").split("\n%%\n")
WRITING = (HERE / "writing_commands.txt").read_text().rstrip("\n").split("\n%%\n")
RULES = """
[[rule]]
paths = ["src/auth/**", "docs/auth.md"]
job = "app:auth"

[[rule]]
command = "git push"
job = "app:push/{branch}"

[[rule]]
tool = "mcp__deploy__*"
job = "app:deploy"
"""
FOLDERS = ("api", "config", "docs", "scripts", "src/app", "src/auth", "templates/basic", "tests", "web", ".git")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with typical rules."""
    top = tmp_path_factory.mktemp("corpus") / "repo"
    for folder in FOLDERS:
        (top / folder).mkdir(parents=True)
    (top / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (top / "src" / "auth" / "login.py").write_text("a\n")
    (top / "holdfast-guard.toml").write_text(RULES)
    return top


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands name these variables, and each has the default or no value."""
    for name in ("DIR", "TMPDIR", "UNSET_NAME"):
        monkeypatch.delenv(name, raising=False)


def wanted(repository: Path, line: str, *, cwd: Path | None = None, is_codex: bool = False) -> list[str]:
    """The jobs that a line needs; `refused` if it cannot be judged."""
    found = Matcher(str(repository.parent / "state")).of_command_line(line, str(cwd or repository), is_codex=is_codex)
    return sorted({"refused" if requirement.problem else requirement.job for requirement in found})


def test_corpus_holds_two_hundred_ordinary_commands() -> None:
    """The list is as long as it has to be, without duplicates."""
    assert len(set(ORDINARY)) == len(ORDINARY) >= 200


@pytest.mark.parametrize("line", ORDINARY)
def test_ordinary_commands_need_no_job(line: str, repository: Path) -> None:
    """A command that writes no guarded file is never held up, in no host."""
    assert wanted(repository, line, is_codex=True) == []


@pytest.mark.parametrize("line", WRITING)
def test_writing_commands_need_the_job(line: str, repository: Path) -> None:
    """A command that writes a guarded file, or one with an unknown name, never passes while another has the job."""
    found = wanted(repository, line)
    assert found in (["app:auth"], ["refused"], ["app:auth", "refused"])


@pytest.mark.parametrize(
    "line",
    [
        "sed -i s/a/b/ $(cat names.txt)",
        'echo x > "$UNSET_NAME"',
        'cd "$UNSET_NAME" && echo x > login.py',
        "cat names.txt | xargs rm",
        "git apply /tmp/not-there.patch",
    ],
)
def test_unknown_names_pass_where_no_rule_guards_files(line: str, repository: Path, tmp_path: Path) -> None:
    """A name that is unknown before the command runs is refused only where a rule guards files."""
    assert wanted(repository, line) == ["refused"]
    assert wanted(repository, line, cwd=repository.parent) == []
    (tmp_path / "holdfast-guard.toml").write_text('[[rule]]\ncommand = "git push"\njob = "a:b"\n')
    assert wanted(repository, line, cwd=tmp_path) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sed -i s/a/b/ $(grep -rl a tests)", []),
        ("sed -i s/a/b/ $(grep -rl a src)", ["app:auth"]),
        ('for f in $(find tests); do sed -i s/a/b/ "$f"; done', []),
        ('git ls-files src/app | while read f; do sed -i s/a/b/ "$f"; done', []),
        ('echo x > "$(pwd)/src/app/x"', []),
        ('cd src && echo x > "$(git rev-parse --show-toplevel)/app/x"', []),
        ('cd src && echo x > "$(git rev-parse --show-toplevel)/src/auth/x"', ["app:auth"]),
        ("rm -rf ../other* ../*.log", []),
        ("rm -rf ../re*", ["app:auth"]),
        ('d=$(mktemp -d); echo x > "$d/src/auth/x"', []),
        ("f=src/auth/x.py; echo a > ${f##*/}", []),
        ("f=src/auth/x.py; echo a > ${f%.py}.txt", ["app:auth"]),
        ("f=docs/auth.txt; echo a > ${f%.txt}.md; g=docs; echo > $g/other.md", ["app:auth"]),
        ("cp ../x/*.json .; cp ../x/*.json src/auth", ["app:auth"]),
        ("find tests -type f | xargs -I{} sh -c 'echo x > {}'", []),
        ("find tests -exec sh -c 'echo x > \"$1\"' _ {} \\;", []),
        ("python3 -c \"open('src/app/x', 'w')\"", []),
        ("python3 -c \"print(open('src/auth/login.py').read())\"", []),
        ("patch src/app/x.py < /tmp/fix.patch", []),
        ("patch -o src/auth/x.py src/app/x.py /tmp/fix.patch", ["app:auth"]),
        ("gawk -i inplace '{print}' src/auth/x.py", ["app:auth"]),
        ("mawk -v a=1 -i inplace -f x.awk src/auth/x.py", ["app:auth"]),
        ("gawk --include inplace '{print}' src/auth/x.py", ["app:auth"]),
        ("gawk -i inplace '{print}' src/app/x.py", []),
        ("cd src/auth && curl --remote-name-all https://example.org/x.py", ["app:auth"]),
        ("cd src/auth && tar --extr -f ../x.tar", ["app:auth"]),
        ("su ana -- -c 'echo a > src/auth/x.py'", ["app:auth"]),
        ("echo 'echo a > src/auth/x.py' | bash +x", ["app:auth"]),
        ('names=(tests/a tests/b); rm "${names[@]}"', []),
    ],
)
def test_names_are_resolved_from_the_line(line: str, expected: list[str], repository: Path) -> None:
    """Where the line defines a name, or the folder that it is below, only that counts."""
    assert wanted(repository, line) == expected


def test_patches_are_read(repository: Path) -> None:
    """The files of a patch count, whether it is a file or is typed in."""
    patch = "--- a/src/{0}/x.py\n+++ b/src/{0}/x.py\n@@ -1 +1 @@\n-a\n+b\n"
    for folder, expected in (("auth", ["app:auth"]), ("app", [])):
        file = repository.parent / f"{folder}.patch"
        file.write_text(patch.format(folder))
        assert wanted(repository, f"git apply ../{folder}.patch") == expected
        assert wanted(repository, f"patch -p1 < {file}") == expected
        assert wanted(repository, f"patch -p 1 < {file}") == expected
        assert wanted(repository, f"git apply - <<'EOF'\n{patch.format(folder)}EOF") == expected


@pytest.mark.parametrize(
    "line",
    [
        "bash",
        "bash --norc",
        "bash +x",
        "bash -i",
        "sh -s",
        "cd src && exec zsh",
        "env A=1 bash",
        "sudo -i",
        "su - ana",
        "script /tmp/log",
        "python3",
        "python3.12 -i x.py",
        "uv run python",
        "ipython",
        "node",
        "irb",
        "psql app",
        "sqlite3 app.db",
        "mysql -u root app",
        "vim README.md",
    ],
)
def test_interactive_programs_are_refused_in_codex(line: str, repository: Path) -> None:
    """Codex shows no hook what is typed later: starting such a program is refused there, and only where rules are."""
    assert wanted(repository, line, is_codex=True) == ["refused"]
    assert wanted(repository, line) == []
    assert wanted(repository, line, cwd=repository.parent, is_codex=True) == []


@pytest.mark.parametrize(
    "line",
    [
        "bash x.sh",
        "bash -c 'ls'",
        "bash -ic 'ls'",
        "bash <<'EOF'\nls\nEOF",
        "echo ls | bash",
        "bash < x.sh",
        "python3 x.py",
        "python3 -m pytest",
        "python3 -c 'print(1)'",
        "python3 --version",
        "python3 - < x.py",
        "node -e 'console.log(1)'",
        "node --test",
        "perl -ne 'print' README.md",
        "perl -d:NYTProf x.pl",
        "psql -d app -tAc 'select 1'",
        "psql app < dump.sql",
        "sqlite3 app.db 'select 1'",
        "mysql -e 'select 1' app",
        "sudo ls",
    ],
)
def test_programs_with_a_script_pass_in_codex(line: str, repository: Path) -> None:
    """A program that is given its commands does not wait for input."""
    assert wanted(repository, line, is_codex=True) == []


def test_unknown_names_are_refused_by_the_hook(world: World, api: Api) -> None:
    """The hook refuses a name that it cannot resolve, says how to write it, and claims nothing for it."""
    host = world.host()
    refused = host.bash("sed -i s/a/b/ $(cat names.txt)").refused
    assert "literally" in refused and "edit tool" in refused
    assert api.locks().json()["locks"] == []
    api.acquired("area:auth", owner="ben", ttl_seconds=60)
    assert "ben" in host.bash("sed -i s/a/b/ $(grep -rl a src)").refused
    assert host.bash("sed -i s/a/b/ $(grep -rl a tests/*.py)").passed


def test_interactive_shells_are_refused_by_the_hook_of_codex(world: World) -> None:
    """Codex gets a refusal that says what to do instead; Claude Code has no such gap."""
    assert "here-document" in world.host("codex").bash("bash --norc").refused
    assert world.host("claude").bash("bash --norc").passed
