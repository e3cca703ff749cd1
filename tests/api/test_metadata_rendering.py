"""A claim without an owner is shown whatever its metadata is, and metadata is told only where it always was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.api import rendering
from holdfast.api import streams as frames_module
from holdfast.api.auth.auth import Auth, StaticTokens
from holdfast.api.auth.secrets import AuthorityKey
from holdfast.api.context import ANONYMOUS, RequestContext
from holdfast.api.service import ApiService
from holdfast.api.streams import FrameCache
from holdfast.config import Settings
from holdfast.core.events import Granted, GrantedMany, Record
from holdfast.core.outcomes import Acquired
from holdfast.core.values import Lease, Limits
from holdfast.engine.engine import Engine
from holdfast.http.messages import ResponseParts, request_from
from holdfast.testing.clock import ManualClock
from tests.engine.harness import acquire, run, turns
from tests.support.api import Api
from tests.support.checks import unique, wait_until
from tests.support.gateway import Run
from tests.support.memory_journal import MemoryJournal
from tests.support.pending import waiting

ODD = [
    '{"a":' + "[" * 1019,
    '{"a":' * 204,
    '{"a":' + "[" * 500 + "]" * 500 + "}",
    '{"' + "a" * 1000 + '":1}',
    '{"a":"\\ud800"}',
    '{"a":"\\x"}',
    '{"a":1e999}',
    '{"a":' + "9" * 1000 + "}",
    "{" * 1024,
    '"' + "\\" * 1000,
    "\n\u2028\x00{",
]


@pytest.mark.parametrize("metadata", ODD, ids=[str(number) for number in range(len(ODD))])
def test_any_metadata_can_be_shown(alice: Api, bob: Api, operator: Api, name: str, metadata: str) -> None:
    """Lists, looks, `why`, history, events and refusals are answered for everybody, whatever one claim carries."""
    mark = unique("mark")
    alice.acquired(mark)
    after = alice.history(mark).json()["history"][0]["seq"]
    alice.acquired(name, ttl_seconds=600, metadata=metadata)
    held = bob.acquire(name).json()
    assert (held["status"], held["metadata"]) == ("held", metadata)
    assert held["shown_as"].startswith("(access token alice")
    assert bob.claims(all=[name]).json()["status"] == "held"
    for answer in (bob.locks(prefix=name), bob.status(name), bob.why(name), bob.history(name)):
        assert answer.status == 200, answer
    operator.revoke(name, reason="test")
    with bob.events(after=after, prefix=name) as stream:
        events = [stream.next().json()["changes"][0]["event"] for _ in range(2)]
    assert events == ["granted", "revoked"]


def test_metadata_is_not_shown_in_other_replies(alice: Api, bob: Api, name: str) -> None:
    """History, events, `why`, those in line and the gateway say the access token alone; a live claim's words say more.

    `shown_as` is a field of its own: an owner that calls itself the same is still in `owner`.
    """
    secret = "hunter2-and-more"
    alice.acquired(name, ttl_seconds=600, metadata=json.dumps({"key": secret}))
    with waiting(bob, name, metadata=secret):
        wait_until(lambda: alice.status(name).json()["waiting"] == 1)
        events = alice.why(name).json()
        assert (events["chain"][0]["shown_as"], events["waiting"][0]["shown_as"]) == (
            "(access token alice)",
            "(access token bob)",
        )
        with alice.events(after=0, prefix=name) as stream:
            frames = [stream.next().json() for _ in range(2)]
    assert secret not in str((events, frames, alice.history(name).json()))
    assert secret not in Run(bob).rlock(name).text
    assert bob.status(name).json()["shown_as"] == f"(access token alice, key={secret})"
    spoof = unique()
    alice.acquired(spoof, owner="(access token root)")
    shown = bob.status(spoof).json()
    assert shown["owner"] == "(access token root)" and "shown_as" not in shown


def test_an_outcome_that_cannot_be_shown_is_a_500(tmp_path: Path) -> None:
    """What was decided is answered, whatever is wrong with the words for it: no connection waits for ever."""
    replies: list[tuple[int, bytes]] = []

    def broken(*_: object) -> ResponseParts:
        raise RecursionError("on purpose")

    async def scene(clock: ManualClock) -> None:
        engine = Engine(MemoryJournal(), Limits(), clock=clock, version="test")
        await engine.start()
        api = ApiService(engine, Auth(StaticTokens([]), AuthorityKey(b"k" * 32)), Settings(data=tmp_path))
        request = request_from(b"POST", b"/locks/a/acquire", b"", {}, b"")

        def reply(_request: object, status: int, body: bytes, _headers: object) -> None:
            replies.append((status, body))

        for command in (acquire("a"), acquire("a", ttl_ms=-1)):
            call = RequestContext(broken, request, reply, "a", {}, None, ANONYMOUS, api)
            api.submit(call, command, {Acquired: broken})
        await turns(20)
        await engine.stop()

    run(scene)
    assert [(status, msgspec.json.decode(body)["code"]) for status, body in replies] == [(500, "internal_error")] * 2


def test_events_skip_unrenderable_changes(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A change that raises is logged and left out; its record still has its number, so the reader goes on behind it."""
    right = rendering.history_entry

    def history_entry(seq: int, wall_ms: int, name: str, events: Any) -> Any:  # noqa: ANN401 - passed on as it is
        if name == "b":
            raise RecursionError("on purpose")
        return right(seq, wall_ms, name, events)

    monkeypatch.setattr(frames_module, "history_entry", history_entry)
    lease = Lease("id", 1, "alice", None, None, False, 60_000, 60_000, 0, None, None, 0, 0)
    several = GrantedMany(tuple(Granted(name, lease) for name in ("a", "b", "c")))

    async def scene(_clock: ManualClock) -> list[dict[str, Any]]:
        frames, events = FrameCache(), []
        for seq, event in ((1, several), (2, Granted("b", lease))):
            seen = frames.of(Record(seq, 0, 0, event), "", frozenset())
            await frames.measure(seen)
            frame = await frames.part(seen, 0)
            assert frame.startswith(b"id: %d\n" % seq)
            events.append(json.loads(frame.partition(b"data: ")[2]))
        return events

    first, second = run(scene)
    assert [change["name"] for change in first["changes"]] == ["a", "c"]
    assert second == {"seq": 2, "changes": []}
    assert "record 2 cannot be rendered" in caplog.text
