"""What others wrote acts on nobody's terminal: whatever a command prints of it is shown or escaped, never obeyed."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.observability.logs import TextFormatter
from holdfast.sanitize import in_json, plain
from tests.cli.background_command import BackgroundCommand, clean_environment
from tests.cli.conftest import Run
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.gateway import Run as GatewayRun
from tests.support.gateway import resource
from tests.support.server import ServerProcess

EVIL = "é\x1b[2J\x9b31m\u202eback\u2066\u200b\ufeff\u2028\x7f\U000e0041\U0010ffff"
"""Clears a screen, sets a colour twice over, turns text around, hides, ends a line; some of it beyond 16 bits."""


def harmless(done: subprocess.CompletedProcess[str]) -> str:
    """Nothing of what was printed acts on a terminal. Returns standard output."""
    for shown in (done.stdout, done.stderr):
        assert shown.replace("\n", "").isprintable(), ascii(shown)
    return str(done.stdout)


@pytest.fixture
def asked(holdfast: Run, server: ServerProcess) -> Run:
    """Runs a command as an operator of the real server."""

    def run(*arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
        return holdfast(*arguments, **{"HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": callers.OPERATOR, **more})

    return run


@pytest.fixture
def evil(server: ServerProcess) -> Iterator[dict[str, Any]]:
    """A job whose holder wrote the worst it could wherever it could, with one in line and one that came before."""
    api = Api.of(server, callers.ALICE)
    name = unique("evil")
    before = api.acquired(name, owner=f"first {EVIL}")
    api.renew(name, before["lease_id"], note=f"note {EVIL}")
    api.release(name, before["lease_id"], outcome="failed")
    session = api.new_session(name=f"session {EVIL}", metadata=EVIL)
    lease = api.acquired(name, owner=f"owner {EVIL}", metadata=f"metadata {EVIL}", labels={"key": f"label {EVIL}"})
    api.renew(name, lease["lease_id"], note=f"note {EVIL}")
    ticket = api.acquire(name, owner=f"waits {EVIL}", wait_seconds=0.01).json()["ticket"]
    yield {"name": name, **lease}
    api.leave(ticket)
    api.release(name, lease["lease_id"])
    api.end_session(session["session_id"])


def test_text_and_json_of_every_command(asked: Run, evil: dict[str, Any], server: ServerProcess) -> None:
    """Owners, notes, metadata, labels, reasons and names of sessions, in text and in JSON, of every command that prints
    them; the JSON has them as they were written.
    """
    name = evil["name"]
    Api.of(server, callers.OPERATOR).new_session(name=f"mine {EVIL}", metadata=EVIL)
    for command in (
        ["owner", name],
        ["jobs"],
        ["why", name],
        ["history", name],
        ["claim", name],
        ["claim", name, "-w", "1s"],
        ["claim", name, "--any"],
        ["session", "list"],
        ["token", "list"],
        ["check", name, evil["fencing_token"]],
        ["revoke", f"no-such-{name}", "--reason", EVIL],
        ["release", f"test:{EVIL}", "--lease", evil["lease_id"]],
        ["owner", f"test:{EVIL}"],
    ):
        harmless(asked(*command))
        said = harmless(asked(*command, "--json"))
        json.loads(said or "null")
    harmless(asked("run", name, "-n", "--", "true"))
    assert json.loads(harmless(asked("owner", name, "--json")))["owner"]["note"] == f"note {EVIL}"
    assert f"owner {EVIL}" in {job["owner"] for job in json.loads(harmless(asked("jobs", "--json")))["jobs"]}


def test_revoked_job_and_its_history(asked: Run, server: ServerProcess, tmp_path: Path) -> None:
    """A reason is harmless to the one who lost the job, in its history, and to those who watch."""
    api, operator = Api.of(server, callers.ALICE), Api.of(server, callers.OPERATOR)
    name = unique("revoked")
    lease = api.acquired(name, owner="ana")
    operator.revoke(name, reason=EVIL)
    for more in ([], ["--json"]):
        done = asked("heartbeat", name, "--lease", lease["lease_id"], *more, HOLDFAST_TOKEN=callers.ALICE)
        assert done.returncode == 20
        harmless(done)
        harmless(asked("history", name, *more))
    environment = clean_environment(tmp_path, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.OPERATOR)
    first = operator.history(name).json()["history"][-1]["seq"]
    with BackgroundCommand("watch", name, "--after", str(first - 1), "--json", environment=environment) as watch:
        shown = watch.until("revoked").removesuffix("\n")
    assert shown.replace("\n", "").isprintable(), ascii(shown)


def test_a_dump_of_a_journal(holdfast: Run, tmp_path: Path) -> None:
    """`doctor --dump` prints what is kept, and none of it acts."""
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        Api.of(server, callers.ALICE).acquired("job", owner=EVIL)
    shown = harmless(holdfast("doctor", "--data", tmp_path / "data", "--dump"))
    assert EVIL in [text for line in shown.splitlines() for text in _texts(json.loads(line))]


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def test_rlock_commands(server: ServerProcess) -> None:
    """The holder's name, as the gateway tells it, is escaped in the one line of JSON, and is the same value."""
    holder = GatewayRun(Api.of(server, callers.ALICE), name=EVIL)
    other = GatewayRun(Api.of(server, callers.BOB))
    key = resource()
    holder.rlock(key)
    clean = {"PATH": os.environ["PATH"], "GATEWAY_URL": server.url, "SHUTDOWN_SECRET": other.secret}
    for script, code in (("rlock", 1), ("runlock", 1), ("rlock-heartbeat", 1)):
        done = subprocess.run(
            [Path(sys.executable).with_name(script), key], env=clean, capture_output=True, text=True, check=False
        )
        assert done.returncode == code
        assert EVIL in " ".join(map(str, json.loads(harmless(done)).values()))


