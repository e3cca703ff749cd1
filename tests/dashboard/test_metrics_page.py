"""The page of numbers: drawn on the server, true without a script, the same for all who may read."""

from __future__ import annotations

import re

import pytest

from holdfast.observability.charts import PLANS, SPANS
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import refused, unique, wait_until
from tests.support.http import Answer
from tests.support.server import ServerProcess
from tests.support.visitor import Visitor, page_of


@pytest.fixture(scope="module")
def drawn(server: ServerProcess, alice: Api) -> Answer:
    """The page once there are samples of a server that was asked something."""
    for number in range(40):
        lease = alice.acquired(unique(f"numbers-{number}"))
        assert lease["lease_id"]

    def page() -> Answer | bool:
        answer = alice.get("/ui/metrics")
        assert answer.status == 200
        return answer if answer.body.count(b"<svg") == len(PLANS) else False

    found = wait_until(page, seconds_max=40, every_seconds=0.5)
    assert isinstance(found, Answer)
    return found


def test_every_chart_is_in_the_page(drawn: Answer) -> None:
    """Without a script there is each chart with its title, its lines, its scale and its last values."""
    page = page_of(drawn)
    for plan in PLANS:
        assert plan.title in page.text and plan.about in drawn.body.decode()
    paths = [said for tag, said in page.tags if tag == "path" and "series" in str(said.get("class"))]
    assert len(paths) == sum(len(plan.lines) for plan in PLANS)
    held = next(said["d"] for said in paths if said["class"] == "series first" and said["d"])
    assert re.fullmatch(r"(M[\d.]+ [\d.]+h1(L[\d.]+ [\d.]+)*)+", str(held))
    assert "jobs held" in page.text and "longest stall" in page.text


def test_metrics_page_has_no_inline_style_or_script(drawn: Answer) -> None:
    """The policy of the page forbids both; a drawing needs neither."""
    text = drawn.body.decode()
    assert " style=" not in text and "<style" not in text
    assert not re.search(r"<script(?![^>]*\bsrc=)", text)
    assert "default-src 'none'" in drawn.headers["content-security-policy"]


def test_metrics_page_contains_no_names(drawn: Answer) -> None:
    """What jobs and owners are called is nobody's business here."""
    assert b"numbers-1" not in drawn.body


@pytest.mark.parametrize("span", [*SPANS, "7y", "%3Cb%3E"])
def test_a_span_can_be_chosen(alice: Api, drawn: Answer, span: str) -> None:
    """Each of them has its page and its link is marked; what is none is the usual one."""
    answer = alice.get(f"/ui/metrics?span={span}")
    assert answer.status == 200 and b"<b>" not in answer.body.split(b"<main")[0]
    marked = re.findall(r'href="\?span=(\w+)" aria-current="true"', answer.body.decode())
    assert marked == [span if span in SPANS else "1h"]


def test_the_script_gets_the_same(alice: Api, drawn: Answer) -> None:
    """What the page's script asks for has the charts of the page, with the server's time."""
    said = alice.get("/ui/metrics/drawn?span=1h").json()
    assert [chart["key"] for chart in said["drawn"]["charts"]] == [plan.key for plan in PLANS]
    assert said["now"] > said["drawn"]["since_wall_ms"]
    assert {stat["key"] for stat in said["drawn"]["stats"]} >= {"grants", "held", "stall"}


def test_metrics_page_requires_read_scope(nobody: Api, server: ServerProcess, operator: Api) -> None:
    """A stranger is asked to sign in, a token that may only claim is refused, one that may only read sees it."""
    assert nobody.get("/ui/metrics").status == 401
    refused(nobody.get("/ui/metrics/drawn"), 401, "authentication_required")
    claims = operator.post("/tokens", {"name": unique("claimer"), "scopes": ["claim"]}).json()["token"]
    assert Api.of(server, claims).get("/ui/metrics").status == 403
    refused(Api.of(server, claims).get("/ui/metrics/drawn"), 403, "forbidden")
    visitor = Visitor(server)
    visitor.sign_in(callers.READER)
    assert visitor.get("/ui/metrics").status == 200
    assert visitor.get("/ui/metrics/drawn").status == 200
    assert visitor.get("/metrics").status == 200
