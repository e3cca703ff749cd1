"""One agent: a process of its own that takes jobs, works on them and says what happens to it.

    python -m examples.demo.agent ana FOLDER PACE TTL

The demonstration starts five of these. Each reads cues from its standard input, one JSON object a line: which part of
the backlog to work through, and how. It reports on its standard output in the same form. It decides nothing by itself
that a model would have to decide; but what it claims, waits for and loses is real, and so is who is first.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import holdfast
from examples.demo import repository
from examples.demo.backlog import ISSUES, PUSH, Issue
from examples.demo.ledger import Ledger, Write
from examples.demo.reports import Report
from examples.demo.repository import Repository

TTL_SECONDS = 20
"""Of everything but the job whose agent is killed: longer than any pause of a busy machine."""
WAIT_SECONDS = 40.0
LONG_SECONDS = 40.0
"""How long somebody who is stuck would stay so, if nobody stopped it."""
LOOK_SECONDS = 0.02
REMEMBER_SECONDS = 3_600
PUSHES_MAX = 5


class Agent:
    """What one agent knows: its name, the server, the ledger, and how long a piece of work takes it."""

    def __init__(self, name: str, folder: Path, pace_seconds: float, short_ttl_seconds: int) -> None:
        self.name = name
        self.pace_seconds = pace_seconds
        self.short_ttl_seconds = short_ttl_seconds
        self.client = holdfast.Holdfast(owner=name)
        self.ledger = Ledger(folder / "ledger.sqlite3")
        self.repository = Repository(folder)

    def say(self, kind: str, text: str, job: str = "") -> None:
        """Report in one write, which a pipe that all agents share takes whole."""
        os.write(sys.stdout.fileno(), Report(self.name, kind, text, job).line())

    # Scenes: ways to work through some jobs.

    def race(self, jobs: Sequence[str]) -> None:
        """Ask for the first of the jobs, as everybody does; whoever does not get it takes from the others."""
        try:
            with self.client.claim(jobs[0], ttl=TTL_SECONDS) as claim:
                self.work(claim)
        except holdfast.JobHeld as held:
            self.say("refused", f"{held.job_id} is with {held.shown_as}: taking another one", held.job_id)
        except holdfast.JobDone as done:
            self.say("refused", f"{done.job_id} is done, by {done.shown_as}: taking another one", done.job_id)
        except holdfast.LeaseLost as lost:
            self.say("lost", f"stopping: {lost}", lost.job_id)
        self.backlog(jobs)

    def backlog(self, jobs: Sequence[str]) -> None:
        """Take whatever is free until nothing is."""
        while True:
            try:
                with self.client.claim_any(jobs, ttl=TTL_SECONDS) as claim:
                    self.work(claim)
            except (holdfast.JobDone, holdfast.JobHeld):
                return  # All are done, or others are at them.
            except holdfast.LeaseLost as lost:
                self.say("lost", f"stopping: {lost}", lost.job_id)

    def insist(self, jobs: Sequence[str]) -> None:
        """Stand in line for one job until it is ours, or somebody has done it."""
        (job,) = jobs
        lost_token: int | None = None
        while True:
            try:
                with self.claim_in_line(job, self.short_ttl_seconds) as claim:
                    lost_token = claim.fencing_token  # Unless all goes well.
                    self.work(claim)
                    return
            except holdfast.LeaseLost as lost:
                who = f"{lost.by} says: {lost.why}" if lost.by else str(lost)
                self.say("lost", f"{job} is not mine any more: {who}. Stopping", job)
            except holdfast.JobDone as done:
                self.say("told", f"in line no more: {job} is done, by {done.shown_as}: {done.result}", job)
                break
        if lost_token is not None:
            self.write_late(job, lost_token)

    def write_late(self, job: str, token: int) -> None:
        """Try what nobody should: to write under a claim that was lost."""
        try:
            self.ledger.write(Write(job, token, self.name, "from before"))
            self.say("wrong", f"wrote the result of {job} with the old fencing token {token}", job)
        except holdfast.StaleToken as stale:
            text = f"writes anyway, with fencing token {token}: refused, the ledger has seen {stale.current}"
            self.say("fenced", text, job)

    # Work.

    def claim_in_line(self, job: str, ttl_seconds: int) -> holdfast.Claim:
        """Claim a job, and tell where we stand if it is not free."""
        reported_position = 0

        def report_position(update: holdfast.QueuePosition) -> None:
            nonlocal reported_position
            if update.position and update.position != reported_position and update.owner is not None:
                reported_position = update.position
                self.say(
                    "waits", f"place {reported_position} in line for {job}, which {update.owner.shown_as} has", job
                )

        pid = {"pid": os.getpid()}
        return self.client.claim(job, ttl=ttl_seconds, wait=WAIT_SECONDS, on_wait=report_position, metadata=pid)

    def work(self, claim: holdfast.Claim) -> None:
        """Do one issue: read what the last one left, go on from there, write the result, say that it is done."""
        issue = ISSUES[claim.job_id]
        self.say("got", f"{issue.job} is mine (fencing token {claim.fencing_token}): {issue.title}", issue.job)
        steps = self.steps_of(issue, claim.previous)
        with self.holding(issue):
            for step in steps:
                claim.note(step)
                self.say("note", f"{issue.job}: {step}", issue.job)
                is_stuck = steps is issue.first_try and step == steps[-1]
                claim.lost.wait(LONG_SECONDS if is_stuck else self.pace_seconds)
                claim.raise_if_lost()
        if issue.is_pushed:
            self.push(issue)
        self.ledger.write(Write(issue.job, claim.fencing_token, self.name, issue.result))
        claim.done(issue.result, remember=REMEMBER_SECONDS)
        self.say("done", f"{issue.job} is done: {issue.result}", issue.job)

    def steps_of(self, issue: Issue, previous: holdfast.Previous | None) -> tuple[str, ...]:
        """What is to be done: all of it, or what the note of one that died leaves to do."""
        if previous is None:
            return issue.first_try or issue.steps
        self.say("read", f"before me: {previous.shown_as}, {previous.ended}, whose last note is: {previous.note}")
        if previous.ended != "expired" or previous.note not in issue.steps:
            return issue.steps
        return issue.steps[issue.steps.index(previous.note) + 1 :]

    @contextmanager
    def holding(self, issue: Issue) -> Iterator[None]:
        """Hold what an issue needs, one after another; all at once if that would never end."""
        with ExitStack() as stack:
            try:
                for number, need in enumerate(issue.needs):
                    if number:
                        # Only when somebody has it: so that the two of a circle do meet, each time.
                        self.until(partial(self.is_held, need))
                    self.say("asks", f"{issue.job} needs {need}")
                    held = stack.enter_context(self.claim_in_line(need, TTL_SECONDS))
                    held.note(f"{issue.job}: {issue.title}")
                    self.say("got", f"{need} is mine", need)
            except holdfast.Deadlock as cycle:
                self.say("circle", f"refused at once, it would never end: {around(cycle.cycle)}")
                self.say("gives", f"giving {', '.join(issue.needs[:-1])} back, and asking for both in one step")
                stack.close()
                stack.enter_context(self.client.claim_all(issue.needs, ttl=TTL_SECONDS, wait=WAIT_SECONDS))
                self.say("got", f"{' and '.join(issue.needs)} are mine")
            yield
            if issue.is_awaited:
                self.until(lambda: all(self.client.job(need).waiting for need in issue.needs))
            if issue.needs:
                self.say("gives", f"giving {' and '.join(issue.needs)} back")

    def push(self, issue: Issue) -> None:
        """Commit, and push until the guard lets it pass: its hook claims the job of the branch, if that is free."""
        env = repository.environment({**os.environ, "HOLDFAST_OWNER": self.name})
        checkout = self.repository.checkout(self.name, env)
        repository.commit(checkout, issue.job, issue.title, env)
        self.until(partial(self.is_held, PUSH))
        for _ in range(PUSHES_MAX):
            self.say("command", "git push origin main")
            refusal = repository.push(checkout, env)
            if refusal is None:
                break
            self.say("guard", refusal)
            with self.claim_in_line(PUSH, TTL_SECONDS):
                self.say("note", f"{PUSH} is free now: pushing again")
        else:
            raise RuntimeError(f"still refused after {PUSHES_MAX} pushes")
        self.say("got", f"pushed: the guard had {PUSH} claimed for it meanwhile")
        self.until(lambda: not self.is_held(PUSH))  # The guard gives it back when git has ended.

    def is_held(self, job: str) -> bool:
        return self.client.get_job_owner(job) is not None

    def until(self, is_so: Callable[[], bool]) -> None:
        """Ask until something is so, as the script wants it; or go on, if that takes too long."""
        give_up_at = time.monotonic() + WAIT_SECONDS
        while not is_so() and time.monotonic() < give_up_at:
            time.sleep(LOOK_SECONDS)


def around(cycle: Sequence[str]) -> str:
    """Say a circle in words: who waits for what, who has that."""
    pairs = [
        f"{cycle[at]} waits for {cycle[at + 1]}, which {cycle[(at + 2) % len(cycle)]} has"
        for at in range(0, len(cycle), 2)
    ]
    return "; ".join(pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description="One agent of the demonstration, which starts it.")
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("pace_seconds", type=float)
    parser.add_argument("short_ttl_seconds", type=int)
    agent = Agent(**vars(parser.parse_args()))
    scenes = {"race": agent.race, "backlog": agent.backlog, "insist": agent.insist}
    agent.say("ready", "")
    for line in sys.stdin:
        cue = json.loads(line)
        scenes[cue["scene"]](cue["jobs"])
        agent.say("ready", "")


if __name__ == "__main__":
    main()
