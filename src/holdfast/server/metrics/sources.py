"""Where the numbers come from: what one process has counted, and who is asked for what is so right now.

Everything here is a number that is there already, or the length of something. So a look costs the same whether ten
leases are held or a million, and nobody can make it cost more.
"""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast.engine.measures import Measures, Spread
from holdfast.server.operations.call import Counters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.engine.clock import Clock
    from holdfast.engine.engine import Engine
    from holdfast.settings import Settings

LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Streams(Protocol):
    """What counts open streams."""

    count: int


class Place(msgspec.Struct, frozen=True):
    """The place of this process among the nodes of one authority."""

    leads: bool
    epoch: int | None = None
    """Of the leader that is known; None if none is."""
    is_linked: bool = False
    """Whether it follows, and has a link to the leader."""
    links: int = 0
    """How many followers have a link to it."""


class Sources:
    """All that can be told of one process. It outlives every tenure of a node."""

    def __init__(self, settings: Settings, clock: Clock, measures: Measures | None = None) -> None:
        self.settings = settings
        self.clock = clock
        self.started_wall_ms = clock.wall_ms()
        self.measures = measures or Measures()
        self.counters = Counters()
        self.lags = Spread(LAG_SECONDS)
        """Seconds by which the loop was late when it was asked for."""
        self.takeovers = 0
        """How often this process began to lead."""
        self.engine: Engine | None = None
        """What serves now; None on a node that does not lead."""
        self.streams: Mapping[str, Streams] = {}
        """By what they are for."""
        self.tokens = 0
        """How many access tokens the settings give."""
        self.connections: Callable[[], int] | None = None
        """How many are open; None if connections are not ours."""
        self.lines_left_out: Callable[[], int] = int
        """How many lines of the log were left out."""
        self._place: Callable[[], Place] | None = None

    def serve(self, engine: Engine, streams: Mapping[str, Streams], tokens: int) -> None:
        """Know what serves from now on."""
        self.engine, self.streams, self.tokens = engine, streams, tokens
        self.takeovers += 1

    def serve_no_more(self, engine: Engine) -> None:
        """Know that this one serves no more; harmless if another does."""
        if self.engine is engine:
            self.engine, self.streams = None, {}

    @staticmethod
    def processor_seconds() -> float:
        """Return how much processor time this process has used."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    def stand(self, place: Callable[[], Place]) -> None:
        """Know whom to ask for the place among several nodes."""
        self._place = place

    def place(self) -> Place:
        """Return the place among the nodes. Whoever has a directory leads, and is alone."""
        if self._place is not None:
            return self._place()
        engine = self.engine
        return Place(leads=engine is not None, epoch=None if engine is None else engine.state.epoch)
