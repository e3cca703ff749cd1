"""`holdfast move`: all that a directory holds, in a store. Interrupted anywhere, one of the two counts, never both."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine import snapshot
from holdfast.engine.recovery import replay
from holdfast.journal.interface import HeldQuery, HistoryQuery, Journal, JournalError, Snapshot
from holdfast.journal.postgres.admin import PostgresWriter
from holdfast.journal.sqlite import watermark
from holdfast.journal.sqlite.inspect import inspect
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.testing import RunningServer, server
from tests.cli.stores.conftest import Ask, Leader, Serve
from tests.support import postgres
from tests.support.api import Api
from tests.support.checks import wait_until
from tests.support.compactor import archived_by_now

LONG = 3_600


@pytest.fixture
def stopped() -> Iterator[RunningServer]:
    """A server that was used and killed: leases, ends, a line, a session, tokens, done work, an archive and a tail."""
    with server(snapshot_records=40) as running:
        api = api_of(running)
        leases = {f"job-{number}": api.acquired(f"job-{number}", ttl_seconds=LONG) for number in range(30)}
        for number in range(0, 30, 2):
            name = f"job-{number}"
            assert api.release(name, leases[name]["lease_id"], outcome="done", remember_seconds=LONG).status == 200
        session = api.new_session(ttl_seconds=LONG)
        assert api.post("/tokens", {"name": "ci", "scopes": ["read"]}).status == 201
        wait_until(lambda: archived_by_now(running.data) >= 40)
        for number in range(5):
            api.acquired(f"late-{number}", ttl_seconds=LONG, metadata="who knows", session_id=session["session_id"])
        assert api.acquire("job-1", wait_seconds=0.1, ttl_seconds=LONG).json()["status"] == "waiting"
        api.close()
        running.kill()
        yield running


def api_of(running: RunningServer) -> Api:
    return Api("127.0.0.1", int(running.url.rpartition(":")[2]), running.token)


def all_of(journal: Journal) -> tuple[Any, ...]:
    """What a start reads, and what looks back show."""

    async def look() -> tuple[Any, ...]:
        try:
            recovered = await journal.open()
            state = snapshot.load(recovered.values)
            replay(state, recovered.records)
            history = await journal.history(HistoryQuery(limit=10_000))
            held = await journal.held(HeldQuery(seq=state.seq, limit=10_000))
            shown = [(each.name, each.lease, each.granted_seq) for each in held.held]
            return state.freeze(), history.records, shown, journal.history_begins_after
        finally:
            await journal.close()

    return asyncio.run(look())


def moving(directory: Path, schema: str, failpoint: str = "") -> subprocess.CompletedProcess[str]:
    """Move in a process of its own, which may be killed at a point."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
        "HOLDFAST_STORE": postgres.shared_url(),
        "HOLDFAST_STORE_SCHEMA": schema,
    }
    if failpoint:
        environment |= {"HOLDFAST_TESTING": "1", "HOLDFAST_FAILPOINTS": failpoint}
    command = [sys.executable, "-m", "holdfast", "move", "--from", str(directory)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def is_beyond(data: Path, last: int) -> bool:
    return archived_by_now(data) > last


def is_filled(schema: str) -> bool:
    return postgres.shared().sql(f"SELECT to_regclass('{schema}.seat') IS NOT NULL") == "t"


def test_everything_is_moved(ask: Ask, stopped: RunningServer, schema: str) -> None:
    """The store has the state, the tail, the history, who held what, and the key, as the directory had them."""
    before = all_of(SqliteJournal(stopped.data, disk_reserve_bytes=0))
    done = ask("move", "--from", stopped.data, "--json")
    assert done.returncode == 0, done.stderr
    reply = json.loads(done.stdout)
    assert (reply["status"], reply["leases"], reply["tokens"], reply["was_done"]) == ("moved", 20, 2, False)
    node = Leader(schema)
    assert all_of(node._journal) == before
    key = asyncio.run(key_of(Leader(schema)))
    assert key == (stopped.data / "authority.key").read_bytes()


async def key_of(node: Leader) -> bytes:
    try:
        return await node._journal.key()
    finally:
        await node._journal.close()


def test_a_node_goes_on_where_the_server_stopped(ask: Ask, serve: Serve, schema: str) -> None:
    """The holder of a lease renews it with the same token and lease id, and the next fencing token is the next one."""
    with server() as running:
        api = api_of(running)
        lease = api.acquired("job", ttl_seconds=LONG)
        api.close()
        running.stop()
        assert ask("move", "--from", running.data).returncode == 0
        node = serve("node-a")
        port = int(node.said(r"listening on http://127\.0\.0\.1:(\d+)")[0][1])
        api = Api("127.0.0.1", port, running.token)
        assert api.renew("job", lease["lease_id"], ttl_seconds=LONG).status == 200
        assert api.acquired("next", ttl_seconds=LONG)["fencing_token"] == lease["fencing_token"] + 1
        api.close()


def test_next_term_has_a_higher_epoch(ask: Ask, stopped: RunningServer, schema: str) -> None:
    """A move takes the directory's leadership: the epoch in the store is one more than that of the last server."""
    epoch = inspect(stopped.data).epoch
    assert json.loads(ask("move", "--from", stopped.data, "--json").stdout)["epoch"] == epoch + 1
    assert json.loads(ask("nodes", "--store", postgres.shared_url(), "--json").stdout)["epoch"] == epoch + 1


def test_moved_directory_starts_no_server(ask: Ask, stopped: RunningServer) -> None:
    """Both would give out the same fencing tokens: the directory is refused, and says where its content is."""
    assert ask("move", "--from", stopped.data).returncode == 0
    done = ask("serve", "--data", stopped.data, "--listen", "127.0.0.1:0", HOLDFAST_STORE="")
    assert done.returncode == 74 and "was moved to postgresql://" in done.stderr, done.stderr
    assert "holdfast serve --store" in done.stderr
    done = ask("doctor", "--data", stopped.data)
    assert done.returncode == 2 and "was moved to postgresql://" in done.stdout
    again = ask("move", "--from", stopped.data, HOLDFAST_STORE_SCHEMA=postgres.new_schema())
    assert again.returncode == 2 and "already, and counts no more" in again.stderr


def test_a_store_that_is_not_empty_is_refused(ask: Ask, stopped: RunningServer, schema: str) -> None:
    """Nothing is written over an authority, and the directory still counts."""
    asyncio.run(Leader(schema).once())
    done = ask("move", "--from", stopped.data)
    assert done.returncode == 2 and "is not empty" in done.stderr and "HOLDFAST_STORE_SCHEMA" in done.stderr
    assert done.stderr.endswith("or another database. If nobody needs what is there, drop the schema, and move again\n")
    stopped.restart()


def test_a_directory_that_is_in_use_is_refused(ask: Ask, stopped: RunningServer, schema: str) -> None:
    """The directory is locked first: while a server uses it, nothing is moved, and no option is named in vain."""
    stopped.restart()
    done = ask("move", "--from", stopped.data)
    assert done.returncode == 2, done.stderr
    assert done.stderr == f"holdfast: another server has {stopped.data} open. Stop it first\n"
    assert not is_filled(schema)


def test_a_directory_without_a_journal_is_refused(ask: Ask, tmp_path: Path, schema: str) -> None:
    """An empty folder is no directory to move, and none is made of it."""
    done = ask("move", "--from", tmp_path)
    assert done.returncode == 2 and "authority.key is missing" in done.stderr
    (tmp_path / "authority.key").write_bytes(b"k" * 32)
    (tmp_path / "authority.key").chmod(0o600)
    done = ask("move", "--from", tmp_path)
    assert done.returncode == 2 and "journal.sqlite3 is missing" in done.stderr
    assert not is_filled(schema)


@pytest.mark.parametrize("point", ["move_mid", "move_before_mark"])
def test_killed_while_it_copies_nothing_is_there(stopped: RunningServer, schema: str, point: str) -> None:
    """Killed before the last step, the directory is as good as before, and the store is empty."""
    assert moving(stopped.data, schema, f"{point}=kill").returncode == -signal.SIGKILL
    assert not is_filled(schema)
    stopped.restart()
    assert api_of(stopped).status("job-1").json()["status"] == "held"


@pytest.mark.parametrize(("point", "is_there"), [("move_before_commit", False), ("move_after_commit", True)])
def test_killed_at_its_last_step_a_second_move_finds_out(
    ask: Ask, stopped: RunningServer, schema: str, point: str, is_there: bool
) -> None:
    """Killed around the commit, neither is served until a second move knows which of the two counts."""
    before = all_of(SqliteJournal(stopped.data, disk_reserve_bytes=0))
    assert moving(stopped.data, schema, f"{point}=kill").returncode == -signal.SIGKILL
    assert is_filled(schema) == is_there
    done = ask("serve", "--data", stopped.data, "--listen", "127.0.0.1:0", HOLDFAST_STORE="")
    assert done.returncode == 74 and "interrupted at its last step" in done.stderr
    reply = json.loads(ask("move", "--from", stopped.data, "--json").stdout)
    assert reply["was_done"] == is_there
    assert all_of(Leader(schema)._journal) == before
    moved = watermark.read_moved(stopped.data)
    assert moved is not None and moved.is_done


@pytest.mark.parametrize("point", ["move_before_commit", "move_after_commit"])
def test_an_interrupted_move_goes_on_to_no_other_store(stopped: RunningServer, schema: str, point: str) -> None:
    """Killed around the commit, the directory is moved to no other store: the first may count, and both would."""
    assert moving(stopped.data, schema, f"{point}=kill").returncode == -signal.SIGKILL
    left, other = watermark.read_moved(stopped.data), postgres.new_schema()
    done = moving(stopped.data, other)
    assert done.returncode == 2 and f"(schema {schema}) was interrupted at its last step" in done.stderr
    assert not is_filled(other) and watermark.read_moved(stopped.data) == left
    assert moving(stopped.data, schema).returncode == 0 and is_filled(schema)


def test_move_refuses_a_copy_that_differs(
    ask: Ask, stopped: RunningServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is read back before it counts: one value that is another is found out."""
    put = PostgresWriter.end

    async def spoil(store: PostgresWriter, source: Snapshot) -> None:
        await put(store, source)
        await store._connection._db.execute(f"DELETE FROM {schema}.history WHERE seq = 3")

    monkeypatch.setattr(PostgresWriter, "end", spoil)
    done = ask("move", "--from", stopped.data)
    assert done.returncode == 2 and "is not what was put there" in done.stderr
    assert not is_filled(schema)
    stopped.restart()


def test_a_lease_older_than_the_history_is_held_in_the_store(ask: Ask, schema: str) -> None:
    """A lease whose grant is in no history any more is moved with who holds it."""
    with server(snapshot_records=1, history_days=0) as running:
        api = api_of(running)
        for name in ("old", "new"):
            last = archived_by_now(running.data)
            api.acquired(name, ttl_seconds=LONG)
            wait_until(partial(is_beyond, running.data, last))
        api.close()
        running.kill()
        assert ask("move", "--from", running.data).returncode == 0
    _, _, held, _ = all_of(Leader(schema)._journal)
    assert [name for name, _, _ in held] == ["new", "old"]


def test_the_key_is_sealed_if_there_is_a_secret(ask: Ask, stopped: RunningServer, schema: str, tmp_path: Path) -> None:
    """With `store_secret_file` the authority's key does not stand in the store as it is."""
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("a secret of all nodes\n")
    assert ask("move", "--from", stopped.data, HOLDFAST_STORE_SECRET_FILE=str(secret)).returncode == 0
    stored_key = postgres.shared().sql(f"SELECT encode(key, 'hex') FROM {schema}.authority")
    assert (stopped.data / "authority.key").read_bytes().hex() not in stored_key
    with pytest.raises(JournalError, match="is sealed"):
        asyncio.run(key_of(Leader(schema)))
