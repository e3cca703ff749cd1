"""A browser without a screen: it keeps cookies, says where its requests come from, and sends the forms of a page.

Everything that a real one adds by itself can be left out or written otherwise, as another site or program would.
"""

from __future__ import annotations

import http.cookies
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

from tests.support.http import Answer, Client
from tests.support.server import ServerProcess

FORM = "application/x-www-form-urlencoded"
SEE_OTHER = 303


class Visitor:
    """One browser, at one server. `scheme` is what it believes to speak: a proxy may be between."""

    def __init__(
        self, server: ServerProcess, *, scheme: str = "http", headers: Mapping[str, str] | None = None
    ) -> None:
        self._client = Client(server.host, server.port, None)
        self.origin = f"{scheme}://{server.host}:{server.port}"
        self.cookies: dict[str, str] = {}
        self._headers = dict(headers or {})

    # What a reader does.

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        """Follow a link of a page of ours."""
        return self._ask("GET", path, None, headers or {})

    def send(self, path: str, fields: Mapping[str, str], headers: Mapping[str, str] | None = None) -> Answer:
        """Send a form of a page of ours. `headers` take the place of what a browser says; an empty one: none."""
        body = urlencode(fields).encode()
        return self._ask("POST", path, body, {"Content-Type": FORM, "Origin": self.origin, **(headers or {})})

    def ask(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Answer:
        """Ask the API, as a script of the page does."""
        said = {"Origin": self.origin, "X-Holdfast-Page": "1", **(headers or {})}
        return self._ask(method, path, body, said)

    def sign_in(self, token: str, **fields: str) -> Answer:
        """Sign in at the page, and be let in."""
        answer = self.send("/ui/sign-in", {"token": token, **fields})
        assert answer.status == SEE_OTHER, answer
        return answer

    def form_token(self, path: str = "/") -> str:
        """The field that the forms of a page carry."""
        return page_of(self.get(path)).fields["form_token"]

    # What a browser does.

    def _ask(self, method: str, path: str, body: object, headers: Mapping[str, str]) -> Answer:
        said = {**self._headers, **headers}
        if self.cookies and "Cookie" not in said:
            said["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        answer = self._client.request(
            method, path, body, headers={name: value for name, value in said.items() if value}
        )
        self._keep(answer)
        return answer

    def _keep(self, answer: Answer) -> None:
        for field in answer.headers.get_all("Set-Cookie") or []:
            for name, morsel in http.cookies.SimpleCookie(field).items():
                if morsel["max-age"] == "0":
                    self.cookies.pop(name, None)
                else:
                    self.cookies[name] = morsel.value


class Page(HTMLParser):
    """What is on a page, as far as tests look at it."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.fields: dict[str, str] = {}
        """The hidden fields of all forms."""
        self.words: list[str] = []
        self._skips = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        said = dict(attrs)
        if tag == "input" and said.get("type") == "hidden":
            self.fields[str(said.get("name"))] = str(said.get("value"))
        self._skips += tag in {"script", "style"}

    def handle_endtag(self, tag: str) -> None:
        self._skips -= tag in {"script", "style"}

    def handle_data(self, data: str) -> None:
        if not self._skips and data.strip():
            self.words.append(data.strip())

    @property
    def text(self) -> str:
        """All that a reader reads."""
        return " ".join(self.words)


def page_of(answer: Answer) -> Page:
    """An answer that is a page."""
    assert answer.content_type == "text/html", answer
    page = Page()
    page.feed(answer.text)
    page.close()
    return page
