"""What a node says of itself in the log: who leads, since when, and what is in the way. Each is said once.

A node looks four times a second, so nearly every look finds what the last one found. A line is written for a change:
another leader, another trouble, or the end of one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast.engine.build import (
    JournalDamagedError,
    JournalError,
    JournalLostError,
    JournalUnavailableError,
    OutcomeUnknownError,
)
from holdfast.server.times import rfc3339

if TYPE_CHECKING:
    from holdfast.engine.build import Seat
    from holdfast.engine.clock import Clock
    from holdfast.server.nodes.watcher import Seen

SAID_MAX = 16
"""How many different errors of one trouble are told, at most."""

WENT_BACK = "the store went back in time, or is another one: if it was restored, run `holdfast store restored`"
UNUSABLE = "what the store has cannot be used by this node: its log says why"
AWAY = "the store cannot be reached, or refuses what is asked: the log says why"
CANNOT_TELL = "this node cannot use the store, or could not lead: its log says why"

log = logging.getLogger("holdfast.node")


class NodeLog:
    """Says what changed."""

    def __init__(self, node: str, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        self._followed: tuple[int, str] | None = None
        """The epoch and the tenure of the one we follow; None if we follow nobody."""
        self._namesake: str | None = None
        self._said: set[str] = set()
        """What was said of the trouble that there is. A store may fail in one way and in another, again and again."""
        self._could_not: set[str] = set()
        """Why this node could not lead, since it last led: it tries every few seconds."""
        self._lost: str | None = None
        self._since = ""
        self.trouble: str | None = None
        """Why nobody can be known to lead, and since when; None if the last look went well."""

    def saw(self, seat: Seat, seen: Seen) -> None:
        """A look went well."""
        if self.trouble is not None:
            log.warning("the store can be used again; it could not since %s", self._since)
            self.trouble = None
            self._said.clear()
        leader = seen.leader
        if leader is None:
            if self._followed is not None and seen.why_take is None:
                log.warning("nobody leads now")
            self._followed = None
        elif (leader.epoch, leader.tenure) != self._followed:
            self._followed = leader.epoch, leader.tenure
            log.warning(
                "node %s leads since %s, epoch %d; we follow", leader.node, rfc3339(leader.since_wall_ms), leader.epoch
            )
        if seen.is_namesake and self._namesake != seat.process:
            self._namesake = seat.process
            log.error(
                "another process at %s calls itself %s too: give each node a name of its own (setting node_name)",
                seat.url,
                self._node,
            )

    def missed(self, error: Exception) -> None:
        """A look failed. What is said again and again is said once."""
        is_ours = isinstance(error, JournalError | TimeoutError | OSError)
        why = _words_of(error) if is_ours else f"internal error: {type(error).__name__}: {error}"
        if self.trouble is None:
            self._since = rfc3339(self._clock.wall_ms())
        self._followed = None
        self.trouble = f"the store cannot be used since {self._since}: {why}"
        if why in self._said or len(self._said) >= SAID_MAX:
            return
        self._said.add(why)
        log.error("%s; this node goes on looking", self.trouble, exc_info=None if is_ours else error)

    def takes(self, seen: Seen) -> None:
        """The seat is about to be taken."""
        log.info("this node tries to take the seat: %s", seen.why_take)

    def lost_race(self, error: Exception) -> None:
        """Another was quicker, or there is a reason why not."""
        words = _words_of(error)
        if words != self._lost:
            self._lost = words
            log.warning("this node does not take the seat: %s", words)

    def could_not_lead(self, error: Exception) -> str:
        """The seat was taken, or nearly, and nothing could be served from it. Return it in words."""
        is_ours = isinstance(error, JournalError | OSError)
        why = f"this node could not begin to lead: {_words_of(error)}"
        if why not in self._could_not and len(self._could_not) < SAID_MAX:
            self._could_not.add(why)
            log.error("%s; it goes on trying", why, exc_info=None if is_ours else error)
        return why

    def leads(self, seat: Seat, seen: Seen) -> None:
        """A tenure began."""
        self._followed = None
        self._could_not.clear()
        log.warning("this node leads since %s, epoch %d: %s", rfc3339(seat.since_wall_ms), seat.epoch, seen.why_take)

    def follows(self, seat: Seat, why: str) -> None:
        """A tenure is over."""
        why = why.removeprefix(f"epoch {seat.epoch} is over: ")
        log.warning("this node does not lead any more, its epoch %d is over: %s", seat.epoch, why)

    def could_not_end(self, error: Exception) -> None:
        """What was left of a tenure could not be ended in order."""
        log.error("what was left of a tenure could not be ended in order: %s", _words_of(error), exc_info=error)


def in_public(error: Exception) -> str:
    """Say what kind of trouble it is, in fixed words: no address, no name, nothing that the store said."""
    match error:
        case JournalLostError():
            return WENT_BACK
        case JournalDamagedError():
            return UNUSABLE
        case JournalUnavailableError() | OutcomeUnknownError() | TimeoutError() | OSError():
            return AWAY
        case _:
            return CANNOT_TELL


def _words_of(error: Exception) -> str:
    return str(error) or ("it did not answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
