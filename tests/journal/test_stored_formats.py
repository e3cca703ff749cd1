"""What earlier releases wrote is opened, read as it was meant, and served from.

`kept/` has a folder for each release, made by the code of that release; `kept/make.py` says how the next is added.
"""

import asyncio
import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import apsw
import msgspec
import pytest

from holdfast.core.events import Event
from holdfast.engine.restore import read_backup, restore, start_after
from holdfast.journal.codec import FORMAT
from holdfast.journal.sqlite.inspect import dump, inspect
from holdfast.journal.sqlite.journal import FILE
from tests.journal.kept.reader import STORED, differences, expected_of, history_of, rows_of, state_in
from tests.journal.kept.scene import comparable
from tests.journal.records import framed
from tests.support.api import Api
from tests.support.server import ServerFailed, ServerProcess

NOT_IN_THE_SCENE = frozenset({"TokenRevoked"})
"""Kinds of records that take a server with other settings."""
NEWER_THAN_STORED: frozenset[str] = frozenset()
"""Kinds of records that no release has written yet, only the tree: emptied when a release adds its folder."""

FOLDERS = sorted(path.parent for path in STORED.glob("*/expected.json"))
each_release = pytest.mark.parametrize("stored", FOLDERS, ids=[path.name for path in FOLDERS])


def copy_data(stored: Path, tmp_path: Path) -> Path:
    data = Path(shutil.copytree(stored / "data", tmp_path / "data"))
    # As the release had them: whoever keeps a project keeps no modes.
    data.chmod(0o700)
    for file in data.iterdir():
        file.chmod(0o600)
    return data


@each_release
def test_release_is_read_as_it_was(stored: Path, tmp_path: Path) -> None:
    """State and history of an earlier release, and those in its backup, are what they were, field by field (I5, I15).

    A server on its directory answers as that release did: owners, notes and metadata are there, places in line are
    come back to, secrets of sessions work, and keys get their old answers (C5).
    """
    data, expected = copy_data(stored, tmp_path), expected_of(stored)
    assert inspect(data).problems == []
    shown = json.loads(json.dumps(list(dump(data))))
    assert list(differences(history_of(stored), shown, "record")) == []
    assert list(differences(expected["state"], rows_of(read_backup(stored / "backup").frozen), "backup")) == []
    with ServerProcess.start(data, tokens=expected["tokens"]) as server:
        for asked in expected["questions"]:
            headers = {} if asked["key"] is None else {"Idempotency-Key": asked["key"]}
            answer = Api.of(server, asked["token"]).request(
                asked["method"], asked["path"], asked["body"], headers=headers
            )
            got = [answer.status, comparable(asked, answer.json() if answer.body else None)]
            assert list(differences(asked["answer"], got, asked["what"])) == [], f"{asked['path']}: {answer}"


@each_release
def test_stored_state_is_unchanged(stored: Path, tmp_path: Path) -> None:
    """Archive and records of an earlier release lead to the state that they led to then, field by field (I5)."""
    state = asyncio.run(state_in(copy_data(stored, tmp_path)))
    assert list(differences(expected_of(stored)["state"], state, "state")) == []


@each_release
def test_backup_is_restored(stored: Path, tmp_path: Path) -> None:
    """A backup of an earlier release makes a directory with the same state and history; only counters jump (I15)."""
    contents = read_backup(stored / "backup")
    start = start_after(contents, contents.about.wall_ms)
    how: dict[str, Any] = {"key_file": "authority.key", "wall_ms": contents.about.wall_ms, "version": "test"}
    restore(stored / "backup", contents, start, tmp_path / "data", tell=lambda _records: None, **how)
    assert inspect(tmp_path / "data").problems == []
    expected = expected_of(stored)["state"]
    assert list(differences(expected | {"head": []}, asyncio.run(state_in(tmp_path / "data")) | {"head": []}, "")) == []
    shown = json.loads(json.dumps(list(dump(tmp_path / "data"))))
    numbers = {record["seq"] for record in shown}
    of_before = [record for record in history_of(stored) if record["seq"] in numbers]
    assert list(differences(of_before, shown[:-1], "record")) == [] and len(of_before) > 150
    assert shown[-1]["event"] == "restored"


def test_killed_server_left_its_last_records_in_the_wal(tmp_path: Path) -> None:
    """The kept directory is one of a server that was killed: without its WAL the last records are not in it."""
    data = copy_data(FOLDERS[-1], tmp_path)
    (data / f"{FILE}-wal").unlink()
    (data / "journal.mark").unlink()
    assert asyncio.run(state_in(data)) != expected_of(FOLDERS[-1])["state"]


def newer_frame(_seq: int) -> bytes:
    return framed(b"new", FORMAT + 1)


def newer_record(seq: int) -> bytes:
    return framed(msgspec.msgpack.encode([seq, 10**9, 10**12, ["of_a_kind_to_come", "job"]]))


@pytest.mark.parametrize("newer", [newer_frame, newer_record])
def test_newer_directory_error_names_the_remedy(newer: Callable[[int], bytes], tmp_path: Path) -> None:
    """A directory that a newer release wrote to is not served from, keeps its records, and the text says what to do."""
    data = copy_data(FOLDERS[-1], tmp_path)
    seq = history_of(FOLDERS[-1])[-1]["seq"] + 1
    with contextlib.closing(apsw.Connection(str(data / FILE))) as db:
        db.execute("INSERT INTO batch (first_seq, last_seq, body) VALUES (?, ?, ?)", (seq, seq, newer(seq)))
        before = db.execute("SELECT * FROM batch").fetchall()
    with pytest.raises(ServerFailed, match="If a newer version of Holdfast wrote it, start that one") as failure:
        ServerProcess.start(data)
    assert failure.value.returncode == 74, failure.value.output
    with contextlib.closing(apsw.Connection(str(data / FILE))) as db:
        assert db.execute("SELECT * FROM batch").fetchall() == before


def test_stored_data_has_every_kind_of_record() -> None:
    """Every kind of record was written by some release whose directory is kept.

    A new kind goes into NEWER_THAN_STORED until the release that has it adds its folder: see `kept/make.py`.
    """
    kinds = {str(kind.__struct_config__.tag): kind.__name__ for kind in get_args(Event)}
    stored = {kinds[record["event"]] for path in FOLDERS for record in history_of(path)}
    assert set(kinds.values()) - stored - NOT_IN_THE_SCENE == NEWER_THAN_STORED
