"""GET /events: frames are bounded; a large record comes in parts, and one who resumes between two sees it whole."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.api import streams as frames_module
from holdfast.api.rendering import changes, encode
from holdfast.api.streams import FRAME_BYTES, PARTS_BYTES_MAX, SEEN_BYTES_MAX, FrameCache, VisibleRecord
from holdfast.core.events import Granted, GrantedMany, Record
from holdfast.core.values import Lease, has_labels
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.http import Frame
from tests.support.pending import payload
from tests.support.server import ServerProcess

HEAD_BYTES = 200
"""What a frame has beside its changes, at most."""


@pytest.fixture(scope="module")
def alice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A caller of the server of this file."""
    data: Path = tmp_path_factory.mktemp("parts") / "data"
    settings = {"leases_per_principal_max": 200_000}
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
        complete = stream.next_record()
    assert _names([complete]) == names


def test_a_small_record_is_as_it_was(alice: Api, name: str) -> None:
    """A record that fits has neither part nor parts."""
    after = _newest(alice)
    alice.claims(all=[f"{name}/a", f"{name}/b"], ttl_seconds=600)
    with alice.events(after=after, prefix=name) as stream:
        frame = stream.next()
    assert list(frame.json()) == ["seq", "changes"]
    assert [line.partition(":")[0] for line in frame.lines] == ["id", "event", "data"]


def test_slow_reader_catches_up_with_backlog(alice: Api, name: str) -> None:
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
        while b"\n\n" not in pieces[-1].partition(b"/last/0000")[2]:
            data = sock.recv(1 << 16)
            assert data, "cut off"
            # With the end of the one before: what is looked for may stand across two.
            pieces[-1:] = [pieces[-1][:-1_000], pieces[-1][-1_000:] + data]
    lines = _without_chunks(b"".join(pieces)).split(b"\n")
    frames = [json.loads(line.removeprefix(b"data: ")) for line in lines if line.startswith(b"data: ")]
    names = [change["name"] for frame in frames for change in frame["changes"]]
    assert names == [f"{name}/{big:03}/{small:04}" for big in range(100) for small in range(1_000)] + [
        f"{name}/last/0000"
    ]


def _without_chunks(raw: bytes) -> bytes:
    """What was sent in chunks, without their sizes."""
    pieces: list[bytes] = []
    offset = raw.index(b"\r\n\r\n") + 4
    while offset < len(raw):
        end = raw.index(b"\r\n", offset)
        size = int(raw[offset:end], 16)
        pieces.append(raw[end + 2 : end + 2 + size])
        offset = end + 2 + size + 2
    return b"".join(pieces)


# Each part is made once, when it is asked for, and never much at a time.

NONE: frozenset[tuple[str, str]] = frozenset()


def _grants(seq: int, count: int, labels: dict[str, str] | None = None) -> Record:
    grants = tuple(
        Granted(f"job/{number:04}", Lease(f"id-{number}", number, "ana", None, None, False, 1, 1, 0, None, None, 1, 1))
        for number in range(count)
    )
    if labels is not None:
        grants = tuple(replace(grant, lease=replace(grant.lease, labels=labels)) for grant in grants)
    return Record(seq, 1, 1, grants[0] if count == 1 else GrantedMany(grants))


HUGE_LABELS = {f"k{number}": "v" * 120 for number in range(8)}
"""A change with them is more than 1 KiB: 5,000 are more than all that is kept."""
PARTS_MAX = 100
"""How many parts 5,000 changes with them are, at most."""


async def _seen(
    frames: FrameCache, record: Record, prefix: str = "", labels: frozenset[tuple[str, str]] = NONE
) -> VisibleRecord:
    seen = frames.of(record, prefix, labels)
    await frames.measure(seen)
    return seen


