"""Rights are never wider than their giver's: what a token may give, see and take lies within what it may do itself."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.api.auth.auth import SCOPES, Caller
from tests.support.api import Api
from tests.support.checks import refused, unique
from tests.support.http import Answer


def made(api: Api, **fields: object) -> Api:
    """Make a token, and return a caller that has it."""
    answer = api.post("/tokens", {"name": unique("token"), **fields})
    assert answer.status == 201, answer
    return Api(api.host, api.port, answer.json()["token"])


def confined(operator: Api, prefix: str) -> Api:
    """An operator that is confined to a prefix."""
    return made(operator, scopes=["read", "claim", "admin"], prefix=prefix)


def names_listed(answer: Answer) -> set[str]:
    assert answer.status == 200, answer
    return {row["name"] for row in answer.json()["tokens"]}


def test_maker_gives_no_more_than_it_has(operator: Api, name: str) -> None:
    """A confined operator makes tokens within its scopes and its prefix; anything wider is 403 and says what may be."""
    admin = confined(operator, f"{name}/")
    for wider in ("other/", name, f"{name}-b/"):
        answer = refused(admin.post("/tokens", {"name": unique(), "prefix": wider}), 403, "forbidden")
        assert f"{name}/" in answer["details"]
    within = admin.post("/tokens", {"name": unique(), "prefix": f"{name}/deep/"})
    assert (within.status, within.json()["prefix"]) == (201, f"{name}/deep/")
    reader = made(operator, scopes=["read", "admin"])
    answer = refused(reader.post("/tokens", {"name": unique(), "scopes": ["claim"]}), 403, "forbidden")
    assert "read+admin" in answer["details"]
    refused(reader.post("/tokens", {"name": unique()}), 403, "forbidden")
    assert reader.post("/tokens", {"name": unique(), "scopes": ["read"]}).status == 201


def test_prefix_left_out_is_the_makers_own(operator: Api, name: str) -> None:
    """Without a prefix, what a confined operator makes has the operator's own, and the reply shows it."""
    admin = confined(operator, f"{name}/")
    answer = admin.post("/tokens", {"name": unique()})
    assert answer.json()["prefix"] == f"{name}/"
    worker = Api(operator.host, operator.port, answer.json()["token"])
    worker.acquired(f"{name}/job")
    refused(worker.acquire(f"{name}-other"), 403, "forbidden")


def test_token_outside_of_rights_is_unknown(operator: Api, name: str) -> None:
    """Tokens outside of an operator's rights are not listed, and revoking or rotating one is 404, static ones too."""
    admin, inside, outside, wider = confined(operator, f"{name}/"), f"{name}-in", f"{name}-out", f"{name}-wide"
    for token, prefix in ((inside, f"{name}/x/"), (outside, "elsewhere/"), (wider, None)):
        assert operator.post("/tokens", {"name": token, "prefix": prefix}).status == 201
    listed = names_listed(admin.get("/tokens"))
    assert inside in listed and not listed & {outside, wider, "alice", "operator"}
    for hidden in (outside, wider, "alice", "operator", unique()):
        refused(admin.delete(f"/tokens/{hidden}"), 404, "not_found")
        refused(admin.post(f"/tokens/{hidden}/rotate"), 404, "not_found")
    assert {inside, outside, wider, "alice"} <= names_listed(operator.get("/tokens"))
    refused(operator.post("/tokens/alice/rotate"), 409, "conflict")
    assert admin.post(f"/tokens/{inside}/rotate").status == 200
    assert admin.delete(f"/tokens/{inside}").status == 204


def test_name_with_an_inheritance_is_not_for_the_confined(operator: Api, name: str) -> None:
    """A confined operator cannot take the name of a token that left claims, sessions or places: it would have them."""
    admin, left = confined(operator, f"{name}/"), f"{name}-gone"
    worker = made(operator, name=left)
    worker.acquired(f"outside-{name}")
    assert operator.delete(f"/tokens/{left}").status == 204
    answer = refused(admin.post("/tokens", {"name": left}), 409, "conflict")
    assert "without a prefix" in answer["details"]
    assert operator.post("/tokens", {"name": left}).status == 201


def test_confined_operator_ends_nothing_outside(operator: Api, name: str) -> None:
    """A token within the prefix may have sessions from before that reach beyond it: those are not a confined one's."""
    admin, token = confined(operator, f"{name}/"), f"{name}-narrowed"
    worker = made(operator, name=token)
    session = worker.new_session()
    worker.acquired(f"outside-{name}", session_id=session["session_id"], ephemeral=True)
    assert operator.delete(f"/tokens/{token}?keep_sessions=true").status == 204
    made(operator, name=token, prefix=f"{name}/")
    refused(admin.delete(f"/tokens/{token}"), 409, "conflict")
    refused(admin.post(f"/tokens/{token}/rotate"), 409, "conflict")
    assert operator.status(f"outside-{name}").json()["status"] == "held"


