"""Names over the wire: none that cannot be read is claimed anew (N3), and a confined token touches none that could lead
a reader of paths out of its prefix (N4).
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from holdfast.api.auth.secrets import AuthorityKey, digest
from holdfast.core.events import Event, Granted, Joined, Record, SessionOpened
from holdfast.core.values import Instant, Lease, Session, Terms, Ticket, lease_from
from holdfast.journal.sqlite.journal import SqliteJournal
from tests.journal.runner import run
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import refused, unique
from tests.support.gateway import Run, answered
from tests.support.http import Answer
from tests.support.server import ServerProcess

FILLER = "\u3164"
LEASE = "6a2c1f00-0000-4000-8000-00000000000"
TICKET = "6a2c1f00-0000-4000-8000-0000000000aa"
HOUR_MS = 3_600_000
WALL_MS = 1_800_000_000_000


# Names that cannot be read.


def test_blank_looking_name_is_refused(alice: Api, name: str) -> None:
    """N3: acquire, with or without a wait, any, all and the gateway refuse it with 400 and name the character."""
    blank, free = f"{name}/{FILLER}", f"{name}/free"
    for answer in (
        alice.acquire(blank),
        alice.acquire(blank, wait_seconds=1),
        alice.acquire(blank, redo=True),
        alice.claims(any=[blank, free]),
        alice.claims(all=[free, blank]),
        alice.claims(all=[free, blank], wait_seconds=1),
    ):
        assert "U+3164" in refused(answer, 400, "invalid_lock_name")["details"]
    answer = Run(alice).rlock(f"test://{name}/\u2800")
    assert (answer.status, answer.json()["ok"]) == (400, False) and "U+2800" in answer.json()["error"]
    assert [alice.status(each).json()["status"] for each in (blank, free)] == ["free", "free"]


def _write_journal(data: Path, *events: Event) -> None:
    """A data directory as a server of before the rule left it."""

    async def scene(journal: SqliteJournal) -> None:
        await journal.append([Record(seq, seq, WALL_MS, event) for seq, event in enumerate(events, 1)])

    data.mkdir(0o700)
    run(scene, data)


def _lease(number: int, **terms: object) -> Lease:
    given = Terms(**{"principal": "alice", "ttl_ms": HOUR_MS, "owner": "ana", **terms})  # type: ignore[arg-type]
    return lease_from(given, f"{LEASE}{number}", number, Instant(number, WALL_MS))


def test_lease_of_such_a_name_can_be_used(tmp_path: Path) -> None:
    """N3: leases and places of an older release are looked at, listed, renewed, taken back, handed on, released, given
    up and revoked by name; then the name is closed for good.
    """
    names = [f"old/{number}{FILLER}" for number in range(4)]
    ticket = Ticket(TICKET, (names[3],), (f"{LEASE}9",), Terms(principal="bob", ttl_ms=HOUR_MS, owner="ben"))
    _write_journal(
        tmp_path / "data",
        *(Granted(name, _lease(number)) for number, name in enumerate(names, 1)),
        Joined(ticket),
    )
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        alice, bob, operator = (Api.of(server, each) for each in (callers.ALICE, callers.BOB, callers.OPERATOR))
        assert [lock["name"] for lock in alice.locks(prefix="old/").json()["locks"]] == names
        assert all(alice.status(name).json()["status"] == "held" for name in names)
        assert alice.renew(names[0], f"{LEASE}1").status == 200
        assert alice.acquired(names[0], owner="ana", resume=True)["lease_id"] == f"{LEASE}1"
        assert alice.release(names[0], f"{LEASE}1", outcome="done", remember_seconds=60).status == 200
        assert operator.reopen(names[0]).status == 204
        moved = alice.transfer(names[1], f"{LEASE}2", to_owner="eve").json()
        assert alice.release(names[1], moved["lease_id"]).status == 200
        assert operator.revoke(names[2], reason="it cannot be read").status == 204
        assert bob.why(names[3]).json()["waiting"][0]["owner"] == "ben"
        assert bob.leave(TICKET).status == 204
        assert alice.release(names[3], f"{LEASE}4").status == 200
        assert {each["name"] for each in alice.history(names[3]).json()["history"]} == {names[3]}
        for name in names:
            refused(bob.acquire(name), 400, "invalid_lock_name")


def test_a_run_keeps_and_gives_back_such_a_key(tmp_path: Path) -> None:
    """N3: the gateway's heartbeat, release, and acquire of what the run has already go on under such a key."""
    session_id, key = f"{LEASE}5", f"test://old/{FILLER}"
    session = Session(session_id, "alice", "run-1", None, HOUR_MS, HOUR_MS, WALL_MS, salt="pepper")
    _write_journal(
        tmp_path / "data",
        SessionOpened(session),
        Granted(key, _lease(1, owner="run-1", session=session_id, bound=True)),
    )
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        api = Api.of(server, callers.ALICE)
        # The one who opened it is gone, so the secret is made as the server makes it.
        secret = AuthorityKey.load(server.data).session_secret(session, digest(callers.ALICE))
        asked = {"secret": secret, "resourceKey": key}

        def ask(verb: str) -> Answer:
            return api.post(f"/locks/{verb}", asked, token=None)

        answered(ask("acquire"), 200, {"ok": True, "resourceKey": key})
        assert ask("heartbeat").status == 200
        answered(ask("release"), 200, {"ok": True})
        assert ask("acquire").status == 400


