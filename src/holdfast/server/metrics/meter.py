"""All that is measured of one process: what it counted, how late its loop is, the last hours, and the text of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.server.metrics.charts import Charts
from holdfast.server.metrics.series import Series
from holdfast.server.metrics.sources import Sources
from holdfast.server.metrics.stalls import Stalls
from holdfast.server.metrics.text import Text

if TYPE_CHECKING:
    from holdfast.engine.clock import Clock
    from holdfast.engine.measures import Measures
    from holdfast.settings import Settings


class Meter:
    """One for each process. `start` lets it look at the loop."""

    def __init__(self, settings: Settings, clock: Clock, measures: Measures | None = None) -> None:
        """`measures` are those of the engine that is there already, if one is."""
        self.sources = Sources(settings, clock, measures)
        self._stalls = Stalls(clock, self.sources.lags)
        self.series = Series(self.sources, self._stalls)
        self.charts = Charts(self.series)
        self.text = Text(self.sources)

    def start(self) -> None:
        """Begin to look at the loop that runs."""
        self._stalls.start()

    def stop(self) -> None:
        """Look no more."""
        self._stalls.stop()

    def tick(self) -> None:
        """Do what is done every second."""
        self.series.tick()
