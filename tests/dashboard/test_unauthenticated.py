"""Before who is known, nothing costs much: a stranger gets the bytes of the sign-in page, and nothing is read."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.api.context import ANONYMOUS
from holdfast.api.operation import Operation
from holdfast.dashboard import signin, site
from holdfast.dashboard.site import page_reader
from holdfast.dashboard.table import JOBS, PAGES
from holdfast.http.messages import request_from
from tests.support.visitor import Page

ROWS = [row for row in (JOBS, *PAGES) if row.reader is page_reader]


class Untouchable:
    """Stands for the server: whatever is asked of it fails."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - it never returns
        raise AssertionError(f"{name} was looked at for a stranger")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.method} {row.path}")
def test_pages_answer_unauthenticated_readers_without_reading_state(row: Operation) -> None:
    """No state, no setting, no template: neither the query, nor the name, nor the form of a stranger is read."""
    answered: list[tuple[int, bytes]] = []
    server: Any = Untouchable()
    query, body = b"q=%ff&" * 2_000, b"form_token=%zz&" * 1_000
    request = request_from(row.method.encode(), b"/ui/%ff%zz", query, {b"host": b"a"}, body)
    read = page_reader(server, row)
    call = read(request, b"%ff" * 5_000, lambda _request, status, body, _headers: answered.append((status, body)))
    assert call.caller is ANONYMOUS and not request.rests_on_state
    row.handler(server, call)
    [(status, said)] = answered
    if row.path == "/ui/here":
        assert (status, said) == (200, b'{"signed_in":false}')
    else:
        assert status == (200 if row.path in {"/", "/ui/sign-in"} else 401)
        assert said == signin.sign_in_page(200)[1]


def test_every_row_below_ui_is_known_to_be_guarded() -> None:
    """A row of the page is a page behind its sign-in, or asks for a scope as every row of the API; but for two."""
    open_to_all = {(row.method, row.path) for row in PAGES if row.reader is not page_reader and row.scope is None}
    assert open_to_all == {("POST", "/ui/sign-in"), ("GET", "/ui/static/{file}")}
    assert all(row.handler.__qualname__.startswith("sign_in_required.") for row in ROWS if row.path != "/ui/here")


def test_memory_of_unauthenticated_requests_is_bounded() -> None:
    """The way back is cut off where it is longer than any of ours: a page for a stranger is small."""
    request = request_from(b"GET", b"/ui/" + b"a" * 16_000, b"", {}, b"")
    assert signin._return_path(request) == "/"
    longest = request_from(b"GET", b"/ui/" + b'"' * (signin.NEXT_CHARS_MAX - 4), b"", {}, b"")
    assert len(signin.sign_in_page(401, back=signin._return_path(longest))[1]) < 20_000
    assert sum(len(content) for _, content in site.static_files().by_name.values()) < 500_000


def test_sign_in_page_escapes_input() -> None:
    """A reason or a way back is text on the sign-in page, whatever is in it."""
    page = page_of_bytes(signin.sign_in_page(401, '<b id="x">&', '/ui/"><i id=y>')[1])
    assert not any(said.get("id") in {"x", "y"} for _, said in page.tags)
    assert '<b id="x">&' in page.text and page.fields["next"] == '/ui/"><i id=y>'


def page_of_bytes(body: bytes) -> Page:
    """A page that no server sent."""
    page = Page()
    page.feed(body.decode())
    page.close()
    return page
