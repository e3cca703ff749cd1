"""The page at a moment, and where things ended badly, as a browser without a screen sees them."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from urllib.parse import urlencode

import pytest

from holdfast.api.handlers.history import AsOf
from holdfast.core.values import Lease
from holdfast.dashboard.jobs import read_search
from holdfast.dashboard.moment import PAGE_ROWS, _rows, past_row, read_moment
from holdfast.journal.interface import Held, HeldPage, HeldQuery
from holdfast.testing.clock import ManualClock
from holdfast.wire.problems import Problem
from tests.engine.harness import acquire, run, serving
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import moment_over, refused, unique
from tests.support.memory_journal import MemoryJournal
from tests.support.server import ServerProcess
from tests.support.visitor import Visitor, page_of


@pytest.fixture
def reader(server: ServerProcess) -> Visitor:
    visitor = Visitor(server)
    visitor.sign_in(callers.READER)
    return visitor


def at(**fields: str) -> str:
    return "/?" + urlencode(fields)


def test_page_shows_past_holders(reader: Visitor, alice: Api) -> None:
    """It has the owner of then, says the moment, and nothing can be done on it but look."""
    name = unique("moment")
    lease = alice.acquired(name, owner="before", ttl_seconds=600)
    then = moment_over()
    alice.release(name, lease["lease_id"])
    alice.acquired(name, owner="after")
    answer = reader.get(at(at=then, q=f"prefix:{name}"))
    assert answer.status == 200
    assert "before" in answer.text and "after" not in page_of(answer).words and then in answer.text
    forms = [said for tag, said in page_of(answer).tags if tag == "form" and said.get("method") == "post"]
    assert [form["action"] for form in forms] == ["/ui/sign-out"]


def test_pages_of_a_moment_lead_on_at_the_same_record(reader: Visitor, alice: Api) -> None:
    """A long list of a moment has links from page to page, and each is of the record of the first."""
    prefix = unique("long") + "/"
    names = [f"{prefix}{number:03d}" for number in range(150)]
    for start in range(0, 150, 50):
        alice.claims(all=names[start : start + 50], owner="many", ttl_seconds=600)
    then = moment_over()
    first = reader.get(at(at=then, q=f"prefix:{prefix}"))
    (onward,) = [said["href"] for tag, said in page_of(first).tags if tag == "a" and said.get("rel") == "next"]
    alice.acquired(f"{prefix}100-late", owner="late")
    second = reader.get(onward)
    shown = [name for name in names if f'title="{name}"' in first.text + second.text]
    assert shown == names and "100-late" not in second.text
    assert "record=" in onward and 'rel="next"' not in second.text


def test_a_moment_is_searched(reader: Visitor, alice: Api) -> None:
    """The search of the list works on a moment: by prefix, owner, label and words; nothing found is said."""
    prefix = unique("searched") + "/"
    alice.acquired(f"{prefix}a", owner="Agent-One", labels={"team": "web"})
    alice.acquired(f"{prefix}b", owner="agent-two")
    then = moment_over()
    for search, expected in (
        (f"prefix:{prefix}", "ab"),
        (f"prefix:{prefix} owner:agent-o", "a"),
        (f"prefix:{prefix} label:team:web", "a"),
        (f"prefix:{prefix} label:team", "a"),
        (f"prefix:{prefix} TWO", "b"),
        (f"prefix:{prefix} nowhere", ""),
    ):
        text = reader.get(at(at=then, q=search)).text
        assert [letter for letter in "ab" if f'title="{prefix}{letter}"' in text] == list(expected), search
        assert ("No job like this was held then." in text) is (expected == "")


@pytest.mark.parametrize(("moment", "status"), [("2999-01-01T00:00:00Z", 400), ("nonsense", 400)])
def test_page_explains_unavailable_past(reader: Visitor, moment: str, status: int) -> None:
    """The page says what is wrong, when the history begins, and leads there and back to now."""
    answer = reader.get(at(at=moment))
    links = [said.get("href", "") for tag, said in page_of(answer).tags if tag == "a"]
    assert answer.status == status and "The kept history begins at" in answer.text
    assert any(link.startswith("/?at=") for link in links) and "/" in links


def test_all_ways_to_write_a_moment_are_named(reader: Visitor) -> None:
    """What is no moment is refused with each form that the field takes."""
    answer = reader.get(at(at="25:99"))
    assert answer.status == 400
    for form in ("2026-01-31T02:14:00Z", "02:14", "2h ago"):
        assert form in page_of(answer).text
        assert reader.get(at(at=form)).status in {200, 410}, form


def test_past_page_escapes_user_input(reader: Visitor, alice: Api) -> None:
    """Names, owners and labels are escaped, and so is the search."""
    name, owner = unique("text"), "<script>alert(1)</script>"
    alice.acquired(name, owner=owner, labels={"k": '"><img src=x onerror=alert(1)>'})
    answer = reader.get(at(at=moment_over(), q=f'prefix:{name} "<i>"'))
    answer_of_all = reader.get(at(at=moment_over(), q=f"prefix:{name}"))
    assert escape(owner) in answer_of_all.text
    for text in (answer.text, answer_of_all.text):
        assert owner not in text and "<img src" not in text and "<i>" not in text


def test_past_state_requires_read_scope_and_prefix(server: ServerProcess, alice: Api, operator: Api) -> None:
    """Without a token it is the sign-in page; a confined one sees its own part."""
    prefix = unique("confined") + "/"
    alice.acquired(f"{prefix}own/a", owner="own-owner")
    alice.acquired(f"{prefix}other", owner="other-owner")
    then = moment_over()
    assert "own-owner" not in Visitor(server).get(at(at=then)).text
    made = operator.post("/tokens", {"name": unique("conf"), "scopes": ["read"], "prefix": f"{prefix}own/"}).json()
    confined = Visitor(server)
    confined.sign_in(made["token"])
    text = confined.get(at(at=then)).text
    assert "own-owner" in text and "other-owner" not in text
    assert "other-owner" not in confined.get(at(at=then, q=f"prefix:{prefix}other")).text


def test_markers_are_bad_ends(reader: Visitor, server: ServerProcess, alice: Api, operator: Api) -> None:
    """Revoked and failed ends are marked, newest first, within the caller's prefix; plain releases are not."""
    prefix = unique("marks") + "/"
    alice.release(f"{prefix}well", alice.acquired(f"{prefix}well")["lease_id"])
    alice.release(f"{prefix}failed", alice.acquired(f"{prefix}failed", owner="ana")["lease_id"], outcome="failed")
    alice.acquired(f"{prefix}revoked", owner="ben")
    operator.revoke(f"{prefix}revoked", reason="stuck")
    body = reader.ask("GET", "/ui/marks").json()
    ours = [mark for mark in body["marks"] if mark["name"].startswith(prefix)]
    assert [(mark["event"], mark["name"], mark["owner"]) for mark in ours] == [
        ("revoked", f"{prefix}revoked", "ben"),
        ("failed", f"{prefix}failed", "ana"),
    ]
    assert body["begins_at"] is not None and body["begins_at"] <= body["now"]
    before = reader.ask("GET", f"/ui/marks?before={ours[0]['seq']}").json()["marks"]
    assert all(mark["seq"] < ours[0]["seq"] for mark in before)
    refused(reader.ask("GET", "/ui/marks?before=x"), 400, "invalid_input")
    refused(Visitor(server).ask("GET", "/ui/marks"), 401, "authentication_required")
    made = operator.post("/tokens", {"name": unique("conf"), "scopes": ["read"], "prefix": f"{prefix}f"}).json()
    confined = Api.of(server, made["token"]).get("/ui/marks").json()["marks"]
    assert [mark["name"] for mark in confined] == [f"{prefix}failed"]


