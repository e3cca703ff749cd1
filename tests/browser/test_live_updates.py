"""Whether an owner is alive: every page that says so goes on saying what is true, without a reload."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.browser.page_actions import is_live, job_path, mark, marked, until
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.chromium import Readers
from tests.support.pending import waiting
from tests.support.server import ServerProcess, serving

TTL = 12
_NOTE_SIGNS = """
() => {
  window.signs = {};
  const note = () => {
    for (const part of ["sign", "why"]) {
      const text = document.querySelector(`#${part} [data-live="sign"]`)?.textContent;
      const noted = (window.signs[part] ??= []);
      if (text !== undefined && noted.at(-1) !== text) noted.push(text);
    }
  };
  note();
  new MutationObserver(note).observe(document.getElementById("job"), { subtree: true, childList: true });
}
"""


def _left(page: Page, part: str = "#owner") -> str:
    return page.locator(f'{part} [data-live="left"]').first.inner_text()


def _heartbeat(part: Locator) -> str:
    """When the last heartbeat was that a part of the page shows."""
    return part.locator('[data-live="beat"]').first.get_attribute("datetime") or ""


def _seconds_left(page: Page, part: str) -> int:
    return int(_left(page, part)[-2:])


def _pass(page: Page, text: str) -> None:
    """Let it get less."""
    until(lambda: _left(page) != text, "time passes")


def test_a_silent_owner_is_late_and_then_ending_on_its_page(readers: Readers, alice: Api) -> None:
    """Whoever looks at one job sees its owner become late, and then ending, in its head and in the chain alike."""
    name = unique("silent")
    lease = alice.acquired(name, ttl_seconds=60, owner="agent-1")["lease_id"]
    page = readers.open(callers.OPERATOR, job_path(name))
    expect(is_live(page)).to_be_visible()
    page.evaluate(_NOTE_SIGNS)
    mark(page)
    alice.renew(name, lease, ttl_seconds=TTL)
    expect(page.locator("#sign")).to_contain_text("Nobody holds it")
    assert marked(page) == "same"
    assert page.evaluate("window.signs") == {"sign": ["alive", "late", "ending"], "why": ["alive", "late", "ending"]}


def test_wait_chain_shows_heartbeats(readers: Readers, alice: Api, server: ServerProcess) -> None:
    """In the chain of waits every owner's last heartbeat and time left are those of now, also of other jobs."""
    first, second = unique("first"), unique("second")
    bob = Api.of(server, callers.BOB)
    lease = alice.acquired(first, ttl_seconds=600, owner="ana")["lease_id"]
    other = bob.acquired(second, ttl_seconds=50, owner="ben")["lease_id"]
    with waiting(alice, second, owner="ana"):
        page = readers.open(callers.OPERATOR, job_path(first))
        expect(is_live(page)).to_be_visible()
        boxes = page.locator("#why .box")
        expect(boxes).to_have_count(2)
        before = [_heartbeat(boxes.first), _heartbeat(boxes.last)]
        alice.renew(first, lease, ttl_seconds=300)
        bob.renew(second, other, ttl_seconds=100)
        for box, left in ((boxes.first, r"4:\d\d left"), (boxes.last, r"1:\d\d left")):
            expect(box).to_contain_text(re.compile(left))
        after = [_heartbeat(boxes.first), _heartbeat(boxes.last)]
        assert all(late > early for early, late in zip(before, after, strict=True)), (before, after)


def test_the_chain_gets_its_links_as_they_come(readers: Readers, alice: Api, server: ServerProcess) -> None:
    """Where the owner of a job begins to wait for another, the page of the job says so by itself."""
    first, second = unique("first"), unique("second")
    alice.acquired(first, ttl_seconds=60, owner="ana")
    Api.of(server, callers.BOB).acquired(second, ttl_seconds=60, owner="ben")
    page = readers.open(callers.OPERATOR, job_path(first))
    expect(is_live(page)).to_be_visible()
    expect(page.locator("#why .box")).to_have_count(1)
    with waiting(alice, second, owner="ana"):
        expect(page.locator("#why .box")).to_have_count(2)
        expect(page.locator("#why .box").last).to_contain_text("ben")


def test_a_job_that_lives_by_its_session_goes_on_with_it(readers: Readers, alice: Api) -> None:
    """The time left of a job that ends with its session is moved by the session's keepalives, on its own page too."""
    name = unique("bound")
    session = alice.new_session(ttl_seconds=30)["session_id"]
    alice.acquired(name, ttl_seconds=600, owner="agent-1", session_id=session, ephemeral=True)
    page = readers.open(callers.OPERATOR, job_path(name))
    expect(is_live(page)).to_be_visible()
    until(lambda: _seconds_left(page, "#owner") <= 27, "some seconds pass")
    before = _heartbeat(page.locator("#why .box"))
    alice.keepalive(session)
    kept_alive_at = time.monotonic()
    until(lambda: _seconds_left(page, "#owner") >= 28.5 - (time.monotonic() - kept_alive_at), "the keepalive is told")
    assert _heartbeat(page.locator("#why .box")) > before


def test_sessions_count_down_and_show_keepalives(readers: Readers, alice: Api) -> None:
    """A session's time left, and that of what it holds, goes by, and begins anew with a keepalive."""
    name = unique("of-a-session")
    session = alice.new_session(ttl_seconds=40)["session_id"]
    alice.acquired(name, ttl_seconds=30, owner="agent-1", session_id=session, ephemeral=True)
    page = readers.open(callers.ALICE, f"/ui/sessions/{session}")
    mark(page)
    until(lambda: _seconds_left(page, "#run") <= 37, "the session's time goes by")
    until(lambda: _seconds_left(page, "#holds") <= 27, "its job's time goes by")
    alice.keepalive(session)
    kept_alive_at = time.monotonic()
    until(lambda: _seconds_left(page, "#run") >= 38.5 - (time.monotonic() - kept_alive_at), "the keepalive is told")
    expect(page.locator("#holds .sign")).to_have_text("alive")
    assert marked(page) == "same"


