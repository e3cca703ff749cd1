"""Who watches requests and records, as the settings say: the log of requests, traces, the log of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.extras import how_to_install
from holdfast.server.observability.event_log import EventLog
from holdfast.server.observability.request_log import Observing, RequestLog
from holdfast.server.starting.exits import EX_USAGE, StartError

if TYPE_CHECKING:
    from holdfast.engine.clock import Clock
    from holdfast.engine.engine import Engine
    from holdfast.server.access.proxies import Proxies
    from holdfast.server.observability.request_log import Observer
    from holdfast.settings import Settings

EXTRA = "otel"


def observing_of(settings: Settings, clock: Clock, proxies: Proxies, node: str = "") -> Observing:
    """Return who watches requests: nobody, unless the settings ask for it. Raises `StartError`."""
    observers: list[Observer] = []
    if settings.log_requests:
        observers.append(RequestLog(clock, proxies))
    if settings.traces:
        observers.append(_traces(node))
    return Observing(observers)


def event_log_of(settings: Settings, engine: Engine) -> EventLog | None:
    """Return what writes a line for each grant and end of this engine, if the settings ask for it."""
    return EventLog(engine) if settings.log_events else None


def _traces(node: str) -> Observer:
    try:
        from holdfast.server.observability.traces import Traces  # noqa: PLC0415 - Its extra may be missing.
    except ModuleNotFoundError as error:
        text = f"traces need a part of Holdfast that is not installed ({error.name}): {how_to_install(EXTRA)}"
        raise StartError(text, EX_USAGE) from error
    return Traces(node)
