"""Clients that stand in line, claim several names at once, finish work, hand it on and end it, and remember it all.

The law of this file: every claim has an owner's name and a key of its own, is noted before it is sent, and is asked
again with that key (and with its ticket, once it knows it) until an answer comes. A client has one errand at a time and
holds nothing while it waits, so nobody here can close a circle.
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
from typing import Any, Literal, TypeAlias

from tests.crash.history import SLACK_SECONDS
from tests.crash.load import BROKEN, Request
from tests.support.api import lock_path
from tests.support.http import Answer, Connection

NAMES = 4
REMEMBER_SECONDS = 600
Shape: TypeAlias = Literal["one", "all", "any"]
Ending: TypeAlias = Literal["granted", "held", "done", "ended", "gone"]


@dataclass(slots=True, eq=False)
class Claim:
    """One claim, by the name of its owner. `what` None: unknown, or it still waits."""

    label: str
    key: str
    shape: Shape
    names: tuple[str, ...]
    ttl_seconds: int
    redo: bool = False
    session: str | None = None
    sends: int = 0
    broke_off: bool = False
    tickets: list[str] = field(default_factory=list)
    """Every place it was told of; the last is its own."""
    what: Ending | None = None
    granted: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Lease id and fencing token by name, as they were acknowledged."""
    left_seconds: float = 0.0
    """What the leases had left when they were acknowledged."""

    def request(self, token: str, wait_seconds: float, *, by_key_alone: bool = False) -> Request:
        body: dict[str, Any] = {"owner": self.label, "ttl_seconds": self.ttl_seconds}
        if self.redo:
            body["redo"] = True
        if self.session is not None:
            body |= {"session_id": self.session, "ephemeral": True}
        if self.shape != "any":
            body["wait_seconds"] = wait_seconds
            if self.tickets and not by_key_alone:
                body["ticket"] = self.tickets[-1]
        if self.shape == "one":
            return Request("POST", f"{lock_path(self.names[0])}/acquire", body, token, self.key)
        return Request("POST", "/claims", body | {self.shape: list(self.names)}, token, self.key)

    def send(self, connection: Connection, request: Request) -> None:
        """Ask, and note the answer. One that no rule allows fails."""
        self.sends += 1
        try:
            answer = request.send(connection)
            if answer.status == 503:
                raise http.client.HTTPException("not now")
        except BROKEN:
            self.broke_off = True
            raise
        self._receive(answer)

    def _receive(self, answer: Answer) -> None:
        body = answer.json()
        match body.get("status") or body["code"]:
            case "acquired":
                assert body["owner"] == self.label, f"{self}: somebody else's lease: {answer}"
                leases = [body | {"name": self.names[0]}] if self.shape == "one" else body["claims"]
                self.granted = {one["name"]: (one["lease_id"], one["fencing_token"]) for one in leases}
                self.left_seconds = min(one["expires_in_ms"] for one in leases) / 1000
                is_complete = len(self.granted) == 1 and set(self.granted) <= set(self.names)
                assert is_complete if self.shape != "all" else tuple(self.granted) == self.names, f"{self}: {answer}"
                self.what = "granted"
            case "waiting":
                if body["ticket"] not in self.tickets:
                    self.tickets.append(body["ticket"])
            case "held" if self.shape == "any":
                self.what = "held"
            case "done" if not self.redo:
                self.what = "done"
            case "lease_not_current" | "revoked" if self.broke_off:
                # It was granted unheard, and is over by now.
                self.what = "ended"
            case "ticket_gone" if self.tickets:
                # Finished work answered it while it was away, and was reopened since; the journal must say so.
                self.what = "gone"
            case _:
                raise AssertionError(f"not an answer to {self}: {answer}")


@dataclass(slots=True, eq=False)
class Deed:
    """Something done to a name, a lease or a session. `worked` None: unknown."""

    kind: Literal["release", "transfer", "revoke", "reopen", "end_session"]
    name: str
    """Of the job; the id, of a session."""
    key: str
    lease_id: str = ""
    text: str = ""
    """The result, the new owner or the reason."""
    is_done: bool = False
    worked: bool | None = None
    new_lease: tuple[str, int] = ("", 0)


@dataclass(slots=True)
class Barrier:
    """All of these stood in line and were there when the gate was opened, and it was acknowledged in that very life."""

    name: str
    gate_lease_id: str
    back: frozenset[str]


