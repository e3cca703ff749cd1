"""The operators' page through a proxy that is configured as the guide says: sign-in over TLS, and its live stream."""

from __future__ import annotations

import contextlib
import http.client
import http.cookies
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.reverse_proxies import NAME, ReverseProxy
from tests.support.visitor import Page

FORM = "application/x-www-form-urlencoded"


class Browser:
    """What a browser does at the proxy, over TLS and under the name of the guide."""

    def __init__(self, front: ReverseProxy) -> None:
        self._front = front
        self.cookie = ""
        self.said: http.cookies.Morsel[str] | None = None
        self._open = contextlib.ExitStack()

    def close(self) -> None:
        """Close every connection."""
        self._open.close()

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> http.client.HTTPResponse:
        """Ask, and keep the cookie. The answer is not read yet."""
        said = {"Host": NAME, "Origin": f"https://{NAME}", "Sec-Fetch-Site": "same-origin"}
        said |= {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookie:
            said["Cookie"] = self.cookie
        front = self._front
        connection = http.client.HTTPSConnection(front.host, front.tls_port, context=front.tls(), timeout=20)
        self._open.callback(connection.close)
        connection.request(method, path, body, said)
        answer = self._open.enter_context(connection.getresponse())
        for field in answer.headers.get_all("Set-Cookie") or []:
            for name, morsel in http.cookies.SimpleCookie(field).items():
                self.cookie, self.said = f"{name}={morsel.value}", morsel
        return answer

    def read(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, str]:
        """Ask, and read all of the answer."""
        answer = self.ask(method, path, body, **headers)
        return answer.status, answer.read().decode()

    def sign_in(self, token: str) -> int:
        """Send the form of the sign-in page."""
        return self.read("POST", "/ui/sign-in", urlencode({"token": token}).encode(), Content_Type=FORM)[0]


@pytest.fixture
def browser(before: ReverseProxy) -> Iterator[Browser]:
    with contextlib.closing(Browser(before)) as made:
        yield made


def test_operator_signs_in_over_tls(browser: Browser) -> None:
    """The page is there, signs in, and its cookie is for TLS alone: the proxy said that the client came over it."""
    assert browser.read("GET", "/")[0] == 200
    assert browser.sign_in(callers.OPERATOR) == 303
    assert browser.said is not None and browser.said["secure"] and browser.said["httponly"]
    assert browser.cookie.startswith("__Host-holdfast=")
    status, page = browser.read("GET", "/")
    assert status == 200 and "operator" in page


def test_page_stream_shows_a_claim(alice: Api, browser: Browser) -> None:
    """A row appears while the stream is open: no buffer of the proxy holds it back."""
    assert browser.sign_in(callers.OPERATOR) == 303
    name = unique()
    stream = browser.ask("GET", "/ui/live")
    assert stream.status == 200
    received = b""
    while b"hello" not in received:
        received += stream.read1(65_536)
    alice.acquired(name)
    while name.encode() not in received:
        received += stream.read1(65_536)


def test_page_action_passes_the_proxy(alice: Api, browser: Browser) -> None:
    """A form of the page, sent through the proxy from its own site, ends a lease; from another site it does not."""
    assert browser.sign_in(callers.OPERATOR) == 303
    name = unique()
    alice.acquired(name)
    page = Page()
    page.feed(browser.read("GET", f"/ui/jobs/{name}")[1])
    body = urlencode({**page.fields, "reason": "through the proxy"}).encode()
    path = f"/ui/jobs/{name}/revoke"
    foreign = {"Origin": "https://evil.example", "Sec_Fetch_Site": "cross-site"}
    assert browser.read("POST", path, body, Content_Type=FORM, **foreign)[0] == 403
    assert alice.status(name).json()["status"] == "held"
    assert browser.read("POST", path, body, Content_Type=FORM)[0] == 303
    assert alice.status(name).json()["status"] == "free"
