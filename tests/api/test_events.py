"""GET /events: everything that happens but renewals, in order, from any place on, with nothing secret in it (I16)."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import callers, proof
from tests.support.api import Api
from tests.support.checks import moment, refused, unique, wait_until
from tests.support.compactor import archived_by_now
from tests.support.http import EventStream, Frame
from tests.support.pending import payload, waiting
from tests.support.server import ServerProcess

CHANGE = {"seq", "at", "event", "name", "owner", "fencing_token", "by", "reason"}
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
Start = Callable[..., ServerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers on one data directory, and ends them."""
    started: list[ServerProcess] = []

    def begin(**settings: object) -> ServerProcess:
        server = ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS)
        started.append(server)
        return server

    yield begin
    for server in started:
        server.kill()


def _changes(stream: EventStream, prefix: str, count: int, timeout_seconds: float = 10.0) -> list[dict[str, Any]]:
    """The next so many changes to names with this prefix; frames of others are passed over."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        found += [change for change in _of(stream.next(timeout_seconds)) if change["name"].startswith(prefix)]
    return found


def _of(frame: Frame) -> list[dict[str, Any]]:
    assert frame.field("event") == "change", frame
    body = frame.json()
    assert str(body["seq"]) == frame.field("id")
    changes: list[dict[str, Any]] = body["changes"]
    assert changes and all(change["seq"] == body["seq"] and set(change) - {"shown_as"} == CHANGE for change in changes)
    return changes


def _all_until(stream: EventStream, last: str, timeout_seconds: float = 30.0) -> list[Frame]:
    """Every frame up to the first that speaks of the name `last`."""
    frames: list[Frame] = []
    while not frames or last not in frames[-1].data:
        frames.append(stream.next_record(timeout_seconds))
    return frames


def _seq(api: Api) -> int:
    """The number of the newest record with history value: that of a claim made for the purpose."""
    name = unique("mark")
    api.acquired(name, ttl_seconds=1)
    seq: int = api.history(name).json()["history"][0]["seq"]
    return seq


# What is told.


def test_stream_says_what_it_is(alice: Api) -> None:
    """A stream of events is 200, `text/event-stream`, `no-cache`, and says at once from where on it tells."""
    with alice.events() as stream:
        assert stream.status == 200
        assert (stream.headers.get("Content-Type") or "").split(";")[0] == "text/event-stream"
        assert "no-cache" in (stream.headers.get("Cache-Control") or "")
        assert re.fullmatch(r": from \d+", stream.wait_for_comment(5).lines[0])


def test_events_report_lease_lifecycle_in_order(alice: Api, bob: Api, operator: Api, name: str) -> None:
    """Grants, lines, ends, revocations, transfers, reopenings: each once, in order, with who and how; no renewals."""
    with bob.events(prefix=name) as stream:
        stream.wait_for_comment(5)
        lease = alice.acquired(name, owner="ana", metadata="hidden")
        alice.renew(name, lease["lease_id"], note="hidden too")
        request = waiting(bob, name, owner="ben")
        moved = alice.transfer(name, lease["lease_id"], to_owner="cara").json()
        alice.release(name, moved["lease_id"], outcome="failed")
        granted = request.json()
        operator.revoke(name, reason="maintenance")
        again = alice.acquired(name, owner="ana")
        alice.release(name, again["lease_id"], outcome="done", remember_seconds=60, result="hidden as well")
        operator.reopen(name, reason="wrong")
        last = alice.acquired(name, owner="dora", ttl_seconds=60)
        bob.acquire(name, owner="ben", wait_seconds=0.001)
        alice.renew(name, last["lease_id"], ttl_seconds=1)
        changes = _changes(stream, name, 12)
        request.close()
    assert [(each["event"], each["owner"]) for each in changes] == [
        ("granted", "ana"),
        ("waiting", "ben"),
        ("transferred", "cara"),
        ("released", "cara"),
        ("granted", "ben"),
        ("revoked", "ben"),
        ("granted", "ana"),
        ("done", "ana"),
        ("reopened", None),
        ("granted", "dora"),
        ("waiting", "ben"),
        ("expired", "dora"),
    ]
    by = {each["event"]: (each["by"], each["reason"]) for each in changes}
    assert by["revoked"] == ("operator", "maintenance")
    assert by["reopened"] == ("operator", "wrong")
    assert by["transferred"][0] == "alice"
    assert changes[3]["reason"] == "failed"
    tokens = [lease, moved, granted, again, last]
    granted_tokens = [each["fencing_token"] for each in changes if each["event"] in {"granted", "transferred"}]
    assert granted_tokens == [each["fencing_token"] for each in tokens]
    assert all(moment(each["at"]) for each in changes)


def test_events_report_leaving_the_queue(alice: Api, bob: Api, name: str) -> None:
    """A place given up is told, with how; and one record of several names is one frame with all of them."""
    with alice.events(prefix=name) as stream:
        stream.wait_for_comment(5)
        alice.acquired(f"{name}/a")
        ticket = bob.claims(all=[f"{name}/a", f"{name}/b"], owner="ben", wait_seconds=0.001).json()["ticket"]
        bob.leave(ticket)
        alice.claims(all=[f"{name}/c", f"{name}/d"])
        frames = [stream.next() for _ in range(4)]
    changes = [[(each["event"], each["name"], each["reason"]) for each in _of(frame)] for frame in frames]
    assert changes == [
        [("granted", f"{name}/a", None)],
        [("waiting", f"{name}/a", None), ("waiting", f"{name}/b", None)],
        [("left", f"{name}/a", "withdrawn"), ("left", f"{name}/b", "withdrawn")],
        [("granted", f"{name}/c", None), ("granted", f"{name}/d", None)],
    ]


def test_a_session_ends_in_one_frame(alice: Api, name: str) -> None:
    """I10: all that ends with a session is told in one frame, under one number."""
    session = alice.new_session()["session_id"]
    names = [f"{name}/{number}" for number in range(3)]
    with alice.events(prefix=name) as stream:
        stream.wait_for_comment(5)
        alice.claims(all=names, session_id=session, ephemeral=True)
        alice.end_session(session)
        assert [each["name"] for each in _of(stream.next())] == names
        ended = _of(stream.next())
    assert [(each["event"], each["name"]) for each in ended] == [("session_ended", each) for each in names]


def test_no_secret_is_in_any_frame(alice: Api, bob: Api, operator: Api, name: str) -> None:
    """No lease id, ticket, session, secret, token, metadata, note, result or key is ever told."""
    after = _seq(alice)
    made = operator.post("/tokens", {"name": unique("tok")}).json()
    session = bob.new_session(name="run", metadata="hidden-metadata")
    run = Api(alice.host, alice.port, session["session_secret"])
    secrets = [made["token"], session["session_secret"], session["session_id"], "hidden"]
    lease = alice.acquired(name, key="hidden-key", metadata="hidden-metadata", owner="ana")
    alice.renew(name, lease["lease_id"], note="hidden-note")
    ticket = run.acquire(name, wait_seconds=0.001, owner="ben").json()["ticket"]
    moved = alice.transfer(name, lease["lease_id"], to_owner="cara").json()
    many = run.claims(all=[f"{name}/a", f"{name}/b"]).json()["claims"]
    alice.release(name, moved["lease_id"], outcome="done", remember_seconds=9, result="hidden-result")
    bob.end_session(session["session_id"])
    operator.delete(f"/tokens/{made['name']}")
    last = unique("last")
    alice.acquired(last, ttl_seconds=1)
    secrets += [lease["lease_id"], moved["lease_id"], ticket, *(claim["lease_id"] for claim in many)]
    with bob.events(after=after) as stream:
        frames = _all_until(stream, last)
    text = "\n".join(line for frame in frames for line in frame.lines)
    assert name in text
    for secret in secrets:
        assert secret not in text
    assert not UUID.search(text)
    assert "hold_" not in text and "holds_" not in text


# Who may hear what.


def test_prefixes(alice: Api, operator: Api) -> None:
    """A reader hears only what begins with the prefix it asked for; a confined token only of its own names, also of a
    record that speaks of others too.
    """
    stem, other = unique("mine"), unique("other")
    made = operator.post("/tokens", {"name": unique("tok"), "prefix": f"{stem}/"}).json()
    confined = Api(alice.host, alice.port, made["token"])
    after = _seq(alice)
    alice.claims(all=[f"{stem}/a", f"{other}/a", f"{stem}/b", f"{stem}x/a"])
    alice.acquired(f"{other}/b")
    alice.acquired(f"{stem}/sub/c")
    with confined.events(after=after) as stream:
        assert [each["name"] for each in _of(stream.next())] == [f"{stem}/a", f"{stem}/b"]
        assert [each["name"] for each in _of(stream.next())] == [f"{stem}/sub/c"]
    with confined.events(after=after, prefix=f"{stem}/sub/") as stream:
        assert [each["name"] for each in _of(stream.next())] == [f"{stem}/sub/c"]
    with alice.events(after=after, prefix=other) as stream:
        assert [each["name"] for each in _of(stream.next())] == [f"{other}/a"]
        assert [each["name"] for each in _of(stream.next())] == [f"{other}/b"]
    refused(confined.get(f"/events?prefix={other}/"), 403, "forbidden")
    refused(confined.get("/events?prefix="), 403, "forbidden")


def test_refusals_are_ordinary_answers(alice: Api, nobody: Api) -> None:
    """A stream that cannot be had is an envelope: no token, a bad number, an unknown field."""
    refused(nobody.get("/events"), 401, "authentication_required")
    for query in (
        "after=x",
        "after=-1",
        "after=1.",
        "after=1.5.1",
        "after=99999999999999999",
        "colour=red",
        "after=1&after=2",
    ):
        refused(alice.get(f"/events?{query}"), 400, "invalid_input")
    refused(alice.get("/events", headers={"Last-Event-ID": "x"}), 400, "invalid_input")
    assert alice.request("HEAD", "/events").status == 200
    refused(alice.post("/events", {}), 405, "invalid_input")


def test_events_end_with_revoked_token(alice: Api, operator: Api, name: str) -> None:
    """A stream ends when the token that opened it is shut out, before anything that comes after is told."""
    made = operator.post("/tokens", {"name": unique("tok")}).json()
    reader = Api(alice.host, alice.port, made["token"])
    with reader.events(prefix=name) as stream, reader.watch_lock(name) as watch:
        stream.wait_for_comment(5)
        watch.next()
        lease = alice.acquired(name)
        _changes(stream, name, 1)
        watch.next()
        operator.delete(f"/tokens/{made['name']}")
        alice.release(name, lease["lease_id"])
        for each in (stream, watch):
            assert each.wait_for_end(5)
            with pytest.raises(AssertionError, match="ended"):
                each.next(0)


def test_streams_are_bounded_for_each_token(start: Start) -> None:
    """One token has so many streams and watches open and no more; closing one makes room."""
    alice = Api.of(start(watches_per_principal_max=2), callers.ALICE)
    first, second = alice.events(), alice.watch_lock("x")
    refused(alice.get("/events"), 429, "quota_exceeded")
    first.close()
    wait_until(lambda: alice.request("HEAD", "/events").status == 200)
    second.close()


# Resuming.


def test_resuming_by_header_and_by_query(alice: Api, name: str) -> None:
    """A reader resumes after a number by `Last-Event-ID` or `?after=`; of both, the header is the newer and counts."""
    after = _seq(alice)
    for number in range(4):
        alice.acquired(f"{name}/{number}")
    with alice.events(after=after, prefix=name) as stream:
        ids = [str(stream.next().field("id")) for _ in range(4)]
    for resumed in (
        alice.events(after=ids[1], prefix=name),
        alice.events(last_event_id=ids[1], prefix=name),
        alice.events(last_event_id=ids[1], after=after, prefix=name),
    ):
        with resumed as stream:
            assert [stream.next().field("id") for _ in range(2)] == ids[2:]


def test_events_are_neither_lost_nor_repeated_between_catch_up_and_live(alice: Api, bob: Api, name: str) -> None:
    """A reader that connects while things happen hears each of them once, however the moment falls."""
    after = _seq(alice)
    names: list[str] = []
    for number in range(60):
        answer = [alice.acquired(f"{name}/{number}/{step}", ttl_seconds=60) for step in range(2)]
        with bob.events(after=after, prefix=name) as stream:
            more = alice.acquired(f"{name}/{number}/2", ttl_seconds=60)
            for wanted in (*answer, more):
                frame = stream.next()
                (change,) = _of(frame)
                assert change["fencing_token"] == wanted["fencing_token"]
                names.append(change["name"])
                after = int(str(frame.field("id")))
    assert names == [f"{name}/{number}/{step}" for number in range(60) for step in range(3)]


def _churn(server: ServerProcess, names: list[str]) -> int:
    """Claim all names in one record and release them one by one; return how many records that made."""
    alice = Api.of(server, callers.ALICE)
    claims = alice.claims(all=names, ttl_seconds=600).json()["claims"]
    requests = b"".join(
        payload(f"/locks/{claim['name']}/release", callers.ALICE, {"lease_id": claim["lease_id"]}) for claim in claims
    )
    with socket.create_connection((server.host, server.port), timeout=30) as sock:
        received = 0
        view = memoryview(requests)
        for begin in range(0, len(view), 8_192):
            sock.sendall(view[begin : begin + 8_192])
        tail = b""
        while received < len(claims):
            data = tail + sock.recv(1 << 16)
            received += data.count(b"HTTP/1.1 200 ")
            tail = data[-12:] if b"HTTP/1.1 200 " not in data[-12:] else b""
    return 1 + len(claims)


def test_a_reader_away_for_thousands_of_events(start: Start) -> None:
    """I16: a reader that was disconnected for thousands of events, 10,000 in a proof, resumes with none missing and
    none twice, across snapshots, while more happens, and after kill −9.
    """
    rounds = proof.count("events: thousands missed by a reader")
    server = start(snapshot_records=300 * rounds)
    alice = Api.of(server, callers.ALICE)
    with alice.events(after=0) as stream:
        alice.acquired("first", ttl_seconds=86_400)
        frame = _all_until(stream, "first")[-1]
    after = str(frame.field("id"))
    names = [f"job-{number:04}" for number in range(1_000)]
    made = sum(_churn(server, names) for _ in range(rounds))
    assert made >= 1_000 * rounds
    with alice.events(last_event_id=after) as stream:
        frames = [stream.next_record(20) for _ in range(300 * rounds)]
    after = str(frames[-1].field("id"))
    server.kill()
    server = start(snapshot_records=300 * rounds)
    alice = Api.of(server, callers.ALICE)
    with alice.events(last_event_id=after) as stream:
        made += _churn(server, names)
        alice.acquired("last", ttl_seconds=86_400)
        frames += _all_until(stream, '"last"')
    seqs = [int(str(frame.field("id"))) for frame in frames]
    assert seqs == sorted(set(seqs))
    assert len(frames) == made + 1
    changes = [change for frame in frames for change in _of(frame)]
    _alternates(changes)
    server.terminate()
    assert seqs == [seq for seq in _journal(server.data) if seq >= seqs[0]]


def _alternates(changes: list[dict[str, Any]]) -> None:
    """I1: every name is granted and released in turn, with rising tokens."""
    holds: dict[str, int] = {}
    last_token = 0
    for change in changes:
        if change["event"] == "granted":
            assert change["name"] not in holds
            assert change["fencing_token"] > last_token
            last_token = holds[change["name"]] = change["fencing_token"]
        else:
            assert holds.pop(change["name"]) == change["fencing_token"]


def _journal(data: Path) -> list[int]:
    """The numbers of all records in the journal that concern a name."""
    from holdfast.journal.sqlite.inspect import dump

    concern = {"granted", "granted_many", "ended", "session_ended", "joined", "left", "transferred", "reopened"}
    return [record["seq"] for record in dump(data) if record["event"] in concern]


def test_a_gap_says_resync(start: Start) -> None:
    """I16: a reader that asks for what is no longer kept is told so, once, and hears everything from there on."""
    server = start(snapshot_records=50, history_records_max=20)
    alice = Api.of(server, callers.ALICE)
    for number in range(150):
        alice.acquired(f"job-{number}", ttl_seconds=600)

    def first_frame() -> Frame:
        with alice.events(after=1) as stream:
            return stream.next()

    def is_archived() -> bool:
        name = unique("more")
        alice.acquired(name, ttl_seconds=600)
        newest = alice.history(name).json()["history"][0]["seq"]
        archived = archived_by_now(server.data)
        return archived >= 100 and bool(newest - archived < 25)

    # Archiving begins by itself once there are enough records, and goes on beside. Long before it is due again, all
    # stays as it is.
    wait_until(is_archived, seconds_max=60)
    assert first_frame().field("event") == "resync"
    with alice.events(after=1) as stream:
        frame = stream.next()
        oldest = int(str(frame.field("id")))
        assert frame.json() == {"seq": oldest}
        assert oldest > 10
        alice.acquired("last", ttl_seconds=600)
        frames = _all_until(stream, '"last"')
    seqs = [int(str(frame.field("id"))) for frame in frames]
    assert seqs == list(range(oldest + 1, seqs[-1] + 1))
    # The number of the last frame before the gap, sent back, gives no second `resync`.
    with alice.events(last_event_id=str(seqs[0])) as stream:
        assert stream.next().field("event") == "change"


def test_a_number_from_the_future_says_resync(alice: Api, name: str) -> None:
    """I16: a number that was never given, as after a restore from a backup, is told as `resync`, not waited for."""
    newest = _seq(alice)
    with alice.events(last_event_id=str(newest + 1_000_000), prefix=name) as stream:
        frame = stream.next()
        assert frame.field("event") == "resync"
        assert newest <= int(str(frame.field("id"))) < newest + 1_000
        alice.acquired(name)
        assert _of(stream.next())[0]["name"] == name


# Readers that do not read, servers that stop.


def _rss_kib(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.search(r"VmRSS:\s+(\d+) kB", text)[1])  # type: ignore[index]


def _stuck_reader(server: ServerProcess, path: str = "/events") -> socket.socket:
    """A reader that takes the head of its stream and then nothing."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.connect((server.host, server.port))
    sock.sendall(payload(path, callers.BOB, method="GET"))
    sock.settimeout(10)
    assert b"200 OK" in sock.recv(1_024)
    return sock


