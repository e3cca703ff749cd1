"""Which names a server answers to: no web page may turn its own name to us and have a browser ask (DNS rebinding)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.api.auth.origins import ACCEPTED_MAX, Hosts
from holdfast.wire.problems import Problem
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import refused, wait_until
from tests.support.http import Answer
from tests.support.raw import head, one, send
from tests.support.server import ServerFailed, ServerProcess

AUTHORIZED = f"Authorization: Bearer {callers.ALICE}"
MACHINE = socket.gethostname()
OURS = [
    "127.0.0.1",
    "127.0.0.1:7420",
    "10.1.2.3",
    "[::1]",
    "[::1]:7420",
    "[2001:DB8::7]:1",
    "localhost",
    "LocalHost:7420",
    "localhost.",
    "app.localhost:80",
    MACHINE,
    MACHINE.upper(),
    MACHINE.partition(".")[0],
    "holdfast.example.org",
    "Holdfast.Example.ORG.:443",
    "deep.below.example.net",
    "example.net",
    "my_service:8080",
]
OTHERS = [
    "evil.example",
    "evil.example:7420",
    "example.org",
    "holdfast.example.org.evil.example",
    "evilexample.net",
    "notlocalhost",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "2130706433",
    "0177.0.0.1",
]
UNREADABLE = [
    "",
    "[::1",
    "[::z]",
    "a b",
    "a/b",
    "http://127.0.0.1",
    "user@127.0.0.1",
    "127.0.0.1:x",
    "é.example",
    "::1",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with names of its own."""
    data = tmp_path_factory.mktemp("hosts") / "data"
    settings = {"allowed_hosts": "holdfast.example.org, .example.net,my_service"}
    with ServerProcess.start(data, settings=settings, tokens=callers.TOKENS) as process:
        yield process
        assert process.is_running(), process.log


def _ask(server: ServerProcess, host: str, path: str = "/locks/a", *headers: str) -> Answer:
    wanted = head("GET", path, f"Host: {host}", AUTHORIZED, "Connection: close", *headers)
    return one(send(Api.of(server, None), wanted))


@pytest.mark.parametrize("host", OURS)
def test_our_names_pass(server: ServerProcess, host: str) -> None:
    """Addresses, loopback names, the machine's own name and what is listed pass, in any case, with a port or a dot."""
    assert _ask(server, host).status == 200


@pytest.mark.parametrize("host", OTHERS)
def test_other_names_are_refused(server: ServerProcess, host: str) -> None:
    """Any other name is 421, and the answer says what to set: the name alone, for the setting takes no port."""
    details = refused(_ask(server, host), 421, "misdirected")["details"]
    assert "HOLDFAST_ALLOWED_HOSTS" in details and repr(host.removesuffix(":7420")) in details


@pytest.mark.parametrize("host", UNREADABLE)
def test_malformed_host_is_refused(server: ServerProcess, host: str) -> None:
    """What cannot be read as a host is 400."""
    refused(_ask(server, host), 400, "invalid_input")


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/openapi.json", "/status", "/locks", "/locks/a/watch", "/events", "/nowhere"]
)
def test_every_route_checks_host(server: ServerProcess, path: str) -> None:
    """Pages, streams, and paths that are no route: all are 421 for another name."""
    refused(_ask(server, "evil.example", path), 421, "misdirected")


def test_gateway_checks_host(server: ServerProcess) -> None:
    """The gateway's routes are 421 for another name too, in the gateway's words."""
    answer = _ask(server, "evil.example", "/locks/list")
    assert answer.status == 421
    assert answer.json()["ok"] is False


def test_nothing_is_done_for_another_name(server: ServerProcess) -> None:
    """A claim for another name is not made, whatever the token."""
    body = b"{}"
    headers = ("Host: evil.example", AUTHORIZED, "Content-Type: application/json", f"Content-Length: {len(body)}")
    reply = send(Api.of(server, None), head("POST", "/locks/rebound/acquire", *headers, "Connection: close") + body)
    refused(one(reply), 421, "misdirected")
    assert Api.of(server, callers.ALICE).status("rebound").json()["status"] == "free"


