"""Signing in with a real browser: what is kept, what is not, and what happens when it is over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.page_actions import ROWS, is_live, job_path, mark, row, wait_for_list
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.chromium import Readers
from tests.support.server import ServerProcess, serving
from tests.support.wallclock import WallClock

HOUR_SECONDS = 3_600
ELSEWHERE = "http://chat.example"


def _sign_in(page: Page, token: str) -> None:
    page.get_by_label("Access token").fill(token)
    page.get_by_role("button", name="Sign in").click()


def test_token_opens_the_list_and_is_not_stored(readers: Readers) -> None:
    """The token is in no address, no page and no store of the browser; no script can read the cookie."""
    page = readers.open(None)
    expect(page.get_by_role("link", name="The API for programs")).to_have_attribute("href", "/docs")
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight"), "an almost empty page scrolls"
    _sign_in(page, callers.OPERATOR)
    expect(is_live(page)).to_be_visible()
    expect(page.locator("#menu summary")).to_have_text("operator")
    stored = page.evaluate("""() => [
        location.href, document.cookie, document.documentElement.outerHTML, JSON.stringify(history.state),
        ...Object.values(localStorage), ...Object.values(sessionStorage),
    ].join(" ")""")
    assert callers.OPERATOR not in stored
    (cookie,) = page.context.cookies()
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and callers.OPERATOR not in cookie["value"]


def test_wrong_token_is_reported_and_requested_again(readers: Readers) -> None:
    """A wrong token says so beside the field, and a right one works at once."""
    readers.expect_trouble(r"status of 401")
    page = readers.open(None)
    _sign_in(page, "wrong-" + callers.OPERATOR)
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_label("Access token")).to_be_focused()
    expect(page.get_by_label("Access token")).to_have_value("")
    _sign_in(page, callers.READER)
    expect(is_live(page)).to_be_visible()


def test_a_page_that_was_asked_for_is_shown_after_signing_in(readers: Readers) -> None:
    """Whoever opens a job's page and is not signed in comes to that page, and not to the list."""
    readers.expect_trouble(r"status of 401")
    name = unique("deep/link")
    page = readers.open(None, job_path(name))
    _sign_in(page, callers.READER)
    expect(page.locator("h1")).to_contain_text(name)


def test_a_link_from_a_chat_opens_signed_in(readers: Readers, server: ServerProcess) -> None:
    """A browser sends no Strict cookie with a link of another site: the page asks once, before it shows a field."""
    readers.expect_trouble(r"status of 401")
    name = unique("pasted")
    context = readers.new(callers.OPERATOR)
    html = f'<!doctype html><title>chat</title><a href="{server.url}{job_path(name)}">look</a>'
    context.route(f"{ELSEWHERE}/**", lambda route: route.fulfill(content_type="text/html", body=html))
    page = context.new_page()
    page.goto(f"{ELSEWHERE}/")
    page.get_by_role("link", name="look").click()
    expect(page.locator("h1")).to_contain_text(name)
    expect(page.get_by_label("Access token")).to_have_count(0)


def test_signing_out_ends_it_in_every_tab(readers: Readers) -> None:
    """After *Sign out* the browser has no cookie, and each page asks for a token."""
    readers.expect_trouble(r"status of 401")
    page = readers.open(callers.OPERATOR)
    page.locator("#menu summary").click()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Access token")).to_be_visible()
    assert page.context.cookies() == []
    page.goto("/ui/sessions")
    expect(page.get_by_label("Access token")).to_be_visible()


def test_a_revoked_token_ends_the_page_that_is_open(readers: Readers, server: ServerProcess) -> None:
    """Whoever looks at the list when the token is revoked is told at once, and nothing more is shown."""
    readers.expect_trouble(r"status of 401")
    operator = Api.of(server, callers.OPERATOR)
    name = unique("wall")
    made = operator.post("/tokens", {"name": name, "scopes": ["read"]})
    assert made.status == 201, made
    page = readers.open(made.json()["token"])
    expect(is_live(page)).to_be_visible()
    assert operator.delete(f"/tokens/{name}").status == 204
    expect(page.locator("#signed-out")).to_be_visible()
    page.get_by_role("link", name="Sign in again").click()
    expect(page.get_by_label("Access token")).to_be_visible()


def test_a_reader_is_offered_nothing_that_it_may_not_do(readers: Readers, alice: Api) -> None:
    """With `read` alone no form ends a lease, there is no room of tokens, and a sentence says what is missing."""
    name = unique("looked-at")
    alice.acquired(name, ttl_seconds=300)
    page = readers.open(callers.READER, job_path(name))
    expect(page.locator("details.offer")).to_have_count(0)
    expect(page.get_by_text("needs an access token with the scope admin")).to_be_visible()
    expect(page.get_by_role("link", name="Tokens")).to_have_count(0)


def test_a_prefix_is_all_that_its_reader_sees(readers: Readers, server: ServerProcess, alice: Api) -> None:
    """A token that is confined to a prefix sees those jobs alone, also those that are claimed while it looks."""
    stem, other = unique("team"), unique("others")
    made = Api.of(server, callers.OPERATOR).post("/tokens", {"name": stem, "scopes": ["read"], "prefix": f"{stem}/"})
    page = readers.open(made.json()["token"])
    wait_for_list(page)
    alice.acquired(f"{other}/a", ttl_seconds=300)
    alice.acquired(f"{stem}/a", ttl_seconds=300)
    expect(row(page, f"{stem}/a")).to_be_visible()
    expect(page.locator(ROWS)).to_have_count(1)


@pytest.fixture
def moved(browser: Browser, tmp_path: Path) -> Iterator[tuple[ServerProcess, WallClock]]:
    """A server whose wall clock can be moved."""
    clock = WallClock(tmp_path / "shift")
    with serving(tmp_path / "data", tokens=callers.TOKENS, wrapper=clock.wrapper) as server:
        yield server, clock


def test_a_cookie_that_is_over_asks_for_the_token_again(
    browser: Browser, moved: tuple[ServerProcess, WallClock]
) -> None:
    """After 12 hours without use the next page says why, and the same page is there after signing in again."""
    server, clock = moved
    readers = Readers(browser, server)
    readers.expect_trouble(r"status of 401")
    page = readers.open(callers.READER, "/ui/nodes")
    mark(page)
    clock.set(13 * HOUR_SECONDS)
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("12 hours")
    _sign_in(page, callers.READER)
    expect(page.get_by_role("heading", name="Nodes")).to_be_visible()
    assert readers.close() == []
