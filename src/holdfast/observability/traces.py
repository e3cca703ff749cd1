"""Traces: each request is an OpenTelemetry span. Imported only if the setting `traces` is on.

A span has the route, the method, the status and the request id. It has no names of jobs, owners or access tokens, and
no client addresses: those are unbounded, and spans leave the operator's systems. With `traceparent`, a span joins the
client's trace.

OpenTelemetry queues spans, drops those beyond its bound and sends the rest in a thread. Its own environment variables
configure it (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER`).
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from holdfast import __version__

if TYPE_CHECKING:
    from holdfast.http.messages import Request
    from holdfast.observability.request_log import OnEnd

LAST_SPANS_SECONDS = 2.0  # At most, for the collector, when the process stops.
_METHODS = frozenset({b"DELETE", b"GET", b"HEAD", b"OPTIONS", b"PATCH", b"POST", b"PUT"})
_CARRIED = ("traceparent", "tracestate")
_SERVER_ERROR = 500


class Traces:
    def __init__(self, node: str = "") -> None:
        own = {"service.name": "holdfast", "service.version": __version__}
        if node:
            own["service.instance.id"] = node
        # The environment variables take precedence.
        resource = Resource.create(own).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("holdfast", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, request: Request, route: str) -> OnEnd:
        method = request.method.decode("ascii") if request.method in _METHODS else "_OTHER"
        attributes = {"http.request.method": method, "holdfast.request_id": request.request_id}
        if route:
            attributes["http.route"] = route
        carried = {name: value.decode("latin-1") for name in _CARRIED if (value := request.headers.get(name.encode()))}
        span = self._tracer.start_span(
            f"{method} {route}".rstrip(),
            context=self._propagator.extract(carried),
            kind=SpanKind.SERVER,
            attributes=attributes,
        )
        return partial(_end, span)

    def close(self) -> None:
        """Send the queued spans, if the collector accepts them in time."""
        sending = threading.Thread(target=self._provider.shutdown, name="holdfast-last-spans", daemon=True)
        sending.start()
        sending.join(LAST_SPANS_SECONDS)


def _end(span: Span, status: int | None, _principal: str | None) -> None:
    if status is None:
        span.set_attribute("holdfast.client_left", True)
    else:
        span.set_attribute("http.response.status_code", status)
        if status >= _SERVER_ERROR:
            span.set_status(StatusCode.ERROR)
    span.end()
