"""A line behind a gate, and the party of all who wait and work at one server.

The law of this file: a gate is opened only when all who come back are seen in line, so that their order is certain.
"""

from __future__ import annotations

import http.client
import random
import threading
import time
import uuid
from collections.abc import Callable
from typing import TypeAlias

from tests.crash.history import History
from tests.crash.load import BROKEN, Crowd, Request
from tests.crash.waiting_load import Asker, Barrier, Claim, Deed, Errand, Ledger, Operator
from tests.support.api import lock_path
from tests.support.http import Connection

CLIENTS = 6
MEMBERS = 6
"""How many stand in the line behind a gate; every third of them never comes back."""
BACK_SECONDS_MAX = 30


class GatedQueue(Asker):
    """A gate with a line behind it: formed in one life of the server, it comes back after the crash and is let in."""

    def __init__(self, who: str, token: str, ledger: Ledger, seed: int) -> None:
        super().__init__(who, token, ledger, seed)
        self.let_in = 0
        self._gate: Claim | None = None
        self._members: list[Claim] = []
        self._opening: Deed | None = None

    def run(self, connection: Connection, is_over: Callable[[], bool]) -> None:
        """Take the gate and let a line form behind it, until the server is gone."""
        if self._members:
            return
        number = next(self._numbers)
        name = f"line/{number}"
        if self._gate is None:
            self._gate = self._ledger.claim(Claim(f"gate-{number}", self._key(), "one", (name,), 900))
        name = self._gate.names[0]
        try:
            self._gate.send(connection, self._gate.request(self._token, 0))
        except BROKEN:
            return
        assert self._gate.what == "granted", self._gate
        self._members = [
            self._ledger.claim(Claim(f"{name}/{index}", self._key(), "one", (name,), 900)) for index in range(MEMBERS)
        ]
        self._ledger.vanished.update(member.label for member in self._members[2::3])
        # Some hear of their place, the others are cut off while they wait.
        waits = [self._chance.choice((0.02, 20.0)) for _ in self._members]
        address = connection._http.host, connection._http.port
        pairs = zip(self._members, waits, strict=True)
        Jobs([_waiting(member, self._token, wait, address) for member, wait in pairs]).finish()

    def look_after(self, connection: Connection) -> None:
        """Let in, in the order in which they joined, all who come back. They come in any order."""
        if self._gate is None or not self._members:
            return
        address = connection._http.host, connection._http.port
        staying = [one for one in self._members if one.label not in self._ledger.vanished]
        for member in staying:
            if member.what == "granted":
                _let_next(connection, member, self._token)
        back = [one for one in staying if one.what is None]
        self._chance.shuffle(back)
        jobs = Jobs([_through(member, self._token, address) for member in back])
        try:
            self._open(connection, self._gate, back)
        finally:
            broke_off = jobs.finish()
        if broke_off:
            raise http.client.HTTPException("the server is gone")
        self.let_in += len(staying)
        self._gate, self._members, self._opening = None, [], None

    def _open(self, connection: Connection, gate: Claim, back: list[Claim]) -> None:
        name, (lease_id, _) = next(iter(gate.granted.items()))
        is_first = self._opening is None
        if self._opening is None:
            until = time.monotonic() + BACK_SECONDS_MAX
            look = Request("GET", lock_path(name), None, self._token, None)
            while (seen := look.send(connection).json())["waiting"] != len(back):
                assert time.monotonic() < until, f"not all are back: {seen}, {back}"
                time.sleep(0.005)
            self._opening = self._ledger.deed(Deed("release", name, self._key(), lease_id))
        opening = self._opening
        request = Request("POST", f"{lock_path(name)}/release", {"lease_id": lease_id}, self._token, opening.key)
        answer = request.send(connection)
        if answer.status == 503:
            raise http.client.HTTPException("not now")
        assert answer.status == 200, f"{opening}: {answer}"
        opening.worked = True
        if is_first:
            self._ledger.barriers.append(Barrier(name, lease_id, frozenset(one.label for one in back)))


Job: TypeAlias = Callable[[], None]
Address: TypeAlias = tuple[str, int]


def _waiting(member: Claim, token: str, wait_seconds: float, address: Address) -> Job:
    def wait() -> None:
        with Connection(*address, timeout_seconds=60) as connection:
            member.send(connection, member.request(token, wait_seconds))
        assert member.what is None, f"it got through a closed gate: {member}"

    return wait


def _through(member: Claim, token: str, address: Address) -> Job:
    def come_back() -> None:
        with Connection(*address, timeout_seconds=60) as connection:
            while member.what is None:
                member.send(connection, member.request(token, 20))
            assert member.what == "granted", f"its place is lost: {member}"
            _let_next(connection, member, token)

    return come_back


def _let_next(connection: Connection, member: Claim, token: str) -> None:
    """Give the name back, with a key that is always the same: it is done once, however often."""
    (name, (lease_id, _)), *_ = member.granted.items()
    request = Request("POST", f"{lock_path(name)}/release", {"lease_id": lease_id}, token, f"release-{lease_id}")
    answer = request.send(connection)
    if answer.status == 503:
        raise http.client.HTTPException("not now")
    assert answer.status == 200, f"{member}: {answer}"


class Jobs:
    """Several things done at once, each in a thread of its own."""

    def __init__(self, jobs: list[Job]) -> None:
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(job,), daemon=True) for job in jobs]
        for thread in self._threads:
            thread.start()

    def finish(self) -> bool:
        """Wait for all and raise what went wrong. True: the server went away under some of them."""
        for thread in self._threads:
            thread.join(90)
            assert not thread.is_alive(), "somebody in line hangs"
        for error in self._errors:
            if not isinstance(error, BROKEN):
                raise error
        return bool(self._errors)

    def _run(self, job: Job) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - raised again by `finish`, in the caller's own thread
            self._errors.append(error)


class MixedLoad(Crowd):
    """Several who run errands, an operator, and a line behind a gate, with tokens that no other server knows."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        secret = uuid.uuid4().hex
        self.history = History()
        self.ledger = Ledger()
        whos = [f"e{index}" for index in range(CLIENTS)]
        plain = ",".join(f"{who}:{who}-{secret}" for who in [*whos, "line"])
        self.tokens = f"{plain},operator:operator-{secret}:read+claim+admin"
        self.errands = [Errand(who, f"{who}-{secret}", self.ledger, chance.getrandbits(64)) for who in whos]
        self.queue = GatedQueue("line", f"line-{secret}", self.ledger, chance.getrandbits(64))
        operator = Operator("operator", f"operator-{secret}", self.ledger, chance.getrandbits(64))
        self._everybody = [*self.errands, operator, self.queue]
        self._errors: list[BaseException] = []
