"""`holdfast move` is killed at random moments: at most one side can be served from, and nothing is ever lost."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import __version__
from holdfast.journal.codec import FORMAT
from holdfast.journal.interface import JournalError, Peer
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.testing import server
from tests.cli.stores.test_move import LONG, all_of, api_of
from tests.support import postgres, proof

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.journal.interface import Journal

KILLS = proof.count("stores: kills of a move")
KEY, LOCK = "authority.key", "archive.lock"
NAMES, AT_ONCE = 2_000, 500


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data directory with an archive, a history and a tail, whose server was killed."""
    with server(snapshot_records=300) as running:
        api = api_of(running)
        for first in range(0, NAMES, AT_ONCE):
            names = [f"job-{number}" for number in range(first, first + AT_ONCE)]
            claimed = api.post("/claims", {"all": names, "ttl_seconds": LONG, "owner": "ana"}).json()
            for lease in claimed["claims"][::5]:
                assert api.release(lease["name"], lease["lease_id"]).status == 200
        api.new_session(ttl_seconds=LONG)
        api.close()
        running.kill()
        # The lock tells when a move has opened the directory.
        data = tmp_path_factory.mktemp("used") / "data"
        yield Path(shutil.copytree(running.data, data, ignore=shutil.ignore_patterns(LOCK)))


def moving(data: Path, schema: str, kill_after: float | None) -> tuple[float, int]:
    """Move in a process of its own. Kill it so many seconds after it opened the directory, if it is not over by then.

    Return how long it took from then on, and how it ended.
    """
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
        "HOLDFAST_STORE": postgres.shared_url(),
        "HOLDFAST_STORE_SCHEMA": schema,
    }
    command = [sys.executable, "-m", "holdfast", "move", "--from", str(data)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while process.poll() is None and not (data / LOCK).exists():
            time.sleep(0.001)
        began = time.monotonic()
        try:
            _, said = process.communicate(timeout=60 if kill_after is None else kill_after)
        except subprocess.TimeoutExpired:
            process.kill()
            _, said = process.communicate()
        assert process.returncode in {0, -9}, said.decode()
        return time.monotonic() - began, process.returncode


def served(journal: Journal) -> tuple[Any, ...] | None:
    """Return all that a server would have on a store; None if it would not start."""
    try:
        return all_of(journal)
    except JournalError:
        return None


def directory_of(data: Path) -> SqliteJournal:
    return SqliteJournal(data, disk_reserve_bytes=0, witnesses=(KEY,))


def store_of(schema: str) -> PostgresJournal:
    """The journal of a node that makes no store where there is none."""
    peer = Peer(node="n", process="p", url="http://n", version=__version__, format_max=FORMAT, tokens="")
    return PostgresJournal(postgres.shared_url(), peer, term_id=postgres.new_schema(), schema=schema)


def test_move_killed_anywhere_leaves_at_most_one_side(used: Path, tmp_path: Path) -> None:
    """Whenever a move is killed, at most one of directory and store can be served from, with all that there was.

    A second move ends it: the store has everything, fencing tokens go on where they were, the directory is refused.
    """
    complete = Path(shutil.copytree(used, tmp_path / "whole"))
    before = all_of(directory_of(Path(shutil.copytree(used, tmp_path / "before"))))
    assert len(before[2]) > NAMES // 2 and len(before[1]) > NAMES // AT_ONCE
    seconds, _ = moving(complete, postgres.new_schema(), None)
    chance, found = random.Random(7), []
    for number in range(KILLS):
        data = Path(shutil.copytree(used, tmp_path / f"data-{number}"))
        schema = postgres.new_schema()
        # The last steps are the shortest, and matter most: every other kill is near them.
        moment = chance.uniform(0, 1.1) if number % 2 else chance.uniform(0.8, 1.05)
        moving(data, schema, moment * seconds)
        directory, store = served(directory_of(data)), served(store_of(schema))
        assert directory is None or store is None, f"{moment}: both are served"
        assert {repr(each) for each in (directory, store) if each is not None} <= {repr(before)}
        found.append("directory" if directory is not None else "store" if store is not None else "neither")
        assert moving(data, schema, None)[1] == 0
        assert served(store_of(schema)) == before and served(directory_of(data)) is None
        shutil.rmtree(data)
    print(f"killed {KILLS} moves of {seconds:.2f} s; served afterwards: {found}")
