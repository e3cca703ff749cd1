"""The rooms of the page through a node that follows: a job's page, its forms, and who leads."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, urlencode

from tests.cluster.linked_nodes import BEN, run, two_nodes
from tests.cluster.test_page import FORM, ORIGIN, sign_in
from tests.support.visitor import page_of

NAME = "github://acme/app/issues/42?x=%20"
PATH = f"/ui/jobs/{quote(NAME, safe='')}"


def test_form_through_a_follower(tmp_path: Path) -> None:
    """The page of a job with an odd name, and the form on it, work through a follower: the leader ends the lease."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (_, follower):
            ben = await follower.call()
            lock = f"/locks/{quote(NAME, safe='')}"
            lease = (await ben.ask("POST", f"{lock}/acquire", {"ttl_seconds": 60, "owner": "ben-1"}, token=BEN)).json()
            caller = await follower.call()
            _, cookie = await sign_in(caller)
            page = page_of(await caller.ask("GET", PATH, token=None, Cookie=cookie))
            assert "ben-1" in page.words and NAME in page.words
            body = urlencode({**page.fields, "reason": "stuck"}).encode()
            by_form = {"token": None, "Cookie": cookie, "Content_Type": FORM, "Origin": ORIGIN}
            done = await caller.ask("POST", f"{PATH}/revoke", body, **by_form)
            assert (done.status, done.headers["Location"]) == (303, f"{PATH}?did=revoked")
            answer = await ben.ask("POST", f"{lock}/renew", {"lease_id": lease["lease_id"]}, token=BEN)
            assert (answer.json()["code"], answer.json()["reason"]) == ("revoked", "stuck")

    run(test)


def test_views_through_a_follower(tmp_path: Path) -> None:
    """Every room answers through a follower, and a stranger is asked to sign in there too."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (_, follower):
            caller = await follower.call()
            _, cookie = await sign_in(caller)
            for path in ("/ui/waits", "/ui/sessions", "/ui/nodes", "/ui/tokens", "/ui/jobs/nothing"):
                assert (await caller.ask("GET", path, token=None, Cookie=cookie)).status == 200, path
                assert (await caller.ask("GET", path, token=None)).status == 401, path

    run(test)
