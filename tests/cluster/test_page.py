"""The page through a node that follows: signing in, the cookie, where requests come from, files, and no leader."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cluster import request_queue
from holdfast.dashboard import site
from tests.cluster.linked_nodes import ANA, BEN, Caller, nodes, run, two_nodes
from tests.support.checks import refused
from tests.support.http import Answer
from tests.support.visitor import page_of

ORIGIN = "http://127.0.0.1"
FORM = "application/x-www-form-urlencoded"


async def sign_in(caller: Caller, **headers: str) -> tuple[Answer, str]:
    """Send the form, and return the answer and the cookie, if there is one."""
    said = {"Content_Type": FORM, "Origin": ORIGIN, **headers}
    answer = await caller.ask("POST", "/ui/sign-in", f"token={ANA}".encode(), token=None, **said)
    return answer, (answer.headers["Set-Cookie"] or "").partition(";")[0]


def test_signing_in_at_a_follower(tmp_path: Path) -> None:
    """A follower passes the form on; the cookie is the authority's, so every node knows its bearer afterwards."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            caller = await follower.call()
            answer, cookie = await sign_in(caller)
            assert answer.status == 303 and cookie.startswith("holdfast=p.")
            for node in (follower, leader):
                page = await (await node.call()).ask("GET", "/", token=None, Cookie=cookie)
                assert page.status == 200 and "ana" in page_of(page).text

    run(test)


def test_page_action_through_a_follower_is_applied(tmp_path: Path) -> None:
    """The leader judges where a request came from by what the follower was told: both halves are needed there too."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (_, follower):
            caller = await follower.call()
            _, cookie = await sign_in(caller)
            ben = await follower.call()
            assert (await ben.ask("POST", "/locks/a/acquire", {"ttl_seconds": 60}, token=BEN)).status == 200
            revoke = ("POST", "/locks/a/revoke", {"reason": "x"})
            refused(await caller.ask(*revoke, token=None, Cookie=cookie), 403, "forbidden")
            refused(await caller.ask(*revoke, token=None, Cookie=cookie, X_Holdfast_Page="1"), 403, "forbidden")
            refused(await caller.ask(*revoke, token=None, Cookie=cookie, Origin=ORIGIN), 403, "forbidden")
            evil = await caller.ask(
                *revoke, token=None, Cookie=cookie, X_Holdfast_Page="1", Sec_Fetch_Site="cross-site"
            )
            refused(evil, 403, "forbidden")
            done = await caller.ask(
                *revoke, token=None, Cookie=cookie, X_Holdfast_Page="1", Sec_Fetch_Site="same-origin"
            )
            assert done.status == 204

    run(test)


def test_proxy_of_the_follower_says_https(tmp_path: Path) -> None:
    """The scheme that a follower found out goes with the request: the leader's own connection to it is another."""

    async def test() -> None:
        async with two_nodes(tmp_path, trusted_proxies="127.0.0.1") as (_, follower):
            caller = await follower.call()
            https = {"X_Forwarded_Proto": "https", "X_Forwarded_For": "203.0.113.7"}
            refusal, none = await sign_in(caller, **https)
            assert (refusal.status, none) == (403, "")
            answer, cookie = await sign_in(caller, **https | {"Origin": "https://127.0.0.1"})
            assert answer.status == 303 and cookie.startswith("__Host-holdfast=s.")

    run(test)


def test_page_without_a_leader_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are any node's own; a page says in words that there is no leader, after its time."""
    monkeypatch.setattr(request_queue, "HELD_MS_MAX", 200)

    async def test() -> None:
        async with nodes(tmp_path, 1) as (follower,):
            caller = await follower.call()
            css = await caller.ask("GET", site.static_path("page.css"), token=None)
            assert css.status == 200 and "immutable" in css.headers["Cache-Control"]
            page = await caller.ask("GET", "/")
            assert page.status == 503 and "no leader" in page_of(page).text

    run(test)


def test_page_waits_for_the_next_leader(tmp_path: Path) -> None:
    """A page that a leader refused because it leads no more is asked for again, as any other look is."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            caller = await follower.call()
            assert (await caller.ask("GET", "/")).status == 200
            await leader.resign()
            caller.send("GET", "/")
            follower.follow(await leader.lead(), leader.url)
            assert (await caller.answer()).status == 200

    run(test)
