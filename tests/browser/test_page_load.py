"""What a reader does before the rows have come, or while a page is made anew, is not lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, Route, expect

from tests.browser.page_actions import (
    is_live,
    job_path,
    names,
    until,
    wait_for_frames,
    wait_for_list,
)
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.chromium import Readers
from tests.support.pending import waiting

# No stream is shared, so that a test can hold it up; and every row that a page was told or has loaded is noted.
_ALONE = """
    delete globalThis.SharedWorker;
    Object.defineProperty(Navigator.prototype, "locks", { value: undefined });
    window.heard = [];
    const parse = JSON.parse;
    JSON.parse = (...given) => {
        const made = parse(...given);
        for (const each of made?.rows ?? []) window.heard.push(each.name);
        return made;
    };
"""


class Held:
    """Requests of a page that get no answer until the test says so."""

    def __init__(self, page: Page, address: str) -> None:
        self._page, self._address = page, address
        self._routes: list[Route] = []
        self._is_open = False
        page.route(address, self._asked)

    def wait(self) -> None:
        """Until one was sent."""
        until(lambda: self._page.title() != "" and self._routes != [], f"{self._address} was asked for")

    def let_go(self) -> None:
        """Let all be answered, those to come too."""
        self._is_open = True
        for route in self._routes:
            route.continue_()

    def _asked(self, route: Route) -> None:
        if self._is_open:
            route.continue_()
        else:
            self._routes.append(route)


def _alone(readers: Readers) -> Page:
    context = readers.new(callers.OPERATOR)
    context.add_init_script(_ALONE)
    return context.new_page()


def _wait_for_row(page: Page, name: str) -> None:
    """Until the page knows of a job, and has drawn what it wants to."""
    until(lambda: name in page.evaluate("window.heard"), f"{name} was told")
    wait_for_frames(page)


def _claimed(alice: Api, stem: str) -> list[str]:
    those = [f"{stem}/{letter}" for letter in "abc"]
    for name in those:
        alice.acquired(name, ttl_seconds=300, owner="agent-1")
    return those


@contextmanager
def _before_the_rows(readers: Readers, stem: str) -> Iterator[tuple[Page, Held]]:
    """A list that is live and whose rows have not come."""
    page = _alone(readers)
    rows = Held(page, "**/ui/rows*")
    page.goto(f"/?q=prefix:{stem}/")
    expect(is_live(page)).to_be_visible()
    rows.wait()
    yield page, rows


def test_keys_that_come_early_are_done_when_the_rows_are_there(readers: Readers, alice: Api) -> None:
    """`j`, `j` and `w` before the rows have come lead to the second of them."""
    stem = unique("early")
    those = _claimed(alice, stem)
    with _before_the_rows(readers, stem) as (page, rows):
        for key in "jjw":
            page.keyboard.press(key)
        rows.let_go()
        page.wait_for_url(f"**{job_path(those[1])}#why")


def test_a_list_whose_rows_have_not_come_is_not_empty(readers: Readers, alice: Api) -> None:
    """Rows that are told before the first load are not shown alone, and the list does not say that it is empty."""
    stem = unique("stay")
    _claimed(alice, stem)
    with _before_the_rows(readers, stem) as (page, rows):
        alice.acquired(f"{stem}/d", ttl_seconds=300)
        _wait_for_row(page, f"{stem}/d")
        assert names(page) == []
        page.get_by_role("searchbox").fill(f"{stem}/b")
        wait_for_frames(page)
        for id_ in ("#jobs-box", "#jobs-empty", "#jobs-no-match"):
            expect(page.locator(id_)).to_be_hidden()
        expect(page.locator("#jobs-box")).to_have_attribute("aria-busy", "true")
        rows.let_go()
        wait_for_list(page)
        assert names(page) == [f"{stem}/b"]


def test_job_that_changes_before_its_page_subscribes(readers: Readers, alice: Api) -> None:
    """What happened between the making of a page and the beginning of its stream is shown."""
    name = unique("gap")
    lease = alice.acquired(name, ttl_seconds=300, owner="agent-1")["lease_id"]
    page = _alone(readers)
    stream = Held(page, "**/ui/live")
    page.goto(job_path(name))
    stream.wait()
    alice.release(name, lease)
    alice.acquired(name, ttl_seconds=300, owner="agent-2")
    expect(page.locator("#owner")).to_contain_text("agent-1")
    stream.let_go()
    expect(page.locator("#owner")).to_contain_text("agent-2")


def test_wait_that_begins_before_its_view_subscribes(readers: Readers, alice: Api) -> None:
    """The same in the room of those who wait; and for a tab that is let in to the stream of another."""
    name = unique("gap")
    alice.acquired(name, ttl_seconds=300, owner="agent-1")
    context = readers.new(callers.OPERATOR)
    first = context.new_page()
    first.goto("/")
    wait_for_list(first)
    page = context.new_page()
    scripts = Held(page, "**/views.js")
    page.goto("/ui/waits", wait_until="commit")
    expect(page.locator("#cycles")).to_be_visible()
    with waiting(alice, name, owner="ben"):
        scripts.let_go()
        expect(page.locator("#graph")).to_contain_text("ben")


def test_form_opened_during_refresh_stays_open(readers: Readers, alice: Api) -> None:
    """What is pressed when the news come is clicked all the same; they are shown afterwards."""
    name = unique("pressed")
    alice.acquired(name, ttl_seconds=300, owner="agent-1")
    page = readers.open(callers.OPERATOR, job_path(name))
    expect(is_live(page)).to_be_visible()
    page.get_by_text("End this lease").hover()
    page.mouse.down()
    with page.expect_response(f"**{job_path(name)}") as anew, waiting(alice, name, owner="cleo"):
        anew.value.finished()
        wait_for_frames(page)
        page.mouse.up()
        expect(page.locator("#revoke").get_by_label("Reason: the holder reads it")).to_be_visible()
        expect(page.locator("#queue tbody tr")).to_contain_text("cleo")
