"""How every view looks: on a phone, in the dark, on paper, without scripts, and by the rules of axe-core."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.page_actions import ROWS, is_live, job_path, moment_path, row, sticks_out, until, wait_for_list
from tests.browser.scene import DEPLOY, DONE, ISSUE, NIGHTLY, Scene, scene
from tests.support import callers
from tests.support.chromium import PHONE, WIDE, Readers
from tests.support.server import ServerProcess

VIEWS = {
    "jobs": "/",
    "a search": "/?q=team:web+owner:agent-3",
    "no match": "/?q=nothing-is-called-so",
    "a moment": moment_path(3_600),
    "before the history": "/?at=2020-01-01T00:00:00Z",
    "a job that is held": job_path(ISSUE),
    "a job with a story": job_path(DEPLOY),
    "a job that is done": job_path(DONE),
    "a job that nobody knows": job_path("never-heard-of"),
    "waits": "/ui/waits",
    "sessions": "/ui/sessions?token=alice",
    "a session": "a session",
    "metrics": "/ui/metrics",
    "nodes": "/ui/nodes",
    "tokens": "/ui/tokens",
    "nowhere": "/ui/nowhere",
    "sign-in": "sign-in",
}
LISTS = {"jobs", "a search", "no match"}
LIVE = {
    "a job that is held",
    "a job with a story",
    "a job that is done",
    "a job that nobody knows",
    "waits",
    "sessions",
    "a session",
}
"""Rooms with a stream."""
SAMPLE_MS = 30_000
"""A sample of the numbers comes every ten seconds; a machine may be busy."""


@pytest.fixture(scope="module")
def stage(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A busy afternoon."""
    with scene(tmp_path_factory.mktemp("scene"), time_scale=20) as made:
        yield made
        assert "Traceback" not in made.server.log, made.server.log


@pytest.fixture
def server(stage: Scene) -> ServerProcess:
    """Its server."""
    return stage.server


def visit(context: BrowserContext, stage: Scene, view: str) -> Page:
    """Go to a view, and let it be whole: with its rows, its stream, its charts, where it has them."""
    stage.keep_waiting()
    if view == "sign-in":
        context.clear_cookies()
    path = {"a session": f"/ui/sessions/{stage.session}", "sign-in": "/ui/sign-in"}.get(view, VIEWS[view])
    page = context.new_page()
    page.goto(path)
    if view in LISTS:
        wait_for_list(page)
    elif view in LIVE:
        expect(is_live(page)).to_be_visible()
    elif view == "metrics":
        expect(page.locator("#charts")).to_be_visible(timeout=SAMPLE_MS)
    return page


@pytest.mark.parametrize("view", VIEWS)
def test_views_fit_a_phone(readers: Readers, stage: Scene, view: str) -> None:
    """On a window of 360 pixels no view scrolls sideways, nor does it on a wide one."""
    readers.expect_trouble(r"status of (401|404|410)")
    for size in (PHONE, WIDE):
        page = visit(readers.new(callers.OPERATOR, viewport=size), stage, view)
        assert sticks_out(page) == []


def test_a_row_on_a_phone_has_what_matters(readers: Readers, stage: Scene) -> None:
    """On a phone a row is two lines: name and sign of life, owner and time left. A finger opens it."""
    context = readers.new(callers.OPERATOR, viewport=PHONE, has_touch=True, is_mobile=True)
    page = visit(context, stage, "jobs")
    there = row(page, DEPLOY)
    for part in (".col-job", ".sign", ".col-owner", ".left-text"):
        expect(there.locator(part)).to_be_visible()
    box = there.bounding_box()
    assert box is not None and box["height"] >= 44
    there.locator("a.job").tap()
    expect(page.locator("h1")).to_contain_text(DEPLOY)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_views_pass_axe(readers: Readers, stage: Scene, view: str, theme: str) -> None:
    """Contrast, labels, names, order, roles: axe-core finds nothing to complain of, in either theme."""
    readers.expect_trouble(r"status of (401|404|410)")
    page = visit(readers.new(callers.OPERATOR, color_scheme=theme, reduced_motion="reduce"), stage, view)
    assert complaints(page) == []


def test_the_list_of_keys_passes_them_too(readers: Readers, stage: Scene) -> None:
    """A dialog and an open form are looked at as well."""
    page = visit(readers.new(callers.OPERATOR, reduced_motion="reduce"), stage, "jobs")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert complaints(page) == []
    page.goto(f"{job_path(DEPLOY)}#revoke")
    expect(page.locator("#revoke").get_by_label("Reason: the holder reads it")).to_be_focused()
    assert complaints(page) == []


