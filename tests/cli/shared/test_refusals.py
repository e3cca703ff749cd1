"""What a real server refuses, as commands and Python callers hear it: the right code, and only advice that is true."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast, NotAllowed
from tests.support import callers
from tests.support.checks import unique
from tests.support.server import ServerProcess

Run = Callable[..., subprocess.CompletedProcess[str]]

WRONG_MAX = 2
WRONG = "nobody-knows-this-one"
ELSEWHERE = "2130706433"
"""A name that is no name of the server, and leads to 127.0.0.1 wherever C does the looking up."""


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that has had as many wrong tokens as it answers with 401."""
    settings = {"wrong_tokens_per_minute_max": WRONG_MAX}
    with ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as process:
        with Holdfast(process.url, token=WRONG, environment={}) as client:
            for _ in range(WRONG_MAX):
                with pytest.raises(NotAllowed) as caught:
                    client.list_claimed_jobs()
                assert caught.value.status == 401
        yield process


def test_too_many_wrong_tokens_are_about_the_token(strict: ServerProcess, holdfast: Run) -> None:
    """A wrong token ends with 77 and the same hint, however many came before: nothing to retry for ever."""
    done = holdfast("jobs", HOLDFAST_URL=strict.url, HOLDFAST_TOKEN=WRONG)
    assert done.returncode == 77, done
    assert "Too many wrong tokens" in done.stderr and "HOLDFAST_TOKEN_FILE" in done.stderr
    with Holdfast(strict.url, token=WRONG, environment={}) as client, pytest.raises(NotAllowed) as caught:
        client.list_claimed_jobs()
    assert (caught.value.status, caught.value.code) == (429, "too_many_wrong_tokens")


def test_doctor_says_that_the_token_is_wrong(strict: ServerProcess, holdfast: Run) -> None:
    """After too many wrong tokens `doctor` gives the advice that it gives for the first one."""
    done = holdfast("doctor", HOLDFAST_URL=strict.url, HOLDFAST_TOKEN=WRONG)
    (failed,) = [line for line in done.stdout.splitlines() if not line.startswith("ok")]
    assert done.returncode == 2
    assert failed.startswith("FAIL  token") and "-> put one of this server into HOLDFAST_TOKEN" in failed


def test_unknown_host_name_is_reported(server: ServerProcess, holdfast: Run) -> None:
    """A name that is none of the server's is a mistake in what was asked, 64, and the name is said without its port."""
    done = holdfast("jobs", HOLDFAST_URL=f"http://{ELSEWHERE}:{server.port}")
    assert done.returncode == 64, done
    assert f"'{ELSEWHERE}'" in done.stderr and "allowed_hosts" in done.stderr


def test_doctor_says_that_the_name_is_not_known(server: ServerProcess, holdfast: Run) -> None:
    """`doctor` finds that in a check of its own, and says nothing of tokens and versions, which it cannot see."""
    done = holdfast("doctor", HOLDFAST_URL=f"http://{ELSEWHERE}:{server.port}")
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert done.returncode == 2
    well = [["ok", each] for each in ("reachable", "ready", "store", "disk")]
    assert [line[:2] for line in lines] == [*well, ["FAIL", "name"]]
    assert f"'{ELSEWHERE}'" in lines[-1][2] and "allowed_hosts" in lines[-1][2]


@pytest.mark.parametrize("arguments", [["claim", "job", "--metadata", "x" * 60_000], ["owner", "x" * 70_000]])
def test_oversized_request_is_a_usage_error(server: ServerProcess, holdfast: Run, arguments: list[str]) -> None:
    """A request that is larger than any legal one is 64, and the limit is said."""
    done = holdfast(*arguments, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.ALICE)
    assert done.returncode == 64, done
    assert "at most" in done.stderr


@pytest.mark.parametrize(
    ("job", "said"),
    [("__election/x", "reserved"), ("team-b/x", "start with 'team-a/'"), ("team-a/./x", "Take a name")],
)
def test_only_a_missing_scope_is_called_one(server: ServerProcess, holdfast: Run, job: str, said: str) -> None:
    """A name that nobody or this token may not touch is 77 without a word of scopes."""
    with Holdfast(server.url, token=callers.OPERATOR, environment={}) as operator:
        confined = operator.create_token(unique(), prefix="team-a/").token
    done = holdfast("claim", job, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=confined)
    assert done.returncode == 77, done
    assert said in done.stderr and "scope" not in done.stderr


def test_a_missing_scope_is_named(server: ServerProcess, holdfast: Run) -> None:
    """A token without the scope is told by the server which one it needs, and which it has."""
    done = holdfast("claim", unique(), HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.READER)
    assert done.returncode == 77
    assert "an access token with the scope 'claim'; this one has read." in done.stderr
