"""A server that is only imagined, with its clients, clock and journal, and with a bug if it is told to have one.

It makes histories whose truth is known, to try the judges of `history.py` on.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from tests.crash.history import History, Operation, Outcome

Bug: TypeAlias = Literal[
    "double grant",
    "reused token",
    "lower token",
    "early end",
    "lost release",
    "invented grant",
    "lost grant",
    "stale look",
    "late effect",
]

TTL_SECONDS = 3.0
CLIENTS = 8


class Imagined:
    """Plays `operations` requests about one name and keeps what clients saw and what the journal holds."""

    def __init__(self, seed: int, operations: int, bug: Bug | None = None, *, lost: float = 0.02) -> None:
        self.history = History()
        self.journal: list[dict[str, Any]] = []
        self._chance = random.Random(seed)
        self._bug = bug
        self._bug_at = self._chance.randrange(operations // 4, operations // 2)
        self._lost = lost
        self._left = operations
        self._now = 0.0
        self._seq = self._token = 0
        self._live: dict[str, Any] | None = None
        self._mine: dict[int, str] = {}
        self._queue: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._events = 0

    def play(self) -> Imagined:
        """Until every request was answered or given up."""
        for client in range(CLIENTS):
            self._later(0.1, self._ask, client)
        while self._queue:
            self._now, _, step, arguments = heapq.heappop(self._queue)
            step(*arguments)
        return self

    def _later(self, mean_seconds: float, step: Callable[..., None], *arguments: object) -> None:
        self._events += 1
        delay = self._chance.expovariate(1 / mean_seconds)
        heapq.heappush(self._queue, (self._now + delay, self._events, step, arguments))

    # The clients.

    def _ask(self, client: int) -> None:
        if self._left == 0:
            return
        self._left -= 1
        label = self._mine.get(client)
        draw = self._chance.random()
        if draw < 0.15:
            one = Operation("get", "job")
        elif label is None:
            one = Operation("acquire", "job", f"claim-{self._left}", TTL_SECONDS)
        else:
            one = Operation("renew" if draw < 0.5 else "release", "job", label, TTL_SECONDS)
        one.called_at = one.sent_at = self._now
        self.history.operations.append(one)
        self._later(0.05, self._decide, client, one)

    def _hear(self, client: int, one: Operation, outcome: Outcome) -> None:
        one.answered(outcome, self._now)
        if outcome.what == "granted":
            self._mine[client] = one.label
        elif outcome.what == "gone" or one.kind == "release":
            self._mine.pop(client, None)
        self._later(0.3, self._ask, client)

    def _give_up(self, client: int, one: Operation) -> None:
        if one.kind == "get":
            self.history.operations.remove(one)
        self._mine.pop(client, None)
        self._later(0.3, self._ask, client)

    # The server.

    def _decide(self, client: int, one: Operation) -> None:
        is_buggy = self._left < self._bug_at
        if self._live is not None and self._now >= self._live["until"]:
            self._end("expired")
        outcome = self._outcome(one, is_buggy=is_buggy)
        if self._chance.random() < self._lost:
            self._later(1.0, self._give_up, client, one)
        else:
            self._later(0.05, self._hear, client, one, outcome)

    def _outcome(self, one: Operation, *, is_buggy: bool) -> Outcome:
        match one.kind:
            case "get":
                if is_buggy and self._bug == "stale look" and self._live is not None:
                    return Outcome("free")
                if self._live is None:
                    return Outcome("free")
                return Outcome("held", self._live["label"], self._live["token"])
            case "acquire":
                return self._claim(one, is_buggy=is_buggy)
            case "renew" | "release":
                return self._change(one, is_buggy=is_buggy)

    def _claim(self, one: Operation, *, is_buggy: bool) -> Outcome:
        if self._live is not None:
            if is_buggy and self._bug == "double grant":
                self._live = None
            elif is_buggy and self._bug == "early end" and self._now < self._live["until"] - 1:
                self._end("expired")
            elif is_buggy and self._bug == "late effect":
                self._live = None
                self._grant(one)
                return Outcome("held", "somebody")
            else:
                return Outcome("held", self._live["label"])
        if is_buggy and self._bug == "invented grant":
            ghost = Operation("acquire", "job", f"ghost-{one.label}", TTL_SECONDS)
            self._grant(ghost)
            return Outcome("held", ghost.label)
        if is_buggy and self._bug == "reused token":
            self._token -= 1
        elif is_buggy and self._bug == "lower token":
            self._token = max(0, self._token - 3)
        outcome = self._grant(one)
        if is_buggy and self._bug == "lost grant":
            self._live = None
            self.journal.pop()
        return outcome

    def _change(self, one: Operation, *, is_buggy: bool) -> Outcome:
        if self._live is None or self._live["label"] != one.label:
            return Outcome("gone")
        if one.kind == "renew":
            self._live["until"] = self._now + TTL_SECONDS
            self._write("renewed", lease_id=one.label, until_ms=self._live["until"] * 1000)
            return Outcome("done", left_seconds=TTL_SECONDS)
        if not (is_buggy and self._bug == "lost release"):
            self._end("released")
        return Outcome("done")

    def _grant(self, one: Operation) -> Outcome:
        self._token += 1
        until = self._now + TTL_SECONDS
        self._live = {"label": one.label, "token": self._token, "until": until}
        lease = {"lease_id": one.label, "token": self._token, "owner": one.label, "until_ms": until * 1000}
        self._write("granted", lease=lease)
        return Outcome("granted", one.label, self._token, one.label, TTL_SECONDS)

    def _end(self, how: str) -> None:
        assert self._live is not None
        self._write("ended", lease_id=self._live["label"], token=self._live["token"], how=how)
        self._live = None

    def _write(self, event: str, **fields: object) -> None:
        self._seq += 1
        self.journal.append({"seq": self._seq, "at_ms": self._now * 1000, "event": event, "name": "job", **fields})
