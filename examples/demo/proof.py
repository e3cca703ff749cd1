"""The proof: what journal, ledger and remote say about every job, and whether that is what was promised.

    python -m examples.demo.proof EVIDENCE.json

judges what `make demo ARGS="--evidence EVIDENCE.json"` kept. Nothing here asks an agent: the journal is the server's,
the ledger is the file that the agents wrote to, the remote the repository that they pushed to. A job is in order if

1. it never had two owners: each grant comes after the end of the one before it, with a greater fencing token,
   and each end is that of the claim that was live;
2. nobody has it any more;
3. it was done once: one claim ended as done, and no other did;
4. its result was written once, under the very claim that was done: no claim that was lost has written;
5. what had to be pushed for it is at the remote, once.

3 to 5 are for the jobs of the backlog. The others are held for a while and given back.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from examples.demo.ledger import Write

ENDS = ("done", "released", "expired", "revoked", "session_ended")
GRANTS = ("granted", "transferred")


@dataclass(frozen=True)
class Event:
    """A line of the journal about one job."""

    seq: int
    event: str
    owner: str | None
    token: int | None


@dataclass(frozen=True)
class Evidence:
    """All that is judged."""

    backlog: Sequence[str]
    journal: Mapping[str, Sequence[Event]]
    """What the server has of each job and resource."""
    writes: Sequence[Write]
    """What the ledger took."""
    to_push: Sequence[str]
    """The jobs whose result is a commit at the remote."""
    commits: Sequence[str]
    """The job of each commit there."""

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Evidence:
        stored = json.loads(path.read_text())
        journal = {job: [Event(**event) for event in events] for job, events in stored["journal"].items()}
        writes = [Write(**write) for write in stored["writes"]]
        return cls(stored["backlog"], journal, writes, stored["to_push"], stored["commits"])


@dataclass(frozen=True)
class Verdict:
    """What is known of one job."""

    job: str
    claims: int
    ends: tuple[str, ...]
    done: Event | None
    faults: tuple[str, ...]


def judge(evidence: Evidence) -> list[Verdict]:
    """Judge every job that anything names."""
    written = (write.job for write in evidence.writes)
    named = dict.fromkeys([*evidence.backlog, *evidence.journal, *written, *evidence.commits])
    return [_judge_job(job, evidence) for job in named]


def _judge_job(job: str, evidence: Evidence) -> Verdict:
    events = sorted(evidence.journal.get(job, ()), key=lambda event: event.seq)
    ends = [event for event in events if event.event in ENDS]
    done = [event for event in ends if event.event == "done"]
    writes = [write for write in evidence.writes if write.job == job]
    faults = list(_owners(events))
    if job in evidence.backlog:
        faults += [*_once(done), *_written(writes, ends)]
    elif writes:
        faults.append(f"{writes[0].agent} wrote a result, and it is not in the backlog")
    faults += _pushed(evidence.commits.count(job), int(job in evidence.to_push))
    claims = sum(event.event in GRANTS for event in events)
    return Verdict(job, claims, tuple(event.event for event in ends), done[0] if done else None, tuple(faults))


def _owners(events: Sequence[Event]) -> Iterator[str]:
    """Rules 1 and 2: one owner at a time, and none in the end."""
    live: Event | None = None
    greatest = 0
    for event in events:
        if event.event in GRANTS:
            if live is not None and event.event == "granted":
                yield f"two owners: {_who(event)} got it while {_who(live)} had it"
            if (event.token or 0) <= greatest:
                yield f"the fencing token of {_who(event)} is not greater than {greatest}"
            live, greatest = event, max(greatest, event.token or 0)
        elif event.event in ENDS:
            if live is None or live.token != event.token:
                yield f"the claim of {_who(event)} ended ({event.event}) and was not live"
            else:
                live = None
    if live is not None:
        yield f"{_who(live)} still has it"


def _once(done: Sequence[Event]) -> Iterator[str]:
    """Rule 3."""
    if not done:
        yield "never done"
    elif len(done) > 1:
        yield f"done {len(done)} times: by {', '.join(map(_who, done))}"


def _written(writes: Sequence[Write], ends: Sequence[Event]) -> Iterator[str]:
    """Rule 4."""
    how = {event.token: event.event for event in ends}
    if not writes:
        yield "no result was written"
    for write in writes:
        if how.get(write.token) != "done":
            ended = how.get(write.token, "never seen by the journal")
            yield f"{write.agent} wrote with fencing token {write.token}, and that claim was not done: {ended}"
    if len(writes) > 1:
        yield f"{len(writes)} results were written"


def _pushed(commits: int, expected: int) -> Iterator[str]:
    """Rule 5."""
    if commits != expected:
        yield f"{commits} commits of it were pushed, not {expected}"


def _who(event: Event) -> str:
    return f"{event.owner} (fencing token {event.token})"


def main() -> int:
    parser = argparse.ArgumentParser(description="Judge what a demonstration has kept.")
    parser.add_argument("evidence", type=Path)
    path: Path = parser.parse_args().evidence
    try:
        evidence = Evidence.load(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        parser.error(f"{path} is not what a demonstration keeps: {type(error).__name__}: {error}")
    findings = judge(evidence)
    faults = [f"{verdict.job}: {fault}" for verdict in findings for fault in verdict.faults]
    if not evidence.backlog:
        faults.append("nothing was done: the backlog is empty")
    print("\n".join(faults) or f"{len(findings)} jobs, all in order")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
