"""The dashboard and the alerts speak of metrics that the server has, with labels and values that those have."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import ssl
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.config import Settings
from holdfast.engine.metrics import EngineMetrics, Histogram
from holdfast.observability.metrics import ROWS, MetricRow, Sources, as_markdown, bound_text, take_snapshot
from holdfast.testing.clock import ManualClock
from tests.observability.metrics_reader import samples_of
from tests.observability.promql import spoken_of
from tests.support import callers
from tests.support.reverse_proxies import make_certificate
from tests.support.server import serving

ROOT = Path(__file__).resolve().parents[2]
BOARD = ROOT / "deploy" / "grafana" / "holdfast.json"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
SCRAPE = ROOT / "deploy" / "prometheus" / "prometheus.yml"
GUIDE = ROOT / "docs" / "guide" / "metrics.md"

OF_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus adds itself."""
RULE = re.compile(
    r"      - alert: (?P<alert>Holdfast\w+)\n"
    r"        expr: '(?P<expr>[^'\n]+)'\n"
    r"(?:        for: (?P<for>\d+[smh])\n)?"
    r"        labels:\n          severity: (?P<severity>page|ticket)\n"
    r"        annotations:\n"
    r"          summary: '(?P<summary>[^'\n]+)'\n"
    r"          description: '(?P<description>[^'\n]+)'\n"
)


@cache
def board() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(BOARD.read_text(encoding="utf-8"))
    return read


def panels() -> list[dict[str, Any]]:
    return [panel for panel in board()["panels"] if panel["type"] != "row"]


def board_queries() -> list[str]:
    variables = [each["definition"] for each in board()["templating"]["list"] if each["type"] == "query"]
    return variables + [target["expr"] for panel in panels() for target in panel["targets"]]


def rules() -> list[dict[str, str]]:
    """Every rule of the file; the file has nothing else in it that this does not know."""
    text = ALERTS.read_text(encoding="utf-8")
    head = "groups:\n  - name: holdfast\n    rules:\n"
    body = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    assert body.startswith(head)
    rest = body.removeprefix(head)
    found = [each.groupdict() for each in RULE.finditer(rest)]
    assert not RULE.sub("", rest).strip(), f"not understood: {RULE.sub('', rest).strip()[:200]}"
    return found


@cache
def by_sample() -> dict[str, MetricRow]:
    return {sample: row for row in ROWS for sample in samples_of(row)}


@cache
def bounds() -> dict[str, set[str]]:
    """Of each histogram, what `le` can be."""
    look = take_snapshot(Sources(Settings(data=Path("unused")), ManualClock(), EngineMetrics()))
    spreads = {row.name: row.read(look) for row in ROWS if row.kind == "histogram"}
    return {
        f"{name}_bucket": {bound_text(bound) for bound in (*spread.bounds, float("inf"))}
        for name, spread in spreads.items()
        if isinstance(spread, Histogram)
    }


def wrong_in(query: str) -> list[str]:
    """What a query speaks of that the server does not have."""
    wrong, spoken = [], spoken_of(query)
    labels = set(OF_PROMETHEUS)
    for name, values in spoken.metrics.items():
        if name == "up":
            continue
        row = by_sample().get(name)
        if row is None:
            wrong.append(f"no metric {name}")
            continue
        own = {row.label} if row.label else set()
        known = {row.label: set(row.values), "le": bounds().get(name, set())}
        labels |= own | ({"le"} if row.kind == "histogram" else set())
        for label, wanted in values.items():
            if label in OF_PROMETHEUS:
                continue
            wrong += [f"{name} has no {label}={value}" for value in sorted(wanted - known.get(label, set()))]
    return wrong + [f"no label {label}" for label in sorted(spoken.grouped - labels)]


