"""`rlock` and its kin with several addresses: one that does not answer is left for the next, in time."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from holdfast.agents import rlock as commands
from holdfast.client import minihttp
from tests.cli.agents.test_rlock import SCRIPTS, Done, started
from tests.client.peer import Peer, nobody, peering, silent
from tests.support import callers
from tests.support.api import Api
from tests.support.gateway import Run, resource
from tests.support.server import ServerProcess

UNAVAILABLE = (503, {"Content-Type": "application/json"}, b'{"ok":false,"error":"No node leads right now."}')
GRANTED = (200, {"Content-Type": "application/json"}, b'{"ok":true,"resourceKey":"a:b"}')
GONE = (404, {"Content-Type": "application/json"}, b'{"ok":false,"reason":"lock not found"}')


@pytest.fixture
def run(server: ServerProcess) -> Run:
    """A run on the real server."""
    return Run(Api.of(server, callers.ALICE), "ana")


@pytest.fixture
def leaderless() -> Iterator[Peer]:
    """A node that knows no leader."""
    with peering(UNAVAILABLE) as peer:
        yield peer


def asked(urls: str, verb: str = "acquire", seconds: float = 10.0, **more: str) -> tuple[int, dict[str, object]]:
    """Ask in this process, with a time limit of our own."""
    environment = {"GATEWAY_URL": urls, "SHUTDOWN_SECRET": "secret", **more}
    return commands.run(["a:b"], verb, environment, timed=True, seconds=seconds)


@pytest.mark.parametrize("variable", ["GATEWAY_URL", "HOLDFAST_URL"])
def test_the_three_commands(server: ServerProcess, run: Run, leaderless: Peer, variable: str) -> None:
    """N-35: a dead address and one without a leader before the right one; both variables may be a list."""
    assert SCRIPTS.is_dir()
    key = resource()
    with nobody() as dead:
        known = {variable: f"{dead}, {leaderless.url},{server.url}", "SHUTDOWN_SECRET": run.secret}

        def call(name: str) -> Done:
            return started(name, key, **known)

        assert call("rlock")[:2] == (0, {"ok": True, "resourceKey": key})
        assert call("rlock-heartbeat").code == 0
        assert call("runlock")[:2] == (0, {"ok": True})
    assert not run.has(key)
    assert len(leaderless.asked) == 3


def test_a_stopped_server_is_left_in_time(server: ServerProcess, run: Run) -> None:
    """One that takes connections and never answers costs its share of the ten seconds."""
    key = resource()
    with silent() as hangs:
        done = started("rlock", key, GATEWAY_URL=f"{hangs},{server.url}", SHUTDOWN_SECRET=run.secret)
    assert done.code == 0 and run.has(key)


def test_the_same_key_goes_to_all(leaderless: Peer) -> None:
    """C5: a release has one key, whomever it is sent to: it has one effect."""
    with peering((200, {}, b'{"ok":true}')) as leads:
        assert asked(f"{leaderless.url},{leads.url}", "release") == (0, {"ok": True})
        (one,), (other,) = ([head["idempotency-key"] for _, _, head, _ in each.asked] for each in (leaderless, leads))
    assert one == other


def test_lost_try_is_reported(leaderless: Peer) -> None:
    """A release of which one try was lost, and another found nothing, says that the first may have done it."""
    with silent() as hangs, peering(GONE) as peer:
        code, said = asked(f"{hangs},{peer.url}", "release", seconds=1.0)
    assert code == 2 and "lost" in said


def test_without_a_leader_until_the_end(leaderless: Peer) -> None:
    """They are asked again and again until the time is over; then the refusal is the answer, with exit code 5."""
    with peering(UNAVAILABLE) as other:
        began = time.monotonic()
        code, said = asked(f"{leaderless.url},{other.url}", seconds=1.0)
        assert 0.5 < time.monotonic() - began < 20
        assert (code, said["ok"]) == (5, False)
        assert len(leaderless.asked) > 1 and len(other.asked) > 1


def test_lost_answer_outweighs_a_refusal(leaderless: Peer) -> None:
    """N-12: if one copy may have been done, that is said, and not that none of the others was."""
    with silent() as hangs, pytest.raises(minihttp.LostError, match="may or may not"):
        asked(f"{hangs},{leaderless.url}", seconds=1.0)


def test_unreachable_gateways_are_reported_immediately() -> None:
    """If nothing listens at any of them, that is exit code 6, at once, with all of them named."""
    with nobody() as one, nobody() as other:
        began = time.monotonic()
        with pytest.raises(minihttp.UnreachableError) as caught:
            asked(f"{one},{other}", seconds=60)
        assert time.monotonic() - began < 30
    assert one in str(caught.value) and other in str(caught.value)


# One gateway, and the nodes beside it.


def test_the_other_nodes_are_known_from_the_environment() -> None:
    """GATEWAY_URL stays one address: where HOLDFAST_URL names it among others, those are asked after it."""
    with nobody() as dead, peering(GRANTED) as peer:
        assert asked(dead, HOLDFAST_URL=f"{peer.url},{dead}")[0] == 0
        assert len(peer.asked) == 1


def test_another_server_is_not_asked() -> None:
    """A secret goes to no address that was not given for it: not to a server that HOLDFAST_URL names by itself."""
    with nobody() as dead, peering(GRANTED) as one, peering(GRANTED) as other:
        for named in (f"{one.url},{other.url}", one.url):
            with pytest.raises(minihttp.UnreachableError):
                asked(dead, HOLDFAST_URL=named)
        assert one.asked == other.asked == []


def test_unencrypted_node_is_skipped(capfd: pytest.CaptureFixture[str]) -> None:
    """A node beside the gateway is not asked over plain HTTP on another machine, unless that is allowed."""
    with nobody() as dead:
        named = f"{dead},http://other.invalid"
        with pytest.raises(minihttp.UnreachableError) as caught:
            asked(dead, HOLDFAST_URL=named)
        assert "other.invalid" not in str(caught.value)
        with pytest.raises(minihttp.UnreachableError, match=r"other\.invalid"):
            asked(dead, HOLDFAST_URL=named, HOLDFAST_ALLOW_INSECURE_HTTP="1")
    assert "other.invalid unencrypted" in capfd.readouterr().err


def test_each_address_is_checked() -> None:
    """N-35: among several addresses each obeys the rules of one."""
    with peering(GRANTED) as peer:
        for urls in (f"{peer.url},", f"{peer.url},ftp://h", f"{peer.url},http://u:p@h"):
            with pytest.raises(minihttp.UnreachableError, match="GATEWAY_URL is not an address"):
                asked(urls)
        with pytest.raises(minihttp.UnreachableError, match="unencrypted"):
            asked("", HOLDFAST_URL=f"{peer.url},http://other.invalid")
        assert peer.asked == []
