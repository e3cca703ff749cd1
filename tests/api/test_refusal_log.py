"""The log says who was not let in: a line for each 401 and 403, bounded for each source and for all, and no secrets."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from pathlib import Path

import pytest

from holdfast.api.auth.refusals import LINES_MAX, LINES_PER_SOURCE_MAX, WINDOW_MS, RefusalLog
from holdfast.http.messages import request_from
from holdfast.observability.logs import configure
from holdfast.wire.problems import Problem
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import has_request_id, unique, wait_until
from tests.support.http import Answer
from tests.support.server import ServerProcess

WRONG = "nobody-knows-this-one"
CLIENT = {"X-Forwarded-For": "192.0.2.7"}
ATTACK_MINUTES = 10
FIRST = ip_address("10.0.0.0")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of its own for each test: lines that were written count for a minute."""
    settings = {"trusted_proxies": "127.0.0.1"}
    with ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as process:
        yield process


def _lines(server: ServerProcess) -> list[str]:
    """The messages of the log that speak of refusals."""
    messages = [json.loads(line)["message"] for line in server.log.splitlines() if line.startswith("{")]
    return [message for message in messages if "refus" in message]


def _line_of(server: ServerProcess, answer: Answer) -> str:
    request_id = has_request_id(answer)
    (line,) = wait_until(lambda: [line for line in _lines(server) if request_id in line])
    return line


def test_a_wrong_token_is_logged(server: ServerProcess) -> None:
    """A 401 is one line: nobody known, the client's address as the trusted proxy tells it, method, path and code."""
    answer = Api.of(server, WRONG).get("/locks?owner=secret-query", headers=CLIENT)
    assert answer.status == 401
    line = _line_of(server, answer)
    assert line.startswith("refused 401 authentication_failed: unknown from 192.0.2.7, GET /locks, request req_")
    assert WRONG not in server.log and "secret-query" not in server.log


def test_no_token_is_logged(server: ServerProcess) -> None:
    """So is a request without any token, at a stream too."""
    for path in ("/locks/deploy", "/events"):
        answer = Api.of(server, None).get(path, headers=CLIENT)
        assert f"401 authentication_required: unknown from 192.0.2.7, GET {path}," in _line_of(server, answer)


def test_a_missing_right_is_logged_with_its_token(server: ServerProcess) -> None:
    """A 403 names the token that had not the right, also one that stands behind a session's secret."""
    answer = Api.of(server, callers.ALICE).post("/locks/deploy/revoke", {"reason": "mine"}, headers=CLIENT)
    assert answer.status == 403
    assert "403 forbidden: alice from 192.0.2.7, POST /locks/deploy/revoke," in _line_of(server, answer)
    secret = Api.of(server, callers.BOB).new_session()["session_secret"]
    answer = Api.of(server, secret).create_session()
    assert "403 forbidden: bob (a session's secret) from 127.0.0.1, POST /sessions," in _line_of(server, answer)
    assert callers.ALICE not in server.log and secret not in server.log


def test_a_refused_decision_is_logged(tmp_path: Path) -> None:
    """What is 403 because it was decided so is logged like what was refused without one."""
    settings = {"leases_per_principal_max": 1}
    with ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server:
        alice = Api.of(server, callers.ALICE)
        alice.acquired(unique())
        answer = alice.acquire("one-more")
        line = _line_of(server, answer)
        assert "403 lock_limit_exceeded: alice from 127.0.0.1, POST /locks/one-more/acquire," in line


def test_a_wait_that_ends_with_its_token_is_logged_with_its_name(server: ServerProcess) -> None:
    """Whose token was revoked while it waited is known by name, although the token is not any more."""
    operator = Api.of(server, callers.OPERATOR)
    worker = Api.of(server, operator.post("/tokens", {"name": "worker"}).json()["token"])
    operator.acquired("deploy")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.acquire, "deploy", wait_seconds=30)
        wait_until(lambda: operator.status("deploy").json()["waiting"] == 1)
        assert operator.delete("/tokens/worker").status == 204
        answer = waiting.result(30)
    assert answer.status == 401
    assert "401 authentication_failed: worker from 127.0.0.1, POST /locks/deploy/acquire," in _line_of(server, answer)


def test_a_wrong_secret_at_the_gateway_is_logged(server: ServerProcess) -> None:
    """The gateway's 403 for a secret that is none is a line, and the secret is not in it."""
    asked = {"secret": "holds_guess", "resourceKey": "file:///a"}
    assert Api.of(server, None).post("/locks/acquire", asked, headers=CLIENT).status == 403
    wait_until(lambda: any("403 forbidden: unknown from 192.0.2.7, POST /locks/acquire" in s for s in _lines(server)))
    assert "holds_guess" not in server.log


def test_a_secret_in_a_path_is_not_shown(server: ServerProcess) -> None:
    """Somebody who takes a token for a name does not have it in the log."""
    token = Api.of(server, callers.OPERATOR).post("/tokens", {"name": "fresh"}).json()["token"]
    answer = Api.of(server, None).get(f"/locks/{token}")
    assert "GET /locks/hold_...," in _line_of(server, answer)
    assert token not in server.log


def test_one_client_gets_few_lines(server: ServerProcess) -> None:
    """Over its lines a client is only counted, another still gets its line, and the stop tells what was left out."""
    loud, other = Api.of(server, None), Api.of(server, callers.READER)
    for _ in range(LINES_PER_SOURCE_MAX + 7):
        assert loud.get("/locks/deploy", headers=CLIENT).status == 401
    line = _line_of(server, other.acquire("deploy"))
    assert "403 forbidden: reader from 127.0.0.1" in line
    assert len(_lines(server)) == LINES_PER_SOURCE_MAX + 1
    assert server.terminate() == 0
    assert _lines(server)[-1] == "7 more refusals in the last minute (address 192.0.2.7 7)"