def test_a_slow_reader_costs_little_and_finds_everything(start: Start) -> None:
    """A reader that does not keep up costs a bounded amount of memory, and reads on from the journal when it can."""
    server = start(retry_bytes_max=300_000, ended_bytes_max=300_000)
    alice = Api.of(server, callers.ALICE)
    names = [f"job-{number:04}" for number in range(1_000)]

    def rounds(count: int) -> None:
        for _ in range(count):
            session = alice.new_session()
            fields = {"all": names, "session_id": session["session_id"], "ephemeral": True}
            assert len(alice.claims(**fields).json()["claims"]) == 1_000
            assert alice.end_session(session["session_id"]).status == 204

    rounds(5)
    after = _seq(alice)
    stuck = [_stuck_reader(server, f"/events?after={after}") for _ in range(20)]
    rounds(60)
    middle = _rss_kib(server.pid)
    rounds(60)
    grown = _rss_kib(server.pid) - middle
    print(f"20 stuck readers: {middle} KiB at the bound, {grown} KiB more after as many events again")
    assert grown < 40_000
    alice.acquired("the-last", ttl_seconds=600)
    for sock in stuck[1:]:
        sock.close()
    pieces = [b""]
    while b"\n\n" not in pieces[-1].partition(b"the-last")[2]:
        data = stuck[0].recv(1 << 16)
        assert data, "cut off"
        # With the end of the one before: what is looked for may stand across two.
        pieces[-1:] = [pieces[-1][:-1_000], pieces[-1][-1_000:] + data]
    stuck[0].close()
    changes = b"".join(pieces)
    # A chunk may begin in the middle of a name or a number: a few names of so many may be missing here.
    granted, ended = (changes.count(b'"event":"%b"' % event) for event in (b"granted", b"session_ended"))
    assert 119_000 < granted <= 120_001 and 119_000 < ended <= 120_000
    assert changes.count(b"id: ") - 1 in {240, 241, 242}, "one of them says where it began"


