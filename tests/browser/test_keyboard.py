"""The whole page by keyboard alone: no pointer is needed for anything, and what has the focus is always to be seen."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.page_actions import is_live, names, row, until, wait_for_list, wait_for_scripts
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.chromium import Readers

# What is drawn around the focus, or how the thing itself looks otherwise than without it.
_FOCUS = """
() => {
  const each = document.activeElement;
  if (each === null || each === document.body) return null;
  const style = getComputedStyle(each);
  const box = each.getBoundingClientRect();
  return {
    what: `${each.tagName}#${each.id}.${each.className} ${each.textContent.trim().slice(0, 30)}`,
    isSeen: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1 && box.width > 1 && box.height > 1,
  };
}
"""


def test_an_operator_needs_no_mouse(readers: Readers, alice: Api) -> None:
    """Sign in, search, go down and up, open, write a reason, end the lease: with keys and nothing else."""
    stem = unique("keys")
    for letter in "abc":
        alice.acquired(f"{stem}/{letter}", ttl_seconds=300, owner=f"agent-{letter}")
    page = readers.open(None)
    keys = page.keyboard
    expect(page.get_by_label("Access token")).to_be_focused()
    keys.type(callers.OPERATOR)
    keys.press("Enter")
    wait_for_list(page)
    keys.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    keys.type(f"prefix:{stem}/")
    until(lambda: len(names(page)) == 3, "the search has found them")
    keys.press("Enter")
    expect(row(page, f"{stem}/a").locator("a.job")).to_be_focused()
    keys.press("j")
    keys.press("j")
    expect(row(page, f"{stem}/c")).to_have_attribute("aria-selected", "true")
    keys.press("k")
    expect(row(page, f"{stem}/b").locator("a.job")).to_be_focused()
    keys.press("r")
    expect(page.locator("#revoke").get_by_label("Reason: the holder reads it")).to_be_focused()
    keys.type("it hangs")
    keys.press("Tab")
    expect(page.get_by_role("button", name="End the lease")).to_be_focused()
    keys.press("Enter")
    expect(page.get_by_role("status").filter(has_text="The lease was ended")).to_be_visible()
    assert alice.status(f"{stem}/b").json()["status"] == "free"
    wait_for_scripts(page)
    keys.press("g")
    expect(page.locator("table.jobs")).to_be_visible()


def test_keys_open_why_and_history(page: Page, alice: Api) -> None:
    """`w` and `h` lead from a row to those parts of the job's page, Enter to its top."""
    name = unique("walk")
    alice.acquired(name, ttl_seconds=300)
    page.get_by_role("searchbox").fill(name)
    until(lambda: names(page) == [name], "it is found")
    for key, end in (("w", "#why"), ("h", "#history"), ("Enter", "")):
        page.keyboard.press("Escape")
        page.keyboard.press("j")
        page.keyboard.press(key)
        page.wait_for_url(f"**/ui/jobs/{name}{end}")
        page.go_back()
        wait_for_list(page)
        assert names(page) == [name], "back at the list"


def test_the_list_of_keys_is_one_key_away(page: Page) -> None:
    """`?` shows every key of the room, Escape closes it, and the focus is where it was."""
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    shown = dialog.locator("kbd").all_inner_texts()
    assert {"/", "j", "k", "Enter", "w", "h", "r", "t", "?"} <= set(shown)
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_letters_that_are_typed_are_letters(page: Page, alice: Api) -> None:
    """In a field no letter is a key: nothing is opened by a search for `jwhr?`."""
    alice.acquired(unique("typed"), ttl_seconds=300)
    page.keyboard.press("/")
    page.keyboard.type("jwhr?t")
    expect(page.get_by_role("searchbox")).to_have_value("jwhr?t")
    expect(page.get_by_role("dialog")).to_be_hidden()


LIVE = {"/", "/ui/waits", "/ui/sessions", "job"}
"""Rooms with a stream: what is in them may be made anew when it begins."""


@pytest.mark.parametrize(
    "path", ["/", "/ui/sign-in", "/ui/waits", "/ui/sessions", "/ui/metrics", "/ui/nodes", "/ui/tokens", "job"]
)
def test_the_focus_is_seen_wherever_it_is(readers: Readers, alice: Api, path: str) -> None:
    """Tab goes through each room, and around each stop something is drawn."""
    name = unique("focus")
    alice.acquired(name, ttl_seconds=300, owner="agent-1", metadata="url=https://git.example/1")
    page = readers.open(
        None if path == "/ui/sign-in" else callers.OPERATOR, f"/ui/jobs/{name}" if path == "job" else path
    )
    if path in LIVE:
        expect(is_live(page)).to_be_visible()
    if path == "/":
        wait_for_list(page)
    unseen, stops = [], 0
    for _ in range(40):
        page.keyboard.press("Tab")
        found = page.evaluate(_FOCUS)
        if found is None:
            break
        stops += 1
        if not found["isSeen"]:
            unseen.append(found["what"])
    assert unseen == []
    assert stops >= (2 if path == "/ui/sign-in" else 8)


def test_the_first_stop_leads_past_the_head(page: Page) -> None:
    """Who goes through a page by Tab can skip the head of it with the first stop."""
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="To the content")).to_be_focused()
    expect(page.get_by_role("link", name="To the content")).to_be_in_viewport()
