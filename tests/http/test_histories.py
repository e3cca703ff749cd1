"""Connections drawn by chance, played to a real server and judged one by one against a naive model of HTTP/1.1.

`histories` says what is drawn, `naive_http` and `naive_api` what must become of it, `judge` compares. A failure prints
the line that plays its history again, first of all.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.http.conversation import logged
from tests.http.driver import SETTINGS, Address, Result, play_all
from tests.support import callers, proof
from tests.support.server import ServerProcess, serving

HISTORIES_OF_ONE_SERVER = 5_000


def seed_of_this_run() -> int:
    return int(os.environ.get("HOLDFAST_SEED") or random.SystemRandom().getrandbits(40))


def play(server: ServerProcess, seed: int, count: int) -> Result:
    """Play so many histories, that of the seed first."""
    address = Address(server.host, server.port)
    return asyncio.run(play_all(address, callers.ALICE, range(seed, seed + count)))


def check(result: Result, request: pytest.FixtureRequest) -> None:
    if result.failed:
        seed = result.failed[0][0].seed
        again = f"to play it again:\nHOLDFAST_SEED={seed} .venv/bin/python -m pytest '{request.node.nodeid}'"
        raise AssertionError(f"{len(result.failed)} of {result.played} histories failed\n{result.report()}\n{again}")


def test_every_answer_of_drawn_connections_is_right(
    tmp_path: Path, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    """Whatever is sent on a connection, in whatever pieces: each complete request is answered once, in order, with what
    was decided; nothing else is said, nothing else happens, nothing is logged.
    """
    seed, count = seed_of_this_run(), proof.count("wire: histories")
    played = answers = 0
    while played < count:
        # A new server now and then: each history leaves names held, and lists of them grow.
        with serving(tmp_path / f"data-{played}", settings=SETTINGS, tokens=callers.TOKENS) as server:
            log = logged(server)
            result = play(server, seed + played, min(count - played, HISTORIES_OF_ONE_SERVER))
            check(result, request)
            assert logged(server) == log
        played += result.played
        answers += result.answers
    record_property("count: connections judged", played)
    record_property("count: answers on them", answers)
