"""What a tired operator must not stumble over: copying, searching, printing, a page that jumps, words that mislead."""

from __future__ import annotations

import re
from urllib.parse import quote

from playwright.sync_api import Browser, Page, expect

from tests.browser.page_actions import is_live, job_path, names, row, until, wait_for_list
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.chromium import PHONE, Readers
from tests.support.pending import waiting
from tests.support.server import ServerProcess

PRINTED_MAX = 1_000
RIGHT_TO_LEFT = "/".join(["\u05e9\u05dc\u05d5\u05dd\u05e2\u05d5\u05dc\u05dd"] * 8)
NO_CLIPBOARD = "Object.defineProperty(navigator, 'clipboard', { value: undefined })"
"""As over plain http to another machine."""


_PRINTED = """
() => {
  dispatchEvent(new Event("beforeprint"));
  const box = document.querySelector("#jobs-box");
  const seen = [
    box.querySelectorAll("tbody tr:not(.spacer)").length,
    `${getComputedStyle(box, "::after").content} ${box.dataset.unprinted}`,
    [...box.querySelectorAll(".spacer")].map((each) => each.offsetHeight),
  ];
  dispatchEvent(new Event("afterprint"));
  return seen;
}
"""


_NOTE_STATES = """
window.states = [];
let began = 0;
new MutationObserver(() => {
  const state = document.documentElement.dataset.live;
  began ||= performance.now();
  if (state === undefined || window.states.at(-1)?.[1] === state) return;
  window.states.push([performance.now() - began, state]);
}).observe(document, { subtree: true, attributes: true, attributeFilter: ["data-live", "class"] });
"""
"""What the page says of its stream, and how long after its first script ran."""


_NOTE_WORDS = """
(button) => {
  window.words = [];
  new MutationObserver(() => window.words.push(button.textContent)).observe(button, { childList: true });
}
"""
"""What a button says. It says that it copied for a moment only, and a machine may be busy."""


def _words(page: Page) -> list[str]:
    words: list[str] = page.evaluate("window.words")
    return words


def test_a_name_is_copied_where_scripts_have_no_clipboard(readers: Readers, alice: Api) -> None:
    """Over plain http the copy buttons copy too: of a name, of a fencing token, of a command."""
    name = unique("copied")
    alice.acquired(name, ttl_seconds=60)
    context = readers.new(callers.OPERATOR)
    context.add_init_script(NO_CLIPBOARD)
    page = context.new_page()
    page.goto(job_path(name))
    expect(is_live(page)).to_be_visible()
    button = page.locator(".job-title").get_by_role("button")
    button.evaluate(_NOTE_WORDS)
    button.click()
    until(lambda: _words(page) == ["Copied"], "it says so")
    page.goto("/")
    page.get_by_role("searchbox").focus()
    page.keyboard.press("Control+V")
    expect(page.get_by_role("searchbox")).to_have_value(name)


def test_copy_button_works_twice(readers: Readers) -> None:
    """After it has said that it copied, a button says what it does, however often it was clicked."""
    page = readers.open(callers.OPERATOR, job_path(unique("twice")), permissions=["clipboard-read", "clipboard-write"])
    button = page.locator(".job-title").get_by_role("button")
    button.evaluate(_NOTE_WORDS)
    for times in (1, 2):
        button.click()
        until(lambda: _words(page).count("Copied") == times, "it says so")  # noqa: B023 - asked at once
    clicked_ms = page.evaluate("performance.now()")
    until(lambda: page.evaluate("performance.now()") > clicked_ms + 3_000, "it has said so for long enough")
    assert button.inner_text() == "Copy"


def test_a_label_leads_to_those_that_have_it(readers: Readers, alice: Api) -> None:
    """A click on a label of a job finds this job, also where the value has blanks in it."""
    name = unique("labelled")
    alice.acquired(name, ttl_seconds=60, labels={"team": f"{name} front"})
    page = readers.open(callers.OPERATOR, job_path(name))
    page.locator("a.label").click()
    expect(row(page, name)).to_be_visible()


def test_search_links_to_free_job(readers: Readers, alice: Api) -> None:
    """A name that nobody holds is not in the list, and a link leads from there to who had it last."""
    name = unique("Just-Released")
    alice.release(name, alice.acquired(name, ttl_seconds=60, owner="agent-7")["lease_id"])
    page = readers.open(callers.OPERATOR, f"/?q={name}")
    wait_for_list(page)
    page.get_by_role("searchbox").fill("two words")
    expect(page.locator("#jobs-named")).to_be_hidden()
    page.get_by_role("searchbox").fill(name)
    page.locator("#jobs-named").get_by_role("link").click()
    expect(page.locator("#owner")).to_contain_text("agent-7")


def test_resting_pointer_does_not_freeze_the_list(readers: Readers, alice: Api) -> None:
    """A pointer that lies still on the list for ten seconds holds no order any more: new rows come."""
    stem = unique("wall")
    alice.acquired(f"{stem}/b", ttl_seconds=60)
    page = readers.open(callers.OPERATOR, f"/?q=prefix:{stem}/")
    expect(is_live(page)).to_be_visible()
    row(page, f"{stem}/b").hover()
    alice.acquired(f"{stem}/a", ttl_seconds=60)
    until(lambda: names(page) == [f"{stem}/a", f"{stem}/b"], "the new row is there")


