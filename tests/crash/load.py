"""Clients that keep a server busy, remember all they were told, and ask again when they were not told.

The law of this file: what is asked is noted before it is sent, and what broke off is asked again with its own key, word
for word, once there is a server again. A client that lost its connection rests until it is told where the server is.
"""

from __future__ import annotations

import http.client
import itertools
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from tests.crash.history import OPERATIONS_PER_NAME_MAX, History, Kind, Operation, Outcome
from tests.support.api import lock_path
from tests.support.http import Answer, Connection
from tests.support.server import ServerProcess

BROKEN = (OSError, http.client.HTTPException)
"""What a request raises whose server died."""
TTLS_SECONDS = (1, 1, 1, 2, 60, 600)
Then: TypeAlias = Callable[[Answer], None]
SAMPLE = 40
"""How many of the older things are looked at again after each crash."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request that can be sent again, word for word."""

    method: str
    path: str
    body: dict[str, Any] | None
    token: str
    key: str | None

    @property
    def kind(self) -> str:
        """The verb of a lock request."""
        return self.path.rpartition("/")[2]

    def send(self, connection: Connection) -> Answer:
        headers = {} if self.key is None else {"Idempotency-Key": self.key}
        return connection.request(self.method, self.path, self.body, token=self.token, headers=headers)


@dataclass(slots=True)
class Mine:
    """A lease as its holder knows it."""

    label: str
    lease_id: str
    token: int
    ttl_seconds: int
    """The longest it was ever asked for: a renewal by so much takes no time away."""
    until: float
    """It lives at least until then, by this machine's monotonic clock."""


