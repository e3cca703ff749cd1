"""The command line itself: help, versions, usage errors and exit codes, without any server."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from holdfast import __version__
from holdfast.cli.main import cli, run
from holdfast.cli.shared import options, output
from holdfast.cli.shared.refusals import exit_code
from holdfast.errors import HoldfastError, NotAllowed, Refused, ServerError, SettingsError, Unreachable

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "commands.md"


@pytest.fixture(autouse=True)
def _own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration of the person who runs the tests takes part."""
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int = 64) -> str:
    """Run, insist on the exit code and on one line of complaint, and return that line."""
    assert run(arguments) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("holdfast: ")
    return line


def every_command(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    children = command.commands.items() if isinstance(command, click.Group) else ()
    return [(path, command), *(found for name, child in children for found in every_command(child, (*path, name)))]


def test_version() -> None:
    """`--version` says the version."""
    result = CliRunner().invoke(cli, ["--version"])
    assert (result.exit_code, result.output) == (0, f"holdfast {__version__}\n")


@pytest.mark.parametrize("path", [path for path, _ in every_command(cli)], ids=" ".join)
def test_every_command_has_help(path: tuple[str, ...]) -> None:
    """Every command explains itself, and each of its options too."""
    for flag in ("--help", "-h"):
        result = CliRunner().invoke(cli, [*path, flag], prog_name="holdfast")
        assert result.exit_code == 0
        assert result.output.startswith(f"Usage: {' '.join(('holdfast', *path))} ")
    command = dict(every_command(cli))[path]
    assert command.help
    assert [param.name for param in command.params if isinstance(param, click.Option) and not param.help] == []


def test_no_help_is_cut() -> None:
    """In the lists of commands each text is whole, also on a narrow terminal, and they stand as in the reference."""
    for path, command in every_command(cli):
        if isinstance(command, click.Group):
            shown = CliRunner().invoke(cli, [*path, "--help"], prog_name="holdfast", terminal_width=80).output
            assert "..." not in shown.partition("[ARGS]...")[2], path
    page = REFERENCE.read_text(encoding="utf-8")
    for name in ("session", "token"):
        group = cli.commands[name]
        assert isinstance(group, click.Group)
        listed = group.list_commands(click.Context(group))
        assert listed == re.findall(rf"^### holdfast {name} (\w+)$", page, flags=re.MULTILINE)


def test_help_fits_the_terminal() -> None:
    """No line of a help, its examples and lists too, is longer than the terminal is wide."""
    for path, _ in every_command(cli):
        shown = CliRunner().invoke(cli, [*path, "--help"], prog_name="holdfast", terminal_width=80).output
        assert [line for line in shown.splitlines() if len(line) > 80] == [], path


def sections(page: str) -> dict[str, str]:
    """What the reference says below each heading: of a command, without that of its subcommands."""
    found = re.split(r"^##+ (.+)$", page, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def options_in(text: str) -> set[str]:
    """Each option that stands at the beginning of a span of code."""
    return set(re.findall(r"`(--?[a-z-]+)[^`]*`", text, flags=re.IGNORECASE))


def offered_in(section: str) -> set[str]:
    """The options that a section says its command takes: in the table of options, and after "Takes"."""
    table = re.search(r"^\| option \| does \|\n\|---\|---\|\n((?:\|.*\n)+)", section, flags=re.MULTILINE)
    rows = [row.split(" | ")[0] for row in table[1].splitlines()] if table else []
    return options_in("\n".join([*rows, *re.findall(r"\bTakes\s(.*?)\.\s", section, flags=re.DOTALL)]))


def test_every_command_is_documented() -> None:
    """Each command has a section in the reference that tells each of its options and offers no other.

    Of the options that say which server it is, the first two stand for all: they have a section of their own.
    """
    said = sections(REFERENCE.read_text(encoding="utf-8"))
    same_everywhere = options_in(said["Which server, which access token"])
    assert {"--url", "--token-file", "--ca-file", "--allow-insecure-http"} <= same_everywhere
    for path, command in every_command(cli):
        if not path:
            continue
        section = said[" ".join(("holdfast", *path))]
        options = [[*param.opts, *param.secondary_opts] for param in command.params if isinstance(param, click.Option)]
        known = {name for names in options for name in names}
        assert offered_in(section) <= known, (path, offered_in(section) - known)
        if "--url" in known:
            known -= same_everywhere - {"--url", "--token-file"}
        documented = options_in(section)
        undocumented = [names for names in options if set(names) & known and not set(names) & documented]
        assert undocumented == [], path


def test_an_option_of_another_command_is_found() -> None:
    """A table and a sentence that offer options are read, also over the end of a line; what is told beside is not."""
    section = "`--far` is another's.\n\n| option | does |\n|---|---|\n| `-w TIME`, `--wait TIME` | `--no` |\n\n"
    assert offered_in(section + "Well. Takes\n`--json` and `--url URL`. Not `--me`.\n") == {
        "-w",
        "--wait",
        "--json",
        "--url",
    }


def test_help_of_serve_lists_every_setting() -> None:
    """`holdfast serve --help` ends with the table of settings."""
    from holdfast.config import TABLE

    shown = CliRunner().invoke(cli, ["serve", "--help"]).output
    assert [row.name for row in TABLE if not re.search(rf"\n  {row.name}[ \n]", shown)] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tokn"], "No such command 'tokn'"),
        (["serve", "--lisen", "x"], "--lisen"),
        (["serve", "extra"], "extra"),
        (["serve", "--set", "max_ttl_seconds"], "--set NAME=VALUE"),
        (["serve", "--set", "max_ttl_secs=5"], "did you mean max_ttl_seconds?"),
        (["serve", "--set", "max_ttl_seconds=five"], "a whole number of seconds"),
        (["serve", "--listen", "7420"], "host:port"),
        (["serve", "--config", "nowhere.toml"], "nowhere.toml"),
        (["token", "create"], "Missing argument 'NAME'"),
        (["token", "create", "x", "--scope", "write"], "'read', 'claim', 'admin'"),
        (["token", "create", "x", "--expires", "1h30"], "120, 90s, 15m, 1h30m, 30d or 2w"),
        (["token", "create", "x", "--expires", "0d"], "is too short; 1s is the least"),
        (["token", "create", "x", "--expires", "9999999999w"], "is too long; 7000w is the most"),
        (["token", "list", "--url", "host:7420"], "http://host:port"),
        (["token", "list", "--token-file", "nowhere"], "nowhere"),
        (["doctor", "--dump"], "--dump --data DIR"),
        (["--json", "jobs"], "write --json after the command: holdfast jobs --json"),
        (["--url", "http://127.0.0.1:1", "owner", "x"], "write --url after the command: holdfast owner --url"),
        (["session", "--json", "list"], "write --json after the command: holdfast session list --json"),
        (["--jsn", "jobs"], "No such option '--jsn'"),
        (["--json", "completion"], "No such option '--json'"),
        (["--json"], "No such option '--json'"),
        (["check", "x", "hold_abc"], "a fencing token is a number, as `holdfast claim`"),
        (["history", "x", "--limit", "0"], "0 is not in the range x>=1"),
        (["run", "x", "-E", "256", "--", "true"], "256 is not in the range 0<=x<=255"),
    ],
)
def test_usage_errors(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    """A mistake in the command line is one line that says what to write, and exit code 64."""
    assert said in refused(capsys, arguments)


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """`holdfast` alone shows the help and counts as a mistake."""
    assert run([]) == 64
    assert "Usage: holdfast" in capsys.readouterr().err


def test_unreachable(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that is not there is exit code 69 and a line that says how to start one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        line = refused(capsys, ["token", "list", "--url", url], 69)
        assert url in line and "holdfast serve" in line
        assert run(["doctor", "--url", url]) == 69
        assert capsys.readouterr().out.startswith("FAIL  reachable")


def test_silent_server_is_reported_soon(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that hangs is waited for no longer than somebody in front of the command has patience."""
    monkeypatch.setattr(options, "ANSWER_SECONDS", 0.1)
    monkeypatch.setenv("HOLDFAST_TOKEN", "hold_x")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        for command in (["jobs"], ["claim", "job"], ["session", "start"]):
            began = time.monotonic()
            assert "did not come in time" in refused(capsys, [*command, "--url", url], 69)
            assert time.monotonic() - began < 10, "it was asked for as long as a program would ask"


def test_token_is_not_sent_in_the_clear(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A token for another host over plain HTTP is refused before anything is sent."""
    monkeypatch.setenv("HOLDFAST_TOKEN", "hold_secret")
    line = refused(capsys, ["token", "list", "--url", "http://192.0.2.1:7420"])
    assert "https://" in line and "hold_secret" not in line


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError("a", "b", "c"), 64),
        (Unreachable("http://a", "b"), 69),
        (NotAllowed(401, "a", "b"), 77),
        (NotAllowed(403, "a", "b"), 77),
        (Refused(404, "a", "b"), 64),
        (Refused(409, "a", "b"), 64),
        (Refused(413, "a", "b"), 64),
        (Refused(421, "a", "b"), 64),
        (Refused(422, "a", "b"), 64),
        (Refused(431, "a", "b"), 64),
        (NotAllowed(429, "a", "b"), 77),
        (Refused(408, "a", "b"), 69),
        (Refused(429, "a", "b"), 69),
        (Refused(429, "quota_exceeded", "b"), 75),
        (Refused(409, "capacity_exceeded", "b"), 75),
        (NotAllowed(403, "lock_limit_exceeded", "b"), 75),
        (Refused(503, "a", "b"), 69),
        (Refused(500, "a", "b"), 70),
        (Refused(302, "a", "b"), 70),
        (ServerError("a"), 70),
    ],
    ids=repr,
)
def test_exit_codes(error: HoldfastError, code: int) -> None:
    """Every error has its exit code."""
    assert exit_code(error) == code


