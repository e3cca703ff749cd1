"""What our clients add to the same calls made by hand, and what `rlock` adds to the start of Python.

Each comparison takes turns, ours and theirs, on one server, so that noise meets both; its result is the median of the
ratios of the turns.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import aiohttp

import holdfast

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.peers import Holdfast

PAIRS = 1_000
TURNS = 7
STARTS = 30
TTL_SECONDS = 60
ASYNC, SYNC, RLOCK = "async", "sync", "rlock"
_OWNER = "bench"


@dataclass(frozen=True)
class Comparison:
    """One thing of ours beside its plain counterpart, turn by turn, in seconds."""

    key: str
    title: str
    ours: list[float]
    theirs: list[float]

    @property
    def ratio(self) -> float:
        return median(ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True))


def measure(server: Holdfast, folder: Path, pairs: int, say: Callable[[str], None]) -> list[Comparison]:
    """Take turns with each of them."""
    with server.running(folder):
        url, token = f"http://127.0.0.1:{server.port}", server.authorization.removeprefix("Bearer ")
        found = [
            asyncio.run(_async_turns(url, token, pairs)),
            _sync_turns(url, token, pairs),
            _starts(url, token),
        ]
    for comparison in found:
        say(f"{comparison.title}: {comparison.ratio:.2f} x")
    return found


async def _async_turns(url: str, token: str, pairs: int) -> Comparison:
    found = Comparison(ASYNC, f"{pairs:,} claim/release pairs, AsyncHoldfast beside aiohttp by hand", [], [])
    async with (
        holdfast.AsyncHoldfast(url, token=token, owner=_OWNER) as client,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session,
    ):
        for turn in range(TURNS + 1):
            ours = await _async_ours(client, pairs)
            theirs = await _async_theirs(session, url, pairs)
            if turn:  # The first one warms.
                found.ours.append(ours)
                found.theirs.append(theirs)
    return found


async def _async_ours(client: holdfast.AsyncHoldfast, pairs: int) -> float:
    began = time.perf_counter()
    for _ in range(pairs):
        async with client.claim("ours", ttl=TTL_SECONDS):
            pass
    return time.perf_counter() - began


async def _async_theirs(session: aiohttp.ClientSession, url: str, pairs: int) -> float:
    began = time.perf_counter()
    claim = {"ttl_seconds": TTL_SECONDS, "owner": _OWNER}
    for _ in range(pairs):
        async with session.post(f"{url}/locks/theirs/acquire", json=claim) as answer:
            lease = (await answer.json())["lease_id"]
        async with session.post(f"{url}/locks/theirs/release", json={"lease_id": lease}) as answer:
            await answer.json()
    return time.perf_counter() - began


def _sync_turns(url: str, token: str, pairs: int) -> Comparison:
    found = Comparison(SYNC, f"{pairs:,} claim/release pairs, Holdfast beside http.client by hand", [], [])
    with (
        holdfast.Holdfast(url, token=token, owner=_OWNER) as client,
        closing(http.client.HTTPConnection(url.removeprefix("http://"))) as connection,
    ):
        for turn in range(TURNS + 1):
            ours = _sync_ours(client, pairs)
            theirs = _sync_theirs(connection, token, pairs)
            if turn:
                found.ours.append(ours)
                found.theirs.append(theirs)
    return found


def _sync_ours(client: holdfast.Holdfast, pairs: int) -> float:
    began = time.perf_counter()
    for _ in range(pairs):
        with client.claim("ours", ttl=TTL_SECONDS):
            pass
    return time.perf_counter() - began


def _sync_theirs(connection: http.client.HTTPConnection, token: str, pairs: int) -> float:
    began = time.perf_counter()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def ask(path: str, body: dict[str, object]) -> Any:  # noqa: ANN401 - JSON
        connection.request("POST", path, json.dumps(body), headers)
        return json.loads(connection.getresponse().read())

    for _ in range(pairs):
        lease = ask("/locks/theirs/acquire", {"ttl_seconds": TTL_SECONDS, "owner": _OWNER})["lease_id"]
        ask("/locks/theirs/release", {"lease_id": lease})
    return time.perf_counter() - began


def _starts(url: str, token: str) -> Comparison:
    """Start `rlock` with the server up, and Python with nothing to do."""
    found = Comparison(RLOCK, "rlock with the server up, beside `python -c pass`", [], [])
    rlock = [str(Path(sys.executable).with_name("rlock")), "bench://rlock"]
    nothing = [sys.executable, "-c", "pass"]
    with holdfast.Holdfast(url, token=token) as client, client.session("bench") as session:
        environment = {**os.environ, **session.environment}
        for _ in range(STARTS):
            found.ours.append(_start(rlock, environment))
            found.theirs.append(_start(nothing, environment))
    return found


def _start(command: list[str], environment: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began
