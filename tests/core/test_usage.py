"""Nobody can spend what is kept for another: the retry memory and the free names, by whose they are (C5)."""

import random
import sys
from collections import Counter
from types import FrameType

import pytest

from holdfast.core import outcomes
from holdfast.core.commands import Command, OpenSession, Release, Renew, Revoke, Transfer
from holdfast.core.decide import decide, next_due
from holdfast.core.events import Event, Forgotten, Joined, Left, Record, UsageEvicted
from holdfast.core.evolve import evolve
from holdfast.core.state import State
from holdfast.core.usage import UsageLedger, planned_evictions, weight_of_remembered
from holdfast.core.values import EndedLease, Instant, LastEnd, Limits, Slot, Terms, Ticket, UsedKey
from tests.scenarios.player import durable
from tests.support.commands import acquire, altered, claim_all

Account = tuple[str, str | None]


class World:
    """A state, and every record that led to it."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.state = State()
        self.now_ms = self.number = 0
        self.records: list[Record] = []

    def apply(self, event: Event) -> None:
        record = Record(self.state.seq + 1, self.now_ms, self.now_ms, event)
        evolve(self.state, record)
        self.records.append(record)

    def expire_due(self) -> list[Event]:
        happened: list[Event] = []
        while (due := next_due(self.state, Instant(self.now_ms, self.now_ms), self.limits)) is not None:
            self.apply(due.event)
            happened.append(due.event)
        return happened

    def ask(self, command: Command) -> object:
        decision = decide(self.state, command, Instant(self.now_ms, self.now_ms), self.limits)
        for event in decision.events:
            self.apply(event)
        return decision.answer

    def spend(self, name: str, who: Account, *, note: str | None = None, delay_ms: int = 0) -> None:
        """Claim a name and give it back: what is remembered of it counts against `who`."""
        principal, session = who
        self.number += 1
        number = self.number
        asked = acquire(name=name, principal=principal, lease_id=f"L{number}", ttl_ms=60_000)
        asked = altered(asked, key=f"k{number}", session=session, bound=session is not None, delay_ms=delay_ms)
        self.ask(asked)
        if note is not None:
            self.ask(Renew(name=name, principal=principal, lease_id=f"L{number}", ttl_ms=None, note=note))
        self.ask(Release(name=name, principal=principal, lease_id=f"L{number}"))


def items_of(ledger: UsageLedger) -> dict[Account, list[str]]:
    return {
        (principal, session): list(account.items)
        for principal, usage in ledger.principals.items()
        for session, account in usage.accounts.items()
    }


def modest(before: dict[Account, list[str]], limit: int) -> set[Account]:
    """The accounts of principals at or below their share, and accounts at or below their part of a larger one."""
    totals = Counter[str]()
    for (principal, _), items in before.items():
        totals[principal] += len(items)
    share = limit // len(totals)
    inside = Counter(principal for principal, _ in before)
    return {
        who
        for who, items in before.items()
        if totals[who[0]] <= share or len(items) <= min(share, totals[who[0]]) // inside[who[0]]
    }


@pytest.mark.parametrize("seed", range(6))
def test_principal_within_its_share_loses_nothing(seed: int) -> None:
    """One principal at ten times its share, with many sessions, flushes nothing of others; replays agree (C5, I15)."""
    chance = random.Random(seed)
    world = World(Limits(retry_bytes_max=60, ended_bytes_max=50, leases_per_principal_max=1_000))
    accounts: list[Account] = [(f"user-{number}", None) for number in range(5)]
    for number in range(6):
        principal = chance.choice(["eve", "user-1"])
        world.ask(OpenSession(principal=principal, session_id=f"s{number}", ttl_ms=10**8))
        accounts.append((principal, f"s{number}"))
    again, forgotten = State(), 0
    for step in range(600):
        who = ("eve", None) if chance.random() < 0.6 else chance.choice(accounts)
        world.spend(f"job-{step}-{chance.randrange(3)}", who, delay_ms=chance.choice([0, 0, 0, 5_000]))
        if chance.random() < 0.3:
            continue
        world.now_ms += chance.choice([0, 1, 100])
        keys, names = items_of(world.state.index.retry_usage), items_of(world.state.index.free_usage)
        events = world.expire_due()
        forgotten += sum(isinstance(event, UsageEvicted) for event in events)
        for before, after, limit in (
            (keys, items_of(world.state.index.retry_usage), world.limits.retry_bytes_max),
            (names, items_of(world.state.index.free_usage), world.limits.ended_bytes_max),
        ):
            for account in modest(before, limit):
                assert set(before[account]) == set(after[account]), f"step {step}: {account} lost something"
        assert len(world.state.remembered) <= world.limits.retry_bytes_max
        if chance.random() < 0.1:
            world.state = State.thaw(world.state.freeze())
    assert forgotten > 50
    for record in world.records:
        evolve(again, record)
    assert durable(again) == durable(world.state)
    assert list(again.slots) == list(world.state.slots)
    assert items_of(again.index.free_usage) == items_of(world.state.index.free_usage)


def full_of_names(count: int, closed: int) -> State:
    """A state with so many free names of one principal, the eldest of them closed."""
    state = State()
    end = LastEnd("released", 1, None, None, 0, 0, "eve")
    for number in range(count):
        state.slots.put(f"job-{number}", Slot(None, 30_000 if number < closed else 0, end, left_by="eve"))
    return State.thaw(state.freeze())


@pytest.mark.parametrize("count", [20_000, 200_000])
def test_eviction_examines_a_bounded_number_of_names(count: int) -> None:
    """However many free names there are, and though the eldest must stay, a turn looks at no more than 2,000."""
    state = full_of_names(count, closed=3_000)
    limits = Limits(ended_bytes_max=count // 2)
    now_ms, turns = 1, 0
    while len(state.slots) > limits.ended_bytes_max:
        steps = Counter[str]()

        def count_calls(frame: FrameType, what: str, _arg: object, steps: Counter[str] = steps) -> None:
            steps[frame.f_code.co_name] += what == "call"

        events: list[Event] = []
        sys.setprofile(count_calls)
        while (due := next_due(state, Instant(now_ms, now_ms), limits)) is not None:
            evolve(state, Record(state.seq + 1, now_ms, now_ms, due.event))
            events.append(due.event)
        sys.setprofile(None)
        assert steps["may_go"] <= 2 * 2_000, "once to decide, once to do it"
        assert sum(steps.values()) < 100_000
        assert len(events) <= 1
        turns += 1
        now_ms += 1 if events else 1_000
        if turns == 5 and count > 20_000:
            assert len(state.slots) < count
            return
    assert all(f"job-{number}" in state.slots for number in range(3_000)), "a closed name was forgotten (I14)"


def test_expired_retry_records_are_dropped_in_slices() -> None:
    """When all of a large retry memory is overdue at once, each turn drops 2,000 of it and no more."""
    world = World(Limits())
    for number in range(5_000):
        world.state.remembered.put(f"eve k{number}", UsedKey("eve", f"k{number}", 0))
    world.state = State.thaw(world.state.freeze())
    world.now_ms = 600_000
    slices = []
    for _ in range(4):
        slices.append(world.expire_due())
        world.now_ms += 1
    assert slices == [[Forgotten(2_000)], [Forgotten(2_000)], [Forgotten(1_000)], []]


def test_byte_limit_evicts_from_the_largest_account() -> None:
    """Over the limit in bytes the one with large texts gives, not the one with many small ones."""
    ledger = UsageLedger()
    small = EndedLease("n", "ana", None, LastEnd("released", 1, None, None, 0, 0))
    for number in range(100):
        ledger.put("ana", None, f"a{number}", weight_of_remembered("a", small))
    for number in range(10):
        ledger.put("eve", "s", f"e{number}", 8_000)
    assert {(who, session) for who, session, _ in planned_evictions(ledger, 60_000)} == {("eve", "s")}


def test_ticket_key_is_remembered_only_if_the_record_says_so() -> None:
    """A place that ended by a refusal or a deadlock leaves its key free; any other end remembers the key (C5)."""
    for event, known in ((Left("T", "withdrawn"), False), (Left("T", "withdrawn", is_remembered=True), True)):
        world = World(Limits())
        terms = Terms(principal="ana", ttl_ms=1_000, key="k", session="s", bound=True)
        world.apply(Joined(Ticket("T", ("job",), ("L",), terms)))
        world.apply(event)
        assert (("ana", "k") in world.state.memos) == known
        assert (items_of(world.state.index.retry_usage) == {("ana", "s"): ["ana k"]}) == known


def test_operator_key_is_charged_to_the_operator() -> None:
    """An operator ends somebody's lease with a key, and that one floods its own memory: a retry ends nobody's lease."""
    world = World(Limits(retry_bytes_max=20))
    world.ask(acquire(name="job", principal="eve", lease_id="L-eve", ttl_ms=60_000))
    ends = Revoke(name="job", principal="ops", reason="stuck", key="R", fingerprint="f")
    assert isinstance(world.ask(ends), outcomes.Released)
    for number in range(60):
        world.spend(f"flood-{number}", ("eve", None))
        world.expire_due()
    world.ask(acquire(name="job", principal="ben", lease_id="L-ben", ttl_ms=60_000))
    assert isinstance(world.ask(ends), outcomes.Released)
    lease = world.state.lease_of("job")
    assert lease is not None and lease.principal == "ben"


def test_transfer_key_is_charged_to_the_session() -> None:
    """A session transfers its claim again and again: what its token remembers by itself stays (C5)."""
    world = World(Limits(retry_bytes_max=20))
    world.ask(OpenSession(principal="ana", session_id="s", ttl_ms=10**8))
    world.spend("plain", ("ana", None))
    bound = altered(acquire(name="tr", principal="ana", lease_id="T0", ttl_ms=60_000), session="s", bound=True)
    world.ask(bound)
    for number in range(60):
        handed = Transfer(
            name="tr",
            principal="ana",
            lease_id=f"T{number}",
            new_lease_id=f"T{number + 1}",
            to_owner=f"o{number}",
            as_session="s",
        )
        assert isinstance(world.ask(handed), outcomes.Acquired)
        world.expire_due()
    assert ("ana", "k1") in world.state.memos


def test_byte_limit_spares_accounts_below_their_share() -> None:
    """Whatever weights there are: who has no more than the limit divided by the number of principals gives nothing."""
    chance = random.Random(7)
    for _ in range(2_000):
        ledger = UsageLedger()
        for who in range(chance.randrange(2, 6)):
            for number in range(chance.randrange(1, 8)):
                ledger.put(f"p{who}", None, f"{number}", chance.randrange(1, 9_000))
        limit = max(1, ledger.weight - chance.randrange(1, 5_000))
        share = limit // len(ledger.principals)
        for principal, _, gives in planned_evictions(ledger, limit):
            assert gives and ledger.principal_usage(principal).weight > share


def test_forgotten_leases_drop_their_ids() -> None:
    """Of a claim of all one lease lives on for long: the ids of those that are forgotten go with them."""
    world = World(Limits(retry_bytes_max=5))
    names = tuple(f"n{number}" for number in range(10))
    many = claim_all(
        names=names, lease_ids=tuple(f"L-{name}" for name in names), principal="eve", key="k", ttl_ms=60_000
    )
    world.ask(many)
    for name in names[1:]:
        world.ask(Release(name=name, principal="eve", lease_id=f"L-{name}"))
    world.now_ms += 2_000
    world.expire_due()
    memo = world.state.memos["eve", "k"]
    assert memo.leases < len(names) and memo.lease_ids == ()