def test_bug_is_a_line_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An error nobody thought of is one line with its place, and exit code 70; no traceback, no tricks."""

    def broken(*_: object) -> None:
        raise KeyError("\x1b[31mred\nline")

    monkeypatch.setattr("holdfast.cli.operators.token.client", broken)
    line = refused(capsys, ["token", "list"], 70)
    assert "KeyError" in line and "test_usage.py:" in line and "\x1b" not in line


def test_durations() -> None:
    """A time is a number and a unit."""
    read = options.Duration().convert
    assert [read(text, None, None) for text in ("90s", "15m", "12h", "30d", "2w")] == [
        90,
        900,
        43_200,
        2_592_000,
        1_209_600,
    ]


def test_foreign_text_does_not_act_on_the_terminal() -> None:
    """Escape sequences and line breaks of a server's text are shown, not obeyed."""
    assert output.plain("a\x1b[2Jb\nc\u202ed") == "a\\x1b[2Jb c\\x202ed"


def test_light_start() -> None:
    """The command line loads neither wcwidth, http.client nor any part of the server before a command needs it."""
    heavy = {
        "wcwidth",
        "http.client",
        "ssl",
        "asyncio",
        "apsw",
        "uvloop",
        "holdfast.core",
        "holdfast.journal",
        "holdfast.server",
    }
    code = f"import sys, holdfast.cli.main; print(*sorted({heavy} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "\n"


def test_missing_extra_is_named(tmp_path: Path) -> None:
    """Where the server's parts are not installed, a command that needs them says which command installs them."""
    for missing, command in (("httptools", ["serve", "--data", "d"]), ("apsw", ["doctor", "--data", str(tmp_path)])):
        code = (
            f"import sys; sys.modules[{missing!r}] = None\nfrom holdfast.cli.main import run; sys.exit(run({command}))"
        )
        shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert shown.returncode == 69
        assert " install -e '.[server]'" in shown.stderr and len(shown.stderr.splitlines()) == 1


def test_interrupt_is_130() -> None:
    """Ctrl-C ends a command with 130 and without a traceback."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "holdfast", "token", "list", "--url", url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            silent.settimeout(30)
            connection, _ = silent.accept()
            with connection:
                connection.recv(1)
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err.strip()) == (130, "", "")


def test_closed_pipe_is_quiet(tmp_path: Path) -> None:
    """A reader that has seen enough is not an error worth a line."""
    command = f"{sys.executable} -m holdfast serve --help; echo $? >code"
    with subprocess.Popen(
        ["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert (tmp_path / "code").read_text().strip() == "141"
