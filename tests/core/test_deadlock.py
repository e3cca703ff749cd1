"""The detector of circles against a checker that shares nothing with it: the whole graph from nothing, and a closure.

Every graph of up to 4 holders and 4 names is tried, up to the names of names and holders; then graphs drawn by a seed,
made by records as a journal would make them, with runs, ended leases, dead sessions, places that were left and holders
who are not there. `make test` tries some of those of four, `make prove` all.
"""

import random
from collections.abc import Iterator
from functools import cache
from itertools import combinations, combinations_with_replacement, islice, product

import pytest

from holdfast.core.deadlock import closing_waits, find_cycle
from holdfast.core.decision import end_of
from holdfast.core.events import Event, Granted, Joined, Left, Record, SessionEnded, SessionOpened
from holdfast.core.evolve import evolve
from holdfast.core.outcomes import Deadlock, DeadlockSearchExceeded
from holdfast.core.sessions import end_leases_of, end_tickets_of
from holdfast.core.state import State
from holdfast.core.timers import Budget
from holdfast.core.values import Holder, Lease, Session, Slot, Terms, Ticket, holder_of_lease, holder_of_ticket
from tests.support import proof

RANDOM_GRAPHS = proof.count("deadlock: graphs drawn")

HOLDERS = ("h0", "h1", "h2", "h3")
NAMES = ("n0", "n1", "n2", "n3")
REQUESTER: Holder = ("principal", "p", "h0")

Waits = tuple[tuple[tuple[int, ...], bool], ...]
"""The tickets of one holder: the names of each, and whether it is there."""


# Every small graph.


@cache
def lease_of(holder: int, name: int) -> Slot:
    lease = Lease(f"L{name}", name + 1, "p", HOLDERS[holder], None, False, 1, 1, 0, None, None, 0, 0)
    return Slot(lease)


@cache
def ticket_of(holder: int, names: tuple[int, ...], number: int) -> Ticket:
    wanted = tuple(NAMES[name] for name in names)
    lease_ids = tuple(f"T{holder}.{number}.{name}" for name in names)
    owner = HOLDERS[holder]
    return Ticket(f"t{holder}.{number}", wanted, lease_ids, Terms(principal="p", owner=owner, ttl_ms=1))


def build(owners: tuple[int | None, ...], waits: tuple[Waits, ...]) -> State:
    """Make a state in which `owners` says who holds each name, and `waits` what each holder but the first waits for."""
    state = State()
    state.slots.load({NAMES[name]: lease_of(owner, name) for name, owner in enumerate(owners) if owner is not None})
    for holder, tickets in enumerate(waits, 1):
        for number, (names, is_there) in enumerate(tickets):
            ticket = ticket_of(holder, names, number)
            state.tickets.put(ticket.ticket_id, ticket)
            state.index.add_ticket(ticket)
            if is_there:
                state.attach(ticket.ticket_id)
    return state


def closure(owners: tuple[int | None, ...], waits: tuple[Waits, ...], count: int) -> list[int]:
    """For each holder the set of holders, as bits, that it can be led to: by Warshall's rule, over all of them."""
    ways = [0] * count
    for holder, tickets in enumerate(waits, 1):
        for names, is_there in tickets:
            for name in names:
                owner = owners[name]
                if is_there and owner is not None:
                    ways[holder] |= 1 << owner
    for through in range(count):
        for holder in range(count):
            if ways[holder] >> through & 1:
                ways[holder] |= ways[through]
    return ways


def is_cycle(
    path: tuple[str, ...], owners: tuple[int | None, ...], waits: tuple[Waits, ...], asked: tuple[int, ...]
) -> bool:
    """Follow the path: everybody on it waits, is there, and is held up by the next; the last by the requester."""
    who = 0
    for position in range(0, len(path), 2):
        name = int(path[position + 1][1])
        wanted = set(asked) if position == 0 else {n for names, is_there in waits[who - 1] if is_there for n in names}
        owner = owners[name]
        if path[position] != HOLDERS[who] or name not in wanted or owner is None:
            return False
        who = owner
    return who == 0


