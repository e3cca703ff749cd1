"""GET /metrics: who may read it, what it counts, and that nobody can make it grow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.observability.metrics import ENDS, REASONS, ROWS
from tests.observability.metrics_reader import Samples, samples_in, samples_of, value
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import refused, unique, wait_until
from tests.support.pending import waiting
from tests.support.server import ServerProcess


def metric_value(api: Api, name: str, **labels: str) -> float:
    """What the server says now: its text may be a second old."""
    answer = api.get("/metrics")
    assert answer.status == 200, answer.body
    return value(answer.body, name, **labels)


def rises(api: Api, by: float, name: str, before: float, **labels: str) -> None:
    """Wait until a sample has risen by so much."""
    wait_until(lambda: metric_value(api, name, **labels) == before + by)


def test_prometheus_can_read_it(alice: Api) -> None:
    """It is what Prometheus reads, with the type and the help of every row, and no name that the table lacks."""
    answer = alice.get("/metrics")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    text = answer.body.decode()
    known = {sample for row in ROWS for sample in samples_of(row)}
    assert {name for name, _ in samples_in(answer.body)} <= known
    for row in ROWS:
        assert f"# HELP {row.name} {row.help}\n# TYPE {row.name} {row.kind}\n" in text


def test_metrics_count_operations(alice: Api, bob: Api, operator: Api, name: str) -> None:
    """Grants, heartbeats, ends by how, refusals by reason, holds and waits: each rises by what happened."""
    first = samples_in(alice.get("/metrics").body)

    def before(name: str, **labels: str) -> float:
        return first[name, frozenset(labels.items())]

    lease = alice.acquired(name, owner="ana")
    bob.acquire(name)
    refused(bob.renew(name, lease["lease_id"]), 400, "lease_not_current")
    assert alice.renew(name, lease["lease_id"]).status == 200
    with waiting(bob, name) as waits:
        assert alice.release(name, lease["lease_id"]).status == 200
        assert waits.answer().json()["status"] == "acquired"
    assert operator.revoke(name, reason="enough").status == 204
    rises(alice, 2, "holdfast_grants_total", before("holdfast_grants_total"))
    for metric, labels, by in (
        ("holdfast_renewals_total", {}, 1),
        ("holdfast_ends_total", {"how": "released"}, 1),
        ("holdfast_ends_total", {"how": "revoked"}, 1),
        ("holdfast_queue_joins_total", {}, 1),
        ("holdfast_refusals_total", {"reason": "held"}, 1),
        ("holdfast_refusals_total", {"reason": "lease_not_current"}, 1),
        ("holdfast_hold_seconds_count", {}, 2),
        ("holdfast_wait_seconds_count", {}, 1),
    ):
        assert metric_value(alice, metric, **labels) == before(metric, **labels) + by, (metric, labels)
    assert metric_value(alice, "holdfast_answer_seconds_count") > before("holdfast_answer_seconds_count")
    assert metric_value(alice, "holdfast_commit_records_sum") > before("holdfast_commit_records_sum")


def test_metrics_report_current_state(alice: Api, name: str) -> None:
    """Held names, sessions, connections and streams are told as they are."""
    held, sessions = metric_value(alice, "holdfast_leases_held"), metric_value(alice, "holdfast_sessions_open")
    alice.acquired(name)
    alice.new_session()
    rises(alice, 1, "holdfast_leases_held", held)
    assert metric_value(alice, "holdfast_sessions_open") == sessions + 1
    assert metric_value(alice, "holdfast_connections") >= 1
    before = metric_value(alice, "holdfast_streams_open", kind="watches")
    with alice.watch_lock(name):
        rises(alice, 1, "holdfast_streams_open", before, kind="watches")
    rises(alice, 0, "holdfast_streams_open", before, kind="watches")
    assert (metric_value(alice, "holdfast_leader"), metric_value(alice, "holdfast_takeovers_total")) == (1, 1)


def test_metrics_count_refusals_before_decision(alice: Api, nobody: Api, server: ServerProcess) -> None:
    """No token, a wrong one, a body that is none: each has its reason, though no command was ever made of it."""
    wrong = Api.of(server, "wrong-0123456789abcdef-wrong")
    reasons = ("authentication_required", "authentication_failed", "invalid_input", "not_found")
    before = {reason: metric_value(alice, "holdfast_refusals_total", reason=reason) for reason in reasons}
    nobody.get("/locks")
    wrong.get("/locks")
    alice.post("/locks/x/acquire", {"no_such_field": 1})
    alice.get("/no/such/route")
    for reason in reasons:
        rises(alice, 1, "holdfast_refusals_total", before[reason], reason=reason)


def test_metrics_require_read_scope(alice: Api, nobody: Api, server: ServerProcess, operator: Api) -> None:
    """Without a token it is refused, with one that may only claim too, and a token that was made may read."""
    refused(nobody.get("/metrics"), 401, "authentication_required")
    refused(Api.of(server, "wrong-0123456789abcdef-wrong").get("/metrics"), 401, "authentication_failed")
    claims = operator.post("/tokens", {"name": unique("claimer"), "scopes": ["claim"]}).json()["token"]
    refused(Api.of(server, claims).get("/metrics"), 403, "forbidden")
    reads = operator.post("/tokens", {"name": unique("reader"), "scopes": ["read"]}).json()["token"]
    assert Api.of(server, reads).get("/metrics").status == 200
    assert alice.get("/metrics").status == 200
    assert Api.of(server, callers.READER).get("/metrics").status == 200


def test_metrics_contain_no_user_input(alice: Api, bob: Api) -> None:
    """Fifty names, owners, labels and notes later, it has the same samples as before, and none of those words."""

    def names(samples: Samples) -> set[object]:
        return set(samples)

    before = samples_in(alice.get("/metrics").body)
    for number in range(50):
        mark = unique(f"secret-{number}")
        lease = alice.acquired(mark, owner=f"own-{mark}", metadata=f"meta-{mark}", labels={"team": f"team-{number}"})
        alice.renew(mark, lease["lease_id"], note=f"note-{mark}")
        bob.acquire(mark, owner=f"other-{mark}")
    rises(alice, 50, "holdfast_grants_total", before["holdfast_grants_total", frozenset()])
    text = alice.get("/metrics").body
    assert names(samples_in(text)) == names(before)
    assert not [word for word in (b"secret-", b"own-", b"meta-", b"team", b"note-", b"alice") if word in text]


def test_labels_have_only_values_of_the_table(alice: Api) -> None:
    """Every label of every sample has one of the values that its row lists, and every value is there from the start."""
    rows = {sample: row for row in ROWS for sample in samples_of(row)}
    seen: dict[str, set[str]] = {}
    for name, labels in samples_in(alice.get("/metrics").body):
        row = rows[name]
        for label, each in labels - {pair for pair in labels if pair[0] == "le"}:
            assert (label, each) in {(row.label, known) for known in row.values}, (name, label, each)
            seen.setdefault(name, set()).add(each)
    assert seen["holdfast_refusals_total"] == set(REASONS)
    assert seen["holdfast_ends_total"] == set(ENDS)


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that lets anybody read its numbers."""
    data: Path = tmp_path_factory.mktemp("open") / "data"
    with ServerProcess.start(data, settings={"metrics_open": True}, tokens=callers.TOKENS) as server:
        yield server


def test_open_metrics_are_for_anybody(open_server: ServerProcess) -> None:
    """With `metrics_open` no token is asked for, a wrong one does no harm, and nothing else is open."""
    for token in (None, "wrong-0123456789abcdef-wrong", callers.ALICE):
        assert Api.of(open_server, token).get("/metrics").status == 200
    refused(Api.of(open_server, None).get("/locks"), 401, "authentication_required")
