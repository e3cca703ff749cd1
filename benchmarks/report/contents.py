"""The tables of each part, made of the document that it left."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from benchmarks.load.generator import STALL_MS
from benchmarks.load.scripts import ANY_HELD, CALL_NAMES
from benchmarks.load.tools import BUILTIN
from benchmarks.parts.clients import ratio
from benchmarks.parts.failover import TITLES as FAULT_TITLES
from benchmarks.report.tables import Row, Table, grouped, matrix, mib, middle, ms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OURS = "holdfast"
_BUSY_GENERATOR = 0.9


def tables_of(documents: dict[str, Row]) -> list[Table]:
    """Return every table there is something for, in the order of the parts."""
    return [table for part, document in documents.items() if document["data"] for table in _MAKERS[part](document)]


def _peers(document: Row) -> list[Table]:
    columns = [
        "system",
        "connections",
        "acquires/s",
        "lowest–highest",
        "p50 ms",
        "p99 ms",
        "processor µs",
        "Holdfast is",
    ]
    return _beside_ours(document, Table("Durable acquires, each system in turns", columns))


def _nodes(document: Row) -> list[Table]:
    columns = [
        "system",
        "connections",
        "acquires/s",
        "lowest–highest",
        "p50 ms",
        "p99 ms",
        "processor µs",
        "one node is",
    ]
    return _beside_ours(document, Table("Durable acquires of several nodes on PostgreSQL, in turns", columns))


def _beside_ours(document: Row, table: Table) -> list[Table]:
    data = document["data"]
    found = grouped(data["rows"], "connections", "system")
    for connections in sorted({connections for connections, _ in found}):
        ours = found.get((connections, OURS))
        for system, title in data["titles"].items():
            rows = found.get((connections, system))
            if rows:
                is_ours = system == OURS or ours is None
                times = "" if is_ours else f"{middle(ours or [], 'per_second') / middle(rows, 'per_second'):.2f} ×"
                table.rows.append(
                    [
                        _peer_title(title, document["versions"].get(system, ""), rows),
                        *_peer_cells(connections, rows),
                        times,
                    ]
                )
    if any(row["tool"] == BUILTIN for row in data["rows"]):
        table.notes.append("\\* pressed by our own generator and not by wrk.")
    return [table] if table.rows else []


def _peer_title(title: str, version: str, rows: Sequence[Row]) -> str:
    mark = " \\*" if rows[0]["tool"] == BUILTIN else ""
    return f"{title} {version.partition(' (')[0]}{mark}"


def _peer_cells(connections: int, rows: Sequence[Row]) -> list[str]:
    rates = [row["per_second"] for row in rows]
    return [
        f"{connections:,}",
        f"{median(rates):,.0f}",
        f"{min(rates):,.0f}–{max(rates):,.0f}",
        ms(middle(rows, "p50_ms")),
        ms(middle(rows, "p99_ms")),
        f"{middle(rows, 'cpu_us'):.1f}",
    ]


def _operations(document: Row) -> list[Table]:
    rows = document["data"]["rows"]
    if not rows:
        return []
    head = "request \\ connections"

    def of(name: str, show: Callable[[float], str]) -> Callable[[list[Row]], str]:
        return lambda rounds: show(middle(rounds, name))

    tables = [
        matrix("Requests a second", rows, "operation", "connections", of("per_second", "{:,.0f}".format), head),
        matrix(
            "Processor time of the server for one request, µs",
            rows,
            "operation",
            "connections",
            of("cpu_us", "{:.1f}".format),
            head,
        ),
        matrix("p50, ms", rows, "operation", "connections", of("p50_ms", ms), head),
        matrix("p99, ms", rows, "operation", "connections", of("p99_ms", ms), head),
    ]
    busiest = max(row["generator_share"] for row in rows)
    if busiest > _BUSY_GENERATOR:
        tables[0].notes.append(f"The generator used up to {busiest:.0%} of a core: read the highest rates as at least.")
    return tables


def _one(document: Row) -> list[Table]:
    turns = document["data"]["turns"]
    table = Table("One connection, turn by turn with the disk, p50 in ms", ["", "median", "lowest–highest"])
    for name, title in (
        ("acquire_p50_ms", "acquire"),
        ("sync_p50_ms", "one fdatasync, 4 KiB at the end of a file"),
        ("sync_in_place_p50_ms", "one fdatasync, 4 KiB in place"),
    ):
        values = [turn[name] for turn in turns]
        table.rows.append([title, f"{median(values):.3f}", f"{min(values):.3f}–{max(values):.3f}"])
    above = [turn["acquire_p50_ms"] - turn["sync_p50_ms"] for turn in turns]
    table.rows.append(["acquire above the first", f"{median(above):.3f}", f"{min(above):.3f}–{max(above):.3f}"])
    return [table]


def _clients(document: Row) -> list[Table]:
    data = document["data"]
    columns = ["through", "pairs/s", "p50 ms", "p99 ms", "`Holdfast` takes"]
    table = Table("Claim and release of one name in Python, one after another, in turns", columns)
    ours: list[Row] = next((row["turns"] for row in data["rows"] if row["key"] == OURS), [])
    for row in data["rows"]:
        turns = row["turns"]
        if not turns:
            continue
        rate = median(data["pairs"] / turn["seconds"] for turn in turns)
        times = "" if row["key"] == OURS else f"{ratio(ours, turns):.2f} ×"
        cells = [f"{rate:,.0f}", f"{middle(turns, 'p50_ms'):.2f}", f"{middle(turns, 'p99_ms'):.2f}"]
        table.rows.append([row["title"], *cells, times])
    starts = data["starts"]
    table.notes.append(
        f"`rlock` with the server up takes {starts['rlock_ms']:.0f} ms, {starts['ratio']:.2f} × `python -c pass`."
    )
    hooks = data["hooks"]
    table.notes.append(
        f"A guard hook uses {hooks['no_rule_ratio']:.2f} × the CPU time of `python -c pass` for a file without a rule, "
        f"and {hooks['held_ratio']:.2f} × for a file whose job the agent has."
    )
    return [table]


def _calls(document: Row) -> list[Table]:
    columns = ["call", "connections", "calls/s", "claims/s", "p50 ms", "p99 ms", "processor µs"]
    table = Table(f"Calls of {CALL_NAMES} names", columns)
    for (call, connections), rows in sorted(grouped(document["data"]["rows"], "call", "connections").items()):
        rate = middle(rows, "per_second")
        claims = rate * (CALL_NAMES if call == "all" else 1)
        cells = [f"{connections:,}", f"{rate:,.0f}", f"{claims:,.0f}", ms(middle(rows, "p50_ms"))]
        table.rows.append([f"`{call}`", *cells, ms(middle(rows, "p99_ms")), f"{middle(rows, 'cpu_us'):.0f}"])
    table.notes.append(
        f"`all` gets every name or none. `any` gets the first free one; {ANY_HELD} names before it are held."
    )
    return [table] if table.rows else []


def _waiters(document: Row) -> list[Table]:
    columns = ["waiters", "number", "bytes each", "hand-overs", "woken p50 ms", "p99 ms"]
    table = Table("Waiters woken: from before the release is sent until the next one has its grant", columns)
    for row in document["data"]["rows"]:
        numbers = [f"{row['waiters']:,}", f"{row['bytes_per_waiter']:,}", f"{row['hand_overs']:,}"]
        table.rows.append([row["title"], *numbers, ms(row["p50_ms"]), ms(row["p99_ms"])])
    return [table] if table.rows else []


def _renewals(document: Row) -> list[Table]:
    data = document["data"]
    title = f"{data['leases']:,} leases with a TTL of {data['ttl_seconds']} s, each renewed every 10 s"
    table = Table(title, ["", "seen"])
    table.rows += [
        ["renewals a second, due and made", f"{data['due_per_second']:,.0f}, {data['per_second']:,.0f}"],
        ["p50, p99, worst, from when each was due", _three(data)],
        ["processor of the server, share of one core", f"{data['core_share']:.0%}"],
        ["processor time of one renewal", f"{data['cpu_us']:.1f} µs"],
        ["leases lost", f"{data['wrong']:,}"],
    ]
    return [table]


def _three(row: Row) -> str:
    return f"{ms(row['p50_ms'])}, {ms(row['p99_ms'])}, {ms(row['worst_ms'])} ms"


def _growth(document: Row) -> list[Table]:
    rows = document["data"]["rows"]
    if not rows:
        return []
    title = "Processor time of one request in µs, while so many leases are held"
    table = matrix(
        title, rows, "operation", "leases", lambda rounds: f"{middle(rounds, 'cpu_us'):.1f}", "request \\ leases"
    )
    return [table]


def _million(document: Row) -> list[Table]:
    data = document["data"]
    table = Table(f"A server with {data['leases']:,} leases", ["", "seen"])
    table.rows += [
        ["memory of a lease", f"{data['bytes_per_lease']:,} bytes"],
        ["memory of all, server and its children", f"{mib(data['own_bytes'])} + {mib(data['children_bytes'])}"],
        ["on disk", mib(data["disk_bytes"])],
        ["first answer after kill −9", f"{data['killed']['answer_seconds']:.2f} s"],
        ["first answer after a stop", f"{data['stopped']['answer_seconds']:.2f} s"],
        ["an empty server", f"{data['empty_start_seconds']:.2f} s"],
        ["leases asked for and still held", f"{data['killed']['held']} of {data['killed']['asked']}"],
    ]
    return [table]


def _history_queries(document: Row) -> list[Table]:
    data = document["data"]
    table = Table(
        f"Looking back: pages of {data['page']:,} names at moments of {data['records']:,} records", ["", "seen"]
    )
    table.rows += [
        ["a page, p50", f"{data['p50_seconds']:.3f} s"],
        ["the longest", f"{data['worst_seconds']:.3f} s"],
        ["the longest, of names that nobody holds any more", f"{data['over_worst_seconds']:.3f} s"],
        ["the newest moment, whose records are in the tail", f"{data['last_seconds']:.3f} s"],
        ["a search for an owner that has nothing", f"{data['filtered_seconds']:.3f} s"],
        ["the longest that somebody else waits meanwhile", f"{data['asker_worst_ms']:.1f} ms"],
        ["the same while nobody looks back", f"{data['quiet_worst_ms']:.1f} ms"],
    ]
    return [table]


def _page(document: Row) -> list[Table]:
    data = document["data"]
    tables = []
    if "scroll" in data:
        scroll, seen = data["scroll"], data["claim_to_row"]
        table = Table(f"The operators' page with {data['jobs']:,} jobs, in Chromium", ["", "seen"])
        table.rows += [
            ["frames a second while it scrolls", f"{scroll['frames_per_second']:.0f}"],
            ["from frame to frame, p50, p99, worst", _three(scroll)],
            ["processor time of the page for one frame", f"{scroll['busy_ms']:.1f} ms"],
            ["rows in the document, at most", f"{scroll['rows_most']}"],
            [
                "from claim to row, p50, p95, worst",
                f"{seen['p50_ms']:.0f}, {seen['p95_ms']:.0f}, {seen['worst_ms']:.0f} ms",
            ],
        ]
        tables.append(table)
    title = f"{data['changes_per_second']:,} claims, renewals and releases a second, with and without pages that look"
    table = Table(title, ["pages open", "p50 ms", "p99 ms", "processor µs"])
    for (pages,), rows in sorted(grouped(data["rows"], "pages").items()):
        cells = [ms(middle(rows, "p50_ms")), ms(middle(rows, "p99_ms")), f"{middle(rows, 'cpu_us'):.1f}"]
        table.rows.append([f"{pages}", *cells])
    table.notes.append(f"With pages open the p99 is {data['p99_ratio']:.2f} × that of its neighbour without.")
    return [*tables, table]


def _steady(document: Row) -> list[Table]:
    data = document["data"]
    bursts, windows = data["bursts"], data["windows"]
    title = f"Bursts, and {data['minutes']:g} minutes of the claim loop at {data['connections']} connections"
    table = Table(title, ["", "bursts", "steady"])
    rate, tail = middle(bursts, "per_second"), middle(bursts, "p99_ms")
    slow = min((row["per_second"] for row in windows), default=0.0)
    table.rows += [
        ["requests a second", f"{rate:,.0f}", f"{data['per_second']:,.0f}"],
        ["slowest 5 s", "", f"{slow:,.0f}"],
        ["p50, ms", ms(middle(bursts, "p50_ms")), ms(data["p50_ms"])],
        ["p99, ms", ms(tail), ms(data["p99_ms"])],
        ["worst, ms", ms(max(row["worst_ms"] for row in bursts)), ms(data["worst_ms"])],
        ["processor time of one request, µs", f"{middle(bursts, 'cpu_us'):.1f}", f"{data['cpu_us']:.1f}"],
        ["of that in child processes", f"{middle(bursts, 'cpu_children_us'):.1f}", f"{data['cpu_children_us']:.1f}"],
        [f"stalls over {STALL_MS} ms, the server's", "", f"{sum(row['stalls'] for row in windows):,}"],
        ["longest of them, ms", "", ms(max((row["stall_worst_ms"] for row in windows), default=0.0))],
        [f"stalls over {STALL_MS} ms, the disk's own", "", f"{sum(row['disk_stalls'] for row in windows):,}"],
        [f"stalls over {STALL_MS} ms, the host's own", "", f"{sum(row['host_stalls'] for row in windows):,}"],
        ["processor time that the host took away", "", f"{data['stolen_share']:.1%}"],
        ["memory at the end", "", mib(windows[-1]["memory_own_bytes"] + windows[-1]["memory_children_bytes"])],
        ["on disk at the end", "", mib(data["disk_bytes"])],
        ["bytes on disk for each kept record", "", f"{bytes_per_record(data):,.0f}"],
    ]
    return [table]


def bytes_per_record(data: Row) -> float:
    """Return what a kept record takes. History has no renewals, so that half of the loop's records are kept."""
    return float(data["disk_bytes"] / max(1, data["kept_records"]))


def _failover(document: Row) -> list[Table]:
    columns = ["what happens", "times", "p50 s", "p99 s", "longest s", "operations judged", "complaints"]
    table = Table("Three nodes on PostgreSQL: how long nobody at all is answered", columns)
    for row in document["data"]["rows"]:
        seconds = [f"{row[name]:.2f}" for name in ("p50_seconds", "p99_seconds", "max_seconds")]
        counts = [f"{row['answers']:,}", f"{row['wrong']:,}"]
        table.rows.append([FAULT_TITLES[row["fault"]], f"{row['rounds']:,}", *seconds, *counts])
    return [table] if table.rows else []


_MAKERS: dict[str, Callable[[Row], list[Table]]] = {
    "peers": _peers,
    "operations": _operations,
    "one": _one,
    "clients": _clients,
    "calls": _calls,
    "waiters": _waiters,
    "renewals": _renewals,
    "growth": _growth,
    "million": _million,
    "looking": _history_queries,
    "page": _page,
    "steady": _steady,
    "nodes": _nodes,
    "failover": _failover,
}
