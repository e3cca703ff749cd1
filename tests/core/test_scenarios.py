"""Every script in scenarios/ plays as written, and every rule of the core has a test that names it."""

import re
from pathlib import Path

import pytest

from tests.scenarios.player import ScenarioError, play

HERE = Path(__file__).parent
SCRIPTS = sorted(HERE.glob("scenarios/*.txt"))

CLAIMS = ["T3", "N1", *(f"C{n}" for n in range(1, 8)), *(f"L{n}" for n in range(1, 9)), "S1", "S2", "S3", "S4"]
WAITS = [*(f"W{n}" for n in range(1, 6)), "D1", "D2", "D3", "M1", "M2"]
INVARIANTS = ["I1", "I2", "I3", "I8", *(f"I{n}" for n in range(10, 16))]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_scenario_is_answered_as_written(script: Path) -> None:
    """Every line is answered as the script says, and the journal alone leads to the same state (T3, I15)."""
    text = script.read_text(encoding="utf-8")
    played = play(text + "\nrestart -> ok", script.name)
    assert any(step.wanted for step in played.steps)


@pytest.mark.parametrize("rule", CLAIMS + WAITS + INVARIANTS)
def test_every_rule_is_named_by_a_scenario_or_test(rule: str) -> None:
    """Each rule of the core is named by a scenario or by the sentence of a test."""
    texts = [path.read_text(encoding="utf-8") for path in SCRIPTS]
    for path in sorted(HERE.glob("test_*.py")):
        texts += re.findall(r'def test_.*?"""(.*?)"""', path.read_text(encoding="utf-8"), re.DOTALL)
    named = set(re.findall(r"\b[A-Z]\d+\b", "\n".join(texts)))
    assert rule in named


def test_wrong_answer_is_reported_with_its_line() -> None:
    """A script that is not answered as written says which line, what it wanted and what it got."""
    with pytest.raises(ScenarioError, match=r"(?s)mine, line 3: .*wanted: held by=ben until=10s.*got: held by=ana"):
        play("acquire a by=ana ttl=10s\n\nacquire a -> held by=ben until=10s", "mine")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("steal a", "no such command"),
        ("acquire a speed=3", "'speed' is none of"),
        ("advance 10", "no time"),
        ("-> granted", "needs a command"),
        ("limits patience=3", "'patience' is none of"),
        ("limits leases_per_principal_max=few", "Expected `int`"),
        ('acquire "a', "No closing quotation"),
        ("away t1", "nobody waits at t1"),
        ("back t1", "nobody ever waited at t1"),
        ("; t1: granted", "no such command"),
    ],
)
def test_unreadable_line_is_reported(line: str, why: str) -> None:
    """A line that is no command is refused with its place, never passed over."""
    with pytest.raises(ScenarioError, match=rf"(?s)scenario, line 1: .*{re.escape(why)}"):
        play(line)


def test_answer_may_continue_on_the_next_line() -> None:
    """What those in line hear may stand in lines of its own, and belongs to the line that caused it."""
    joined = "acquire a by=ana\nacquire a by=ben wait=9s ttl=9s\n"
    play(joined + "release a token=1 -> ok  # so\n  ; t1: granted token=2 until=9s previous=ana/released")
    with pytest.raises(ScenarioError, match=r"(?s)scenario, line 3: .*wanted: ok; t1: held\n *got: ok; t1: granted"):
        play(joined + "release a token=1 -> ok\n  ; t1: held")


def test_play_returns_what_happened() -> None:
    """The played script gives every answer, every record and the state."""
    played = play("acquire a ttl=10s -> granted token=1 until=10s\nadvance 10s")
    assert [step.got for step in played.steps] == ["granted token=1 until=10s", "expired a"]
    assert [record.seq for record in played.records] == [1, 2]
    assert played.state.seq == 2
