"""Looking back: pages of 1,000 names at moments of a day with 1,000,000 records, and what others feel of it meanwhile.

Many names are held all the time. Others are claimed and given back in turns until the records are there; the last of
them are still in the tail. Then moments all over that time are looked at, one after another: all names, and those that
nobody holds any more. Meanwhile somebody else asks a small question again and again: how long that one waits at most is
how long the loop was held.
"""

from __future__ import annotations

import http.client
import threading
import time
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from benchmarks.progress import say
from benchmarks.systems.holdfast import Holdfast

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from benchmarks.parts.common import Row, Work

HELD = 20_000
PAIRS_PER_TURN = 50_000
PAGE = 1_000
MOMENTS = 24
CONNECTIONS = 64
_SECONDS_MAX = 120.0
_REST_SECONDS = 0.001
_QUIET_SECONDS = 3.0


def measure(work: Work) -> Row:
    """Fill, rest, look."""
    if not work.has(Holdfast()):
        return {}
    # As many records as another part has leases: a million, and few of them for a quick look.
    records = work.options.leases
    server, folder = Holdfast(), work.folder / "looking"
    with server.running(folder):
        began = time.time()
        held = min(HELD, records // 10)
        server.hold("held", held)
        wrong = _fill(server, folder, records)
        ended = time.time()
        record = server.ask("GET", "/locks?" + urlencode({"at": _text(ended), "limit": 1}))["record"]
        say(f"{record:,} records are there, {held:,} names were held all the time")
        with Asker(server) as quiet:
            time.sleep(_QUIET_SECONDS)
        with Asker(server) as asker:
            moments = [began + (ended - began) * part / MOMENTS for part in range(1, MOMENTS + 1)]
            queries = [_query(server, at) for at in moments]
            over = [_query(server, at, prefix="turn-") for at in moments]
        filtered = _query(server, ended, owner="nobody")
    spans = sorted(seconds for seconds, _ in [*queries, *over])
    row = {
        "records": record,
        "held": held,
        "page": PAGE,
        "looks": len(spans),
        "p50_seconds": round(median(spans), 3),
        "worst_seconds": round(spans[-1], 3),
        "over_worst_seconds": round(max(seconds for seconds, _ in over), 3),
        "last_seconds": round(queries[-1][0], 3),
        "filtered_seconds": round(filtered[0], 3),
        "quiet_worst_ms": round(quiet.worst_ms, 1),
        "asked": asker.asked,
        "asker_worst_ms": round(asker.worst_ms, 1),
        "wrong": wrong + sum(names < min(PAGE, held) for _, names in queries),
    }
    say(
        f"a page of {PAGE:,} names: p50 {row['p50_seconds']} s, worst {row['worst_seconds']} s; somebody else waits"
        f" {row['asker_worst_ms']} ms at most, {row['quiet_worst_ms']} ms while nobody looks back"
    )
    return row


def _fill(server: Holdfast, folder: Path, records: int) -> int:
    """Claim and release until so many records are there; return how many answers were wrong."""
    wrong, leases_file = 0, str(folder / "turn")
    pairs = min(PAIRS_PER_TURN, max(1, records // 4))
    for turn in range(max(1, records // (2 * pairs))):
        for operation in ("acquire", "release"):
            given = {"prefix": f"turn-{turn}", "keep": leases_file} if operation == "acquire" else {"held": leases_file}
            plan = server.plan(operation, connections=CONNECTIONS, seconds=_SECONDS_MAX, count=pairs, **given)
            run, _ = server.press_plan(plan)
            wrong += run.wrong + run.errors
    return wrong


def _query(server: Holdfast, at: float, **fields: str) -> tuple[float, int]:
    """Ask for a page; return how long it took, and how many names it has."""
    path = "/locks?" + urlencode({"at": _text(at), "limit": PAGE, **fields})
    began = time.monotonic()
    answer = server.ask("GET", path)
    return time.monotonic() - began, len(answer["locks"])


def _text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Asker:
    """Asks a small question again and again on one connection, in a thread of its own, until it is left."""

    def __init__(self, server: Holdfast) -> None:
        self._server = server
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self.worst_ms = 0.0
        self.asked = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _work(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port)
        headers = {"Authorization": self._server.authorization}
        while not self._is_over.wait(_REST_SECONDS):
            began = time.monotonic()
            connection.request("GET", "/locks/nobody", headers=headers)
            connection.getresponse().read()
            self.worst_ms = max(self.worst_ms, (time.monotonic() - began) * 1_000)
            self.asked += 1
        connection.close()
