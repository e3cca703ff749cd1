"""The expected result of every case in every host. `make hosts` compares it with the observed results.

`python -m tests.hosts.expected` prints the table of docs/guide/hosts.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tests.hosts.hosts import HOSTS


class Result(StrEnum):
    """The result of a case. A documented gap is a call that should be refused and that the host lets pass."""

    REFUSED = "refused"
    ALLOWED = "allowed"
    WORKS = "works"
    FAILS = "fails"
    GAP = "documented gap"
    NOT_APPLICABLE = "n/a"


REFUSED, ALLOWED, WORKS, FAILS, GAP, NOT_APPLICABLE = Result


@dataclass(frozen=True)
class Case:
    """One row of the table: its title in the docs, and a result for each host."""

    title: str
    results: Mapping[str, Result]


def _case(title: str, result: Result, **others: Result) -> Case:
    changed = {name.replace("_", "-"): other for name, other in others.items()}
    return Case(title, {host.name: changed.get(host.name, result) for host in HOSTS})


EXPECTED: Mapping[str, Case] = {
    "test_edit_claims_free_job": _case("edit, job free", ALLOWED),
    "test_edit_respects_held_job": _case("edit, job held by another", REFUSED),
    "test_shell_respects_held_job": _case("writing shell commands, job held", REFUSED),
    "test_interactive_shell_is_refused": _case("interactive shell", NOT_APPLICABLE, codex=REFUSED, codex_js=REFUSED),
    "test_mcp_claim_covers_edit": _case("MCP claim, then edit", ALLOWED),
    "test_edit_covers_mcp_claim": _case("edit, then MCP claim", ALLOWED),
    "test_release_counts_for_guard_and_mcp": _case("release through either counts for both", WORKS),
    "test_edit_needs_running_server": _case("edit, server down", REFUSED),
    "test_edit_needs_responding_server": _case("edit, server silent", REFUSED),
    "test_edit_needs_holdfast_program": _case("edit, `holdfast` not on the `PATH`", REFUSED),
    "test_edit_needs_approved_hook": _case(
        "edit, hook not approved", NOT_APPLICABLE, codex=GAP, codex_js=GAP, gemini=GAP
    ),
    "test_headless_ask_refuses_edit": _case('edit, `when_free = "ask"`, no terminal', REFUSED),
    "test_host_discovers_skill": _case("skill discovered", WORKS),
    "test_uninstall_restores_files": _case("uninstall restores every byte", WORKS),
    "test_sigkill_releases_jobs": _case("jobs released after SIGKILL of the host", WORKS),
    "test_two_agents_exclude_each_other": _case("second of two agents at once", REFUSED),
    "test_subagent_is_an_owner": _case("subagent edits under its parent's job", REFUSED, gemini=ALLOWED),
}


def table(observed: Mapping[tuple[str, str], str]) -> list[str]:
    """Return a Markdown table of these results by test and host, with a row for each case that ran."""
    tried = {test for test, _ in observed}
    lines = ["| | " + " | ".join(host.title for host in HOSTS) + " |", "|---" * (len(HOSTS) + 1) + "|"]
    for test, case in EXPECTED.items():
        if test in tried:
            cells = [_cell(case, host.name, observed.get((test, host.name))) for host in HOSTS]
            lines.append(f"| {case.title} | " + " | ".join(cells) + " |")
    return lines


def _cell(case: Case, host: str, observed: str | None) -> str:
    is_applicable = case.results[host] is not NOT_APPLICABLE
    return observed or ("not tried" if is_applicable else NOT_APPLICABLE)


def expected_table() -> list[str]:
    """Return the table for the docs."""
    return table({(test, host): result for test, case in EXPECTED.items() for host, result in case.results.items()})


if __name__ == "__main__":
    print("\n".join(expected_table()))
