"""`holdfast token`, against a real server."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable

import pytest

from tests.cli.background_command import CLOCK
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.server import ServerProcess

ALL_SCOPES = ("--scope", "read", "--scope", "claim", "--scope", "admin")
TOKEN = re.compile(r"hold_[0-9A-Za-z]{36}")


@pytest.fixture
def as_operator(server: ServerProcess, holdfast: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., str]:
    """Runs `holdfast token …` as an operator, insists on success, and returns what it printed."""

    def run(*arguments: object) -> str:
        done = holdfast("token", *arguments, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.OPERATOR)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_created_token_works(server: ServerProcess, holdfast: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """`create` prints the token alone on standard output, with the hint beside it, and the token is good at once."""
    name = unique("ci")
    done = holdfast("token", "create", name, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.OPERATOR)
    assert done.returncode == 0
    assert TOKEN.fullmatch(done.stdout.strip())
    assert f"{name} may read+claim all names and never expires" in done.stderr and "only time" in done.stderr
    api = Api.of(server, done.stdout.strip())
    assert api.acquired(unique())["status"] == "acquired"
    assert api.get("/tokens").status == 403


def test_scopes_prefix_and_expiry_arrive(as_operator: Callable[..., str]) -> None:
    """Every option of `create` is what the server answers and lists."""
    name = unique("full")
    options = ("--scope", "admin", "--scope", "read", "--prefix", "team/", "--expires", "30d", "--json")
    made = json.loads(as_operator("create", name, *options))
    assert (made["name"], made["scopes"], made["prefix"]) == (name, ["read", "admin"], "team/")
    assert TOKEN.fullmatch(made["token"])
    assert made["expires_at"] > made["created_at"]
    (row,) = [row for row in json.loads(as_operator("list", "--json"))["tokens"] if row["name"] == name]
    assert row == {key: value for key, value in made.items() if key != "token"} | {"source": "made", "last_used": None}


def test_confined_operator_sees_the_created_token(
    server: ServerProcess, holdfast: Callable[..., subprocess.CompletedProcess[str]], as_operator: Callable[..., str]
) -> None:
    """Who is confined and names no prefix gives its own, and is told so. A name outside of its sight is just taken."""
    outside = unique("outside")
    as_operator("create", outside)
    confined = as_operator("create", unique("sub"), *ALL_SCOPES, "--prefix", "team/").strip()
    access = {"HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": confined}
    made = holdfast("token", "create", unique("below"), "--expires", "1h", **access)
    assert made.returncode == 0 and "may read+claim names that start with team/, until" in made.stderr
    taken = holdfast("token", "create", outside, **access)
    assert taken.returncode == 64 and "take another name" in taken.stderr and "rotate" not in taken.stderr
    gone = holdfast("token", "revoke", unique("no"), **access)
    assert gone.returncode == 64


def test_revoke_lists_the_ended_leases(
    server: ServerProcess, holdfast: Callable[..., subprocess.CompletedProcess[str]], as_operator: Callable[..., str]
) -> None:
    """`revoke` says on standard error what has ended and what lives on."""
    for more, said in (((), "Its sessions have ended"), (("--keep-sessions",), "Its sessions live on")):
        name = unique("ended")
        as_operator("create", name)
        done = holdfast("token", "revoke", name, *more, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.OPERATOR)
        assert said in done.stderr and "claims" in done.stderr


def test_list_is_a_table(as_operator: Callable[..., str]) -> None:
    """`list` shows every token in a row, uncut in a pipe, and never a token itself."""
    name, prefix = unique("long"), "a-long-prefix/" * 8
    token = as_operator("create", name, "--prefix", prefix).strip()
    shown = as_operator("list")
    head, *rows = shown.splitlines()
    assert head.split() == ["NAME", "SCOPES", "PREFIX", "EXPIRES", "CREATED", "LAST", "USED", "SOURCE"]
    (row,) = [re.split(r" {2,}", row) for row in rows if row.split()[0] == name]
    assert (row[1], row[2], row[3], row[5], row[6]) == ("read+claim", prefix, "never", "never", "made")
    assert re.fullmatch(CLOCK, row[4]), "times are written as everywhere"
    (own,) = [re.split(r" {2,}", row) for row in rows if row.split()[0] == "operator"]
    assert own[1] == "read+claim+admin", "scopes have one order everywhere"
    assert own[-1] == "static" and re.fullmatch(CLOCK, own[-2]), "it was used for this very list"
    assert token not in shown and callers.OPERATOR not in shown and "\x1b" not in shown


def test_revoked_token_is_out(server: ServerProcess, as_operator: Callable[..., str]) -> None:
    """`revoke` shuts a token out at once."""
    name = unique("gone")
    api = Api.of(server, as_operator("create", name).strip())
    assert api.locks().status == 200
    assert as_operator("revoke", name) == f"{name} is revoked\n"
    assert api.locks().status == 401
    again = unique("gone")
    as_operator("create", again)
    assert json.loads(as_operator("revoke", again, "--json")) == {"status": "revoked", "name": again}


def test_refusals_have_their_exit_codes(
    server: ServerProcess, holdfast: Callable[..., subprocess.CompletedProcess[str]], as_operator: Callable[..., str]
) -> None:
    """No token, a wrong one and too little scope are 77, what cannot be is 64: one line each, without the token."""
    name = unique("twice")
    as_operator("create", name)
    for token, code, said, arguments in (
        ("", 77, "HOLDFAST_TOKEN", ("list",)),
        ("not-a-token-at-all", 77, "HOLDFAST_TOKEN", ("list",)),
        (callers.ALICE, 77, "admin", ("list",)),
        (callers.ALICE, 77, "admin", ("create", unique())),
        (callers.OPERATOR, 64, "exists", ("create", name)),
        (callers.OPERATOR, 64, "No access token", ("revoke", unique())),
        (callers.OPERATOR, 64, "name", ("create", "a name with blanks")),
    ):
        done = holdfast("token", *arguments, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=token)
        assert (done.returncode, done.stdout) == (code, ""), arguments
        (line,) = done.stderr.splitlines()
        assert line.startswith("holdfast: ") and said in line
        assert not token or token not in line


def test_first_start_makes_the_next_command_just_work(
    tmp_path_factory: pytest.TempPathFactory, holdfast: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """After the first start of a server nothing needs to be set: address and token are in the user's configuration."""
    with ServerProcess.start(tmp_path_factory.mktemp("first") / "data") as server:
        done = holdfast("token", "list", XDG_CONFIG_HOME=str(server.config_home))
        assert done.returncode == 0, done.stderr
        assert "local" in done.stdout


