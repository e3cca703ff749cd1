"""Tables that note what changed: what is noted, put in place, gives the table again, in its order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.state import ChangeSet, TrackedDict
from tests.core.archive_model import apply_changes
from tests.support.steps import count_steps

if TYPE_CHECKING:
    from collections.abc import Callable

keys = st.sampled_from("abcdefg")
Step = tuple[str, str, int]
steps = st.lists(
    st.tuples(st.sampled_from(["set", "set", "set", "pop", "move", "take", "refuse"]), keys, st.integers(0, 9)),
    max_size=80,
)


def add(change_set: ChangeSet[str, int], later: ChangeSet[str, int]) -> None:
    for _ in change_set.add(later):
        pass


@given(steps)
def test_change_set_updates_the_archive_to_the_table(drawn: list[Step]) -> None:
    """Whatever is set and taken out, and however often the archive refuses: rows and order come out the same (I15)."""
    table: TrackedDict[str, int] = TrackedDict()
    plain: dict[str, int] = {}
    archived: dict[str, int] = {}
    pending: ChangeSet[str, int] | None = None
    for verb, key, value in [*drawn, ("take", "a", 0)]:
        match verb:
            case "set":
                table.put(key, value)
                plain[key] = value
            case "pop":
                assert table.pop(key, None) == plain.pop(key, None)
            case "move" if key in plain:
                table.put(key, table.pop(key) + 1)
                plain[key] = plain.pop(key) + 1
            case "take" | "refuse":
                taken = table.take_changes()
                if pending is None:
                    pending = taken
                else:
                    add(pending, taken)
                if verb == "take":
                    apply_changes(archived, pending)
                    pending = None
                    assert list(archived.items()) == list(plain.items())
        assert list(table.items()) == list(plain.items())


@given(steps)
def test_short_lived_values_are_not_tracked(drawn: list[Step]) -> None:
    """What came and went is in no note, and no key is noted as more than it must be: memory is bounded by the table."""
    table: TrackedDict[str, int] = TrackedDict()
    table.load({"a": 1, "b": 2, "c": 3})
    for verb, key, value in drawn:
        if verb in {"set", "move"}:
            table.pop(key, None) if verb == "move" else None
            table.put(key, value)
        else:
            table.pop(key, None)
        assert set(table.gone) <= set("abc")
        assert set(table.changed) <= set("abc") - set(table.gone)
        assert set(table.new) == set(table) - (set("abc") - set(table.gone))
        assert list(table.new.items()) == [(key, table[key]) for key in table if key in table.new]


def test_load_tracks_no_change() -> None:
    """What is loaded is archived already: nothing is noted of it."""
    table: TrackedDict[str, int] = TrackedDict()
    table.load({"a": 1})
    table.load({"b": 2})
    assert (table, len(table.take_changes())) == ({"a": 1, "b": 2}, 0)


def test_take_changes_runs_in_constant_time() -> None:
    """Taking what changed is a few steps, for one change as for ten thousand: the loop never stands still for it."""

    def steps_for(changes: int) -> int:
        table: TrackedDict[str, int] = TrackedDict()
        for number in range(changes):
            table.put(f"job/{number}", number)
        return count_steps(table.take_changes)

    assert steps_for(1) == steps_for(10_000)


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.update({"b": 2}),
        lambda table: table.setdefault("b", 2),
        lambda table: table.popitem(),
        lambda table: table.clear(),
        lambda table: table.__ior__({"b": 2}),
    ],
)
def test_untracked_changes_are_rejected(change: Callable[[TrackedDict[str, int]], object]) -> None:
    """A method that would change many rows at once is refused, and changes nothing."""
    table: TrackedDict[str, int] = TrackedDict()
    table.put("a", 1)
    with pytest.raises(TypeError, match="one row at a time"):
        change(table)
    assert (table, table.new) == ({"a": 1}, {"a": 1})


def test_tracked_dict_reads_like_a_dict() -> None:
    """What is not there cannot be taken out, with or without a value instead, and nothing is noted of it."""
    table: TrackedDict[str, int] = TrackedDict()
    with pytest.raises(KeyError):
        table.pop("a")
    assert (table.pop("a", 7), table.get("a"), len(table.take_changes())) == (7, None, 0)
    table.put("a", 1)
    assert (table["a"], table.pop("a"), "a" in table) == (1, 1, False)
