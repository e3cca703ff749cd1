"""Looking back in a real browser: the slider leads to who had a job yesterday, and back to now."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.page_actions import is_live, until, wait_for_list
from tests.support import callers
from tests.support.api import Api
from tests.support.chromium import Readers
from tests.support.server import ServerProcess, serving
from tests.support.wallclock import WallClock

HOUR_SECONDS = 3_600
THEN = "#jobs-then tbody tr"
KEYS_MAX = 48


@pytest.fixture(scope="module")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a yesterday: agent-1 had the job from 26 to 22 hours ago; today agent-2 has it."""
    folder = tmp_path_factory.mktemp("moment")
    clock = WallClock(folder / "shift")
    clock.set(-26 * HOUR_SECONDS)
    with serving(folder / "data", tokens=callers.TOKENS, wrapper=clock.wrapper) as process:
        alice = Api.of(process, callers.ALICE)
        lease = alice.acquired("nightly", ttl_seconds=86_400, owner="agent-1", labels={"team": "ops"})["lease_id"]
        clock.set(-22 * HOUR_SECONDS)
        Api.of(process, callers.OPERATOR).revoke("nightly", reason="it was silent")
        assert alice.status("nightly").json()["status"] == "free", lease
        clock.set(0)
        alice.acquired("nightly", ttl_seconds=3_600, owner="agent-2")
        yield process
        assert "Traceback" not in process.log, process.log


def test_the_slider_shows_who_had_it_yesterday(readers: Readers) -> None:
    """By keys: `t` takes the slider, a page is an hour. 24 hours back it was agent-1; `n` is now again, and agent-2."""
    page = readers.open(callers.OPERATOR)
    wait_for_list(page)
    expect(page.locator(".col-owner bdi")).to_have_text("agent-2")
    slider, words = page.locator("#moment"), page.locator("#moment-words")
    expect(slider).to_be_enabled()
    page.keyboard.press("t")
    expect(slider).to_be_focused()
    # Who rests between two keys is led to the moment that was reached, and goes on from there.
    for _ in range(KEYS_MAX):
        page.keyboard.press("PageDown")
        expect(slider).to_be_focused()
        if "d ago" in words.inner_text():
            break
    expect(page).to_have_url(re.compile(r"[?&]at="))
    _is_yesterday(page)
    page.keyboard.press("n")
    expect(page.locator(".col-owner bdi")).to_have_text("agent-2")
    expect(is_live(page)).to_be_visible()


def test_the_slider_is_drawn_to_yesterday(readers: Readers) -> None:
    """By the pointer: the handle is drawn to the left, the words beside it say which moment, and it is shown."""
    page = readers.open(callers.OPERATOR)
    wait_for_list(page)
    slider = page.locator("#moment")
    expect(slider).to_be_enabled()
    box = slider.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] - 8, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 9, middle, steps=8)
    expect(page.locator("#moment-words")).to_contain_text("d ago")
    page.mouse.up()
    _is_yesterday(page)


def test_a_moment_is_typed(readers: Readers) -> None:
    """`24h ago` in the field leads there, and its address too; what is no moment is said at the field."""
    page = readers.open(callers.OPERATOR)
    field = page.get_by_label("Moment")
    field.fill("nonsense")
    field.press("Enter")
    until(lambda: field.evaluate("each => each.validationMessage").startswith("Write 02:14"), "it is said")
    field.fill("24h ago")
    field.press("Enter")
    _is_yesterday(page)
    again = page.url
    other = readers.open(callers.READER, again)
    _is_yesterday(other)


def test_slider_marks_bad_ends(readers: Readers) -> None:
    """Where something ended badly there is a mark on the slider, and `[` leads to the moment before it."""
    page = readers.open(callers.OPERATOR)
    expect(page.locator("#moment-marks rect.revoked")).to_have_count(1)
    page.keyboard.press("[")
    expect(page.locator(THEN)).to_contain_text("agent-1")


def test_ended_lease_is_not_shown_in_the_past(readers: Readers) -> None:
    """Between the two owners nobody had it, and the page says so."""
    page = readers.open(callers.OPERATOR)
    page.get_by_label("Moment").fill("12h ago")
    page.get_by_role("button", name="Look").click()
    expect(page.get_by_text("No job was held then")).to_be_visible()


def _is_yesterday(page: Page) -> None:
    """The page shows the moment, says that it is the past, is tinted, and offers nothing."""
    expect(page.locator(THEN)).to_have_count(1)
    expect(page.locator(THEN)).to_contain_text("agent-1")
    expect(page.locator(THEN)).not_to_contain_text("agent-2")
    expect(page.get_by_text("This is the past")).to_be_visible()
    expect(page.locator("#live")).to_have_attribute("data-state", "past")
    expect(page.locator(".actions")).to_have_count(0)
