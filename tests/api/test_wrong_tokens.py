"""Wrong tokens from one address: a few a minute are told what is wrong, more are told to stop. A right one always
passes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import quote

import pytest

from holdfast.api.auth.refusals import LOGGED_MAX, NETWORKS_MAX, WINDOW_MS, WrongTokens
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import refused, unique, wait_until
from tests.support.gateway import Run
from tests.support.http import Answer
from tests.support.server import ServerProcess

MAX = 5
WRONG = "nobody-knows-this-one"
MADE = "hold_" + "0" * 36
SECRET = "holds_" + "0" * 32 + "_" + "A" * 43


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of its own for each test: what was counted stays counted for a minute."""
    settings = {
        "wrong_tokens_per_minute_max": MAX,
        "trusted_proxies": "127.0.0.1, 10.0.0.0/8",
    }
    with ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as process:
        yield process
        assert process.is_running(), process.log


def _look(server: ServerProcess, token: str | None, client: str = "192.0.2.7") -> Answer:
    return Api.of(server, token).get("/locks/a", headers={"X-Forwarded-For": client})


def _use_up(server: ServerProcess, client: str = "192.0.2.7") -> None:
    for _ in range(MAX):
        refused(_look(server, WRONG, client), 401, "authentication_failed")


def _wait_for_line(server: ServerProcess, network: str) -> None:
    wait_until(lambda: f"too many wrong access tokens from {network}" in server.log)


def test_too_many_wrong_tokens(server: ServerProcess) -> None:
    """Beyond the limit a wrong token is 429 with the time to wait; the log has one line for all of them."""
    _use_up(server)
    for _ in range(10):
        answer = _look(server, WRONG)
        body = refused(answer, 429, "too_many_wrong_tokens")
        assert 0 < body["retry_after_ms"] <= WINDOW_MS
        assert 0 < int(answer.headers["Retry-After"]) <= WINDOW_MS // 1_000
    _wait_for_line(server, "192.0.2.7")
    assert server.log.count("too many wrong access tokens from 192.0.2.7") == 1
    assert WRONG not in server.log


def test_a_right_token_always_passes(server: ServerProcess) -> None:
    """From an address that is over the limit every right token passes: static, made and a session's, new or not."""
    operator = Api.of(server, callers.OPERATOR)
    made = operator.post("/tokens", {"name": "fresh"}).json()["token"]
    secret = operator.new_session()["session_secret"]
    _use_up(server)
    refused(_look(server, WRONG), 429, "too_many_wrong_tokens")
    for token in (callers.ALICE, made, secret, callers.BOB):
        assert _look(server, token).status == 200


@pytest.mark.parametrize("token", [MADE, SECRET, "x" * 4_000, "holds_" + "x" * 4_000, "hold_"])
def test_every_kind_of_wrong_token_counts(server: ServerProcess, token: str) -> None:
    """Mistyped ones, secrets that are none of ours and what is longer than any token count alike."""
    for _ in range(MAX):
        refused(_look(server, token), 401, "authentication_failed")
    refused(_look(server, token), 429, "too_many_wrong_tokens")


def test_recognizable_secrets_are_not_counted_as_guesses(server: ServerProcess) -> None:
    """No token at all, another scheme, and the secret of a session that is over do not count."""
    alice = Api.of(server, callers.ALICE)
    opened = alice.new_session()
    assert alice.delete(f"/sessions/{opened['session_id']}").status == 204
    basic = {"X-Forwarded-For": "192.0.2.7", "Authorization": "Basic YTpi"}
    for _ in range(MAX + 2):
        refused(_look(server, None), 401, "authentication_required")
        refused(Api.of(server, None).get("/locks/a", headers=basic), 401, "authentication_required")
        refused(_look(server, opened["session_secret"]), 410, "session_expired")
    refused(_look(server, WRONG), 401, "authentication_failed")


def test_wrong_secrets_at_the_gateway_count(server: ServerProcess) -> None:
    """A wrong secret in the gateway's body or query is a wrong token, and is told so in the gateway's words."""
    client = {"X-Forwarded-For": "192.0.2.7"}
    nobody = Api.of(server, None)
    asked = {"secret": SECRET, "resourceKey": f"file:///{unique()}"}
    assert nobody.post("/locks/acquire", asked, headers=client).status == 403
    assert nobody.post("/locks/heartbeat", asked | {"secret": "guess"}, headers=client).status == 403
    assert nobody.post("/locks/release", asked | {"secret": callers.ALICE}, headers=client).status == 403
    assert nobody.get(f"/locks/list?secret={quote('ü' * 20)}", headers=client).status == 403
    assert nobody.get(f"/locks/list?secret={SECRET}", headers=client).status == 403
    for answer in (
        nobody.post("/locks/acquire", asked, headers=client),
        nobody.get(f"/locks/list?secret={SECRET}", headers=client),
    ):
        assert answer.status == 429, answer
        assert answer.json()["ok"] is False and "Too many unknown access tokens" in answer.json()["error"]
        assert answer.headers["Retry-After"]
    run = Run(Api.of(server, callers.ALICE))
    right = {"secret": run.secret, "resourceKey": f"file:///{unique()}"}
    assert nobody.post("/locks/acquire", right, headers=client).status == 200