# Names that lead out of a prefix.


def _confined(operator: Api, prefix: str) -> Api:
    made = operator.post("/tokens", {"name": unique("token"), "prefix": prefix}).json()
    return Api(operator.host, operator.port, made["token"])


ASTRAY = [
    "../team-b/x",
    "./x",
    "a/./b",
    "a/..",
    "..",
    ".",
    "%2e%2e/x",
    "%2E./x",
    ".%2e/x",
    "a%2f..%2fx",
    "a%2F%2E%2E",
    "%252e%252e/x",
    "%25252525252e./x",
    "%2525252578",
    "..\\x",
    "a\\..\\x",
    "%5c..%5cx",
    "..;v=1/x",
    "x;..",
    "x?p=../y",
    "x?..",
    "x#../y",
    "x#.",
    "..%00/x",
    "..%20/x",
    "%c0%ae%c0%ae/x",
    "\uff0e\uff0e/x",
    "\u2025/x",
    "a\uff0f..",
    "%EF%BC%8E./x",
]
STRAIGHT = [
    "x",
    ".hidden/x",
    "a..b",
    "...",
    "v1.2/x",
    "x?v=1.2",
    "x#a.b",
    "100%25",
    "%252578",
    "%E3%81%82",
    "a%2Fb",
    "x.",
    "..x",
]


@pytest.mark.parametrize("tail", ASTRAY)
def test_a_confined_token_touches_no_dot_segment(operator: Api, alice: Api, tail: str) -> None:
    """N4: a name in which a reader of paths could find `.` or `..`, however written, is 403 on every route to a token
    with a prefix, and as before to others.
    """
    scheme = unique("team-a")
    name = f"{scheme}:{tail}"
    confined = _confined(operator, f"{scheme}:")
    lease = alice.acquired(name)
    lease_id = lease["lease_id"]
    for answer in (
        confined.acquire(name),
        confined.acquire(name, wait_seconds=1),
        confined.claims(any=[f"{scheme}:x", name]),
        confined.claims(all=[name]),
        confined.status(name),
        confined.check(name, lease["fencing_token"]),
        confined.renew(name, lease_id),
        confined.release(name, lease_id),
        confined.transfer(name, lease_id, to_owner="eve"),
        confined.why(name),
        confined.history(name),
    ):
        assert "'..'" in refused(answer, 403, "forbidden")["details"]
    # Only now: a watch that is let in has no end.
    refused(confined.get(f"/locks/{quote(name, safe='')}/watch"), 403, "forbidden")
    answer = Run(confined).rlock(name)
    assert (answer.status, answer.json()["ok"]) == (403, False) and "'..'" in answer.json()["error"]
    assert alice.release(name, lease_id).status == 200


@pytest.mark.parametrize("tail", STRAIGHT)
def test_a_confined_token_has_all_other_names(operator: Api, tail: str) -> None:
    """N4: dots that are part of a word, and escapes that hide none, stand in the names of a confined token."""
    scheme = unique("team-a")
    confined = _confined(operator, f"{scheme}:")
    assert confined.release(f"{scheme}:{tail}", confined.acquired(f"{scheme}:{tail}")["lease_id"]).status == 200


def test_dot_segments_as_they_stand_in_a_path(operator: Api, alice: Api) -> None:
    """N4: written out in the path of a request, in whichever spelling, they are the same names and the same 403."""
    team = unique("team-a")
    confined = _confined(operator, f"{team}/")
    for spelled in (f"{team}/./x", f"{team}%2F.%2Fx", f"{team}/%2e/x"):
        refused(confined.get(f"/locks/{spelled}"), 403, "forbidden")
        assert alice.get(f"/locks/{spelled}").json()["name"] == f"{team}/./x"
    for spelled in (f"{team}/../x", f"{team}/%2e%2E/x"):
        refused(confined.get(f"/locks/{spelled}"), 400, "invalid_lock_name")