@dataclass(slots=True)
class Names:
    """A handful of names, each replaced by a new one before too much is known of it."""

    count: int
    _used: dict[int, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def pick(self, chance: random.Random) -> str:
        return self.at(chance.randrange(self.count))

    def at(self, index: int) -> str:
        with self._lock:
            used = self._used[index] = self._used.get(index, -1) + 1
            return f"job-{index}/{used // OPERATIONS_PER_NAME_MAX}"


class Worker:
    """One client with a token of its own: claims, renews, gives back, looks."""

    def __init__(self, token: str, who: str, names: Names, history: History, seed: int) -> None:
        self.leases: dict[str, Mine] = {}
        self.unsettled: list[tuple[Operation, Request]] = []
        self.outcomes: list[tuple[Request, Outcome]] = []
        """Answered requests with a key, to be asked again."""
        self._token = token
        self._who = who
        self._names = names
        self._history = history
        self._chance = random.Random(seed)
        self._numbers = itertools.count(1)

    def run(self, connection: Connection, is_over: Callable[[], bool]) -> None:
        """Ask one thing after another until it is over or the server is gone."""
        while not is_over():
            operation, request = self._next()
            try:
                self._send(connection, operation, request)
            except BROKEN:
                self._broke_off(operation, request)
                return

    def resolve_unknown(self, connection: Connection) -> None:
        """Ask again what broke off. The server may die meanwhile: then it is asked once more the next time."""
        while self.unsettled:
            operation, request = self.unsettled[0]
            operation.sent_at = time.monotonic()
            self._send(connection, operation, request)
            self.unsettled.pop(0)

    def look_after(self, connection: Connection) -> None:
        """What was acknowledged is there: each lease that must live, and the same answer to the same key."""
        for name, mine in list(self.leases.items()):
            seen = Request("GET", lock_path(name), None, self._token, None).send(connection).json()
            if time.monotonic() < mine.until:
                shown = (seen["status"], seen["owner"], seen["fencing_token"])
                assert shown == ("held", mine.label, mine.token), f"{mine} of {name} is gone: {seen}"
        for request, outcome in self._chance.sample(self.outcomes, min(SAMPLE, len(self.outcomes))):
            again = read_outcome(request.kind, request.send(connection))
            if outcome.what == "granted":
                assert again is not None and again.what in {"granted", "ended"}, f"{request} -> {again}, was {outcome}"
                if again.what == "granted":
                    assert (again.lease_id, again.token) == (outcome.lease_id, outcome.token), f"{request}: two leases"
            else:
                assert again == outcome, f"{request} -> {again}, was {outcome}"

    def _next(self) -> tuple[Operation, Request]:
        name = self._names.pick(self._chance)
        mine = self.leases.get(name)
        draw = self._chance.random()
        key = str(uuid.UUID(int=self._chance.getrandbits(128))) if self._chance.random() < 0.75 else None
        if draw < 0.15:
            return self._history.begin("get", name), Request("GET", lock_path(name), None, self._token, None)
        if mine is None:
            ttl_seconds = self._chance.choice(TTLS_SECONDS)
            label = f"{self._who}-{next(self._numbers)}"
            body: dict[str, Any] = {"ttl_seconds": ttl_seconds, "owner": label}
            return self._operation("acquire", name, label, ttl_seconds, body, key)
        body = {"lease_id": mine.lease_id}
        if draw < 0.5:
            # With a key a shorter ttl takes no time away, without one only the longest does not.
            ttl_seconds = mine.ttl_seconds if key is None else self._chance.choice(TTLS_SECONDS)
            return self._operation("renew", name, mine.label, ttl_seconds, body | {"ttl_seconds": ttl_seconds}, key)
        if draw < 0.54 and mine.ttl_seconds == 1:
            # This holder is forgetful, and its lease must end by itself.
            del self.leases[name]
            return self._history.begin("get", name), Request("GET", lock_path(name), None, self._token, None)
        return self._operation("release", name, mine.label, 0, body, key)

    def _operation(
        self, kind: Kind, name: str, label: str, ttl_seconds: int, body: dict[str, Any], key: str | None
    ) -> tuple[Operation, Request]:
        request = Request("POST", f"{lock_path(name)}/{kind}", body, self._token, key)
        return self._history.begin(kind, name, label, ttl_seconds), request

    def _send(self, connection: Connection, operation: Operation, request: Request) -> None:
        answer = request.send(connection)
        now = time.monotonic()
        outcome = read_outcome(request.kind, answer)
        operation.answered(outcome, now)
        if outcome is None:
            raise http.client.HTTPException("the server does not know either")
        self._remember(operation, request, outcome)

    def _remember(self, operation: Operation, request: Request, outcome: Outcome) -> None:
        name, label = operation.name, operation.label
        until = operation.sent_at + outcome.left_seconds
        if outcome.what == "granted":
            assert outcome.label == label, f"{operation}: somebody else's lease"
            seconds = int(operation.ttl_seconds)
            self.leases[name] = Mine(label, outcome.lease_id, outcome.token, seconds, until)
        mine = self.leases.get(name)
        if mine is not None and mine.label == label:
            if operation.kind == "renew" and outcome.what == "done":
                mine.until = max(mine.until, until)
                mine.ttl_seconds = max(mine.ttl_seconds, int(operation.ttl_seconds))
            elif operation.kind == "release" or outcome.what == "gone":
                del self.leases[name]
        # A renewal is not among them: asked again it gives more time, as it should.
        if request.key is not None and (
            outcome.what == "granted" or (operation.kind, outcome.what) == ("release", "done")
        ):
            self.outcomes.append((request, outcome))

    def _broke_off(self, operation: Operation, request: Request) -> None:
        if request.key is not None:
            self.unsettled.append((operation, request))
        elif operation.kind == "release":
            self.leases.pop(operation.name, None)


def read_outcome(kind: str, answer: Answer) -> Outcome | None:
    """What an answer to a lock request says; None: that nobody knows. An answer that no rule allows fails."""
    body = answer.json()
    if answer.status == 200:
        if body is None:
            return Outcome("done")
        match body.get("status"):
            case "acquired":
                left_seconds = body["expires_in_ms"] / 1000
                return Outcome("granted", body["owner"], body["fencing_token"], body["lease_id"], left_seconds)
            case "held":
                return Outcome("held", body["owner"], body.get("fencing_token", 0))
            case "free":
                return Outcome("free")
            case None if "lease_id" in body:
                return Outcome("done", left_seconds=body["expires_in_ms"] / 1000)
    if body["code"] == "lease_not_current":
        return Outcome("ended") if kind == "acquire" else Outcome("gone")
    if body["code"] == "storage_unavailable":
        return Outcome("refused")
    assert body["code"] == "outcome_unknown", f"not an answer to be expected: {answer}"
    return None


@dataclass(slots=True)
class Group:
    """A session and the names bound to it."""

    session_id: str
    leases: dict[str, int] = field(default_factory=dict)
    is_over: bool = False


class Keeper:
    """A client of sessions and bearer tokens, one step after another; a step that broke off is done over."""

    def __init__(self, token: str, operator: str, seed: int) -> None:
        self.groups: list[Group] = []
        self.tokens: dict[str, tuple[str, bool]] = {}
        """Bearer tokens made, by name, and whether each was revoked."""
        self._token = token
        self._operator = operator
        self._chance = random.Random(seed)
        self._steps: list[tuple[Request, Then]] = []
        self._numbers = itertools.count(1)

    def run(self, connection: Connection, is_over: Callable[[], bool]) -> None:
        """A few rounds."""
        for _ in range(3):
            if is_over():
                return
            try:
                self.resolve_unknown(connection)
                self._plan()
                self.resolve_unknown(connection)
            except BROKEN:
                return

    def resolve_unknown(self, connection: Connection) -> None:
        """Do what is planned. Each step has a key, so doing it over does it once."""
        while self._steps:
            request, then = self._steps[0]
            answer = request.send(connection)
            if answer.status == 503:
                raise http.client.HTTPException("not now")
            then(answer)
            self._steps.pop(0)

    def look_after(self, connection: Connection) -> None:
        """Sessions that were opened are open with all that is bound to them, ended ones are over; tokens likewise."""
        for group in self._some(self.groups):
            seen = Request("GET", f"/sessions/{group.session_id}", None, self._token, None).send(connection)
            if group.is_over:
                assert seen.status == 404, f"{group} is back: {seen}"
            else:
                assert seen.status == 200, f"{group} is lost: {seen}"
                assert seen.json()["lock_count"] == len(group.leases), f"{group}: {seen}"
            for name, token in group.leases.items():
                held = Request("GET", lock_path(name), None, self._token, None).send(connection).json()
                wanted = ("free", None) if group.is_over else ("held", group.session_id)
                assert (held["status"], held["session"]) == wanted, f"{group}: {held}"
                assert group.is_over or held["fencing_token"] == token, f"{group}: {held}"
        for name, (token, is_revoked) in self._some(list(self.tokens.items())):
            status = Request("GET", "/locks/any", None, token, None).send(connection).status
            assert status == (401 if is_revoked else 200), f"token {name}, revoked {is_revoked}: {status}"

    def _some(self, things: list[Any]) -> list[Any]:
        """The newest, and some of the others."""
        old, new = things[:-10], things[-10:]
        return self._chance.sample(old, min(SAMPLE // 4, len(old))) + new

    def _plan(self) -> None:
        number = next(self._numbers)
        self._step("POST", "/sessions", {"ttl_seconds": 600, "name": f"run-{number}"}, 201, self._opened)
        self._step("POST", "/tokens", {"name": f"made-{number}"}, 201, self._made, self._operator)
        if number % 3 == 0:
            name = f"made-{number - 1}"
            self._step("DELETE", f"/tokens/{name}", None, 204, lambda _: self._revoked(name), self._operator)

    def _step(
        self, method: str, path: str, body: dict[str, Any] | None, status: int, then: Then, token: str | None = None
    ) -> None:
        key = str(uuid.UUID(int=self._chance.getrandbits(128)))

        def check(answer: Answer) -> None:
            assert answer.status == status, f"{method} {path} {body}: {answer}"
            then(answer)

        self._steps.append((Request(method, path, body, token or self._token, key), check))

    def _opened(self, answer: Answer) -> None:
        group = Group(answer.json()["session_id"])
        self.groups.append(group)
        for index in range(2):
            name = f"run/{group.session_id[:13]}/{index}"
            body = {"ttl_seconds": 900, "session_id": group.session_id, "ephemeral": True}
            self._step("POST", f"{lock_path(name)}/acquire", body, 200, self._bound(group, name))
        if self._chance.random() < 0.4:
            self._step("DELETE", f"/sessions/{group.session_id}", None, 204, lambda _: self._ended(group))

    def _bound(self, group: Group, name: str) -> Callable[[Answer], None]:
        def note(answer: Answer) -> None:
            assert answer.json()["status"] == "acquired", f"{group}: {answer}"
            group.leases[name] = answer.json()["fencing_token"]

        return note

    def _ended(self, group: Group) -> None:
        group.is_over = True

    def _made(self, answer: Answer) -> None:
        body = answer.json()
        known = self.tokens.get(body["name"])
        assert known is None or known[0] == body["token"], f"another token for the same key: {body['name']}"
        self.tokens[body["name"]] = (body["token"], False)

    def _revoked(self, name: str) -> None:
        self.tokens[name] = (self.tokens[name][0], True)


class Client(Protocol):
    """One of a crowd: works until it is over or the server is gone, asks again what broke off, looks for the rest."""

    def run(self, connection: Connection, is_over: Callable[[], bool]) -> None: ...

    def resolve_unknown(self, connection: Connection) -> None: ...

    def look_after(self, connection: Connection) -> None: ...


class Crowd:
    """Several workers and one keeper, with tokens that no other server knows."""

    def __init__(self, seed: int, *, workers: int = 6, names: int = 5) -> None:
        chance = random.Random(seed)
        secret = uuid.uuid4().hex
        self.history = History()
        self.names = Names(names)
        self.tokens = ",".join(
            [
                *(f"w{index}:w{index}-{secret}" for index in range(workers)),
                f"keeper:keeper-{secret}",
                f"operator:operator-{secret}:read+claim+admin",
            ]
        )
        clients = [
            Worker(f"w{index}-{secret}", f"w{index}", self.names, self.history, chance.getrandbits(64))
            for index in range(workers)
        ]
        keeper = Keeper(f"keeper-{secret}", f"operator-{secret}", chance.getrandbits(64))
        self._everybody: list[Client] = [*clients, keeper]
        self._errors: list[BaseException] = []

    def work(self, server: ServerProcess, is_over: Callable[[], bool]) -> list[threading.Thread]:
        """Start everybody; each ends when it is over or when its connection breaks."""
        threads = [
            threading.Thread(target=self._run, args=(one, server, is_over), daemon=True) for one in self._everybody
        ]
        for thread in threads:
            thread.start()
        return threads

    def finish(self, threads: list[threading.Thread]) -> None:
        """Wait for everybody; what went wrong in a thread is raised here."""
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a client hangs"
        if self._errors:
            raise self._errors[0]

    def look_after(self, server: ServerProcess) -> bool:
        """Settle what broke off and see that all that was acknowledged is there. False: the server died meanwhile."""
        with Connection(server.host, server.port) as connection:
            try:
                for one in self._everybody:
                    one.resolve_unknown(connection)
                for one in self._everybody:
                    one.look_after(connection)
            except BROKEN:
                server.process.wait(10)
                return False
        return True

    def _run(self, one: Client, server: ServerProcess, is_over: Callable[[], bool]) -> None:
        try:
            with Connection(server.host, server.port) as connection:
                one.run(connection, is_over)
        except BaseException as error:  # noqa: BLE001 - raised again by `finish`, in the test's own thread
            self._errors.append(error)