@dataclass(slots=True)
class Ledger:
    """All that was asked, by everybody."""

    claims: list[Claim] = field(default_factory=list)
    deeds: list[Deed] = field(default_factory=list)
    barriers: list[Barrier] = field(default_factory=list)
    vanished: set[str] = field(default_factory=set)
    """Members of a line who never came back after the crash."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def claim(self, claim: Claim) -> Claim:
        with self.lock:
            self.claims.append(claim)
        return claim

    def deed(self, deed: Deed) -> Deed:
        with self.lock:
            self.deeds.append(deed)
        return deed


class Asker:
    """What every client here has: a token, chance, and one request that is under way."""

    def __init__(self, who: str, token: str, ledger: Ledger, seed: int) -> None:
        self._who = who
        self._token = token
        self._ledger = ledger
        self._chance = random.Random(seed)
        self._numbers = itertools.count(1)
        self._pending: tuple[Request, Callable[[Answer], None]] | None = None

    def resolve_unknown(self, connection: Connection) -> None:
        """Send what is under way, until it is answered once."""
        if self._pending is not None:
            request, then = self._pending
            answer = request.send(connection)
            if answer.status == 503:
                raise http.client.HTTPException("not now")
            then(answer)
            self._pending = None

    def _key(self) -> str:
        return str(uuid.UUID(int=self._chance.getrandbits(128)))

    def _post(self, deed: Deed, path: str, body: dict[str, Any], then: Callable[[Answer], None]) -> None:
        self._pending = (Request("POST", path, body, self._token, deed.key), then)


class Errand(Asker):
    """A client that claims, waits, works, and gives back, hands on or forgets; some claims are bound to a session."""

    def __init__(self, who: str, token: str, ledger: Ledger, seed: int) -> None:
        super().__init__(who, token, ledger, seed)
        self.finished: dict[str, str] = {}
        """Names that are done for good, with their results."""
        self._claim: Claim | None = None
        self._leases: dict[str, tuple[str, float]] = {}
        """Lease ids by name, each with the moment until which it lives at least."""
        self._session: str | None = None
        self._over_sessions: list[str] = []

    def run(self, connection: Connection, is_over: Callable[[], bool]) -> None:
        """One step after another until it is over or the server is gone."""
        while not is_over():
            try:
                self.resolve_unknown(connection)
                self._step(connection)
            except BROKEN:
                return

    def look_after(self, connection: Connection) -> None:
        """What was acknowledged is there: leases, places, finished work, sessions and their ends."""
        for name, (lease_id, until) in list(self._leases.items()):
            sent_at = time.monotonic()
            body = {"lease_id": lease_id, "keep_ttl": True}
            answer = Request("POST", f"{lock_path(name)}/renew", body, self._token, None).send(connection)
            if answer.status == 200:
                self._leases[name] = (lease_id, sent_at + answer.json()["expires_in_ms"] / 1000)
            else:
                assert self._may_be_over(answer, until), f"{self._claim}: {name} is gone: {answer}"
                del self._leases[name]
        if self._claim is not None and self._claim.what is None:
            self._ask(connection, 0.01)
        for name in self._chance.sample(sorted(self.finished), min(10, len(self.finished))):
            seen = Request("GET", lock_path(name), None, self._token, None).send(connection).json()
            assert (seen["status"], seen.get("result")) == ("done", self.finished[name]), f"{name}: {seen}"
        for session, status in [(self._session, 200), *((one, 404) for one in self._over_sessions[-5:])]:
            if session is not None:
                seen = Request("GET", f"/sessions/{session}", None, self._token, None).send(connection)
                assert seen.status == status, f"session {session} should be {status}: {seen}"

    def _may_be_over(self, answer: Answer, until: float) -> bool:
        """Has the lease ended as leases may: by an operator, or by its time?"""
        body = answer.json()
        if body["code"] == "revoked":
            return any(deed.kind == "revoke" and deed.text == body["reason"] for deed in list(self._ledger.deeds))
        is_expired = (body["code"], body.get("ended")) == ("lease_not_current", "expired")
        return is_expired and time.monotonic() > until - SLACK_SECONDS

    def _ask(self, connection: Connection, wait_seconds: float) -> None:
        claim = self._claim
        assert claim is not None
        sent_at = time.monotonic()
        by_key_alone = self._chance.random() < 0.3
        claim.send(connection, claim.request(self._token, wait_seconds, by_key_alone=by_key_alone))
        if claim.what == "granted":
            until = sent_at + claim.left_seconds
            self._leases = {name: (lease_id, until) for name, (lease_id, _) in claim.granted.items()}
        elif claim.what is not None:
            self._claim = None

    def _step(self, connection: Connection) -> None:
        draw = self._chance.random()
        if self._claim is None:
            self._next_claim(draw)
        elif self._claim.what is None and self._claim.sends and draw < 0.1:
            # It vanishes, in line or before it hears that it has what it wanted.
            self._claim = None
        elif self._claim.what is None:
            if self._claim.tickets and self._claim.session is not None and draw < 0.4:
                self._end_session(self._claim.session)
            else:
                self._ask(connection, self._chance.choice((0.02, 0.2, 1.0)))
        elif not self._leases:
            self._claim = None
        elif self._claim.session is not None and draw < 0.3:
            self._end_session(self._claim.session)
        elif self._claim.ttl_seconds == 1 and draw < 0.3:
            # A forgetful one: its leases must end by themselves.
            self._leases, self._claim = {}, None
        elif draw < 0.45:
            self._transfer(next(iter(self._leases)))
        else:
            self._release(next(iter(self._leases)))

    def _next_claim(self, draw: float) -> None:
        number = next(self._numbers)
        if draw < 0.15 and self._session is None:
            body = {"ttl_seconds": 600}
            self._pending = (Request("POST", "/sessions", body, self._token, self._key()), self._opened)
            return
        pool = [f"job-{index}" for index in range(NAMES)]
        shape: Shape = self._chance.choice(("one", "one", "one", "all", "all", "any"))
        names = tuple(self._chance.sample(pool, 1 if shape == "one" else self._chance.choice((2, 3))))
        if draw > 0.9:
            shape, names = "one", (f"kept/{self._who}/{number}",)
        claim = Claim(f"{self._who}-{number}", self._key(), shape, names, self._chance.choice((1, 60)))
        claim.redo = self._chance.random() < 0.2
        claim.session = self._session if self._chance.random() < 0.7 else None
        self._claim = self._ledger.claim(claim)

    def _opened(self, answer: Answer) -> None:
        assert answer.status == 201, answer
        self._session = answer.json()["session_id"]

    def _end_session(self, session: str) -> None:
        deed = self._ledger.deed(Deed("end_session", session, self._key()))

        def ended(answer: Answer) -> None:
            assert answer.status == 204, f"{deed}: {answer}"
            deed.worked = True
            self._over_sessions.append(session)
            self._session, self._claim, self._leases = None, None, {}

        self._pending = (Request("DELETE", f"/sessions/{session}", None, self._token, deed.key), ended)

    def _release(self, name: str) -> None:
        lease_id, until = self._leases[name]
        claim = self._claim
        assert claim is not None
        stays_done = name.startswith("kept/")
        outcome = "done" if stays_done else self._chance.choice((None, None, "done", "failed"))
        deed = self._ledger.deed(Deed("release", name, self._key(), lease_id, claim.label, is_done=outcome == "done"))
        body: dict[str, Any] = {"lease_id": lease_id}
        if outcome is not None:
            body["outcome"] = outcome
        if deed.is_done:
            body |= {"remember_seconds": REMEMBER_SECONDS, "result": claim.label}

        def released(answer: Answer) -> None:
            deed.worked = answer.status == 200
            assert deed.worked or self._may_be_over(answer, until), f"{deed}: {answer}"
            self._leases.pop(name, None)
            if stays_done and deed.worked:
                self.finished[name] = claim.label

        self._post(deed, f"{lock_path(name)}/release", body, released)

    def _transfer(self, name: str) -> None:
        lease_id, until = self._leases[name]
        number = next(self._numbers)
        deed = self._ledger.deed(Deed("transfer", name, self._key(), lease_id, f"{self._who}-{number}"))

        def handed(answer: Answer) -> None:
            self._leases.pop(name, None)
            if answer.status == 200:
                body = answer.json()
                assert body["owner"] == deed.text, f"{deed}: {answer}"
                deed.worked, deed.new_lease = True, (body["lease_id"], body["fencing_token"])
                self._leases[name] = (body["lease_id"], until)
            else:
                # Asked again after a crash, it may speak of the new lease, which may be over by now too.
                assert self._may_be_over(answer, until), f"{deed}: {answer}"

        body = {"lease_id": lease_id, "to_owner": deed.text}
        self._post(deed, f"{lock_path(name)}/transfer", body, handed)


class Operator(Asker):
    """Ends leases and reopens finished work, now and then."""

    def run(self, connection: Connection, is_over: Callable[[], bool]) -> None:
        while not is_over():
            try:
                self.resolve_unknown(connection)
                self._plan()
                self.resolve_unknown(connection)
            except BROKEN:
                return
            time.sleep(self._chance.uniform(0.005, 0.04))

    def look_after(self, connection: Connection) -> None:
        """What it did is looked for in the journal."""

    def _plan(self) -> None:
        kind: Literal["revoke", "reopen"] = "revoke" if self._chance.random() < 0.3 else "reopen"
        name = f"job-{self._chance.randrange(NAMES)}"
        deed = self._ledger.deed(Deed(kind, name, self._key(), text=f"{self._who} {next(self._numbers)}"))

        def answered(answer: Answer) -> None:
            assert answer.status in {204, 404}, f"{deed}: {answer}"
            deed.worked = answer.status == 204

        self._post(deed, f"{lock_path(name)}/{kind}", {"reason": deed.text}, answered)
