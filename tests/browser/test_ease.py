"""What a tired operator must not stumble over: copying, searching, printing, a page that jumps, words that mislead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.hands import ROWS, is_live, job_path, moment_path, names, row, until
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
    button.click()
    expect(button).to_have_text("Copied")
    page.goto("/")
    page.get_by_role("searchbox").focus()
    page.keyboard.press("Control+V")
    expect(page.get_by_role("searchbox")).to_have_value(name)


def test_a_button_that_is_clicked_twice_offers_to_copy_again(readers: Readers) -> None:
    """After it has said that it copied, a button says what it does, however often it was clicked."""
    page = readers.open(callers.OPERATOR, job_path(unique("twice")), permissions=["clipboard-read", "clipboard-write"])
    button = page.locator(".job-title").get_by_role("button")
    for _ in range(2):
        button.click()
        expect(button).to_have_text("Copied")
    clicked_ms = page.evaluate("performance.now()")
    until(lambda: page.evaluate("performance.now()") > clicked_ms + 3_000, "it has said so for long enough")
    assert button.inner_text() == "Copy"
