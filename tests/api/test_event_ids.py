"""Ids of events: after a loss of the store a number alone does not say where a reader was (N-32)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from holdfast.api.auth.auth import Auth, StaticTokens
from holdfast.api.auth.secrets import AuthorityKey
from holdfast.api.context import RequestContext
from holdfast.api.handlers.events import Events
from holdfast.api.service import ApiService
from holdfast.api.streams import EventCursor, EventIds, parse_id
from holdfast.config import Settings
from holdfast.http.messages import request_from
from holdfast.wire.problems import Problem
from tests.engine.harness import acquire, release, run, serving
from tests.engine.shared_harness import SharedShelf, journal_on

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.engine.engine import Engine
    from holdfast.testing.clock import ManualClock

TOKEN = "ana-has-this-token"


@pytest.mark.parametrize(
    ("text", "cursor"),
    [
        ("60", EventCursor(0, 60)),
        ("1.60", EventCursor(1, 60)),
        ("12.7", EventCursor(12, 7)),
        ("0.7", EventCursor(0, 7)),
    ],
)
def test_an_id_says_how_many_losses_were_known(text: str, cursor: EventCursor) -> None:
    """An id is a number, or a count of losses and a number (N-32)."""
    assert parse_id(text) == cursor


@pytest.mark.parametrize("text", ["", ".", "1.", ".1", "1.2.3", "-1", "1e3", "٣", "1" * 17, "1.x", " 1"])
def test_malformed_event_id_is_refused(text: str) -> None:
    """Anything else is a bad request, and the refusal says what an id is."""
    with pytest.raises(Problem, match="the id of an event"):
        parse_id(text)


def test_ids_before_a_loss_stay_what_they_were() -> None:
    """Without a loss an id is the bare number; after one, what is older keeps the id that readers know it by."""
    assert EventIds().of(7) == b"7"
    once, twice = EventIds(1, 51), EventIds(2, 80)
    assert [once.of(seq) for seq in (50, 51, 99)] == [b"50", b"1.51", b"1.99"]
    assert [twice.of(seq) for seq in (79, 80)] == [b"1.79", b"2.80"]


@pytest.mark.parametrize(
    ("ids", "cursor", "is_known"),
    [
        (EventIds(), EventCursor(0, 60), True),
        (EventIds(1, 51), EventCursor(0, 50), True),
        (EventIds(1, 51), EventCursor(0, 51), False),
        (EventIds(1, 51), EventCursor(0, 60), False),
        (EventIds(1, 51), EventCursor(1, 60), True),
        (EventIds(2, 80), EventCursor(0, 50), False),
        (EventIds(2, 80), EventCursor(1, 79), True),
        (EventIds(2, 80), EventCursor(1, 80), False),
        (EventIds(1, 51), EventCursor(2, 5), False),
        (EventIds(), EventCursor(1, 5), False),
    ],
)
def test_event_cursor_is_known_if_nothing_before_it_was_lost(
    ids: EventIds, cursor: EventCursor, *, is_known: bool
) -> None:
    """Only who was before the loss, or came after it, can go on where it was (N-32)."""
    assert ids.is_known(cursor) == is_known


async def frames_of(engine: Engine, directory: Path, after: str | None, count: int) -> list[bytes]:
    """The first frames that a reader gets who comes back with an id."""
    auth = Auth(StaticTokens.parse(f"ana:{TOKEN}:read+claim+admin"), AuthorityKey(b"k" * 32))
    api = ApiService(engine, auth, Settings(data=directory))
    request = request_from(b"GET", b"/events", b"", {b"authorization": f"Bearer {TOKEN}".encode()}, b"", "")
    caller = auth.identify(request.authorization, engine.state, engine.clock.wall_ms())
    query = {} if after is None else {"after": after}
    call = RequestContext(lambda *_: (0, b"", ()), request, lambda *_: None, "", query, None, caller, api)
    stream = Events(api, call)
    received: list[bytes] = []
    frames = stream.frames()
    while sum(frame.count(b"\n\n") for frame in received) < count:
        received.append(await asyncio.wait_for(anext(frames), 5))
    stream.close()
    await frames.aclose()  # type: ignore[attr-defined] # it is an async generator
    return [part + b"\n\n" for part in b"".join(received).split(b"\n\n") if part]


def test_reader_after_lost_record_gets_resync(tmp_path: Path) -> None:
    """After a loss an id of before it gets `resync` if it was lost; one that was not goes on (N-32)."""

    async def test(clock: ManualClock) -> None:
        shelf = SharedShelf()
        async with serving(await journal_on(shelf, "a"), clock) as engine:
            await engine.ask(acquire("job"))
        async with serving(await journal_on(shelf, "b", needs_token_gap=True), clock) as engine:
            await engine.ask(release("job"))
            # Opened, granted; Restored is 3, Opened 4, released 5. Whoever saw 4 saw what was lost.
            lost = await frames_of(engine, tmp_path, "4", 2)
            assert lost[0] == b'id: 1.5\nevent: resync\ndata: {"seq":5}\n\n' and lost[1] == b": from 5\nid: 1.5\n\n"
            known = await frames_of(engine, tmp_path, "1", 3)
            assert known[0] == b": from 1\nid: 1\n\n"
            assert [frame.split(b"\n")[0] for frame in known[1:]] == [b"id: 2", b"id: 1.5"]
            assert (await frames_of(engine, tmp_path, "1.4", 2))[1].startswith(b"id: 1.5\nevent: change")
            assert (await frames_of(engine, tmp_path, None, 1)) == [b": from 5\nid: 1.5\n\n"]

    run(test)
