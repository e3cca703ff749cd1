"""The operators' page: how smoothly 10,000 jobs scroll, how soon a claim is seen, and what open pages cost the claims.

Scrolling and the way of a claim to its row are measured in a real Chromium, at the frames that it draws. It shares the
cores with the server, so on a small machine this is how it feels there, at worst.

What 50 open pages cost is measured with readers of the page's stream that draw nothing: fifty browsers on the cores of
the server would measure themselves. All that changes, and the claims that are timed, is one paced load: 1,000 requests
a second, whatever was answered, with and without pages in turns.
"""

from __future__ import annotations

import time
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.load.readers import Readers
from benchmarks.load.tools import percentile
from benchmarks.parts.common import row_of
from benchmarks.progress import say
from benchmarks.systems.holdfast import TOKEN, Holdfast

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page

    from benchmarks.load.generator import Plan
    from benchmarks.parts.common import Row, Work

JOBS = 10_000
SCROLL_MS = 6_000
SCROLL_PIXELS_PER_FRAME = 150
CLAIMS = 60
PAGES = 50
CHANGES_PER_SECOND = 1_000
CONNECTIONS = 32
NAMES = 2_000
ROUND_SECONDS = 10
ROUNDS_MIN = 3

_SCROLL = """
([forMs, pixels]) => new Promise((done) => {
  const frames = [];
  let most = 0;
  const rows = document.querySelector("#jobs-box tbody").rows;
  const step = (at) => {
    frames.push(at);
    most = Math.max(most, rows.length - 2);
    if (at - frames[0] > forMs) { done({ frames, most }); return; }
    const end = document.scrollingElement.scrollHeight - innerHeight;
    if (scrollY >= end - 1) scrollTo(0, 0);
    else scrollBy(0, pixels);
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})
"""
_WATCH = """
(name) => {
  window.seen = new Promise((done) => {
    const look = () => {
      if ([...document.querySelectorAll("bdi.name")].some((each) => each.title === name)) done(Date.now());
      else requestAnimationFrame(look);
    };
    look();
  });
}
"""


def measure(work: Work) -> Row:
    """Both in turn. Without a Chromium, what needs one is said not to be there."""
    if not work.has(Holdfast()):
        return {}
    return {**_in_chromium(work), **_beside_pages(work)}


# In a real browser.


def _in_chromium(work: Work) -> Row:
    from tests.support import chromium

    if chromium.find() is None:
        work.missing["chromium"] = f"Chromium: {chromium.MISSING}"
        say(f"NOT MEASURED, {chromium.MISSING}")
        return {}
    server = Holdfast()
    with server.running(work.folder / "page"), chromium.chromium() as browser:
        held = server.hold("fleet", JOBS)
        page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
        page.goto(f"http://127.0.0.1:{server.port}/")
        page.get_by_label("Access token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        page.locator(f'table.jobs[aria-rowcount="{len(held) + 1}"]').wait_for()
        work.versions["chromium"] = browser.version
        return {"jobs": len(held), "scroll": _scroll(page), "claim_to_row": _claims(server, page)}


def _scroll(page: Page) -> Row:
    tools = page.context.new_cdp_session(page)
    tools.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = _busy_seconds(tools)
    seen: dict[str, Any] = page.evaluate(_SCROLL, [SCROLL_MS, SCROLL_PIXELS_PER_FRAME])
    busy_seconds = _busy_seconds(tools) - before
    frames = seen["frames"]
    gaps = sorted(round(1_000 * (after - before)) for before, after in pairwise(frames))
    row = {
        "frames_per_second": round(1_000 * (len(frames) - 1) / (frames[-1] - frames[0]), 1),
        "p50_ms": percentile(gaps, 50) / 1_000,
        "p99_ms": percentile(gaps, 99) / 1_000,
        "worst_ms": gaps[-1] / 1_000,
        "rows_most": seen["most"],
        "busy_ms": round(1_000 * busy_seconds / len(frames), 2),
    }
    say(
        f"scrolling: {row['frames_per_second']} frames a second, p99 {row['p99_ms']:.1f} ms, {row['rows_most']} rows,"
        f" {row['busy_ms']} ms of processor time for a frame"
    )
    return row


def _busy_seconds(tools: CDPSession) -> float:
    """Return how much processor time the page's own thread has used: that does not depend on who else is busy."""
    found = {each["name"]: each["value"] for each in tools.send("Performance.getMetrics")["metrics"]}
    return float(found["TaskDuration"])


def _claims(server: Holdfast, page: Page) -> Row:
    """Claim names that stand on top of the list; each is timed from before it is sent until a frame shows its row."""
    page.evaluate("scrollTo(0, 0)")
    taken = []
    for number in range(CLAIMS):
        name = f"a-{CLAIMS - number:04d}"
        page.evaluate(_WATCH, name)
        sent = time.time()
        server.ask("POST", f"/locks/{name}/acquire", {"ttl_seconds": 600})
        taken.append(round(1_000_000 * (page.evaluate("window.seen") / 1_000 - sent)))
    ordered = sorted(taken)
    row = {"claims": CLAIMS, "p50_ms": percentile(ordered, 50) / 1_000, "p95_ms": percentile(ordered, 95) / 1_000}
    row["worst_ms"] = ordered[-1] / 1_000
    say(f"from claim to row: p50 {row['p50_ms']:.0f} ms, p95 {row['p95_ms']:.0f} ms, worst {row['worst_ms']:.0f} ms")
    return row


# Beside open pages.


def _beside_pages(work: Work) -> Row:
    rows: list[Row] = []
    seconds = max(work.options.seconds, min(ROUND_SECONDS, 3 * work.options.seconds))
    server = Holdfast()
    with server.running(work.folder / "beside"):
        server.press_plan(_plan(server, 2, "warm"))
        for number in range(max(work.options.rounds, ROUNDS_MIN)):
            rows.append(row_of(*server.press_plan(_plan(server, seconds, f"none-{number}")), pages=0))
            with Readers(server.port, server.authorization, PAGES) as readers:
                row = row_of(*server.press_plan(_plan(server, seconds, f"open-{number}")), pages=PAGES)
                counts = readers.result()
            if counts["closed"]:
                work.trouble(f"{counts['closed']} of {PAGES} streams were closed")
            row |= {f"told_{name}": counts[name] for name in ("bytes", "frames", "resyncs")}
            rows.append(row)
    return {"rows": rows, "pages": PAGES, "changes_per_second": CHANGES_PER_SECOND, "p99_ratio": p99_ratio(rows)}


def p99_ratio(rows: list[Row]) -> float:
    """Return how much longer the p99 is with pages open: the median of the turns, each beside its neighbour."""
    pairs = zip(rows[::2], rows[1::2], strict=True)
    return float(round(median(open_["p99_ms"] / none["p99_ms"] for none, open_ in pairs), 3))


def _plan(server: Holdfast, seconds: float, prefix: str) -> Plan:
    """Return a turn, on names of its own: what was held when the last one ended is still held."""
    return server.plan(
        "loop", connections=CONNECTIONS, seconds=seconds, rate=CHANGES_PER_SECOND, prefix=prefix, names=NAMES
    )
