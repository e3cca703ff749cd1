"""Secrets of sessions: what they are derived from, and what it costs to know one (S5)."""

from __future__ import annotations

import pytest

from holdfast.api.auth.auth import Auth, Caller, StaticTokens, WrongTokenError
from holdfast.api.auth.secrets import SECRET_CHARS_MAX, AuthorityKey
from holdfast.core.events import Record, SessionExtended, SessionOpened, TokenCreated, TokenEnded
from holdfast.core.evolve import evolve
from holdfast.core.state import State
from holdfast.core.values import AccessToken, Session
from holdfast.engine.ids import new_uuid
from holdfast.wire.problems import Problem

WALL_MS = 1_700_000_000_000


class CountingKey(AuthorityKey):
    """Counts how often something is derived."""

    derived = 0

    def mac(self, purpose: str, text: str) -> bytes:
        self.derived += 1
        return super().mac(purpose, text)


class World:
    """A state with one token and one session, and what finds out who asks."""

    def __init__(self) -> None:
        self.state = State()
        self.key = CountingKey(b"k" * 32)
        self.auth = Auth(StaticTokens(()), self.key)
        self.session_id = new_uuid()
        self.happens(TokenCreated(token("digest")))
        self.happens(SessionOpened(Session(self.session_id, "ana", None, None, 1_000, 1_000, WALL_MS, None, "salt")))

    def happens(self, event: SessionExtended | SessionOpened | TokenCreated | TokenEnded) -> None:
        evolve(self.state, Record(self.state.seq + 1, 1, WALL_MS, event))

    def secret(self, digest: str = "digest") -> str:
        return self.key.session_secret(self.state.sessions[self.session_id], digest)

    def identify(self, secret: str) -> Caller:
        return self.auth.identify(f"Bearer {secret}".encode(), self.state, WALL_MS)


def token(digest: str) -> AccessToken:
    return AccessToken("ana", digest, ("read", "claim"), None, None, WALL_MS, "root")


def test_secret_seen_before_costs_nothing() -> None:
    """A secret that was right before is known again without deriving anything, also after the session was kept."""
    world = World()
    secret = world.secret()
    first = world.identify(secret)
    derived = world.key.derived
    world.happens(SessionExtended(world.session_id, 2_000))
    assert world.identify(secret) is first
    assert world.key.derived == derived
    assert (first.principal, first.session) == ("ana", world.session_id)


def test_cached_session_secret_ends_with_its_token() -> None:
    """A secret that was right before is wrong as soon as the token is another one, or the session is over."""
    world = World()
    secret = world.secret()
    world.identify(secret)
    world.happens(TokenEnded("ana", "root", keeps_sessions=True, successor=token("other")))
    with pytest.raises(Problem) as caught:
        world.identify(secret)
    assert caught.value.code == "authentication_failed" and not isinstance(caught.value, WrongTokenError)
    assert world.identify(world.secret("other")).session == world.session_id


def test_changed_secret_is_a_wrong_one() -> None:
    """A changed character anywhere in the own part makes it a wrong one."""
    world = World()
    secret = world.secret()
    assert len(secret) == SECRET_CHARS_MAX
    for index in (40, 55, 69, 75, 81):
        wrong = secret[:index] + ("A" if secret[index] != "A" else "Q") + secret[index + 1 :]
        with pytest.raises(Problem):
            world.identify(wrong)
    with pytest.raises(WrongTokenError):
        world.identify(secret[:-11] + "A" * 11)
