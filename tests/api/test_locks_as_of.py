"""GET /locks?at=…: who held what at a moment, exact to the record: in the tail, in the archive, and in PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import __version__
from holdfast.api.auth.auth import Auth, StaticTokens
from holdfast.api.auth.secrets import AuthorityKey
from holdfast.api.router import Routes
from holdfast.api.service import ApiService
from holdfast.config import Settings
from holdfast.core.values import Limits
from holdfast.engine.clock import SystemClock
from holdfast.engine.engine import Engine
from holdfast.http.messages import request_from
from holdfast.server.components import OPERATIONS
from tests.support import callers, postgres
from tests.support.api import Api
from tests.support.checks import moment, moment_over, refused, unique, wait_until
from tests.support.memory_journal import MemoryJournal
from tests.support.program import Program
from tests.support.server import ServerProcess
from tests.support.wallclock import WallClock

LONG = 86_400
SHOWN = {
    "name",
    "status",
    "holder_id",
    "fencing_token",
    "owner",
    "claimed_at",
    "ttl_ms",
    "session",
    "record",
}


def now_text(shift_seconds: float) -> str:
    """A moment beside this one, as an address has it."""
    at = datetime.now(UTC) + timedelta(seconds=shift_seconds)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def owners(body: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """Who held what, by a reply."""
    return {each["name"]: (each["owner"], each["fencing_token"]) for each in body["locks"]}


def pages(api: Api, **query: object) -> list[dict[str, Any]]:
    """Every page, each of the record that the first was made of."""
    found = [api.locks(**query).json()]
    while found[-1]["next_after"] is not None:
        query |= {"record": found[-1]["record"], "after": found[-1]["next_after"]}
        found.append(api.locks(**query).json())
    return found


@contextmanager
def node(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A server on a real PostgreSQL; where it listens."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith(("HOLDFAST_", "XDG_"))}
    settings = {
        "HOLDFAST_STORE": postgres.shared_url(),
        "HOLDFAST_STORE_SCHEMA": postgres.new_schema(),
        "HOLDFAST_TOKENS": callers.TOKENS,
        "HOLDFAST_NODE_NAME": "node-a",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
    }
    command = [sys.executable, "-m", "holdfast", "serve", "--listen", "127.0.0.1:0", "--set", "snapshot_records=20"]
    with Program(command, env={**ours, **settings}, folder=tmp_path) as running:
        port = int(running.said(r"listening on http://127\.0\.0\.1:(\d+)")[0][1])
        wait_until(lambda: Api("127.0.0.1", port, callers.READER).locks().status == 200)
        yield "127.0.0.1", port


@pytest.fixture(scope="module", params=["tail", "archive", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """A server on each store: all in the tail, most in the archive, and a real PostgreSQL."""
    folder = tmp_path_factory.mktemp("looking")
    if request.param == "postgres":
        with node(folder) as where:
            yield where
        return
    settings = {} if request.param == "tail" else {"snapshot_records": 7}
    with ServerProcess.start(folder / "data", settings=settings, tokens=callers.TOKENS) as server:
        yield server.host, server.port
        assert server.is_running(), server.log


@pytest.fixture
def ana(address: tuple[str, int]) -> Api:
    return Api(*address, callers.ALICE)


@pytest.fixture
def ops(address: tuple[str, int]) -> Api:
    return Api(*address, callers.OPERATOR)


class Play:
    """Claims and ends, drawn at random, and who holds what after each."""

    def __init__(self, api: Api, operator: Api, prefix: str) -> None:
        self.api, self.operator, self.prefix = api, operator, prefix
        self.rng = random.Random(14)
        self.held: dict[str, tuple[str, dict[str, Any]]] = {}

    @property
    def owners(self) -> dict[str, tuple[str, int]]:
        return {name: (owner, lease["fencing_token"]) for name, (owner, lease) in self.held.items()}

    def step(self, number: int) -> None:
        """Change something."""
        owner = f"owner-{number}"
        free = sorted({f"{self.prefix}{each}" for each in range(8)} - set(self.held))
        kinds = [self._claim] * (len(free) > 0) * 2 + [self._release, self._transfer, self._revoke] * bool(self.held)
        if len(free) > 2:
            kinds.append(self._claim_all)
        self.rng.choice(kinds)(owner, free)

    def _claim(self, owner: str, free: list[str]) -> None:
        name = self.rng.choice(free)
        self.held[name] = owner, self.api.acquired(name, owner=owner, ttl_seconds=LONG, metadata="hidden")

    def _claim_all(self, owner: str, free: list[str]) -> None:
        names = self.rng.sample(free, 2)
        claimed = self.api.claims(all=names, owner=owner, ttl_seconds=LONG).json()["claims"]
        self.held |= {each["name"]: (owner, each) for each in claimed}

    def _any(self) -> tuple[str, dict[str, Any]]:
        name = self.rng.choice(sorted(self.held))
        return name, self.held.pop(name)[1]

    def _release(self, _owner: str, _free: list[str]) -> None:
        name, lease = self._any()
        assert self.api.release(name, lease["lease_id"]).status == 200

    def _revoke(self, _owner: str, _free: list[str]) -> None:
        name, _ = self._any()
        assert self.operator.revoke(name, reason="drawn").status == 204

    def _transfer(self, owner: str, _free: list[str]) -> None:
        name, lease = self._any()
        self.held[name] = owner, self.api.transfer(name, lease["lease_id"], to_owner=owner).json()


def test_every_moment_is_exact_to_the_record(ana: Api, ops: Api) -> None:
    """After each change, and ever after, the moment and its record show who held what then, and no one else."""
    play = Play(ana, ops, unique("exact") + "/")
    known: list[tuple[str, int, dict[str, tuple[str, int]]]] = []
    for number in range(40):
        play.step(number)
        at = moment_over()
        body = ana.locks(at=at, prefix=play.prefix).json()
        assert owners(body) == play.owners, number
        known.append((at, body["record"], play.owners))
    assert [record for _, record, _ in known] == sorted({record for _, record, _ in known})
    for at, record, expected in known:
        assert owners(ana.locks(record=record, prefix=play.prefix).json()) == expected
        again = ana.locks(at=at, prefix=play.prefix).json()
        assert (owners(again), again["record"]) == (expected, record)


def test_time_of_another_record_is_not_reported(ana: Api) -> None:
    """An address with a record and some other moment tells the record, at its own time: nobody can pass on a lie."""
    name = unique("lie")
    ana.acquired(name, owner="ana", ttl_seconds=LONG)
    record = ana.locks(at=moment_over(), prefix=name).json()["record"]
    own = ana.locks(record=record, prefix=name).json()["at"]
    for at in ("2001-01-01T00:00:00Z", "2099-01-01T00:00:00Z"):
        found = ana.locks(at=at, record=record, prefix=name).json()
        assert (found["at"], found["record"], set(owners(found))) == (own, record, {name})


def test_past_lock_has_only_fields_of_history(ana: Api) -> None:
    """The lease as it was granted, without deadline, heartbeat, note, metadata or any secret."""
    name = unique("told")
    lease = ana.acquired(name, owner="ana", ttl_seconds=600, metadata="hidden", labels={"team": "web"})
    ana.renew(name, lease["lease_id"], ttl_seconds=900, note="hidden too")
    answer = ana.locks(at=moment_over(), prefix=name)
    body = answer.json()
    assert set(body) == {"locks", "at", "record", "prefix", "next_after"}
    (found,) = body["locks"]
    assert set(found) == {*SHOWN, "labels"}
    assert (found["owner"], found["ttl_ms"], found["labels"]) == ("ana", 600_000, {"team": "web"})
    assert moment(found["claimed_at"]) <= moment(body["at"])
    assert not any(secret in answer.text for secret in (lease["lease_id"], "hidden"))
    nameless = unique("told")
    ana.acquired(nameless, metadata="hidden")
    (found,) = ana.locks(at=moment_over(), prefix=nameless).json()["locks"]
    assert (found["owner"], found["shown_as"]) == (None, "(access token alice)")


def test_pages_stay_at_the_same_record(ana: Api) -> None:
    """What comes and goes while somebody turns pages is on none of them."""
    prefix = unique("pages") + "/"
    leases = {f"{prefix}{number:02d}": ana.acquired(f"{prefix}{number:02d}", owner="o") for number in range(12)}
    first = ana.locks(at=moment_over(), prefix=prefix, limit=5).json()
    assert first["next_after"] == f"{prefix}04"
    for name in list(leases)[4:8]:
        ana.release(name, leases[name]["lease_id"])
    ana.acquired(f"{prefix}05x", owner="late")
    query = {"at": first["at"], "prefix": prefix, "limit": 5, "record": first["record"], "after": first["next_after"]}
    second = ana.locks(**query).json()
    third = ana.locks(**{**query, "after": second["next_after"]}).json()
    found = [each["name"] for page in (first, second, third) for each in page["locks"]]
    assert found == list(leases) and third["next_after"] is None
    assert {page["record"] for page in (first, second, third)} == {first["record"]}
    assert {page["at"] for page in (first, second, third)} == {first["at"]}


def test_moments_are_filtered(ana: Api, address: tuple[str, int]) -> None:
    """Owner, session, labels and prefix leave what belonged to them then; a confined token sees its own part."""
    prefix = unique("filtered") + "/"
    session = ana.new_session()["session_id"]
    ana.acquired(f"{prefix}a", owner="one", labels={"team": "web", "pr": "7"})
    ana.acquired(f"{prefix}b", owner="two", labels={"team": "web"})
    ana.acquired(f"{prefix}c", owner="one", session_id=session, ephemeral=True)
    at = moment_over()
    ana.end_session(session)
    for query, expected in (
        ({}, "abc"),
        ({"owner": "one"}, "ac"),
        ({"session": session}, "c"),
        ({"label": "team:web"}, "ab"),
        ({"label": ["team:web", "pr:7"]}, "a"),
        ({"label": "team:web", "owner": "two"}, "b"),
        ({"owner": "nobody"}, ""),
    ):
        found = [each["name"] for page in pages(ana, at=at, prefix=prefix, **query) for each in page["locks"]]
        assert found == [f"{prefix}{letter}" for letter in expected], query
    made = Api(*address, callers.OPERATOR).post(
        "/tokens", {"name": unique("conf"), "scopes": ["read"], "prefix": f"{prefix}b"}
    )
    confined = Api(*address, made.json()["token"])
    body = confined.locks(at=at).json()
    assert ([each["name"] for each in body["locks"]], body["prefix"]) == ([f"{prefix}b"], f"{prefix}b")
    refused(confined.locks(at=at, prefix=prefix), 403, "forbidden")


def test_unavailable_times_are_refused(ana: Api) -> None:
    """The future, what is no time, and a record that is not there yet each have a plain answer."""
    ahead = refused(ana.locks(at=now_text(60)), 400, "invalid_input")
    assert "in the future" in ahead["details"]
    refused(ana.locks(at="02:14"), 400, "invalid_input")
    refused(ana.locks(at="99999-01-01T00:00:00Z"), 400, "invalid_input")
    for record in ("0", "-1", "x", str(2**60)):
        refused(ana.locks(record=record), 400, "invalid_input")
    assert "the last is" in refused(ana.locks(record=10**9), 400, "invalid_input")["details"]
    refused(ana.locks(at=moment_over(), nonsense=1), 400, "invalid_input")
    before_all = refused(ana.locks(at="2001-01-01T00:00:00Z"), 410, "history_not_kept")
    assert before_all["history_begins_at"] in before_all["details"]
    assert ana.locks(at=before_all["history_begins_at"]).json()["record"] > 0


def test_lease_older_than_retained_history_is_shown(tmp_path: Path) -> None:
    """What is dropped is told with when the history begins; who held what since then is known, by old leases too."""
    settings = {"snapshot_records": 1, "history_records_max": 6}
    with ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server:
        api = Api.of(server, callers.ALICE)
        api.acquired("old", owner="ana", ttl_seconds=LONG)
        before = moment_over()

        def is_dropped() -> bool:
            api.release("flood", api.acquired("flood")["lease_id"])
            return api.locks(at=before).status == 410

        wait_until(is_dropped)
        problem = refused(api.locks(at=before), 410, "history_not_kept")
        begins = problem["history_begins_at"]
        assert begins in problem["details"]
        refused(api.locks(record=1), 410, "history_not_kept")
        api.acquired("young", owner="ben")
        body = api.locks(at=moment_over()).json()
        assert [each["name"] for each in body["locks"]] == ["old", "young"]

        def is_shown() -> bool:
            # The archive may have moved on between the two questions: then the beginning is told anew.
            answer = api.locks(at=api.locks(at=before).json()["history_begins_at"])
            return answer.status == 200 and "old" in owners(answer.json())

        wait_until(is_shown)


def test_the_order_of_the_journal_counts_where_the_clock_was_stepped(tmp_path: Path) -> None:
    """A record of an earlier wall time that came later is part of every moment from its time on."""
    clock = WallClock(tmp_path / "shift")
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS, wrapper=clock.wrapper) as server:
        api = Api.of(server, callers.ALICE)
        api.acquired("first", owner="ana", ttl_seconds=LONG)
        clock.set(-3_600)
        api.acquired("second", owner="ben", ttl_seconds=LONG)
        assert "in the future" in refused(api.locks(at=now_text(-1_800)), 400, "invalid_input")["details"]
        clock.set(0)
        for seconds in (-1_800, 0):
            assert set(owners(api.locks(at=now_text(seconds)).json())) == {"first", "second"}
        refused(api.locks(at=now_text(-7_200)), 410, "history_not_kept")
        assert set(owners(api.locks(record=api.history("first").json()["history"][0]["seq"]).json())) == {"first"}


def test_a_journal_in_memory_answers_the_same(tmp_path: Path) -> None:
    """The handler needs nothing of a store but the seam."""

    async def scene() -> list[tuple[int, Any]]:
        engine = Engine(MemoryJournal(), Limits(), clock=SystemClock(), version=__version__)
        await engine.start()
        auth = Auth(StaticTokens([f"ana:{callers.ALICE}"]), AuthorityKey(b"k" * 32))
        routes = Routes(ApiService(engine, auth, Settings(data=tmp_path)), OPERATIONS)

        async def ask(method: bytes, path: bytes, query: bytes = b"", body: bytes = b"") -> tuple[int, Any]:
            headers = {b"authorization": b"Bearer " + callers.ALICE.encode(), b"host": b"127.0.0.1"}
            headers[b"content-type"] = b"application/json"
            answered: asyncio.Future[tuple[int, Any]] = asyncio.get_running_loop().create_future()
            request = request_from(method, path, query, headers, body)
            routes.handle(
                request,
                lambda _request, status, said, _headers: answered.set_result((status, msgspec.json.decode(said))),
            )
            return await asyncio.wait_for(answered, 10)

        await ask(b"POST", b"/locks/job/acquire", body=b'{"owner": "ana"}')
        found = [await ask(b"GET", b"/locks", b"record=%d" % record) for record in (1, 2)]
        await engine.stop()
        return found

    (_, before), (status, after) = asyncio.run(scene())
    assert (status, owners(before), owners(after)) == (200, {}, {"job": ("ana", 1)})