def test_rotate_prints_the_new_token(server: ServerProcess, as_operator: Callable[..., str]) -> None:
    """`rotate` prints a token of the same rights alone on standard output; the old one is out, and sessions with it."""
    name = unique("turned")
    old = Api.of(server, as_operator("create", name).strip())
    session = old.new_session(ttl_seconds=600)
    new = as_operator("rotate", name, "--keep-sessions").strip()
    assert TOKEN.fullmatch(new)
    assert old.locks().status == 401
    api = Api.of(server, new)
    assert [each["session_id"] for each in api.sessions().json()["sessions"]] == [session["session_id"]]
    made = json.loads(as_operator("rotate", name, "--expires", "1h", "--json"))
    assert made["name"] == name and made["expires_at"]
    assert Api.of(server, made["token"]).sessions().json()["sessions"] == []


def test_rotate_keeps_the_lifetime(
    server: ServerProcess, holdfast: Callable[..., subprocess.CompletedProcess[str]], as_operator: Callable[..., str]
) -> None:
    """`rotate` says until when the new token lives: as long as the old one was to, or as --expires says."""
    name = unique("turned")
    as_operator("create", name, "--expires", "30d")
    for arguments, said in (((), "until"), (("--expires", "never"), "never expires"), ((), "never expires")):
        environment = {"HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": callers.OPERATOR}
        done = holdfast("token", "rotate", name, *arguments, **environment)
        assert done.returncode == 0 and f"{name} may read+claim" in done.stderr and said in done.stderr, done.stderr


def test_revoke_can_keep_sessions(server: ServerProcess, as_operator: Callable[..., str]) -> None:
    """`revoke --keep-sessions` leaves the sessions to the next token of that name."""
    name = unique("kept")
    old = Api.of(server, as_operator("create", name).strip())
    session = old.new_session(ttl_seconds=600)
    as_operator("revoke", name, "--keep-sessions")
    assert old.locks().status == 401
    api = Api.of(server, as_operator("create", name).strip())
    assert [each["session_id"] for each in api.sessions().json()["sessions"]] == [session["session_id"]]
