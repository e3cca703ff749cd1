"""One stream for the tabs of a browser, with or without a shared worker; and never one for two of different rights."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.page_actions import is_live, names, row, until, wait_for_list
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.chromium import Readers
from tests.support.server import ServerProcess

NO_WORKER = "delete globalThis.SharedWorker;"
NO_LOCKS = "Object.defineProperty(Navigator.prototype, 'locks', {value: undefined});"


def _streams(server: ServerProcess) -> int:
    """How many pages listen."""
    text = Api.of(server, callers.READER).get("/metrics").text
    found = re.search(r'^holdfast_streams_open\{kind="pages"\} (\d+)', text, re.MULTILINE)
    assert found is not None, text
    return int(found[1])


def test_tabs_without_a_shared_worker_share_a_stream_too(readers: Readers, server: ServerProcess, alice: Api) -> None:
    """Where there is no shared worker, one tab reads and tells the others; when it closes, another takes its place."""
    context = readers.new(callers.READER)
    context.add_init_script(NO_WORKER)
    tabs = [context.new_page() for _ in range(3)]
    for tab in tabs:
        tab.goto("/")
        wait_for_list(tab)
    until(lambda: _streams(server) == 1, "one stream")
    name, other = unique("told"), unique("told")
    alice.acquired(name, ttl_seconds=300)
    for tab in tabs:
        expect(row(tab, name)).to_be_visible()
    tabs.pop(0).close()
    alice.acquired(other, ttl_seconds=300)
    for tab in tabs:
        expect(row(tab, other)).to_be_visible()
        expect(is_live(tab)).to_be_visible()
    until(lambda: _streams(server) == 1, "one stream again")
    context.close()
    until(lambda: _streams(server) == 0, "and none when they are closed")


def test_without_worker_and_locks_each_tab_has_its_own(readers: Readers, server: ServerProcess, alice: Api) -> None:
    """Where a browser can share nothing, every tab is live all the same."""
    context = readers.new(callers.READER)
    context.add_init_script(NO_WORKER + NO_LOCKS)
    tabs = [context.new_page() for _ in range(2)]
    for tab in tabs:
        tab.goto("/")
        wait_for_list(tab)
    # A tab whose stream was cut, as on a machine that stood still, opens another by itself.
    until(lambda: _streams(server) == 2, "one stream for each")
    name = unique("own")
    alice.acquired(name, ttl_seconds=300)
    for tab in tabs:
        expect(row(tab, name)).to_be_visible()


def test_next_user_gets_a_separate_stream(readers: Readers, alice: Api, server: ServerProcess) -> None:
    """A tab of somebody who may see less hears nothing of what the first one's stream tells, in the same browser."""
    prefix = unique("mine") + "/"
    operator = Api.of(server, callers.OPERATOR)
    made = operator.post("/tokens", {"name": unique("confined"), "scopes": ["read"], "prefix": prefix}).json()
    context = readers.new(callers.OPERATOR)
    first = context.new_page()
    first.goto("/")
    wait_for_list(first)
    readers.sign_in(context, made["token"])
    second = context.new_page()
    second.goto("/")
    wait_for_list(second)
    secret, own = unique("secret"), f"{prefix}job"
    alice.acquired(secret, ttl_seconds=300)
    alice.acquired(own, ttl_seconds=300)
    expect(row(second, own)).to_be_visible()
    assert names(second) == [own]
    until(lambda: _streams(server) >= 2, "one stream for each")


def test_a_tab_that_comes_later_has_all(readers: Readers, alice: Api) -> None:
    """A tab that is opened while others listen loads all rows, and is told what comes as they are."""
    context = readers.new(callers.READER)
    first = context.new_page()
    first.goto("/")
    wait_for_list(first)
    before, after = unique("before"), unique("after")
    alice.acquired(before, ttl_seconds=300)
    expect(row(first, before)).to_be_visible()
    second = context.new_page()
    second.goto("/")
    wait_for_list(second)
    expect(row(second, before)).to_be_visible()
    alice.acquired(after, ttl_seconds=300)
    for tab in (first, second):
        expect(row(tab, after)).to_be_visible()