@pytest.mark.parametrize("path", ["/health", "/healthz", "/readyz"])
def test_health_answers_to_any_name(server: ServerProcess, path: str) -> None:
    """Those who look after the server's health may call it what they like."""
    assert _ask(server, "evil.example", path).status == 200


def test_a_request_without_a_host_passes(server: ServerProcess) -> None:
    """HTTP/1.0 has no Host, and no browser speaks it."""
    wanted = head("GET", "/locks/a", AUTHORIZED, version="HTTP/1.0")
    assert one(send(Api.of(server, None), wanted)).status == 200


def test_a_name_that_passed_opens_no_other(server: ServerProcess) -> None:
    """Each request is looked at, also behind one that passed on the same connection."""
    good, bad = (head("GET", "/locks/a", f"Host: {host}", AUTHORIZED) for host in ("localhost", "evil.example"))
    answers = send(Api.of(server, None), good + bad + good, linger_seconds=1).answers()
    assert [answer.status for answer in answers][:2] == [200, 421]


def test_forwarded_names_do_not_count(server: ServerProcess) -> None:
    """X-Forwarded-Host neither opens nor shuts anything."""
    assert _ask(server, "localhost", "/locks/a", "X-Forwarded-Host: evil.example").status == 200
    assert _ask(server, "evil.example", "/locks/a", "X-Forwarded-Host: localhost").status == 421


def test_a_star_allows_any_name(tmp_path: Path) -> None:
    """With `*` every name passes; what is no host is 400 as before."""
    with ServerProcess.start(tmp_path, settings={"allowed_hosts": "*"}, tokens=callers.TOKENS) as server:
        assert _ask(server, "evil.example").status == 200
        refused(_ask(server, "a b"), 400, "invalid_input")


def test_the_name_that_is_listened_on_passes() -> None:
    """The host of `listen` is one of the server's names."""
    Hosts("", "Holdfast.Internal").check(b"holdfast.internal:7420")
    with pytest.raises(Problem, match="does not answer"):
        Hosts("", "127.0.0.1").check(b"holdfast.internal:7420")


def test_accepted_hosts_cache_is_bounded() -> None:
    """Headers that passed are kept at hand, a bounded number of them; what was refused is not kept at all."""
    hosts = Hosts("", "127.0.0.1")
    for number in range(3 * ACCEPTED_MAX):
        hosts.check(b"10.0.0.1:%d" % number)
        assert None in hosts.accepted and len(hosts.accepted) <= ACCEPTED_MAX + 1
    with pytest.raises(Problem):
        hosts.check(b"evil.example")
    assert b"evil.example" not in hosts.accepted


def test_the_public_address_is_a_name_of_ours(tmp_path: Path) -> None:
    """A server answers to the host of its `public_url`, says it at the start, and tells it to sessions alone."""
    public = "https://Holdfast.internal:8443/locks"
    with ServerProcess.start(tmp_path, settings={"public_url": public}, tokens=callers.TOKENS) as server:
        wait_until(lambda: f"Clients elsewhere use {public}\n" in server.log)
        wait_until(lambda: f"curl -X POST {public}/locks/github-issue-1842/acquire" in server.log)
        assert _ask(server, "holdfast.internal").status == 200
        assert _ask(server, "other.internal").status == 421
        api = Api.of(server, callers.ALICE)
        assert api.post("/sessions", {}).json()["public_url"] == public
        assert "public_url" not in api.get("/status").json()


def test_session_has_no_public_url_without_setting(tmp_path: Path) -> None:
    """A session's answer has no `public_url` where none is set, and one that is no address stops the start."""
    with ServerProcess.start(tmp_path, tokens=callers.TOKENS) as server:
        assert "public_url" not in Api.of(server, callers.ALICE).post("/sessions", {}).json()
    for wrong in ("holdfast.internal", "ftp://a", "https://a/", "https://u:p@a", "https://a?b", "https://"):
        with pytest.raises(ServerFailed, match="public_url") as failed:
            ServerProcess.start(tmp_path, settings={"public_url": wrong})
        assert failed.value.returncode == 64
