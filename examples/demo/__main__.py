"""Five agents work through a backlog of issues, against a real server, and the journal proves what came of it.

    make demo

which runs `python -m examples.demo`. It starts a server and five agents, each a process of its own, and tells what
happens to them, until every issue is done. Then it reads the server's journal, and says whether each was done exactly
once; if not, it names the issue and ends with 1. The agents follow a script. Who is first is real, so no two runs are
the same. Ctrl-C ends it all at any time. What it writes is in a temporary folder, which goes with it.

    make demo ARGS="--fast"                  as fast as it can, for tests
    make demo ARGS="--evidence proof.json"   keep what the proof is made of; `python -m examples.demo.proof` judges it
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from examples.demo.backlog import AGENTS, ISSUES
from examples.demo.chapters import Chapters
from examples.demo.crew import Crew
from examples.demo.errors import FailedError, StoppedError
from examples.demo.proof import judge
from examples.demo.story import Story
from examples.demo.world import World
from holdfast.errors import HoldfastError

SECONDS_MAX = 55.0
PACE_SECONDS, FAST_PACE_SECONDS = 0.9, 0.05
"""How long a piece of work takes, and how long a reader has."""
GAP_SECONDS = 0.07
"""Between two lines."""
DIES_AFTER_SECONDS, FAST_DIES_AFTER_SECONDS = 3, 2
"""The TTL of a claim whose agent is killed."""
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = 130


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description="Five agents, one backlog, one server; and a proof.")
    parser.add_argument("--fast", action="store_true", help="as fast as it can, for tests")
    parser.add_argument("--evidence", metavar="FILE", type=Path, help="keep what the proof is made of, as JSON")
    arguments = parser.parse_args()
    if arguments.evidence and not arguments.evidence.parent.is_dir():
        parser.error(f"{arguments.evidence} cannot be written: there is no such folder")
    story = Story(sys.stdout, 0 if arguments.fast else GAP_SECONDS)
    crew = Crew(until=time.monotonic() + SECONDS_MAX)
    for number in STOPS:
        # Nothing of ours is interrupted in the middle: the story ends where it next waits for a report.
        signal.signal(number, lambda *_: crew.stop_soon())
    try:
        with ExitStack() as stack:
            stack.callback(crew.close)
            return run(arguments, crew, story, stack)
    except StoppedError:
        pass
    except (FailedError, HoldfastError) as error:
        # Ctrl-C in a terminal also reaches a command that we run, and so it fails.
        if not crew.is_stopping:
            print(f"demo: {error}", file=sys.stderr)
            return 1
    except BrokenPipeError:
        # Nobody reads any more; Python would complain of it once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    print("\nStopped. Nothing is left behind.", flush=True)
    return INTERRUPTED


def run(arguments: argparse.Namespace, crew: Crew, story: Story, stack: ExitStack) -> int:
    """Tell the whole story; 1 if it did not end as promised."""
    pace_seconds = FAST_PACE_SECONDS if arguments.fast else PACE_SECONDS
    ttl_seconds = FAST_DIES_AFTER_SECONDS if arguments.fast else DIES_AFTER_SECONDS
    story.title(f"Holdfast: {len(AGENTS)} agents, {len(ISSUES)} issues, one server", "Starting …")
    world = World(stack)
    stack.callback(crew.end)
    crew.start(AGENTS, world.folder, world.env("agents"), [str(pace_seconds), str(ttl_seconds)])
    for report in crew.reports(AGENTS):
        story.tell(report)
    Chapters(world, crew, story, pace_seconds, ttl_seconds).play()
    evidence = world.evidence()
    if arguments.evidence:
        evidence.save(arguments.evidence)
    findings = judge(evidence)
    story.proof(findings, evidence.backlog)
    return 1 if any(verdict.faults for verdict in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