def test_addresses_are_counted_apart(server: ServerProcess) -> None:
    """One client's guesses do not count for another behind the same proxy; addresses of one IPv6 /64 are one client."""
    _use_up(server, "192.0.2.7")
    refused(_look(server, WRONG, "192.0.2.7"), 429, "too_many_wrong_tokens")
    refused(_look(server, WRONG, "::ffff:192.0.2.7"), 429, "too_many_wrong_tokens")
    refused(_look(server, WRONG, "192.0.2.8"), 401, "authentication_failed")
    for number in range(MAX):
        refused(_look(server, WRONG, f"2001:db8:1:2:{number}::1"), 401, "authentication_failed")
    refused(_look(server, WRONG, "2001:db8:1:2:ffff::1"), 429, "too_many_wrong_tokens")
    refused(_look(server, WRONG, "2001:db8:1:3::1"), 401, "authentication_failed")
    _wait_for_line(server, "2001:db8:1:2::/64")


def test_a_client_cannot_choose_its_address(server: ServerProcess) -> None:
    """What a client wrote before the proxy did does not count: neither another address, nor nonsense."""
    for number in range(MAX):
        refused(_look(server, WRONG, f"203.0.113.{number}, 192.0.2.7, 10.0.0.1"), 401, "authentication_failed")
    refused(_look(server, WRONG, "198.51.100.1, 192.0.2.7"), 429, "too_many_wrong_tokens")
    refused(_look(server, WRONG, "nonsense, 192.0.2.7, 10.0.0.9"), 429, "too_many_wrong_tokens")


def test_a_stream_counts_too(server: ServerProcess) -> None:
    """Wrong tokens at a stream are counted like all others."""
    api = Api.of(server, WRONG)
    client = {"X-Forwarded-For": "192.0.2.7"}
    for _ in range(MAX):
        refused(api.get("/events", headers=client), 401, "authentication_failed")
    refused(api.get("/locks/a/watch", headers=client), 429, "too_many_wrong_tokens")


def test_a_large_body_is_refused_the_same_way(server: ServerProcess) -> None:
    """A body over 16 KiB from an address that is over the limit is 429 before it is read."""
    _use_up(server)
    answer = Api.of(server, WRONG).post("/claims", b"{" + b" " * 20_000, headers={"X-Forwarded-For": "192.0.2.7"})
    refused(answer, 429, "too_many_wrong_tokens")


def test_forwarded_address_is_ignored_without_trusted_proxies(tmp_path: Path) -> None:
    """Without the setting all that comes over one connection is one client, whatever it writes."""
    settings = {"wrong_tokens_per_minute_max": MAX}
    with ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server:
        for number in range(MAX):
            refused(_look(server, WRONG, f"192.0.2.{number}"), 401, "authentication_failed")
        refused(_look(server, WRONG, "192.0.2.200"), 429, "too_many_wrong_tokens")
        _wait_for_line(server, "127.0.0.1")


def test_a_window_ends() -> None:
    """When the minute is over, the count begins anew."""
    counted = WrongTokens(2)
    client = ip_address("192.0.2.7")
    assert [counted.count(client, now) for now in (1_000, 2_000, 3_000, 60_999)] == [0, 0, 58_000, 1]
    assert [counted.count(client, 61_000 + extra) for extra in range(3)] == [0, 0, 59_998]


def test_wrong_token_windows_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """The table forgets the oldest address first, and the log has a bounded number of lines, however many guess."""
    counted = WrongTokens(1)
    first = ip_address("10.0.0.0")
    with caplog.at_level(logging.WARNING, "holdfast.server"):
        for number in range(NETWORKS_MAX + 5):
            counted.count(first + number, 0)
            counted.count(first + number, 0)
    assert len(caplog.records) == LOGGED_MAX
    assert counted.count(first, 1) == 0, "forgotten"
    assert counted.count(first + NETWORKS_MAX + 4, 1) > 0, "not forgotten"
    with caplog.at_level(logging.WARNING, "holdfast.server"):
        counted.count(first, WINDOW_MS)
    assert len(caplog.records) == LOGGED_MAX + 1, "the next minute has lines of its own"