def test_a_time_of_day_in_an_address_is_the_last_one_past_in_utc() -> None:
    """Without script nobody knows the reader's zone."""
    now_ms = int(datetime(2026, 11, 17, 12, 0, tzinfo=UTC).timestamp() * 1000)
    for text, expected in (
        ("02:14", "2026-11-17T02:14:00+00:00"),
        ("2h30m ago", "2026-11-17T09:30:00+00:00"),
        ("9999999999w ago", "1970-01-01T00:00:00+00:00"),
        ("12:00", "2026-11-17T12:00:00+00:00"),
        ("12:00:01", "2026-11-16T12:00:01+00:00"),
        ("2026-11-01T00:00:00+02:00", "2026-10-31T22:00:00+00:00"),
    ):
        assert read_moment({"at": text}, now_ms).at_ms == datetime.fromisoformat(expected).timestamp() * 1000


def test_past_row_has_only_fields_of_history() -> None:
    """No note and no metadata, whatever the lease carried."""
    lease = Lease("id", 7, "ci", None, None, False, 60_000, 1, 0, "hidden", "hidden", 5_000, 5_000)
    row = past_row(Held("job", lease, 3))
    assert (row.owner, row.unnamed, row.note, row.fields) == ("(access token ci)", True, "", ())


class Dropping(MemoryJournal):
    """A journal whose history is dropped while somebody looks back."""

    is_dropped = False

    @property
    def history_begins_after(self) -> int:
        return 1_000_000 if self.is_dropped else super().history_begins_after

    async def held(self, query: HeldQuery) -> HeldPage:
        found = await super().held(query)
        self.is_dropped = True
        return found


def test_a_full_page_of_a_history_that_was_dropped_meanwhile_is_refused() -> None:
    """What was read while it was dropped may lack names: that is said, and never shown as if nobody held them."""

    async def scene(clock: ManualClock) -> None:
        async with serving(Dropping(), clock) as engine:
            for number in range(PAGE_ROWS + 50):
                await engine.ask(acquire(f"job-{number:03}"))
            then = AsOf(engine.state.seq, clock.wall_ms())
            with pytest.raises(Problem, match="at that moment is not known"):
                await _rows(engine, then, "", read_search("job"), None)
            with pytest.raises(Problem, match="at that moment is not known"):
                await _rows(engine, then, "", read_search(""), None)

    run(scene)
