"""The list of jobs: the page that its script fills, and its rows as JSON: what may be seen and found, no more."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import refused, unique
from tests.support.http import Answer
from tests.support.server import ServerProcess
from tests.support.visitor import Page, Visitor, page_of

Start = Callable[[], ServerProcess]
PAYLOAD = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server of its own, and ends it."""
    started: list[ServerProcess] = []

    def begin() -> ServerProcess:
        started.append(ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS))
        return started[-1]

    yield begin
    for server in started:
        server.kill()


@pytest.fixture
def visitor(server: ServerProcess) -> Visitor:
    """Somebody who is signed in, and may read."""
    one = Visitor(server)
    one.sign_in(callers.READER)
    return one


def _page(visitor: Visitor, **query: object) -> Page:
    answer = visitor.get("/" + (f"?{urlencode(query)}" if query else ""))
    assert answer.status == 200, answer
    return page_of(answer)


def _links(page: Page) -> list[str]:
    return [str(said["href"]) for tag, said in page.tags if tag == "a" and "href" in said]


def _is_hidden(page: Page, id_: str) -> bool:
    (said,) = [said for _, said in page.tags if said.get("id") == id_]
    return "hidden" in said


def _rows(api: Api, **query: object) -> dict[str, Any]:
    answer: Answer = api.get("/ui/rows" + (f"?{urlencode(query)}" if query else ""))
    assert answer.status == 200, answer
    body: dict[str, Any] = answer.json()
    return body


def _all_rows(api: Api, **query: object) -> list[dict[str, Any]]:
    page = _rows(api, **query)
    found: list[dict[str, Any]] = page["rows"]
    while "next_after" in page:
        page = _rows(api, **query, after=page["next_after"])
        found += page["rows"]
    return found


# The page.


def test_the_page_has_no_row_in_it(visitor: Visitor, alice: Api) -> None:
    """Rows come as JSON alone: nothing that a user wrote is in the page, and nothing of the list is shown before."""
    name = unique("row")
    alice.acquired(name, owner="agent-in-a-row", ttl_seconds=60)
    answer = visitor.get("/")
    assert name not in answer.text and "agent-in-a-row" not in answer.text
    page = page_of(answer)
    assert all(_is_hidden(page, id_) for id_ in ("jobs-box", "jobs-empty", "jobs-no-match"))


def test_a_reader_without_scripts_is_led_on(visitor: Visitor) -> None:
    """The page says that its list needs JavaScript, and leads to the command, the API and the views that need none."""
    page = _page(visitor)
    assert "The list of jobs needs JavaScript" in page.text and "holdfast jobs" in page.text
    links = _links(page)
    assert {"/locks", "/ui/waits", "/ui/sessions", "/ui/metrics", "/ui/nodes"} <= set(links)
    for link in ("/locks", "/ui/waits", "/ui/sessions", "/ui/metrics", "/ui/nodes"):
        assert visitor.get(link).status == 200, link


def test_an_empty_list_has_three_commands(start: Start) -> None:
    """The page has the three commands that make the first job appear, with this server's address in the first."""
    server = start()
    visitor = Visitor(server)
    visitor.sign_in(callers.OPERATOR)
    page = _page(visitor)
    commands = [str(said["data-copy"]) for tag, said in page.tags if tag == "button" and "data-copy" in said]
    assert commands == [
        f"export HOLDFAST_URL=http://{server.host}:{server.port}",
        "read -rs HOLDFAST_TOKEN && export HOLDFAST_TOKEN",
        "holdfast claim my-first-job --ttl 2m",
    ]


def test_list_shows_prefix_of_confined_reader(server: ServerProcess, operator: Api) -> None:
    """The page of a token with a prefix says which names it may see, and claims one of them in its command."""
    prefix = unique("acme") + "/"
    made = operator.post("/tokens", {"name": unique("confined"), "scopes": ["read"], "prefix": prefix}).json()
    visitor = Visitor(server)
    visitor.sign_in(made["token"])
    page = _page(visitor)
    assert prefix in page.text and "may only see names" in page.text
    assert any(f"holdfast claim {prefix}my-first-job" in str(said.get("data-copy")) for _, said in page.tags)


