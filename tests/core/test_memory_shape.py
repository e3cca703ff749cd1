"""The indexes of the state are what its durable part says, and no collection outgrows what it is for."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core import outcomes
from holdfast.core.commands import Command, EndSession, KeepSession, OpenSession, Release, Renew, RenewSession
from holdfast.core.decide import decide, next_due
from holdfast.core.events import Record
from holdfast.core.evolve import evolve
from holdfast.core.index import OrderedNames
from holdfast.core.state import State
from holdfast.core.timers import DEADLINES_SPARE, DeadlineHeap
from holdfast.core.values import TOKEN_MAX, Instant, Limits
from tests.core.pair import SMALL
from tests.scenarios.player import durable
from tests.support.commands import acquire, altered


def ask(state: State, command: Command, now_ms: int, limits: Limits = SMALL) -> object:
    while (due := next_due(state, Instant(now_ms, now_ms), limits)) is not None:
        evolve(state, Record(state.seq + 1, now_ms, now_ms, due.event))
    before = durable(state)
    decision = decide(state, command, Instant(now_ms, now_ms), limits)
    assert durable(state) == before, "a decision changes nothing by itself"
    for event in decision.events:
        evolve(state, Record(state.seq + 1, now_ms, now_ms, event))
    return decision.answer


def any_command(chance: random.Random, state: State, number: int) -> Command:
    principal = chance.choice(["ana", "ben", "cem"])
    name = chance.choice("abcdefgh")
    session_id = chance.choice([*state.sessions, "unknown"])
    session = state.sessions.get(session_id)
    lease = state.lease_of(name)
    if lease is not None and chance.random() < 0.6:
        lease_id, who = lease.lease_id, lease.principal
        if chance.random() < 0.5:
            return Release(name=name, principal=who, lease_id=lease_id)
        return Renew(name=name, principal=who, lease_id=lease_id, ttl_ms=chance.choice([1, 3_000, 15_000]))
    who = principal if session is None else session.principal
    match chance.randrange(12):
        case 0 | 1:
            return OpenSession(
                principal=principal, session_id=f"s{number}", ttl_ms=10_000, key=chance.choice([None, "k"])
            )
        case 2:
            return KeepSession(principal=who, session_id=session_id)
        case 3:
            return RenewSession(principal=who, session_id=session_id)
        case 4:
            return EndSession(principal=who, session_id=session_id)
        case which:
            bound = which % 2 == 0 and session is not None
            asked = acquire(name=name, principal=who, lease_id=f"L{number}", ttl_ms=chance.choice([10, 3_000, 15_000]))
            delay_ms = chance.choice([0, 0, 2_000])
            return altered(asked, session=session and session_id, bound=bound, delay_ms=delay_ms)


def indexes(state: State) -> dict[str, object]:
    """The indexes as plain values, without what has no meaning any more."""
    return {
        "held": list(state.index.held.walk()),
        "count": len(state.index.held),
        "lease_count": state.index.lease_count,
        "sessions_by_principal": {who: list(those) for who, those in state.index.sessions_by_principal.items()},
        "names_by_session": state.index.names_by_session,
        "tokens": state.index.token_by_digest,
        **{kind: ledger(state, kind) for kind in ("retry_usage", "free_usage", "done_usage")},
        "has_deadlines": state.has_deadlines(),
    }


def ledger(state: State, kind: str) -> object:
    """What is kept of a kind, by whose it is, in the order in which it would be forgotten."""
    usage_of = getattr(state.index, kind)
    principals = {
        who: {s: list(a.items) for s, a in usage.accounts.items()} for who, usage in usage_of.principals.items()
    }
    return principals, usage_of


def entries(deadlines: DeadlineHeap[Any]) -> list[Any]:
    return [*deadlines.heap, *deadlines.draining]


def check(state: State) -> None:
    """Compare the indexes with a rebuilt state's, and both with what the slots say."""
    assert indexes(state) == indexes(State.thaw(state.freeze()))
    leases = {name: slot.lease for name, slot in state.slots.items() if slot.lease is not None}
    assert list(state.index.held.walk()) == sorted(leases)
    assert state.index.lease_count == Counter(lease.principal for lease in leases.values())
    principals = {session.principal for session in state.sessions.values()}
    assert {who: list(those) for who, those in state.index.sessions_by_principal.items()} == {
        who: [i for i, session in state.sessions.items() if session.principal == who] for who in principals
    }
    # Something rings for every deadline, at its time or before.
    rising = sorted(entries(state.timers.lease_deadlines), reverse=True)
    deadlines = {name: ms for ms, token, name in rising if leases.get(name)}
    assert all(deadlines[name] <= lease.until_ms for name, lease in leases.items())
    rings = {session: ms for ms, session in sorted(entries(state.timers.session_deadlines), reverse=True)}
    assert all(rings[session.session_id] <= session.until_ms for session in state.sessions.values())
    dues = [lease.until_ms for lease in leases.values()] + [session.until_ms for session in state.sessions.values()]
    next_ms = state.next_deadline_ms()
    assert not dues or (next_ms is not None and next_ms <= min(dues))