def test_more_jobs_than_are_printed_are_counted_on_paper(readers: Readers, alice: Api) -> None:
    """On paper the first thousand rows are followed by how many more there are, and by no empty sheets."""
    stem = unique("paper")
    for part in range(0, PRINTED_MAX + 200, 400):
        alice.claims(all=[f"{stem}/{number:04}" for number in range(part, part + 400)], ttl_seconds=600)
    page = readers.open(callers.OPERATOR, f"/?q=prefix:{stem}/")
    until(lambda: page.locator("#jobs-said").inner_text().startswith("1,200 of"), "all are there")
    page.emulate_media(media="print")
    rows, said, spare = page.evaluate(_PRINTED)
    assert (rows, spare) == (PRINTED_MAX, [0, 0])
    assert "more jobs, which are not printed" in said and "200" in said, said


def test_order_persists_after_viewing_the_past(readers: Readers, alice: Api) -> None:
    """Who sorted the list, looked back and comes back to now finds it sorted as before."""
    claimed_at = alice.acquired(unique("sorted"), ttl_seconds=60)["claimed_at"]
    page = readers.open(callers.OPERATOR, "/?sort=-held")
    expect(page.locator("#moment")).to_be_enabled()
    page.get_by_label("Moment").fill(claimed_at)  # The history may be no older.
    page.get_by_role("button", name="Look").click()
    expect(page.locator("#moment-now")).to_be_visible()
    expect(page.locator("#moment")).to_be_enabled()  # By the script that listens for the key.
    page.keyboard.press("n")
    expect(is_live(page)).to_be_visible()
    expect(page.locator("th.col-held")).to_have_attribute("aria-sort", "descending")
    page.goto(f"/?at={quote(claimed_at)}&sort=-held")
    page.locator("#moment-now").click()
    expect(page.locator("th.col-held")).to_have_attribute("aria-sort", "descending")


def test_a_name_from_right_to_left_is_one_piece_everywhere(readers: Readers, alice: Api) -> None:
    """A long name of Hebrew or Arabic letters stands in its own order on every page."""
    name = unique(RIGHT_TO_LEFT)
    alice.acquired(name, ttl_seconds=60)
    page = readers.open(callers.OPERATOR, job_path(name))
    expect(page.locator("#why .name-head")).to_have_text(name)
    expect(page.locator("#why .name-tail")).to_have_text("")


def test_waits_are_read_out_in_order(readers: Readers, alice: Api) -> None:
    """In the table of who waits for whom, the waiter comes first, then the name, then its holder."""
    name = unique("wanted")
    alice.acquired(name, ttl_seconds=60, owner="ana")
    with waiting(alice, name, owner="ben"):
        page = readers.open(callers.OPERATOR, "/ui/waits")
        row = page.locator("#graph tbody tr", has_text=name)
        expect(row).to_have_text(re.compile(rf"^\s*ben\s*{re.escape(name)}\s*ana\s*$"))


def test_the_actions_are_one_step_from_the_top(readers: Readers, alice: Api) -> None:
    """However long a story is, its page leads from its head to what can be done."""
    name = unique("stuck")
    alice.acquired(name, ttl_seconds=60)
    page = readers.open(callers.OPERATOR, job_path(name))
    page.get_by_role("navigation", name="On this page").get_by_role("link", name="Actions").click()
    expect(page.get_by_text("End this lease")).to_be_in_viewport()


def test_a_page_that_is_opened_does_not_say_that_it_reconnects(readers: Readers) -> None:
    """A page that was just loaded is true: no word says otherwise while its stream is being opened, as it soon is."""
    context = readers.new(callers.OPERATOR)
    context.add_init_script(_NOTE_STATES)
    page = context.new_page()
    for path in ("/", "/ui/waits"):
        page.goto(path)
        expect(is_live(page)).to_be_visible()
        states = page.evaluate("window.states")
        assert [each for each in states if each[1] == "reconnecting" and each[0] < 500] == [], states
        page.close()
        page = context.new_page()


def test_phone_layout_is_stable_when_the_server_goes_away(browser: Browser, mortal: ServerProcess) -> None:
    """The word that the page is not live has room in the head: nothing below it moves, on the narrowest screen too."""
    readers = Readers(browser, mortal)
    readers.expect_trouble("ERR_")
    for path, viewport in (("/", PHONE), ("/", {"width": 320, "height": 640})):
        page: Page = readers.open(callers.OPERATOR, path, viewport=viewport, is_mobile=True, has_touch=True)
        expect(is_live(page)).to_be_visible()
    before = [_head_height(page) for context in browser.contexts for page in context.pages]
    mortal.kill()
    for context in browser.contexts:
        for page in context.pages:
            expect(page.locator("#live")).to_have_text(re.compile("^server away since"))
            assert page.locator("#live").is_visible()
    assert [_head_height(page) for context in browser.contexts for page in context.pages] == before
    assert readers.close() == []


def _head_height(page: Page) -> float:
    height: float = page.locator("header.top").evaluate("each => each.getBoundingClientRect().height")
    return height