def test_a_claims_secret_is_named(server: ServerProcess) -> None:
    """Who was refused with the secret of a claim is its token, and the line says what was shown."""
    alice = Api.of(server, callers.ALICE)
    asked = {"lock_name": "deploy", "lease_id": alice.acquired("deploy", key="one-key")["lease_id"]}
    secret = alice.post("/claims/secret", asked).json()["claim_secret"]
    line = _line_of(server, Api.of(server, secret).acquire("other"))
    assert "403 forbidden: alice (a claim's secret) from 127.0.0.1, POST /locks/other/acquire," in line


def test_too_many_wrong_tokens_are_counted(tmp_path: Path) -> None:
    """What is 429 because too many wrong tokens came before has no line, and is in the count of what has none."""
    settings = {"wrong_tokens_per_minute_max": 2}
    with ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server:
        asked = [Api.of(server, WRONG).get("/locks").status for _ in range(5)]
        assert asked == [401, 401, 429, 429, 429]
        assert server.terminate() == 0
        assert [line for line in _lines(server) if line.startswith("refused 429")] == []
        assert _lines(server)[-1] == "3 more refusals in the last minute (address 127.0.0.1 3)"


def test_accepted_requests_are_not_logged(server: ServerProcess) -> None:
    """What is granted, held by another or not there is no refusal of this kind."""
    alice, bob = Api.of(server, callers.ALICE), Api.of(server, callers.BOB)
    lease = alice.acquired("deploy")
    bob.held("deploy")
    assert bob.release("deploy", lease["lease_id"]).status == 400
    assert alice.release("deploy", lease["lease_id"]).status == 200
    assert server.terminate() == 0
    assert _lines(server) == []


# The bound, with time as an argument.


def _refuse(
    refusal_log: RefusalLog, now_ms: int, *, source: int = 0, path: bytes = b"/locks/a", who: str | None = None
) -> None:
    problem = Problem("forbidden" if who else "authentication_failed", "No.")
    refusal_log.note(problem, request_from(b"GET", path, b"", {}, b""), who, FIRST + source, now_ms)


def test_ten_minutes_of_attack_are_a_small_log(capfd: pytest.CaptureFixture[str]) -> None:
    """A thousand refusals a second from ever new addresses, with the worst paths, stay far below 1 MiB in ten minutes.

    What is kept in memory is bounded by the number of lines.
    """
    before = logging.getLogger().handlers[:]
    try:
        configure("json")
        refusal_log = RefusalLog()
        for second in range(60 * ATTACK_MINUTES):
            for each in range(100):
                _refuse(refusal_log, second * 1_000, source=second * 100 + each, path=b"/locks/" + b"\xff" * 8_000)
                _refuse(refusal_log, second * 1_000, path=b"/locks/" + b"\x1b]0;" * 2_000, who="ana")
            refusal_log.tick(second * 1_000 + 999)
            assert len(refusal_log._lines_by_source) <= LINES_MAX and len(refusal_log._suppressed) <= LINES_MAX
        refusal_log.end()
    finally:
        logging.basicConfig(handlers=before, force=True)
    written = capfd.readouterr().err
    lines = written.splitlines()
    assert len(written.encode()) < 2**19
    assert len(lines) == ATTACK_MINUTES * (LINES_MAX + 1)
    assert written.isascii() and "\x1b" not in written
    assert sum(int(json.loads(line)["message"].split()[0]) for line in lines if " more refusals " in line) == (
        60 * ATTACK_MINUTES * 200 - ATTACK_MINUTES * LINES_MAX
    )


def test_a_minute_ends_without_another_refusal(caplog: pytest.LogCaptureFixture) -> None:
    """What was left out is told when the minute is over, though nobody is refused any more; and only once."""
    refusal_log = RefusalLog()
    with caplog.at_level(logging.WARNING, "holdfast.server"):
        for _ in range(LINES_PER_SOURCE_MAX + 3):
            _refuse(refusal_log, 5_000, who="ana")
        refusal_log.tick(5_000 + WINDOW_MS - 1)
        assert len(caplog.records) == LINES_PER_SOURCE_MAX
        refusal_log.tick(5_000 + WINDOW_MS)
        refusal_log.tick(5_000 + 2 * WINDOW_MS)
        assert caplog.messages[LINES_PER_SOURCE_MAX:] == ["3 more refusals in the last minute (token ana 3)"]
        _refuse(refusal_log, 5_000 + 3 * WINDOW_MS, who="ana")
        assert caplog.messages[-1].startswith("refused 403"), "the next minute has lines of its own"


def test_addresses_of_one_network_are_one_source(caplog: pytest.LogCaptureFixture) -> None:
    """One customer with a network of IPv6 to himself gets the lines of one client."""
    refusal_log = RefusalLog()
    problem, request = Problem("authentication_failed", "No."), request_from(b"GET", b"/locks/a", b"", {}, b"")
    with caplog.at_level(logging.WARNING, "holdfast.server"):
        for number in range(LINES_PER_SOURCE_MAX * 2):
            refusal_log.note(problem, request, None, ip_address(f"2001:db8:1:2::{number:x}"), 0)
    assert len(caplog.records) == LINES_PER_SOURCE_MAX