def test_the_search_in_an_address_is_text(visitor: Visitor) -> None:
    """Script in a search is shown as it was written, and is nothing else; the field has what was typed."""
    answer = visitor.get("/?" + urlencode({"q": PAYLOAD}))
    page = page_of(answer)
    assert "<script>alert" not in answer.text and "<img" not in answer.text
    (field,) = [said for _, said in page.tags if said.get("id") == "search"]
    assert field["value"] == PAYLOAD
    assert not [said for _, said in page.tags if any(key.startswith("on") or key == "style" for key in said)]


def test_strange_queries_are_pages_too(visitor: Visitor) -> None:
    """Whatever is in the address, the list is shown: links are passed on by people."""
    for query in ("q=%00%ff", "sort=%27;drop", "page=-1", "after=%F0%9F%98%80", "q=" + "x" * 5_000):
        assert visitor.get(f"/?{query}").status == 200, query


# Rows as JSON.


def test_row_has_all_fields_of_a_job(alice: Api, bob: Api) -> None:
    """Owner, times, note, labels and the fields of the metadata are in its row, each as its user wrote it."""
    name = unique("all")
    lease = alice.acquired(name, owner=PAYLOAD, ttl_seconds=90, labels={"team": PAYLOAD}, metadata="model=opus")
    alice.renew(name, lease["lease_id"], note=PAYLOAD, ttl_seconds=90)
    (row,) = _all_rows(bob, q=f"prefix:{name}")
    assert (row["name"], row["owner"], row["token"]) == (name, PAYLOAD, lease["fencing_token"])
    assert (row["note"], row["labels"], row["fields"]) == (PAYLOAD, {"team": PAYLOAD}, [["model", "opus"]])
    assert row["ttl"] == 90_000 and row["since"] <= row["beat"] <= row["until"] - 85_000


def test_rows_come_in_pages(alice: Api, bob: Api) -> None:
    """Rows come in the order of their names, in pages that lead on, each with the record that it is not older than."""
    stem = unique("rows")
    names = sorted(f"{stem}-{number}" for number in range(25))
    for name in names:
        alice.acquired(name, ttl_seconds=60)
    rows = _all_rows(bob, q=f"prefix:{stem}", limit=10)
    assert [row["name"] for row in rows] == names
    page = _rows(bob, limit=1)
    assert page["seq"] > 25 and page["total"] >= 25 and set(page["totals"]) == {"jobs", "waiting", "sessions"}
    assert not re.search(r'"lease_id"|"metadata"|"key"', str(page))


def test_rows_follow_the_rights_of_the_caller(alice: Api, operator: Api, nobody: Api) -> None:
    """Rows need `read`, a prefix confines them, and totals of all are for those who may see all."""
    prefix = unique("rights") + "/"
    made = operator.post("/tokens", {"name": unique("confined"), "scopes": ["read"], "prefix": prefix}).json()
    reader = Api(operator.host, operator.port, made["token"])
    alice.acquired(f"{prefix}a", ttl_seconds=60)
    alice.acquired(unique("elsewhere"), ttl_seconds=60)
    page = _rows(reader)
    assert [row["name"] for row in page["rows"]] == [f"{prefix}a"] and page["total"] == 1 and "totals" not in page
    assert _rows(reader, q="prefix:elsewhere")["rows"] == []
    refused(nobody.get("/ui/rows"), 401, "authentication_required")
    refused(reader.get("/ui/rows?limit=0"), 400, "invalid_input")


def test_a_search_among_rows(alice: Api, bob: Api) -> None:
    """The server finds by owner, label and text what the page's script would find."""
    stem = unique("find")
    alice.acquired(f"{stem}-a", owner="agent-1", ttl_seconds=60, labels={"team": "web"})
    alice.acquired(f"{stem}-b", owner="agent-2", ttl_seconds=60, metadata="trace=xyz")
    for text, names in (
        ("owner:AGENT-1", ["a"]),
        ("label:team:web", ["a"]),
        ("trace=XYZ", ["b"]),
        ("owner:agent", ["a", "b"]),
        ("owner:agent label:team xyz", []),
    ):
        assert [row["name"][-1] for row in _all_rows(bob, q=f"prefix:{stem} {text}")] == names, text
