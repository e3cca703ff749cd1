"""The list of jobs, live: what workers do is seen without a reload, and what is seen can be found, sorted and kept."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import APIResponse, Browser, Page, Route, expect

from tests.browser.page_actions import ROWS, Run, fill, is_live, mark, marked, names, row, until, wait_for_list
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import moment, unique, wait_until
from tests.support.chromium import Readers
from tests.support.pending import waiting
from tests.support.server import ServerProcess, serving

MANY = 10_000
ROWS_MAX = 60


def test_a_claim_appears_runs_down_and_goes(page: Page, holdfast: Run) -> None:
    """A claim that somebody types appears without a reload, its bar moves, and with its release it goes away."""
    name = unique("typed")
    mark(page)
    assert holdfast("claim", name, "--owner", "agent-7", "--ttl", "2m").returncode == 0
    there = row(page, name)
    expect(there).to_be_visible()
    expect(there.locator(".col-owner")).to_have_text("agent-7")
    expect(there.locator(".sign")).to_have_text("alive")
    bar = there.locator(".bar > i")
    before = fill(page, bar)
    assert 0.5 < before <= 1
    until(lambda: fill(page, bar) < before - 0.01, "the bar moves")
    expect(there.locator(".left-text")).to_have_text(re.compile(r"1:[0-5]\d"))

    # Under the pointer it stays for as long as somebody looks; else for three seconds.
    there.hover()
    assert holdfast("release", name).returncode == 0
    expect(there.locator(".sign")).to_have_text("released")
    expect(there).to_have_class(re.compile(r"\bover\b"))
    page.mouse.move(1, 1)
    expect(there).to_have_count(0)
    assert marked(page) == "same"


def test_a_heartbeat_fills_the_bar_and_brings_its_note(page: Page, alice: Api) -> None:
    """A renewal is no event of history, and still it is seen: the bar is full again, the note is there."""
    name = unique("beating")
    lease = alice.acquired(name, ttl_seconds=30, owner="agent-1")["lease_id"]
    there = row(page, name)
    bar = there.locator(".bar > i")
    expect(there).to_be_visible()
    until(lambda: fill(page, bar) < 0.93, "the bar runs down")
    assert alice.renew(name, lease, ttl_seconds=600, note="tests pass").status == 200
    expect(there.locator(".col-note")).to_contain_text("tests pass")
    until(lambda: fill(page, bar) > 0.95, "the bar is full again")
    expect(there.locator(".left-text")).to_have_text(re.compile(r"9:\d\d|10:00"))


def test_keepalive_during_load_is_applied(page: Page, alice: Api) -> None:
    """A list that was made before the keepalive, and arrives after the word of it, does not take the deadline back."""
    name = unique("kept")
    opened = alice.new_session(ttl_seconds=60)
    session = opened["session_id"]
    alice.acquired(name, ttl_seconds=600, owner="agent-1", session_id=session, ephemeral=True)
    held: list[tuple[Route, APIResponse]] = []
    page.route("**/ui/rows*", lambda route: held.append((route, route.fetch())))
    page.add_init_script(_RECORD_RENEWALS)
    page.reload()
    expect(is_live(page)).to_be_visible()
    until(lambda: is_live(page).count() == 1 and held != [], "the list was made")
    ends_ms = wait_until(lambda: _later(alice.keepalive(session).json(), opened), every_seconds=0.5)
    until(lambda: page.evaluate("window.kept.at(-1) ?? 0") > ends_ms - 500, "the word of it came")
    for route, answer in held:
        route.fulfill(response=answer)
    wait_for_list(page)
    shown = row(page, name).locator(".left-text").get_attribute("datetime")
    assert abs(moment(shown).timestamp() * 1_000 - ends_ms) < 500, (shown, ends_ms, opened)


def _later(renewed: dict[str, Any], opened: dict[str, Any]) -> float:
    """When the session ends now, in milliseconds, if that is clearly later than when it was opened; else 0."""
    by = moment(renewed["expires_at"]) - moment(opened["expires_at"])
    return moment(renewed["expires_at"]).timestamp() * 1_000 if by.total_seconds() > 2 else 0


# Of every frame that the page reads: until when a session was kept.
_RECORD_RENEWALS = """
    window.kept = [];
    const parse = JSON.parse;
    JSON.parse = (...given) => {
        const made = parse(...given);
        for (const [, until] of made?.kept ?? []) window.kept.push(until);
        return made;
    };
