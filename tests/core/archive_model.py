"""An archive beside a state: it is only ever given what changed, and must come to the same."""

from __future__ import annotations

from typing import Any

from holdfast.core.state import TABLES, ChangeSet, State


def apply_changes(rows: dict[Any, Any], change_set: ChangeSet[Any, Any]) -> None:
    """What an archive does with the notes of a table, by the rule of the seam: what does not fit is refused."""
    for key in change_set.gone:
        del rows[key]
    for key, value in change_set.changed.items():
        assert key in rows, "changed, and not archived"
        rows[key] = value
    for key, value in change_set.new.items():
        assert key not in rows, "new, and archived"
        rows[key] = value


class Archived:
    """Takes what changed in a state, each time it is told to follow."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._tables: dict[str, dict[Any, Any]] = {name: dict(state.table(name)) for name in TABLES}
        state.take_changes()

    def follow(self) -> None:
        """I15: no change was forgotten, and rows and order are the state's."""
        for name, change_set in self._state.take_changes().tables.items():
            apply_changes(self._tables[name], change_set)
            assert list(self._tables[name].items()) == list(self._state.table(name).items()), name
