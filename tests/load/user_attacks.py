"""What one user with a token can do to the others: every row of the hostile mix by a user.

Two kinds of rows. An `Attack` is a swarm: it sends and does not look at what comes back. A `Scheme` looks: it needs the
lease ids that it got. Each scheme is asked for one step after another, until the time is over.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

from tests.load.bystander import PersistentConnection
from tests.load.swarm import Attack
from tests.support import callers
from tests.support.pending import payload

TOKEN = callers.BOB
NAMES_MAX = 1_000
RESULT = "r" * 1_024
MONTH_SECONDS = 30 * 86_400
CYCLE = 50

Scheme = Callable[["Schemer"], None]

_number = itertools.count()


class Schemer:
    """One who looks at the answers: one connection, one request after another."""

    def __init__(self, host: str, port: int) -> None:
        self._connection = PersistentConnection(host, port)
        self.asked = 0

    def ask(self, path: str, body: object = None, *, method: str = "POST", key: str | None = None) -> dict[str, object]:
        """Ask, and return what was said; nothing if that was no JSON."""
        self.asked += 1
        _, content = self._connection.ask(payload(path, TOKEN, body, method=method, key=key))
        try:
            said = json.loads(content)
        except ValueError:
            return {}
        return said if isinstance(said, dict) else {}


def _fresh(what: str) -> str:
    return f"{what}/{next(_number)}"


def _names(what: str) -> list[str]:
    return [f"{what}/{number}" for number in range(NAMES_MAX)]


def _ask(path: str, body: object = None, *, method: str = "POST") -> bytes:
    return payload(path, TOKEN, body, method=method)


def _get(path: str) -> bytes:
    return _ask(path, method="GET")


# Schemes.


def _retry_keys(schemer: Schemer) -> None:
    """Flood the retry memory: each claim and each release leaves a key of 256 characters."""
    name = _fresh("keys")
    claim = schemer.ask(f"/locks/{name}/acquire", {"ttl_seconds": 60}, key=f"{name:k<256}")
    schemer.ask(f"/locks/{name}/release", {"lease_id": claim.get("lease_id", "")}, key=f"{name:r<256}")


def _finished_names(schemer: Schemer) -> None:
    """Flood the names that are remembered as done, each with a large result for a month."""
    name = _fresh("done")
    claim = schemer.ask(f"/locks/{name}/acquire", {"ttl_seconds": 60})
    done = {"outcome": "done", "remember_seconds": MONTH_SECONDS, "result": RESULT}
    schemer.ask(f"/locks/{name}/release", {"lease_id": claim.get("lease_id", ""), **done})


def _sessions_of_many(schemer: Schemer) -> None:
    """Claim a thousand names in a session, and end it: records of a thousand ends."""
    session = schemer.ask("/sessions", {"ttl_seconds": 60}).get("session_id", "")
    bound = {"session_id": session, "ephemeral": True, "labels": {"a": "b" * 128}, "metadata": "m" * 1_000}
    schemer.ask("/claims", {"all": _names(_fresh("many")), "ttl_seconds": 60, **bound})
    schemer.ask(f"/sessions/{session}/renew-all")
    schemer.ask(f"/sessions/{session}", method="DELETE")


def _release_to_many(schemer: Schemer) -> None:
    """Hold and release a name that the row `waits for all` waits for, among a thousand."""
    claim = schemer.ask("/locks/all/999/acquire", {"ttl_seconds": 60})
    schemer.ask("/locks/all/999/release", {"lease_id": claim.get("lease_id", "")})


def _retries_of_ended(schemer: Schemer) -> None:
    """Claim a thousand names, release one, and ask for all again and again, with the same key."""
    names = _names(_fresh("again"))
    body = {"all": names, "ttl_seconds": 60}
    claims = schemer.ask("/claims", body, key=names[0]).get("claims")
    if isinstance(claims, list):
        for claim in reversed(claims):
            schemer.ask(f"/locks/{claim['name']}/release", {"lease_id": claim["lease_id"]})
            if claim is claims[-1]:
                for _ in range(20):
                    schemer.ask("/claims", body, key=names[0])


SCHEMES: dict[str, Scheme] = {
    "retry keys": _retry_keys,
    "finished names": _finished_names,
    "sessions of 1,000": _sessions_of_many,
    "releases to many": _release_to_many,
    "retries of ended": _retries_of_ended,
}


# Swarms.


def _in_cycle() -> bytes:
    """Hold one name of a ring, and wait for the next: the last one closes it."""
    address = next(_number) % CYCLE
    held, wanted = f"circle/{address}", f"circle/{(address + 1) % CYCLE}"
    who = {"owner": f"o{address}", "ttl_seconds": 60}
    return _ask(f"/locks/{held}/acquire", {**who, "resume": True}) + _ask(
        f"/locks/{wanted}/acquire", {**who, "wait_seconds": 5}
    )


def _wait_for_all() -> bytes:
    waiter = {"owner": f"w{next(_number) % 200}", "ttl_seconds": 60, "wait_seconds": 5}
    return _ask("/claims", {"all": _names("all"), **waiter})


_LISTS = b"".join(
    _get(path)
    for path in (
        "/locks?limit=10000",
        "/locks?limit=1",
        "/locks?owner=nobody",
        "/locks?label=a:b",
        "/locks/all/1/history?limit=1000",
        "/locks/all/1/why",
        "/sessions",
        "/tokens",
    )
)
_BEYOND = b"".join(
    (
        _ask("/locks/bystander/1/revoke", {"reason": "mine now"}),
        _ask("/tokens", {"name": "mine", "scopes": ["admin"]}),
        _ask("/tokens/alice", method="DELETE"),
        _ask("/locks/bystander/1/release", {"lease_id": "00000000-0000-4000-8000-000000000000"}),
    )
)

SWARMS: dict[str, Attack] = {
    "waits for all": Attack(connections=30, more=_wait_for_all, every_seconds=1),
    "any of 1,000": Attack(connections=4, more=_ask("/claims", {"any": _names("all")}), every_seconds=0.1),
    "circles": Attack(connections=CYCLE, more=_in_cycle, every_seconds=1),
    "lists": Attack(connections=8, more=_LISTS, every_seconds=0.2),
    "lists, unread": Attack(connections=20, more=_LISTS * 10, reads=False, receive_buffer_bytes=4_096),
    "streams, unread": Attack(connections=100, first=_get("/events"), reads=False, receive_buffer_bytes=4_096),
    "sessions": Attack(connections=8, more=_ask("/sessions", {"ttl_seconds": 10}) * 20, every_seconds=0.1),
    "beyond its scopes": Attack(connections=8, more=_BEYOND * 10, every_seconds=0.1),
}

USER_ATTACKS = (*SCHEMES, *SWARMS)