@pytest.mark.parametrize("is_live", [True, False], ids=["live", "journal"])
def test_readers_that_take_nothing_share_a_large_record(start: Start, is_live: bool) -> None:
    """40 readers that take nothing have no copy each of a record of more than 4 MiB: each holds about one part."""
    server = start()
    alice = Api.of(server, callers.ALICE)
    session = alice.new_session()["session_id"]
    labels = {f"k{number}": "v" * 120 for number in range(8)}
    for number in range(5):
        names = [f"job-{number}-{small:04}" for small in range(1_000)]
        fields = {"all": names, "session_id": session, "ephemeral": True, "labels": labels}
        assert len(alice.claims(**fields).json()["claims"]) == 1_000
    after = _seq(alice)
    stuck = [_stuck_reader(server) for _ in range(40)] if is_live else []
    before = _rss_kib(server.pid)
    assert alice.end_session(session).status == 204
    stuck += [] if is_live else [_stuck_reader(server, f"/events?after={after}") for _ in range(40)]
    # One that came after them has all of it: each of them had its turn before.
    with alice.events(after=after) as stream:
        assert len(stream.next_record().json()["changes"]) == 5_000
    grown = _rss_kib(server.pid) - before
    for sock in stuck:
        sock.close()
    assert grown < 80_000, "40 copies would be more than 200,000 KiB"


