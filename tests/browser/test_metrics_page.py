"""The page of numbers in a browser: it goes on by itself, in the times of its reader."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.sync_api import Browser, Route, expect

from tests.browser.page_actions import mark, marked
from tests.support import callers
from tests.support.chromium import Readers
from tests.support.server import serving

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.api import Api

SAMPLE_MS = 30_000
"""A sample comes every ten seconds; a machine may be busy."""


def test_metrics_update_without_reload(readers: Readers, alice: Api) -> None:
    """A claim made while somebody looks is in the charts one sample later, without a reload."""
    page = readers.open(callers.READER, "/ui/metrics", timezone_id="Asia/Tokyo")
    expect(page.locator("#charts")).to_be_visible(timeout=SAMPLE_MS)
    expect(page.locator("#zone")).to_have_text("Asia/Tokyo")
    expect(page.locator("#live")).to_have_text("live")
    mark(page)
    alice.acquired("counted", ttl_seconds=600)
    expect(page.locator("#stat-held")).to_have_text("1", timeout=SAMPLE_MS)
    assert marked(page) == "same", "it was not loaded again"
    line = page.locator("#chart-held path.series").first
    expect(line).not_to_have_attribute("d", line.get_attribute("d") or "", timeout=SAMPLE_MS)
    expect(page.locator("#chart-held text.mark").last).to_have_text(re.compile(r"^\d\d:\d\d$"))


def test_metrics_page_waits_for_first_sample_while_server_is_away(browser: Browser, tmp_path: Path) -> None:
    """A page without numbers is loaded again when there may be some; not while nobody would answer that."""

    def too_early(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=answer.text().replace('id="charts"', 'id="none-yet"'))

    with serving(tmp_path / "data", tokens=callers.TOKENS) as server:
        readers = Readers(browser, server)
        readers.expect_trouble("ERR_")
        context = readers.new(callers.READER)
        page = context.new_page()
        page.route("**/ui/metrics", too_early)
        page.goto("/ui/metrics")
        page.unroute_all(behavior="wait")
        mark(page)
        server.kill()
        expect(page.locator("#live")).to_have_text(re.compile("^server away since"), timeout=SAMPLE_MS)
        assert marked(page) == "same"
        with server.restart():
            expect(page.locator("h1")).to_have_text("Metrics")
        assert readers.close() == []
