"""What all agents of the story share: their command line, what a scripted model decides, and steps that have an effect.

Nothing here is about a framework, and little about Holdfast. In a program of yours a real model takes the place of
`next_call`, and the tools of your agent that of `send`.
"""

import argparse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast import JobHeld, Previous
from holdfast.fencing import TOKEN_HEADER

SECONDS_MAX = 120.0
"""How long a step may take."""


@dataclass(frozen=True)
class Part:
    """The part that one agent plays: its name, the issues that it would work on, and where its steps take effect."""

    name: str
    issues: list[str]
    hub: str
    ttl: float
    wait: float

    def say(self, text: str) -> None:
        print(f"{self.name}: {text}", flush=True)

    def send(self, step: str, issue: str, token: int) -> str:
        """Do a step, with the fencing token. The hub answers 412 to an owner of the past: an exception here."""
        request = urllib.request.Request(
            f"{self.hub}/issues/{issue}/{step}", data=self.name.encode(), headers={TOKEN_HEADER: str(token)}
        )
        with urllib.request.urlopen(request, timeout=SECONDS_MAX):
            return f"{step} is done"


def read_part() -> Part:
    """The part that the command line gives."""
    parser = argparse.ArgumentParser(description="One agent of the story; story.py starts it.")
    parser.add_argument("name")
    parser.add_argument("issues", nargs="+")
    parser.add_argument("--hub", required=True, help="the address of what the steps change")
    parser.add_argument("--ttl", type=float, required=True, help="how long a job stays with an agent that has died")
    parser.add_argument("--wait", type=float, required=True, help="how long to stand in line")
    return Part(**vars(parser.parse_args()))


# --- The scripted model -----------------------------------------------------------------------------------------------


def next_call(part: Part, read: Sequence[str]) -> tuple[str, str] | None:
    """What a model would do: the next tool and its issue, by what it has read so far. None: it has finished."""
    refused = sum(" is with " in each for each in read)
    if refused == len(part.issues):
        return None
    last = read[-1] if read else ""
    if not last or " is with " in last:
        return "push_fix", part.issues[refused]
    return ("open_pull_request", part.issues[refused]) if "push_fix is done" in last else None


# --- What a model reads -----------------------------------------------------------------------------------------------


def job_of(issue: str) -> str:
    """The job is named after the work, and in the same way by everybody."""
    return f"github://acme/app/issues/{issue}"


def who_has_it(issue: str, held: JobHeld) -> str:
    since = f"{held.claimed_at:%H:%M:%S} UTC" if held.claimed_at else "a moment ago"
    return f"issue {issue} is with {held.owner} since {since}, whose last note is: {held.note}. Take another one."


def who_had_it(issue: str, before: Previous) -> str:
    ended = f"{before.ended} at {before.at:%H:%M:%S} UTC"
    return (
        f"issue {issue} is yours now. Before you, {before.shown_as} had it ({ended}). "
        f"Its last note is: {before.note}. Go on from there."
    )
