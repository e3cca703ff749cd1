"""`holdfast doctor --store`: who leads, what the server promises, and what would be lost; a verdict on each."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import Any

import msgspec
import pytest

from holdfast.cli.operators import doctor
from holdfast.engine.migration import StoreAddress
from holdfast.journal.interface import Leadership, Peer
from holdfast.journal.postgres.admin import Facts, Replica
from holdfast.journal.postgres.connection import Server, ServerIdentity
from tests.cli.stores.conftest import Ask, Leader, leading
from tests.contract.tools import archived, grant
from tests.support import postgres

ADDRESS = StoreAddress("postgresql://db/x", "holdfast")
MARKS = ServerIdentity(1, 2, 3, 4)
SERVER = Server(
    identity=MARKS,
    started="1",
    has_standby=True,
    is_pooled=False,
    version=160002,
    settings={"synchronous_commit": "on", "fsync": "on", "full_page_writes": "on"},
)
LEADERSHIP = Leadership(
    authority="a1",
    epoch=7,
    term_id="t",
    heartbeat=12,
    is_held=True,
    node="node1",
    process="p1",
    url="https://node1:7420",
    last_seq=9,
    now_ms=5_000,
    since_wall_ms=1_700_000_000_000,
    format=4,
    version="1.0",
)
PEERS = [
    Peer(
        node=f"node{number}", process=f"p{number}", url="", version="1.0", format_max=4, tokens="same", seen_ms_ago=500
    )
    for number in (1, 2)
]
WELL = Facts(
    server=SERVER,
    leadership=LEADERSHIP,
    identity=MARKS,
    has_standby=True,
    wants_token_gap=False,
    token_gaps=0,
    schema_version=1,
    has_heartbeat=True,
    peers=PEERS,
    replicas=[Replica("standby", "streaming", "sync")],
    size_bytes=1_000_000,
    tail_records=10,
    tail_bytes=1_000,
)


def verdicts(facts: Facts = WELL, round_trip_ms: float = 0.5, **changes: Any) -> dict[str, str]:  # noqa: ANN401 - any field
    """What is said of each thing, with what was changed of a store that is well."""
    found = doctor._store_verdicts(msgspec.structs.replace(facts, **changes), round_trip_ms, ADDRESS)
    return {each.name: f"{each.status} {each.text} -> {each.next}" for each in found}


def checks_of(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_a_store_with_a_leader_is_well(ask: Ask, schema: str) -> None:
    """Of a real store with a leader: who leads, the way there, what the server promises, and what is missing."""
    with leading(Leader(schema)):
        done = ask("doctor", "--store", postgres.shared_url(), "--json")
    assert done.returncode == 0, done.stdout
    checks = checks_of(done)
    assert list(checks) == [
        *("store", "round trip", "leader", "nodes", "tokens", "settings", "pooler", "replicas", "timeline", "writes"),
        *("space", "format", "journal"),
    ]
    assert checks["leader"]["status"] == "ok" and "node1 at http://node1:7420 since" in checks["leader"]["text"]
    assert checks["settings"]["text"] == "synchronous_commit on, fsync on, full_page_writes on"
    assert checks["pooler"]["status"] == checks["timeline"]["status"] == "ok"
    assert checks["nodes"]["status"] == "warn" and "nobody could take over" in checks["nodes"]["next"]
    assert checks["replicas"]["status"] == "warn" and "synchronous_standby_names" in checks["replicas"]["next"]
    assert "postgresql://" in checks["store"]["text"] and f"schema {schema}" in checks["store"]["text"]


DAMAGES = {
    "nothing": "SELECT 1",
    "the tail": "UPDATE {s}.batch SET body = set_byte(body, 20, get_byte(body, 20) # 255)",
    "a gap": "DELETE FROM {s}.batch WHERE first_seq = 3",
    "the history": "UPDATE {s}.history SET body = set_byte(body, 20, get_byte(body, 20) # 255)",
    "the state": "UPDATE {s}.value SET value = value || 'x'::bytea",
    "a value less": "DELETE FROM {s}.value WHERE (tbl, place) IN (SELECT tbl, place FROM {s}.value LIMIT 1)",
}


@pytest.mark.parametrize("damaged", DAMAGES)
def test_every_record_is_read(ask: Ask, schema: str, damaged: str) -> None:
    """All that a store holds is read and checked, as in a directory: the tail, the history, and the state."""

    async def fill() -> None:
        journal = Leader(schema)._journal
        await journal.open()
        await journal.append([grant(1), grant(2, "other")])
        await archived(journal, 2)
        await journal.append([grant(3)])
        await journal.append([grant(4)])
        await journal.close()

    asyncio.run(fill())
    postgres.shared().sql(DAMAGES[damaged].format(s=schema))
    done = ask("doctor", "--store", postgres.shared_url(), "--json")
    found = checks_of(done)["journal"]
    if damaged == "nothing":
        assert found["text"] == "4 records, all whole; the last is 4, and 2 are not archived yet", found
    else:
        assert found["status"] == "FAIL" and "holdfast store restored" in found["next"], found
        assert done.returncode == 2


def test_a_leader_that_is_silent_fails(ask: Ask, schema: str) -> None:
    """A leadership that somebody has and that does not beat is no leader, and the exit code says so."""
    asyncio.run(Leader(schema).once(gives_back=False))
    done = ask("doctor", "--store", postgres.shared_url(), HOLDFAST_TAKEOVER_SECONDS="1")
    assert done.returncode == 2
    assert "FAIL  leader" in done.stdout and "it is silent, and nobody took over" in done.stdout


def test_missing_store_fails(ask: Ask) -> None:
    """No authority is one finding with what to do."""
    done = ask("doctor", "--store", postgres.shared_url())
    assert done.returncode == 2 and "has no authority" in done.stdout and "holdfast store init" in done.stdout


def test_a_server_that_promises_too_little_fails(ask: Ask, schema: str) -> None:
    """What a server forgets after a crash is no store: the setting is named."""
    with postgres.running("weak") as weak:
        weak.configure(fsync="off")
        weak.reload()
        done = ask("doctor", "--store", weak.url)
    assert done.returncode == 2 and "fsync = 'off'" in done.stdout


def test_a_synchronous_standby_is_seen(ask: Ask, schema: str) -> None:
    """Replicas are shown with whether commits wait for them (N-23)."""
    with postgres.running("primary") as primary, postgres.standby_of(primary):
        asyncio.run(Leader(schema, url=primary.url).once())
        reply = checks_of(ask("doctor", "--store", primary.url, "--json"))
        assert reply["replicas"]["status"] == "warn" and "standby (streaming, async)" in reply["replicas"]["text"]
        primary.configure(synchronous_standby_names="'standby'")
        primary.reload()
        reply = checks_of(ask("doctor", "--store", primary.url, "--json"))
        assert (reply["replicas"]["status"], reply["replicas"]["next"]) == ("ok", None)
        assert "standby (streaming, sync); commits wait" in reply["replicas"]["text"]


def test_a_store_that_is_well_has_no_warning() -> None:
    """Nothing is found where nothing is wrong."""
    assert {text.split()[0] for text in verdicts().values()} == {"ok"}


def test_static_tokens_that_differ_fail() -> None:
    """A node with other static tokens lets others in: it is said (N-34)."""
    others = [PEERS[0], msgspec.structs.replace(PEERS[1], tokens="other")]
    assert verdicts(peers=others)["tokens"].startswith("FAIL the nodes have different static access tokens")
    silent = [PEERS[0], msgspec.structs.replace(PEERS[1], tokens="other", seen_ms_ago=3_600_000)]
    assert verdicts(peers=silent)["tokens"].startswith("ok")
    assert verdicts(peers=silent)["nodes"].startswith("warn heard of: node1; silent: node2 (1 h)")


def test_two_processes_of_one_name_fail() -> None:
    """Of two nodes with one name the others know one at a time: it is said, if the one that leads is the other."""
    twin = msgspec.structs.replace(PEERS[0], process="twin")
    assert verdicts(peers=[twin, PEERS[1]])["names"].startswith("FAIL two processes call themselves node1")
    gone = msgspec.structs.replace(twin, seen_ms_ago=60_000)
    assert "names" not in verdicts(peers=[gone, PEERS[1]]) and "names" not in verdicts()


def test_versions_that_differ_are_a_warning() -> None:
    """During an upgrade two versions are there, and it is said which comes last (N-36)."""
    others = [PEERS[0], msgspec.structs.replace(PEERS[1], version="1.1")]
    assert verdicts(peers=others)["version"] == "warn the nodes have 1.0 and 1.1 -> upgrade all: the leader last"


def test_store_without_a_leader_fails() -> None:
    """A store that was served and is not is said; one that is new is not wrong."""
    empty = msgspec.structs.replace(LEADERSHIP, is_held=False)
    assert verdicts(leadership=empty, has_heartbeat=False)["leader"].startswith(
        "FAIL nobody leads; the last epoch was 7"
    )
    new = msgspec.structs.replace(empty, epoch=0)
    assert verdicts(leadership=new, has_heartbeat=False)["leader"].startswith("warn nobody has ever led")


def test_another_server_than_before_is_a_warning() -> None:
    """After a failover or a restore of the database the marks differ, until a leader let tokens jump (N-22)."""
    moved = msgspec.structs.replace(MARKS, timeline=1)
    text = verdicts(identity=moved, has_standby=False, has_heartbeat=False)["timeline"]
    assert text.startswith("warn timeline 2: this is another server") and "holdfast store restored" in text
    assert verdicts(identity=moved, wants_token_gap=True)["timeline"].startswith("ok timeline 2; the next leader lets")
    assert verdicts(token_gaps=2)["timeline"].startswith("ok timeline 2, fencing tokens jumped 2 times so far")


def test_promoted_standby_is_no_loss() -> None:
    """After a failover to a synchronous standby nothing is said to be lost: only the timeline is another."""
    moved = msgspec.structs.replace(MARKS, timeline=1)
    text = verdicts(identity=moved, has_heartbeat=False)["timeline"]
    assert text.startswith("ok timeline 2: it was promoted") and "restored" not in text


def test_nodes_that_run_are_not_to_be_started() -> None:
    """Where nobody leads and nodes run, the hint is where they say why."""
    empty = msgspec.structs.replace(LEADERSHIP, is_held=False)
    assert verdicts(leadership=empty, has_heartbeat=False)["leader"].endswith("each that runs say why: node1, node2")
    assert verdicts(has_heartbeat=False)["leader"].endswith("each that runs say why: node1, node2")
    away = [PEERS[0], msgspec.structs.replace(PEERS[1], seen_ms_ago=60_000)]
    assert "they may run" in verdicts(identity=msgspec.structs.replace(MARKS, table_oid=9), peers=away)["nodes"]
    assert verdicts(leadership=empty, has_heartbeat=False, peers=[])["leader"].endswith("start a node on it")


def test_hint_for_silent_nodes_is_complete() -> None:
    """Nodes that are silent are to be started, or forgotten by themselves."""
    away = [PEERS[0], msgspec.structs.replace(PEERS[1], seen_ms_ago=60_000)]
    text = verdicts(peers=away)["nodes"]
    assert text.endswith("start them, or let them be: one that was silent for a day is forgotten")


def test_a_pooler_and_a_long_way_are_warnings() -> None:
    """A pooler drops what sessions set (N-24), and every answer waits for the way there and back."""
    pooled = msgspec.structs.replace(SERVER, is_pooled=True)
    assert verdicts(server=pooled)["pooler"].startswith("warn")
    assert verdicts(round_trip_ms=55.0)["round trip"].startswith("warn 55.0 ms")


def test_a_synchronous_standby_that_is_away_fails() -> None:
    """Commits wait for a standby that is not there, so nothing is answered."""
    assert verdicts(replicas=[])["replicas"].startswith("FAIL none; none is synchronous, so commits hang")
    hidden = [Replica("standby", "", "")]
    assert verdicts(replicas=hidden)["replicas"].startswith("ok 1 that this role may not see")


def test_a_store_that_takes_no_write_fails(ask: Ask, schema: str) -> None:
    """A store can be read and take no write, as with a full disk: one is tried, and nothing of it is left."""
    asyncio.run(Leader(schema).once())
    before = checks_of(ask("doctor", "--store", postgres.shared_url(), "--json"))
    assert before["writes"]["text"] == "one was tried, and taken back" and before["space"]["text"].endswith("yet")
    postgres.shared().sql(
        f"CREATE FUNCTION {schema}.full_disk() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$;"
        f"CREATE TRIGGER full_disk BEFORE INSERT ON {schema}.batch EXECUTE FUNCTION {schema}.full_disk()"
    )
    done = ask("doctor", "--store", postgres.shared_url())
    assert done.returncode == 2
    assert "FAIL  writes" in done.stdout and "No space left on device" in done.stdout


def test_read_only_role_is_reported() -> None:
    """What was not tried is not said to be well."""
    assert verdicts(may_write=False)["writes"].startswith("warn none was tried")


def test_a_tail_that_grows_is_a_warning() -> None:
    """What could not be archived takes space, and is replayed at every takeover."""
    assert verdicts(tail_bytes=2**31)["space"].startswith("warn")
