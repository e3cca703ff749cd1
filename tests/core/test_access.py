"""What ends with a token, in one record, and what of it a replay gives (S5, I10, I15)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core.commands import Acquire, Command, CreateToken, OpenSession, RevokeToken, RotateToken
from holdfast.core.decide import decide
from holdfast.core.decision import Decision
from holdfast.core.events import Record, TokenCreated, TokenEnded, TokenRevoked, names_of, owners_of, principal_of
from holdfast.core.evolve import event_fits, evolve
from holdfast.core.outcomes import MustWait, NotAllowedAnyMore, TokenGone, TokenMade, TokenUnknown
from holdfast.core.state import State
from holdfast.core.values import AccessToken, Instant, Limits, Session, Terms
from tests.core.archive_model import Archived

NOW = Instant(1_000, 1_700_000_000_000)


class World:
    """A state, and a twin of it made by replaying its records."""

    def __init__(self) -> None:
        self.state, self.clone = State(), State()
        self.archived = Archived(self.clone)
        self._asked = 0

    def ask(self, command: Command, now: Instant = NOW) -> Decision:
        decision = decide(self.state, command, now, Limits())
        for event in decision.events:
            assert event_fits(self.state, event)
            record = Record(self.state.seq + 1, now.ms, now.wall_ms, event)
            evolve(self.state, record)
            evolve(self.clone, record)
        if isinstance(decision.answer, MustWait):
            self.state.attach(decision.answer.ticket_id)
        assert self.state.freeze() == self.clone.freeze()
        self.archived.follow()
        return decision

    def claim(self, name: str, principal: str, *, session: str | None = None, wait_ms: int = 0) -> Decision:
        self._asked += 1
        terms = Terms(
            principal=principal, ttl_ms=60_000, owner=f"{principal}-{name}", session=session, bound=session is not None
        )
        return self.ask(
            Acquire(name=name, lease_id=f"L{self._asked}", terms=terms, wait_ms=wait_ms, new_ticket=f"T{self._asked}")
        )


def furnished() -> World:
    """Ana has a token, a session with a claim and a place in it, a plain claim and a plain place."""
    world = World()
    for name in ("ana", "ben"):
        world.ask(CreateToken(principal="root", name=name, digest=f"digest-{name}", scopes=("read", "claim")))
    world.ask(OpenSession(principal="ana", session_id="s", ttl_ms=60_000))
    world.claim("bens", "ben")
    world.claim("bound", "ana", session="s")
    world.claim("plain", "ana")
    world.claim("bens", "ana", session="s", wait_ms=1_000)
    world.claim("bens", "ana", wait_ms=1_000)
    world.claim("bound", "ben", wait_ms=1_000)
    return world


def test_revoking_a_token_ends_sessions_and_tickets_in_one_record() -> None:
    """S5: the sessions of a token with what is bound to them, and its places in line, end with it; no plain lease."""
    world = furnished()
    decision = world.ask(RevokeToken(principal="root", name="ana"))
    (event,) = decision.events
    state = world.state
    assert isinstance(decision.answer, TokenGone) and isinstance(event, TokenEnded)
    assert "ana" not in state.tokens and not state.sessions
    assert state.lease_of("bound") is None and state.lease_of("plain") is not None
    assert [ticket.terms.principal for ticket in state.tickets.values()] == ["ben"]
    assert "ana" not in state.index.sessions_by_principal and "ana" not in state.index.tickets_by_principal
    assert set(names_of(event)) == {"bound", "bens"}
    assert owners_of(event) == {"ana-bound", "ana-bens"}
    assert principal_of(event) == "ana", "the history is counted against whose sessions they were, not the operator"
    assert [each.principal for each in event.sessions] == ["ana"]
    refused = [outcome for _, outcome in decision.notices]
    assert refused == [NotAllowedAnyMore()] * 2


def test_keep_sessions_preserves_sessions_and_bound_leases() -> None:
    """S5: with `keep_sessions` only the plain places end. Everybody who waits with the token is answered."""
    world = furnished()
    decision = world.ask(RevokeToken(principal="root", name="ana", keep_sessions=True))
    state = world.state
    assert list(state.sessions) == ["s"] and state.lease_of("bound") is not None
    mine = [ticket for ticket in state.tickets.values() if ticket.terms.principal == "ana"]
    assert [ticket.terms.bound for ticket in mine] == [True]
    assert len(decision.notices) == 2


def test_session_salt_is_preserved() -> None:
    """A session that has a salt keeps it when its token ends: its secret depends on the token already (S5)."""
    world = World()
    world.ask(CreateToken(principal="root", name="ana", digest="d", scopes=("claim",)))
    world.ask(OpenSession(principal="ana", session_id="s", ttl_ms=60_000, salt="pepper"))
    world.ask(RotateToken(principal="root", name="ana", digest="e", keep_sessions=True))
    assert world.state.sessions["s"].salt == "pepper"


def test_rotating_a_token_preserves_its_scopes() -> None:
    """A rotated token has the scopes and the prefix of the one before, another digest, and its own expiry."""
    world = World()
    made = CreateToken(principal="root", name="ana", digest="old", scopes=("read",), prefix="a/", expires_wall_ms=5)
    world.ask(made)
    asked = RotateToken(principal="root", name="ana", digest="new", expires_wall_ms=9, key="k", fingerprint="f")
    answer = world.ask(asked).answer
    assert isinstance(answer, TokenMade)
    token = world.state.tokens["ana"]
    assert (token.digest, token.scopes, token.prefix, token.expires_wall_ms) == ("new", ("read",), "a/", 9)
    assert world.state.index.token_by_digest == {"new": token}
    again = world.ask(replace(asked, digest="third"))
    assert again.events == () and again.answer == answer
    assert world.ask(RotateToken(principal="root", name="zoe", digest="d")).answer == TokenUnknown()


@pytest.mark.parametrize("lives_ms", [30_000, None])
def test_rotating_a_token_preserves_its_lifetime(lives_ms: int | None) -> None:
    """A rotated token lives as long as the one before was to live, counted from now, if that is asked for."""
    world = World()
    until = None if lives_ms is None else NOW.wall_ms + lives_ms
    world.ask(CreateToken(principal="root", name="ana", digest="old", scopes=("read",), expires_wall_ms=until))
    later = Instant(NOW.ms + 20_000, NOW.wall_ms + 20_000)
    world.ask(RotateToken(principal="root", name="ana", digest="new", keep_lifetime=True), later)
    expected = None if lives_ms is None else later.wall_ms + lives_ms
    assert world.state.tokens["ana"].expires_wall_ms == expected


def test_old_token_revoked_record_ends_no_session() -> None:
    """Decision 0012: a `token_revoked` of an earlier release ends no session and no place, as it did then."""
    state = State()
    session = Session("s", "ana", None, None, 60_000, 61_000, NOW.wall_ms)
    token = AccessToken("ana", "d", ("claim",), None, None, NOW.wall_ms, "root")
    evolve(state, Record(1, 1, 1, TokenCreated(token)))
    state.sessions.put("s", session)
    state.index.add_session(session)
    evolve(state, Record(2, 1, 1, TokenRevoked("ana", "root")))
    assert state.sessions == {"s": session} and not state.tokens
