"""Clients that ask any node, and insist: what was not answered is asked again, with its key, at another one.

They are the workers of the crash loop, with the same history and the same judges. A worker there rests when its server
is gone; here it goes to the next door. It stays with a node that answers, as every client with several addresses does
(N-35); now and then they are dealt out anew, so that each node has some of them.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

from tests.cluster.journals import Stored
from tests.crash.history import History, Operation, judge
from tests.crash.load import BROKEN, Names, Request, Worker, read_outcome
from tests.support.http import Connection

Address: TypeAlias = tuple[str, int]
ANSWER_SECONDS_MAX = 3.0
"""A client that hears nothing for so long asks another node."""
INSIST_SECONDS_MAX = 60.0
AGAIN_SECONDS = 0.03
NOTHING_HAPPENED = frozenset({"not_leader", "storage_unavailable"})


class Roamer(Worker):
    """One client with a token of its own, and the addresses of all nodes."""

    def __init__(self, token: str, who: str, names: Names, history: History, seed: int, troubles: Counter[str]) -> None:
        super().__init__(token, who, names, history, seed)
        self.addresses: Sequence[Address] = ()
        self.address: Address = ("", 0)
        """The node that it stays with."""
        self._connections: dict[Address, Connection] = {}
        self._troubles = troubles

    def roam(self, is_over: Callable[[], bool]) -> None:
        """Ask one thing after another, at any node, until it is over."""
        try:
            while not is_over():
                self._insist(*self._next())
        finally:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()

    def _insist(self, operation: Operation, request: Request) -> None:
        """Ask until somebody knows. Without a key only what surely did not happen is asked again."""
        give_up_at = time.monotonic() + INSIST_SECONDS_MAX
        is_lost = False
        while True:
            address = self.address
            operation.sent_at = time.monotonic()
            trouble = self._try(operation, request, address)
            if trouble is None:
                return
            self._troubles[trouble] += 1
            self.address = self._chance.choice([other for other in self.addresses if other != address] or [address])
            is_lost = is_lost or trouble not in {*NOTHING_HAPPENED, "ConnectionRefusedError"}
            if is_lost and request.key is None and request.method != "GET":
                self._broke_off(operation, request)
                return
            assert time.monotonic() < give_up_at, f"nobody answers {operation}: {self._troubles}"
            time.sleep(AGAIN_SECONDS)

    def _try(self, operation: Operation, request: Request, address: Address) -> str | None:
        """Ask one node. None: it was answered; else what went wrong."""
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = Connection(*address, timeout_seconds=ANSWER_SECONDS_MAX)
        try:
            answer = request.send(connection)
        except BROKEN as error:
            return type(error).__name__
        if answer.status == 503:
            return str(answer.json()["code"])
        outcome = read_outcome(request.kind, answer)
        assert outcome is not None, f"{operation}: {answer}"
        operation.answered(outcome, time.monotonic())
        self._remember(operation, request, outcome)
        return None


class Roamers:
    """Several of them, at work in threads of their own."""

    def __init__(self, seed: int, *, count: int = 6, names: int = 5) -> None:
        chance, secret = random.Random(seed), uuid.UUID(int=random.Random(seed).getrandbits(128)).hex
        self.history = History()
        self.troubles: Counter[str] = Counter()
        self.tokens = ",".join(f"w{index}:w{index}-{secret}" for index in range(count))
        self._chance = random.Random(chance.getrandbits(64))
        shared = Names(names)
        self._everybody = [
            Roamer(f"w{index}-{secret}", f"w{index}", shared, self.history, chance.getrandbits(64), self.troubles)
            for index in range(count)
        ]
        self._is_over = threading.Event()
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def begin(self, addresses: Sequence[Address]) -> None:
        """Let everybody work."""
        for one in self._everybody:
            one.addresses = addresses
        self.deal_out()
        self._threads = [threading.Thread(target=self._run, args=(one,), daemon=True) for one in self._everybody]
        for thread in self._threads:
            thread.start()

    def deal_out(self) -> None:
        """Let each node have some of them from here on."""
        first = self._chance.randrange(len(self._everybody))
        for number, one in enumerate(self._everybody, first):
            one.address = one.addresses[number % len(one.addresses)]

    def finish(self) -> None:
        """Let everybody end; what went wrong in a thread is raised here."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(INSIST_SECONDS_MAX + 10)
            assert not thread.is_alive(), "a client hangs"
        self.look()

    def look(self) -> None:
        """Raise what went wrong so far."""
        if self._errors:
            raise self._errors[0]

    def answered_since(self, moment: float) -> int:
        """How many were asked after a moment, and answered."""
        done = self.history.operations[-500:]
        return sum(one.outcome is not None and one.sent_at > moment for one in done)

    def gap_around(self, moment: float, seconds_after: float) -> float:
        """The longest time around a moment in which nobody at all was answered."""
        answered = sorted(
            one.returned_at
            for one in self.history.operations
            if one.outcome is not None and moment - 0.5 < one.returned_at < moment + seconds_after
        )
        return max((later - sooner for sooner, later in pairwise(answered)), default=seconds_after)

    def _run(self, one: Roamer) -> None:
        try:
            one.roam(self._is_over.is_set)
        except BaseException as error:  # noqa: BLE001 - raised again by `look`, in the test's own thread
            self._errors.append(error)


def complaints_about(roamers: Roamers, journal: Stored) -> list[str]:
    """What all judges say: tokens, holders and early ends from outside, the journal as witness, and the search."""
    verdict = judge(roamers.history, journal.records())
    if verdict.undecided > max(1, verdict.names // 20):
        verdict.complaints.append(f"{verdict.undecided} of {verdict.names} names are undecided")
    return verdict.complaints
