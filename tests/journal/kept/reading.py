"""Reads a kept data directory with the code of the tree that it is run in, be it of the release or of today."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast import __version__
from holdfast.core.state import State
from holdfast.core.values import Limits
from holdfast.engine import snapshot
from holdfast.engine.engine import Engine
from holdfast.journal.sqlite import SqliteJournal
from holdfast.testing.clock import ManualClock
from tests.engine.driving import run
from tests.journal.kept.scene import Plain

KEPT = Path(__file__).parent


def durable_state(state: State) -> dict[str, Plain]:
    """Return the durable state as a snapshot would write it: rows of plain arrays, by table."""
    tables: dict[str, Plain] = {}
    for part in snapshot.encode(state.freeze()):
        kind, rows = msgspec.msgpack.decode(part)
        tables.setdefault(kind, []).extend(rows)
    del tables["end"]
    return tables


async def snapshot_in(directory: Path) -> dict[str, Plain]:
    """Return the durable state as it was archived in a directory, before any record is replayed."""
    journal = SqliteJournal(directory, ballast_bytes=0)
    try:
        return durable_state(snapshot.load((await journal.open()).values))
    finally:
        await journal.close()


def expected_of(kept: Path) -> dict[str, Plain]:
    """Return what the release that made a directory read in it."""
    expected: dict[str, Plain] = json.loads((kept / "expected.json").read_text("utf-8"))
    return expected


def history_of(kept: Path) -> list[dict[str, Plain]]:
    """Return the records that it showed."""
    return [json.loads(line) for line in (kept / "history.jsonl").read_text("utf-8").splitlines()]


def differences(old: Plain, new: Plain, where: str) -> Iterator[str]:
    """Yield where the new differs from the old. What is new may only stand behind or beside it, and say nothing."""
    match old, new:
        case dict(), dict():
            for name in old:
                if name in new:
                    yield from differences(old[name], new[name], f"{where}.{name}")
                else:
                    yield f"{where}.{name} is missing"
            yield from (f"{where}.{name} is {new[name]!r}" for name in new.keys() - old.keys() if new[name])
        case list(), list():
            for place, (one, other) in enumerate(zip(old, new, strict=False)):
                yield from differences(one, other, f"{where}[{place}]")
            if len(new) < len(old):
                yield f"{where} has {len(new)} items and had {len(old)}"
            yield from (f"{where}[{place}] is {new[place]!r}" for place in range(len(old), len(new)) if new[place])
        case _:
            if type(old) is not type(new) or old != new:
                yield f"{where} is {new!r} and was {old!r}"


def replayed(directory: Path) -> Plain:
    """Return the durable state after a start on the directory."""

    async def scene(clock: ManualClock) -> dict[str, Plain]:
        journal = SqliteJournal(directory, ballast_bytes=0)
        engine = Engine(journal, Limits(), clock=clock, version=__version__)
        await engine.start()
        state = durable_state(engine.state)
        await engine.stop()
        return state

    return json.loads(json.dumps(run(scene)))
