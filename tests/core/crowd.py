"""A crowd at one authority: the core driven as the engine drives it, and every step of it judged by the rules alone.

The judge has its own books, kept from the records: who holds what, who stands in line since when. Who is *there* it is
told, as the core is. Before a record takes effect it must be what the rules say, and after every step nothing may be
left to do: nobody who is there and could be met waits (W1, I12), and no circle of waits stands (D1, I13).
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator

from msgspec.structs import replace

from holdfast.core import outcomes
from holdfast.core.commands import Acquire, ClaimAll, Command, EndSession, Release
from holdfast.core.decide import decide, next_due, next_grant
from holdfast.core.events import (
    Ended,
    Event,
    Granted,
    GrantedMany,
    Joined,
    Left,
    Record,
    SessionEnded,
    SessionOpened,
    TicketReassigned,
    Transferred,
)
from holdfast.core.evolve import event_fits, evolve
from holdfast.core.state import State
from holdfast.core.values import Instant, Lease, Limits, Ticket, holder_of_ticket
from tests.core.archive_model import Archived
from tests.scenarios.player import durable

WALL_MS = 7_000_000
DETACHED_MS = 60_000

Who = tuple[object, ...]


def who_holds(lease: Lease) -> Who:
    if lease.bound:
        return ("run", lease.session, lease.owner)
    return ("lease", lease.lease_id) if lease.owner is None else ("owner", lease.principal, lease.owner)


def who_waits(ticket: Ticket) -> Who:
    terms = ticket.terms
    if terms.bound:
        return ("run", terms.session, terms.owner)
    return ("lease", ticket.lease_ids[0]) if terms.owner is None else ("owner", terms.principal, terms.owner)


def label(who: Who) -> str | None:
    return str(who[2]) if len(who) == 3 and who[2] is not None else None


class Crowd:
    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.state = State()
        self.shadow = State()
        self.archived = Archived(self.shadow)
        self.now_ms = 0
        self.held: dict[str, Lease] = {}
        self.open_at_ms: dict[str, int] = {}
        self.done_until_ms: dict[str, int] = {}
        self.sessions: set[str] = set()
        self.queue: dict[str, Ticket] = {}
        """Everybody in line, in the order of joining."""
        self.away_since: dict[str, int] = {}
        self.granted: Counter[str] = Counter()
        """How often each ticket was granted."""
        self.lease_ids: set[str] = set()
        self.cycles = 0
        """How many graphs of waits were judged, with or without a circle."""
        self.refused = 0
        """How many of them had one."""

    # How the engine would do it.

    @property
    def now(self) -> Instant:
        return Instant(self.now_ms, WALL_MS + self.now_ms)

    def ask(self, command: Command) -> object:
        """Let the core decide a command, with all that comes of it; return its answer."""
        self.expire_due()
        decision = decide(self.state, command, self.now, self.limits)
        self.judge_wait(command, decision.answer)
        for event in decision.events:
            self.record(event)
        if decision.interest is not None:
            self.state.connected.add_interest(*decision.interest)
        notices = dict(decision.notices)
        assert len(notices) == len(decision.notices), "W5: told twice"
        if isinstance(decision.answer, outcomes.MustWait):
            self.attach(decision.answer.ticket_id)
        while (due := next_grant(self.state, self.now, self.limits)) is not None:
            self.record(due.event, dict(due.notices))
        self.check()
        return decision.answer

    def expire_due(self) -> None:
        while (due := next_due(self.state, self.now, self.limits)) is not None:
            self.record(due.event, dict(due.notices))

    def advance(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self.expire_due()
        self.check()

    def attach(self, ticket_id: str) -> None:
        self.state.attach(ticket_id)
        self.away_since.pop(ticket_id, None)

    def detach(self, ticket_id: str) -> None:
        """The request at a place is gone, by its time or by the wire."""
        if ticket_id in self.queue and ticket_id not in self.away_since:
            self.state.detach(ticket_id, self.now_ms)
            self.away_since[ticket_id] = self.now_ms
        self.check()

    def restart(self) -> None:
        self.state = State.thaw(self.shadow.freeze())
        self.away_since = dict.fromkeys(self.queue, self.shadow.now_ms)
        self.state.connected.detached_since = OrderedDict(self.away_since)
        self.check()

    def record(self, event: Event, notices: dict[str, object] | None = None) -> None:
        record = Record(self.state.seq + 1, self.now_ms, WALL_MS + self.now_ms, event)
        assert event_fits(self.state, event)
        self.judge(event, {} if notices is None else notices)
        evolve(self.state, record)
        evolve(self.shadow, record)

    # The books.

    def is_there(self, ticket_id: str) -> bool:
        return ticket_id not in self.away_since

    def is_free(self, name: str) -> bool:
        return name not in self.held and self.open_at_ms.get(name, 0) <= self.now_ms

    def ready(self) -> Iterator[Ticket]:
        """Who is there and finds all it wants free, the one that joined first first."""
        for ticket_id, ticket in self.queue.items():
            if self.is_there(ticket_id) and all(self.is_free(name) for name in ticket.names):
                yield ticket

    def edges(self, more: Ticket | None = None) -> dict[Who, set[Who]]:
        """The whole graph of waits, from nothing: every wait of one who is there, to every holder in its way."""
        graph: dict[Who, set[Who]] = {}
        waits = [ticket for ticket_id, ticket in self.queue.items() if self.is_there(ticket_id)]
        for ticket in [*waits, *([] if more is None else [more])]:
            ways = {who_holds(self.held[name]) for name in ticket.names if name in self.held}
            graph.setdefault(who_waits(ticket), set()).update(ways)
        return graph

    def judge_wait(self, command: Command, answer: object) -> None:
        """I13: a wait is refused for a circle if and only if there is one through it."""
        if not isinstance(command, Acquire | ClaimAll) or not isinstance(answer, outcomes.MustWait | outcomes.Deadlock):
            return
        names = command.names
        wanted = Ticket("", names, command.lease_ids, command.terms)
        me = who_waits(wanted)
        in_the_way = {who_holds(self.held[name]) for name in names if name in self.held}
        closes = any(me in reach(self.edges(), blocker) for blocker in in_the_way)
        assert isinstance(answer, outcomes.Deadlock) == closes, (command, answer)
        self.cycles += 1
        if isinstance(answer, outcomes.Deadlock):
            self.refused += 1
            self.judge_path(answer.path, me, names)

    def judge_path(self, path: tuple[str, ...], me: Who, names: tuple[str, ...]) -> None:
        """The path told is a real circle: each waits, is there, and is held up by the next."""
        assert len(path) % 2 == 0
        assert path[1] in names
        if label(me) is not None:
            assert path[0] == label(me)
        holders = [me, *(who_holds(self.held[name]) for name in path[1::2])]
        assert holders[-1] == me
        assert len(set(holders[1:])) == len(holders) - 1, "a shortest circle meets nobody twice"
        for ticket_id, holder in enumerate(holders[1:-1], 1):
            waits = [t for i, t in self.queue.items() if self.is_there(i) and who_waits(t) == holder]
            assert any(path[2 * ticket_id + 1] in ticket.names for ticket in waits)
            if label(holder) is not None:
                assert path[2 * ticket_id] == label(holder)

    def judge(self, event: Event, notices: dict[str, object]) -> None:
        """Check a record against all earlier ones, and enter it into the books."""
        match event:
            case Granted():
                self.judge_waiter(event.ticket_id, (event.lease,), (event.name,), notices)
            case GrantedMany():
                leases = tuple(grant.lease for grant in event.grants)
                self.judge_waiter(event.ticket_id, leases, tuple(grant.name for grant in event.grants), notices)
            case Joined(ticket=ticket):
                if ticket.ticket_id not in self.queue:
                    self.away_since[ticket.ticket_id] = self.now_ms
                self.queue[ticket.ticket_id] = ticket
            case TicketReassigned():
                self.queue[event.ticket_id] = replace(self.queue[event.ticket_id], terms=event.terms)
            case Left():
                self.judge_left(event, notices)
            case Ended():
                self.end(event)
            case Transferred():
                assert self.held[event.name].lease_id == event.old_lease_id
                self.take(event.name, event.lease)
            case SessionOpened(session=session):
                self.sessions.add(session.session_id)
            case SessionEnded(session_id=session_id):
                self.sessions.discard(session_id)
                for ended in event.leases:
                    self.end(ended)
                bound = [i for i, t in self.queue.items() if t.terms.bound and t.terms.session == session_id]
                self.leave_with(event.left, bound, "session_ended")

    def judge_waiter(
        self, ticket_id: str | None, leases: tuple[Lease, ...], names: tuple[str, ...], notices: dict[str, object]
    ) -> None:
        """I12: of all who are there and can be met the one that joined first is met, and a plain try overtakes none."""
        assert all(self.is_free(name) for name in names), "I1, I14: granted what is not free"
        ready = list(self.ready())
        if ticket_id is not None and self.is_there(ticket_id):
            ticket = self.queue[ticket_id]
            assert ready and ready[0].ticket_id == ticket_id, "I12: somebody joined before"
            assert (ticket.names, ticket.lease_ids) == (names, tuple(lease.lease_id for lease in leases))
            assert ticket_id in notices, "granted, and not told"
            until_ms = {lease.until_ms for lease in leases}
            assert until_ms == {self.now_ms + ticket.terms.ttl_ms}, "W4: the ttl counts from the instant of the grant"
        else:
            assert not any(set(names) & set(other.names) for other in ready), "W1: a plain try overtook"
        if ticket_id is not None:
            self.granted[ticket_id] += 1
            assert self.granted[ticket_id] == 1, "granted twice"
            self.drop(ticket_id)
        for name, lease in zip(names, leases, strict=True):
            self.take(name, lease)

    def judge_left(self, event: Left, notices: dict[str, object]) -> None:
        ticket = self.queue[event.ticket_id]
        if event.how == "gone":
            assert self.away_since[event.ticket_id] + DETACHED_MS <= self.now_ms, "W2: gone too early"
        elif event.how == "deadlock" and event.ticket_id in notices:
            answer = notices[event.ticket_id]
            assert isinstance(answer, outcomes.Deadlock)
            self.judge_path(answer.path, who_waits(ticket), ticket.names)
            self.refused += 1
        elif event.how == "refused":
            assert next(self.ready()).ticket_id == event.ticket_id, "W5: judged before its turn"
        self.drop(event.ticket_id)

    def drop(self, ticket_id: str) -> None:
        del self.queue[ticket_id]
        self.away_since.pop(ticket_id, None)

    def take(self, name: str, lease: Lease) -> None:
        assert lease.lease_id not in self.lease_ids, "a lease id was given twice"
        self.lease_ids.add(lease.lease_id)
        self.held[name] = lease
        self.done_until_ms.pop(name, None)

    def end(self, event: Ended) -> None:
        lease = self.held.pop(event.name)
        assert lease.lease_id == event.lease_id
        if lease.delay_ms:
            self.open_at_ms[event.name] = self.now_ms + lease.delay_ms
        if event.done is not None:
            self.done_until_ms[event.name] = event.done.until_ms
        done = [
            i for i, t in self.queue.items() if event.done is not None and event.name in t.names and not t.terms.redo
        ]
        self.leave_with(event.left, done, "done")

    def leave_with(self, left: tuple[Left, ...], wanted: list[str], how: str) -> None:
        """All places that a record ends, and no other, are in it (I10, L5)."""
        assert [(each.ticket_id, each.how) for each in left] == [(ticket_id, how) for ticket_id in wanted]
        for ticket_id in wanted:
            self.drop(ticket_id)

    # What must be so after every step.

    def check(self) -> None:
        assert not list(self.ready()), "W1: a free name has a present waiter that could be served"
        graph = self.edges()
        assert not any(who in reach(graph, next_) for who, after in graph.items() for next_ in after), "D1: a circle"
        self.cycles += 1
        assert list(self.state.tickets.values()) == list(self.queue.values())
        assert all(since + DETACHED_MS > self.now_ms for since in self.away_since.values()), "W2: a place outlived"
        assert all(not t.terms.bound or t.terms.session in self.sessions for t in self.queue.values()), "I10"
        assert durable(self.state) == durable(self.shadow)
        self.archived.follow()
        check_queues(self.state)


def reach(graph: dict[Who, set[Who]], start: Who) -> set[Who]:
    """Everybody that can be reached from one, itself included."""
    found, ahead = {start}, [start]
    while ahead:
        new = graph.get(ahead.pop(), set()) - found
        found |= new
        ahead += new
    return found


def check_queues(state: State) -> None:
    """Every look-up over the lines is what the tickets and those who are present say, and nothing is left over."""
    tickets, index, connected, timers = state.tickets, state.index, state.connected, state.timers
    names = dict.fromkeys(name for ticket in tickets.values() for name in ticket.names)
    assert {name: list(line) for name, line in index.queues.items()} == {
        name: [i for i, t in tickets.items() if name in t.names] for name in names
    }
    assert connected.attached <= set(tickets)
    assert set(connected.detached_since) == set(tickets) - connected.attached
    assert list(connected.detached_since.values()) == sorted(connected.detached_since.values())
    there = Counter(name for i in connected.attached for name in tickets[i].names)
    assert {name: state.waiter_count(name) for name in there} == there
    numbers = [index.join_number[i] for i in tickets]
    assert numbers == sorted(set(numbers)) and len(index.join_number) == len(tickets)
    assert {name: [i for _, i in line] for name, line in connected.queues.items()} == {
        name: [i for i in index.queues[name] if i in connected.attached] for name in there
    }
    for name, line in connected.queues.items():
        assert line.is_open == state.is_open(name)
        assert all(len(tickets[i].names) == 1 for _, i in line.single_name)
        assert all(len(tickets[i].names) > 1 for _, i in line.multi_name)
    several = {i for i in connected.attached if len(tickets[i].names) > 1}
    assert connected.closed_names == {i: sum(not state.is_open(name) for name in tickets[i].names) for i in several}
    assert all(connected.tickets_by_holder.values())
    assert {i: who for who, those in connected.tickets_by_holder.items() for i in those} == {
        i: holder_of_ticket(tickets[i]) for i in connected.attached
    }
    assert index.tickets_by_names == {
        (holder_of_ticket(ticket), frozenset(ticket.names)): {i: None}
        for i, ticket in tickets.items()
        if holder_of_ticket(ticket)[0] != "alone"
    }
    principals = {ticket.terms.principal for ticket in tickets.values()}
    assert {who: list(those) for who, those in index.tickets_by_principal.items()} == {
        who: [i for i, ticket in tickets.items() if ticket.terms.principal == who] for who in principals
    }
    assert index.ticket_by_lease_id == {lease_id: i for i, ticket in tickets.items() for lease_id in ticket.lease_ids}
    bound = {i: t.terms.session for i, t in tickets.items() if t.terms.bound}
    assert {i: session for session, those in index.tickets_by_session.items() for i in those} == bound
    assert not timers.names_with_new_holder and not timers.candidates
    wanted = {(who, name) for who, names in connected.interests.items() for name in names}
    assert set(connected.interests_by_age) == wanted
    assert connected.interest_usage.weight == len(wanted)
    assert all(connected.interests.values())


def release_all(crowd: Crowd) -> None:
    """Let everybody go: the holders release, the runs end, nobody comes back."""
    for ticket_id in list(crowd.queue):
        crowd.detach(ticket_id)
    for session_id in sorted(crowd.sessions):
        session = crowd.state.sessions[session_id]
        crowd.ask(EndSession(principal=session.principal, session_id=session_id))
    for name, lease in list(crowd.held.items()):
        if crowd.held.get(name) is lease:
            crowd.ask(Release(name=name, principal=lease.principal, lease_id=lease.lease_id))
    crowd.advance(DETACHED_MS)
