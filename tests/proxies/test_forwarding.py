"""What must come through a proxy that is configured as the guide says: waits, streams, ends, limits and TLS."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from pathlib import Path

from tests.proxies.conftest import WATCHES_MAX
from tests.support import callers, proof
from tests.support.api import Api
from tests.support.checks import unique, wait_until
from tests.support.pending import waiters, waiting
from tests.support.proxy import Proxy, read_request
from tests.support.reverse_proxies import NAME, ReverseProxy, front
from tests.support.server import ServerProcess


def test_wait_is_granted_by_a_release(alice: Api, bob: Api) -> None:
    """Who waits in line through the proxy gets the name when it is released meanwhile."""
    name = unique()
    lease_id = alice.acquired(name)["lease_id"]
    with waiting(bob, name, wait_seconds=3) as waits:
        assert alice.release(name, lease_id).status == 200
        assert waits.json()["status"] == "acquired"


def test_wait_may_be_long(alice: Api, bob: Api) -> None:
    """A wait to its end is answered by the server and not by a proxy that has lost patience."""
    name = unique()
    alice.acquired(name, ttl_seconds=600)
    with waiting(bob, name, wait_seconds=proof.count("proxies: seconds of a wait")) as waits:
        assert waits.json(timeout_seconds=70)["status"] == "waiting"


def test_frames_come_while_the_stream_is_open(alice: Api, bob: Api) -> None:
    """A frame of `/events` and of a watch arrives when it is sent; nothing waits for a buffer to be full."""
    name = unique()
    with bob.events(prefix=name) as events, bob.watch_lock(name) as watch:
        for _ in range(3):
            lease_id = alice.acquired(name)["lease_id"]
            assert events.next().json()["changes"][0]["event"] == "granted"
            watch.next_event("acquired")
            assert alice.release(name, lease_id).status == 200
            assert events.next().json()["changes"][0]["event"] == "released"
            watch.next_event("released")


def test_disconnected_waiter_is_noticed(alice: Api, bob: Api) -> None:
    """A client that closes its connection to the proxy, politely or not, leaves the line."""
    name = unique()
    lease_id = alice.acquired(name)["lease_id"]
    for reset in (False, True):
        waiting(bob, name).close(reset=reset)
        wait_until(lambda: waiters(alice, name) == 0)
    assert alice.release(name, lease_id).status == 200
    assert alice.status(name).json()["status"] == "free"


def test_reader_that_goes_away_is_noticed(before: ReverseProxy) -> None:
    """A stream whose reader is gone is ended: it counts no longer against those that one token may have open."""
    carol = before.api(callers.CAROL)

    def opened() -> bool:
        with carol.watch_lock("job") as watch:
            return watch.status == 200

    for _ in range(3 * WATCHES_MAX):
        wait_until(opened)


class Dropping(Proxy):
    """A server that answers a GET, and takes a POST and goes away; it counts those."""

    taken = 0

    def _pass_on(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while read_request(client).startswith(b"GET"):
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            self.taken += 1


def test_nothing_is_sent_twice(before: ReverseProxy, server: ServerProcess, tmp_path: Path) -> None:
    """A request whose answer is lost is sent to the server once, over a new connection and over a kept one, and the
    client is told. It, and not the proxy, has the `Idempotency-Key` with which to ask again.
    """

    def is_lost() -> bool:
        # Over a kept connection, HAProxy closes the client's too, instead of an answer.
        try:
            return api.acquire("job").status in {502, 503, 504}
        except ConnectionError:
            return True

    with Dropping(server) as dropping, front(before.kind, tmp_path, (dropping.host, dropping.port)) as proxy:
        api = proxy.api(callers.ALICE)
        assert is_lost() and dropping.taken == 1
        for _ in range(3):
            assert api.get("/status").status == 200
        assert is_lost() and dropping.taken == 2


def test_too_large_body_is_refused(bob: Api) -> None:
    """A body of more than 2 MiB is 413, and the connection behind the proxy serves the next."""
    with contextlib.suppress(ConnectionError):
        assert bob.post("/claims", b" " * ((2 << 20) + 1)).status == 413
    assert bob.get("/readyz").status == 200


def test_server_that_comes_back_is_found(before: ReverseProxy, tmp_path: Path) -> None:
    """While the server is down the proxy says so by a 5xx; when it is back the proxy serves, without a restart."""
    with (
        ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as first,
        front(before.kind, tmp_path, (first.host, first.port)) as proxy,
    ):
        bob = proxy.api(callers.BOB)
        assert bob.get("/readyz").status == 200
        first.terminate()
        assert bob.get("/readyz").status in {502, 503, 504}
        with first.restart():
            wait_until(lambda: bob.get("/readyz").status == 200, seconds_max=20)
            bob.acquired("job")


def test_tls_ends_at_the_proxy(before: ReverseProxy) -> None:
    """Over TLS, with the certificate of the guide's paths and its name, a claim is granted."""
    connection = http.client.HTTPSConnection(before.host, before.tls_port, context=before.tls(), timeout=10)
    headers = {"Host": NAME, "Authorization": f"Bearer {callers.BOB}", "Content-Type": "application/json"}
    connection.request("POST", f"/locks/{unique()}/acquire", b"{}", headers)
    with contextlib.closing(connection), connection.getresponse() as answer:
        assert (answer.status, json.load(answer)["status"]) == (200, "acquired")


def test_proxy_forwards_the_host_name(bob: Api) -> None:
    """The server sees the name that the client asked for: its own is served, and another refused."""
    for name, status in ((NAME, 200), ("other.example.com", 421)):
        assert bob.get("/locks", headers={"Host": name}).status == status
