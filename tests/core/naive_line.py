"""The naive core's line: one list of places, a scan for every turn, the whole graph of waits for every circle."""

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.core.commands import Acquire, ClaimAll

ABSENT_MS = 60_000

Answer = tuple[object, ...]


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
    def who(self) -> tuple[object, ...]:
        return who(self.bound, self.session, self.principal, self.owner, self.lease_ids[0])


def who(bound: bool, session: str | None, principal: str, owner: str | None, lease_id: str) -> tuple[object, ...]:
    """Who waits for whom: a run and its owner, a principal and its owner, or one claim alone."""
    if bound:
        return ("run", session, owner)
    return ("owner", principal, owner) if owner is not None else ("alone", lease_id)


def place_for(command: Acquire | ClaimAll, now: int) -> Place:
    alone = isinstance(command, Acquire)
    return Place(
        command.new_ticket,
        (command.name,) if alone else command.names,
        (command.lease_id,) if alone else command.lease_ids,
        command.principal,
        command.owner,
        command.session,
        command.bound,
        command.ttl_ms,
        command.delay_ms,
        command.metadata,
        command.redo,
        command.key,
        command.fingerprint,
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
        """The place that a holder has already for just these names (W3)."""
        same = (place for place in self.places if (place.who, place.names) == (wanted.who, wanted.names))
        return None if wanted.who[0] == "alone" else next(same, None)

    def at(self, name: str) -> list[Place]:
        return [place for place in self.places if name in place.names]

    def swap(self, old: Place, new: Place) -> None:
        self.places[self.places.index(old)] = new

    def there(self) -> Iterator[Place]:
        return (place for place in self.places if place.away is None)

    def shortest_circle(self, wanted: Place, holders: dict[str, tuple[object, ...]]) -> int | None:
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
