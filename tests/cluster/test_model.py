"""An exhaustive model of the seat: what two nodes may do to one name, whatever is stopped, lost, late or promoted.

The model stands in `tests/cluster/model`. Here it is run, and it is judged itself: each mutant must be found.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.model.cases import LARGE, MUTANTS, SMALL
from tests.cluster.model.search import search
from tests.support import proof

STATES_MAX = 100_000
"""More than any small world has, and more than any mutant needs."""
LARGE_STATES_MAX = 1_000 * proof.count("model: thousand states of each large world")


@pytest.mark.parametrize("world", SMALL)
def test_no_order_of_steps_breaks_a_rule(world: str, record_property: Callable[[str, object], None]) -> None:
    """I1, I2, I3, I5, I6, I7, I9: no stop, loss, late copy, takeover or promotion breaks one. Every state is seen."""
    found = search(SMALL[world], STATES_MAX)
    assert found.rule is None, str(found)
    assert found.is_complete, str(found)
    record_property("count: states of the model", found.states)


@pytest.mark.parametrize("world", LARGE)
def test_large_worlds_break_no_rule(world: str, record_property: Callable[[str, object], None]) -> None:
    """I1, I2, I3, I5, I6, I7, I9: nor in worlds with more in them, as far as this run looks."""
    found = search(LARGE[world], LARGE_STATES_MAX)
    assert found.rule is None, str(found)
    record_property("count: states of the model", found.states)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_mutant_is_found(mutant: str) -> None:
    """A node that breaks one rule of several nodes is seen to break one of ownership, and the way there is told."""
    rule, rules = MUTANTS[mutant]
    found = search(rules, STATES_MAX)
    assert found.rule == rule, str(found)
    assert found.way[-1].startswith(rule), str(found)
