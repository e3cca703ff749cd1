"""Five agents see one GitHub issue. One works on it, the others say who does, and when that one dies another goes on.

Each run of this file is one agent. Start it in several terminals:

    python examples/five_agents.py github-issue-1842 --agent agent-3 --work-seconds 10

or let it start five of itself, which may all have the same name:

    python examples/five_agents.py github-issue-1842 --agent agent-3 --together 5

Kill the one at work with `kill -9` and start another with `--agent agent-4 --wait 60`: it gets the issue when the lease
of the dead one has ended, after `--ttl` seconds at most, and reads how far the work had come. One that waits needs a
name of its own: an owner that waits for itself would wait for ever, and is refused.

The server is found by HOLDFAST_URL and HOLDFAST_TOKEN or HOLDFAST_TOKEN_FILE; without them, what `make run` set up is.
"""

import argparse
import os
import subprocess
import sys

import holdfast

STEPS = ("reading the issue", "writing a fix", "running the tests")


def work(arguments: argparse.Namespace) -> None:
    try:
        with holdfast.claim(
            arguments.job,
            owner=arguments.agent,
            ttl=arguments.ttl,
            wait=arguments.wait,
            metadata={"pid": os.getpid(), "task": arguments.job},
        ) as claim:
            say(f"{claim.job_id} is mine (fencing token {claim.fencing_token})")
            if claim.previous:
                tell_of(claim.previous)
            for step in STEPS:
                claim.note(step)  # Everybody sees it at once; whoever takes over reads the last one.
                say(step)
                claim.lost.wait(arguments.work_seconds / len(STEPS))  # Stands for the work itself.
                claim.raise_if_lost()
        say("finished")
    except holdfast.JobHeld as held:
        since = f"since {held.claimed_at:%H:%M:%S} UTC" if held.claimed_at else "not open yet"
        note = held.note or "none yet"
        say(f"{held.job_id} is owned by {held.owner} {since}, {held.metadata}, note: {note}; leaving")
    except holdfast.LeaseLost as lost:
        say(f"stopping, it is not mine any more: {lost}")


def tell_of(previous: holdfast.Previous) -> None:
    say(f"before me: {previous.owner}, {previous.ended} at {previous.at:%H:%M:%S} UTC, last note: {previous.note}")


def say(text: str) -> None:
    print(f"[{os.getpid()}] {text}", flush=True)


def start_together(count: int) -> None:
    """Start some agents at once, in processes of their own, and wait for all of them."""
    command = [sys.executable, *sys.argv, "--together", "1"]
    for agent in [subprocess.Popen(command) for _ in range(count)]:
        agent.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="One agent, or several, and one job.")
    parser.add_argument("job", help="the name of the work, the same for everybody: github-issue-1842")
    parser.add_argument("--agent", help="the name that others see; host:pid:random unless given")
    parser.add_argument("--work-seconds", type=float, default=10)
    parser.add_argument("--ttl", type=float, default=15, help="how long the job stays ours after we died")
    parser.add_argument("--wait", type=float, default=0, help="stand in line for so many seconds instead of leaving")
    parser.add_argument("--together", type=int, default=1, metavar="N", help="start N agents at once")
    arguments = parser.parse_args()
    if arguments.together > 1:
        start_together(arguments.together)
    else:
        work(arguments)


if __name__ == "__main__":
    main()
