"""The table of the docs is the table that the tests expect. This needs no host, so every run has it."""

from __future__ import annotations

from tests.hosts.expected import EXPECTED, expected_table
from tests.hosts.hosts import HOSTS
from tests.support.server import PROJECT


def test_docs_show_the_expected_table() -> None:
    """docs/guide/hosts.md has every line of the expected table."""
    page = (PROJECT / "docs/guide/hosts.md").read_text(encoding="utf-8")
    assert "\n".join(expected_table()) in page, "replace the table with the output of `python -m tests.hosts.expected`"


def test_every_case_names_a_test() -> None:
    """No row of the table is without its test, and every row has a result for every host."""
    tests = "\n".join(file.read_text(encoding="utf-8") for file in (PROJECT / "tests/hosts").glob("test_*.py"))
    for test, case in EXPECTED.items():
        assert f"def {test}(host: Host" in tests, test
        assert set(case.results) == {host.name for host in HOSTS}
