"""GET /ui/tokens: access tokens for operators, without any secret, and a form that revokes one."""

from __future__ import annotations

from typing import Any

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.server import ServerProcess
from tests.support.visitor import Page, Visitor, page_of


def signed_in(server: ServerProcess, token: str) -> Visitor:
    visitor = Visitor(server)
    visitor.sign_in(token)
    return visitor


def made(operator: Api, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - passed on as it is
    answer = operator.post("/tokens", {"name": unique("tok"), **fields})
    assert answer.status == 201, answer
    body: dict[str, Any] = answer.json()
    return body


def form_for(page: Page, name: str) -> str | None:
    wanted = f"/ui/tokens/{name}/revoke"
    return next((wanted for tag, said in page.tags if tag == "form" and said.get("action") == wanted), None)


def test_operators_see_tokens_and_no_secret(server: ServerProcess, operator: Api) -> None:
    """Names, rights and last uses are there; no token is. One of the settings cannot be revoked here."""
    token = made(operator, scopes=["read"], prefix="web/")
    Api.of(server, token["token"]).locks()
    answer = signed_in(server, callers.OPERATOR).get("/ui/tokens")
    page = page_of(answer)
    assert token["name"] in page.words and "web/" in page.words
    assert token["token"] not in answer.text and callers.ALICE not in answer.text
    assert form_for(page, token["name"]) and not form_for(page, "alice")


def test_only_operators_see_them(server: ServerProcess) -> None:
    """Without `admin` the page says which scope it needs."""
    answer = signed_in(server, callers.ALICE).get("/ui/tokens")
    assert answer.status == 403 and "'admin'" in page_of(answer).text


def test_a_confined_operator_sees_those_within_its_rights(server: ServerProcess, operator: Api) -> None:
    """A token with wider rights is unknown to it."""
    inside, outside = made(operator, scopes=["read"], prefix="web/x/"), made(operator, scopes=["read"])
    confined = made(operator, scopes=["read", "admin"], prefix="web/")
    answer = signed_in(server, confined["token"]).get("/ui/tokens")
    assert (
        inside["name"] in answer.text and outside["name"] not in answer.text and "operator" not in page_of(answer).words
    )
    visitor = signed_in(server, confined["token"])
    fields = {**page_of(visitor.get("/ui/tokens")).fields}
    assert visitor.send(f"/ui/tokens/{outside['name']}/revoke", fields).status == 404


def test_a_form_revokes_one(server: ServerProcess, operator: Api) -> None:
    """The token is out at once, its sessions end, and for a day the page says that it was revoked, and by whom."""
    token = made(operator)
    worker = Api.of(server, token["token"])
    session_id = worker.new_session(ttl_seconds=600)["session_id"]
    visitor = signed_in(server, callers.OPERATOR)
    page = page_of(visitor.get("/ui/tokens"))
    assert "It has 1 sessions and 0 tickets in queues, and holds 0 jobs." in page.text
    answer = visitor.send(f"/ui/tokens/{token['name']}/revoke", page.fields)
    assert answer.status == 303, answer
    assert worker.locks().status == 401
    page = page_of(visitor.get(answer.headers["Location"]))
    assert not form_for(page, token["name"])
    assert "The access token was revoked." in page.text and token["name"] in page.words
    assert visitor.get(f"/ui/sessions/{session_id}").status == 200, "for a while it is known how it ended"


def test_revoking_token_can_keep_sessions(server: ServerProcess, operator: Api) -> None:
    """With the box ticked, sessions live on for the next access token of that name."""
    token = made(operator)
    session_id = Api.of(server, token["token"]).new_session(ttl_seconds=600)["session_id"]
    visitor = signed_in(server, callers.OPERATOR)
    fields = {**page_of(visitor.get("/ui/tokens")).fields, "keep_sessions": "true"}
    assert visitor.send(f"/ui/tokens/{token['name']}/revoke", fields).status == 303
    again = operator.post("/tokens", {"name": token["name"]}).json()
    assert Api.of(server, again["token"]).session(session_id).json()["active"]


def test_a_revocation_by_the_api_is_shown_too(server: ServerProcess, operator: Api) -> None:
    """Whoever revoked it and however: the page knows of it."""
    token = made(operator)
    assert operator.delete(f"/tokens/{token['name']}").status == 204
    page = page_of(signed_in(server, callers.OPERATOR).get("/ui/tokens"))
    assert token["name"] in page.words


def test_nodes_are_shown(server: ServerProcess) -> None:
    """A server with a directory of its own is the only node, and leads; its store is described."""
    page = page_of(signed_in(server, callers.READER).get("/ui/nodes"))
    assert "leads" in page.text and "it is the only node" in page.text
    assert "takes claims" in page.text
