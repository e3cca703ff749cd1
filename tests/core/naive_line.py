"""The naive core's line: one list of places, a scan for every turn, the whole graph of waits for every circle."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from holdfast.core.commands import Acquire, ClaimAll, ClaimAny, Leave
from holdfast.core.values import Limits

if TYPE_CHECKING:
    from tests.core.naive import Claim

ABSENT_MS = 60_000

Answer = tuple[Any, ...]


class Place(NamedTuple):
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


def place_for(command: Acquire | ClaimAll, now: int) -> Place:
    return Place(
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


class Line:
    def __init__(self) -> None:
        self.places: list[Place] = []
        self.handed: list[str] = []
        """Names that went to a new holder since the line was last settled."""

    def clone(self) -> "Line":
        twin = Line()
        twin.places, twin.handed = self.places[:], self.handed[:]
        return twin

    def find(self, ticket_id: str | None) -> Place | None:
        return next((place for place in self.places if place.ticket_id == ticket_id), None)

    def own(self, wanted: Place) -> Place | None:
        """The place that a holder has already for just this set of names (W3)."""
        wish = (wanted.who, set(wanted.names))
        same = (place for place in self.places if (place.who, set(place.names)) == wish)
        return None if wanted.who[0] == "alone" else next(same, None)

    def at(self, name: str) -> list[Place]:
        return [place for place in self.places if name in place.names]

    def swap(self, old: Place, new: Place) -> None:
        self.places[self.places.index(old)] = new

    def there(self) -> Iterator[Place]:
        return (place for place in self.places if place.away is None)

    def shortest_circle(self, wanted: Place, holders: dict[str, Answer]) -> int | None:
        """How many words the shortest circle has that a wait would close: two for each holder on it (D1)."""
        seen: set[object] = set()
        edge, steps = {holders[name] for name in wanted.names if name in holders}, 1
        while edge:
            if wanted.who in edge:
                return 2 * steps
            seen |= edge
            waits = [place for place in self.there() if place.who in edge]
            edge = {holders[name] for place in waits for name in place.names if name in holders} - seen
            steps += 1
        return None


def half(limit: int) -> int:
    return -(-limit // 2)


class Waiting(ABC):
    """The part of the naive core that speaks of several names at once and of the line. `Naive` is made of it."""

    now: int
    limits: Limits
    claims: "list[Claim]"
    line: Line
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
    def grant(self, place: Place, taken: Place | None) -> None: ...

    @abstractmethod
    def granted(self, claim: "Claim", *, reacquired: bool) -> Answer: ...

    @abstractmethod
    def spend(self, command: Acquire | ClaimAll | ClaimAny, verb: str, made: str, *more: str, own: bool) -> None: ...

    @abstractmethod
    def drop_key(self, place: Place) -> None: ...

    @abstractmethod
    def remember_key(self, place: Place) -> None: ...

    @abstractmethod
    def keep_key(self, place: Place) -> None: ...

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
                place = place_for(one, self.now)
                self.grant(place, taken=self.line.own(place))
                self.spend(command, "acquire", command.lease_id, own=False)
                return ("all", (name, *self.granted(self.claims[-1], reacquired=False)))
            if obstacle[0] == "done":
                finished = finished or obstacle
            else:
                busy.append((name, *obstacle))
        return finished if finished and not busy else self.all_held(busy)

    def claim_all(self, command: ClaimAll) -> Answer:
        if command.ticket is not None:
            return self.return_to(command, command.ticket)
        if lacking := self.lacking(command, len(command.names)):
            return lacking
        obstacles = [(name, self.obstacle(name, command)) for name in command.names]
        for _, obstacle in obstacles:
            if obstacle and obstacle[0] == "done":
                return obstacle
        busy = [(name, *obstacle) for name, obstacle in obstacles if obstacle]
        if busy:
            return self.join(command) if command.wait_ms else self.all_held(busy)
        place = place_for(command, self.now)
        self.grant(place, taken=self.line.own(place))
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
        return self.no_room(command.terms.principal, command.terms.session if command.terms.bound else None, count)

    def no_room(self, principal: str, session: str | None, count: int, without: "Claim | None" = None) -> Answer | None:
        """Every limit is for a principal, and half of it for one of its sessions."""
        most = self.limits.leases_per_principal_max
        living = [claim for claim in self.claims if not claim.how and claim is not without]
        if sum(claim.principal == principal for claim in living) + count > most:
            return ("too-many-leases", most)
        if session is not None and sum(claim.session == session for claim in living) + count > half(most):
            return ("too-many-leases", half(most))
        return None

    def no_place(self, wanted: Place) -> Answer | None:
        """The same for places in lines: how many, for how many names, and how many in one line."""
        limits = self.limits
        mine = [place for place in self.line.places if place.principal == wanted.principal]
        run = [place for place in mine if place.bound and place.session == wanted.session]
        parts = [(1, mine), (2, run)] if wanted.bound else [(1, mine)]
        for share, those in parts:
            most = -(-limits.tickets_per_principal_max // share)
            if len(those) >= most:
                return ("too-many-tickets", most)
        for share, those in parts:
            names = sum(len(place.names) for place in those) + len(wanted.names)
            if names > -(-limits.waiting_names_per_principal_max // share):
                return ("quota-exceeded",)
        for name in wanted.names:
            if len(self.line.at(name)) >= limits.line_max:
                return ("queue-full", limits.line_max)
            for share, those in parts:
                if sum(name in place.names for place in those) >= -(-half(limits.line_max) // share):
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
        wanted = place_for(command, self.now)
        known = self.line.own(wanted)
        if known is not None:
            kept = {field: getattr(known, field) for field in ("ticket_id", "names", "lease_ids", "away")}
            return self.come_back(known, wanted._replace(**kept))
        if full := self.no_place(wanted):
            return full
        if cycle := self.line.shortest_circle(wanted, self.holders()):
            return ("deadlock", cycle)
        self.line.places.append(wanted)
        self.spend(command, "acquire", *wanted.lease_ids, own=False)
        return ("later", wanted.ticket_id)

    def come_back(self, known: Place, taken: Place) -> Answer:
        """D1, W3: wait at a place one has, as whoever asked last."""
        if cycle := self.line.shortest_circle(taken, self.holders()):
            self.leave_line(known, ("deadlock", cycle))
            return ("deadlock", cycle)
        if known != taken:
            self.remember_key(known)
            self.keep_key(taken)
            self.line.swap(known, taken)
        return ("later", taken.ticket_id)

    def return_to(self, command: Acquire | ClaimAll, ticket_id: str) -> Answer:
        wanted = place_for(command, self.now)
        place = self.line.find(ticket_id)
        if place is None:
            done = [self.done(name) for name in wanted.names if not command.terms.redo]
            return next((each for each in done if each), ("ticket-gone",))
        whose = (set(place.names), place.principal, place.owner, place.bound)
        same = whose == (set(wanted.names), wanted.principal, wanted.owner, wanted.bound)
        if not same or (place.bound and place.session != wanted.session):
            return ("ticket-gone",)
        return self.come_back(place, place._replace(key=wanted.key, asked=wanted.asked))

    def leave(self, command: Leave) -> Answer:
        place = self.line.find(command.ticket_id)
        if place is None or place.principal != command.principal:
            return ("ticket-gone",)
        self.leave_line(place, ("ticket-gone",), is_remembered=True)
        return ("ok",)

    def leave_line(self, place: Place, answer: Answer, *, is_remembered: bool = False) -> None:
        """C5: what was given up, or ended with its session, is remembered; refusals leave nothing."""
        self.line.places.remove(place)
        if is_remembered:
            self.remember_key(place)
        else:
            self.drop_key(place)
        self.notices.append((place.ticket_id, answer))

    def grant_waiters(self) -> None:
        """Break the circles that a handover closed, then give the first who can be met its turn; again and again."""
        while self.break_circle() or self.give_turn():
            pass

    def break_circle(self) -> bool:
        while self.line.handed:
            name = self.line.handed[0]
            for place in self.line.at(name):
                cycle = None
                if place.away is None and self.live(name):
                    cycle = self.line.shortest_circle(place, self.holders())
                if cycle:
                    self.leave_line(place, ("deadlock", cycle))
                    return True
            self.line.handed.pop(0)
        return False

    def give_turn(self) -> bool:
        free = (
            place
            for place in self.line.there()
            if all(not self.live(n) and self.closed_until(n) <= self.now for n in place.names)
            and (place.redo or not any(self.done(n) for n in place.names))
        )
        place = next(free, None)
        if place is None:
            return False
        lacking = self.lives(place.session, place.principal) if place.session is not None else None
        run = place.session if place.bound else None
        refusal = (lacking,) if lacking else self.no_room(place.principal, run, len(place.names))
        if refusal is not None:
            self.leave_line(place, refusal)
            return True
        self.grant(place, taken=place)
        made = self.claims[-len(place.names) :]
        told = [(claim.name, *self.granted(claim, reacquired=False)) for claim in made]
        self.notices.append((place.ticket_id, told[0][1:] if len(told) == 1 else ("all", *told)))
        return True
