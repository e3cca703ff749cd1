"""How two nodes prove to each other that they belong together, before anything else is said. No sockets, no chance.

    follower                                              leader
       │  Hello(authority, epoch, tenure, f)                │      f: 32 random bytes of the follower
       ├───────────────────────────────────────────────────►│
       │  Greeting(l, HMAC(key, "leader", …, f, l))         │      l: 32 random bytes of the leader
       │◄───────────────────────────────────────────────────┤
       │  Proof(HMAC(key, "follower", …, f, l))             │
       ├───────────────────────────────────────────────────►│
       │  Welcome                                           │
       │◄───────────────────────────────────────────────────┤

The key is the authority's; it never leaves a node. `…` is the tenure: its authority, epoch and random digits. So a link
is for one tenure, a proof is good for one link, and none can be turned around, because the role is in it. The leader
proves itself first: the bearer tokens of clients go to it.

It hides nothing from one who listens in between. That is what TLS is for.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from holdfast.server.nodes.link.frames import NONCE_BYTES, Greeting, Hello, Proof

_LEADER, _FOLLOWER = "leader", "follower"
_PURPOSE = "holdfast link 1"
SHOWN_CHARS_MAX = 64
"""How much of what a stranger says is shown."""


class HandshakeError(Exception):
    """The other side is not who it must be. The text says what to look at."""


class Bond(msgspec.Struct, frozen=True):
    """The tenure that a link is for, and what proves that somebody belongs to it."""

    authority: str
    epoch: int
    tenure: str
    key: bytes


def _proof(role: str, bond: Bond, followers: bytes, leaders: bytes) -> bytes:
    # As MessagePack, so that no two lists of parts are written alike.
    parts = (_PURPOSE, role, bond.authority, bond.epoch, bond.tenure, followers, leaders)
    return hmac.digest(bond.key, msgspec.msgpack.encode(parts), hashlib.sha256)


class FollowersHandshake:
    """The follower's side."""

    def __init__(self, bond: Bond, nonce: bytes) -> None:
        """`nonce` are 32 bytes that nobody can guess, made for this link."""
        self._bond = bond
        self._nonce = nonce

    def hello(self) -> Hello:
        """Return the first word."""
        return Hello(self._bond.authority, self._bond.epoch, self._bond.tenure, self._nonce)

    def answer(self, greeting: Greeting) -> Proof:
        """Return our proof, if the leader's is right; else raise."""
        bond, leaders = self._bond, _checked(greeting.nonce)
        if not hmac.compare_digest(greeting.proof, _proof(_LEADER, bond, self._nonce, leaders)):
            raise HandshakeError("it does not know the authority's key: no request is passed on to it")
        return Proof(_proof(_FOLLOWER, bond, self._nonce, leaders))


class LeadersHandshake:
    """The leader's side."""

    def __init__(self, bond: Bond, nonce: bytes) -> None:
        """`nonce` are 32 bytes that nobody can guess, made for this link."""
        self._bond = bond
        self._nonce = nonce
        self._expected: bytes | None = None

    def greet(self, hello: Hello) -> Greeting:
        """Return our proof, if the link is for our tenure; else raise."""
        bond, followers = self._bond, _checked(hello.nonce)
        if (hello.authority, hello.epoch, hello.tenure) != (bond.authority, bond.epoch, bond.tenure):
            text = (
                f"it wants a link for epoch {hello.epoch} of {hello.authority[:SHOWN_CHARS_MAX]!r}, which is not ours"
            )
            raise HandshakeError(text)
        self._expected = _proof(_FOLLOWER, bond, followers, self._nonce)
        return Greeting(self._nonce, _proof(_LEADER, bond, followers, self._nonce))

    def check(self, proof: Proof) -> None:
        """Raise unless the follower's proof is right."""
        if self._expected is None or not hmac.compare_digest(proof.proof, self._expected):
            raise HandshakeError("it does not know the authority's key")


def _checked(nonce: bytes) -> bytes:
    if len(nonce) != NONCE_BYTES:
        raise HandshakeError(f"its random bytes are {len(nonce)}, and must be {NONCE_BYTES}")
    return nonce
