"""What tests of the page do again and again: type a command, find a row, see whether anything sticks out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from playwright.sync_api import expect

from tests.support import callers
from tests.support.checks import wait_until
from tests.support.chromium import WAIT_MS
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

Run = Callable[..., subprocess.CompletedProcess[str]]

ROWS = "#jobs-box tbody tr:not(.spacer)"
_STICKS_OUT = """
() => {
  const width = document.documentElement.clientWidth;
  if (document.scrollingElement.scrollWidth <= width) return [];
  return [...document.querySelectorAll("body *")]
    .filter((each) => each.getBoundingClientRect().right > width + 1 && !each.closest(".scroll, .graph, .unseen, nav"))
    .map((each) => `${each.tagName} ${each.className} ${each.textContent.slice(0, 60)}`)
    .slice(0, 5).concat(`the page is ${document.scrollingElement.scrollWidth} wide, the window ${width}`);
}
"""


def command(*words: object) -> list[str]:
    """A command of ours."""
    return [sys.executable, "-m", "holdfast", *(str(word) for word in words)]


def environment(server: ServerProcess, folder: Path) -> dict[str, str]:
    """The environment of a worker at that server, with nothing of the person who runs the tests."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "XDG_"))}
    ours = {"HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": callers.ALICE}
    return {**clean, **ours, "XDG_CONFIG_HOME": str(folder / "config"), "XDG_STATE_HOME": str(folder / "state")}


def row(page: Page, name: str) -> Locator:
    """The row of a job in the list."""
    return page.locator(ROWS, has=page.locator(f"bdi.name[title={_quoted(name)}]"))


def names(page: Page) -> list[str]:
    """The jobs in the list, from top to bottom, as far as they are drawn."""
    found: list[str] = page.eval_on_selector_all(f"{ROWS} bdi.name", "all => all.map((each) => each.title)")
    return found


def is_live(page: Page) -> Locator:
    """The word that says so. In the list it is there before the first rows have come: see `wait_for_list`."""
    return page.locator('#live[data-state="live"]')


def wait_for_list(page: Page) -> None:
    """Until the list is live, and all its rows are loaded and drawn."""
    expect(page.locator('#jobs-box[aria-busy="false"]')).to_be_attached()


def wait_for_scripts(page: Page) -> None:
    """Until what was shown by a link or a form takes keys. `goto` and `reload` have waited for that already."""
    page.wait_for_load_state("load")


def wait_for_frames(page: Page) -> None:
    """Until all that scripts want to draw now is drawn: they draw with the next frame, or the one after it."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def job_path(name: str) -> str:
    """The address of a job's page."""
    return f"/ui/jobs/{quote(name, safe='')}"


def sticks_out(page: Page) -> list[str]:
    """What is wider than the window, and makes the whole page scroll sideways."""
    found: list[str] = page.evaluate(_STICKS_OUT)
    return found


def fill(page: Page, part: Locator) -> float:
    """How much of a bar is full, as it is drawn at this moment: 0 to 1."""
    share: float = part.evaluate("each => new DOMMatrix(getComputedStyle(each).transform).a")
    return share


def marked(page: Page) -> Any:  # noqa: ANN401 - whatever a script has there
    """Whether it is still the document that `mark` marked: it was not loaded again."""
    return page.evaluate("window.markedByTest ?? null")


def mark(page: Page) -> None:
    """Mark the document that is there now."""
    page.evaluate("window.markedByTest = 'same'")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def until(question: Callable[[], bool], what: str) -> None:
    """Look again and again, until it is so."""
    try:
        wait_until(question, seconds_max=WAIT_MS / 1_000)
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from None


def moment_path(seconds_ago: float) -> str:
    """The address of the list as it was so long ago."""
    at = datetime.now(UTC) - timedelta(seconds=seconds_ago)
    return f"/?at={quote(at.isoformat(timespec='milliseconds').replace('+00:00', 'Z'))}"
