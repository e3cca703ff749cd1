"""The chapters: who is let loose on what, and what the world does to them meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from examples.demo.backlog import CRASH, CYCLE, LINE, PUSH, RACE, RELEASE, REVOKE, STAGING, WHY_REVOKED, Issue
from examples.demo.crew import Crew
from examples.demo.errors import FailedError
from examples.demo.story import Story
from examples.demo.world import World

OPERATOR, SHELL = "operator", "shell"


class Chapters:
    """Each method is one of them, in the order in which they are told."""

    def __init__(self, world: World, crew: Crew, story: Story, pace_seconds: float, ttl_seconds: int) -> None:
        self._world = world
        self._crew = crew
        self._story = story
        self._pace_seconds = pace_seconds
        self._ttl_seconds = ttl_seconds

    def play(self) -> None:
        """All of them."""
        for chapter in (self.race, self.line, self.crash, self.cycle, self.revoke, self.push):
            chapter()
            self._crew.pause(self._pace_seconds)

    def race(self) -> None:
        text = f"All five ask for {RACE[0].job} in the same moment. One gets it; the others hear who has it."
        self._story.chapter("Five agents see the same issue", text)
        self._play(self._crew.names, "race", RACE)

    def line(self) -> None:
        text = f"Three issues have to be tried on {STAGING}. Whoever comes second stands in line."
        self._story.chapter("There is one staging server", text)
        self._play(self._crew.names, "backlog", LINE)

    def crash(self) -> None:
        text = f"{CRASH.job} takes long, and its agent will not live to finish it. The others stand in line for it."
        self._story.chapter("An agent dies", text)
        self._meddle(self._crew.names, CRASH, self._kill)

    def _kill(self, victim: str) -> None:
        pid = self._crew.pid_of(victim)
        self._story.line(SHELL, "kill", f"kill -9 {pid}   # {victim} is gone, without a word to anybody")
        self._crew.kill(victim)
        text = f"(nobody renews its claim any more: it ends {self._ttl_seconds} s after its last heartbeat)"
        self._story.line("", "gives", text)

    def cycle(self) -> None:
        one, other = CYCLE
        text = (
            f"{one.job} needs {one.needs[0]}, then {one.needs[1]}; {other.job} needs {other.needs[0]}, then"
            f" {other.needs[1]}. Each gets the first."
        )
        self._story.chapter("Two agents would wait for each other for ever", text)
        self._play(self._crew.names[:2], "backlog", CYCLE)

    def revoke(self) -> None:
        text = "An agent is about to do harm. The operator takes the job away from it, and says why."
        self._story.chapter("An operator steps in", text)
        self._meddle(self._crew.names[-2:], REVOKE, self._revoke)

    def _revoke(self, _victim: str) -> None:
        self._story.line(OPERATOR, "kill", f"holdfast revoke {REVOKE.job} --reason '{WHY_REVOKED}'")
        self._world.run(["holdfast", "revoke", REVOKE.job, "--reason", WHY_REVOKED], OPERATOR)

    def push(self) -> None:
        text = (
            f"A rule of the repository says that whoever pushes to main must have {PUSH}. The hook of"
            " `holdfast guard` looks before each push."
        )
        self._story.chapter("One pushes while another makes a release", text)
        self._world.make_repository()
        self._play(self._crew.names[:2], "backlog", RELEASE)

    def _play(self, names: Sequence[str], scene: str, issues: Sequence[Issue]) -> None:
        self._crew.cue(names, scene, [issue.job for issue in issues])
        for report in self._crew.reports(names):
            self._story.tell(report)

    def _meddle(self, names: Sequence[str], issue: Issue, deed: Callable[[str], None]) -> None:
        """Let them stand in line for one issue; once its first agent is stuck and somebody waits, do the deed to it."""
        self._crew.cue(names, "insist", [issue.job])
        victim: str | None = None
        is_awaited = is_over = False
        for report in self._crew.reports(names):
            self._story.tell(report)
            if report.kind == "note" and report.text.endswith(issue.first_try[-1]):
                victim = report.who
            is_awaited = is_awaited or report.kind == "waits"
            if victim is not None and is_awaited and not is_over:
                is_over = True
                self._crew.pause(self._pace_seconds)
                deed(victim)
        if not is_over:
            raise FailedError(f"nobody was stuck in {issue.job}, or nobody stood in line for it")
