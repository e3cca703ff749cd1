"""`holdfast serve --store`: what a node says when it starts, what it answers, and what it never shows."""

from __future__ import annotations

import json
import signal
import time

from holdfast import __version__
from tests.cli.stores.conftest import Ask, Serve
from tests.support import callers, postgres
from tests.support.api import Api
from tests.support.checks import wait_until
from tests.support.program import Program


def api_of(node: Program, token: str = callers.READER) -> Api:
    return Api("127.0.0.1", int(node.said(r"listening on http://127\.0\.0\.1:(\d+)")[0][1]), token)


def stop(node: Program) -> None:
    node.process.send_signal(signal.SIGTERM)
    assert node.ended() == 0, node.output


def test_node_prints_its_addresses(serve: Serve, schema: str) -> None:
    """The first lines say what was started, where its data is, and what the node is called."""
    node = serve("node-a")
    url = node.said(r"is listening on (\S+)")[0][1]
    first = node.output.splitlines()[:3]
    assert first == [
        f"Holdfast {__version__} is listening on {url}",
        f"Data is in {postgres.shared_url()}, in the schema {schema}",
        f"This is node node-a, and the others reach it at {url}. Who leads: holdfast nodes",
    ]
    stop(node)


def test_every_node_lists_all_nodes(serve: Serve, ask: Ask) -> None:
    """Every node knows who leads: the leader answers from the store, and a follower passes the question on."""
    nodes = [serve("node-a"), serve("node-b")]
    apis = [api_of(node) for node in nodes]

    def reply() -> list[tuple[str, str]]:
        return [(each["name"], each["role"]) for each in apis[1].get("/nodes").json()["nodes"]]

    wait_until(lambda: len(reply()) == 2 and all(api.get("/readyz").status == 200 for api in apis))
    assert [role for _, role in reply()] == ["leader", "follower"]
    answers = [
        json.loads(ask("nodes", "--json", HOLDFAST_URL=url, HOLDFAST_TOKEN=callers.READER).stdout)
        for url in (f"http://127.0.0.1:{api.port}" for api in apis)
    ]
    assert answers[0]["leader"] == answers[1]["leader"] == reply()[0][0]
    assert sorted(api.get("/health/leader").status for api in apis) == [200, 503]
    heads = [api.get("/locks").headers for api in apis]
    assert [(head["Holdfast-Node"], head["Holdfast-Epoch"]) for head in heads] == [("node-a", "1"), ("node-b", "1")]
    done = ask("doctor", "--json", "--store", postgres.shared_url())
    checks = {check["name"]: check["status"] for check in json.loads(done.stdout)["checks"]}
    assert (checks["leader"], checks["nodes"], checks["tokens"]) == ("ok", "ok", "ok")
    for node in nodes:
        stop(node)


def test_a_password_in_the_environment_is_shown_nowhere(serve: Serve) -> None:
    """The address may have its password there, and neither the greeting nor the log has it."""
    url = postgres.shared_url().replace("postgres@", "postgres:hunter2@")
    node = serve("node-a", HOLDFAST_STORE=url)
    wait_until(lambda: api_of(node).get("/health/leader").status == 200)
    stop(node)
    assert "hunter2" not in node.output and postgres.shared_url() in node.output


def test_the_options_are_short_for_settings(serve: Serve) -> None:
    """`--store` and `--advertise` say what the settings of these names say."""
    options = ["--store", postgres.shared_url(), "--advertise", "http://127.0.0.1:9"]
    node = serve("node-a", *options, HOLDFAST_STORE="")
    assert "the others reach it at http://127.0.0.1:9." in node.output
    stop(node)


def test_full_store_is_not_ready(serve: Serve, schema: str) -> None:
    """While the store takes no record, the leader is not ready, at every look; and it is again when there is room."""
    node = serve("node-a")
    api = api_of(node, callers.ALICE)
    wait_until(lambda: api.get("/readyz").status == 200)
    lease_id = api.acquired("before", ttl_seconds=600)["lease_id"]
    postgres.shared().sql(
        f"CREATE FUNCTION {schema}.full_disk() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$;"
        f"CREATE TRIGGER full_disk BEFORE INSERT ON {schema}.batch EXECUTE FUNCTION {schema}.full_disk()"
    )
    wait_until(lambda: api.acquire("job").status == 503)
    responses = [api.get(path) for _ in range(50) for path in ("/readyz", "/health/leader")]
    assert {answer.status for answer in responses} == {503}
    assert "No space" not in str([answer.json() for answer in responses]), "anybody may ask"
    postgres.shared().sql(f"DROP TRIGGER full_disk ON {schema}.batch")
    wait_until(lambda: api.get("/readyz").status == 200 and api.get("/health/leader").status == 200)
    assert api.renew("before", lease_id, ttl_seconds=600).status == 200
    stop(node)
    assert node.output.count("No space left on device") == 1, node.output


def test_nodes_without_a_leader_report_their_view(serve: Serve, ask: Ask, schema: str) -> None:
    """Where no node knows who leads, `holdfast nodes` says so soon, with what each says and where to look next."""
    node = serve("node-a")
    api = api_of(node)
    wait_until(lambda: api.get("/health/leader").status == 200)
    # As after a restore: another copy of the tables than the one that was served.
    postgres.shared().sql(f"UPDATE {schema}.seat SET last_seq = 0, epoch = 0, tenure = 'other'")
    wait_until(lambda: "went back" in api.get("/readyz").json()["details"])
    url = f"http://127.0.0.1:{api.port}"
    began = time.monotonic()
    done = ask("nodes", HOLDFAST_URL=url, HOLDFAST_TOKEN=callers.READER)
    assert time.monotonic() - began < 25
    assert done.returncode == 2, done.stderr
    assert "knows of a leader" in done.stdout and "node-a" in done.stdout and "holdfast store restored" in done.stdout
    assert "holdfast nodes --store URL" in done.stderr
    reply = json.loads(ask("nodes", "--json", HOLDFAST_URL=url, HOLDFAST_TOKEN=callers.READER).stdout)
    assert (reply["leader"], reply["epoch"], reply["nodes"][0]["name"]) == (None, None, "node-a")
    stop(node)
