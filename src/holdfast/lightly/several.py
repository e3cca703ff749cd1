"""Several addresses of one server: imported only where there is more than one to ask.

The nodes of one server take each other's place. One that cannot be reached, that is silent, or that cannot serve now
(502, 503, 504) is left for the next. When all were asked and one of them may answer soon, they are asked again, until
the time is over. Whoever asks makes sure that asking twice is safe, as it must be with one address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

PAUSE_SECONDS = 0.2
SILENCE_SECONDS = 3.0
"""How long one may be silent at least, if there is so much time: a node may wait for another to lead."""
_NOT_NOW = frozenset({502, 503, 504})
"""The answers of a node that cannot serve now."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol, TypeVar

    class Address(Protocol):
        """What is to be known of an address here."""

        place: tuple[str, str, int]

    A = TypeVar("A", bound=Address)

Answer = tuple[int, bytes]
"""A status and a body."""


def others(gateways: Sequence[A], nodes: Sequence[A]) -> list[A]:
    """Return the nodes that HOLDFAST_URL names beside the gateway: of this server, if the gateway is one of them."""
    known = {each.place for each in gateways}
    found = [each for each in nodes if each.place not in known]
    return found if len(found) < len(nodes) else []


def ask_each(
    addresses: Sequence[A],
    ask_one: Callable[[A, float, float], Answer],
    left: Callable[[], float],
    rest: Callable[[float], None],
    kinds: tuple[type[Exception], type[Exception]],
) -> tuple[int, bytes, bool]:
    """Return the first good answer, and whether that to another try was lost.

    `ask_one` is told how many seconds there are for its answer, and how many of them to connect; `left` says how many
    there are for all of it. The caller reads the clock. `kinds` are the exceptions of one that does not answer, and of
    one whose answer was lost; the first is raised if there is none.
    """
    unreachable, lost_kind = kinds
    share = max(left() / len(addresses), min(left() / 2, SILENCE_SECONDS))
    connect_seconds = left() / len(addresses) / 2
    lost: Exception | None = None
    refused: Answer | None = None
    while True:
        failures: list[Exception] = []
        for address in addresses:
            try:
                status, content = ask_one(address, min(share, left()), min(connect_seconds, left()))
            except unreachable as error:
                failures.append(error)
                lost = error if isinstance(error, lost_kind) else lost
            else:
                if status not in _NOT_NOW:
                    return status, content, lost is not None
                refused = status, content
        # If nobody is there at all, that is said at once, as it is of one address.
        if left() <= PAUSE_SECONDS or (lost is None and refused is None):
            break
        rest(PAUSE_SECONDS)
    if lost is not None:
        raise lost
    if refused is not None:
        return *refused, False
    raise unreachable("; ".join(dict.fromkeys(map(str, failures))))
