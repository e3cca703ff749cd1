"""The story-teller: prints what happens, as it happens, so that a person can follow it.

In colour on a terminal, plain elsewhere and where NO_COLOR is set. Each line has the seconds since the beginning, who
it is about, and what that one says.
"""

from __future__ import annotations

import os
import re
import textwrap
import time
from collections.abc import Sequence
from typing import TextIO

from examples.demo.backlog import AGENTS
from examples.demo.proof import Verdict
from examples.demo.reports import Report

WIDTH, WIDTH_MIN = 100, 60
"""Columns of a line; on a narrower terminal as many as that has, and not fewer than the second."""
MARGIN = 18
"""Columns before the text of a line: the seconds, and who."""
BOLD, DIM, RED, GREEN, YELLOW, BLUE, MAGENTA, CYAN = "1", "2", "31", "32", "33", "34", "35", "36"

OF_AGENT = dict(zip(AGENTS, (CYAN, MAGENTA, BLUE, YELLOW, GREEN), strict=True))
OF_KIND = {
    "got": GREEN,
    "done": f"{BOLD};{GREEN}",
    "refused": YELLOW,
    "circle": f"{BOLD};{YELLOW}",
    "fenced": f"{BOLD};{YELLOW}",
    "lost": f"{BOLD};{RED}",
    "wrong": f"{BOLD};{RED}",
    "kill": f"{BOLD};{RED}",
    "guard": YELLOW,
    "command": BOLD,
    "read": BOLD,
    "asks": DIM,
    "gives": DIM,
    "told": DIM,
}
MARKS = {
    "done": "✓ ",
    **dict.fromkeys(("refused", "circle", "guard", "lost", "fenced"), "✗ "),
    **dict.fromkeys(("kill", "command"), "$ "),
}

AFTER = {"refused": "got", "told": "done", "fenced": "done"}
"""Of one job: the server answers two agents at once, and the one whom it is about may be the slower to report."""


class Story:
    """Prints to one stream. Its clock starts when it is made."""

    def __init__(self, out: TextIO, gap_seconds: float) -> None:
        """`gap_seconds` is the least time between two lines, for those who read along."""
        self._out = out
        self._gap_seconds = gap_seconds
        self._began = self._printed_at = time.monotonic()
        self._is_colourful = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._width = _width_of(out)
        self._chapters = 0
        self._reported: set[tuple[str, str]] = set()
        self._postponed: list[Report] = []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def title(self, text: str, below: str) -> None:
        self._print(self._in(BOLD, text))
        self._print(self._in(DIM, below))

    def chapter(self, title: str, text: str) -> None:
        self._chapters += 1
        self._print("")
        self._print(self._in(BOLD, f"{self._chapters}. {title}"))
        for line in textwrap.wrap(text, self._width - 3):
            self._print(f"   {line}")

    def tell(self, report: Report) -> None:
        """Tell what an agent reports; but not before what it is the answer to."""
        if report.kind in AFTER and (AFTER[report.kind], report.job) not in self._reported:
            self._postponed.append(report)
            return
        self.line(report.who, report.kind, report.text)
        self._reported.add((report.kind, report.job))
        ready, self._postponed = self._postponed, []
        for each in ready:
            self.tell(each)

    def line(self, who: str, kind: str, text: str) -> None:
        """One thing that happens."""
        self._let_read()
        head = f"{self.seconds:5.1f} s  "
        colour = OF_AGENT.get(who)
        name = self._in(f"{BOLD};{colour}" if colour else BOLD, f"{who:<{MARGIN - len(head)}}")
        first, *rest = textwrap.wrap(MARKS.get(kind, "") + text, self._width - MARGIN)
        self._print(self._in(DIM, head) + name + self._in(OF_KIND.get(kind), first))
        for line in rest:
            self._print(" " * MARGIN + self._in(OF_KIND.get(kind), line))

    def proof(self, findings: Sequence[Verdict], backlog: Sequence[str]) -> None:
        """Tell what was found, a line for each job."""
        self._print("")
        heading = "The proof: what the server's journal, the results and the remote say of every job"
        for line in textwrap.wrap(heading, self._width):
            self._print(self._in(BOLD, line))
        for verdict in findings:
            doer = f"{verdict.done.owner}, fencing token {verdict.done.token}" if verdict.done else ""
            claims = "1 claim:" if verdict.claims == 1 else f"{verdict.claims} claims:"
            mark = self._in(RED, "✗") if verdict.faults else self._in(GREEN, "✓")
            self._let_read()
            self._print(f"   {mark} {verdict.job:<10} {claims:<10} {_in_short(verdict.ends):<16} {doer}".rstrip())
            for fault in verdict.faults:
                self._print("     " + self._in(f"{BOLD};{RED}", f"{verdict.job}: {fault}"))
        if any(verdict.faults for verdict in findings):
            wrong = [verdict.job for verdict in findings if verdict.faults]
            self._print(self._in(f"{BOLD};{RED}", f"NOT PROVED: {', '.join(wrong)}. See above."))
            return
        claims_all = sum(verdict.claims for verdict in findings)
        text = (
            f"Proved: {len(backlog)} jobs, each done exactly once. {claims_all} claims, and never two of one job at the"
            f" same time. {len(backlog)} results, each written under the claim that was done."
            f" All in {self.seconds:.1f} s."
        )
        for line in textwrap.wrap(text, self._width):
            self._print(self._in(f"{BOLD};{GREEN}", line))

    def _print(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()

    def _let_read(self) -> None:
        time.sleep(max(0.0, self._printed_at + self._gap_seconds - time.monotonic()))
        self._printed_at = time.monotonic()

    def _in(self, colour: str | None, text: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if colour and self._is_colourful else text


def _width_of(out: TextIO) -> int:
    """As many columns as a terminal has, if it says so."""
    columns = os.get_terminal_size(out.fileno()).columns if out.isatty() else 0
    return max(WIDTH_MIN, min(WIDTH, columns or WIDTH))


def _in_short(ends: Sequence[str]) -> str:
    """How the claims of a job ended, one after another; `released` 3 times is `3 × released`."""
    words: list[str] = []
    for end in ends:
        if words and (found := re.fullmatch(rf"(?:(\d+) × )?{end}", words[-1])):
            words[-1] = f"{int(found[1] or 1) + 1} × {end}"
        else:
            words.append(end)
    return ", ".join(words)
