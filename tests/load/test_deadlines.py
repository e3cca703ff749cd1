"""No lease ends before its client stops believing in it, however many ask at once (I4, T1a)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.load.crowd import raise_file_limit
from tests.load.lease_holders import ROUNDING_MS, LeaseHolders
from tests.support import callers, proof
from tests.support.api import Api
from tests.support.checks import wait_until
from tests.support.server import ServerProcess, serving

TTL_SECONDS = 1
FULL_POLL = 1_024
"""So many sockets one look of uvloop's can give; if it gives as many, another look follows in the same round."""
SETTINGS = {"connections_max": 8_000}


def _judge(server: ServerProcess, holders: LeaseHolders, record_property: Callable[[str, object], None]) -> None:
    """Wait until every lease has ended, stop the server, and compare."""
    alice = Api.of(server, callers.ALICE)
    wait_until(lambda: alice.get("/status").json()["active_locks"] == 0, seconds_max=60)
    assert server.terminate() == 0, server.log
    ends, early = holders.early_ends(server.data)
    seen = holders.seen
    record_property("count: promises", seen.promises)
    record_property("count: ends by time", ends)
    assert ends >= len(holders.clients)
    assert early == []
    assert seen.oldest_ms <= ROUNDING_MS, f"an answer was decided {seen.oldest_ms:.1f} ms before it was asked for"


def test_request_sent_within_a_tick_is_decided_after_it_was_sent(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A server finds more requests than one look can give. What is sent while it answers those is handed over within
    the same round, and has a time of its own all the same (T1a, I4).
    """
    raise_file_limit()
    with serving(tmp_path / "data", tokens=callers.TOKENS, settings=SETTINGS) as server:
        count = FULL_POLL + 150
        with LeaseHolders(server.host, server.port, count, ttl_seconds=TTL_SECONDS) as holders:
            before, meanwhile = holders.clients[: FULL_POLL + 50], holders.clients[FULL_POLL + 50 :]
            # Once everybody was answered, every connection is taken, and one look can find them all.
            holders.burst()
            for _ in range(3):
                server.pause()
                for client in before:
                    holders.ask(client)
                server.resume()
                for client in meanwhile:
                    holders.ask(client)
                holders.receive_all()
            _judge(server, holders, record_property)


KINDS = ("bursts", "steady", "going quiet")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("connections", [300, 1_300, 4_000])
@pytest.mark.skipif(not proof.count("deadlines: seconds"), reason="takes long: only in proofs")
def test_no_lease_ends_before_its_client_releases_it(
    connections: int, kind: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Every end that a record tells lies behind its client's own deadline, on the same clock (I4)."""
    assert raise_file_limit() >= connections
    seconds, chance = proof.count("deadlines: seconds"), random.Random(connections)
    with (
        serving(tmp_path / "data", tokens=callers.TOKENS, settings=SETTINGS) as server,
        LeaseHolders(server.host, server.port, connections, ttl_seconds=TTL_SECONDS) as holders,
    ):
        if kind == "bursts":
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                holders.burst()
                time.sleep(chance.random() * TTL_SECONDS)
        else:
            holders.keep_requesting(seconds, leave=0.0 if kind == "steady" else 0.5, chance=chance)
        _judge(server, holders, record_property)