def test_logs_for_people() -> None:
    """A message and a traceback with foreign text in them are ASCII in a log for people."""
    try:
        raise ValueError(EVIL)
    except ValueError:
        record = logging.LogRecord("holdfast", logging.ERROR, "", 0, "about %s", (EVIL,), sys.exc_info())
    handler = TextFormatter()
    shown = handler.format(record)
    assert shown.isascii() and shown.replace("\n", "").isprintable()
    assert "ValueError" in shown.splitlines()[-1]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text(text: str) -> None:
    """Any text at all is one printable line for people, and in JSON the same value in printable lines."""
    assert plain(text).isprintable()
    for written in (msgspec.json.encode([text]), msgspec.json.format(msgspec.json.encode([text]), indent=2)):
        shown = in_json(written.decode())
        assert shown.replace("\n", "").isprintable()
        assert json.loads(shown) == [text]


def test_halves_of_characters() -> None:
    """Half of a character, which UTF-8 cannot write, is escaped as JSON calls it."""
    shown = in_json(json.dumps(["\ud800", "\udcff"], ensure_ascii=False))
    assert shown == '["\\ud800", "\\udcff"]'


@pytest.mark.parametrize(
    "arguments",
    [
        ["claim", "a\udcff"],
        ["claim", "a", "--note", "\udcff"],
        ["claim", "a", "-m", "b=\udcff"],
        ["claim", "a", "--label", "b=\udcff"],
        ["jobs", "\udcff"],
        ["run", "a", "--owner=\udcff", "--", "true"],
        ["owner", "\udcff"],
        ["token", "create", "\udcff"],
        ["session", "start", "\udcff"],
        ["revoke", "a", "--reason", "\udcff"],
        ["serve", "--data", "\udcff"],
    ],
)
def test_arguments_that_are_not_utf8(asked: Run, server: ServerProcess, arguments: list[str]) -> None:
    """An argument that is not UTF-8 is a usage error (64) before anything is asked of a server."""
    before = Api.of(server, callers.ALICE).get("/status").json()["total_acquires"]
    done = asked(*arguments)
    assert done.returncode == 64, done
    harmless(done)
    assert "is not UTF-8" in done.stderr
    assert Api.of(server, callers.ALICE).get("/status").json()["total_acquires"] == before


@pytest.mark.parametrize(
    ("variable", "arguments"),
    [
        ("HOLDFAST_OWNER", ["claim", "a"]),
        ("HOLDFAST_OWNER", ["run", "a", "--", "true"]),
        ("HOLDFAST_SESSION", ["claim", "a"]),
        ("HOLDFAST_SESSION", ["session", "end"]),
        ("HOLDFAST_LEASE", ["heartbeat", "a"]),
        ("HOLDFAST_LEASE", ["release", "a"]),
    ],
)
def test_variables_that_are_not_utf8(holdfast: Run, server: ServerProcess, variable: str, arguments: list[str]) -> None:
    """A variable that is not UTF-8 is a usage error (64) that names it, and does not show what may be a secret."""
    known = {"HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": callers.ALICE, variable: "secret\udcff"}
    done = holdfast(*arguments, **known)
    assert done.returncode == 64, done
    assert f"{variable} (the environment): this is not UTF-8" in done.stderr and "secret" not in done.stderr


def test_jobs_of_an_outer_run_that_are_not_utf8(holdfast: Run, server: ServerProcess) -> None:
    """What is not the word of a `holdfast run` around us says nothing, as with any other text that is not."""
    known = {"HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": callers.ALICE, "HOLDFAST_JOBS": "\udcff"}
    assert holdfast("run", unique(), "--", "true", **known).returncode == 0


def test_command_after_the_dashes_is_bytes(asked: Run) -> None:
    """The arguments of the command that `run` starts are its own business: any bytes."""
    done = asked("run", unique(), "--", "sh", "-c", 'test "$1" = "$(printf "\\377")"', "sh", "\udcff")
    assert done.returncode == 0, done
