"""The list of jobs as a page without script, and its rows as JSON: what may be seen, found and sorted, no more."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from holdfast.server.pages.jobs import PAGE_ROWS
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


def _names(page: Page) -> list[str]:
    """The names of the jobs on a page, in their order."""
    return [str(said["title"]) for tag, said in page.tags if tag == "bdi" and said.get("class") == "name"]


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


def test_an_empty_server_shows_three_commands(start: Start) -> None:
    """A newcomer with an empty server sees the three commands that make the first job appear; then they are gone."""
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
    assert not _is_hidden(page, "jobs-empty") and _is_hidden(page, "jobs-box")
    Api.of(server, callers.ALICE).acquired("my-first-job", ttl_seconds=120)
    page = _page(visitor)
    assert _is_hidden(page, "jobs-empty") and _names(page) == ["my-first-job"]


def test_a_row_says_all_of_a_job(visitor: Visitor, alice: Api) -> None:
    """Owner, how long it is held, its heartbeat, what is left, its note, labels and metadata stand in its row."""
    name = unique("all")
    lease = alice.acquired(name, owner="agent-3", ttl_seconds=90, labels={"team": "web"}, metadata="model=opus")
    alice.renew(name, lease["lease_id"], note="tests pass", ttl_seconds=90)
    page = _page(visitor, q=f"prefix:{name}")
    for words in ("agent-3", "alive", "1:2", "tests pass", "team:", "web", "model", "opus", "ago"):
        assert words in page.text, words
    assert f"/ui/jobs/{name}" in _links(page)
    (meter,) = [said for tag, said in page.tags if tag == "meter"]
    assert meter["max"] == "90000" and 80_000 < int(meter["value"]) <= 90_000


def test_whatever_users_write_is_text(visitor: Visitor, alice: Api) -> None:
    """Script in a name's neighbours, owner, note, label or metadata is shown as it was written, and is nothing else."""
    name = unique("payload")
    lease = alice.acquired(
        name, owner=PAYLOAD, ttl_seconds=60, labels={"x": PAYLOAD}, metadata=f'{{"{"k"}":"{"v"}"}} {PAYLOAD}'
    )
    alice.renew(name, lease["lease_id"], note=PAYLOAD)
    answer = visitor.get("/?" + urlencode({"q": f'prefix:{name} "{PAYLOAD[:8]}'}))
    page = page_of(answer)
    assert "<script>alert" not in answer.text and "<img" not in answer.text
    assert page.text.count("<script>alert(1)</script>") >= 2
    assert not [said for _, said in page.tags if any(key.startswith("on") or key == "style" for key in said)]


def test_names_that_need_escaping_lead_to_their_pages(visitor: Visitor, alice: Api) -> None:
    """A name is one segment of an address, whatever is in it."""
    name = f"github://{unique('acme')}/app?x=1#y&z=é"
    alice.acquired(name, ttl_seconds=60)
    assert f"/ui/jobs/{quote(name, safe='')}" in _links(_page(visitor, q=f'prefix:"{name}"'))


def test_a_search_that_finds_nothing_says_so(visitor: Visitor, alice: Api) -> None:
    """No match is said, with a way back to all jobs; the field keeps what was typed."""
    alice.acquired(unique(), ttl_seconds=60)
    page = _page(visitor, q="no-such-thing-anywhere")
    assert not _is_hidden(page, "jobs-no-match") and _is_hidden(page, "jobs-box") and _is_hidden(page, "jobs-empty")
    (field,) = [said for _, said in page.tags if said.get("id") == "search"]
    assert field["value"] == "no-such-thing-anywhere" and "/" in _links(page)


def test_pages_by_name_lead_on_to_the_end(visitor: Visitor, alice: Api) -> None:
    """By name each page leads to the next, and all together have every job once, in order."""
    stem = unique("pages")
    names = sorted(f"{stem}-{number:03}" for number in range(PAGE_ROWS * 2 + 5))
    for name in names:
        alice.acquired(name, ttl_seconds=300)
    found: list[str] = []
    onward = ["/?" + urlencode({"q": f"prefix:{stem}"})]
    pages = 0
    while onward:
        page = page_of(visitor.get(onward[0]))
        found += _names(page)
        onward = [str(said["href"]) for _, said in page.tags if said.get("rel") == "next"]
        pages += 1
    assert (found, pages) == (names, 3)


def test_other_orders_have_pages_too(visitor: Visitor, alice: Api) -> None:
    """Sorted by what is left, the first page has what ends first, and the second goes on there."""
    stem = unique("sorted")
    count = PAGE_ROWS + 10
    for number in range(count):
        alice.acquired(f"{stem}-{number:03}", ttl_seconds=1_000 - number)
    wanted = [f"{stem}-{number:03}" for number in reversed(range(count))]
    first = _page(visitor, q=f"prefix:{stem}", sort="left")
    second = _page(visitor, q=f"prefix:{stem}", sort="left", page=2)
    assert _names(first) + _names(second) == wanted
    assert _names(_page(visitor, q=f"prefix:{stem}", sort="-left")) == wanted[::-1][:PAGE_ROWS]
    (head,) = [said for tag, said in first.tags if tag == "th" and said.get("aria-sort")]
    assert (head["data-sort"], head["aria-sort"]) == ("left", "ascending")
    assert any("sort=-left" in link for link in _links(first))


def test_a_confined_reader_sees_its_part(server: ServerProcess, alice: Api, operator: Api) -> None:
    """A token with a prefix sees names below it; a search elsewhere says which names it may see."""
    prefix = unique("acme") + "/"
    made = operator.post("/tokens", {"name": unique("confined"), "scopes": ["read"], "prefix": prefix}).json()
    visitor = Visitor(server)
    visitor.sign_in(made["token"])
    page = _page(visitor)
    assert _names(page) == [] and prefix in page.text
    assert any(f"holdfast claim {prefix}my-first-job" in str(said.get("data-copy")) for _, said in page.tags)
    alice.acquired(f"{prefix}mine", ttl_seconds=60)
    alice.acquired(unique("other"), ttl_seconds=60)
    assert _names(_page(visitor)) == _names(_page(visitor, q=f"prefix:{prefix[:3]}")) == [f"{prefix}mine"]
    for search in ("prefix:other", "owner:somebody", unique("other")):
        page = _page(visitor, q=search)
        assert _names(page) == [] and "may only see names" in page.text, search


def test_strange_queries_are_pages_too(visitor: Visitor) -> None:
    """Whatever stands in the address, the list is shown: links are passed on by people."""
    for query in ("q=%00%ff", "sort=%27;drop", "page=999999999", "page=-1", "after=%F0%9F%98%80", "q=" + "x" * 5_000):
        assert visitor.get(f"/?{query}").status == 200, query


# Rows as JSON.


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
