"""Reads a kept data directory with the code of the tree that it is run in, be it of the release or of today."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.core.state import Frozen
from holdfast.engine import snapshot
from holdfast.engine.recovery import replay
from holdfast.journal.sqlite.journal import SqliteJournal
from tests.journal.kept.scene import Plain

STORED = Path(__file__).parent


def rows_of(frozen: Frozen) -> dict[str, list[Plain]]:
    """Return the durable state as rows of plain values, by table."""
    tables: dict[str, list[Plain]] = {}
    for values in snapshot.values(frozen):
        rows = [[key.decode("utf-8", "replace"), msgspec.msgpack.decode(value)] for key, value in values.rows]
        tables.setdefault(values.table, []).extend(rows)
    return json.loads(json.dumps(tables))  # type: ignore[no-any-return] # what JSON makes of it


async def state_in(directory: Path) -> dict[str, list[Plain]]:
    """Return the durable state of a directory: what is archived, with the records since replayed on top."""
    journal = SqliteJournal(directory, disk_reserve_bytes=0)
    try:
        recovered = await journal.open()
        state = snapshot.load(recovered.values)
        replay(state, recovered.records)
        return rows_of(state.freeze())
    finally:
        await journal.close()


def expected_of(stored: Path) -> dict[str, Plain]:
    """Return what the release that made a directory read in it."""
    expected: dict[str, Plain] = json.loads((stored / "expected.json").read_text("utf-8"))
    return expected


def history_of(stored: Path) -> list[dict[str, Plain]]:
    """Return the records that it showed."""
    return [json.loads(line) for line in (stored / "history.jsonl").read_text("utf-8").splitlines()]


def differences(old: Plain, new: Plain, where: str) -> Iterator[str]:
    """Yield where the new differs from the old. A field that was added since may say nothing."""
    match old, new:
        case dict(), dict():
            for name in old:
                if name in new:
                    yield from differences(old[name], new[name], f"{where}.{name}")
                else:
                    yield f"{where}.{name} is missing"
            yield from (f"{where}.{name} is {new[name]!r}" for name in new.keys() - old.keys() if new[name])
        case list(), list():
            for ticket, (one, other) in enumerate(zip(old, new, strict=False)):
                yield from differences(one, other, f"{where}[{ticket}]")
            if len(new) < len(old):
                yield f"{where} has {len(new)} items and had {len(old)}"
            yield from (f"{where}[{ticket}] is {new[ticket]!r}" for ticket in range(len(old), len(new)) if new[ticket])
        case _:
            if type(old) is not type(new) or old != new:
                yield f"{where} is {new!r} and was {old!r}"
