"""Forms on a job's page: they end, reopen and hand over, with a reason, for whoever the API would let do it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.http import Answer
from tests.support.pending import waiting
from tests.support.server import ServerProcess
from tests.support.visitor import Visitor, page_of


def signed_in(server: ServerProcess, token: str) -> Visitor:
    visitor = Visitor(server)
    visitor.sign_in(token)
    return visitor


@pytest.fixture(scope="module")
def boss(server: ServerProcess) -> Visitor:
    """An operator at the page."""
    return signed_in(server, callers.OPERATOR)


@pytest.fixture(scope="module")
def holder(server: ServerProcess) -> Visitor:
    """Alice at the page."""
    return signed_in(server, callers.ALICE)


def path_of(name: str) -> str:
    return f"/ui/jobs/{quote(name, safe='')}"


def form_of(visitor: Visitor, name: str) -> dict[str, str]:
    """The hidden fields of the form that the page shows."""
    return dict(page_of(visitor.get(path_of(name))).fields)


def act(visitor: Visitor, name: str, verb: str, **fields: str) -> Answer:
    """Open the page and send its form."""
    return visitor.send(f"{path_of(name)}/{verb}", {**form_of(visitor, name), **fields})


def events(api: Api, name: str) -> list[tuple[str, str | None, str | None]]:
    entries: list[dict[str, Any]] = api.history(name).json()["history"]
    return [(each["event"], each["by"], each["reason"]) for each in entries]


def test_a_form_ends_a_lease(alice: Api, boss: Visitor, name: str) -> None:
    """A revocation from the page ends the lease, its holder is told the reason, and the page says what was done."""
    lease = alice.acquired(name, owner="ana")
    answer = act(boss, name, "revoke", reason="stuck since 02:14")
    assert answer.status == 303 and answer.headers["Location"] == f"{path_of(name)}?did=revoked"
    refused = alice.renew(name, lease["lease_id"]).json()
    assert (refused["code"], refused["reason"], refused["by"]) == ("revoked", "stuck since 02:14", "operator")
    page = page_of(boss.get(answer.headers["Location"]))
    assert "The lease was ended." in page.text and "stuck since 02:14" in page.text


def test_the_next_in_line_has_it(alice: Api, bob: Api, boss: Visitor, name: str) -> None:
    """What the page said beforehand comes true: the first in line has the job at once."""
    alice.acquired(name, owner="ana")
    with waiting(bob, name, owner="ben") as request:
        assert "ben , the first in the queue, has it at once" in page_of(boss.get(path_of(name))).text
        assert act(boss, name, "revoke", reason="stuck").status == 303
        assert request.json()["status"] == "acquired"


def test_a_form_reopens_finished_work(alice: Api, boss: Visitor, name: str) -> None:
    """Finished work that is reopened can be claimed, and the reason is in the history."""
    lease = alice.acquired(name, owner="ana")
    alice.release(name, lease["lease_id"], outcome="done", remember_seconds=600)
    assert act(boss, name, "reopen", reason="wrong branch").status == 303
    assert events(alice, name)[0] == ("reopened", "operator", "wrong branch")
    alice.acquired(name)


def test_a_form_hands_over(alice: Api, boss: Visitor, name: str) -> None:
    """L8a: an operator hands over a claim of a session; the old owner learns why, the new one resumes."""
    session = alice.new_session()["session_id"]
    lease = alice.acquired(name, owner="ana", ttl_seconds=600, session_id=session, ephemeral=True)
    answer = act(boss, name, "transfer", reason="end of shift", to_owner="ben")
    assert answer.status == 303, answer
    page = page_of(boss.get(answer.headers["Location"]))
    assert f"holdfast claim '{name}' --owner 'ben' --resume" in page.text
    refused = alice.renew(name, lease["lease_id"]).json()
    assert (refused["ended"], refused["reason"]) == ("transferred", "end of shift")
    assert events(alice, name)[0] == ("transferred", "operator", "end of shift")
    again = alice.acquired(name, owner="ben", resume=True)
    assert again["reacquired"] and again["fencing_token"] > lease["fencing_token"]


def test_a_form_that_is_sent_twice_has_one_effect(alice: Api, boss: Visitor, name: str) -> None:
    """The key in a form makes the second one a retry: it ends no other lease."""
    alice.acquired(name, owner="ana")
    fields = {**form_of(boss, name), "reason": "stuck"}
    assert boss.send(f"{path_of(name)}/revoke", fields).status == 303
    alice.acquired(name, owner="ben")
    assert boss.send(f"{path_of(name)}/revoke", fields).status == 303
    assert alice.status(name).json()["owner"] == "ben"


def test_a_form_that_is_sent_again_with_other_words_says_so(alice: Api, boss: Visitor, name: str) -> None:
    """It is shown again in the words of a page, with a key of its own: from there it can be sent."""
    alice.acquired(name, owner="ana")
    fields = form_of(boss, name)
    assert boss.send(f"{path_of(name)}/revoke", {**fields, "reason": "stuck"}).status == 303
    alice.acquired(name, owner="ben")
    answer = boss.send(f"{path_of(name)}/revoke", {**fields, "reason": "another"})
    assert answer.status == 409 and "this form was sent before, with other words" in page_of(answer).text
    assert "Idempotency-Key" not in answer.text and alice.status(name).json()["owner"] == "ben"
    again = {**fields, **dict(page_of(answer).fields), "reason": "another"}
    assert boss.send(f"{path_of(name)}/revoke", again).status == 303
    assert alice.status(name).json()["status"] == "free"


def test_stale_form_does_not_end_another_lease(alice: Api, boss: Visitor, name: str) -> None:
    """A form that was made for another lease does nothing, says so, and keeps what was written."""
    alice.acquired(name, owner="ana")
    fields = form_of(boss, name)
    alice.release(name, alice.acquired(name, owner="ana", resume=True)["lease_id"])
    alice.acquired(name, owner="ben")
    answer = boss.send(f"{path_of(name)}/revoke", {**fields, "reason": "it was <ana>"})
    page = page_of(answer)
    assert answer.status == 409 and "this job has changed since you looked" in page.text
    assert "it was <ana>" in page.words
    assert alice.status(name).json()["owner"] == "ben"
    assert act(boss, name, "revoke", reason="ben too").status == 303


@pytest.mark.parametrize(
    ("verb", "fields", "said"),
    [
        ("revoke", {"reason": ""}, "say why"),
        ("revoke", {"reason": "   "}, "say why"),
        ("revoke", {"reason": "x" * 1_025}, "1 to 1024"),
        ("transfer", {"reason": "x", "to_owner": ""}, "name the new owner"),
        ("transfer", {"reason": "x", "to_owner": "o" * 129}, "name the new owner"),
    ],
)
def test_a_form_without_its_words_is_shown_again(
    operator: Api, boss: Visitor, name: str, verb: str, fields: dict[str, str], said: str
) -> None:
    """Without a reason, or without the new owner, nothing is done and the page says what is missing."""
    operator.acquired(name, owner="ana")
    answer = act(boss, name, verb, **fields)
    assert answer.status == 422 and said in page_of(answer).text
    assert operator.status(name).json()["owner"] == "ana"


def test_the_longest_reason_fits(alice: Api, boss: Visitor, name: str) -> None:
    """1,024 characters of which each takes twelve bytes in a form are taken, and arrive as they were written."""
    alice.acquired(name)
    reason = "\N{GRINNING FACE}" * 1_024
    assert act(boss, name, "revoke", reason=reason).status == 303
    assert events(alice, name)[0][2] == reason


def test_rights_are_those_of_the_api(server: ServerProcess, alice: Api, holder: Visitor, name: str) -> None:
    """Who may not do it is offered no form, and a form that it makes up is refused: nothing happens."""
    alice.acquired(name, owner="ana")
    reader = signed_in(server, callers.READER)
    bob = signed_in(server, callers.BOB)
    assert "needs an access token with the scope admin" in page_of(reader.get(path_of(name))).text
    token, key = reader.form_token(), "7b8a3c52-6f0b-4a46-9d5e-0f8a7a2c1b3d"
    lease_token = str(alice.status(name).json()["fencing_token"])
    made_up = {"key": key, "token": lease_token, "reason": "x", "to_owner": "y"}
    for visitor, verb in (
        (reader, "revoke"),
        (reader, "transfer"),
        (holder, "revoke"),
        (holder, "transfer"),
        (holder, "reopen"),
        (bob, "transfer"),
    ):
        fields = {**made_up, "form_token": token if visitor is reader else visitor.form_token()}
        assert visitor.send(f"{path_of(name)}/{verb}", fields).status == 403, verb
    assert alice.status(name).json()["owner"] == "ana"


def test_a_bearer_token_has_the_rights_of_the_api(alice: Api, bob: Api, operator: Api, name: str) -> None:
    """L8, I11: a token that a program shows ends, reopens and hands over nothing without `admin`, nor does a secret."""
    alice.acquired(name, owner="ana")
    run = Api(alice.host, alice.port, operator.new_session()["session_secret"])
    lease_token = str(alice.status(name).json()["fencing_token"])
    key = "7b8a3c52-6f0b-4a46-9d5e-0f8a7a2c1b3d"
    body = urlencode({"key": key, "token": lease_token, "reason": "x", "to_owner": "eve"}).encode()
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for caller in (alice, bob, run):
        for verb in ("revoke", "reopen", "transfer"):
            assert caller.request("POST", f"{path_of(name)}/{verb}", body, headers=form).status == 403, verb
    assert alice.status(name).json()["owner"] == "ana"


def test_a_confined_operator_ends_only_its_own_names(server: ServerProcess, operator: Api, alice: Api) -> None:
    """A name outside of the prefix is not touched by a form either."""
    prefix, outside = unique("web") + "/", unique("db")
    made = operator.post("/tokens", {"name": unique("tok"), "scopes": ["read", "admin"], "prefix": prefix}).json()
    visitor = signed_in(server, made["token"])
    alice.acquired(outside, owner="ana")
    fields = {"key": "7b8a3c52-6f0b-4a46-9d5e-0f8a7a2c1b3d", "token": "1", "reason": "x"}
    fields["form_token"] = visitor.form_token()
    assert visitor.send(f"{path_of(outside)}/revoke", fields).status == 403
    alice.acquired(f"{prefix}a", owner="ben")
    assert act(visitor, f"{prefix}a", "revoke", reason="mine").status == 303
    assert alice.status(outside).json()["owner"] == "ana"


def test_a_form_needs_its_signed_field(alice: Api, boss: Visitor, name: str) -> None:
    """Without the field that only our pages have, a form of another site does nothing."""
    alice.acquired(name, owner="ana")
    fields = {**form_of(boss, name), "reason": "x"}
    for wrong in ({}, {"form_token": "x" * 32}):
        sent = {key: value for key, value in fields.items() if key != "form_token"} | wrong
        assert boss.send(f"{path_of(name)}/revoke", sent).status == 403
    assert boss.send(f"{path_of(name)}/revoke", fields, {"Origin": "https://evil.test"}).status == 403
    assert alice.status(name).json()["owner"] == "ana"


@pytest.mark.parametrize("key", ["", "x", "' OR 1"])
def test_a_form_with_another_key_is_refused(alice: Api, boss: Visitor, name: str, key: str) -> None:
    """The key is one that the page made, or nothing is done."""
    alice.acquired(name, owner="ana")
    assert act(boss, name, "revoke", reason="x", key=key).status == 422
    assert alice.status(name).json()["owner"] == "ana"
