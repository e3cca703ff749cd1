"""First in, first out: crowds of holders that join, give up, vanish, come back and die, in walks drawn by a seed.

A failing walk is named by its seed.
"""

import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from holdfast.core import outcomes
from holdfast.core.commands import (
    Acquire,
    ClaimAll,
    Command,
    EndSession,
    KeepSession,
    Leave,
    OpenSession,
    Release,
    Reopen,
    Revoke,
    Transfer,
)
from holdfast.core.events import Event, GrantedMany
from holdfast.core.state import State
from holdfast.core.values import Lease, Limits, Ticket
from tests.core.crowd import Crowd, check_queues, release_all
from tests.core.naive_queue import QueueEntry
from tests.core.pair import Pair
from tests.scenarios.player import durable, replay
from tests.support import proof
from tests.support.commands import acquire, altered, asked_by, claim_all, claim_any

WALKS = proof.count("line: walks")
MODEL_WALKS = proof.count("line: walks beside the naive model")
STEPS = 120

SMALL = Limits(
    leases_per_principal_max=6, tickets_per_principal_max=8, queue_max=6, retry_memory_ms=30_000, retry_bytes_max=20
)


class Walk:
    def __init__(self, seed: int, limits: Limits) -> None:
        self.chance = random.Random(seed)
        self.crowd: Crowd | CoreAndNaive = Crowd(limits)
        self.made = 0
        self.claims: dict[str, Acquire | ClaimAll] = {}
        """What was asked at each place, to come back with."""
        self.names = "abcdef"[: self.chance.choice([1, 2, 4, 6])]

    def fresh(self, letter: str) -> str:
        self.made += 1
        return f"{letter}{self.made}"

    def who(self) -> dict[str, object]:
        """An owner of one of two principals, one without a name, or a run with or without one."""
        chance, state = self.chance, self.crowd.state
        principal = chance.choice(["p", "q"])
        if state.sessions and chance.random() < 0.4:
            session = chance.choice(list(state.sessions.values()))
            bound = chance.random() < 0.7
            owner = chance.choice([None, "x", "y"])
            return {"principal": session.principal, "session": session.session_id, "bound": bound, "owner": owner}
        return {"principal": principal, "owner": chance.choice([None, "x", "y", "z", "w"])}

    def claim(self) -> Acquire | ClaimAll:
        chance = self.chance
        asked: dict[str, object] = {
            **self.who(),
            "ttl_ms": chance.choice([1_000, 5_000, 20_000, 100_000]),
            "delay_ms": chance.choice([0, 0, 0, 0, 2_000]),
            "redo": chance.random() < 0.2,
            "wait_ms": chance.choice([0, 50_000, 50_000]),
            "new_ticket": self.fresh("t"),
        }
        if asked["wait_ms"] and chance.random() < 0.3:
            asked["key"] = self.fresh("k")
        if chance.random() < 0.3:
            names = tuple(chance.sample(self.names, chance.randint(1, min(3, len(self.names)))))
            return claim_all(names=names, lease_ids=tuple(self.fresh("L") for _ in names), **asked)
        return acquire(name=chance.choice(self.names), lease_id=self.fresh("L"), **asked)

    def step(self) -> None:
        chance, crowd = self.chance, self.crowd
        away = list(crowd.away_since)
        there = [ticket_id for ticket_id in crowd.queue if crowd.is_there(ticket_id)]
        held = list(crowd.held.items())
        match chance.randrange(20):
            case 0 | 1 | 2 | 3 | 4:
                self.wait(self.claim())
            case 5 | 6 | 7 if held:
                self.release(*chance.choice(held))
            case 8 | 9 if there:
                crowd.detach(chance.choice(there))
            case 10 | 11 if away:
                self.resume_wait(chance.choice(away))
            case 12 if crowd.queue:
                ticket: Ticket | QueueEntry = chance.choice([*crowd.queue.values()])
                crowd.ask(Leave(ticket_id=ticket.ticket_id, principal=asked_by(ticket).principal))
            case 13 if held:
                self.hand_over(*chance.choice(held))
            case 14:
                self.session()
            case 15:
                who = self.who()
                names = tuple(chance.sample(self.names, chance.randint(1, len(self.names))))
                crowd.ask(claim_any(names=names, lease_id=self.fresh("L"), ttl_ms=5_000, **who))
            case 16:
                crowd.restart()
            case _:
                crowd.advance(chance.choice([0, 1, 500, 2_000, 5_000, 20_000]))

    def wait(self, claim: Acquire | ClaimAll) -> None:
        answer = self.crowd.ask(claim)
        if isinstance(answer, outcomes.MustWait):
            self.claims[answer.ticket_id] = claim

    def resume_wait(self, ticket_id: str) -> None:
        """With the ticket, or with the key if there is one."""
        claim = self.claims[ticket_id]
        by_key = claim.terms.key is not None and self.chance.random() < 0.5
        asked = _again(claim, None if by_key else ticket_id, self.fresh)
        answer = self.crowd.ask(asked)
        if isinstance(answer, outcomes.MustWait):
            assert answer.ticket_id == ticket_id or claim.terms.key is None or by_key

    def release(self, name: str, lease: Lease) -> None:
        done = self.chance.random() < 0.2
        asked = Release(
            name=name,
            principal=lease.principal,
            lease_id=lease.lease_id,
            done=done,
            remember_ms=self.chance.choice([3_000, 50_000]) if done else 0,
        )
        assert self.crowd.ask(asked) == outcomes.Released()

    def hand_over(self, name: str, lease: Lease) -> None:
        what = self.chance.randrange(3)
        if what == 0:
            self.crowd.ask(Revoke(name=name, principal="op", reason="r"))
        elif what == 1:
            self.crowd.ask(Reopen(name=self.chance.choice(self.names), principal="op"))
        else:
            to_owner, new = self.chance.choice("xyzw"), self.fresh("L")
            self.crowd.ask(
                Transfer(
                    name=name, principal=lease.principal, lease_id=lease.lease_id, new_lease_id=new, to_owner=to_owner
                )
            )

    def session(self) -> None:
        state, chance = self.crowd.state, self.chance
        if len(state.sessions) < 3:
            principal = chance.choice(["p", "q"])
            self.crowd.ask(OpenSession(principal=principal, session_id=self.fresh("s"), ttl_ms=30_000))
            return
        session = chance.choice(list(state.sessions.values()))
        kind = chance.choice([KeepSession, EndSession])
        self.crowd.ask(kind(principal=session.principal, session_id=session.session_id))


