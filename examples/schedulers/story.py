"""Schedulers that would do one thing several times, and do it once.

    python -m examples.schedulers.story celery
    python -m examples.schedulers.story apscheduler

They need the environments that `make examples` makes. No server is needed: each starts its own.

celery: every invoice is delivered three times, to two workers. The story itself has claimed the first one, so that its
tasks have to come back. In the end each invoice was sent once.

apscheduler: three machines have the same nightly job, and a fourth comes late. In the end there is one report.

What was done is compared with the history of the server. The exit code is 0 only if it is true.
"""

import argparse
import re
import sqlite3
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import holdfast
from examples.frameworks.backstage import (
    SECONDS_MAX,
    Child,
    environment_of,
    python_of,
    say,
    tried_to_leave,
    without_network,
)
from holdfast.fencing import SqlFence
from holdfast.testing import server

HERE = Path(__file__).resolve().parent
INVOICES = ("1842", "1843", "1844")
TIMES = 3
TRIAL = "examples.schedulers.celery.trial"
WORKER = ("--pool", "solo", "--loglevel", "INFO", "--without-gossip", "--without-mingle", "--without-heartbeat")


class Stage:
    """What a story has: the Python of its scheduler, a server, a folder, and the processes that it started."""

    def __init__(self, python: Path, client: holdfast.Holdfast, environment: dict[str, str], folder: Path) -> None:
        self.client = client
        self.folder = folder
        self._python = python
        self._environment = environment
        self._children: list[Child] = []

    def start(self, *arguments: str | Path, **environment: str) -> Child:
        child = Child([self._python, *arguments], self._environment | environment)
        self._children.append(child)
        return child

    def said(self, pattern: str, times: int) -> list[str]:
        """Wait until the processes have said it so often, or for too long; all that they said of it."""
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            found = re.findall(pattern, "".join(child.said for child in self._children))
            if len(found) >= times or time.monotonic() > deadline:
                return found
            time.sleep(0.05)

    def happened(self, job: str) -> list[str]:
        return [each.event for each in reversed(self.client.history(job))]

    def close(self) -> None:
        for child in self._children:
            child.kill()


def celery(stage: Stage) -> dict[str, bool]:
    """The facts of the first story, each with whether it is so."""
    queue, table = stage.folder / "queue", stage.folder / "invoices.db"
    queue.mkdir()
    settings = {"CELERY_BROKER": "filesystem://", "CELERY_QUEUE": str(queue), "INVOICES": str(table)}
    database = sqlite3.connect(table)
    database.execute("CREATE TABLE sent (invoice TEXT, token INTEGER)")  # Without a key, so that we see all writes.
    SqlFence().create(database)
    with stage.client.claim("invoices/1842", owner="story"):
        for name in ("worker-1", "worker-2"):
            stage.start("-m", "celery", "--quiet", "--app", TRIAL, "worker", "--hostname", name, *WORKER, **settings)
        stage.start("-m", TRIAL, *INVOICES * TIMES, **settings).ended()
        stage.said(r"Retry in", 1)
    ended = stage.said(r"succeeded in \S+ '(.+)'", len(INVOICES) * TIMES)
    sent = sorted(database.execute("SELECT invoice, token FROM sent"))
    tokens = [
        (each.job_id, each.fencing_token) for job in INVOICES for each in stage.client.history(f"invoices/{job}")[:1]
    ]
    database.close()
    return {
        "every delivery came to an end": len(ended) == len(INVOICES) * TIMES,
        "each invoice was sent once": [invoice for invoice, _ in sent] == list(INVOICES),
        "it was sent with the fencing token of the claim that is done": sent
        == [(job.removeprefix("invoices/"), token) for job, token in tokens],
        "all other deliveries found it done": sorted(ended)
        == sorted(f"{job} {how}" for job in INVOICES for how in ["is sent", *["was sent before"] * (TIMES - 1)]),
        "the history has one grant and one end for each, and before that ours for the first": all(
            stage.happened(f"invoices/{job}")
            == [*(["granted", "released"] if job == "1842" else []), "granted", "done"]
            for job in INVOICES
        ),
    }


def apscheduler(stage: Stage) -> dict[str, bool]:
    """The facts of the second story, each with whether it is so."""
    before = datetime.now(UTC).date()  # Should midnight come between, there are two days, and two reports.
    machine = ("-m", "examples.schedulers.apscheduler.nightly", "--now")
    for _ in range(3):
        stage.start(*machine, REPORTS=str(stage.folder))
    stage.said(r"process \d+: (.+)", 3)
    stage.start(*machine, REPORTS=str(stage.folder))
    came = stage.said(r"process \d+: (.+)", 4)
    reports = (stage.folder / "reports.txt").read_text(encoding="utf-8").splitlines()
    days = sorted({f"nightly-report-{day}" for day in (before, datetime.now(UTC).date())})
    made = [day for day in days if stage.client.job(day).status == "done"]
    return {
        "all four machines came to the job": len(came) == 4,
        "each day has one report": len(reports) == len(made) >= 1,
        "all other machines skipped it": sum(each.startswith("skipped") for each in came) == 4 - len(made),
        "the history has one grant and one end": all(stage.happened(day) == ["granted", "done"] for day in made),
    }


STORIES = {"celery": celery, "apscheduler": apscheduler}


def main() -> None:
    parser = argparse.ArgumentParser(description="Show that several schedulers do one thing once.")
    parser.add_argument("scheduler", choices=sorted(STORIES))
    name = parser.parse_args().scheduler
    python = python_of(name, HERE)
    without_network("examples.schedulers.story")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = stack.enter_context(server())
        client = stack.enter_context(running.client(owner="story"))
        stage = Stage(python, client, environment_of(running, folder), folder)
        stack.callback(stage.close)
        facts = STORIES[name](stage)
        facts["nobody tried to reach another machine"] = not tried_to_leave(folder)
    say("What was done, beside the history of the server:")
    for fact, is_so in facts.items():
        say(f"  {'true ' if is_so else 'FALSE'}  {fact}")
    if not all(facts.values()):
        sys.exit("This story is not true.")


if __name__ == "__main__":
    main()
