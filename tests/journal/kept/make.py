"""Makes the data directory and the backup of one release, to be opened by every later one.

    python -m tests.journal.kept.make

Run it in the tree of the release itself, when its version is set and before it is tagged, and commit what it wrote. It
makes a folder with the number of the version, and refuses if a release has made it: what a release wrote is never made
again. In a development version it replaces the folder of that version, until the release is made.

    kept/VERSION/
        data/              a data directory whose server was killed: its last records are in the WAL alone
        backup             a backup of it
        expected.json      the durable state as that release read it, and how it answered some requests
        history.jsonl      every record that is kept, as that release shows it

`scene` has the requests, which write every kind of record: before a snapshot, after it, and as history. The server runs
on a clock that moves whenever the scene waits.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast import __version__
from holdfast.api.auth.auth import Auth, StaticTokens
from holdfast.api.auth.secrets import KEY_FILE, AuthorityKey
from holdfast.api.router import Routes
from holdfast.api.service import ApiService
from holdfast.config import Settings
from holdfast.core.values import Limits
from holdfast.engine.backup import BackupWriter, backup_of_directory
from holdfast.engine.engine import Engine
from holdfast.engine.restore import read_backup, restore, start_after
from holdfast.journal.sqlite.inspect import dump
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.server.components import OPERATIONS
from holdfast.testing.clock import ManualClock
from tests.engine.harness import run
from tests.journal.kept.reader import STORED, state_in
from tests.journal.kept.scene import OPERATOR, Plain, World, comparable, everything, questions

TOKENS = f"operator:{OPERATOR}:read+claim+admin"
"""The one token that is in no journal: a server on a kept directory must be started with it."""
LIMITS = Limits(retry_memory_ms=30_000, retry_bytes_max=16_000, ended_bytes_max=2_600)
"""Small, so that records tell of what was forgotten."""


@asynccontextmanager
async def _serving(directory: Path, clock: ManualClock, limits: Limits = LIMITS) -> AsyncIterator[tuple[World, Engine]]:
    """Start a server of this release on a directory, and stop it at the end."""
    engine = Engine(SqliteJournal(directory, disk_reserve_bytes=0), limits, clock=clock, version=__version__)
    await engine.start()
    try:
        auth = Auth(StaticTokens.parse(TOKENS), AuthorityKey.load(directory))
        api = ApiService(engine, auth, Settings(data=directory))
        ticking = asyncio.create_task(_tick(api))
        yield World(Routes(api, OPERATIONS)), engine
        ticking.cancel()
        api.end()
    finally:
        await engine.stop()


async def _tick(api: ApiService) -> None:
    while True:
        await asyncio.sleep(1)
        api.tick()


def _make_data(directory: Path) -> list[dict[str, Plain]]:
    """Make a directory that was restored from a backup once and whose server was then killed: return the questions."""

    async def first(clock: ManualClock) -> dict[str, Plain]:
        async with _serving(lost, clock) as (world, engine):
            left = await everything(world, "before")
            await engine.archive()
        return left

    async def second(clock: ManualClock) -> dict[str, Plain]:
        async with _serving(alive, clock) as (world, _):
            return await everything(world, "after")

    async def third(clock: ManualClock) -> None:
        async with _serving(alive, clock) as (world, _):
            await world.acquire("last", token=OPERATOR, owner="ana", ttl_seconds=86_400)
            # Its files are taken while it runs, as a kill leaves them.
            shutil.copytree(alive, directory, ignore=shutil.ignore_patterns("*.lock", "*-shm"))

    with tempfile.TemporaryDirectory() as folder:
        lost, alive, file = (Path(folder) / name for name in ("lost", "alive", "backup"))
        before = run(first)
        wall_ms = _back_up(lost, file)
        contents = read_backup(file)
        start = start_after(contents, wall_ms + 1_000)
        how: dict[str, Any] = {"key_file": KEY_FILE, "wall_ms": wall_ms + 1_000, "version": __version__}
        restore(file, contents, start, alive, tell=lambda _records: None, **how)
        after = run(second)
        run(third)
    old = [each for each in questions("before", before) if each["what"] != "a closed name is still closed"]
    return [*questions("after", after), *old]


def _back_up(directory: Path, file: Path) -> int:
    """Write a backup of a directory; return when it was made."""
    wall_ms = ManualClock().wall_ms()
    pieces = backup_of_directory(directory, (directory / KEY_FILE).read_bytes(), __version__, wall_ms, BackupWriter())
    file.write_bytes(b"".join(pieces))
    return wall_ms


def _answer(directory: Path, asked: list[dict[str, Plain]]) -> None:
    """Let a server of this release on a directory answer each question."""

    async def scene(clock: ManualClock) -> None:
        async with _serving(directory, clock, Limits()) as (world, _):
            for each in asked:
                status, answer = await world.ask(
                    each["method"], each["path"], each["body"], token=each["token"], key=each["key"]
                )
                each["answer"] = [status, comparable(each, answer)]

    run(scene)


def make(folder: Path) -> None:
    """Make the directory and the backup in a folder, and what is expected of them."""
    folder.mkdir(parents=True)
    data = folder / "data"
    asked = _make_data(data)
    _back_up(data, folder / "backup")
    records = list(dump(data))
    with tempfile.TemporaryDirectory() as copies:
        state = asyncio.run(state_in(Path(shutil.copytree(data, Path(copies) / "data"))))
        _answer(Path(shutil.copytree(data, Path(copies) / "again")), asked)
    expected = {"version": __version__, "tokens": TOKENS, "state": state, "questions": asked}
    (folder / "expected.json").write_text(_by_rows(expected), "utf-8")
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    (folder / "history.jsonl").write_text(lines, "utf-8")


def _by_rows(expected: dict[str, Plain]) -> str:
    """Return JSON with a line for each row and each question, so that two of them can be compared by eye."""

    def rows(items: list[Plain]) -> str:
        return "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False) for item in items) + "\n]"

    tables = ",\n".join(f"{json.dumps(name)}: {rows(items)}" for name, items in expected["state"].items())
    parts = {name: json.dumps(expected[name]) for name in ("version", "tokens")}
    parts |= {"questions": rows(expected["questions"]), "state": "{\n" + tables + "\n}"}
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {text}" for name, text in parts.items()) + "\n}\n"


def main() -> None:
    folder = STORED / __version__
    if folder.exists():
        if "dev" not in __version__:
            sys.exit(f"{folder} is there already: what a release wrote is never made again")
        shutil.rmtree(folder)
    make(folder)
    print(f"made {folder}: commit it")


if __name__ == "__main__":
    main()
