"""GET /ui/sessions: runs and what they hold, to their own access token, and to operators with at least its rights."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import refused, unique
from tests.support.pending import waiting
from tests.support.server import ServerProcess
from tests.support.visitor import Visitor, page_of


def signed_in(server: ServerProcess, token: str) -> Visitor:
    visitor = Visitor(server)
    visitor.sign_in(token)
    return visitor


@pytest.fixture(scope="module")
def run(alice: Api) -> dict[str, Any]:
    """A session of alice that holds two names."""
    session = alice.new_session(name="run-17", metadata="pr=9", ttl_seconds=600)
    for number in range(2):
        alice.acquired(f"held-by-run/{number}", session_id=session["session_id"], ephemeral=True, owner="ana")
    return session


def test_ones_own_sessions_are_listed(server: ServerProcess, run: dict[str, Any]) -> None:
    """A reader sees the sessions of its own access token, with how much they hold."""
    page = page_of(signed_in(server, callers.ALICE).get("/ui/sessions"))
    assert "run-17" in page.words and "2" in page.words
    assert any(said.get("href") == f"/ui/sessions/{run['session_id']}" for _, said in page.tags)


def test_a_session_shows_what_it_has(server: ServerProcess, alice: Api, bob: Api, run: dict[str, Any]) -> None:
    """Its names, its metadata as fields and what it waits for are there; its secret is not."""
    wanted = unique()
    bob.acquired(wanted, owner="ben")
    session_id = run["session_id"]
    with waiting(alice, wanted, session_id=session_id, ephemeral=True, owner="ana"):
        answer = signed_in(server, callers.ALICE).get(f"/ui/sessions/{session_id}")
    text = page_of(answer).text.replace(" ", "")
    for word in ("held-by-run/0", "held-by-run/1", wanted, "pr", "9"):
        assert word in text, word
    assert run["session_secret"] not in answer.text


def test_an_operator_sees_those_of_others(server: ServerProcess, operator: Api, run: dict[str, Any]) -> None:
    """An operator whose rights are at least those of an access token sees its sessions, on the page and by the API."""
    boss = signed_in(server, callers.OPERATOR)
    page = page_of(boss.get("/ui/sessions"))
    assert "alice" in page.words
    assert "run-17" in page_of(boss.get("/ui/sessions?token=alice")).words
    assert "run-17" in page_of(boss.get(f"/ui/sessions/{run['session_id']}")).words
    listed = operator.get("/sessions?token=alice").json()
    assert run["session_id"] in [each["session_id"] for each in listed["sessions"]]
    assert operator.session(run["session_id"]).json()["name"] == "run-17"


def test_sessions_are_hidden_from_other_tokens(
    server: ServerProcess, bob: Api, operator: Api, run: dict[str, Any]
) -> None:
    """Another access token without `admin`, and an operator that is confined, see nothing of them."""
    visitor = signed_in(server, callers.BOB)
    assert "run-17" not in visitor.get("/ui/sessions?token=alice").text
    of_another = visitor.get(f"/ui/sessions/{run['session_id']}")
    assert of_another.status == 404 and "shown to operators" in of_another.text
    refused(bob.get("/sessions?token=alice"), 403, "forbidden")
    refused(bob.session(run["session_id"]), 404, "not_found")
    made = operator.post(
        "/tokens", {"name": unique("tok"), "scopes": ["read", "claim", "admin"], "prefix": "held"}
    ).json()
    confined = signed_in(server, made["token"])
    assert "run-17" not in confined.get("/ui/sessions?token=alice").text
    assert confined.get(f"/ui/sessions/{run['session_id']}").status == 404


def test_an_operator_neither_keeps_nor_ends_them(operator: Api, run: dict[str, Any]) -> None:
    """S3: to see a session is not to have it."""
    session_id = run["session_id"]
    refused(operator.keepalive(session_id), 404, "not_found")
    refused(operator.end_session(session_id), 404, "not_found")
    refused(operator.post(f"/sessions/{session_id}/secret"), 404, "not_found")


def test_names_outside_of_the_prefix_are_hidden(server: ServerProcess, operator: Api) -> None:
    """A confined access token whose session holds names that it may not see is told how many, and not which."""
    name = unique("tok")
    first = operator.post("/tokens", {"name": name}).json()
    unconfined = Api.of(server, first["token"])
    session_id = unconfined.new_session(ttl_seconds=600)["session_id"]
    inside, outside = f"web/{unique()}", f"db/{unique()}"
    for each in (inside, outside):
        unconfined.acquired(each, session_id=session_id, ephemeral=True)
    assert operator.delete(f"/tokens/{name}?keep_sessions=true").status == 204
    second = operator.post("/tokens", {"name": name, "prefix": "web/"}).json()
    answer = signed_in(server, second["token"]).get(f"/ui/sessions/{session_id}")
    assert inside in page_of(answer).text.replace(" ", "") and outside not in answer.text
    assert "(hidden)" in answer.text


def test_ended_session_page_shows_its_end(server: ServerProcess, alice: Api) -> None:
    """A session that was ended is shown as such for a while; one that never was is unknown."""
    session_id = alice.new_session()["session_id"]
    alice.end_session(session_id)
    visitor = signed_in(server, callers.ALICE)
    assert "it was ended" in page_of(visitor.get(f"/ui/sessions/{session_id}")).text
    assert visitor.get("/ui/sessions/00000000-0000-4000-8000-000000000000").status == 404


def test_a_list_is_paged(server: ServerProcess, carol: Api) -> None:
    """More sessions than fit on a page are shown on several, the newest first, each once."""
    ids = [carol.new_session(ttl_seconds=600)["session_id"] for _ in range(130)]
    visitor = signed_in(server, callers.CAROL)
    seen: list[str] = []
    for start in (0, 100):
        page = page_of(visitor.get(f"/ui/sessions?from={start}"))
        hrefs = [str(said.get("href")) for tag, said in page.tags if tag == "a"]
        seen += [href.removeprefix("/ui/sessions/") for href in hrefs if href.startswith("/ui/sessions/")]
    assert seen == ids[::-1]
    assert visitor.get("/ui/sessions?from=999999999999").status == 200