def test_reader_that_never_reads_is_disconnected(start: Start) -> None:
    """A stream whose reader takes nothing is ended after the idle time, and its place is free again."""
    server = start(idle_timeout_seconds=1, watches_per_principal_max=1)
    alice = Api.of(server, callers.ALICE)
    names = [f"job-{number:04}" for number in range(1_000)]
    stuck = _stuck_reader(server)
    refused(Api.of(server, callers.BOB).get("/events"), 429, "quota_exceeded")
    for _ in range(40):
        session = alice.new_session()["session_id"]
        alice.claims(all=names, session_id=session, ephemeral=True)
        alice.end_session(session)
    # Each time on a connection of its own: one that idles may be closed just as it is used.
    wait_until(lambda: Api.of(server, callers.BOB).request("HEAD", "/events").status == 200, seconds_max=20)
    stuck.close()


def test_a_quiet_stream_is_not_hung_up_on(start: Start) -> None:
    """A stream on which nothing happens outlives the idle time: nothing is ready that its reader does not take."""
    alice = Api.of(start(idle_timeout_seconds=1), callers.ALICE)
    with alice.events() as stream:
        assert not stream.wait_for_end(4)
        alice.acquired("job")
        assert _of(stream.next())[0]["name"] == "job"


def test_a_server_that_stops_ends_its_streams(start: Start) -> None:
    """SIGTERM ends every stream at once; what was told before is all there, and the rest comes after the restart."""
    server = start()
    alice = Api.of(server, callers.ALICE)
    with alice.events() as stream:
        stream.wait_for_comment(5)
        alice.acquired("job-1", ttl_seconds=600)
        began = time.monotonic()
        assert server.terminate() == 0
        assert time.monotonic() - began < 25
        frame = stream.next()
        assert _of(frame)[0]["name"] == "job-1"
        assert stream.wait_for_end(5)
    alice = Api.of(start(), callers.ALICE)
    alice.acquired("job-2")
    with alice.events(last_event_id=str(frame.field("id"))) as stream:
        assert _of(stream.next())[0]["name"] == "job-2"


def test_events_are_json_of_one_line(alice: Api, name: str) -> None:
    """A frame is `id`, `event` and one line of JSON, also for names with signs of their own."""
    odd = f'x-{name}:"quoted\\{{}}ä'
    after = _seq(alice)
    alice.acquired(odd)
    with alice.events(after=after) as stream:
        frame = _all_until(stream, name)[-1]
    assert [line.partition(":")[0] for line in frame.lines] == ["id", "event", "data"]
    assert json.loads(frame.data)["changes"][0]["name"] == odd
