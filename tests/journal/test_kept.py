"""Data directories of earlier releases are opened, read as they were meant, and served from.

`kept/` has a folder for each release, made by the code of that release; `kept/make.py` says how the next is added.
"""

import contextlib
import json
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import apsw
import msgspec
import pytest

from holdfast.core.events import Event
from holdfast.journal.codec import FORMAT, seal
from holdfast.journal.inspect import dump, inspect
from holdfast.journal.sqlite import FILE
from tests.engine.driving import run
from tests.journal.kept.reading import KEPT, differences, expected_of, history_of, replayed, snapshot_in
from tests.journal.kept.scene import comparable
from tests.support.api import Api
from tests.support.server import ServerFailed, ServerProcess

NEWER_THAN_KEPT: frozenset[str] = frozenset()
"""Kinds of records that no release has written yet, only the tree: emptied when a release adds its directory."""

DIRECTORIES = sorted(path.parent for path in KEPT.glob("*/*/expected.json"))
ids = [f"{path.parent.name}-{path.name}" for path in DIRECTORIES]
each_directory = pytest.mark.parametrize("kept", DIRECTORIES, ids=ids)


def copied(kept: Path, tmp_path: Path) -> Path:
    data = Path(shutil.copytree(kept / "data", tmp_path / "data"))
    # As the release had them: whoever keeps a project keeps no modes.
    data.chmod(0o700)
    for file in data.iterdir():
        file.chmod(0o600)
    return data


@each_directory
def test_snapshot_is_read_as_it_was(kept: Path, tmp_path: Path) -> None:
    """The snapshot that an earlier release wrote holds for today's code what it held for that release (I15)."""
    data = copied(kept, tmp_path)
    shown = json.loads(json.dumps(run(lambda _clock: snapshot_in(data))))
    assert list(differences(expected_of(kept)["snapshot"], shown, "snapshot")) == []


@each_directory
def test_state_is_what_it_was(kept: Path, tmp_path: Path) -> None:
    """Snapshot and records of an earlier release lead to the state that they led to then, field by field (I5)."""
    state = replayed(copied(kept, tmp_path))
    assert list(differences(expected_of(kept)["state"], state, "state")) == []


@each_directory
def test_history_is_what_it_was(kept: Path, tmp_path: Path) -> None:
    """Every record that an earlier release kept is shown as that release showed it, and nothing is wrong with it."""
    data = copied(kept, tmp_path)
    assert inspect(data).problems == ()
    shown = json.loads(json.dumps(list(dump(data))))
    assert list(differences(history_of(kept), shown, "record")) == []


@each_directory
def test_server_answers_as_it_did(kept: Path, tmp_path: Path) -> None:
    """A server of today on a directory of an earlier release answers as that release did: owners, notes and metadata
    are there, places in line are come back to, secrets of sessions work, and keys get their old answers (C5).
    """
    expected = expected_of(kept)
    with ServerProcess.start(copied(kept, tmp_path), tokens=expected["tokens"]) as server:
        for asked in expected["questions"]:
            headers = {} if asked["key"] is None else {"Idempotency-Key": asked["key"]}
            answer = Api.of(server, asked["token"]).request(
                asked["method"], asked["path"], asked["body"], headers=headers
            )
            got = [answer.status, comparable(asked, answer.json() if answer.body else None)]
            assert list(differences(asked["answer"], got, asked["what"])) == [], f"{asked['path']}: {answer}"


def test_killed_server_left_its_last_record_in_the_wal(tmp_path: Path) -> None:
    """The directory of a server that was killed is one: without its WAL, the last claim is not in it."""
    for kept in KEPT.glob("*/killed"):
        data = Path(shutil.copytree(kept / "data", tmp_path / kept.parent.name))
        (data / f"{FILE}-wal").unlink()
        # Since 0.2 the mark knows how far the journal had come, and would refuse it.
        (data / "journal.mark").unlink(missing_ok=True)
        assert "slots" in expected_of(kept)["state"]
        assert "slots" not in replayed(data)


def newer_frame(_seq: int) -> bytes:
    return struct.pack("<BII", FORMAT + 1, 3, zlib.crc32(b"new")) + b"new"


def newer_record(seq: int) -> bytes:
    return seal(msgspec.msgpack.encode([seq, 10**9, 10**12, ["of_a_kind_to_come", "job"]]))


@pytest.mark.parametrize("newer", [newer_frame, newer_record])
def test_newer_directory_is_refused_with_what_to_do(newer: Callable[[int], bytes], tmp_path: Path) -> None:
    """A directory that a newer release wrote to is not served from, keeps its records, and the text says what to do."""
    data = copied(DIRECTORIES[-1], tmp_path)
    seq = history_of(DIRECTORIES[-1])[-1]["seq"] + 1
    with contextlib.closing(apsw.Connection(str(data / FILE))) as db:
        db.execute("INSERT INTO batch (first_seq, last_seq, body) VALUES (?, ?, ?)", (seq, seq, newer(seq)))
        before = db.execute("SELECT * FROM batch").fetchall()
    with pytest.raises(ServerFailed, match="If a newer version of Holdfast wrote it, start that one") as failure:
        ServerProcess.start(data)
    assert failure.value.returncode == 74, failure.value.output
    with contextlib.closing(apsw.Connection(str(data / FILE))) as db:
        assert db.execute("SELECT * FROM batch").fetchall() == before


def test_every_kind_of_record_is_kept() -> None:
    """Every kind of record was written by some release whose directory is kept.

    A new kind goes into NEWER_THAN_KEPT until the release that has it adds its directory: see `kept/make.py`.
    """
    kinds = {str(kind.__struct_config__.tag): kind.__name__ for kind in get_args(Event)}
    kept = {kinds[record["event"]] for path in DIRECTORIES for record in history_of(path)}
    assert set(kinds.values()) - kept == NEWER_THAN_KEPT
