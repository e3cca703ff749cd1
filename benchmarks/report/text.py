"""The report on a terminal: where it was measured, every table, what is missing, and how it stands with our goals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.report.contents import tables_of
from benchmarks.report.goals import goals_of
from benchmarks.systems.syncs import SyncCheck

if TYPE_CHECKING:
    from benchmarks.report.tables import Row

_BUSY = "other programs are busy"


def as_text(documents: dict[str, Row]) -> str:
    """Return the whole report."""
    if not documents:
        return "nothing was measured"
    parts = [machine_text(documents), _syncs_text(documents), *(table.as_text() for table in tables_of(documents))]
    parts += [_missing_text(documents), _verdict_text(documents)]
    return "\n\n".join(part for part in parts if part)


def machine_text(documents: dict[str, Row]) -> str:
    """Return where and when; all parts of a report should have one machine, and each says when it was run."""
    machines = [document["machine"] for document in documents.values()]
    first, dates = machines[0], sorted({machine["date"] for machine in machines})
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    syncs = sorted(machine["syncs_per_second"] for machine in machines)
    lines = [
        f"{when} · {first['cores']} cores, {first['cpu']} · {first['memory_gb']} GB",
        f"{first['kernel']} · Python {first['python']}",
        f"data on {first['file_system']}: {syncs[0]:,.0f} to {syncs[-1]:,.0f} fdatasync/s",
    ]
    # How busy it was differs from part to part: the worst is told.
    warnings = {text.partition(" (")[0]: text for machine in machines for text in sorted(machine["warnings"])}
    loads = [machine["load_average"] for machine in machines]
    if max(loads) > first["cores"] / 2:
        warnings[_BUSY] = f"{_BUSY} (load {min(loads):.1f} to {max(loads):.1f}): expect noise"
    return "\n".join(lines + [f"warning: {text}" for text in warnings.values()])


def missing_of(documents: dict[str, Row]) -> list[str]:
    """Return what was not measured, and how to get it; each once."""
    return list(dict.fromkeys(text for document in documents.values() for text in document["missing"].values()))


def troubles_of(documents: dict[str, Row]) -> list[str]:
    """Return what went wrong."""
    return [text for document in documents.values() for text in document["troubles"]]


def _syncs_text(documents: dict[str, Row]) -> str:
    data = documents.get("peers", {}).get("data", {})
    checks = data.get("syncs", {})
    return "\n".join(f"{data['titles'][key]}: {SyncCheck(**check)}" for key, check in checks.items())


def _missing_text(documents: dict[str, Row]) -> str:
    lines = [f"NOT MEASURED, {text}" for text in missing_of(documents)]
    return "\n".join(lines + [f"trouble: {text}" for text in troubles_of(documents)])


def _verdict_text(documents: dict[str, Row]) -> str:
    found = goals_of(documents)
    states = [goal.is_met for goal in found]
    word = "all goals met" if all(states) else f"{states.count(True)} of {len(states)} goals met"
    if False in states:
        word += f", {states.count(False)} MISSED"
    if None in states:
        word += f", {states.count(None)} not measured"
    return "\n".join([f"verdict: {word}", *map(str, found)])
