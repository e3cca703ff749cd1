"""Who waits for whom, and whether a wait would never end (D1–D3).

The graph of waits is not kept: it is read from the state when somebody asks.

    ana ──wants deploy──► ben ──wants schema──► cem          ana waits for ben, who waits for cem.
     ▲                                            │          If cem now waits for `docs`, which ana holds,
     └───────────────wants docs ──────────────────┘          nobody of the three ever goes on.

*Knots* are holders (`Holder`): a session and an owner in it, a principal and an owner of it, or, for a claim without an
owner, one lease alone. *Edges* lead from a holder that stands in line and is present to the holder of the live lease it
wants. So:

- No false alarm: ended leases, dead sessions and absent tickets have no edges (D2).
- No miss: a holder may stand in several lines, and a claim of all of several names has an edge for each of them.
- No search without end: it looks at `EDGES_MAX` edges at most. Who would wait in a larger tangle is refused
  (`TooTangled`), since a wait that may never end is worse than one that is not begun. Up to there it is exact.
- No timer: a circle can only close when an edge appears. A new wait or one that comes back is checked before it begins
  (`find_circle` from the one who would wait). A grant or a transfer turns the edges of a name to its new holder, and
  `line.circle_at_handover` looks after it. Ends and departures only take edges away.

`find_circle` goes breadth first from the one who would wait, so the circle told is a shortest one. It goes in the order
of arriving, so it is always the same one. If the requester itself holds what it wants, that is a circle of one (D1a).

An *interest* is an edge of somebody who asked without waiting, as `rlock` does. Interests fade, so they count only
when one of those asks, and the answer says *possible deadlock* (D3).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from holdfast.core.agenda import EDGES_MAX, Budget
from holdfast.core.refusals import Deadlock, TooTangled
from holdfast.core.values import holder_of_lease
from holdfast.core.views import waits_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.core.presence import Place
    from holdfast.core.state import State
    from holdfast.core.values import Holder, Lease

STEPS_TOLD = 50
"""How many steps are told from each end of a path that is longer than twice that."""


def find_circle(
    state: State,
    requester: Holder,
    names: Iterable[str],
    now_ms: int,
    *,
    interests: bool = False,
    budget: Budget | None = None,
) -> Deadlock | TooTangled | None:
    """Return the circle that `requester` waiting for `names` would close, or None, or that nobody can tell.

    Its path is requester, what it wants, who holds that, what that one wants, and so on; its last name is one that the
    requester holds. Breadth first, so that the circle told is a shortest one; in order, so that it is always the same.
    """
    budget = budget or Budget()
    came_from: dict[Holder, tuple[Holder, str]] = {}
    ahead: deque[tuple[Holder, Iterable[str]]] = deque([(requester, names)])
    while ahead:
        waiter, wanted = ahead.popleft()
        for name in wanted:
            if not budget.spend():
                return TooTangled(EDGES_MAX)
            lease = state.lease_of(name)
            if lease is None:
                continue
            blocker = holder_of_lease(lease)
            if blocker == requester:
                own = lease if waiter == requester else None
                return Deadlock(_path(state, requester, waiter, name, came_from), own)
            if blocker not in came_from:
                came_from[blocker] = (waiter, name)
                ahead.append((blocker, _wants(state, blocker, now_ms, interests=interests)))
    return None


def closing_waits(state: State, holder: Holder, budget: Budget) -> dict[str, Place] | TooTangled:
    """Return who waits for what `holder` has, of those for whom it waits itself, directly or through others.

    For each such name it is the one that joined first: its wait closes a circle.
    """
    closing: dict[str, Place] = {}
    found = {holder}
    ahead = [holder]
    while ahead:
        for ticket_id in state.presence.tickets_by_holder.get(ahead.pop(), ()):
            place = (state.index.join_number[ticket_id], ticket_id)
            for name in state.tickets[ticket_id].names:
                if not budget.spend():
                    return TooTangled(EDGES_MAX)
                lease = state.lease_of(name)
                blocker = None if lease is None else holder_of_lease(lease)
                if blocker == holder:
                    closing[name] = min(place, closing.get(name, place))
                elif blocker is not None and blocker not in found:
                    found.add(blocker)
                    ahead.append(blocker)
    return closing


def _wants(state: State, holder: Holder, now_ms: int, *, interests: bool) -> Iterator[str]:
    yield from waits_of(state, holder)
    if interests:
        for name, until_ms in state.presence.interests.get(holder, {}).items():
            if until_ms > now_ms:
                yield name


def _path(
    state: State, requester: Holder, last: Holder, name: str, came_from: dict[Holder, tuple[Holder, str]]
) -> tuple[str, ...]:
    steps = [name, label(state, last)]
    while last != requester:
        last, name = came_from[last]
        steps += [name, label(state, last)]
    steps.reverse()
    if len(steps) > 2 * STEPS_TOLD:
        # Holders stay in the even places and names in the odd ones.
        steps[STEPS_TOLD:-STEPS_TOLD] = ["…", f"{len(steps) - 2 * STEPS_TOLD} steps left out"]
    return tuple(steps)


def name_of_holder(state: State, lease: Lease) -> str | None:
    """Return what people call the holder of a lease; None for a claim that names nobody."""
    holder = holder_of_lease(lease)
    return None if holder[0] == "alone" else label(state, holder)


def label(state: State, holder: Holder) -> str:
    """Return what people call a holder; never a lease id."""
    kind, who, owner = holder
    if owner is not None:
        return owner
    if kind == "session":
        session = state.sessions.get(who)
        return session.name if session is not None and session.name is not None else f"session {who[:8]}"
    if kind == "principal":
        return who
    return "a claim without an owner"