def judge(owners: tuple[int | None, ...], waits: tuple[Waits, ...], requests: list[tuple[int, ...]]) -> tuple[int, int]:
    """Compare the detector with the closure for every request of the first holder; return how many, and the circles."""
    state = build(owners, waits)
    ways = closure(owners, waits, len(waits) + 1)
    cycles = 0
    for asked in requests:
        in_the_way = {owner for name in asked if (owner := owners[name]) is not None}
        closes = any(owner == 0 or ways[owner] & 1 for owner in in_the_way)
        path = cycle(find_cycle(state, REQUESTER, [NAMES[name] for name in asked], 0))
        assert (path is not None) == closes, (owners, waits, asked, path)
        if path is not None:
            cycles += 1
            assert is_cycle(path, owners, waits, asked), (owners, waits, asked, path)
    return len(requests), cycles


def cycle(found: Deadlock | DeadlockSearchExceeded | None) -> tuple[str, ...] | None:
    """The path that was found; these graphs are too small to be a tangle."""
    assert not isinstance(found, DeadlockSearchExceeded)
    return None if found is None else found.path


def subsets(count: int) -> list[tuple[int, ...]]:
    return [some for size in range(count + 1) for some in combinations(range(count), size)]


def partitions(names: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every way to ask for these names with tickets for one or for all of several."""
    if not names:
        yield ()
        return
    first, rest = names[0], names[1:]
    for others in subsets(len(rest)):
        block = (first, *(rest[other] for other in others))
        left = tuple(name for position, name in enumerate(rest) if position not in others)
        for tail in partitions(left):
            yield (block, *tail)


def test_every_graph_of_three_holders() -> None:
    """3 holders, 3 names: every ownership, every set of waits for one or all of several, each there or not, every
    request: the detector says what the closure says, and what it tells is a circle (D1, D2, M2, I13)."""
    each: list[Waits] = [
        tuple(zip(blocks, there, strict=True))
        for names in subsets(3)
        for blocks in partitions(names)
        for there in product([True, False], repeat=len(blocks))
    ]
    requests = subsets(3)[1:]
    made = cycles = 0
    for owners in product([None, 0, 1, 2], repeat=3):
        for waits in product(each, repeat=2):
            counted = judge(owners, waits, requests)
            made, cycles = made + counted[0], cycles + counted[1]
    print(f"graphs of 3 × 3: {made:,}, with a cycle {cycles:,}")
    assert made == 4**3 * 47**2 * 7
    assert cycles > made // 10


def four_by_four() -> Iterator[tuple[tuple[int | None, ...], tuple[Waits, ...]]]:
    """Every graph of 4 holders and 4 names but for the names of the names and of the three who are not asking.

    Names are ordered by their owners, and owners by how many they hold; so of up to 24 × 6 equal graphs one is made.
    """
    sets = subsets(4)
    for owners in combinations_with_replacement([0, 1, 2, 3, 4], 4):
        counts = [owners.count(holder) for holder in (1, 2, 3)]
        if counts != sorted(counts, reverse=True):
            continue
        held = tuple(None if owner == 4 else owner for owner in owners)
        # Where two of the others hold nothing they are equal, and so only one order of their waits is made.
        for wanted in product(sets, repeat=3):
            if counts[1] == 0 and wanted[1] > wanted[2]:
                continue
            yield (
                held,
                tuple(
                    ((names, True),)
                    if names and (len(names) + position) % 2
                    else tuple(((name,), True) for name in names)
                    for position, names in enumerate(wanted)
                ),
            )


def test_every_graph_of_four_holders() -> None:
    """4 holders, 4 names: every ownership and every set of waits, up to the names of holders and names, every request,
    waits for one name and for all of several taking turns; in `make test` one in five of them (D1, D2, M2, I13)."""
    requests = subsets(4)[1:]
    made = cycles = 0
    one_in = proof.count("deadlock: one in so many graphs of 4 × 4")
    for owners, waits in islice(four_by_four(), 0, None, one_in):
        counted = judge(owners, waits, requests)
        made, cycles = made + counted[0], cycles + counted[1]
    print(f"graphs of 4 × 4: {made:,} for {5**4 * 16**3 * 15:,} with their equals, with a cycle {cycles:,}")
    assert made > 1_000_000 // one_in
    assert cycles > made // 10


# Graphs drawn by a seed, made by records.


class Agent:
    """One that holds and waits: an owner of a principal, an owner of a run, a run, or a claim without a name."""

    def __init__(self, kind: str, principal: str, owner: str | None, session: str | None) -> None:
        self.kind, self.principal, self.owner, self.session = kind, principal, owner, session

    @property
    def bound(self) -> bool:
        return self.kind == "run"


AGENTS = [
    Agent("owner", "p", "x", None),
    Agent("owner", "p", "y", "s1"),
    Agent("owner", "q", "x", None),
    Agent("run", "p", "x", "s1"),
    Agent("run", "p", "x", "s2"),
    Agent("run", "p", None, "s1"),
    Agent("nameless", "p", None, None),
    Agent("nameless", "q", None, "s2"),
]
"""Some call themselves the same and are not."""


class Drawn:
    """A state made by records drawn from a seed, and beside it the graph as plain sets."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.state = State()
        self.made = 0
        self.agents = chance.sample(AGENTS, chance.randint(2, 6))
        self.names = [f"n{number}" for number in range(chance.randint(2, 6))]
        self.held: dict[str, tuple[Lease, object]] = {}
        """Name → lease, and who that is: the agent, or for a nameless claim the lease alone."""
        self.queue: dict[str, tuple[Ticket, object]] = {}
        self.away: set[str] = set()
        for session_id in ("s1", "s2"):
            self.record(SessionOpened(Session(session_id, "p", None, None, 1, 1, 0)))

    def record(self, event: Event) -> None:
        evolve(self.state, Record(self.state.seq + 1, 0, 0, event))

    def fresh(self) -> str:
        self.made += 1
        return f"i{self.made}"

    def draw(self) -> None:
        chance = self.chance
        for name in self.names:
            if chance.random() < 0.85:
                self.grant(name, chance.choice(self.agents))
        for _ in range(chance.randint(1, 7)):
            self.join(chance.choice(self.agents))
        for name in list(self.held):
            if chance.random() < 0.12:
                lease, _ = self.held.pop(name)
                self.record(end_of(name, lease, chance.choice(["released", "expired", "revoked"]), 0))
        if chance.random() < 0.12:
            self.end_session(chance.choice(["s1", "s2"]))
        for ticket_id in list(self.queue):
            what = chance.random()
            if what < 0.08:
                ticket, _ = self.queue.pop(ticket_id)
                self.record(Left(ticket_id, "withdrawn", ticket.names))
            elif what < 0.25:
                self.state.detach(ticket_id, 0)
                self.away.add(ticket_id)

    def grant(self, name: str, agent: Agent) -> None:
        lease_id = self.fresh()
        lease = Lease(lease_id, self.state.last_token + 1, agent.principal, agent.owner, agent.session, agent.bound,
                      9, 9, 0, None, None, 0, 0)  # fmt: skip
        self.record(Granted(name, lease))
        self.held[name] = (lease, lease_id if agent.kind == "nameless" else agent)

    def wish(self, agent: Agent) -> Ticket:
        size = self.chance.choice([1, 1, 1, 2, 3])
        names = tuple(self.chance.sample(self.names, min(size, len(self.names))))
        lease_ids = tuple(self.fresh() for _ in names)
        terms = Terms(principal=agent.principal, owner=agent.owner, session=agent.session, bound=agent.bound, ttl_ms=1)
        return Ticket(self.fresh(), names, lease_ids, terms)

    def join(self, agent: Agent) -> None:
        ticket = self.wish(agent)
        self.record(Joined(ticket))
        self.state.attach(ticket.ticket_id)
        self.queue[ticket.ticket_id] = (ticket, ticket.lease_ids[0] if agent.kind == "nameless" else agent)

    def end_session(self, session_id: str) -> None:
        leases, tickets = end_leases_of(self.state, session_id, 0, None), end_tickets_of(self.state, session_id)
        self.record(SessionEnded(session_id, "expired", leases, left=tickets))
        dead = {agent for agent in self.agents if agent.bound and agent.session == session_id}
        self.held = {name: held for name, held in self.held.items() if held[1] not in dead}
        self.queue = {ticket_id: position for ticket_id, position in self.queue.items() if position[1] not in dead}
        self.agents = [agent for agent in self.agents if agent not in dead] or [AGENTS[0]]

    def ways(self) -> dict[object, set[object]]:
        graph: dict[object, set[object]] = {}
        for ticket_id, (ticket, who) in self.queue.items():
            if ticket_id not in self.away:
                graph.setdefault(who, set()).update(self.held[name][1] for name in ticket.names if name in self.held)
        return graph

    def judge(self) -> bool:
        """Let somebody want something: a circle is found if and only if depth-first search finds one."""
        agent = self.chance.choice(self.agents)
        wish = self.wish(agent)
        me = wish.lease_ids[0] if agent.kind == "nameless" else agent
        graph = self.ways()
        blockers = {self.held[name][1] for name in wish.names if name in self.held}
        reached: set[object] = set()
        for blocker in blockers:
            self.visit(graph, blocker, reached)
        path = cycle(find_cycle(self.state, holder_of_ticket(wish), wish.names, 0))
        assert (path is not None) == (me in reached)
        if path is not None:
            self.follow(path, me, wish.names, graph)
        for name in wish.names:
            if name in self.held:
                lease, who = self.held[name]
                found: set[object] = set()
                self.visit(graph, who, found)
                assert closing_waits(self.state, holder_of_lease(lease), Budget()) == self.closing(who, found)
        return path is not None

    def closing(self, who: object, found: set[object]) -> dict[str, tuple[int, str]]:
        """For each name of one holder the first who waits for it, is there, and is one of those `found`."""
        closing: dict[str, tuple[int, str]] = {}
        for ticket_id, (ticket, waiter) in self.queue.items():
            if ticket_id not in self.away and waiter in found:
                for name in ticket.names:
                    if name in self.held and self.held[name][1] is who:
                        closing.setdefault(name, (self.state.index.join_number[ticket_id], ticket_id))
        return closing

    def visit(self, graph: dict[object, set[object]], who: object, reached: set[object]) -> None:
        if who not in reached:
            reached.add(who)
            for after in graph.get(who, ()):
                self.visit(graph, after, reached)

    def follow(
        self, path: tuple[str, ...], me: object, asked: tuple[str, ...], graph: dict[object, set[object]]
    ) -> None:
        """The path is a circle of the graph, from the requester to itself, over what was asked for."""
        who: object = me
        for position, name in enumerate(path[1::2]):
            wanted = (
                asked
                if position == 0
                else [n for i, (t, w) in self.queue.items() if w is who and i not in self.away for n in t.names]
            )
            assert name in wanted
            assert position == 0 or self.held[name][1] in graph[who]
            if isinstance(who, Agent) and who.owner is not None:
                assert path[2 * position] == who.owner
            who = self.held[name][1]
        assert who is me


@pytest.mark.parametrize("block", range(10))
def test_random_graphs(block: int) -> None:
    """2–6 holders, 2–6 names, runs, nameless claims, ended leases, dead sessions, claims of all, places that were left
    and holders who are not there: no miss and no false alarm (D1, D2, I13)."""
    cycles = 0
    for seed in range(block * RANDOM_GRAPHS // 10, (block + 1) * RANDOM_GRAPHS // 10):
        drawn = Drawn(random.Random(seed))
        drawn.draw()
        try:
            cycles += drawn.judge()
        except AssertionError as error:
            raise AssertionError(f"graph {seed}: {error}") from error
    print(f"drawn graphs: {RANDOM_GRAPHS // 10:,}, with a cycle {cycles:,}")
    assert cycles > RANDOM_GRAPHS // 200