def _again(claim: Acquire | ClaimAll, ticket_id: str | None, fresh: Callable[[str], str]) -> Acquire | ClaimAll:
    if isinstance(claim, Acquire):
        return altered(claim, ticket=ticket_id, lease_id=fresh("L"), new_ticket=fresh("t"))
    return altered(claim, ticket=ticket_id, lease_ids=tuple(fresh("L") for _ in claim.names), new_ticket=fresh("t"))


class CoreAndNaive:
    """The core and the naive one, to be walked through like a crowd."""

    def __init__(self, limits: Limits) -> None:
        self.pair = Pair(limits)
        self.advance, self.detach, self.restart = self.pair.advance, self.pair.detach, self.pair.restart

    @property
    def state(self) -> State:
        return self.pair.core

    @property
    def held(self) -> dict[str, Lease]:
        return self.pair.held

    @property
    def queue(self) -> dict[str, QueueEntry]:
        return {entry.ticket_id: entry for entry in self.pair.naive.queue.entries}

    @property
    def away_since(self) -> list[str]:
        return [entry.ticket_id for entry in self.pair.naive.queue.entries if entry.away is not None]

    def is_there(self, ticket_id: str) -> bool:
        return ticket_id in self.pair.core.connected.attached

    def ask(self, command: Command) -> object:
        self.pair.ask(command)
        return self.pair.answer


