"""The same story for every framework: two agents want one job, and one of them gets it; an agent dies, another goes on.

    python -m examples.frameworks.story plain
    python -m examples.frameworks.story langgraph

The second needs the environment that `make examples` makes. No server is needed: this starts its own, and beside it the
hub, a web service that the agents change. Agents are processes (`NAME/agent.py`), and their models are scripted.

1.  agent-1 claims issue 1842 and works. agent-2 wants the same, is told who has it, and takes issue 1843.
2.  agent-3 claims issue 1850 and is killed in its second step, when a request of it is still on the way. agent-4 takes
    over when the lease has ended, reads the note of agent-3, and does only what is left. Then the request of agent-3
    arrives: it carries an old fencing token, and the hub refuses it.
3.  agent-5 cannot reach the server. It does nothing: a hook that cannot ask whose the job is lets no tool run.

At the end what was said is compared with the history of the server and with what the hub has. The exit code is 0 only
if all of it is true.
"""

import argparse
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import holdfast
from examples.frameworks.backstage import (
    HERE,
    SECONDS_MAX,
    Child,
    environment_of,
    python_of,
    say,
    tried_to_leave,
    without_network,
)
from examples.frameworks.hub import Effect, Hold, Hub
from examples.frameworks.stage import job_of
from holdfast.testing import server

STEPS = ("push_fix", "open_pull_request")
WORK = {
    "agent-1": ("1842", STEPS),
    "agent-2": ("1843", STEPS),
    "agent-3": ("1850", STEPS[:1]),
    "agent-4": ("1850", STEPS[1:]),
}
"""Who shall do what."""

NOBODY_LISTENS = "http://127.0.0.1:9"


class Cast:
    """Starts agents, and ends those that are still there when the story is over."""

    def __init__(self, command: list[str | Path], environment: dict[str, str]) -> None:
        self.agents: dict[str, Child] = {}
        self._command = command
        self._environment = environment

    def start(self, name: str, *issues: str, wait: float = 0, **environment: str) -> Child:
        command = [*self._command, "--wait", str(wait), name, *issues]
        self.agents[name] = Child(command, self._environment | environment)
        return self.agents[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self.agents.values():
            agent.kill()


def tell(cast: Cast, hub: Hub) -> None:
    say("Two agents want issue 1842.")
    hold = hub.hold("1842", "open_pull_request")
    first = cast.start("agent-1", "1842", "1843")
    until_arrived(hold, first)
    cast.start("agent-2", "1842", "1843").ended()
    hold.go.set()
    first.ended()

    say("An agent dies.")
    late = hub.hold("1850", "open_pull_request")
    third = cast.start("agent-3", "1850")
    until_arrived(late, third)
    third.kill()
    say("  story: agent-3 is killed, and one of its requests is still on the way")
    cast.start("agent-4", "1850", wait=SECONDS_MAX).ended()
    late.go.set()
    late.answered.wait(SECONDS_MAX)
    say("  story: the request of agent-3 has arrived")

    say("The server cannot be reached.")
    cast.start("agent-5", "1851", HOLDFAST_URL=NOBODY_LISTENS).ended()


def until_arrived(hold: Hold, agent: Child) -> None:
    """Wait until the agent's request is on the way. There is no story without it."""
    deadline = time.monotonic() + SECONDS_MAX
    while not hold.arrived.wait(0.05):
        if not agent.is_running or time.monotonic() > deadline:
            agent.kill()
            agent.ended()
            sys.exit("FALSE: the agent did not come so far that it opened a pull request")


# --- The proof --------------------------------------------------------------------------------------------------------


def facts(client: holdfast.Holdfast, hub: Hub, agents: dict[str, Child], left: str) -> dict[str, bool]:
    """What the story says, and whether it is so, by the history of the server and by what the hub has."""
    happened = {issue: ends(client, issue) for issue, _ in WORK.values()}
    tokens = {owner: token for each in happened.values() for event, owner, token in each if event == "granted"}
    owners = {issue: [(event, owner) for event, owner, _ in each] for issue, each in happened.items()}
    done = [
        Effect(issue, step, agent, tokens.get(agent, -1)) for agent, (issue, steps) in WORK.items() for step in steps
    ]
    late = Effect("1850", STEPS[1], "agent-3", tokens.get("agent-3", -1))
    codes = {name: agent.ended() for name, agent in agents.items()}
    reported, heir = agents["agent-2"].said, agents["agent-4"].said
    return {
        "issue 1842 had one owner, agent-1, who released it": owners["1842"] == from_start_to_end("agent-1"),
        "agent-2 was told so, and what agent-1 had noted": "1842 is with agent-1" in reported
        and "note is: push_fix is done" in reported,
        "issue 1843 had one owner, agent-2, who released it": owners["1843"] == from_start_to_end("agent-2"),
        "the claim of agent-3 on issue 1850 expired, and then agent-4 had it": owners["1850"]
        == [("granted", "agent-3"), ("expired", "agent-3"), *from_start_to_end("agent-4")],
        "agent-4 read the note of agent-3": "agent-3 had it" in heir and "note is: push_fix is done" in heir,
        "every step was done once, by the owner of that time, with its fencing token": sorted(map(repr, hub.accepted))
        == sorted(map(repr, done)),
        "the late request of agent-3 was refused, and nothing else was": hub.refused == [late],
        "agent-5, without a server, did nothing and failed": codes.pop("agent-5") > 0
        and "agent-5" not in {each.agent for each in hub.accepted + hub.refused},
        "agent-3 was killed, and the others ended well": codes
        == {"agent-1": 0, "agent-2": 0, "agent-3": -signal.SIGKILL, "agent-4": 0},
        "nothing is claimed any more": client.list_claimed_jobs() == [],
        "nobody tried to reach another machine": not left,
    }


def from_start_to_end(owner: str) -> list[tuple[str, str]]:
    return [("granted", owner), ("released", owner)]


def ends(client: holdfast.Holdfast, issue: str) -> list[tuple[str, str, int]]:
    """Who got an issue and how that ended, oldest first. Who stood in line is left out."""
    history = [each for each in client.history(job_of(issue)) if each.event not in {"waiting", "left"}]
    return [
        ("failed" if each.reason == "failed" else each.event, each.owner or "", each.fencing_token or 0)
        for each in reversed(history)
    ]


def main() -> None:
    names = sorted(path.parent.name for path in HERE.glob("*/agent.py"))
    parser = argparse.ArgumentParser(description="Tell the story with agents of one framework.")
    parser.add_argument("framework", choices=names)
    parser.add_argument("--ttl", type=float, default=5, help="how long a job stays with an agent that has died")
    parser.add_argument("--agent", type=Path, help="run this agent.py in place of the framework's own")
    arguments = parser.parse_args()
    python = python_of(arguments.framework, HERE)
    without_network("examples.frameworks.story")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = stack.enter_context(server())
        client = stack.enter_context(running.client(owner="story"))
        hub = Hub(client)
        stack.enter_context(hub.serving())
        file = arguments.agent or HERE / arguments.framework / "agent.py"
        command = [python, file, "--hub", hub.url, "--ttl", str(arguments.ttl)]
        cast = stack.enter_context(Cast(command, environment_of(running, folder)))
        tell(cast, hub)
        left = tried_to_leave(folder)
        found = facts(client, hub, cast.agents, left)
    say("What was said, beside the history of the server and what the hub has:")
    for fact, is_so in found.items():
        say(f"  {'true ' if is_so else 'FALSE'}  {fact}")
    if not all(found.values()):
        sys.exit(f"This story is not true.\n{left}")


if __name__ == "__main__":
    main()
