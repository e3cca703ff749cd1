"""GET /ui/jobs/{name}: a page for every name, with all that is known of it, as far as its reader may see."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.http import Answer
from tests.support.pending import waiting
from tests.support.server import ServerProcess
from tests.support.visitor import Page, Visitor, page_of


@pytest.fixture(scope="module")
def reader(server: ServerProcess) -> Visitor:
    """Somebody who may only read."""
    visitor = Visitor(server)
    visitor.sign_in(callers.READER)
    return visitor


def path_of(name: str) -> str:
    return f"/ui/jobs/{quote(name, safe='')}"


def shown(answer: Answer) -> Page:
    assert answer.status == 200, answer
    return page_of(answer)


def bars(answer: Answer) -> list[str]:
    """The kinds of the leases in the drawing, from left to right."""
    return re.findall(r'<rect class="lease (\w+)"', answer.text)


def test_a_held_job_shows_its_owner(alice: Api, reader: Visitor, name: str) -> None:
    """Owner, token, note, labels and metadata as fields are there; a link is one, a lease id is not."""
    lease = alice.acquired(
        name,
        owner="agent-3",
        ttl_seconds=600,
        metadata='{"issue": "https://x.test/42", "n": 7}',
        labels={"team": "web"},
    )
    alice.renew(name, lease["lease_id"], note="half way", keep_ttl=True)
    answer = reader.get(path_of(name))
    page = shown(answer)
    for text in (name, "agent-3", str(lease["fencing_token"]), "half way", "issue", "team"):
        assert text in page.text, text
    assert ("a", "https://x.test/42") in [(tag, said.get("href")) for tag, said in page.tags]
    assert lease["lease_id"] not in answer.text
    assert bars(answer) == ["alive"]


def test_unknown_name_has_a_page(reader: Visitor, name: str) -> None:
    """An unknown name says that nobody has claimed it, and how to."""
    page = shown(reader.get(path_of(name)))
    assert "Nobody has claimed this name" in page.text
    assert f"holdfast claim '{name}'" in page.text


def test_free_job_shows_its_last_end(alice: Api, operator: Api, reader: Visitor, name: str) -> None:
    """A name that was revoked says by whom and why, and its timeline has the end that nobody wanted."""
    alice.acquired(name, owner="ana")
    operator.revoke(name, reason="stuck for hours")
    answer = reader.get(path_of(name))
    page = shown(answer)
    assert "Nobody owns it" in page.text and "stuck for hours" in page.text and "operator" in page.text
    assert bars(answer) == ["revoked"]
    assert answer.text.count('class="badly"') == 1


def test_done_job_shows_its_result(alice: Api, reader: Visitor, name: str) -> None:
    """Finished work says by whom, and its result as fields."""
    lease = alice.acquired(name, owner="ana")
    alice.release(name, lease["lease_id"], outcome="done", remember_seconds=600, result="pr=17")
    page = shown(reader.get(path_of(name)))
    assert "Finished by ana" in page.text and "17" in page.words


def test_job_page_shows_queue_and_wait_chain(alice: Api, bob: Api, reader: Visitor, name: str) -> None:
    """Who stands in line is shown with who is away, and the chain names what the holder itself waits for."""
    other = unique()
    alice.acquired(name, owner="ana")
    bob.acquired(other, owner="olga")
    with waiting(bob, name, owner="ben"), waiting(alice, other, owner="ana"):
        assert alice.acquire(name, owner="cem", wait_seconds=0.001).json()["status"] == "waiting"
        page = shown(reader.get(path_of(name)))
        assert "1 there, 1 away" in page.text
        assert page.text.index("ben") < page.text.index("cem")
        assert other in page.text.replace(" ", "") and "olga" in page.text


def test_history_is_paged(alice: Api, reader: Visitor, name: str) -> None:
    """A long history is shown in pages that lead to each other, and the drawing is of the page."""
    for number in range(75):
        alice.release(name, alice.acquired(name, owner=f"o{number}")["lease_id"])
    first = reader.get(path_of(name))
    assert len(bars(first)) == 50
    link = next(said["href"] for tag, said in shown(first).tags if tag == "a" and "before=" in str(said.get("href")))
    second = reader.get(link.partition("#")[0])
    assert len(bars(second)) == 25
    assert "o0" in shown(second).words and "o0" not in shown(first).words
    assert "The newest" in shown(second).text


def test_a_record_that_says_very_much_is_cut(alice: Api, reader: Visitor, name: str) -> None:
    """Finished work that answers hundreds is shown over several pages, each bounded."""
    lease = alice.acquired(name, owner="ana", ttl_seconds=600)
    for number in range(230):
        alice.acquire(name, owner=f"w{number}", wait_seconds=0.001)
    alice.release(name, lease["lease_id"], outcome="done", remember_seconds=60)
    answer = reader.get(path_of(name))
    assert answer.text.count("left the queue") == 200
    link = next(str(said["href"]) for tag, said in shown(answer).tags if "offset=" in str(said.get("href")))
    assert reader.get(link.partition("#")[0]).text.count("left the queue") == 30


ODD_NAMES = (
    "github://acme/app/issues/42?x=%20#1",
    "a/b/c",
    "ä/ß/漢",
    "x:%2e%2e",
    "x:\"'<>&",
    "urn:" + "é" * 126,
    "k:" + "a" * 254,
)


@pytest.mark.parametrize("odd", ODD_NAMES)
def test_odd_names_have_their_page(server: ServerProcess, alice: Api, odd: str) -> None:
    """N1: a name with slashes, signs, other letters or 256 bytes is one segment of the address, and shown whole."""
    lease = alice.acquired(odd, owner="ana")
    boss = Visitor(server)
    boss.sign_in(callers.OPERATOR)
    page = shown(boss.get(path_of(odd)))
    assert odd in page.words
    forms = [str(said.get("action")) for tag, said in page.tags if tag == "form"]
    assert f"{path_of(odd)}/revoke" in forms
    alice.release(odd, lease["lease_id"])


def test_a_name_that_no_path_can_hold(alice: Api, reader: Visitor) -> None:
    """The name `.` is found by the query, since browsers take it for a folder; without a name it leads to the list."""
    lease = alice.acquired(".", owner="ana")
    assert "ana" in shown(reader.get("/ui/jobs?name=.")).words
    alice.release(".", lease["lease_id"])
    assert reader.get("/ui/jobs").status == 303


def test_a_bad_name_is_refused_as_a_page(reader: Visitor) -> None:
    """What is no name says why, as a page."""
    answer = reader.get("/ui/jobs/a%20b")
    assert answer.status == 400
    assert "may not stand in a name" in page_of(answer).text


@pytest.mark.parametrize(
    "query", ["before=x", "before=-1&offset=zz", "line=1e9", "line=99999999999999999999", "did=<b>"]
)
def test_an_address_that_was_played_with_is_harmless(reader: Visitor, name: str, query: str) -> None:
    """What a page does not know in its address is passed over."""
    assert reader.get(f"{path_of(name)}?{query}").status == 200


def test_a_confined_reader_sees_nothing_else(operator: Api, alice: Api, bob: Api, server: ServerProcess) -> None:
    """A name outside of the prefix is refused, and a chain ends before it."""
    prefix = unique("web") + "/"
    made = operator.post("/tokens", {"name": unique("tok"), "scopes": ["read"], "prefix": prefix}).json()
    visitor = Visitor(server)
    visitor.sign_in(made["token"])
    outside, inside = unique("secret"), f"{prefix}a"
    alice.acquired(outside, owner="hidden-owner")
    bob.acquired(inside, owner="ben")
    with waiting(bob, outside, owner="ben"):
        refused = visitor.get(path_of(outside))
        assert refused.status == 403 and "hidden-owner" not in refused.text
        answer = visitor.get(path_of(inside))
        assert "ben" in shown(answer).words
        assert outside not in answer.text and "hidden-owner" not in answer.text


def test_job_page_escapes_user_input(alice: Api, reader: Visitor, name: str) -> None:
    """Markup in owners, notes, metadata and labels is shown and does nothing."""
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    lease = alice.acquired(name, owner=evil[:100], metadata=f"a={evil}", labels={"k": evil[:100]})
    alice.renew(name, lease["lease_id"], note=evil)
    alice.acquire(name, owner="'\"><svg onload=1>", wait_seconds=0.001)
    page = shown(reader.get(path_of(name)))
    tags = [tag for tag, _ in page.tags]
    assert "img" not in tags
    assert all(str(said.get("src", "")).startswith("/ui/static/") for tag, said in page.tags if tag == "script")
    assert not any(key.startswith("on") or key == "style" for _, said in page.tags for key in said)
    assert evil in page.words


def test_unauthenticated_reader_is_asked_to_sign_in(server: ServerProcess, name: str) -> None:
    """Nobody sees a job without a token."""
    answer = Visitor(server).get(path_of(name))
    assert answer.status == 401 and name not in page_of(answer).text