def test_list_shows_sessions_that_begin_and_end(readers: Readers, alice: Api) -> None:
    """A session that holds nothing appears in the list of sessions, and leaves it; the head of the page counts it."""
    page = readers.open(callers.OPERATOR, "/ui/sessions?token=alice")
    expect(is_live(page)).to_be_visible()
    count = page.locator("#count-sessions")
    before = int(count.inner_text())
    name = unique("a run")
    # Many of them: those of other tests end meanwhile.
    sessions = [alice.new_session(name=name, ttl_seconds=60)["session_id"] for _ in range(10)]
    until(lambda: int(count.inner_text()) > before, "they are counted")
    expect(page.locator("#runs")).to_contain_text(name)
    for session in sessions:
        alice.end_session(session)
    until(lambda: int(count.inner_text()) <= before, "they are not counted any more")
    expect(page.locator("#runs")).not_to_contain_text(name)


def test_every_view_shows_counts(readers: Readers, alice: Api) -> None:
    """The numbers in the head of a page are those of now in every room with a stream."""
    page = readers.open(callers.OPERATOR, job_path(unique("nobody")))
    expect(is_live(page)).to_be_visible()
    before = int(page.locator("#count-jobs").inner_text())
    # Many of them: those of other tests end meanwhile.
    alice.claims(all=[unique("counted") for _ in range(50)], ttl_seconds=60)
    until(lambda: int(page.locator("#count-jobs").inner_text()) > before, "they are counted")


def test_nodes_are_polled_while_page_is_visible(readers: Readers) -> None:
    """The room of nodes says who leads by itself, when that is another: no reload is needed."""
    page = readers.open(callers.OPERATOR, "/ui/nodes")
    expect(is_live(page)).to_be_visible()
    mark(page)

    def another(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(
            response=answer, body=re.sub("<b><bdi>[^<]*</bdi></b> leads", "<b>node-7</b> leads", answer.text())
        )

    page.route("**/ui/nodes", another)
    expect(page.locator("#leader")).to_contain_text("node-7 leads")
    assert marked(page) == "same"
    page.unroute_all(behavior="wait")


def test_timers_freeze_while_the_server_is_away(browser: Browser, mortal: ServerProcess) -> None:
    """Nobody knows how a job goes on whose server says nothing: its page keeps what it showed, greyed, and says so."""
    readers = Readers(browser, mortal)
    readers.expect_trouble("ERR_")
    Api.of(mortal, callers.ALICE).acquired("one", ttl_seconds=600, owner="agent-1")
    page = readers.open(callers.OPERATOR, "/ui/jobs/one")
    expect(is_live(page)).to_be_visible()
    _pass(page, _left(page))
    mortal.kill()
    expect(page.locator("#live")).to_have_attribute("data-state", "reconnecting")
    assert "grayscale" in page.locator("main").evaluate("each => getComputedStyle(each).filter")
    left, heartbeat = _left(page), page.locator('#owner [data-live="beat"]').inner_text()
    expect(page.locator("#live")).to_have_text(re.compile("^server away since"))
    assert (_left(page), page.locator('#owner [data-live="beat"]').inner_text()) == (left, heartbeat)
    assert readers.close() == []


def test_a_page_that_is_refused_the_stream_says_that_it_is_not_live(browser: Browser, tmp_path: Path) -> None:
    """Where too many browsers look with one access token, the last one is told why, and its page is greyed."""
    settings = {"watches_per_principal_max": 1}
    with serving(tmp_path / "data", tokens=callers.TOKENS, settings=settings) as server:
        readers = Readers(browser, server)
        readers.expect_trouble("status of 429")
        Api.of(server, callers.ALICE).acquired("one", ttl_seconds=600)
        expect(is_live(readers.open(callers.OPERATOR))).to_be_visible()
        for path in ("/", "/ui/jobs/one"):
            page = readers.open(callers.OPERATOR, path)
            expect(page.locator("#live")).to_have_text(re.compile(r"^not live since \d\d:\d\d:\d\d$"))
            expect(page.locator("#live")).to_have_attribute("title", re.compile("may have 1 watches open"))
            assert page.locator("#live").is_visible()
            page.context.close()
        assert readers.close() == []


def test_disconnection_time_uses_server_clock(browser: Browser, mortal: ServerProcess) -> None:
    """Since when a page is not live is a time of the server, as all others on it, where the reader's clock is wrong."""
    readers = Readers(browser, mortal)
    readers.expect_trouble("ERR_")
    context = readers.new(callers.OPERATOR)
    # The tab reads the stream itself, with the clock that is set here.
    context.add_init_script("delete globalThis.SharedWorker")
    page = context.new_page()
    page.clock.install(time=datetime.now(UTC) - timedelta(hours=5))
    page.goto("/")
    expect(is_live(page)).to_be_visible()
    mortal.kill()
    expect(page.locator("#live")).to_have_text(re.compile(r"^reconnecting since \d\d:\d\d:\d\d$"))
    clock = page.locator("#live").inner_text().split()[-1].split(":")
    off_minutes = (datetime.now(UTC) - datetime.now(UTC).replace(hour=int(clock[0]), minute=int(clock[1]))).seconds / 60
    assert min(off_minutes, 1440 - off_minutes) <= 2
    assert readers.close() == []