@pytest.mark.parametrize("block", range(10))
def test_core_and_naive_model_notify_waiters_alike(block: int) -> None:
    """The same walks with the naive core beside the real one: every answer, at once or in line, is the same, down to
    tokens, deadlines, predecessors and attempts (C5, C7, L5, L7, L8, W1–W5, D1, M1, M2, I12, I13, I15)."""
    for seed in range(block * MODEL_WALKS // 10, (block + 1) * MODEL_WALKS // 10):
        walk = Walk(seed, Limits())
        walk.crowd = CoreAndNaive(SMALL if seed % 2 else replace(SMALL, retry_bytes_max=1_000, queue_max=100))
        try:
            for _ in range(STEPS):
                walk.step()
        except Exception as error:
            raise AssertionError(f"walk {seed}: {error!r}") from error
        assert durable(replay(walk.crowd.pair.records)) == durable(walk.crowd.state)


@pytest.mark.parametrize("block", range(10))
def test_queue_is_first_in_first_out(block: int) -> None:
    """Whoever comes, goes, vanishes, dies or is handed a name, and however often the server restarts: grants follow the
    order of joining among those who are there, none is granted twice, none who could be met waits, and no place is left
    behind (W1, W2, W3, W4, W5, D1, M2, I12, I13)."""
    for seed in range(block * WALKS // 10, (block + 1) * WALKS // 10):
        walk = Walk(seed, SMALL if seed % 2 else Limits())
        try:
            for _ in range(STEPS):
                walk.step()
            assert isinstance(walk.crowd, Crowd)
            release_all(walk.crowd)
        except Exception as error:
            raise AssertionError(f"walk {seed}: {error!r}") from error
        assert not walk.crowd.queue
        assert not walk.crowd.state.tickets
        state = walk.crowd.state
        for (principal, key), memo in state.memos.items():
            entry_id = f"{principal} {key}" if memo.kind == "left" else memo.made
            assert entry_id in state.remembered, f"walk {seed}: a key was kept"


def test_waiters_are_granted_in_order_of_joining() -> None:
    """200 in line for one name, a third of them gone, restarts: the rest are granted in the order of joining (W1)."""
    crowd = Crowd()
    crowd.ask(acquire(name="job", principal="p", owner="first", lease_id="L", ttl_ms=1_000))
    for number in range(200):
        who = f"w{number}"
        answer = crowd.ask(
            acquire(
                name="job", principal="p", owner=who, lease_id=f"L{number}", ttl_ms=1_000, wait_ms=50_000,
                new_ticket=f"t{number:03}",
            )
        )  # fmt: skip
        assert answer == outcomes.MustWait(f"t{number:03}", 50_000)
    alive = [number for number in range(200) if number % 3]
    chance = random.Random(1)
    for start in (0, 60, 110):
        crowd.restart()
        back = [number for number in alive if f"t{number:03}" in crowd.queue]
        chance.shuffle(back)
        for number in back:
            crowd.ask(
                acquire(
                    name="job", principal="p", owner=f"w{number}", lease_id=f"M{start}.{number}", ttl_ms=1_000,
                    wait_ms=50_000, ticket=f"t{number:03}", new_ticket="unused",
                )
            )  # fmt: skip
        for _ in range(50):
            crowd.advance(1_000)
    assert [int(ticket_id[1:]) for ticket_id in crowd.granted] == alive
    crowd.advance(60_000)
    assert not crowd.queue


class Hasty(Crowd):
    """Without a judge, who would take longer than the core; it only notes who was granted."""

    def judge(self, event: Event, notice: dict[str, object]) -> None:
        if isinstance(event, GrantedMany) and event.ticket_id is not None:
            self.granted[event.ticket_id] += 1

    def judge_wait(self, command: Command, answer: object) -> None:
        pass

    def check(self) -> None:
        pass


def test_chain_of_claims_of_all_is_granted_in_one_pass() -> None:
    """Two thousand claims of all, each sharing names with its neighbours, are met in order when all is free at once:
    the cost is that of the lines, and nothing is looked at again and again (M2)."""
    crowd = Hasty(Limits(names_per_call_max=10_000, queue_max=10_000))
    count = 2_000
    names = tuple(f"n{number:04}" for number in range(count + 2))
    lease_ids = tuple(f"A{name}" for name in names)
    crowd.ask(claim_all(names=names, principal="p", owner="all", lease_ids=lease_ids, ttl_ms=5_000))
    for number in range(count):
        lease_ids = tuple(f"B{number}.{each}" for each in range(3))
        wanted = names[number : number + 3]
        asked = claim_all(names=wanted, principal="p", lease_ids=lease_ids, ttl_ms=5_000, wait_ms=50_000)
        assert crowd.ask(altered(asked, new_ticket=f"t{number:04}")) == outcomes.MustWait(f"t{number:04}", 50_000)
    crowd.advance(5_000)
    assert list(crowd.granted) == [f"t{number:04}" for number in range(0, count, 3)]
    check_queues(crowd.state)


def test_interests_are_bounded_and_forgotten() -> None:
    """Who only asks leaves an interest for a minute, and nameless askers leave none: the memory is bounded (D3).

    One that has faded counts no more, and each that comes lets two of those go.
    """
    crowd = Crowd()
    crowd.ask(acquire(name="job", principal="p", owner="x", lease_id="L", ttl_ms=1_000_000))
    for number in range(300):
        owner = f"o{number}" if number % 2 else None
        asked = acquire(name="job", principal="p", owner=owner, lease_id=f"L{number}", ttl_ms=1, interest=True)
        assert isinstance(crowd.ask(asked), outcomes.Held)
    assert len(crowd.state.connected.interests) == len(crowd.state.connected.interests_by_age) == 150
    crowd.advance(59_999)
    assert len(crowd.state.connected.interests) == 150
    crowd.advance(1)
    for number in range(150):
        crowd.ask(acquire(name="job", principal="p", owner="late", lease_id=f"M{number}", ttl_ms=1, interest=True))
    assert list(crowd.state.connected.interests) == [("principal", "p", "late")]
    assert len(crowd.state.connected.interests_by_age) == 1
