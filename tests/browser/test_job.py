"""One job's page in a real browser: what can be done there reaches the holder, and what happened is drawn."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.page_actions import command, environment, is_live, job_path, mark, marked, row, until
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.chromium import Readers
from tests.support.pending import waiting
from tests.support.program import Program
from tests.support.server import ServerProcess

LOST = 20
"""What `holdfast run` ends with when the claim was lost."""


def test_a_revoke_from_the_page_reaches_the_holder(page: Page, server: ServerProcess, tmp_path: Path) -> None:
    """An operator opens a job, says why, and the command under `holdfast run` is stopped and told the reason."""
    name = unique("stuck")
    words = command("run", name, "--owner", "agent-9", "--", "sleep", "300")
    with Program(words, env=environment(server, tmp_path), folder=tmp_path) as worker:
        row(page, name).locator("a.job").click()
        page.get_by_text("End this lease").click()
        expect(page.locator("#revoke .happens")).to_contain_text("agent-9 loses this job at once")
        page.locator("#revoke").get_by_label("Reason: the holder reads it").fill("its host was replaced")
        page.get_by_role("button", name="End the lease").click()
        expect(page.get_by_role("status").filter(has_text="The lease was ended")).to_be_visible()
        assert worker.process.wait(20) == LOST
        assert "its host was replaced" in worker.output
    expect(page.locator("#sign")).to_contain_text("Nobody holds it")
    expect(page.locator("#history tr", has_text="revoked")).to_contain_text("its host was replaced")


def test_an_expiry_and_a_takeover_are_drawn_as_they_happen(readers: Readers, alice: Api) -> None:
    """The timeline of an open page gets the end of the one who was silent and the one who took over."""
    name = unique("taken-over")
    lease = alice.acquired(name, ttl_seconds=600, owner="agent-1")["lease_id"]
    page = readers.open(callers.OPERATOR, job_path(name))
    expect(is_live(page)).to_be_visible()
    mark(page)
    expect(page.locator("#timeline .lease.alive")).to_have_count(1)
    assert alice.renew(name, lease, ttl_seconds=1).status == 200
    until(lambda: alice.status(name).json()["status"] == "free", "the lease ends")
    alice.acquired(name, ttl_seconds=300, owner="agent-2")
    drawing = page.locator("#timeline")
    expect(drawing.locator(".lease.expired")).to_have_count(1)
    expect(drawing.locator(".lease.alive")).to_have_count(1)
    expect(drawing.locator(".badly")).to_have_count(1)
    expect(drawing.locator("title").filter(has_text="agent-1")).to_have_text(re.compile("expired"))
    story = page.locator("#history tbody tr")
    expect(story.nth(0)).to_contain_text(re.compile(r"claimed.*agent-2", re.DOTALL))
    expect(story.nth(1)).to_contain_text(re.compile(r"expired.*agent-1", re.DOTALL))
    expect(page.locator("#owner")).to_contain_text("agent-2")
    assert marked(page) == "same"


def test_queue_and_wait_chain_update_live(readers: Readers, alice: Api, server: ServerProcess) -> None:
    """Who joins the line appears in it; the chain shows whom the holder itself waits for."""
    first, second = unique("first"), unique("second")
    bob = Api.of(server, callers.BOB)
    alice.acquired(first, ttl_seconds=300, owner="ana")
    bob.acquired(second, ttl_seconds=300, owner="ben")
    page = readers.open(callers.OPERATOR, job_path(second))
    expect(page.locator("#queue")).to_contain_text("Nobody waits for it")
    with waiting(alice, second, owner="cleo"), waiting(bob, first, owner="ben"):
        expect(page.locator("#queue tbody tr")).to_contain_text("cleo")
        page.goto(job_path(second))
        expect(page.locator("#why .box")).to_have_count(2)
        expect(page.locator("#why .box").last).to_contain_text("ana")


def test_finished_work_is_reopened(readers: Readers, alice: Api) -> None:
    """A job that is done says with what result; reopened with a reason, it can be had again."""
    name = unique("finished")
    lease = alice.acquired(name, ttl_seconds=300, owner="agent-1")["lease_id"]
    alice.release(name, lease, outcome="done", remember_seconds=3_600, result="report=42")
    page = readers.open(callers.OPERATOR, job_path(name))
    expect(page.locator("#owner")).to_contain_text("42")
    page.get_by_text("Reopen this job").click()
    page.get_by_label("Reason").fill("the numbers were wrong")
    page.get_by_role("button", name="Reopen").click()
    expect(page.get_by_role("status").filter(has_text="open again")).to_be_visible()
    assert alice.acquire(name, ttl_seconds=300).json()["status"] == "acquired"


def test_a_claim_is_handed_over(readers: Readers, alice: Api) -> None:
    """An operator can hand a job to another owner, and is shown the command that takes it up."""
    name = unique("handed")
    alice.acquired(name, ttl_seconds=300, owner="agent-1")
    page = readers.open(callers.OPERATOR, job_path(name))
    page.get_by_text("Hand it to another owner").click()
    page.get_by_label("New owner").fill("agent-2")
    page.locator("#transfer").get_by_label("Reason: the holder reads it").fill("end of shift")
    page.get_by_role("button", name="Hand over").click()
    expect(page.locator("#owner")).to_contain_text("agent-2")
    expect(page.locator(".command code").first).to_contain_text("--resume")


def test_form_input_survives_refresh(readers: Readers, alice: Api) -> None:
    """While somebody writes a reason, the page goes on around the form, and says that another has the job now."""
    readers.expect_trouble(r"status of 409")
    name = unique("writing")
    lease = alice.acquired(name, ttl_seconds=300, owner="agent-1")["lease_id"]
    page = readers.open(callers.OPERATOR, job_path(name))
    expect(is_live(page)).to_be_visible()
    page.get_by_text("End this lease").click()
    reason = page.locator("#revoke").get_by_label("Reason: the holder reads it")
    reason.fill("it hangs, I bel")
    alice.release(name, lease)
    alice.acquired(name, ttl_seconds=300, owner="agent-2")
    expect(page.locator("#owner")).to_contain_text("agent-2")
    expect(reason).to_have_value("it hangs, I bel")
    expect(page.locator("#job")).to_have_attribute("data-changed", "")
    page.get_by_role("button", name="End the lease").click()
    expect(page.get_by_role("alert")).to_be_visible()
    assert alice.status(name).json()["owner"] == "agent-2"
