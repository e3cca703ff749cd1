"""Certificates and schemes that do not fit: both clients say what is wrong, and what to do about it."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import pytest

from holdfast import neterrors
from holdfast.client.config import Target
from holdfast.errors import Unreachable
from tests.client.transports import TRANSPORTS, EitherTransport
from tests.support import callers
from tests.support.server import ServerProcess

Refusing = Callable[[str], Unreachable]


@pytest.fixture(params=TRANSPORTS)
def refusing(request: pytest.FixtureRequest) -> Refusing:
    """Asks an address that does not answer, and returns why."""

    def asked(url: str) -> Unreachable:
        way = EitherTransport(request.param, Target(url, "test", callers.ALICE, "test"), {})
        try:
            with pytest.raises(Unreachable) as caught:
                way.send("GET", "/locks")
        finally:
            way.close()
        assert str(caught.value) == f"no answer from {url}: {caught.value.problem}; {caught.value.hint}"
        return caught.value

    return asked


def test_untrusted_certificate_is_refused(secured: ServerProcess, refusing: Refusing) -> None:
    """A self-signed certificate is not trusted, and the hint is where to put it."""
    error = refusing(secured.url)
    assert error.problem == "its certificate is not trusted (self-signed certificate)"
    assert "HOLDFAST_CA_FILE" in error.hint


def test_https_where_http_is_spoken(server: ServerProcess, refusing: Refusing) -> None:
    """An https address of a server that speaks plain HTTP: what is spoken there is known, and said."""
    error = refusing(f"https://127.0.0.1:{server.port}")
    assert error.problem == "the encrypted connection failed (wrong version number)"
    assert "does not speak https: write http:// in its address" in error.hint


def test_http_where_https_is_spoken(secured: ServerProcess, refusing: Refusing) -> None:
    """An http address of a server that speaks TLS is asked whether it is right."""
    error = refusing(f"http://127.0.0.1:{secured.port}")
    assert "does it speak https?" in error.hint and "https://" in error.hint


@pytest.mark.parametrize(
    ("code", "hint"),
    [(62, "use the name"), (64, "use the name"), (9, "clock"), (10, "renew"), (20, "CA")],
)
def test_every_kind_of_bad_certificate_has_its_hint(code: int, hint: str) -> None:
    """Another name, another time and another signer need different things."""
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.reason, error.verify_code, error.verify_message = "CERTIFICATE_VERIFY_FAILED", code, "Something."
    problem, what_to_do = neterrors.trouble(error)
    assert problem.endswith("(Something)") and hint in what_to_do


def test_broken_connection_gives_no_scheme_hint() -> None:
    """One that broke inside TLS is not asked whether it is TLS."""
    problem, hint = neterrors.trouble(ssl.SSLEOFError(8, "EOF occurred in violation of protocol"))
    assert problem == "the encrypted connection broke" and "https" not in hint
