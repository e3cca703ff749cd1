"""GET /locks/{name}/history: what happened to a name, newest first, bounded and paged; it equals the journal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.journal.sqlite.inspect import dump
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import moment, refused, unique, wait_until
from tests.support.compactor import archived_by_now
from tests.support.pending import waiting
from tests.support.server import ServerProcess

HAPPENED = {"seq", "at", "event", "name", "owner", "fencing_token", "by", "reason"}


def _all(api: Api, name: str, **query: object) -> list[dict[str, Any]]:
    """Every page, one after the other."""
    found: list[dict[str, Any]] = []
    before: dict[str, object] = {}
    while True:
        answer = api.history(name, **query, **before)
        assert answer.status == 200, answer
        body = answer.json()
        assert set(body) - {"next_offset"} == {"history", "next_before"}
        found += body["history"]
        if body["next_before"] is None:
            return found
        before = {"before": body["next_before"]}
        if "next_offset" in body:
            before["offset"] = body["next_offset"]


def test_history_of_unknown_name_is_empty(alice: Api, name: str) -> None:
    """A name without a past has an empty history."""
    assert alice.history(name).json() == {"history": [], "next_before": None}


def test_history_lists_changes_newest_first(alice: Api, bob: Api, operator: Api, name: str) -> None:
    """Grants, lines, ends, revocations with who and why; no renewals, no secrets, nothing of other names."""
    lease = alice.acquired(name, owner="ana", metadata="hidden")
    alice.renew(name, lease["lease_id"])
    request = waiting(bob, name, owner="ben")
    moved = alice.transfer(name, lease["lease_id"], to_owner="cara").json()
    alice.release(name, moved["lease_id"])
    granted = request.json()
    request.close()
    operator.revoke(name, reason="stuck")
    alice.acquired(f"{name}x")
    answer = bob.history(name)
    entries = answer.json()["history"]
    assert [(each["event"], each["owner"], each["by"]) for each in entries] == [
        ("revoked", "ben", "operator"),
        ("granted", "ben", "bob"),
        ("released", "cara", "alice"),
        ("transferred", "cara", "alice"),
        ("waiting", "ben", "bob"),
        ("granted", "ana", "alice"),
    ]
    assert entries[0]["reason"] == "stuck"
    assert all(set(each) - {"shown_as"} == HAPPENED and each["name"] == name for each in entries)
    seqs = [each["seq"] for each in entries]
    assert seqs == sorted(set(seqs), reverse=True)
    for secret in (lease["lease_id"], moved["lease_id"], granted["lease_id"], "hidden"):
        assert secret not in answer.text


def test_history_is_paged(alice: Api, name: str) -> None:
    """`limit` bounds a page, `before` goes on where it ended, and the pages together are the whole."""
    for _ in range(12):
        alice.release(name, alice.acquired(name)["lease_id"])
    complete = alice.history(name, limit=1_000).json()["history"]
    assert len(complete) == 24
    for limit in (1, 5, 24, 25):
        assert _all(alice, name, limit=limit) == complete
    # A last page that is just full cannot know that it is the last.
    page = alice.history(name, limit=24).json()
    assert page["next_before"] == page["history"][-1]["seq"]
    assert alice.history(name, limit=24, before=page["next_before"]).json() == {"history": [], "next_before": None}


def test_history_page_is_bounded_with_large_record(alice: Api, bob: Api, name: str) -> None:
    """A record that answers a whole line is told whole, and ends its page."""
    for _ in range(3):
        lease = alice.acquired(name, redo=True)
        for number in range(8):
            assert bob.acquire(name, owner=f"o-{number}", wait_seconds=0.001).json()["status"] == "waiting"
        alice.release(name, lease["lease_id"], outcome="done", remember_seconds=60)
    complete = _all(alice, name, limit=1_000)
    assert [each["event"] for each in complete] == 3 * (8 * ["left"] + ["done"] + 8 * ["waiting"] + ["granted"])
    assert _all(alice, name, limit=5) == complete
    page = alice.history(name, limit=5).json()["history"]
    assert {each["seq"] for each in page} == {complete[0]["seq"]} and len(page) == 9
    assert len(_all(alice, name, limit=5, owner="o-3")) == 6


def test_history_by_owner_and_time(alice: Api, bob: Api, name: str) -> None:
    """History can be narrowed to an owner and to a time; both compose with pages."""
    for number in range(10):
        owner = ("ana", "ben")[number % 2]
        alice.release(name, alice.acquired(name, owner=owner)["lease_id"])
    by_ana = _all(bob, name, owner="ana", limit=3)
    assert len(by_ana) == 10
    assert {each["owner"] for each in by_ana} == {"ana"}
    assert _all(bob, name, owner="nobody") == []
    complete = _all(bob, name)
    middle = complete[10]["at"]
    since, until = _all(bob, name, since=middle), _all(bob, name, until=middle)
    assert {each["seq"] for each in since} | {each["seq"] for each in until} == {each["seq"] for each in complete}
    assert all(moment(each["at"]) >= moment(middle) for each in since)
    assert all(moment(each["at"]) <= moment(middle) for each in until)
    far = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert _all(bob, name, since=far) == []
    assert len(_all(bob, name, until=far)) == 20
    assert len(_all(bob, name, since="2020-01-01T00:00:00")) == 20
    assert len(_all(bob, name, since="2020-01-01T02:00:00+02:00", until=far, owner="ben")) == 10


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=x",
        "before=0",
        "before=-1",
        "before=x",
        "since=yesterday",
        "until=1",
        "colour=red",
    ],
)
def test_bad_queries(alice: Api, name: str, query: str) -> None:
    """A query value of the wrong kind is 400 `invalid_input`."""
    refused(alice.get(f"/locks/{name}/history?{query}"), 400, "invalid_input")


@pytest.mark.parametrize("since", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-23:59"])
def test_times_at_the_edge(alice: Api, name: str, since: str) -> None:
    """The first and the last time that can be written are times like others."""
    for field in ("since", "until"):
        assert alice.history(name, **{field: since}).status == 200


def test_history_needs_a_token_and_a_name(alice: Api, nobody: Api) -> None:
    """History is for those who may read; a bad name is refused as everywhere."""
    refused(nobody.history("x"), 401, "authentication_required")
    refused(alice.history("a b"), 400, "invalid_lock_name")
    assert alice.history("github://acme/app/issues/42").status == 200


def test_odd_names_have_their_history(alice: Api) -> None:
    """N1: names with signs, slashes and letters beyond ASCII are found in history, tail and table alike."""
    for name in (f"x-{unique()}:\"q'\\{{}}", f"{unique()}/ä/ß/漢", f"github://acme/{unique()}/issues/42?x=%20#1"):
        alice.release(name, alice.acquired(name)["lease_id"])
        assert [each["event"] for each in alice.history(name).json()["history"]] == ["released", "granted"]


def _live(server: ServerProcess, rounds: int) -> None:
    """Some of everything, on few names."""
    alice, bob, operator = (Api.of(server, token) for token in (callers.ALICE, callers.BOB, callers.OPERATOR))
    for number in range(rounds):
        name = f"job-{number % 5}"
        lease = alice.acquired(name, owner=f"o-{number}", ttl_seconds=600)
        bob.acquire(name, owner="ben", wait_seconds=0.001)
        alice.renew(name, lease["lease_id"], note="n")
        match number % 4:
            case 0:
                alice.release(name, lease["lease_id"], outcome="failed")
            case 1:
                moved = alice.transfer(name, lease["lease_id"], to_owner="moved").json()
                alice.release(name, moved["lease_id"])
            case 2:
                operator.revoke(name, reason="stuck")
            case _:
                alice.release(name, lease["lease_id"], outcome="done", remember_seconds=60, result="r")
                operator.reopen(name)
        many = [f"many-{step}" for step in range(3)]
        session = alice.new_session()["session_id"]
        assert len(alice.claims(all=many, session_id=session, ephemeral=True).json()["claims"]) == 3
        alice.end_session(session)


def _from_journal(data: Path) -> dict[str, list[tuple[int, str, str | None]]]:
    """What the journal says of each name, oldest first: number, kind of record, owner."""
    entries: dict[str, list[tuple[int, str, str | None]]] = {}

    def tell(record: dict[str, Any], name: str, what: str, owner: str | None) -> None:
        entries.setdefault(name, []).append((record["seq"], what, owner))

    def leave(record: dict[str, Any], those: list[dict[str, Any]]) -> None:
        for each in those:
            for name in each["names"] or [record["name"]]:
                tell(record, name, "left", each["owner"])

    for record in dump(data):
        match record["event"]:
            case "granted" | "transferred":
                tell(record, record["name"], record["event"], record["lease"]["owner"])
            case "granted_many":
                for grant in record["grants"]:
                    tell(record, grant["name"], "granted", grant["lease"]["owner"])
            case "ended":
                tell(record, record["name"], "done" if record["done"] else record["how"], record["owner"])
                leave(record, record["left"])
            case "session_ended":
                for ended in record["leases"]:
                    tell(record, ended["name"], ended["how"], ended["owner"])
                leave(record, record["left"])
            case "reopened":
                tell(record, record["name"], "reopened", None)
            case "joined":
                for name in record["ticket"]["names"]:
                    tell(record, name, "waiting", record["ticket"]["owner"])
            case "left":
                leave(record, [record])
    return entries


def test_history_equals_journal(tmp_path: Path) -> None:
    """I16, I5: history, paged, across snapshots and after kill −9, says of every name what the journal says."""
    with ServerProcess.start(tmp_path / "data", settings={"snapshot_records": 50}, tokens=callers.TOKENS) as server:
        _live(server, 30)
        server.kill()
        with server.restart() as again:
            _live(again, 30)
            alice = Api.of(again, callers.ALICE)
            names = [*(f"job-{number}" for number in range(5)), *(f"many-{number}" for number in range(3))]
            shown = {
                name: [(each["seq"], each["event"], each["owner"]) for each in reversed(_all(alice, name, limit=7))]
                for name in names
            }
            with alice.events(after=0) as stream:
                streamed: dict[str, list[tuple[int, str, str | None]]] = {}
                wanted = {seq for entries in shown.values() for seq, _, _ in entries}
                seen: set[int] = set()
                while not wanted <= seen:
                    for change in stream.next().json()["changes"]:
                        seen.add(change["seq"])
                        entries = streamed.setdefault(change["name"], [])
                        entries.append((change["seq"], change["event"], change["owner"]))
            again.terminate()
    assert shown == _from_journal(tmp_path / "data")
    assert streamed == shown
    assert sum(len(entries) for entries in shown.values()) > 500


def test_history_page_ends_inside_large_record(tmp_path: Path) -> None:
    """However many one record answers, a page is bounded; pages together have each once, and our client follows."""
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        alice = Api.of(server, callers.ALICE)
        lease = alice.acquired("job", owner="ana", ttl_seconds=600)
        owners = [f"o-{number}" for number in range(350)]
        for owner in owners:
            assert alice.acquire("job", owner=owner, wait_seconds=0.001).json()["status"] == "waiting"
        alice.release("job", lease["lease_id"], outcome="done", remember_seconds=60)
        page = alice.history("job", limit=1).json()
        assert len(page["history"]) == page["next_offset"] == 100
        assert page["next_before"] == page["history"][0]["seq"]
        entries = [(each["event"], each["owner"]) for each in _all(alice, "job", limit=1)]
        assert entries == [
            *(("left", owner) for owner in reversed(owners)),
            ("done", "ana"),
            *(("waiting", owner) for owner in reversed(owners)),
            ("granted", "ana"),
        ]
        assert [each["event"] for each in _all(alice, "job", owner="o-7")] == ["left", "waiting"]
        refused(alice.history("job", offset=5), 400, "invalid_input")
        before = {"before": page["next_before"]}
        assert alice.history("job", limit=1, **before).json()["history"][0]["event"] == "waiting", "a plain number"
        assert alice.history("job", limit=1, **before, offset=999).json()["history"] == []
        with Holdfast(server.url, token=callers.ALICE, environment={}) as client:
            assert [(each.event, each.owner) for each in client.history("job", limit=1_000)] == entries


def test_a_page_costs_a_bounded_search(tmp_path: Path) -> None:
    """Where each record has 1,000 names, a page ends early and says where to go on; each record shows one change."""
    settings = {"snapshot_records": 20}
    names = ["wanted", *(f"job-{number:04}" for number in range(999))]
    with ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server:
        alice = Api.of(server, callers.ALICE)
        for _ in range(15):
            session = alice.new_session()["session_id"]
            assert alice.claims(all=names, session_id=session, ephemeral=True).json()["status"] == "acquired"
            alice.end_session(session)
        page = alice.history("wanted", limit=1_000).json()
        assert page["next_before"] is not None and len(page["history"]) < 30
        complete = _all(alice, "wanted", limit=1_000)
        assert [each["event"] for each in complete] == ["session_ended", "granted"] * 15
        assert {each["name"] for each in complete} == {"wanted"}
        assert _all(alice, "wanted", owner="nobody") == []


def test_large_records_are_bounded_before_they_are_many(tmp_path: Path) -> None:
    """Few records with much in them make a snapshot due by their bytes: the tail and the history stay bounded."""
    settings = {"snapshot_mib": 1, "history_bytes_max": 500_000}
    with ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server:
        alice = Api.of(server, callers.ALICE)
        for _ in range(40):
            session = alice.new_session()["session_id"]
            alice.claims(
                all=[f"k/{number}" for number in range(100)],
                session_id=session,
                ephemeral=True,
                metadata="\N{GRINNING FACE}" * 1024,
            )
            alice.end_session(session)
        # The archivist works beside: three records of each round, and it rests when less than 1 MiB is left.
        wait_until(lambda: archived_by_now(server.data) >= 110, seconds_max=60)
        server.terminate()
    inside = dump(tmp_path / "data")
    assert sum(len(str(record).encode()) for record in inside) < 4 * 2**20, "of 16 MiB"


def test_history_is_bounded(tmp_path: Path) -> None:
    """History beyond its limit is dropped with the next snapshot, oldest first, and pages end where it ends."""
    settings = {"snapshot_records": 20, "history_records_max": 30}
    with ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server:
        alice = Api.of(server, callers.ALICE)

        def some_more() -> bool:
            for _ in range(20):
                alice.release("job", alice.acquired("job")["lease_id"])
            return bool(alice.history("job", limit=1_000).json()["history"][-1]["seq"] > 50)

        wait_until(some_more)
        complete = _all(alice, "job", limit=9)
        seqs = [each["seq"] for each in complete]
        # One of the thirty is the record of the start: it is nobody's, and whoever left the most gives first.
        assert 29 <= len(complete) <= 200
        assert seqs == sorted(set(seqs), reverse=True)
        assert seqs[0] - seqs[-1] == len(seqs) - 1, "a gap inside what is kept"
