"""A server that goes away while somebody looks, and comes back."""

from __future__ import annotations

import re

from playwright.sync_api import Browser, expect

from tests.browser.page_actions import fill, is_live, mark, marked, row, until, wait_for_list
from tests.support import callers
from tests.support.api import Api
from tests.support.chromium import Readers
from tests.support.server import ServerProcess


def test_killed_and_back(browser: Browser, mortal: ServerProcess) -> None:
    """The page says since when it is not live, keeps what it showed, greyed, and stops its bars; when the server is
    back it is live again by itself, and shows what happened meanwhile.
    """
    readers = Readers(browser, mortal)
    readers.expect_trouble(
        "ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET"
    )
    alice = Api.of(mortal, callers.ALICE)
    lease = alice.acquired("kept", ttl_seconds=600, owner="agent-1")["lease_id"]
    page = readers.open(callers.OPERATOR)
    wait_for_list(page)
    mark(page)
    mortal.kill()
    live = page.locator("#live")
    expect(live).to_have_text(re.compile(r"^reconnecting since \d\d:\d\d:\d\d$"))
    expect(row(page, "kept")).to_be_visible()
    bar = row(page, "kept").locator(".bar > i")
    assert bar.evaluate("each => getComputedStyle(each).animationPlayState") == "paused"
    assert "grayscale" in page.locator("table.jobs tbody").evaluate("each => getComputedStyle(each).filter")
    expect(live).to_have_text(re.compile(r"^server away since \d\d:\d\d:\d\d$"))

    with mortal.restart() as back:
        alice = Api.of(back, callers.ALICE)
        alice.release("kept", lease)
        alice.acquired("new", ttl_seconds=600, owner="agent-2")
        expect(live).to_have_text("live")
        expect(row(page, "new")).to_be_visible()
        expect(row(page, "kept")).to_have_count(0)
        bar = row(page, "new").locator(".bar > i")
        before = fill(page, bar)
        until(lambda: fill(page, bar) < before, "bars move again")
        assert marked(page) == "same"
        assert readers.close() == []


def test_a_job_page_says_it_too(browser: Browser, mortal: ServerProcess) -> None:
    """Other rooms with a stream say the same, and are made anew when it is back."""
    readers = Readers(browser, mortal)
    readers.expect_trouble(
        "ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET"
    )
    Api.of(mortal, callers.ALICE).acquired("one", ttl_seconds=600, owner="agent-1")
    page = readers.open(callers.OPERATOR, "/ui/jobs/one")
    expect(is_live(page)).to_be_visible()
    mortal.kill()
    expect(page.locator("#live")).to_have_attribute("data-state", "reconnecting")
    with mortal.restart() as back:
        Api.of(back, callers.OPERATOR).revoke("one", reason="after the restart")
        expect(is_live(page)).to_be_visible()
        expect(page.locator("#sign")).to_contain_text("Nobody holds it")
        assert readers.close() == []
