"""Which rows are in the document: those in view and a few more, whatever becomes of the list and of the window."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.page_actions import ROWS, names, row, until, wait_for_list
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.chromium import Readers

ROWS_MAX = 60
MANY = 200


@pytest.fixture(scope="module")
def stem() -> str:
    """What the names of this file's jobs begin with."""
    return unique("rows")


@pytest.fixture
def jobs(alice: Api, stem: str) -> list[str]:
    """Many jobs, in the order of their names. Those that are held already stay so."""
    those = [f"{stem}/{number:03}" for number in range(MANY)]
    alice.claims(all=those, ttl_seconds=600, owner="agent-1")
    return those


def _search(page: Page, text: str) -> None:
    page.get_by_role("searchbox").fill(text)


def _drawn(page: Page) -> int:
    return page.locator(ROWS).count()


def test_a_list_that_grows_is_drawn_to_the_end_of_the_window(readers: Readers, jobs: list[str], stem: str) -> None:
    """After a search that found one job, all that a wider one finds is drawn as far as the window goes."""
    page = readers.open(callers.OPERATOR)
    wait_for_list(page)
    _search(page, jobs[7])
    until(lambda: names(page) == [jobs[7]], "one is found")
    _search(page, f"prefix:{stem}/")
    until(lambda: _last_ends_at(page) > page.evaluate("innerHeight"), "the window is filled")
    shown = names(page)
    assert len(shown) > 20
    assert shown == jobs[: len(shown)]


def _last_ends_at(page: Page) -> float:
    """How far down in the window the last row is drawn."""
    last: float = page.evaluate(f"[...document.querySelectorAll('{ROWS}')].at(-1)?.getBoundingClientRect().bottom ?? 0")
    return last


def test_a_window_higher_than_sixty_rows_scrolls_the_list(readers: Readers, jobs: list[str], stem: str) -> None:
    """In a very high window the list has sixty rows at most, and scrolls by itself to its last."""
    page = readers.open(callers.OPERATOR, f"/?q=prefix:{stem}/", viewport={"width": 1200, "height": 3_400})
    wait_for_list(page)
    expect(page.locator("#jobs-box.tall")).to_be_visible()
    page.locator("#jobs-box").evaluate("box => box.scrollTo(0, box.scrollHeight)")
    until(lambda: jobs[-1] in names(page), "the last is drawn")
    assert _drawn(page) <= ROWS_MAX
    expect(row(page, jobs[-1])).to_be_in_viewport()


def test_the_focus_stays_with_its_job(readers: Readers, alice: Api, jobs: list[str], stem: str) -> None:
    """A row that has the focus keeps it when another one comes before it."""
    page = readers.open(callers.OPERATOR, f"/?q=prefix:{stem}/")
    wait_for_list(page)
    link = row(page, jobs[3]).locator("a.job")
    link.focus()
    early = f"{stem}/-early"
    lease = alice.acquired(early, ttl_seconds=300)["lease_id"]
    expect(row(page, early)).to_be_visible()
    expect(link).to_be_focused()
    alice.release(early, lease)
    expect(row(page, early)).to_have_count(0)
    expect(link).to_be_focused()


def test_the_first_key_goes_to_the_first_row_in_view(readers: Readers, jobs: list[str], stem: str) -> None:
    """Somebody who scrolled far down and presses `j` stays there."""
    page = readers.open(callers.OPERATOR, f"/?q=prefix:{stem}/")
    wait_for_list(page)
    page.evaluate("scrollTo(0, 3000)")
    until(lambda: jobs[0] not in names(page), "it has scrolled")
    page.keyboard.press("j")
    chosen = page.locator(f'{ROWS}[aria-selected="true"]')
    expect(chosen).to_be_in_viewport()
    assert page.evaluate("scrollY") > 2_000


def test_all_is_printed_that_fits_on_some_pages(readers: Readers, jobs: list[str], stem: str) -> None:
    """On paper there is nothing to scroll: all rows are there, and afterwards again those in view."""
    page = readers.open(callers.OPERATOR, f"/?q=prefix:{stem}/")
    wait_for_list(page)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert names(page) == jobs
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    until(lambda: _drawn(page) <= ROWS_MAX, "those in view")
