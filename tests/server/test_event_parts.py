"""GET /events: frames are bounded; a large record comes in parts, and one who resumes between two sees it whole."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.events import Granted, GrantedMany, Record
from holdfast.core.values import Lease
from holdfast.server.streams import frames as frames_module
from holdfast.server.streams.frames import FRAME_BYTES, KEPT_BYTES_MAX, Frames
from holdfast.server.streams.happenings import changes
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.http import Frame
from tests.support.pending import payload
from tests.support.server import ServerProcess

HEAD_BYTES = 200
"""What a frame has beside its changes, at most."""


@pytest.fixture(scope="module", params=["true", "false"], ids=["lane", "asgi"])
def alice(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A caller of a server, through the one door and through the other."""
    data: Path = tmp_path_factory.mktemp("parts") / "data"
    settings = {"fast_lane": request.param, "leases_per_principal_max": 200_000}
    with ServerProcess.start(data, settings=settings, tokens=callers.TOKENS) as server:
        yield Api.of(server, callers.ALICE)


def _newest(api: Api) -> int:
    name = unique("mark")
    api.acquired(name, ttl_seconds=600)
    seq: int = api.history(name).json()["history"][0]["seq"]
    return seq


def _claim_many(api: Api, stem: str, count: int = 1_000) -> list[str]:
    names = [f"{stem}/{number:04}" for number in range(count)]
    assert api.claims(all=names, owner="crowd", ttl_seconds=600).json()["status"] == "acquired"
    return names


def _names(frames: list[Frame]) -> list[str]:
    return [change["name"] for frame in frames for change in frame.json()["changes"]]


def test_a_large_record_comes_in_parts(alice: Api, name: str) -> None:
    """No frame is much larger than 64 KiB; the parts are numbered, and only the last has the id."""
    after = _newest(alice)
    names = _claim_many(alice, name)
    with alice.events(after=after, prefix=name) as stream:
        frames = [stream.next()]
        parts = frames[0].json()["parts"]
        frames += [stream.next() for _ in range(parts - 1)]
    assert parts > 1
    assert [frame.json()["part"] for frame in frames] == list(range(1, parts + 1))
    assert all(len("\n".join(frame.lines)) <= FRAME_BYTES + HEAD_BYTES for frame in frames)
    assert [frame.field("id") for frame in frames[:-1]] == [None] * (parts - 1)
    assert {str(frame.json()["seq"]) for frame in frames} == {frames[-1].field("id")}
    assert _names(frames) == names


def test_cut_off_between_parts(alice: Api, name: str) -> None:
    """I16: one who was cut off between two parts resumes with the last id it has, and sees the record whole."""
    after = _newest(alice)
    alice.acquired(f"{name}/before")
    names = _claim_many(alice, name)
    with alice.events(after=after, prefix=name) as stream:
        before = stream.next()
        assert stream.next().field("id") is None
    with alice.events(last_event_id=str(before.field("id")), prefix=name) as stream:
        whole = stream.next_record()
    assert _names([whole]) == names


def test_a_small_record_is_as_it_was(alice: Api, name: str) -> None:
    """A record that fits has neither part nor parts."""
    after = _newest(alice)
    alice.claims(all=[f"{name}/a", f"{name}/b"], ttl_seconds=600)
    with alice.events(after=after, prefix=name) as stream:
        frame = stream.next()
    assert list(frame.json()) == ["seq", "changes"]
    assert [line.partition(":")[0] for line in frame.lines] == ["id", "event", "data"]


def test_a_slow_reader_catches_up_behind_much(alice: Api, name: str) -> None:
    """A reader that takes nothing while 100 records of 1,000 names come sees each of them once when it reads."""
    after = _newest(alice)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.connect((alice.host, alice.port))
        sock.sendall(payload(f"/events?after={after}&prefix={name}", callers.BOB, method="GET"))
        sock.settimeout(30)
        pieces = [sock.recv(1_024)]
        for number in range(100):
            _claim_many(alice, f"{name}/{number:03}")
        _claim_many(alice, f"{name}/last", 1)
        while b"/last/0000" not in pieces[-1]:
            data = sock.recv(1 << 16)
            assert data, "cut off"
            # With the end of the one before: what is looked for may stand across two.
            pieces[-1:] = [pieces[-1][:-100], pieces[-1][-100:] + data]
    lines = _without_chunks(b"".join(pieces)).split(b"\n")
    frames = [json.loads(line.removeprefix(b"data: ")) for line in lines if line.startswith(b"data: ")]
    names = [change["name"] for frame in frames for change in frame["changes"]]
    assert names == [f"{name}/{big:03}/{small:04}" for big in range(100) for small in range(1_000)] + [
        f"{name}/last/0000"
    ]


def _without_chunks(told: bytes) -> bytes:
    """What was sent in chunks, without their sizes."""
    pieces: list[bytes] = []
    place = told.index(b"\r\n\r\n") + 4
    while place < len(told):
        end = told.index(b"\r\n", place)
        size = int(told[place:end], 16)
        pieces.append(told[end + 2 : end + 2 + size])
        place = end + 2 + size + 2
    return b"".join(pieces)


# Each frame is made once.


def _grants(seq: int, count: int, stem: str = "job") -> Record:
    leases = [
        Lease(f"id-{number}", number, "ana", None, None, False, 1, 1, 0, None, None, 1, 1) for number in range(count)
    ]
    grants = tuple(Granted(f"{stem}/{number:04}", lease) for number, lease in enumerate(leases))
    return Record(seq, 1, 1, grants[0] if count == 1 else GrantedMany(grants))


def test_readers_of_equal_rights_share_their_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 readers of a record of 1,000 names cost as much as one of each kind: each change is encoded once for them."""
    encoded: list[object] = []

    def count(reply: object) -> bytes:
        encoded.append(reply)
        return json.dumps({"number": len(encoded)}).encode()

    monkeypatch.setattr(frames_module, "encode", count)
    frames, record = Frames(), _grants(7, 1_000)
    none: frozenset[tuple[str, str]] = frozenset()
    made = [frames.of(record, "", none) for _ in range(100)]
    assert all(each is made[0] for each in made)
    assert len(encoded) == 1_000
    assert [frames.of(record, "job/000", none) for _ in range(100)] == [frames.of(record, "job/000", none)] * 100
    assert len(encoded) == 1_010
    assert frames.of(record, "other", none) == ()
    assert frames.of(record, "", frozenset({("team", "infra")})) == ()
    assert len(encoded) == 1_010


def test_what_is_not_seen_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of one name pays for one change of a record of 1,000."""
    made: list[int] = []

    def count(wall_ms: int) -> str:
        made.append(wall_ms)
        return "t"

    monkeypatch.setattr("holdfast.server.streams.happenings.rfc3339", count)
    assert [change.name for change in changes(_grants(7, 1_000), lambda name: name == "job/0500")] == ["job/0500"]
    assert len(made) == 1


def test_kept_frames_are_bounded() -> None:
    """The newest frames are kept, up to a size; when nobody reads, none."""
    frames = Frames()
    none: frozenset[tuple[str, str]] = frozenset()
    first = frames.of(_grants(1, 1_000), "", none)
    for seq in range(2, 60):
        newest = frames.of(_grants(seq, 1_000), "", none)
        assert frames.of(_grants(seq, 1_000), "", none) is newest
    kept = sum(len(frame) for each in frames._kept.values() for frame in each)
    assert KEPT_BYTES_MAX / 2 < kept <= KEPT_BYTES_MAX
    again = frames.of(_grants(1, 1_000), "", none)
    assert again == first and again is not first
    frames.clear()
    assert not frames._kept
