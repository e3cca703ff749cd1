"""Traces: a span for each request, sent to a real receiver; and nothing of OpenTelemetry where nobody asks for it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import has_request_id, unique
from tests.support.server import ServerFailed, ServerProcess

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Receiver(ThreadingHTTPServer):
    """Takes spans as a collector does: OTLP over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Collector)
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Collector(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        exported = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
        for group in exported.resource_spans:
            self.server.resources.append({each.key: each.value.string_value for each in group.resource.attributes})
            self.server.spans += [span for scope in group.scope_spans for span in scope.spans]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def _attributes(span: Any) -> dict[str, object]:  # noqa: ANN401 - a message of protobuf
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


def test_each_request_is_a_span(receiver: Receiver, tmp_path: Path) -> None:
    """A span has route, method, status and request id, belongs to its client's trace, and has no name of a job, an
    owner or an access token in it. What is left at a stop is sent.
    """
    settings = {"traces": True}
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test"}
    name = unique("job-of-ours")
    with ServerProcess.start(tmp_path / "data", settings=settings, env=env, tokens=callers.TOKENS) as server:
        alice = Api.of(server, callers.ALICE)
        traced = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        granted = alice.post(f"/locks/{name}/acquire", {"owner": "owner-of-ours"}, headers=traced)
        missing = alice.get(f"/nowhere/{name}")
        with alice.watch_lock(name):
            pass
        assert server.terminate() == 0
    spans = {str(_attributes(span)["holdfast.request_id"]): span for span in receiver.spans}
    assert len(spans) == len(receiver.spans) == 3
    span = spans[has_request_id(granted)]
    assert (span.name, span.kind) == ("POST /locks/{name}/acquire", 2)
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert _attributes(span) == {
        "http.request.method": "POST",
        "http.route": "/locks/{name}/acquire",
        "http.response.status_code": 200,
        "holdfast.request_id": granted.request_id,
    }
    assert spans[has_request_id(missing)].name == "GET"
    assert sorted(each.name for each in receiver.spans) == [
        "GET",
        "GET /locks/{name}/watch",
        "POST /locks/{name}/acquire",
    ]
    payload = b"".join(each.SerializeToString() for each in receiver.spans)
    assert not any(text.encode() in payload for text in (name, "owner-of-ours", "alice", callers.ALICE))
    assert receiver.resources[0]["service.name"] == "holdfast"
    assert receiver.resources[0]["deployment.environment"] == "test"


def test_server_stops_without_collector(tmp_path: Path) -> None:
    """With a receiver that is not there, requests are answered and a stop is one."""
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    with ServerProcess.start(tmp_path / "data", settings={"traces": True}, env=env, tokens=callers.TOKENS) as server:
        assert Api.of(server, callers.ALICE).acquired("deploy")["fencing_token"] == 1
        assert server.terminate(10) == 0


def test_opentelemetry_is_imported_only_with_traces() -> None:
    """A server without the setting knows nothing of OpenTelemetry."""
    program = "import sys, holdfast.server.app; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_traces_setting_reports_missing_extra(tmp_path: Path) -> None:
    """Where the extra is not installed, the start is refused, with what to install."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys; sys.modules['opentelemetry'] = None\n")
    with pytest.raises(ServerFailed, match=r"traces need a part .* not installed .*\[otel\]") as failed:
        ServerProcess.start(
            tmp_path / "data", settings={"traces": True}, env={"PYTHONPATH": str(hidden)}, tokens=callers.TOKENS
        )
    assert failed.value.returncode == 64
