"""Every sequence of a few commands, up to a depth: no chance, no gaps. States met before are not followed again."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.commands import Command, EndSession, KeepSession, OpenSession, Release, Renew, RenewSession
from holdfast.core.state import State
from holdfast.core.values import Limits
from tests.core.archive_model import Archived
from tests.core.pair import Pair
from tests.support import commands, proof

UNIT_MS = 10_000
"""A session lives at least this long, so that one unit serves leases and sessions alike."""

LIMITS = Limits(
    ttl_ms_max=2 * UNIT_MS,
    leases_per_principal_max=1,
    sessions_per_principal_max=1,
    retry_memory_ms=2 * UNIT_MS,
)

Move = Callable[[Pair], object]


def fork(pair: Pair) -> Pair:
    """A twin that can go another way. The core goes on from its own snapshot."""
    clone = Pair(pair.limits)
    clone.core, clone.shadow = State.thaw(pair.core.freeze()), State.thaw(pair.shadow.freeze())
    clone.archived = Archived(clone.shadow)
    clone.naive = pair.naive.clone()
    clone.now_ms, clone.last_token = pair.now_ms, pair.last_token
    clone.held, clone.open_at_ms, clone.promised_ms = pair.held.copy(), pair.open_at_ms.copy(), pair.promised_ms.copy()
    return clone


def position_in(pair: Pair) -> tuple[object, ...]:
    """What the future depends on: everything but how many records led here."""
    naive = pair.naive
    frozen = pair.core.freeze()
    core = (frozen.slots, frozen.sessions, frozen.remembered, frozen.memos)
    return (
        pair.now_ms,
        frozen.scalars.last_token,
        *(tuple(part.items()) for part in core),
        (tuple(naive.claims), tuple(naive.runs), tuple(naive.keys), naive.ends, naive.forgotten),
        tuple(pair.promised_ms.items()),
    )


def explore(moves: list[Move], depth: int, limits: Limits) -> int:
    """Make every sequence of moves; return how many moves were made."""
    made = 0
    edge = [Pair(limits)]
    seen = {position_in(edge[0])}
    for level in range(depth):
        following: list[Pair] = []
        for pair in edge:
            for move in moves:
                clone = fork(pair)
                move(clone)
                made += 1
                where = position_in(clone)
                if where not in seen and level + 1 < depth:
                    seen.add(where)
                    following.append(clone)
        edge = following
    return made


def ask(make: Callable[[Pair], Command]) -> Move:
    return lambda pair: pair.ask(make(pair))


def advance(units: float) -> Move:
    return lambda pair: pair.advance(int(units * UNIT_MS))


def lease_id(pair: Pair, back: int) -> str:
    """Leases are named by their tokens, so that the same place is reached under the same names."""
    return f"L{pair.last_token - back}"


def acquire(who: str, units: int, **more: object) -> Move:
    def make(pair: Pair) -> Command:
        fields = {"principal": who, "owner": who, **more}
        return commands.acquire(name="job", lease_id=lease_id(pair, -1), ttl_ms=units * UNIT_MS, **fields)

    return ask(make)


def renew(who: str, units: int | None, back: int = 0, **more: Any) -> Move:  # noqa: ANN401 - passed on as they are
    ttl_ms = None if units is None else units * UNIT_MS
    return ask(lambda pair: Renew(name="job", principal=who, lease_id=lease_id(pair, back), ttl_ms=ttl_ms, **more))


def release(who: str, back: int = 0, **more: Any) -> Move:  # noqa: ANN401 - passed on as they are
    return ask(lambda pair: Release(name="job", principal=who, lease_id=lease_id(pair, back), **more))


def session_moves() -> list[Move]:
    def open_(pair: Pair) -> Command:
        return OpenSession(principal="ana", session_id=f"s{len(pair.naive.runs) + 1}", ttl_ms=UNIT_MS, key="o")

    def latest(pair: Pair) -> str:
        return f"s{len(pair.naive.runs)}"

    def claim(pair: Pair) -> Command:
        more = {"session": latest(pair), "bound": True, "delay_ms": UNIT_MS, "resume": True}
        return commands.acquire(name="job", principal="ana", lease_id=lease_id(pair, -1), ttl_ms=2 * UNIT_MS, **more)

    return [
        ask(open_),
        ask(lambda pair: KeepSession(principal="ana", session_id=latest(pair))),
        ask(lambda pair: RenewSession(principal="ana", session_id=latest(pair))),
        ask(lambda pair: EndSession(principal="ana", session_id=latest(pair))),
        ask(lambda pair: EndSession(principal="ben", session_id=latest(pair))),
        ask(claim),
        acquire("ben", 1),
        renew("ana", 1),
        renew("ben", 1),
        release("ana", as_session="s1"),
        release("ben"),
        advance(1),
        advance(0.5),
    ]


def lease_moves() -> list[Move]:
    return [
        acquire("ana", 1),
        acquire("ana", 2, resume=True),
        acquire("ben", 1, resume=True),
        acquire("ben", 2),
        renew("ana", 1),
        renew("ana", 2),
        renew("ben", 1),
        release("ana"),
        release("ana", failed=True),
        release("ben"),
        release("ana", back=1),
        advance(1),
    ]


def key_moves() -> list[Move]:
    return [
        acquire("ana", 1, key="k"),
        acquire("ana", 2, key="k"),
        acquire("ana", 1, key="j", resume=True),
        acquire("ben", 1, key="k"),
        renew("ana", 2, key="k"),
        renew("ana", 1, key="r"),
        renew("ana", None),
        release("ana", key="k"),
        release("ana", key="l"),
        release("ben"),
        advance(1),
    ]


@pytest.mark.parametrize("reentrant", ["resume", "holder"])
@pytest.mark.parametrize(
    ("moves", "what"),
    [
        pytest.param(lease_moves(), "leases", id="leases"),
        pytest.param(key_moves(), "keys", id="keys"),
        pytest.param(session_moves(), "sessions", id="sessions"),
    ],
)
def test_every_sequence_matches_the_naive_model(moves: list[Move], what: str, reentrant: str) -> None:
    """Two principals, one name: in every sequence one holder, rising tokens, no early end (I1, I2, I3, C5, S2)."""
    depth = proof.count(f"core: depth of all sequences with {what}")
    made = explore(moves, depth, replace(LIMITS, reentrant=reentrant))
    assert made > 10_000
