"""A run keeps and gives back by name what is its own, and says no lease id (S3)."""

from holdfast.core import outcomes
from holdfast.core.commands import Command, OpenSession, Release, Renew
from holdfast.core.decide import decide
from holdfast.core.events import Record
from holdfast.core.evolve import evolve
from holdfast.core.state import State
from holdfast.core.values import Instant, Limits
from tests.support.commands import acquire

NOW = Instant(0, 0)


def ask(state: State, command: Command, limits: Limits | None = None) -> object:
    decision = decide(state, command, NOW, limits or Limits())
    for event in decision.events:
        evolve(state, Record(state.seq + 1, NOW.ms, NOW.wall_ms, event))
    return decision.answer


def with_a_run() -> State:
    """A state with the session `s` of `ana`, called `run`, and another one of hers."""
    state = State()
    for session_id, name in (("s", "run"), ("t", None)):
        ask(state, OpenSession(principal="ana", session_id=session_id, ttl_ms=60_000, name=name))
    return state


def claimed(state: State, *, owner: str | None = "run", session: str | None = "s") -> None:
    bound = session is not None
    answer = ask(
        state,
        acquire(name="job", principal="ana", lease_id="L", ttl_ms=5_000, owner=owner, session=session, bound=bound),
    )
    assert isinstance(answer, outcomes.Acquired)


def release(session: str = "s", run: str = "run") -> Release:
    return Release(name="job", principal="ana", run=run, as_session=session)


def renew() -> Renew:
    return Renew(name="job", principal="ana", run="run", as_session="s", ttl_ms=9_000)


def test_run_renews_and_releases_its_own_lease() -> None:
    """S3: what is bound to the run's session under the run's name is its own, without a lease id."""
    state = with_a_run()
    claimed(state)
    extended = ask(state, renew())
    assert isinstance(extended, outcomes.Extended) and extended.until_ms == 9_000
    assert ask(state, release()) == outcomes.Released()
    assert ask(state, release()) == outcomes.NotHeld()
    assert ask(state, renew()) == outcomes.NotHeld()


def test_refusal_names_the_other_holder() -> None:
    """S3: another session's, another owner's, or a lease that is bound to nothing is not the run's; it stays."""
    for owner, session, called in (
        ("subagent", "s", "subagent"),
        (None, "s", "run"),
        ("run", "t", "run"),
        (None, "t", "session t"),
        ("run", None, "run"),
        (None, None, None),
    ):
        state = with_a_run()
        claimed(state, owner=owner, session=session)
        for command in (release(), renew()):
            answer = ask(state, command)
            assert isinstance(answer, outcomes.Held) and answer.holder == called, (owner, session)
        assert state.lease_of("job") is not None


def test_reentrant_holder_run_owns_all_leases_of_its_session() -> None:
    """C4: with `reentrant = "holder"` the session is the holder, under whatever name it claimed."""
    limits = Limits(reentrant="holder")
    for session, given in (("s", outcomes.Released()), ("t", None)):
        state = with_a_run()
        claimed(state, owner="subagent", session=session)
        answer = ask(state, release(), limits)
        assert answer == given if given is not None else isinstance(answer, outcomes.Held)


def test_holder_name_is_shown_to_runs_only() -> None:
    """C2: a plain refusal leaves the holder's name out: its owner and its pseudonym say who it is."""
    state = with_a_run()
    claimed(state)
    plain = ask(state, acquire(name="job", principal="ben", lease_id="M", ttl_ms=5_000))
    assert isinstance(plain, outcomes.Held) and plain.holder is None