@pytest.mark.parametrize("seed", range(20))
def test_indexes_equal_rebuilt_indexes(seed: int) -> None:
    """Wherever a walk leads, the indexes are those that a restart would build, and no alarm is late (I15, L2)."""
    chance = random.Random(seed)
    state = State()
    now_ms = 0
    for number in range(400):
        ask(state, any_command(chance, state, number), now_ms)
        check(state)
        now_ms += chance.choice([0, 0, 1, 200, 1_000, 5_000])


def test_deadlines_do_not_outlive_their_leases() -> None:
    """A lease of a day that was given back at once does not keep its alarm for a day: memory is by what lives."""
    state = State()
    for number in range(5 * DEADLINES_SPARE):
        name = f"job-{number % 7}"
        ask(state, acquire(name=name, principal="ana", lease_id=f"L{number}", ttl_ms=20_000), 0)
        ask(state, Release(name=name, principal="ana", lease_id=f"L{number}"), 0)
        ask(state, OpenSession(principal="ana", session_id=f"s{number}", ttl_ms=15_000), 0)
        ask(state, EndSession(principal="ana", session_id=f"s{number}"), 0)
        assert len(entries(state.timers.lease_deadlines)) <= 2 * len(state.index.held) + DEADLINES_SPARE
        assert len(entries(state.timers.session_deadlines)) <= 2 * len(state.sessions) + DEADLINES_SPARE
    assert len(state.index.names_by_session) <= len(state.sessions)
    assert len(state.remembered) <= SMALL.retry_bytes_max + 1


def test_compacted_deadline_still_fires() -> None:
    """Dropping dead alarms loses no living one: every lease still ends at its time (L2)."""
    state = State()
    roomy = replace(SMALL, leases_per_principal_max=10_000)
    for number in range(500):
        ask(state, acquire(name=f"live-{number}", principal="ana", lease_id=f"K{number}", ttl_ms=5_000), 0, roomy)
        ask(state, Renew(name=f"live-{number}", principal="ana", lease_id=f"K{number}", ttl_ms=3_000), 0, roomy)
    for number in range(4_000):
        ask(state, acquire(name="job", principal="ana", lease_id=f"L{number}", ttl_ms=20_000), 0, roomy)
        ask(state, Release(name="job", principal="ana", lease_id=f"L{number}"), 0, roomy)
    assert len(state.index.held) == 500
    ask(state, KeepSession(principal="ana", session_id="none"), 2_999, roomy)
    assert len(state.index.held) == 500
    ask(state, KeepSession(principal="ana", session_id="none"), 3_000, roomy)
    assert len(state.index.held) == 0


def test_fencing_tokens_stop_at_the_largest_exact_integer() -> None:
    """The last token is 2^53−1, which every JSON reader tells from the one before; there is none after it (I2, C6)."""
    state = State()
    state.last_token = TOKEN_MAX - 1
    granted = ask(state, acquire(name="a", principal="ana", lease_id="L1", ttl_ms=1_000), 0)
    assert isinstance(granted, outcomes.Acquired) and granted.lease.token == 2**53 - 1
    refused = ask(state, acquire(name="b", principal="ana", lease_id="L2", ttl_ms=1_000), 0)
    assert refused == outcomes.TokensExhausted()
    assert ask(state, Release(name="a", principal="ana", lease_id="L1"), 0) == outcomes.Released()


def test_frozen_snapshot_never_changes() -> None:
    """What `freeze` returned stays as it was while the state goes on, for a snapshot is written late (I15)."""
    chance = random.Random(1)
    state = State()
    for number in range(200):
        ask(state, any_command(chance, state, number), number * 100)
    frozen = state.freeze()
    parts = (frozen.slots, frozen.sessions, frozen.remembered, frozen.memos, frozen.tokens)
    before = [list(part.items()) for part in parts]
    for number in range(200, 400):
        ask(state, any_command(chance, state, number), number * 100)
    assert [list(part.items()) for part in parts] == before


@given(st.lists(st.tuples(st.sampled_from(["a", "ab", "b", "ba", "ä", "z", "日"]), st.booleans())))
def test_ordered_names_are_a_sorted_set(changes: list[tuple[str, bool]]) -> None:
    """The held names walk in the byte order of UTF-8 from any place, whatever came and went between two listings."""
    names, plain = OrderedNames(), set[str]()
    for name, look in changes:
        if name in plain:
            names.remove(name)
            plain.remove(name)
        else:
            names.add(name)
            plain.add(name)
        assert len(names) == len(plain)
        if look:
            in_order = sorted(plain, key=str.encode)
            assert list(names.walk()) == in_order
            assert list(names.walk("a")) == [name for name in in_order if name.startswith("a")]
            assert list(names.walk("", "ab")) == [name for name in in_order if name > "ab"]
            assert list(names.walk("b", "b")) == [name for name in in_order if name > "b" and name.startswith("b")]
