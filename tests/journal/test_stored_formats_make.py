"""What makes the kept data directories is ready for the next release: it works, and uses all there is."""

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec

from holdfast import __version__
from holdfast.core.events import Event, Record
from holdfast.core.values import Limits
from holdfast.engine.engine import Engine
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.testing.clock import ManualClock
from tests.engine.harness import run
from tests.journal.kept.make import make
from tests.journal.kept.scene import Plain
from tests.journal.test_stored_formats import NOT_IN_THE_SCENE

ONLY_IN_A_STORE = frozenset({"StateScalars.restores", "StateScalars.restored_seq"})
"""What only a store that lost records has: numbers in a directory jump instead."""


def test_next_release_can_make_its_own(tmp_path: Path) -> None:
    """What makes these directories still works, and leaves no kind of record and no field of one unused.

    A field that is missing here needs a request in `kept/scene.py` that uses it.
    """
    make(tmp_path / "release")
    kinds = {kind.__name__ for kind in get_args(Event)}
    used: set[str] = set()
    known: set[str] = set()
    for each in structs_in(everything_in(tmp_path / "release" / "data")):
        kind = type(each).__name__
        kinds.discard(kind)
        known.update(f"{kind}.{field}" for field in each.__struct_fields__)
        used.update(f"{kind}.{field}" for field in each.__struct_fields__ if getattr(each, field))
    assert kinds == NOT_IN_THE_SCENE, "kinds of records that nothing in kept/scene.py asks for"
    assert known - used - ONLY_IN_A_STORE == set(), "fields that nothing in kept/scene.py uses"


def everything_in(directory: Path) -> Plain:
    """Return every record after the snapshot, all history, and the state."""

    async def scene(clock: ManualClock) -> Plain:
        journal = SqliteJournal(directory, disk_reserve_bytes=0)
        records: list[Record] = list((await journal.open()).records)
        history = await journal.follow(0, 100_000)
        await journal.close()
        engine = Engine(SqliteJournal(directory, disk_reserve_bytes=0), Limits(), clock=clock, version=__version__)
        await engine.start()
        frozen = engine.state.freeze()
        await engine.stop()
        return records, list(history), frozen

    return run(scene)


def structs_in(value: Plain) -> Iterator[msgspec.Struct]:
    """Yield every struct in a value, however deep."""
    match value:
        case msgspec.Struct():
            yield value
            for field in value.__struct_fields__:
                yield from structs_in(getattr(value, field))
        case dict():
            for item in value.values():
                yield from structs_in(item)
        case tuple() | list():
            for item in value:
                yield from structs_in(item)
