"""GET /locks: a page is bounded in bytes and in names looked at, whatever others hold; the pages are the whole."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.api import Api
from tests.support.checks import refused

PAGE_BYTES = 1024 * 1024
LARGEST_BYTES = 64 * 1024
CROWD = 12_000


@pytest.fixture(scope="module")
def server_settings() -> dict[str, object]:
    """One token may hold all of the crowd."""
    return {"leases_per_principal_max": 100_000}


@pytest.fixture(scope="module")
def crowd(alice: Api) -> str:
    """The prefix of many names of one owner."""
    for start in range(0, CROWD, 1_000):
        names = [f"crowd/{number:06}" for number in range(start, start + 1_000)]
        assert alice.claims(all=names, owner="crowd", ttl_seconds=3_600).json()["status"] == "acquired"
    return "crowd/"


def _pages(api: Api, **query: object) -> list[dict[str, Any]]:
    """Every page, one after the other."""
    pages: list[dict[str, Any]] = []
    after: dict[str, object] = {}
    while True:
        answer = api.locks(**query, **after)
        assert answer.status == 200, answer
        assert len(answer.body) < PAGE_BYTES + LARGEST_BYTES
        pages.append(answer.json())
        if pages[-1]["next_after"] is None:
            return pages
        after = {"after": pages[-1]["next_after"]}


def _names(pages: list[dict[str, Any]]) -> list[str]:
    return [lock["name"] for page in pages for lock in page["locks"]]


def test_a_page_is_bounded_in_bytes(bob: Api, name: str) -> None:
    """A thousand locks with much to say are several pages of about 1 MiB, and every lock is on one of them, once."""
    metadata = "m" * 1_000
    labels = {f"key-{number}": "v" * 100 for number in range(8)}
    for start in range(0, 600, 100):
        names = [f"{name}/{number:04}" for number in range(start, start + 100)]
        assert bob.claims(all=names, metadata=metadata, labels=labels).json()["status"] == "acquired"
    pages = _pages(bob, prefix=f"{name}/", limit=10_000)
    assert _names(pages) == [f"{name}/{number:04}" for number in range(600)]
    assert len(pages) > 1
    assert {page["total"] for page in pages} == {600}


def test_pages_by_name_show_everything_once(bob: Api, crowd: str) -> None:
    """Without a filter every page is full, and `total` counts all pages."""
    pages = _pages(bob, prefix=crowd, limit=1_000)
    assert _names(pages) == [f"{crowd}{number:06}" for number in range(CROWD)]
    assert {page["total"] for page in pages} == {CROWD}
    assert [len(page["locks"]) for page in pages] == [1_000] * 12
    one = bob.locks(prefix=crowd, limit=1).json()
    assert (_names([one]), one["total"], one["next_after"]) == ([f"{crowd}000000"], CROWD, f"{crowd}000000")


def test_filter_scans_a_bounded_number_of_names(bob: Api, crowd: str) -> None:
    """An owner that is not there is searched for page by page: none of them has anything, the last has no next."""
    pages = _pages(bob, owner="nobody at all")
    assert len(pages) > 1
    assert _names(pages) == []
    assert {page["total"] for page in pages} == {None}
    last = bob.acquired(f"{crowd}zz-last", owner="rare")
    pages = _pages(bob, prefix=crowd, owner="rare")
    assert _names(pages) == [f"{crowd}zz-last"]
    assert len(pages) > 1
    bob.release(f"{crowd}zz-last", last["lease_id"])


def test_a_session_is_found_at_once(bob: Api, crowd: str) -> None:
    """The names of a session are on one page, however many others come before them."""
    session = bob.new_session()["session_id"]
    names = [f"{crowd}zz-{number}" for number in range(3)]
    bob.claims(all=names, session_id=session, ephemeral=True)
    page = bob.locks(session=session).json()
    assert (_names([page]), page["total"], page["next_after"]) == (names, 3, None)
    assert _names(_pages(bob, session=session, limit=1)) == names
    assert _names(_pages(bob, session=session, limit=2, prefix=f"{crowd}zz-1")) == names[1:2]
    empty = bob.new_session()["session_id"]
    assert bob.locks(session=empty).json() == {"locks": [], "total": 0, "prefix": None, "next_after": None}


def test_total_is_said_where_one_page_has_all(bob: Api, name: str) -> None:
    """With a filter `total` is a number only if the page is the whole."""
    for letter in "abc":
        bob.acquired(f"{name}/{letter}", owner="ana")
    complete = bob.locks(prefix=f"{name}/", owner="ana").json()
    assert (len(complete["locks"]), complete["total"]) == (3, 3)
    part = bob.locks(prefix=f"{name}/", owner="ana", limit=2).json()
    assert (part["total"], part["next_after"]) == (None, f"{name}/b")


def test_sessions_are_pages(carol: Api, bob: Api) -> None:
    """S1: the sessions of a token come in pages, bounded in bytes and in number; together they are all of them."""
    made = sorted(
        carol.new_session(name=f"run-{number}", metadata="\U0001f512" * 1_000, ttl_seconds=600)["session_id"]
        for number in range(400)
    )
    bob.new_session()
    for query in ({}, {"limit": 7}, {"limit": 10_000}):
        found: list[str] = []
        after: dict[str, str] = {}
        pages = 0
        while True:
            answer = carol.get("/sessions?" + urlencode({**query, **after}))
            assert len(answer.body) < PAGE_BYTES + LARGEST_BYTES
            body = answer.json()
            assert body["total"] == 400
            found += [each["session_id"] for each in body["sessions"]]
            pages += 1
            if "next_after" not in body:
                break
            after = {"after": body["next_after"]}
        assert found == made
        assert pages == 58 if query == {"limit": 7} else pages == 2
    refused(carol.get("/sessions?limit=0"), 400, "invalid_input")
    refused(carol.get("/sessions?colour=red"), 400, "invalid_input")


def test_tokens_are_pages(operator: Api) -> None:
    """The tokens come in order of name, in pages; the static ones are among them."""
    for number in range(20):
        assert operator.post("/tokens", {"name": f"page-{number:02}"}).status == 201
    complete = operator.get("/tokens").json()
    assert set(complete) == {"tokens"}
    names = [each["name"] for each in complete["tokens"]]
    assert names == sorted(names) and {"alice", "page-00", "page-19"} <= set(names)
    found: list[dict[str, Any]] = []
    page = operator.get("/tokens?limit=7").json()
    while "next_after" in page:
        assert len(page["tokens"]) == 7
        found += page["tokens"]
        page = operator.get("/tokens?" + urlencode({"limit": 7, "after": page["next_after"]})).json()
    assert found + page["tokens"] == complete["tokens"]
    refused(operator.get("/tokens?limit=x"), 400, "invalid_input")
