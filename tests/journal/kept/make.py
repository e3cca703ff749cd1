"""Makes the data directories of one release, to be opened by every later one.

    python -m tests.journal.kept.make

Run it in the tree of the release itself, when its version is set and before it is tagged, and commit what it wrote. It
makes a folder with the number of the version, and refuses if there is one: what a release wrote is never made again.
Between two releases it is run before the format of records changes; the folder then has the number of the format too.

    kept/0.1.0/stopped/    a server that stopped: every kind of record, before a snapshot, after it, and as history
    kept/0.1.0/killed/     a server that was killed: its last records stand in the WAL alone
        data/              the data directory itself
        expected.json      the durable state as that release read it, and how it answered some requests
        history.jsonl      every record that is kept, as that release shows it

`scene` has what is asked of the server. The server runs on a clock that moves whenever the scene waits.
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
from holdfast.core.values import Limits
from holdfast.engine.backup import BackupWriter, backup_of_directory
from holdfast.engine.engine import Engine
from holdfast.engine.restore import look_into, restore, start_after
from holdfast.journal.codec import FORMAT
from holdfast.journal.inspect import dump
from holdfast.journal.sqlite import SqliteJournal
from holdfast.server.access.auth import Auth, StaticTokens
from holdfast.server.access.secrets import KEY_FILE, AuthorityKey
from holdfast.server.api import Api
from holdfast.server.doors.asgi import Door
from holdfast.server.operations.routes import Routes
from holdfast.server.operations.table import OPERATIONS
from holdfast.settings import Settings
from holdfast.testing.clock import ManualClock
from tests.engine.driving import run
from tests.journal.kept.reading import KEPT, durable_state, snapshot_in
from tests.journal.kept.scene import OPERATOR, Plain, World, comparable, everything, question, questions

TOKENS = f"operator:{OPERATOR}:read+claim+admin"
"""The one token that stands in no journal: a server on a kept directory must be started with it."""
LIMITS = Limits(retry_memory_ms=30_000, retry_keys_max=26, ended_names_max=9)
"""Small, so that records tell of what was forgotten."""


# Running a server of this release.


@asynccontextmanager
async def _serving(directory: Path, clock: ManualClock, limits: Limits = LIMITS) -> AsyncIterator[tuple[World, Engine]]:
    """Start a server of this release on a directory, and stop it at the end."""
    engine = Engine(SqliteJournal(directory, ballast_bytes=0), limits, clock=clock, version=__version__)
    await engine.start()
    try:
        auth = Auth(StaticTokens.parse(TOKENS), AuthorityKey.load(directory))
        api = Api(engine, auth, Settings(data=directory))
        ticking = asyncio.create_task(_tick(api))
        yield World(Door(Routes(api, OPERATIONS))), engine
        ticking.cancel()
        api.end()
    finally:
        await engine.stop()


async def _tick(api: Api) -> None:
    """Let the server do what it does now and then."""
    while True:
        await asyncio.sleep(1)
        api.tick()


# Making the directories.


def _stopped(directory: Path) -> list[dict[str, Plain]]:
    """Make a directory whose server stopped. It was restored from a backup once, in between."""

    async def first(clock: ManualClock) -> dict[str, Plain]:
        async with _serving(lost, clock) as (world, engine):
            left = await everything(world, "before")
            await engine.archive()
        return left

    async def second(clock: ManualClock) -> dict[str, Plain]:
        async with _serving(directory, clock) as (world, _):
            return await everything(world, "after")

    with tempfile.TemporaryDirectory() as folder:
        lost, file = Path(folder) / "data", Path(folder) / "backup"
        before = run(first)
        restored(lost, file, directory)
    after = run(second)
    old = [each for each in questions("before", before) if each["what"] != "a closed name is still closed"]
    return [*questions("after", after), *old]


def restored(lost: Path, file: Path, directory: Path) -> None:
    """Make a backup of a directory, and another directory of it, a second later."""
    wall_ms = ManualClock().wall_ms()
    pieces = backup_of_directory(lost, (lost / KEY_FILE).read_bytes(), __version__, wall_ms, BackupWriter())
    file.write_bytes(b"".join(pieces))
    contents = look_into(file)
    start = start_after(contents, wall_ms + 1_000)
    how: dict[str, Any] = {"key_file": KEY_FILE, "wall_ms": wall_ms + 1_000, "version": __version__}
    restore(file, contents, start, directory, tell=lambda _told: None, **how)


def _killed(directory: Path) -> list[dict[str, Plain]]:
    """Make a directory whose server was killed: its files are taken while it runs."""

    async def scene(clock: ManualClock) -> list[dict[str, Plain]]:
        with tempfile.TemporaryDirectory() as folder:
            alive = Path(folder) / "data"
            async with _serving(alive, clock) as (world, engine):
                worker = (await world.told("POST", "/tokens", {"name": "worker"}))["token"]
                await engine.archive()
            async with _serving(alive, clock) as (world, engine):
                await world.acquire("held", token=worker, key="held", owner="ana", ttl_seconds=86_400, metadata="m")
                shutil.copytree(alive, directory)
        body = {"owner": "ana", "ttl_seconds": 86_400, "metadata": "m"}
        return [
            question("who holds it", "GET", "/locks/held", None, worker),
            question("a claim is asked again with its key", "POST", "/locks/held/acquire", body, worker, "held"),
        ]

    return run(scene)


def _read(directory: Path, asked: list[dict[str, Plain]]) -> dict[str, Plain]:
    """Return what this release itself reads in a directory; each question gets the answer that it gives."""

    async def scene(clock: ManualClock) -> dict[str, Plain]:
        async with _serving(directory, clock, Limits()) as (world, engine):
            state = durable_state(engine.state)
            for each in asked:
                status, answer = await world.ask(
                    each["method"], each["path"], each["body"], token=each["token"], key=each["key"]
                )
                each["answer"] = [status, comparable(each, answer)]
            return state

    return run(scene)


def make(folder: Path) -> None:
    """Make both directories in a folder, and what is expected of them."""
    for name, maker in (("stopped", _stopped), ("killed", _killed)):
        data = folder / name / "data"
        data.parent.mkdir(parents=True)
        asked = maker(data)
        records = list(dump(data))
        with tempfile.TemporaryDirectory() as copies:
            copy = shutil.copytree(data, Path(copies) / "data")
            state = _read(copy, asked)
            copy = shutil.copytree(data, Path(copies) / "again")
            shown = asyncio.run(snapshot_in(copy))
        expected = {"tokens": TOKENS, "snapshot": shown, "state": state, "questions": asked}
        (data.parent / "expected.json").write_text(_by_rows(expected), "utf-8")
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        (data.parent / "history.jsonl").write_text(lines, "utf-8")


def _by_rows(expected: dict[str, Plain]) -> str:
    """Return JSON with a line for each row and each question, so that two of them can be compared by eye."""

    def rows(items: list[Plain]) -> str:
        return "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False) for item in items) + "\n]"

    def tables(named: dict[str, Plain]) -> str:
        return "{\n" + ",\n".join(f"{json.dumps(name)}: {rows(items)}" for name, items in named.items()) + "\n}"

    parts = {"tokens": json.dumps(expected["tokens"]), "questions": rows(expected["questions"])}
    parts |= {name: tables(expected[name]) for name in ("snapshot", "state")}
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {text}" for name, text in parts.items()) + "\n}\n"


def main() -> None:
    folder = KEPT / (f"{__version__}-format-{FORMAT}" if "dev" in __version__ else __version__)
    if folder.exists():
        sys.exit(f"{folder} is there already: what a release wrote is never made again")
    make(folder)
    print(f"made {folder}: commit it")


if __name__ == "__main__":
    main()
