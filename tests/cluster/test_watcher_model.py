"""The watcher's decisions, held against a naive model of N-13 over every sequence of looks up to a length.

The model is what the rule says, in the plainest words: the whole past is kept, and silence is added up anew each time.
"""

from __future__ import annotations

from itertools import pairwise, product
from typing import NamedTuple

import pytest

from holdfast.cluster import watcher
from holdfast.cluster.watcher import Watcher
from holdfast.journal.interface import Leadership
from tests.support import proof

LENGTH = proof.count("nodes: looks in a row of the watcher")
TAKEOVER_MS = 1_000
"""Two looks after a long pause are enough for it, if a pause counted."""
COUNTED_MS = 500
FIRST_EPOCH = 5
ME, OTHER = "process-of-mine", "process-of-another"


class Poll(NamedTuple):
    """One look: how long after the last one, and what it showed."""

    after_ms: int
    shows: str
    """`same`, `heartbeat`: it rose, `epoch`: another tenure, `old`: an epoch lower than was seen, `free`: given back,
    `away`: the store could not be asked."""


POLLS = [
    Poll(250, "same"),
    Poll(4_000, "same"),
    Poll(250, "heartbeat"),
    Poll(250, "epoch"),
    Poll(250, "old"),
    Poll(250, "free"),
    Poll(250, "away"),
]


def leadership(epoch: int, heartbeat: int, *, is_held: bool) -> Leadership:
    return Leadership(
        authority="a",
        epoch=epoch,
        term_id=f"{epoch:032x}",
        heartbeat=heartbeat,
        is_held=is_held,
        node="another",
        process=OTHER,
        url="http://another",
        last_seq=0,
        now_ms=0,
        since_wall_ms=0,
        format=1,
        version="test",
    )


def shown(polls: tuple[Poll, ...]) -> list[tuple[int, Leadership | None]]:
    """When each look was, and what it showed; None if the store could not be asked."""
    found: list[tuple[int, Leadership | None]] = [(0, leadership(FIRST_EPOCH, 1, is_held=True))]
    epoch, heartbeat, now_ms = FIRST_EPOCH, 1, 0
    for poll in polls:
        now_ms += poll.after_ms
        match poll.shows:
            case "heartbeat":
                heartbeat += 1
            case "epoch":
                epoch, heartbeat = epoch + 1, heartbeat + 1
            case _:
                pass
        match poll.shows:
            case "away":
                found.append((now_ms, None))
            case "old":
                found.append((now_ms, leadership(FIRST_EPOCH - 1, 1, is_held=True)))
            case _:
                heartbeat += poll.shows == "free"
                found.append((now_ms, leadership(epoch, heartbeat, is_held=poll.shows != "free")))
    return found


def should_take(past: list[tuple[int, Leadership | None]]) -> bool:
    """What N-13 says, by the whole past: the seat is free, or stood still for so long in looks that succeeded."""
    last = past[-1][1]
    if last is None or last.epoch < FIRST_EPOCH:
        return False
    silent_ms = 0
    for (before_ms, before), (now_ms, now) in reversed(list(pairwise(past))):
        seen = [one for one in (before, now) if one is not None and one.epoch >= FIRST_EPOCH]
        if any((one.epoch, one.heartbeat) != (last.epoch, last.heartbeat) for one in seen):
            break
        # What lies beside a look that failed, or that showed an old copy of the store, was not seen.
        if len(seen) == 2:
            silent_ms += min(now_ms - before_ms, COUNTED_MS)
    return not last.is_held or silent_ms >= TAKEOVER_MS


def wrong_decisions(length: int) -> list[tuple[Poll, ...]]:
    """Every sequence after which the watcher decides otherwise than the model."""
    wrong = []
    for polls in product(POLLS, repeat=length):
        past = shown(polls)
        leadership_watcher = Watcher("me", ME, takeover_ms=TAKEOVER_MS)
        takes = False
        for now_ms, seen in past:
            if seen is None:
                leadership_watcher.note_failed_poll()
                takes = False
            else:
                takes = leadership_watcher.observe(seen, now_ms, is_ours_over=True).why_take is not None
        if takes != should_take(past):
            wrong.append(polls)
    return wrong


def test_watcher_decides_as_the_model() -> None:
    """N-13: after every sequence of looks the seat is taken if, and only if, the rule says so."""
    assert wrong_decisions(LENGTH) == []


def test_trusted_silence_after_a_pause_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watcher that counts the time for which it was stopped itself is caught: it would depose who is alive."""
    monkeypatch.setattr(watcher, "COUNTED_MS_MAX", 3_600_000)
    assert wrong_decisions(2)
