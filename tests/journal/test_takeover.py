"""A journal that had everything in one file is taken over at its first start, wherever that breaks off."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from holdfast.core.state import State
from holdfast.engine import snapshot
from holdfast.engine.recovery import replay
from holdfast.journal.archive.file import FILE as ARCHIVE
from holdfast.journal.base import HeldQuery, Keeping
from holdfast.journal.inspect import dump, inspect
from holdfast.journal.sqlite import FILE, SqliteJournal
from tests.journal.kept.reading import KEPT, differences, expected_of, history_of, replayed

DIRECTORIES = sorted(path.parent for path in KEPT.glob("*/*/expected.json"))
each_directory = pytest.mark.parametrize(
    "kept", DIRECTORIES, ids=[f"{path.parent.name}-{path.name}" for path in DIRECTORIES]
)
EPOCH = "state.head[0][1][3]"
START = """
import asyncio, os, sys
from pathlib import Path
from holdfast.journal.failpoints import arm
from holdfast.journal.sqlite import SqliteJournal

arm(os.environ)
asyncio.run(SqliteJournal(Path(sys.argv[1]), ballast_bytes=0).open())
"""


def copied(kept: Path, place: Path) -> Path:
    data = Path(shutil.copytree(kept / "data", place))
    data.chmod(0o700)
    for file in data.iterdir():
        file.chmod(0o600)
    return data


def schema_of(data: Path) -> int:
    with closing(apsw.Connection(str(data / FILE))) as db:
        schema: int = db.execute("SELECT value FROM meta WHERE key = 'schema'").get
        return schema


@each_directory
def test_take_over_that_is_killed_begins_again(kept: Path, tmp_path: Path) -> None:
    """Killed while the archive is built, or before the journal is switched, a start leaves the journal as it was (I5).

    The next start takes all over: the state and every record are what the release that made them had.
    """
    for point in ("takeover_mid", "takeover_before_switch", "after_open"):
        data = copied(kept, tmp_path / point)
        environment = {**os.environ, "HOLDFAST_TESTING": "1", "HOLDFAST_FAILPOINTS": f"{point}=kill"}
        died = subprocess.run([sys.executable, "-c", START, str(data)], env=environment, check=False)
        if died.returncode == 0:
            assert point == "takeover_mid", "a journal without history passes no such place"
        else:
            assert died.returncode == -signal.SIGKILL
            assert schema_of(data) == (3 if point == "after_open" else min(2, schema_of(data)))
        shown = json.loads(json.dumps(list(dump(data))))
        assert list(differences(history_of(kept), shown, "record")) == [], point
        wrong = list(differences(expected_of(kept)["state"], replayed(data), "state"))
        # A start that was killed after the take-over was one, and counts.
        assert [each for each in wrong if not each.startswith(EPOCH) or point != "after_open"] == [], point
        assert schema_of(data) == 3, "releases of before know 1 and 2, and refuse any other"
        assert inspect(data).problems == ()


@each_directory
def test_who_holds_what_is_known_after_a_take_over(kept: Path, tmp_path: Path) -> None:
    """Every lease that lives is held by the archive too, also one whose grant is older than the history."""

    async def scene() -> None:
        data = copied(kept, tmp_path / "data")
        with closing(apsw.Connection(str(data / FILE))) as db:
            # As if the grants had been dropped because they were too old.
            db.execute("UPDATE meta SET value = (SELECT value FROM meta WHERE key = 'upto') WHERE key = 'pruned'")
            db.execute("DELETE FROM history WHERE seq <= (SELECT value / 2 FROM meta WHERE key = 'upto')")
        journal = SqliteJournal(data, keeping=Keeping(), ballast_bytes=0)
        recovered = await journal.open()
        state: State = snapshot.load(recovered.values)
        replay(state, recovered.records)
        found = {each.name: each.lease.lease_id for each in (await journal.held(HeldQuery(seq=state.seq))).held}
        leases = {name: slot.lease.lease_id for name, slot in state.slots.items() if slot.lease is not None}
        assert found == leases
        await journal.close()

    asyncio.run(scene())


def test_an_archive_beside_a_journal_of_before_counts_for_nothing(tmp_path: Path) -> None:
    """What a take-over that broke off has left is thrown away, whatever it is."""
    kept = DIRECTORIES[-1]
    data = copied(kept, tmp_path / "data")
    (data / ARCHIVE).write_bytes(b"half of an archive")
    (data / ARCHIVE).chmod(0o600)
    assert list(differences(expected_of(kept)["state"], replayed(data), "state")) == []
