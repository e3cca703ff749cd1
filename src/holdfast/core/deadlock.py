"""The wait-for graph, and whether a wait would never end (D1–D3).

The graph is not stored: it is read from the state. Its nodes are holders (`Holder`): a session and an owner in it, a
principal and an owner of it, or, for a claim without an owner, one lease alone. An edge leads from an attached waiter
to the holder of the live lease it wants. So:

- No false alarm: ended leases, dead sessions and detached tickets have no edges (D2).
- No miss: a holder may be in several queues, and a claim of all has an edge for each of its names.
- Bounded search: a wait in a graph of more than `EDGES_MAX` edges is refused (`DeadlockSearchExceeded`). Up to there it
  is exact.
- No timer: a cycle can only close when an edge appears. A wait is checked before it begins or resumes (`find_cycle`).
  A grant or a transfer turns the edges of a name to its new holder, and `queue.cycle_at_handover` checks that.

The search is breadth first in the order of attaching, so it always reports the same shortest cycle. A requester that
holds what it wants is a cycle of one (D1a). An *interest* is an edge of a client that asked without waiting, as `rlock`
does. Interests fade, so they count only when such a client asks, and the answer says *possible deadlock* (D3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from holdfast.core.connected_waiters import QueuePosition
from holdfast.core.outcomes import Deadlock, DeadlockSearchExceeded
from holdfast.core.state import EMPTY, State
from holdfast.core.timers import EDGES_MAX, Budget
from holdfast.core.values import Holder, Lease, Slot, holder_of_lease

LINKS_MAX = 100
WAITS_SHOWN = 100
WAITS_EXAMINED_MAX = 1_000  # more than are shown, since some may be outside a caller's prefix


class Link(msgspec.Struct, frozen=True):
    name: str
    slot: Slot
    waits_for: tuple[str, ...]


class Chain(msgspec.Struct, frozen=True):
    """The chain of waits from a name to the holder all wait for."""

    links: tuple[Link, ...]
    is_cycle: bool  # The chain is a cycle.


def why(state: State, name: str, prefix: str = "") -> Chain:
    """Follow the waits: who holds the name, what that holder waits for, who holds that, and so on.

    The chain ends before names that do not start with `prefix`.
    """
    links: list[Link] = []
    seen: set[Holder] = set()
    while True:
        slot = state.slots.get(name, EMPTY)
        if slot.lease is None:
            links.append(Link(name, slot, ()))
            return Chain(tuple(links), is_cycle=False)
        holder = holder_of_lease(slot.lease)
        examined = islice(waits_of(state, holder), WAITS_EXAMINED_MAX)
        wanted = tuple(islice((each for each in examined if each.startswith(prefix)), WAITS_SHOWN))
        links.append(Link(name, slot, wanted))
        if not wanted or len(links) >= LINKS_MAX:
            return Chain(tuple(links), is_cycle=False)
        if holder in seen:
            return Chain(tuple(links), is_cycle=True)
        seen.add(holder)
        # Of several, one that is held: a free name is about to be granted.
        name = next((each for each in wanted if state.lease_of(each) is not None), wanted[0])


def waits_of(state: State, holder: Holder) -> Iterator[str]:
    for ticket_id in state.connected.tickets_by_holder.get(holder, ()):
        yield from state.tickets[ticket_id].names


STEPS_SHOWN = 50


def find_cycle(
    state: State,
    requester: Holder,
    names: Iterable[str],
    now_ms: int,
    *,
    interests: bool = False,
    budget: Budget | None = None,
) -> Deadlock | DeadlockSearchExceeded | None:
    """Return the cycle that `requester` waiting for `names` would close, None, or that it cannot be told."""
    budget = budget or Budget()
    came_from: dict[Holder, tuple[Holder, str]] = {}
    ahead: deque[tuple[Holder, Iterable[str]]] = deque([(requester, names)])
    while ahead:
        waiter, wanted = ahead.popleft()
        for name in wanted:
            if not budget.spend():
                return DeadlockSearchExceeded(EDGES_MAX)
            if (lease := state.lease_of(name)) is None:
                continue
            blocker = holder_of_lease(lease)
            if blocker == requester:
                own = lease if waiter == requester else None
                return Deadlock(_path(state, requester, waiter, name, came_from), own)
            if blocker not in came_from:
                came_from[blocker] = (waiter, name)
                ahead.append((blocker, _wants(state, blocker, now_ms, interests=interests)))
    return None


def closing_waits(state: State, holder: Holder, budget: Budget) -> dict[str, QueuePosition] | DeadlockSearchExceeded:
    """Return the waits for what `holder` has, of those for whom it waits itself, directly or through others.

    For each such name it is the ticket that joined first: its wait closes a cycle.
    """
    closing: dict[str, QueuePosition] = {}
    found = {holder}
    ahead = [holder]
    while ahead:
        for ticket_id in state.connected.tickets_by_holder.get(ahead.pop(), ()):
            position = (state.index.join_number[ticket_id], ticket_id)
            for name in state.tickets[ticket_id].names:
                if not budget.spend():
                    return DeadlockSearchExceeded(EDGES_MAX)
                lease = state.lease_of(name)
                blocker = None if lease is None else holder_of_lease(lease)
                if blocker == holder:
                    closing[name] = min(position, closing.get(name, position))
                elif blocker is not None and blocker not in found:
                    found.add(blocker)
                    ahead.append(blocker)
    return closing


def _wants(state: State, holder: Holder, now_ms: int, *, interests: bool) -> Iterator[str]:
    yield from waits_of(state, holder)
    if interests:
        for name, until_ms in state.connected.interests.get(holder, {}).items():
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
    if len(steps) > 2 * STEPS_SHOWN:
        # Holders stay in the even places and names in the odd ones.
        steps[STEPS_SHOWN:-STEPS_SHOWN] = ["…", f"{len(steps) - 2 * STEPS_SHOWN} steps left out"]
    return tuple(steps)


def name_of_holder(state: State, lease: Lease) -> str | None:
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