RIGHTS = st.tuples(
    st.frozensets(st.sampled_from(SCOPES), min_size=1), st.none() | st.sampled_from(["a", "a/", "a/b", "b/", "ab"])
)


@given(RIGHTS, RIGHTS, RIGHTS)
def test_giving_is_an_order(
    one: tuple[frozenset[str], str | None],
    other: tuple[frozenset[str], str | None],
    third: tuple[frozenset[str], str | None],
) -> None:
    """Everybody may give what it has itself; and through others nobody gives more than that."""
    callers = [Caller("who", scopes, prefix) for scopes, prefix in (one, other, third)]
    for caller in callers:
        assert caller.may_grant(caller.scopes, caller.prefix)
    if callers[0].may_grant(*other) and callers[1].may_grant(*third):
        assert callers[0].may_grant(*third)
    if callers[0].may_grant(*other):
        assert other[0] <= one[0]
        for name in ("a", "a/x", "a/b/x", "b/x", "abc", "c"):
            reached = other[1] is None or name.startswith(other[1])
            assert not reached or one[1] is None or name.startswith(one[1])


@pytest.fixture(scope="module")
def divided(operator: Api) -> tuple[Api, Api, str]:
    """A confined operator, and a worker outside whose token, claim, session and place it must not see or change."""
    root = unique("divided")
    admin = confined(operator, f"{root}/in/")
    worker = made(operator, name=f"{root}-secret", prefix=f"{root}/out/")
    session = worker.new_session(name=f"{root}-secret-run")
    worker.acquired(f"{root}/out/secret", owner="secret-owner", ttl_seconds=3600, metadata="secret-words")
    worker.acquired(f"{root}/out/bound", session_id=session["session_id"], ephemeral=True, ttl_seconds=3600)
    return admin, worker, root


ROUTES = st.sampled_from(
    [
        ("GET", "/tokens", None),
        ("POST", "/tokens", {"name": "NAME"}),
        ("POST", "/tokens", {"name": "NAME", "prefix": "PLACE"}),
        ("DELETE", "/tokens/NAME", None),
        ("DELETE", "/tokens/NAME?keep_sessions=true", None),
        ("POST", "/tokens/NAME/rotate", {}),
        ("POST", "/tokens/NAME/rotate", {"keep_sessions": True}),
        ("GET", "/locks", None),
        ("GET", "/locks?prefix=PLACE", None),
        ("GET", "/locks/status", None),
        ("GET", "/sessions", None),
        ("GET", "/locks/JOB", None),
        ("GET", "/locks/JOB/why", None),
        ("GET", "/locks/JOB/history", None),
        ("POST", "/locks/JOB/revoke", {"reason": "x"}),
        ("POST", "/locks/JOB/reopen", {}),
        ("POST", "/locks/JOB/acquire", {}),
        ("POST", "/claims", {"any": ["JOB"]}),
        ("POST", "/claims", {"all": ["JOB"]}),
    ]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(route=ROUTES, wanted=st.sampled_from(["secret", "bound"]))
def test_no_route_leads_outside(
    divided: tuple[Api, Api, str], route: tuple[str, str, dict[str, object] | None], wanted: str
) -> None:
    """Whatever a confined operator asks: nothing outside of its prefix is shown, and nothing there changes."""
    admin, worker, root = divided
    words = {"NAME": f"{root}-secret", "PLACE": f"{root}/out/", "JOB": f"{root}/out/{wanted}"}

    def filled(text: str, *, quoted: bool = False) -> str:
        for word, value in words.items():
            text = text.replace(word, value.replace("/", "%2F") if quoted else value)
        return text

    def put(value: object) -> object:
        if isinstance(value, list):
            return [put(each) for each in value]
        return filled(value) if isinstance(value, str) else value

    method, path, fields = route
    before = worker.locks().json()["locks"]
    body = None if fields is None else {field: put(value) for field, value in fields.items()}
    answer = admin.request(method, filled(path, quoted=True), body)
    shown = answer.text.replace(filled("PLACE"), "").replace(filled("JOB"), "").replace(filled("NAME"), "")
    assert "secret" not in shown and f"{root}/out" not in shown, answer
    after = worker.locks().json()["locks"]
    keep = ("name", "fencing_token", "owner", "metadata")
    assert [{k: row[k] for k in keep} for row in after] == [{k: row[k] for k in keep} for row in before]
    assert len(worker.sessions().json()["sessions"]) == 1