def complaints(page: Page) -> list[str]:
    """What axe-core has against a page, with the places."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']} ({each['impact']}): {each['help']}: {node['html'][:160]} {node.get('failureSummary', '')}"
        for each in found
        for node in each["nodes"][:3]
    ]


def test_theme_choice_persists(readers: Readers, stage: Scene) -> None:
    """It begins as the system has it; the button goes through light, dark and the system's, and the choice is kept."""
    page = visit(readers.new(callers.OPERATOR, color_scheme="dark"), stage, "jobs")
    dark = _ground(page)
    assert sum(dark) < 3 * 64
    button = page.get_by_role("button", name="Change the theme")
    button.click()
    until(lambda: sum(_ground(page)) > 3 * 192, "it is light")
    page.reload()
    assert sum(_ground(page)) > 3 * 192
    button.click()
    until(lambda: _ground(page) == dark, "it is dark again")


def _ground(page: Page) -> tuple[int, ...]:
    text = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def test_paper_has_all_rows_and_no_buttons(readers: Readers, stage: Scene) -> None:
    """Printed, the list has all its rows, not only those in view, and none of what can only be clicked."""
    page = visit(readers.new(callers.OPERATOR, viewport={"width": 900, "height": 300}), stage, "jobs")
    # Looked at in the same moment: jobs come and go.
    page.evaluate(f"""
        addEventListener("beforeprint", () => {{
            window.printed = document.querySelectorAll("{ROWS}").length;
            window.total = document.querySelector("table.jobs").ariaRowCount - 1;
        }});
    """)
    assert len(page.pdf(format="A4")) > 10_000
    assert page.evaluate("window.printed") == page.evaluate("window.total") > 20
    page.emulate_media(media="print")
    for gone in (".top nav", ".tools form", "#menu"):
        expect(page.locator(gone).first).to_be_hidden()
    expect(page.locator(ROWS).first).to_be_visible()


# Without scripts.


def test_the_list_without_scripts_leads_on(readers: Readers, stage: Scene) -> None:
    """The list says that it needs JavaScript and opens a job by its name; a moment of the past needs none."""
    page = readers.new(callers.OPERATOR, java_script_enabled=False).new_page()
    page.goto("/")
    expect(page.get_by_role("heading", name="The list of jobs needs JavaScript")).to_be_visible()
    expect(page.locator("#jobs-box")).to_be_hidden()
    for button in ("All keys", "Change the theme", "Copy"):
        expect(page.get_by_role("button", name=button)).to_have_count(0)
    page.get_by_label("Open the job named").fill(ISSUE)
    page.get_by_role("button", name="Open").click()
    expect(page.locator("#owner")).to_contain_text("agent-3")
    page.goto("/")
    page.get_by_label("Moment").fill(moment_path(3_600).removeprefix("/?at=").replace("%3A", ":"))
    page.get_by_role("button", name="Look").click()
    expect(page.get_by_text("This is the past")).to_be_visible()


def test_a_job_is_ended_without_scripts(readers: Readers, stage: Scene) -> None:
    """A job's page has its owner, its timeline and its forms, and they work."""
    readers.expect_trouble(r"status of 401")
    name = "without-scripts"
    stage.claim(name, "agent-4")
    page = readers.new(None, java_script_enabled=False).new_page()
    page.goto(job_path(name))
    page.get_by_label("Access token").fill(callers.OPERATOR)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#owner")).to_contain_text("agent-4")
    expect(page.locator("#timeline .lease.alive")).to_have_count(1)
    page.get_by_text("End this lease").click()
    page.locator("#revoke").get_by_label("Reason: the holder reads it").fill("without a script")
    page.get_by_role("button", name="End the lease").click()
    expect(page.get_by_role("status")).to_contain_text("The lease was ended")
    expect(page.locator("#history")).to_contain_text("without a script")


def test_yesterday_is_there_too(readers: Readers, stage: Scene) -> None:
    """The scene has a past: 25 and a half hours ago cron-1 had the nightly report."""
    page = readers.open(callers.OPERATOR, moment_path(25.5 * 3_600))
    expect(page.locator("#jobs-then tr", has_text=NIGHTLY)).to_contain_text("cron-1")
