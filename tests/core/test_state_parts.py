"""The four parts of the state, and who may change which: the table on top of `core/state.py`, line by line."""

import pickle
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from holdfast.core.commands import Command
from holdfast.core.connected_waiters import ConnectedWaiters
from holdfast.core.deadlock import why
from holdfast.core.decide import DECISIONS, decide, next_due, next_grant
from holdfast.core.events import Event
from holdfast.core.evolve import CHANGES
from holdfast.core.index import Index
from holdfast.core.state import State
from holdfast.core.values import Limits
from tests.core import crowd
from tests.core.pair import SMALL
from tests.core.test_queue import STEPS, Walk

WALKS = 40


def parts(state: State) -> dict[str, bytes]:
    """Each part as bytes, so that any change of it can be seen."""
    durable = {field: value for field, value in vars(state).items() if field not in {"index", "timers", "connected"}}
    others = {field: vars(getattr(state, field)) for field in ("index", "timers", "connected")}
    others["index"] = {**others["index"], "held": list(state.index.held.walk())}
    return {field: pickle.dumps(value) for field, value in {"durable": durable, **others}.items()}


def watched(function: Callable[..., Any], may_change: set[str]) -> Callable[..., Any]:
    """The same function, which fails when it changes a part of the state that it may not."""

    @wraps(function)
    def call(state: State, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - whatever the function takes
        before = parts(state)
        answer = function(state, *arguments, **options)
        changed = {part for part, now in parts(state).items() if now != before[part]}
        assert changed <= may_change, f"{function.__name__} changed {sorted(changed)}"
        seen.setdefault(function.__name__, set()).update(changed)
        return answer

    return call


seen: dict[str, set[str]] = {}
"""What each function was seen to change, so that a check which sees nothing at all fails."""


@pytest.fixture
def everything_watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    seen.clear()
    monkeypatch.setattr(crowd, "decide", watched(decide, set()))
    monkeypatch.setattr(crowd, "next_due", watched(next_due, {"timers", "connected"}))
    monkeypatch.setattr(crowd, "next_grant", watched(next_grant, {"timers", "connected"}))
    monkeypatch.setattr(State, "attach", watched(State.attach, {"timers", "connected"}))
    monkeypatch.setattr(State, "detach", watched(State.detach, {"connected"}))
    monkeypatch.setattr(State, "position_of", watched(State.position_of, set()))
    yield
    assert "timers" in seen["next_due"] | seen["next_grant"]
    assert "connected" in seen["next_due"] | seen["next_grant"], "no delay was over while somebody waited"
    assert seen["attach"] == {"timers", "connected"} and seen["detach"] == {"connected"}


@pytest.mark.usefixtures("everything_watched")
def test_each_part_is_changed_only_by_its_owner() -> None:
    """Only evolve changes what is durable or an index; decide changes nothing. Settle takes from the agenda, and notes
    for those present that a delay is over."""
    for seed in range(WALKS):
        walk = Walk(seed, Limits() if seed % 2 else replace(SMALL, retry_bytes_max=1_000, queue_max=100))
        for _ in range(STEPS):
            walk.step()
            assert isinstance(walk.crowd, crowd.Crowd)
            state = walk.crowd.state
            for ticket_id in list(state.connected.attached)[:1]:
                assert state.position_of(ticket_id) >= 1


def test_queries_leave_the_state_unchanged() -> None:
    """A look at the chain of waits leaves every part as it was."""
    walk = Walk(3, Limits())
    for _ in range(STEPS):
        walk.step()
        for name in walk.names:
            watched(why, set())(walk.crowd.state, name)


def test_no_free_name_has_a_waiter_that_could_be_served() -> None:
    """After settling nobody present finds all it wants free; so a plain claim needs no look at the line (W1)."""
    waited = 0
    for seed in range(WALKS):
        walk = Walk(seed, Limits())
        for _ in range(STEPS):
            walk.step()
            assert isinstance(walk.crowd, crowd.Crowd)
            state = walk.crowd.state
            for ticket_id in state.connected.attached:
                waited += 1
                slots = [state.slots.get(name) for name in state.tickets[ticket_id].names]
                free = [
                    slot is None or (slot.lease is None and slot.closed_until_ms <= walk.crowd.now_ms) for slot in slots
                ]
                assert not all(free), f"seed {seed}: {ticket_id} could be served"
    assert waited > WALKS * STEPS / 10


def test_finished_work_leaves_no_ticket_without_redo() -> None:
    """Finished work answers all in line in its own record, so a turn need not look for it (L5)."""
    for seed in range(WALKS):
        walk = Walk(seed, Limits())
        for _ in range(STEPS):
            walk.step()
            assert isinstance(walk.crowd, crowd.Crowd)
            state = walk.crowd.state
            for ticket in state.tickets.values():
                dones = [slot.done for name in ticket.names if (slot := state.slots.get(name)) is not None]
                remembered = any(done is not None and done.until_ms > walk.crowd.now_ms for done in dones)
                assert ticket.terms.redo or not remembered


@pytest.mark.parametrize("seed", range(10))
def test_index_equals_a_rebuilt_index(seed: int) -> None:
    """Every look-up is a function of what is durable: building it anew gives the same (I15)."""
    walk = Walk(seed, Limits())
    for _ in range(STEPS):
        walk.step()
        state = walk.crowd.state
        again = Index()
        again.build(state.slots, state.sessions, state.tickets, state.tokens, state.remembered)
        current, built = lookups(state.index), lookups(again)
        assert current == built
        assert sorted(state.index.join_number, key=state.index.join_number.__getitem__) == list(again.join_number)


def lookups(index: Index) -> dict[str, object]:
    """All look-ups but those that only rise: join numbers, and when the last closed name opened."""
    rising = {"join_number", "last_join_number", "closed_until_ms"}
    plain: dict[str, object] = {field: value for field, value in vars(index).items() if field not in rising}
    return {**plain, "held": list(index.held.walk())}


def test_restart_detaches_every_ticket() -> None:
    """Presence is soft: a state that is read again has everybody in line away since now, and no interests (W2, D3)."""
    walk = Walk(5, Limits())
    for _ in range(STEPS):
        walk.step()
    state = State.thaw(walk.crowd.state.freeze())
    assert vars(state.connected) == {
        **vars(ConnectedWaiters()),
        "detached_since": dict.fromkeys(state.tickets, state.now_ms),
    }


def test_every_command_and_event_has_one_handler() -> None:
    """The tables of `decide` and `evolve` have each type once, and nothing else: none is passed over in silence."""
    assert set(DECISIONS) == set(get_args(Command))
    assert set(CHANGES) == set(get_args(Event))
