"""`holdfast serve --store`: what a node says when it starts, what it answers, and what it never shows."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast import __version__
from tests.cli.stores.conftest import Ask
from tests.support import callers, postgres
from tests.support.api import Api
from tests.support.checks import wait_until
from tests.support.program import Program

Serve = Callable[..., Program]


@pytest.fixture
def serve(schema: str, tmp_path: Path) -> Iterator[Serve]:
    """Starts nodes; each is stopped as a service manager does it."""
    with ExitStack() as stack:

        def start(name: str, *options: str, **environment: str) -> Program:
            ours = {key: value for key, value in os.environ.items() if not key.startswith(("HOLDFAST_", "XDG_"))}
            settings = {
                "HOLDFAST_STORE": postgres.shared_url(),
                "HOLDFAST_STORE_SCHEMA": schema,
                "HOLDFAST_TOKENS": callers.TOKENS,
                "HOLDFAST_NODE_NAME": name,
                "XDG_CONFIG_HOME": str(tmp_path / "config"),
                "XDG_DATA_HOME": str(tmp_path / "data"),
            }
            command = [sys.executable, "-m", "holdfast", "serve", "--listen", "127.0.0.1:0", *options]
            node = stack.enter_context(Program(command, env={**ours, **settings, **environment}, folder=tmp_path))
            node.said(r"This is node")
            return node

        yield start


def api_of(node: Program, token: str = callers.READER) -> Api:
    return Api("127.0.0.1", int(node.said(r"listening on http://127\.0\.0\.1:(\d+)")[0][1]), token)


def stop(node: Program) -> None:
    node.process.send_signal(signal.SIGTERM)
    assert node.ended() == 0, node.output


def test_a_node_says_where_things_are(serve: Serve, schema: str) -> None:
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


def test_nodes_are_told_by_each_of_them(serve: Serve, ask: Ask) -> None:
    """Every node knows who leads: the leader answers from the store, and a follower passes the question on."""
    nodes = [serve("node-a"), serve("node-b")]
    apis = [api_of(node) for node in nodes]

    def told() -> list[tuple[str, str]]:
        return [(each["name"], each["role"]) for each in apis[1].get("/nodes").json()["nodes"]]

    wait_until(lambda: len(told()) == 2 and all(api.get("/readyz").status == 200 for api in apis))
    assert [role for _, role in told()] == ["leader", "follower"]
    answers = [
        json.loads(ask("nodes", "--json", HOLDFAST_URL=url, HOLDFAST_TOKEN=callers.READER).stdout)
        for url in (f"http://127.0.0.1:{api.port}" for api in apis)
    ]
    assert answers[0]["leader"] == answers[1]["leader"] == told()[0][0]
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
