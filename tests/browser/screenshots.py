"""The pictures of the operators' page in the docs: `make pictures`, or `python -m tests.browser.screenshots FOLDER`.

A real server with a busy afternoon (`scene`), a real Chromium. Times are those of the moment, so no two runs make the
same bytes, and nobody compares them.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from tests.browser.page_actions import is_live, job_path, moment_path, row, until, wait_for_list
from tests.browser.scene import DEPLOY, HOUR, ISSUE, SILENT, Scene, scene
from tests.support import callers
from tests.support.chromium import PHONE, Readers, chromium

if TYPE_CHECKING:
    from playwright.sync_api import Page

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
BYTES_MAX = 150_000
TIME_SCALE = 4
"""A machine may be busy."""
LATE_SECONDS = 20
"""How long somebody lives who is late in a picture."""
SIZE = {"width": 1180, "height": 560}


def _list(page: Page, made: Scene) -> None:
    """The list, when the one that is silent is late, and one that works has just said so."""
    page.goto("/")
    wait_for_list(page)
    expect(page.locator("#moment-marks rect").first).to_be_attached()
    made.keep_waiting()
    until(lambda: made.alice.status(SILENT).json()["status"] == "free", "the last one was silent for long enough")
    made.alice.acquired(SILENT, owner="cron-3", ttl_seconds=LATE_SECONDS)
    expect(row(page, SILENT).locator(".sign")).to_have_text("late", timeout=1_000 * LATE_SECONDS)
    made.heartbeat(ISSUE, "tests pass, opening the PR", 180)
    made.heartbeat(DEPLOY, "migrating", 90)
    expect(row(page, DEPLOY).locator(".col-beat")).to_have_text(re.compile(r"^[0-2] s ago$"))


def _job(page: Page, _made: Scene) -> None:
    page.goto(job_path(DEPLOY))
    expect(is_live(page)).to_be_visible()


def _revoke(page: Page, _made: Scene) -> None:
    page.goto(f"{job_path(ISSUE)}#revoke")
    page.locator("#revoke").get_by_label("Reason: the holder reads it").fill("the runner hangs since 14:02")
    page.locator("#actions").scroll_into_view_if_needed()


def _moment(page: Page, _made: Scene) -> None:
    page.goto(moment_path(1.95 * HOUR))
    expect(page.locator("#jobs-then")).to_be_visible()
    expect(page.locator("#moment")).to_be_enabled()


def _waits(page: Page, _made: Scene) -> None:
    page.goto("/ui/waits")
    expect(is_live(page)).to_be_visible()


SHOTS: dict[str, tuple[Callable[[Page, Scene], None], dict[str, object]]] = {
    "page-revoke.png": (_revoke, {}),
    "page-moment.png": (_moment, {"viewport": {"width": 1180, "height": 420}}),
    "page-waits.png": (_waits, {}),
    "page-job.png": (_job, {"viewport": {"width": 1180, "height": 1000}}),
    "page-phone.png": (_list, {"viewport": PHONE, "is_mobile": True, "has_touch": True, "color_scheme": "dark"}),
    "page-jobs.png": (_list, {"color_scheme": "light"}),
    "page-jobs-dark.png": (_list, {"color_scheme": "dark"}),
}
"""Each picture: how to get there, and what is special about its reader. The list comes last, when time has passed."""


def main() -> None:
    """Make them all."""
    parser = argparse.ArgumentParser(description="Make the pictures of the operators' page.")
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser, scene(Path(scratch), TIME_SCALE) as made:
        readers = Readers(browser, made.server)
        for name, (go, special) in SHOTS.items():
            options = {"viewport": SIZE, "reduced_motion": "reduce", "color_scheme": "light", **special}
            page = readers.new(callers.OPERATOR, **options).new_page()
            go(page, made)
            page.screenshot(path=folder / name, animations="allow", caret="hide")
            size = (folder / name).stat().st_size
            sys.stdout.write(f"{folder / name} {size:,} bytes\n")
            if size > BYTES_MAX:
                sys.exit(f"{name} has more than {BYTES_MAX:,} bytes")
        if troubles := readers.close():
            sys.exit("\n".join(troubles))


if __name__ == "__main__":
    main()
