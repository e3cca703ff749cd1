"""`holdfast store` and `holdfast nodes --store`: a store that nodes share, made and mended without a node."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.journal.interface import SharedJournal
from tests.cli.stores.conftest import Ask, Leader, leading
from tests.support import postgres


def test_a_store_is_made_once(ask: Ask) -> None:
    """`store init` makes an authority where there is none, and leaves the one that is there (N-6)."""
    done = ask("store", "init", "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["status"] == "made" and len(made["authority"]) == 32
    again = json.loads(ask("store", "init", "--json").stdout)
    assert again == {**made, "status": "there"}
    assert f"has an authority already: {made['authority']}" in ask("store", "init").stdout


def test_a_node_leads_in_a_store_that_was_made(ask: Ask, schema: str) -> None:
    """What `store init` made is what a node takes its leadership in."""
    made = json.loads(ask("store", "init", "--json").stdout)
    assert ask("nodes", "--store", postgres.shared_url()).returncode == 2
    with leading(Leader(schema)):
        reply = json.loads(ask("nodes", "--store", postgres.shared_url(), "--json").stdout)
    assert (reply["authority"], reply["leader"], reply["epoch"]) == (made["authority"], "node1", 1)
    assert reply["nodes"][0]["url"] == "http://node1:7420"


def test_tables_of_another_version_are_refused(ask: Ask, schema: str) -> None:
    """Tables that this version does not know are left alone, and it is said what to do (N-36)."""
    ask("store", "init")
    postgres.shared().sql(f"UPDATE {schema}.authority SET schema_version = 2")
    done = ask("store", "restored", "--yes")
    assert done.returncode == 2 and "has tables of version 2" in done.stderr and "Start that version" in done.stderr


def test_missing_store_is_reported(ask: Ask) -> None:
    """Nothing is made by a look: who asks for a store that is not there is told how to make it."""
    done = ask("store", "restored", "--yes")
    assert done.returncode == 2 and "holdfast store init" in done.stderr, done.stderr
    done = ask("nodes", "--store", postgres.shared_url())
    assert done.returncode == 69 and "has no authority" in done.stderr


def test_unreachable_server_is_reported(ask: Ask) -> None:
    """A database that cannot be reached is one line, and no traceback."""
    url = f"postgresql://nobody@127.0.0.1:{postgres.free_port()}/x"
    done = ask("store", "init", HOLDFAST_STORE=url)
    assert done.returncode == 2 and "cannot be asked" in done.stderr and done.stderr.count("\n") == 1


def test_restored_adds_a_token_gap_to_the_next_term(ask: Ask, schema: str) -> None:
    """After a restore from a backup the next leader begins with `Restored` (N-22)."""
    asyncio.run(Leader(schema).once())
    done = ask("store", "restored", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["epoch"] == 3
    journal = Leader(schema, "node2")._journal

    async def needs_token_gap(journal: SharedJournal) -> tuple[int, bool]:
        found = await journal.open()
        await journal.close()
        return found.epoch, found.needs_token_gap

    assert asyncio.run(needs_token_gap(journal)) == (3, True)


def test_restored_is_refused_while_a_node_leads(ask: Ask, schema: str) -> None:
    """A leader that lives is not deposed: it is said which one has to be stopped."""
    with leading(Leader(schema)):
        done = ask("store", "restored", "--yes", HOLDFAST_TAKEOVER_SECONDS="1")
    assert done.returncode == 2
    assert "node1 at http://node1:7420 leads (epoch 1)" in done.stderr and "Stop all nodes" in done.stderr


def test_restored_deposes_a_leader_that_was_killed(ask: Ask, schema: str) -> None:
    """A leadership that nobody gave back, and that does not beat, is taken as a follower would take it (N-13)."""
    asyncio.run(Leader(schema).once(gives_back=False))
    done = ask("store", "restored", "--yes", HOLDFAST_TAKEOVER_SECONDS="1")
    assert done.returncode == 0, done.stderr


def test_restored_asks_first(ask: Ask, schema: str) -> None:
    """What cannot be taken back is not done without a word, and where nobody can be asked not at all."""
    asyncio.run(Leader(schema).once())
    done = ask("store", "restored")
    assert done.returncode == 64 and "--yes" in done.stderr
    assert postgres.shared().sql(f"SELECT wants_jump FROM {schema}.seat") == "f"


@pytest.mark.parametrize(("said", "code", "wants_token_gap"), [("n", 2, "f"), ("y", 0, "t")])
def test_restored_follows_the_answer(schema: str, said: str, code: int, wants_token_gap: str) -> None:
    """On a terminal it asks, and only a yes is one."""
    asyncio.run(Leader(schema).once())
    ours, theirs = pty.openpty()
    os.write(ours, f"{said}\n".encode())
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    env = {**clean, "HOLDFAST_STORE": postgres.shared_url(), "HOLDFAST_STORE_SCHEMA": schema}
    command = [sys.executable, "-m", "holdfast", "store", "restored"]
    done = subprocess.run(command, env=env, stdin=theirs, capture_output=True, text=True, timeout=60, check=False)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == code and "cannot be taken back" in done.stderr, done.stderr
    assert postgres.shared().sql(f"SELECT wants_jump FROM {schema}.seat") == wants_token_gap


def test_a_password_comes_from_the_environment_or_a_file(ask: Ask, tmp_path: Path) -> None:
    """PGPASSWORD and the file of PGPASSFILE let in, nothing else does, and no line shows the password."""
    with postgres.running("secret") as server:
        server.sql("CREATE ROLE h LOGIN SUPERUSER PASSWORD 'hunter2'")
        rules = server.data / "pg_hba.conf"
        rules.write_text(f"host all h 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        server.reload()
        url = server.url.replace("postgres@", "h@")
        file = tmp_path / "pgpass"
        file.touch(mode=0o600)
        file.write_text("*:*:*:h:hunter2\n")
        tries = [{}, {"PGPASSWORD": "wrong"}, {"PGPASSWORD": "hunter2"}, {"PGPASSFILE": str(file)}]
        done = [ask("store", "init", "--store", url, HOME=str(tmp_path), **each) for each in tries]
    assert [each.returncode for each in done] == [2, 2, 0, 0], done
    assert "password" in done[1].stderr
    assert not any("hunter2" in each.stdout + each.stderr for each in done)


def test_a_password_is_taken_from_no_command_line(ask: Ask) -> None:
    """Who types a password is told where it belongs, and the line does not repeat it."""
    for command in (["store", "init", "--store"], ["nodes", "--store"], ["doctor", "--store"], ["serve", "--store"]):
        done = ask(*command, "postgresql://h:hunter2@db/x")
        assert done.returncode == 64 and "PGPASSFILE" in done.stderr and "hunter2" not in done.stderr, command


def test_missing_store_option_is_reported(ask: Ask) -> None:
    """Without an address there is nothing to do."""
    done = ask("store", "init", HOLDFAST_STORE="")
    assert done.returncode == 64 and "no store is named" in done.stderr
