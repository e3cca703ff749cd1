"""The naive core's line: one list of places, a scan for every turn, the whole graph of waits for every circle."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from holdfast.core.commands import Acquire, ClaimAll, ClaimAny, Leave
from holdfast.core.values import Limits

if TYPE_CHECKING:
    from tests.core.naive import Claim

DETACHED_MS = 60_000

Answer = tuple[Any, ...]


class QueueEntry(NamedTuple):
    """One place in the line; `away` is since when nobody is there."""

    ticket_id: str
    names: tuple[str, ...]
    lease_ids: tuple[str, ...]
    principal: str
    owner: str | None
    session: str | None
    bound: bool
    ttl: int
    delay: int
    metadata: str | None
    redo: bool
    key: str | None
    asked: str
    away: int | None

    @property
    def who(self) -> Answer:
        return who(self.bound, self.session, self.principal, self.owner, self.ticket_id)


def who(bound: bool, session: str | None, principal: str, owner: str | None, lease_id: str) -> Answer:
    """Who waits for whom: a run and its owner, a principal and its owner, or one claim alone."""
    if bound:
        return ("run", session, owner)
    return ("owner", principal, owner) if owner is not None else ("alone", lease_id)


def entry_for(command: Acquire | ClaimAll, now: int) -> QueueEntry:
    return QueueEntry(
        command.new_ticket,
        (command.name,) if isinstance(command, Acquire) else command.names,
        (command.lease_id,) if isinstance(command, Acquire) else command.lease_ids,
        command.terms.principal,
        command.terms.owner,
        command.terms.session,
        command.terms.bound,
        command.terms.ttl_ms,
        command.terms.delay_ms,
        command.terms.metadata,
        command.terms.redo,
        command.terms.key,
        command.terms.fingerprint,
        now,
    )


class Queue:
    def __init__(self) -> None:
        self.entries: list[QueueEntry] = []
        self.handed: list[str] = []
        """Names that went to a new holder since the line was last settled."""

    def clone(self) -> "Queue":
        clone = Queue()
        clone.entries, clone.handed = self.entries[:], self.handed[:]
        return clone

    def find(self, ticket_id: str | None) -> QueueEntry | None:
        return next((entry for entry in self.entries if entry.ticket_id == ticket_id), None)

    def own(self, wanted: QueueEntry) -> QueueEntry | None:
        """The place that a holder has already for just this set of names (W3)."""
        wish = (wanted.who, set(wanted.names))
        same = (entry for entry in self.entries if (entry.who, set(entry.names)) == wish)
        return None if wanted.who[0] == "alone" else next(same, None)

    def at(self, name: str) -> list[QueueEntry]:
        return [entry for entry in self.entries if name in entry.names]

    def swap(self, old: QueueEntry, new: QueueEntry) -> None:
        self.entries[self.entries.index(old)] = new

    def there(self) -> Iterator[QueueEntry]:
        return (entry for entry in self.entries if entry.away is None)

    def shortest_cycle(self, wanted: QueueEntry, holders: dict[str, Answer]) -> int | None:
        """How many words the shortest circle has that a wait would close: two for each holder on it (D1)."""
        seen: set[object] = set()
        edge, steps = {holders[name] for name in wanted.names if name in holders}, 1
        while edge:
            if wanted.who in edge:
                return 2 * steps
            seen |= edge
            waits = [entry for entry in self.there() if entry.who in edge]
            edge = {holders[name] for entry in waits for name in entry.names if name in holders} - seen
            steps += 1
        return None


def half(limit: int) -> int:
    return -(-limit // 2)


class Waiting(ABC):
    """The part of the naive core that speaks of several names at once and of the line. `Naive` is made of it."""

    now: int
    limits: Limits
    claims: "list[Claim]"
    queue: Queue
    notices: list[tuple[str, Answer]]

    # What it asks of the other part.

    @abstractmethod
    def live(self, name: str) -> "Claim | None": ...

    @abstractmethod
    def closed_until(self, name: str) -> int: ...

    @abstractmethod
    def done(self, name: str) -> Answer | None: ...

    @abstractmethod
    def previous(self, name: str) -> Answer | None: ...

    @abstractmethod
    def lives(self, run: str | None, principal: str) -> str | None: ...

    @abstractmethod
    def held_by(self, claim: "Claim", owner: str | None) -> Answer: ...

    @abstractmethod
    def grant(self, entry: QueueEntry, taken: QueueEntry | None) -> None: ...

    @abstractmethod
    def granted(self, claim: "Claim", *, reacquired: bool) -> Answer: ...

    @abstractmethod
    def spend(self, command: Acquire | ClaimAll | ClaimAny, verb: str, made: str, *more: str, own: bool) -> None: ...

    @abstractmethod
    def drop_key(self, entry: QueueEntry) -> None: ...

    @abstractmethod
    def remember_key(self, entry: QueueEntry) -> None: ...

    @abstractmethod
    def keep_key(self, entry: QueueEntry) -> None: ...

    # Several names at once.

    def claim_any(self, command: ClaimAny) -> Answer:
        if lacking := self.lacking(command, 1):
            return lacking
        busy: list[Answer] = []
        finished: Answer | None = None
        for name in command.names:
            obstacle = self.obstacle(name, command)
            if obstacle is None:
                one = ClaimAll(names=(name,), lease_ids=(command.lease_id,), terms=replace(command.terms, redo=False))
                entry = entry_for(one, self.now)
                self.grant(entry, taken=self.queue.own(entry))
                self.spend(command, "acquire", command.lease_id, own=False)
                return ("all", (name, *self.granted(self.claims[-1], reacquired=False)))
            if obstacle[0] == "done":
                finished = finished or obstacle
            else:
                busy.append((name, *obstacle))
        return finished if finished and not busy else self.all_held(busy)

    def claim_all(self, command: ClaimAll) -> Answer:
        if command.ticket is not None:
            return self.resume_ticket(command, command.ticket)
        if lacking := self.lacking(command, len(command.names)):
            return lacking
        obstacles = [(name, self.obstacle(name, command)) for name in command.names]
        for _, obstacle in obstacles:
            if obstacle and obstacle[0] == "done":
                return obstacle
        busy = [(name, *obstacle) for name, obstacle in obstacles if obstacle]
        if busy:
            return self.join(command) if command.wait_ms else self.all_held(busy)
        entry = entry_for(command, self.now)
        self.grant(entry, taken=self.queue.own(entry))
        self.spend(command, "acquire", *command.lease_ids, own=False)
        made = self.claims[-len(command.names) :]
        return ("all", *((claim.name, *self.granted(claim, reacquired=False)) for claim in made))

    def all_held(self, busy: list[Answer]) -> Answer:
        opens = [one[3] if one[1] == "held" else one[2] for one in busy]
        return ("all-held", max(250, min(opens, default=self.now) - self.now), *busy)

    def lacking(self, command: ClaimAny | ClaimAll, count: int) -> Answer | None:
        if command.terms.session is not None and (
            lacking := self.lives(command.terms.session, command.terms.principal)
        ):
            return (lacking,)
        return self.why_too_many_leases(
            command.terms.principal, command.terms.session if command.terms.bound else None, count
        )

    def why_too_many_leases(
        self, principal: str, session: str | None, count: int, without: "Claim | None" = None
    ) -> Answer | None:
        """Every limit is for a principal, and half of it for one of its sessions."""
        most = self.limits.leases_per_principal_max
        living = [claim for claim in self.claims if not claim.how and claim is not without]
        if sum(claim.principal == principal for claim in living) + count > most:
            return ("too-many-leases", most)
        if session is not None and sum(claim.session == session for claim in living) + count > half(most):
            return ("too-many-leases", half(most))
        return None

    def why_no_entry(self, wanted: QueueEntry) -> Answer | None:
        """The same for places in lines: how many, for how many names, and how many in one line."""
        limits = self.limits
        mine = [entry for entry in self.queue.entries if entry.principal == wanted.principal]
        run = [entry for entry in mine if entry.bound and entry.session == wanted.session]
        parts = [(1, mine), (2, run)] if wanted.bound else [(1, mine)]
        for share, those in parts:
            most = -(-limits.tickets_per_principal_max // share)
            if len(those) >= most:
                return ("too-many-tickets", most)
        for share, those in parts:
            names = sum(len(entry.names) for entry in those) + len(wanted.names)
            if names > -(-limits.waiting_names_per_principal_max // share):
                return ("quota-exceeded",)
        for name in wanted.names:
            if len(self.queue.at(name)) >= limits.queue_max:
                return ("queue-full", limits.queue_max)
            for share, those in parts:
                if sum(name in entry.names for entry in those) >= -(-half(limits.queue_max) // share):
                    return ("quota-exceeded",)
        return None

    def obstacle(self, name: str, command: ClaimAny | ClaimAll) -> Answer | None:
        if (done := self.done(name)) and not command.terms.redo:
            return done
        claim = self.live(name)
        if claim is not None:
            return self.held_by(claim, command.terms.owner)
        if self.closed_until(name) > self.now:
            return ("closed", self.closed_until(name), self.previous(name))
        return None

    # The line.

    def holders(self) -> dict[str, Answer]:
        living = [c for c in self.claims if not c.how]
        return {c.name: who(c.bound, c.session, c.principal, c.owner, c.lease_id) for c in living}

    def join(self, command: Acquire | ClaimAll) -> Answer:
        wanted = entry_for(command, self.now)
        known = self.queue.own(wanted)
        if known is not None:
            fields = {field: getattr(known, field) for field in ("ticket_id", "names", "lease_ids", "away")}
            return self.resume_wait(known, wanted._replace(**fields))
        if full := self.why_no_entry(wanted):
            return full
        if cycle := self.queue.shortest_cycle(wanted, self.holders()):
            return ("deadlock", cycle)
        self.queue.entries.append(wanted)
        self.spend(command, "acquire", *wanted.lease_ids, own=False)
        return ("later", wanted.ticket_id)

    def resume_wait(self, known: QueueEntry, taken: QueueEntry) -> Answer:
        """D1, W3: wait at a place one has, as whoever asked last."""
        if cycle := self.queue.shortest_cycle(taken, self.holders()):
            self.leave_queue(known, ("deadlock", cycle))
            return ("deadlock", cycle)
        if known != taken:
            self.remember_key(known)
            self.keep_key(taken)
            self.queue.swap(known, taken)
        return ("later", taken.ticket_id)

    def resume_ticket(self, command: Acquire | ClaimAll, ticket_id: str) -> Answer:
        wanted = entry_for(command, self.now)
        entry = self.queue.find(ticket_id)
        if entry is None:
            done = [self.done(name) for name in wanted.names if not command.terms.redo]
            return next((each for each in done if each), ("ticket-gone",))
        whose = (set(entry.names), entry.principal, entry.owner, entry.bound)
        same = whose == (set(wanted.names), wanted.principal, wanted.owner, wanted.bound)
        if not same or (entry.bound and entry.session != wanted.session):
            return ("ticket-gone",)
        return self.resume_wait(entry, entry._replace(key=wanted.key, asked=wanted.asked))

    def leave(self, command: Leave) -> Answer:
        entry = self.queue.find(command.ticket_id)
        if entry is None or entry.principal != command.principal:
            return ("ticket-gone",)
        self.leave_queue(entry, ("ticket-gone",), is_remembered=True)
        return ("ok",)

    def leave_queue(self, entry: QueueEntry, answer: Answer, *, is_remembered: bool = False) -> None:
        """C5: what was given up, or ended with its session, is remembered; refusals leave nothing."""
        self.queue.entries.remove(entry)
        if is_remembered:
            self.remember_key(entry)
        else:
            self.drop_key(entry)
        self.notices.append((entry.ticket_id, answer))

    def grant_waiters(self) -> None:
        """Break the circles that a handover closed, then give the first who can be met its turn; again and again."""
        while self.break_cycle() or self.grant_first_ready():
            pass

    def break_cycle(self) -> bool:
        while self.queue.handed:
            name = self.queue.handed[0]
            for entry in self.queue.at(name):
                cycle = None
                if entry.away is None and self.live(name):
                    cycle = self.queue.shortest_cycle(entry, self.holders())
                if cycle:
                    self.leave_queue(entry, ("deadlock", cycle))
                    return True
            self.queue.handed.pop(0)
        return False

    def grant_first_ready(self) -> bool:
        free = (
            entry
            for entry in self.queue.there()
            if all(not self.live(n) and self.closed_until(n) <= self.now for n in entry.names)
            and (entry.redo or not any(self.done(n) for n in entry.names))
        )
        entry = next(free, None)
        if entry is None:
            return False
        lacking = self.lives(entry.session, entry.principal) if entry.session is not None else None
        run = entry.session if entry.bound else None
        refusal = (lacking,) if lacking else self.why_too_many_leases(entry.principal, run, len(entry.names))
        if refusal is not None:
            self.leave_queue(entry, refusal)
            return True
        self.grant(entry, taken=entry)
        made = self.claims[-len(entry.names) :]
        granted = [(claim.name, *self.granted(claim, reacquired=False)) for claim in made]
        self.notices.append((entry.ticket_id, granted[0][1:] if len(granted) == 1 else ("all", *granted)))
        return True