@pytest.mark.parametrize("query", board_queries())
def test_dashboard_queries_name_known_metrics(query: str) -> None:
    """Each names metrics, labels and values that the server has."""
    assert wrong_in(query) == []


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_alerts_name_known_metrics(rule: dict[str, str]) -> None:
    """Each names metrics, labels and values that the server has, of the job that the file beside it makes."""
    assert wrong_in(rule["expr"]) == []
    assert 'job="holdfast"' in rule["expr"] and "job_name: holdfast\n" in SCRAPE.read_text(encoding="utf-8")
    shown = set(re.findall(r"\$labels\.(\w+)", rule["summary"] + rule["description"]))
    grouped = spoken_of(rule["expr"]).grouped
    assert shown <= ((grouped - {"le"}) or OF_PROMETHEUS), "a label that the expression has lost cannot be shown"


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("sum(rate(holdfast_grants[5m]))", "no metric holdfast_grants"),
        ('holdfast_ends_total{how="lost"}', "holdfast_ends_total has no how=lost"),
        ('holdfast_grants_total{owner="ana"}', "holdfast_grants_total has no owner=ana"),
        ('rate(holdfast_commit_seconds_bucket{le="0.3"}[5m])', "holdfast_commit_seconds_bucket has no le=0.3"),
        ("sum by (name) (holdfast_leases_held)", "no label name"),
        ("holdfast_leases_held / holdfast_leases_max", "no metric holdfast_leases_max"),
        ("histogram_quantile(0.99, rate(holdfast_wait_seconds[5m]))", "no metric holdfast_wait_seconds"),
    ],
)
def test_dashboard_check_finds_query_of_unknown_metric(query: str, wrong: str) -> None:
    """A name, a label, a value or a bound that is not there is seen."""
    assert wrong_in(query) == [wrong]


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    """Panels have numbers and places of their own, none lies over another, and all ask the source that is chosen."""
    ids = [panel["id"] for panel in board()["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in board()["panels"]:
        position = panel["gridPos"]
        across, down = (
            range(position["x"], position["x"] + position["w"]),
            range(position["y"], position["y"] + position["h"]),
        )
        cells = {(x, y) for x in across for y in down}
        assert not cells & taken and position["x"] + position["w"] <= 24, panel["title"]
        taken |= cells
    for panel in panels():
        assert panel["datasource"]["uid"] == "${source}" and panel["targets"], panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_alerts_have_names_of_their_own() -> None:
    """Seventeen rules, each once; what pages somebody has a time to pass by itself."""
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) == 17
    assert all(rule["for"] for rule in rules() if rule["severity"] == "page")


def test_the_guide_shows_the_file_for_prometheus() -> None:
    """The guide has what the file says of the job, letter by letter."""
    text = SCRAPE.read_text(encoding="utf-8")
    assert f"```text\n{text[text.index('scrape_configs:') :]}```" in GUIDE.read_text(encoding="utf-8")
    (job,) = yaml.safe_load(text)["scrape_configs"]
    assert yaml.safe_load(text)["rule_files"] == [ALERTS.name]
    assert set(job) == {"job_name", "scrape_interval", "scheme", "tls_config", "authorization", "static_configs"}


def test_prometheus_file_reads_the_metrics(tmp_path: Path) -> None:
    """With the scheme, the CA, the token and the name of the file, a server that speaks TLS tells its numbers; without
    the token, or with another CA, it does not.
    """
    (job,) = yaml.safe_load(SCRAPE.read_text(encoding="utf-8"))["scrape_configs"]
    ((target,),) = [each["targets"] for each in job["static_configs"]]
    name, _, port = target.rpartition(":")
    certificate = make_certificate(tmp_path, name)
    settings = {"tls_cert": certificate, "tls_key": certificate, "allowed_hosts": name}
    assert (job["scheme"], int(port)) == ("https", 7420) and "ca_file" in job["tls_config"]
    with serving(tmp_path / "data", tokens=callers.TOKENS, settings=settings) as server:

        def read(token: str | None, context: ssl.SSLContext) -> int:
            # Only who is called is as in the file: the name is resolved to this machine.
            plain = socket.create_connection((server.host, server.port))
            with contextlib.closing(http.client.HTTPSConnection(name, int(port), context=context)) as connection:
                connection.sock = context.wrap_socket(plain, server_hostname=name)
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                connection.request("GET", "/metrics", headers=headers)
                answer = connection.getresponse()
                assert (b"holdfast_info" in answer.read()) is (answer.status == 200)
                return answer.status

        known = ssl.create_default_context(cafile=str(certificate))
        assert (read(callers.READER, known), read(None, known)) == (200, 401)
        with pytest.raises(ssl.SSLCertVerificationError):
            read(callers.READER, ssl.create_default_context())


def test_the_guide_has_every_metric() -> None:
    """The table of the guide is exactly what the table of the server says."""
    renew = "the table is stale; paste what this prints: .venv/bin/python -m holdfast.observability.metrics"
    assert as_markdown() in GUIDE.read_text(encoding="utf-8"), renew


def test_the_guide_has_every_alert() -> None:
    """The guide names each alert of the file, and no other."""
    assert set(re.findall(r"`(Holdfast[A-Z]\w+)`", GUIDE.read_text(encoding="utf-8"))) == {
        rule["alert"] for rule in rules()
    }