"""


def test_an_owner_who_is_silent_is_late_and_then_over(page: Page, alice: Api) -> None:
    """Signs of life are words: alive, late, ending, and expired when nobody came."""
    name = unique("silent")
    alice.acquired(name, ttl_seconds=30, owner="agent-2")
    sign = row(page, name).locator(".sign")
    expect(sign).to_have_text("alive")
    # Under the pointer the last word stays. The others last for some seconds, and may fall between two looks.
    sign.hover()
    sign.evaluate("""(sign) => {
        window.words = [sign.textContent];
        new MutationObserver(() => window.words.push(sign.textContent)).observe(sign, { childList: true });
    }""")
    expect(sign).to_have_text("expired", timeout=60_000)
    assert page.evaluate("window.words") == ["alive", "late", "ending", "expired"]
    page.mouse.move(1, 1)
    expect(row(page, name)).to_have_count(0)


def test_a_claim_of_a_session_lives_by_its_keepalives(page: Page, alice: Api) -> None:
    """A claim of ten minutes in a session of 24 seconds: late when the session is silent, alive when it is kept."""
    name = unique("bound")
    session = alice.new_session(ttl_seconds=24)["session_id"]
    alice.acquired(name, ttl_seconds=600, session_id=session, ephemeral=True)
    sign = row(page, name).locator(".sign")
    expect(sign).to_have_text("alive")
    expect(sign).to_have_text("late", timeout=30_000)
    assert alice.keepalive(session).status == 200
    expect(sign).to_have_text("alive")
    until(lambda: fill(page, row(page, name).locator(".bar > i")) > 0.5, "its bar is that of the session")


def test_row_shows_every_field_of_a_claim(page: Page, alice: Api) -> None:
    """Labels, metadata as fields whether `k=v` or JSON, and how many wait: each is there, and the whole on hover."""
    plain, json_ = unique("plain"), unique("json")
    alice.acquired(plain, ttl_seconds=300, metadata="runner=ci-7\nbranch=main", labels={"team": "web"})
    alice.acquired(json_, ttl_seconds=300, metadata='{"pull": 1842, "url": "https://git.example/1842"}')
    cell = row(page, plain).locator(".col-note")
    expect(cell.locator(".label")).to_have_text("team:web")
    expect(cell.locator(".field").first).to_have_text(re.compile(r"^runner\s*ci-7$"))
    expect(row(page, json_).locator(".field").first).to_have_text(re.compile(r"^pull\s*1842$"))
    with waiting(alice, plain, owner="ben"):
        expect(row(page, plain).locator(".col-queue")).to_have_text("1 ▸")


def test_search_persists_in_the_address(readers: Readers, alice: Api) -> None:
    """Prefix, owner, label and words narrow the list as they are typed; a reload shows the same, and so does a link."""
    stem = unique("find")
    alice.acquired(f"{stem}/a", ttl_seconds=300, owner="ana", labels={"team": "web"})
    alice.acquired(f"{stem}/b", ttl_seconds=300, owner="ben")
    page = readers.open(callers.OPERATOR)
    wait_for_list(page)
    search = page.get_by_role("searchbox")
    for typed, wanted in (
        (f"prefix:{stem}/", [f"{stem}/a", f"{stem}/b"]),
        (f"prefix:{stem}/ owner:ben", [f"{stem}/b"]),
        (f"{stem} label:team:web", [f"{stem}/a"]),
        (f"{stem}/b", [f"{stem}/b"]),
    ):
        search.fill(typed)
        for name in wanted:
            expect(row(page, name)).to_be_visible()
        expect(page.locator(ROWS)).to_have_count(len(wanted))
    expect(page.locator("#jobs-said")).to_contain_text("fit")
    page.reload()
    wait_for_list(page)
    assert names(page) == [f"{stem}/b"], "a reload shows the same"
    other = readers.open(callers.OPERATOR, page.url)
    wait_for_list(other)
    assert names(other) == [f"{stem}/b"], "and so does the address"
    search.fill("nobody-is-called-like-this")
    expect(page.get_by_role("heading", name="No job that is held fits this search")).to_be_visible()


def test_order_persists_in_the_address(page: Page, alice: Api) -> None:
    """A head of a column sorts, once more the other way round; "back" goes back."""
    stem = unique("sort")
    for name, owner in (("a", "zoe"), ("b", "ana")):
        alice.acquired(f"{stem}/{name}", ttl_seconds=300, owner=owner)
    page.get_by_role("searchbox").fill(f"prefix:{stem}/")
    until(lambda: len(names(page)) == 2, "both are there")
    page.get_by_role("link", name="owner").click()
    page.mouse.move(1, 1)
    until(lambda: names(page) == [f"{stem}/b", f"{stem}/a"], "by owner")
    assert "sort=owner" in page.url
    page.get_by_role("link", name="owner").click()
    page.mouse.move(1, 1)
    until(lambda: names(page) == [f"{stem}/a", f"{stem}/b"], "the other way round")
    page.go_back()
    until(lambda: names(page) == [f"{stem}/b", f"{stem}/a"], "back")
    expect(page.locator("th.col-owner")).to_have_attribute("aria-sort", "ascending")


def test_rows_do_not_move_under_the_pointer(page: Page, alice: Api) -> None:
    """While the pointer is over the list, its order is held; when it has left, the new row is where it belongs."""
    stem = unique("held")
    leases = {name: alice.acquired(f"{stem}/{name}", ttl_seconds=300)["lease_id"] for name in ("b", "c")}
    page.get_by_role("searchbox").fill(f"prefix:{stem}/")
    until(lambda: len(names(page)) == 2, "both are there")
    row(page, f"{stem}/c").hover()
    alice.acquired(f"{stem}/a", ttl_seconds=300)
    alice.release(f"{stem}/b", leases["b"])
    expect(row(page, f"{stem}/b").locator(".sign")).to_have_text("released")
    # What was told after that was told with it, or later: the order is held all the same.
    assert names(page) == [f"{stem}/b", f"{stem}/c"]
    page.mouse.move(1, 1)
    until(lambda: names(page) == [f"{stem}/a", f"{stem}/c"], "what waited is shown")


def test_tabs_share_one_stream(readers: Readers, server: ServerProcess, alice: Api) -> None:
    """Three tabs of one browser are told by one stream; another browser has its own."""
    context = readers.new(callers.READER)
    tabs = [context.new_page() for _ in range(3)]
    for tab in tabs:
        tab.goto("/")
        wait_for_list(tab)
    until(lambda: _streams(server) == 1, "one stream")
    name = unique("shared")
    lease = alice.acquired(name, ttl_seconds=300)["lease_id"]
    for tab in tabs:
        expect(row(tab, name)).to_be_visible()
    tabs.pop(0).close()
    alice.release(name, lease)
    for tab in tabs:
        expect(row(tab, name)).to_have_count(0)
    context.close()
    until(lambda: _streams(server) == 0, "and none when they are closed")


def _streams(server: ServerProcess) -> int:
    """How many pages listen."""
    text = Api.of(server, callers.READER).get("/metrics").text
    found = re.search(r'^holdfast_streams_open\{kind="pages"\} (\d+)', text, re.MULTILINE)
    assert found is not None, text
    return int(found[1])


def test_a_wrong_clock_is_corrected(readers: Readers, alice: Api) -> None:
    """On a machine whose clock is an hour ahead, a claim is as fresh, and has as long to go, as elsewhere."""
    name = unique("ahead")
    context = readers.new(callers.OPERATOR)
    context.add_init_script("""
        const [now, origin] = [Date.now.bind(Date), performance.timeOrigin];
        Date.now = () => now() + 3_600_000;
        Object.defineProperty(performance, "timeOrigin", { get: () => origin + 3_600_000 });
    """)
    page = context.new_page()
    page.goto("/")
    alice.acquired(name, ttl_seconds=300)
    there = row(page, name)
    expect(there.locator(".sign")).to_have_text("alive")
    expect(there.locator(".left-text")).to_have_text(re.compile(r"4:\d\d|5:00"))
    expect(there.locator(".col-beat")).to_have_text(re.compile(r"^\d+ s ago$"))


@pytest.fixture(scope="module")
def crowded(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> ServerProcess:
    """A server with ten thousand jobs."""
    data = tmp_path_factory.mktemp("crowded") / "data"
    server = ServerProcess.start(data, tokens=callers.TOKENS, settings={"leases_per_principal_max": 2 * MANY})
    alice = Api.of(server, callers.ALICE)
    for first in range(0, MANY, 1_000):
        those = [f"crowd/{number:05}" for number in range(first, first + 1_000)]
        assert alice.claims(all=those, ttl_seconds=3_600, owner="fleet").status == 200
    return server


def test_ten_thousand_jobs_are_sixty_rows(browser: Browser, crowded: ServerProcess) -> None:
    """Of 10,000 jobs at most 60 rows are in the document, wherever it is scrolled; each can be seen and found."""
    with crowded:
        readers = Readers(browser, crowded)
        page = readers.open(callers.OPERATOR)
        wait_for_list(page)
        expect(page.locator("table.jobs")).to_have_attribute("aria-rowcount", str(MANY + 1))
        most = 0
        for step in range(41):
            page.evaluate(
                "share => new Promise((done) => {"
                "  scrollTo(0, share * (document.scrollingElement.scrollHeight - innerHeight));"
                "  requestAnimationFrame(() => requestAnimationFrame(done));"
                "})",
                step / 40,
            )
            most = max(most, page.locator(f"{ROWS}").count())
        assert 10 < most <= ROWS_MAX
        expect(row(page, f"crowd/{MANY - 1:05}")).to_be_in_viewport()
        page.get_by_role("searchbox").fill("crowd/07531")
        expect(row(page, "crowd/07531")).to_be_in_viewport()
        until(lambda: names(page) == ["crowd/07531"], "one is found")
        assert readers.close() == []


def test_an_empty_server_says_how_the_first_job_appears(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A newcomer sees three commands, each with a button that copies it. What they make appears in their place."""
    with serving(tmp_path_factory.mktemp("empty") / "data", tokens=callers.TOKENS) as server:
        readers = Readers(browser, server)
        context = readers.new(callers.OPERATOR)
        context.grant_permissions(["clipboard-read", "clipboard-write"], origin=server.url)
        page = context.new_page()
        page.goto("/")
        wait_for_list(page)
        expect(page.locator("#jobs-empty .command code")).to_have_count(3)
        copy = page.locator("#jobs-empty .command").last.get_by_role("button")
        # It says so for a second and a half: that may fall between two looks.
        copy.evaluate("""(copy) => {
            window.words = [];
            new MutationObserver(() => window.words.push(copy.textContent)).observe(copy, { childList: true });
        }""")
        copy.click()
        until(lambda: "Copied" in page.evaluate("window.words"), "it says so")
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied.startswith("holdfast claim ") and copied == page.locator(".command code").last.inner_text()
        Api.of(server, callers.ALICE).acquired(copied.split()[2], ttl_seconds=300)
        expect(page.locator(ROWS)).to_have_count(1)
        expect(page.locator("#jobs-empty")).to_be_hidden()
        assert readers.close() == []
