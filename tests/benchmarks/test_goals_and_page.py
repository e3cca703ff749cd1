"""What is told of the results: goals, tables, pictures, and the page that shows them."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from benchmarks import run
from benchmarks.parts.failover import percentile
from benchmarks.parts.page import p99_ratio
from benchmarks.report import page, text
from benchmarks.report.contents import tables_of
from benchmarks.report.goals import goals_of

MACHINE = {
    "date": "2026-11-16 18:00 UTC",
    "cpu": "a processor",
    "cores": 2,
    "memory_gb": 8.0,
    "kernel": "Linux 6",
    "python": "3.11",
    "file_system": "ext4 on /dev/x",
    "syncs_per_second": 5000.0,
    "load_average": 0.1,
    "warnings": [],
}


def document(part: str, data: dict[str, Any], **more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"part": part, "machine": MACHINE, "versions": {}, "missing": {}, "troubles": [], "data": data, **more}


def peer_row(system: str, connections: int, per_second: float) -> dict[str, Any]:
    row = {"tool": "wrk", "p50_ms": 1.0, "p99_ms": 2.0, "cpu_us": 30.0, "answers": 9, "wrong": 0, "sample": ""}
    return {"system": system, "connections": connections, "per_second": per_second, **row}


def peers(ours: float, redis: float) -> dict[str, Any]:
    rows = [peer_row("holdfast", 64, ours), peer_row("redis", 64, redis), peer_row("holdfast", 256, ours * 1.1)]
    syncs = {"redis": {"acquires": 50, "syncs": 51, "note": ""}}
    return document("peers", {"titles": {"holdfast": "Holdfast", "redis": "Redis"}, "rows": rows, "syncs": syncs})


def steady(per_second: float, stalls: int) -> dict[str, Any]:
    row = {"p50_ms": 2.0, "p99_ms": 5.0, "worst_ms": 9.0, "cpu_us": 30.0, "cpu_children_us": 4.0, "wrong": 0}
    windows = [
        {
            "at_seconds": 5 * number,
            "stalls": stalls,
            "stall_worst_ms": 30.0 * bool(stalls),
            "disk_stalls": 1,
            "host_stalls": 2,
            "cpu_own": None if number == 1 else 0.5,
            "cpu_children": None if number == 1 else 0.1,
            "memory_own_bytes": 2**20,
            "memory_children_bytes": 2**20,
            "disk_bytes": number * 2**20,
            "per_second": per_second,
            **row,
        }
        for number in (1, 2)
    ]
    stored = {
        "kept_records": 1_000,
        "disk_bytes": 400_000,
        "minutes": 10,
        "connections": 64,
        "windows": windows,
        "stolen_share": 0.01,
    }
    return document("steady", {"bursts": [{"per_second": 100.0, **row}], "per_second": per_second, **row, **stored})


def verdicts(*documents: dict[str, Any]) -> dict[str, bool | None]:
    return {goal.promise: goal.is_met for goal in goals_of({each["part"]: each for each in documents})}


def test_a_goal_is_met_by_numbers_alone() -> None:
    """The same goal is met, missed, or not measured: what nobody measured is never met."""
    promise = "at least 0.62 × Redis at 64 connections"
    assert verdicts(peers(70, 100))[promise] is True
    assert verdicts(peers(50, 100))[promise] is False
    assert verdicts(steady(95, 0))[promise] is None
    assert verdicts(peers(70, 100))["at least 4.5 × etcd at 64 connections"] is None


def test_steady_load_is_judged_beside_its_bursts() -> None:
    """Rate, p99 and stalls of the steady load; a stall of the disk or of the host counts against nobody."""
    good, bad = verdicts(steady(95, 0)), verdicts(steady(80, 3))
    assert (good["steady load at least 0.9 × the bursts"], bad["steady load at least 0.9 × the bursts"]) == (
        True,
        False,
    )
    stall = "no stall over 20 ms but the disk's and the host's own"
    assert (good[stall], bad[stall]) == (True, False)


def test_guard_hook_is_judged_by_its_slower_case() -> None:
    """Both calls of the hook must stay below the limit."""
    promise = "a guard hook in at most 3 × the CPU time of `python -c pass`"
    hooks = [{"no_rule_ratio": 2.3, "held_ratio": held} for held in (2.4, 3.1)]
    assert [verdicts(document("clients", {"hooks": each}))[promise] for each in hooks] == [True, False]


def failover(p99_seconds: float, wrong: int = 0) -> dict[str, Any]:
    row = {"fault": "kill", "rounds": 60, "p50_seconds": 2.3, "p99_seconds": p99_seconds, "max_seconds": 2.9}
    return document("failover", {"rows": [{**row, "gaps": [2.3], "answers": 9, "wrong": wrong, "sample": ""}]})


def test_failover_is_judged_by_its_slowest() -> None:
    """The p99 of each fault counts, a fault that was not tried is not met, and what was lost is a wrong answer."""
    promise = "leader killed: an answer within 3 s (p99)"
    assert [verdicts(failover(seconds))[promise] for seconds in (2.5, 3.5)] == [True, False]
    assert verdicts(failover(2.5))["leader stopped: an answer within 3 s (p99)"] is None
    assert verdicts(failover(2.5, wrong=1))["every answer right, every grant synced"] is False
    assert any("2.50" in cell for table in tables_of({"failover": failover(2.5)}) for row in table.rows for cell in row)
    assert [percentile([float(n) for n in range(1, 61)], share) for share in (50, 99)] == [30.0, 60.0]


def page_seen(p50_ms: float, rows_most: int, p99s: list[float]) -> dict[str, Any]:
    """What the part `page` leaves: with a browser, and turns without and with pages open."""
    turn = {"p50_ms": 0.4, "cpu_us": 90.0, "wrong": 0}
    rows = [{**turn, "pages": 50 * (number % 2), "p99_ms": p99_ms} for number, p99_ms in enumerate(p99s)]
    scroll = {"frames_per_second": 59.6, "p50_ms": 16.7, "p99_ms": 17.0, "worst_ms": 34.0, "busy_ms": 2.5}
    scroll["rows_most"] = rows_most
    seen = {"claims": 60, "p50_ms": p50_ms, "p95_ms": 2 * p50_ms, "worst_ms": 400.0}
    data = {"jobs": 10_000, "scroll": scroll, "claim_to_row": seen, "rows": rows, "changes_per_second": 1_000}
    return document("page", {**data, "pages": 50, "p99_ratio": p99_ratio(rows)})


def test_page_goals_cover_latency_and_cost() -> None:
    """A row in time, few rows in the document, and claims beside open pages: each turn beside its own neighbour."""
    promises = [
        "a claim is a row of the operators' page within 300 ms (p50)",
        "of 10,000 jobs at most 60 rows are in the document",
        "with 50 pages open the p99 at most 1.2 × that without",
    ]
    good, bad = page_seen(180, 44, [2.0, 2.2, 9.0, 9.9, 2.0, 9.0]), page_seen(320, 61, [2.0, 2.6, 2.0, 2.6])
    assert [verdicts(good)[promise] for promise in promises] == [True] * 3
    assert [verdicts(bad)[promise] for promise in promises] == [False] * 3
    shown = "\n".join(table.as_text() for table in tables_of({"page": good}))
    assert "60" in shown and "1.10 ×" in shown
    del bad["data"]["scroll"], bad["data"]["claim_to_row"]
    assert verdicts(bad)[promises[0]] is None and len(tables_of({"page": bad})) == 1


def test_nodes_are_judged_beside_one_node() -> None:
    """A leader on PostgreSQL is held against one node, and a follower against that leader, in one run."""
    rates = {"holdfast": 100.0, "store": 75.0, "follower": 40.0}
    rows = [peer_row(system, 64, rate) for system, rate in rates.items()]
    found = verdicts(document("nodes", {"titles": dict.fromkeys(rates, "x"), "rows": rows}))
    assert found["on PostgreSQL at least 0.7 × one node at 64 connections"] is True
    assert found["through a follower at least 0.6 × its leader"] is False


def test_one_wrong_answer_or_one_trouble_is_seen() -> None:
    """Soundness looks at every document: wrong answers, missing syncs, troubles."""
    promise = "every answer right, every grant synced"
    assert verdicts(peers(70, 100), steady(95, 0))[promise] is True
    wrong = peers(70, 100)
    wrong["data"]["rows"][1]["wrong"] = 1
    unsynced = peers(70, 100)
    unsynced["data"]["syncs"]["redis"]["syncs"] = 3
    troubled = peers(70, 100)
    troubled["troubles"] = ["it did not start"]
    assert [verdicts(each)[promise] for each in (wrong, unsynced, troubled)] == [False] * 3


def test_missing_results_are_reported() -> None:
    """A peer that was not found is named in the report and on the page, with how to get it."""
    found = peers(70, 100)
    found["missing"] = {"etcd": "etcd: not here. To get it: build it"}
    assert "NOT MEASURED, etcd: not here. To get it: build it" in text.as_text({"peers": found})
    assert "- Not measured: etcd: not here. To get it: build it" in page.as_markdown({"peers": found})


def test_pictures_are_complete_and_deterministic() -> None:
    """Each picture is XML with a title, and the same numbers give the same bytes."""
    documents = {"peers": peers(70, 100), "steady": steady(95, 0)}
    drawn = page.pictures_of(documents)
    assert set(drawn) == {"peers.svg", "steady.svg"}
    for content in drawn.values():
        root = ET.fromstring(content)
        assert root.find("{http://www.w3.org/2000/svg}title") is not None
        height = float(root.attrib["height"])
        for line in root.iter("{http://www.w3.org/2000/svg}polyline"):
            assert all(0 <= float(point.split(",")[1]) <= height for point in line.attrib["points"].split())
    assert page.pictures_of(json.loads(json.dumps(documents))) == drawn


def test_results_are_inserted_between_the_marks() -> None:
    """What stands around the marks stays, and writing twice is writing once."""
    before = f"above\n{page.BEGIN}\nold\n{page.END}\nbelow\n"
    once = page.inserted(before, "new")
    assert once == f"above\n{page.BEGIN}\n\nnew\n\n{page.END}\nbelow\n"
    assert page.inserted(once, "new") == once
    with pytest.raises(ValueError, match="no place"):
        page.inserted("a page without marks", "new")


def test_guide_shows_the_stored_results() -> None:
    """Nobody edits a number by hand: the guide and its pictures are what the kept results give."""
    stored = run.load(page.STORED_RESULTS)
    shown = page.GUIDE.read_text(encoding="utf-8")
    pictures = {path.name: path.read_text(encoding="utf-8") for path in page.PICTURES.glob("*.svg")}
    assert pictures == page.pictures_of(stored)
    assert shown == page.inserted(shown, page.as_markdown(stored))


def test_stored_results_name_no_local_folder() -> None:
    """A result says what machine it was, never where on it."""
    for path in page.STORED_RESULTS.glob("*.json"):
        content = path.read_text(encoding="utf-8")
        assert "/home/" not in content and "/tmp/" not in content, path.name


def test_results_are_read_in_the_order_of_the_parts(tmp_path: Path) -> None:
    """What was kept is read again; a part without a result is passed over, and each has its tables."""
    for each in (steady(95, 0), peers(70, 100)):
        run.keep(tmp_path, {**each, "took_seconds": 1})
    found = run.load(tmp_path)
    assert list(found) == ["peers", "steady"]
    assert [table.title.partition(",")[0] for table in tables_of(found)] == ["Durable acquires", "Bursts"]
