"""Whom a request comes from: the other end of the connection, or what a proxy that is trusted says."""

from __future__ import annotations

import pytest

from holdfast.http.messages import Request, request_from
from holdfast.http.proxies import HOPS_MAX, Proxies

TRUSTED = "10.0.0.1, 192.168.0.0/16,fd00::/8"


def _request(peer: str, **headers: str) -> Request:
    named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return request_from(b"GET", b"/", b"", named, b"", peer)


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("203.0.113.9", "192.0.2.7", "203.0.113.9"),
        ("10.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("::ffff:10.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("fd00::5", "2001:db8::7", "2001:db8::7"),
        ("10.0.0.1", "1.2.3.4, 192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", "1.2.3.4, 192.0.2.7, 192.168.3.4", "192.0.2.7"),
        ("10.0.0.1", "192.168.9.9, 192.168.3.4", "192.168.9.9"),
        ("10.0.0.1", "192.0.2.7:4711", "192.0.2.7"),
        ("10.0.0.1", "[2001:db8::7]:4711", "2001:db8::7"),
        ("10.0.0.1", "[2001:db8::7]", "2001:db8::7"),
        ("10.0.0.1", "::ffff:192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", "192.0.2.7, unknown", "10.0.0.1"),
        ("10.0.0.1", "192.0.2.7, unknown, 192.168.3.4", "192.168.3.4"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", ",", "10.0.0.1"),
        ("10.0.0.1", "192.0.2.7,", "10.0.0.1"),
        ("10.0.0.1", "[]", "10.0.0.1"),
        ("10.0.0.1", "192.0.2.7, " + ", ".join(["192.168.3.4"] * HOPS_MAX), "192.168.3.4"),
        ("", "192.0.2.7", "None"),
        ("a-name", "192.0.2.7", "None"),
    ],
)
def test_client_address_is_determined(peer: str, forwarded: str, client: str) -> None:
    """The walk goes from the end, over proxies that are trusted, to the first that is not; nonsense ends it."""
    assert str(Proxies(TRUSTED).client_of(_request(peer, x_forwarded_for=forwarded))) == client


def test_without_the_header_it_is_the_peer() -> None:
    """A trusted proxy that says nothing is itself the client; without any that is trusted, everybody is."""
    assert str(Proxies(TRUSTED).client_of(_request("10.0.0.1"))) == "10.0.0.1"
    assert str(Proxies("").client_of(_request("10.0.0.1", x_forwarded_for="192.0.2.7"))) == "10.0.0.1"


@pytest.mark.parametrize(("trusted", "warnings"), [("0.0.0.0/0", 1), ("10.0.0.1, ::/0", 1), (TRUSTED, 0)])
def test_trusting_all_proxies_is_warned_about(trusted: str, warnings: int, caplog: pytest.LogCaptureFixture) -> None:
    """That everybody's word is believed is one line in the log at the start."""
    Proxies(trusted)
    assert caplog.text.count("everybody is believed") == warnings


@pytest.mark.parametrize(
    ("peer", "forwarded", "scheme"),
    [
        ("10.0.0.1", "https", "https"),
        ("10.0.0.1", " HTTPS ", "https"),
        ("10.0.0.1", "http", "http"),
        ("10.0.0.1", "https, http", "http"),
        ("10.0.0.1", "gopher", "own"),
        ("10.0.0.1", "", "own"),
        ("203.0.113.9", "https", "own"),
        ("", "https", "own"),
    ],
)
def test_client_scheme_is_determined(peer: str, forwarded: str, scheme: str) -> None:
    """X-Forwarded-Proto is believed of a trusted proxy, if it is http or https; the last word is the proxy's own."""
    assert Proxies(TRUSTED).scheme_of(_request(peer, x_forwarded_proto=forwarded), "own") == scheme


def test_scheme_without_header_is_own() -> None:
    """Without the header it is the scheme of the connection."""
    assert Proxies(TRUSTED).scheme_of(_request("10.0.0.1"), "http") == "http"
