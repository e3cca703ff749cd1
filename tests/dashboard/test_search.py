"""What the search field finds, on the server and in the page's script; orders, signs of life and times in words."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast.dashboard import rows
from holdfast.dashboard.jobs import SEARCH_CHARS_MAX, TERMS_MAX, read_search
from holdfast.dashboard.rows import JobRow, label_term, liveness_of, name_parts, span_text, time_left_text
from tests.dashboard.search_cases import CASES, NAMED, ROWS, SORTED, TO_SORT, filled

SCRIPTS = Path(rows.__file__).parent / "static"


def _row(fields: dict[str, Any]) -> JobRow:
    return JobRow(**filled(fields))


@pytest.mark.parametrize(("text", "found"), CASES)
def test_search_finds(text: str, found: list[int]) -> None:
    """Each term is looked for where it says, all of them must fit, and whatever is typed is a search."""
    search = read_search(text)
    assert [index for index, row in enumerate(ROWS) if search.matches(_row(row))] == found


@pytest.mark.parametrize("value", ["web", "", "web front", "a:b", 'say"hi"', " ", "web\u00a0front"])
def test_the_search_for_a_label_finds_it(value: str) -> None:
    """The search that a label of a job leads to finds this job, and none with another value."""
    search = read_search(label_term("team", value))
    assert search.matches(_row({"name": "a", "owner": "x", "labels": {"team": value}}))
    assert not search.matches(_row({"name": "b", "owner": "x", "labels": {"team": value + "x"}}))


def test_a_label_that_cannot_be_typed_is_looked_for_by_its_key() -> None:
    """A value with blanks and quotes has no way to be written: its key finds the job, and more."""
    search = read_search(label_term("team", 'the "web" front'))
    assert search.matches(_row({"name": "a", "owner": "x", "labels": {"team": 'the "web" front'}}))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("short", ("", "short")),
        ("github://acme/app/issues/42", ("github://ac", "me/app/issues/42")),
        (
            "\u05e9\u05dc\u05d5\u05dd/and-a-long-name-behind-it/7",
            ("\u05e9\u05dc\u05d5\u05dd/and-a-long-name-behind-it/7", ""),
        ),
    ],
)
def test_a_name_keeps_its_end(name: str, parts: tuple[str, str]) -> None:
    """What may be cut of a name is what stands before its end; one that runs from right to left stays in one piece."""
    assert name_parts(name) == parts


def test_a_search_is_bounded() -> None:
    """Of a search that is too long the beginning counts, in characters and in terms."""
    words = read_search(" ".join(f"w{number}" for number in range(TERMS_MAX + 5))).words
    assert len(words) == TERMS_MAX
    assert read_search("x" * (SEARCH_CHARS_MAX + 50)).words == ("x" * SEARCH_CHARS_MAX,)


SIGNS = [(0, 30_000, "alive"), (-20_000, 10_000, "alive"), (-20_001, 9_999, "late"), (-27_001, 2_999, "ending")]
"""When the last heartbeat of a lease of 30 s was, when it ends, and its sign of life."""
TIMES = [
    (-5, "0 s", "0:00"),
    (999, "0 s", "0:00"),
    (9_000, "9 s", "0:09"),
    (92_000, "1 min", "1:32"),
    (3_600_000, "1 h", "1:00:00"),
    (7_500_000, "2 h", "2:05:00"),
    (86_400_000, "1 d", "1 d"),
    (300_000_000, "3 d", "3 d"),
]


@pytest.mark.parametrize(("beat", "until", "sign"), SIGNS)
def test_liveness_matches_script(beat: int, until: int, sign: str) -> None:
    """Late is a job without a heartbeat for two thirds of its ttl, ending one with less than a tenth of it left."""
    now = 1_000_000
    row = _row({"name": "a", "owner": "b", "beat": now + beat, "until": now + until, "ttl": 30_000})
    assert liveness_of(row, now) == sign


@pytest.mark.parametrize(("ms", "span", "left"), TIMES)
def test_times_in_words(ms: int, span: str, left: str) -> None:
    """A duration is shown in the largest unit that fits, the time left as a clock."""
    assert (span_text(ms), time_left_text(ms)) == (span, left)


NODE = shutil.which("node") or shutil.which("nodejs")
needs_node = pytest.mark.skipif(NODE is None, reason="there is no node here to run the page's scripts")


def _run(script: str, argument: object) -> Any:  # noqa: ANN401 - whatever the script prints
    """Run a module of ours in node with an argument as JSON, and return the JSON that it prints."""
    done = subprocess.run(
        [str(NODE), "--no-warnings", "--input-type=module", "-e", script, json.dumps(argument)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_node
def test_the_script_finds_the_same() -> None:
    """The page's script reads every search as the server does, and puts first what an operator looks for first."""
    script = f"""
        import {{ fits, nameIn, orderOf, readSearch, readSort }} from {json.dumps((SCRIPTS / "search.js").as_uri())};
        const {{ rows, cases, toSort, sorted, named }} = JSON.parse(process.argv[1]);
        console.log(JSON.stringify({{
          found: cases.map(([text]) => rows.flatMap((row, at) => fits(readSearch(text), {{ ...row }}) ? [at] : [])),
          named: named.map(([text]) => nameIn(text)),
          sorted: sorted.map(([text]) => [...toSort].sort(orderOf(readSort(text))).map((row) => row.name)),
        }}));
    """
    argument = {
        "rows": [filled(row) for row in ROWS],
        "cases": CASES,
        "toSort": [filled(row) for row in TO_SORT],
        "sorted": SORTED,
        "named": NAMED,
    }
    seen = _run(script, argument)
    assert seen["found"] == [found for _, found in CASES]
    assert seen["named"] == [name for _, name in NAMED]
    assert seen["sorted"] == [names for _, names in SORTED]


@needs_node
def test_the_script_has_the_same_words() -> None:
    """Signs of life and durations that a script goes on with are those that the server drew."""
    script = f"""
        import {{ leftText, signOf, spanText }} from {json.dumps((SCRIPTS / "clock.js").as_uri())};
        const {{ signs, times }} = JSON.parse(process.argv[1]);
        console.log(JSON.stringify({{
          signs: signs.map(([beat, until]) => signOf({{ beat, until, ttl: 30_000 }}, 0)),
          times: times.map(([ms]) => [spanText(ms), leftText(ms)]),
        }}));
    """
    seen = _run(script, {"signs": SIGNS, "times": TIMES})
    assert seen["signs"] == [sign for _, _, sign in SIGNS]
    assert seen["times"] == [[span, left] for _, span, left in TIMES]