async def _all(
    frames: FrameCache, record: Record, prefix: str = "", labels: frozenset[tuple[str, str]] = NONE
) -> bytes:
    seen = await _seen(frames, record, prefix, labels)
    return b"".join([await frames.part(seen, number) for number in range(len(seen.ends))])


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every change that was put into bytes."""
    those: list[object] = []

    def count(reply: object) -> bytes:
        those.append(reply)
        return encode(reply)

    monkeypatch.setattr(frames_module, "encode", count)
    return those


def _as_one_would_cut(record: Record) -> bytes:
    """The frames of a record, made in the plainest way: all changes at once, as many in each frame as there is room."""
    parts: list[list[bytes]] = []
    size = FRAME_BYTES
    for said in (encode(change) for change in changes(record, lambda _: True)):
        if size + len(said) > FRAME_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(said)
        size += len(said) + 1
    raw = b""
    for number, part in enumerate(parts, 1):
        which = b"" if len(parts) == 1 else b'"part":%d,"parts":%d,' % (number, len(parts))
        raw += b"id: %d\n" % record.seq if number == len(parts) else b""
        raw += b'event: change\ndata: {"seq":%d,%b"changes":[%b]}\n\n' % (record.seq, which, b",".join(part))
    return raw


@pytest.mark.parametrize("count", [1, 2, 16, 17, 400, 501, 1_000, 5_000])
def test_frames_are_those_of_the_plainest_way(count: int) -> None:
    """Looked at in slices or at once, kept or made again: the same bytes."""
    frames = FrameCache()
    record = _grants(7, count, HUGE_LABELS if count == 5_000 else None)
    wanted = _as_one_would_cut(record)
    assert asyncio.run(_all(frames, record)) == wanted
    assert asyncio.run(_all(frames, record)) == wanted


def test_readers_of_equal_rights_share_their_frames(encoded: list[object]) -> None:
    """100 readers of a record of 1,000 names at once cost as much as one of each kind: each change is encoded once.

    The one with which a part would be too large is encoded again for the next part.
    """

    async def read() -> None:
        frames, record = FrameCache(), _grants(7, 1_000)
        made = await asyncio.gather(*(_all(frames, record) for _ in range(100)))
        assert len(set(made)) == 1 and len(encoded) == 1_002
        made = await asyncio.gather(*(_all(frames, record, "job/000") for _ in range(100)))
        assert len(set(made)) == 1 and len(encoded) == 1_012
        assert await _all(frames, record, "other") == b""
        assert await _all(frames, record, "", frozenset({("team", "infra")})) == b""
        assert len(encoded) == 1_012

    asyncio.run(read())


def test_record_larger_than_the_cache_is_shared(encoded: list[object]) -> None:
    """100 readers that go through more than 4 MiB together make it twice at most: to measure it, and to tell it."""

    async def read() -> None:
        frames, record = FrameCache(), _grants(7, 5_000, HUGE_LABELS)
        made = await asyncio.gather(*(_all(frames, record) for _ in range(100)))
        assert len(made[0]) > PARTS_BYTES_MAX and len(set(made)) == 1
        assert len(encoded) <= 2 * (5_000 + PARTS_MAX)
        assert frames._parts.size_bytes <= PARTS_BYTES_MAX

    asyncio.run(read())


def test_the_next_part_is_not_made_before_the_last_was_taken(encoded: list[object]) -> None:
    """100 readers that take one part and no more cost one measuring, and what is kept of the first parts."""

    async def read() -> None:
        frames, record = FrameCache(), _grants(7, 5_000, HUGE_LABELS)

        async def begin() -> bytes:
            return await frames.part(await _seen(frames, record), 0)

        firsts = await asyncio.gather(*(begin() for _ in range(100)))
        assert len(set(firsts)) == 1 and len(firsts[0]) <= FRAME_BYTES + HEAD_BYTES
        assert len(encoded) <= 5_000 + PARTS_MAX
        assert frames._parts.size_bytes <= PARTS_BYTES_MAX

    asyncio.run(read())


def test_record_is_processed_one_slice_per_loop_iteration(
    encoded: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many readers with filters of their own look at a large record: others are served between two slices."""
    looked: list[object] = []

    def count(labels: dict[str, str] | None, wanted: frozenset[tuple[str, str]]) -> bool:
        looked.append(labels)
        return has_labels(labels, wanted)

    monkeypatch.setattr(frames_module, "has_labels", count)
    most = {"looked": 0, "encoded": 0}

    async def others() -> None:
        while True:
            before = len(looked), len(encoded)
            await asyncio.sleep(0)
            most["looked"] = max(most["looked"], len(looked) - before[0])
            most["encoded"] = max(most["encoded"], len(encoded) - before[1])

    async def read() -> None:
        frames, record = FrameCache(), _grants(7, 5_000, HUGE_LABELS)
        everybody = asyncio.create_task(others())
        some = [frozenset({("z", str(number))}) for number in range(50)] + [
            frozenset({(f"k{number}", "v" * 120)}) for number in range(8)
        ]
        raw = await asyncio.gather(*(_all(frames, record, "", labels) for labels in some))
        everybody.cancel()
        assert [len(each) > 0 for each in raw] == [False] * 50 + [True] * 8

    asyncio.run(read())
    assert len(looked) == 58 * 5_000
    assert 0 < most["looked"] <= 500
    assert 0 < most["encoded"] <= FRAME_BYTES // 1_000


def test_invisible_changes_are_not_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of one name pays for one change of a record of 1,000, and one whose labels match nothing for none."""
    made: list[int] = []

    def count(wall_ms: int) -> str:
        made.append(wall_ms)
        return "t"

    monkeypatch.setattr("holdfast.api.rendering.rfc3339", count)
    record = _grants(7, 1_000, {"team": "web"})
    assert [change.name for change in changes(record, lambda name: name == "job/0500")] == ["job/0500"]
    assert len(made) == 1
    assert asyncio.run(_all(FrameCache(), record, "", frozenset({("team", "infra")}))) == b""
    assert len(made) == 1


def test_cancelled_reader_leaves_record_to_other_readers(encoded: list[object]) -> None:
    """A reader that hangs up in the middle of a large record holds nobody up, and what it found is not lost."""

    async def read() -> None:
        frames, record = FrameCache(), _grants(7, 5_000, HUGE_LABELS)
        first = asyncio.create_task(_all(frames, record))
        for _ in range(40):
            await asyncio.sleep(0)
        assert 0 < len(encoded) < 4_000
        first.cancel()
        seen = await _seen(frames, record)
        assert seen.ends[-1] == 5_000 and len(encoded) <= 5_000 + PARTS_MAX

    asyncio.run(read())


def test_cached_frames_are_bounded(encoded: list[object]) -> None:
    """The newest parts are kept, up to a size; when nobody reads, none."""

    async def read() -> None:
        frames = FrameCache()
        first = await _all(frames, _grants(1, 1_000))
        for seq in range(2, 60):
            newest = await _all(frames, _grants(seq, 1_000))
            assert await _all(frames, _grants(seq, 1_000)) == newest
        assert len(encoded) == 59 * 1_002
        assert PARTS_BYTES_MAX / 2 < frames._parts.size_bytes <= PARTS_BYTES_MAX
        assert frames._seen.size_bytes <= SEEN_BYTES_MAX
        assert await _all(frames, _grants(1, 1_000)) == first
        assert len(encoded) == 60 * 1_002
        frames.clear()
        assert not frames._parts.size_bytes and not frames._seen.size_bytes

    asyncio.run(read())
